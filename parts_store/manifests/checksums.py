"""Checksums of the files that references point to, so that a changed file is detected. Pure.

A checksum is the file's ETag, or a time after which the file must not have been modified. VirtualiZarr's manifests
cannot hold checksums, so they are kept separately, one for each file.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from parts_store.engine.steps import Found
from parts_store.errors import ManifestError, describe
from parts_store.manifests.entries import parse_location
from parts_store.manifests.pieces import Checksum, FileRange

type Checksums = Mapping[str, Checksum]
"""The checksums of files, by their URLs. A file may have none."""

NONE: Final[Checksums] = {}
# What web servers report for a file when they do not know its time.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def parse_checksums(checksums: object) -> Checksums:
    """Return the checksums that a caller gives, by the URLs of files or their paths on this machine."""
    if checksums is None:
        return NONE
    if not isinstance(checksums, Mapping):
        raise ManifestError("checksums", "a mapping from URLs of files to ETags or times", describe(checksums))
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


def change_of(wanted: FileRange, found: Found) -> str | None:
    """Return how a file differs from its checksum, given what came with its bytes; None if it does not differ."""
    match wanted.checksum:
        case str(expected):
            if found.etag is None:
                return f"expected the ETag {expected}, but the store reports none"
            if _bare(found.etag) != _bare(expected):
                return f"the file was changed: expected the ETag {expected}, found {found.etag}"
        case datetime() as expected:
            modified = found.modified
            is_unknown = modified == _EPOCH and wanted.location.startswith(("http://", "https://"))
            if modified is None or is_unknown:
                return f"expected a file not modified after {expected}, but the store reports no time"
            if modified > expected:
                return f"the file was changed: expected it not to be modified after {expected}, found {modified}"
    return None


def _bare(etag: str) -> str:
    """Return an ETag without the marks that listings and servers write differently."""
    return etag.removeprefix("W/").strip('"')


def to_json(checksums: Checksums) -> dict[str, dict[str, str]]:
    """Return checksums as a JSON object."""
    return {
        location: {"etag": checksum} if isinstance(checksum, str) else {"last_modified": checksum.isoformat()}
        for location, checksum in checksums.items()
    }


def from_json(data: Mapping[str, Any], where: str) -> Checksums:
    """Return the checksums in a JSON object."""
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
                raise ManifestError(where, "a time in ISO 8601 format", describe(text)) from error
        case _:
            raise ManifestError(where, "{'etag': text}, or {'last_modified': time}", describe(value))
