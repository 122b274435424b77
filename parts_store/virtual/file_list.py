"""Find the files that a caller means: a path, a URL, a pattern such as `data/*.nc`, or a list of them."""

import fnmatch
import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import may_hold_secret
from parts_store.virtual.existing_files import FolderReader
from parts_store.virtual.store_access import local_path, open_url

type Files = str | Path | Iterable[str | Path]
"""A file, a pattern, or several of them."""

_MAGIC: Final = re.compile(r"[*?\[]")
_ANY_FOLDERS: Final = "**"
_BUCKETS: Final = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure")
# These have no listing. In their URLs, '?' begins a query.
_WEB_SCHEMES: Final = ("http", "https")
_PLAIN_URLS: Final = (
    "URLs without a query, which may be a signature and would be stored with the references; use the URL of the "
    "bucket, such as s3://bucket/file, and pass credentials as options, such as access_key_id"
)


def list_files(files: Files, options: dict[str, Any]) -> list[str]:
    """Return the URLs of files, in the order of the list. What a pattern matches is in natural order: 2 before 10.

    Raises `StoreConfigError` for an empty list, for a pattern that matches nothing, and for a file that is listed
    twice. Files without a pattern are not looked for.
    """
    given = [files] if isinstance(files, str | Path) else list(files)
    if not given:
        raise StoreConfigError("files", "at least one file", "an empty list")
    found: dict[str, str] = {}
    for each in given:
        if not isinstance(each, str | Path):
            raise StoreConfigError("files", "paths and URLs", f"an object of type {type(each).__name__}")
        for url in _expand(str(each), options):
            if url in found:
                raise StoreConfigError("files", "every file once", f"{describe(url)} twice")
            found[url] = str(each)
    return list(found)


def _expand(text: str, options: dict[str, Any]) -> list[str]:
    """Return the URLs of the files that a path, a URL or a pattern names."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return _expand_local(local_path(text) if separator else Path(text).expanduser(), text)
    if _may_have_password(scheme, rest):
        # The URL is not shown: any part of it may be a part of the password.
        expected = "URLs without passwords, which would be stored with the references; pass them as options"
        raise StoreConfigError("files", expected, f"{scheme}:// with '@' (in a path, write %40)")
    if may_hold_secret(text):
        raise StoreConfigError("files", _PLAIN_URLS, describe(text))
    if scheme in _WEB_SCHEMES:
        if "*" in rest:
            raise StoreConfigError("files", "a list of URLs, because web servers list no files", describe(text))
        return [text]
    if not _MAGIC.search(rest):
        return [text.rstrip("/")]
    if _MAGIC.search(rest.partition("/")[0]):
        raise StoreConfigError("files", "a pattern behind the name of the bucket", describe(text))
    fixed, segments = _split(rest)
    names = match(FolderReader(open_url(f"{scheme}://{fixed}", options, create=False), ""), "", segments)
    return _require_some((f"{scheme}://{fixed}/{name}" for name in names), text)


def _may_have_password(scheme: str, address: str) -> bool:
    """Return whether a URL, given without its scheme, may begin with a password, which may contain any character.

    The names of buckets have no ':', and the keys of objects may have '@'.
    """
    authority = address.partition("/")[0]
    return "@" in (address if scheme not in _BUCKETS or ":" in authority else authority)


def _expand_local(path: Path, text: str) -> list[str]:
    """Return the URLs of local files. A file whose name has brackets is found by its name."""
    if not _MAGIC.search(str(path)) or path.exists():
        return [path.resolve().as_uri()]
    found = glob.iglob(str(path), recursive=True)  # noqa: PTH207 - `Path.glob` takes no absolute patterns
    return _require_some((Path(each).resolve().as_uri() for each in found), text)


def _require_some(urls: Iterable[str], pattern: str) -> list[str]:
    if found := sorted(set(urls), key=natural_order):
        return found
    raise StoreConfigError("files", "a pattern that matches files", f"no file that matches {describe(pattern)}")


def natural_order(text: str) -> list[tuple[str, int, str]]:
    """Return a key to sort by, in which numbers count as numbers."""
    pieces = re.findall(r"([^0-9]*)([0-9]*)", text)
    return [(name, int(digits or 0), digits) for name, digits in pieces]


def _split(address: str) -> tuple[str, Sequence[str]]:
    """Return the folder before the first segment that is a pattern, and the other segments."""
    segments = address.split("/")
    first = next(number for number, each in enumerate(segments) if _MAGIC.search(each))
    return "/".join(segments[:first]), segments[first:]


def match(folder: FolderReader, below: str, segments: Sequence[str]) -> Iterator[str]:
    """Yield the paths of files and folders that segments of a pattern match, relative to the folder."""
    first, rest = segments[0], segments[1:]
    if first == _ANY_FOLDERS and rest:
        yield from match(folder, below, rest)
        for name in folder.contents(below.rstrip("/")).folders:
            yield from match(folder, f"{below}{name}/", segments)
        return
    if not _MAGIC.search(first) and rest:
        yield from match(folder, f"{below}{first}/", rest)
        return
    listing = folder.contents(below.rstrip("/"))
    names = listing.folders if rest else [*listing.files, *listing.folders]
    for name in names:
        if fnmatch.fnmatchcase(name, first):
            yield from match(folder, f"{below}{name}/", rest) if rest else (f"{below}{name}",)
