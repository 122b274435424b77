"""Checksums of files that references point to: by what a file is known that was changed since. Pure.

A checksum is the file's ETag, or a time after which the file must not have been modified. VirtualiZarr's manifests have
no place for them, so they are kept beside these, one for each file.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from parts_store.errors import ManifestError, describe
from parts_store.manifests.entries import Checksum, FileRange, parse_location

type Checksums = Mapping[str, Checksum]
"""The checksum of each file, by its URL, where one is known."""

NONE: Final[Checksums] = {}
# What stores tell of a file whose time they do not know.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def parse_checksums(checksums: object) -> Checksums:
    """Return checksums that a caller gives, by the URLs of files or their paths on this machine."""
    if checksums is None:
        return NONE
    if not isinstance(checksums, Mapping):
        raise ManifestError("checksums", "ETags or times, by the URLs of files", describe(checksums))
    return {
        parse_location(location, "checksums"): _parse(checksum, f"checksum of {describe(location)}")
        for location, checksum in checksums.items()
    }


def _parse(checksum: object, where: str) -> Checksum:
    match checksum:
        case str() if checksum:
            return checksum
        case datetime(tzinfo=zone) if zone is not None:
            return checksum
        case _:
            raise ManifestError(where, "an ETag, or a time with its time zone", describe(checksum))


def conflicting(one: Checksums, other: Checksums) -> set[str]:
    """Return the files of which two arrays know different ETags: their bytes are different."""
    shared = one.keys() & other.keys()
    return {each for each in shared if isinstance(one[each], str) and isinstance(other[each], str)} & {
        each for each in shared if one[each] != other[each]
    }


def change_of(wanted: FileRange, meta: Mapping[str, Any]) -> str | None:
    """Return how a file differs from what its reference knows, by what came with its bytes; None if it does not."""
    match wanted.checksum:
        case str(expected):
            found = meta["e_tag"]
            if found is None:
                return f"expected the ETag {expected}, and the store tells none"
            if _bare(found) != _bare(expected):
                return f"the file was changed: expected the ETag {expected}, found {found}"
        case datetime() as expected:
            modified = meta["last_modified"]
            if modified == _EPOCH and wanted.location.startswith(("http://", "https://")):
                return f"expected a file not modified after {expected}, and the store does not tell when it was"
            if modified > expected:
                return f"the file was changed: expected none modified after {expected}, found {modified}"
    return None


def _bare(etag: str) -> str:
    """An ETag without what listings and servers spell differently."""
    return etag.removeprefix("W/").strip('"')


def to_json(checksums: Checksums) -> dict[str, dict[str, str]]:
    """Return checksums as JSON takes them."""
    return {
        location: {"etag": checksum} if isinstance(checksum, str) else {"last_modified": checksum.isoformat()}
        for location, checksum in checksums.items()
    }


def from_json(data: Mapping[str, Any], where: str) -> Checksums:
    """Return the checksums that JSON describes."""
    return {
        parse_location(location, where): _from_json(value, f"{where}, {describe(location)}")
        for location, value in data.items()
    }


def _from_json(value: object, where: str) -> Checksum:
    match value:
        case {"etag": str(etag), **rest} if not rest:
            return _parse(etag, where)
        case {"last_modified": str(text), **rest} if not rest:
            try:
                return _parse(datetime.fromisoformat(text), where)
            except ValueError as error:
                raise ManifestError(where, "a time in the form of ISO 8601", describe(text)) from error
        case _:
            raise ManifestError(where, "{'etag': text}, or {'last_modified': time}", describe(value))
