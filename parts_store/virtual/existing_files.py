"""Existing files: find those that a caller means, list folders, and read files with the library for their format.

A failed request is never taken for damage of a file, and other files are read only where references are allowed.
"""

import fnmatch
import glob
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote

import obstore
from obspec_utils.readers import BlockStoreReader
from obstore.store import GCSStore, HTTPStore, LocalStore

from parts_store.errors import (
    AdoptionError,
    PartsStoreError,
    StorageError,
    StoreConfigError,
    describe,
    raise_translated,
)
from parts_store.redaction import hide_in_url, hide_secrets, may_hold_secret, secrets_of_url
from parts_store.text import did_you_mean
from parts_store.virtual.description import CannotBeReadError, Description, OpenOther, OtherFile, skip_invalid_names
from parts_store.virtual.registries import Registries, find_store, folder_of
from parts_store.virtual.store_access import (
    ENCODED_SCHEMES,
    is_about_object,
    local_path,
    open_url,
    secrets_of,
    translated,
)

# How many files are listed to find one among them.
_FIRST: Final = 1000
# The clock of a file system may be behind by this much.
_LAG: Final = timedelta(milliseconds=50)
# How many blocks of 1 MiB are kept of a file; and of how many other files at the same time, and how many of each.
_KEPT: Final = 64
_OTHERS_KEPT: Final = 8
# How the HDF5 library reports a file that is shorter than its header says.
_TRUNCATED: Final = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")
_MAGIC: Final = re.compile(r"[*?\[]")
_ANY_FOLDERS: Final = "**"
_BUCKETS: Final = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure")
# These have no listing. In their URLs, '?' begins a query.
_WEB_SCHEMES: Final = ("http", "https")
_PLAIN_URLS: Final = (
    "URLs without a query, which may be a signature and would be stored with the references; use the URL of the "
    "bucket, such as s3://bucket/file, and pass credentials as options, such as access_key_id"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An existing file, with a checksum by which a later change is noticed."""

    store: Any
    key: str
    # The URL for references.
    location: str
    nbytes: int
    checksum: str | datetime

    @property
    def state(self) -> tuple[Any, ...]:
        """Return what changes when the file is written."""
        return self.nbytes, self.checksum

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `start <= i < stop`, cut at the end of the file."""
        last = min(stop, self.nbytes)
        if start >= last:
            return b""
        with translated("get", _shown(self.key), lambda: secrets_of(self.store)):
            return bytes(self.store.get_range(self.key, start=start, end=last))


def _shown(key: str) -> str:
    """Return the key for messages, without the query of a URL, which may be a signature."""
    return key.partition("?")[0]


def find_file(store: Any, key: str, location: str) -> StoredFile | None:
    """Return the file with a key in a store, None if there is none; `location` is its URL.

    On a local disk, a device or a named pipe is no file: reading it could take forever.
    """
    is_local = isinstance(store, LocalStore)
    if is_local and (path := Path(store.prefix or "/", key)).exists() and not path.is_file():
        return None
    with translated("head", _shown(key), lambda: [*secrets_of(store), *secrets_of_url(location)]):
        try:
            meta = store.head(key)
        except FileNotFoundError as error:
            if not is_about_object(error):
                raise
            return None
    # On a local disk the ETag depends on the inode and changes with a copy. To web servers and Google Storage, Icechunk
    # sends ETags without their quotation marks, which are refused. It compares the time then.
    has_time = is_local or isinstance(store, HTTPStore | GCSStore) or meta["e_tag"] is None
    checksum = meta["last_modified"] if has_time else meta["e_tag"]
    return StoredFile(store, key, location, meta["size"], checksum)


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The names of the files and of the folders in a folder."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


def _names(paths: Any) -> tuple[str, ...]:
    return tuple(path.rstrip("/").rpartition("/")[2] for path in paths)


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """An existing folder, with the number of files below it and the time of the newest one."""

    # The URL of the folder, without '/' at its end.
    location: str
    # The names of the files in the folder itself.
    names: tuple[str, ...]
    count: int
    newest: datetime

    @property
    def state(self) -> tuple[Any, ...]:
        """Return what changes when a file below the folder is written or deleted."""
        return self.count, self.newest


def find_folder(store: Any, key: str, location: str) -> StoredFolder | None:
    """Return the folder with a key in a store, None if there are no files below it; `location` is its URL."""
    if isinstance(store, HTTPStore):
        return None
    with translated("list", key, lambda: secrets_of(store)):
        names = _names(meta["path"] for meta in obstore.list_with_delimiter(store, key)["objects"])
        times = [meta["last_modified"] for batch in obstore.list(store, key) for meta in batch]
    return StoredFolder(location.rstrip("/"), names, len(times), max(times)) if times else None


@dataclass(frozen=True, slots=True)
class FolderReader:
    """The files below a folder of a store, by their paths relative to the folder."""

    store: Any
    # The key of the folder, without '/' at its end; "" for all of the store.
    key: str

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the paths and the sizes of all files below the folder."""
        skipped = len(self.key) + 1 if self.key else 0
        with translated("list", self.key, lambda: secrets_of(self.store)):
            for batch in obstore.list(self.store, self.key or None):
                for meta in batch:
                    yield meta["path"][skipped:], meta["size"]

    def contents(self, below: str) -> FolderContents:
        """Return what is in the folder `below` of this folder, which is "" for the folder itself."""
        place = self._place(below)
        with translated("list", place, lambda: secrets_of(self.store)):
            found = obstore.list_with_delimiter(self.store, f"{place}/" if place else None)
        # Some programs create an object with the name of the folder.
        files = [meta["path"] for meta in found["objects"] if meta["path"] != place]
        return FolderContents(_names(files), _names(found["common_prefixes"]))

    def first_files(self, below: str) -> list[tuple[str, int]]:
        """Return the paths and sizes of some of the files below a folder, as many as one request returns."""
        place = self._place(below)
        with translated("list", place, lambda: secrets_of(self.store)):
            batch = next(iter(obstore.list(self.store, place or None, chunk_size=_FIRST)), [])
        return [(meta["path"][len(place) + 1 if place else 0 :], meta["size"]) for meta in batch]

    def read(self, path: str, nbytes: int) -> bytes | None:
        """Return the first `nbytes` bytes of a file, fewer if the file is shorter; None if there is no such file."""
        found = find_file(self.store, self._place(path), path)
        return None if found is None else found.read(0, nbytes)

    def read_known(self, path: str, nbytes: int) -> bytes:
        """Return the first `nbytes` bytes of a file that has at least as many, with one request."""
        if nbytes == 0:
            return b""
        place = self._place(path)
        with translated("get", place, lambda: secrets_of(self.store)):
            return bytes(self.store.get_range(place, start=0, end=nbytes))

    def _place(self, path: str) -> str:
        return "/".join(each for each in (self.key, path) if each)


def missing_file(url: str) -> StoreConfigError:
    """Return the error for a URL with no file there. On this machine, it suggests a file with a similar name."""
    found = "none"
    if url.startswith("file://"):
        path = local_path(url)
        if path.is_dir():
            found = "an empty folder"
        elif path.parent.is_dir():
            found += did_you_mean(path.name, [each.name for each in path.parent.iterdir()])
        else:
            found = f"no folder {str(path.parent)!r}"
    return StoreConfigError(f"file {hide_in_url(url)!r}", "a file that exists", found)


# --- the content of a file --------------------------------------------------------------------------------------------


class SourceFormat(Protocol):
    """A module that reads one file format."""

    def recognise(self, file: BinaryIO, nbytes: int) -> bool:
        """Return whether a file of `nbytes` bytes has this format."""

    def describe(self, file: BinaryIO, nbytes: int, open_other: OpenOther = ...) -> Description:
        """Return what is in a file of `nbytes` bytes; `open_other` opens files that it refers to."""


class _CheckedRanges:
    """The ranges of a stored file, with the methods that a `BlockStoreReader` calls, and the first failure."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        # The libraries that read a file do not keep the error of a read that failed.
        self.failure: Exception | None = None

    def head(self, path: str) -> dict[str, Any]:  # noqa: ARG002 - the interface of obspec
        """Return the size of the file."""
        return {"size": self._file.nbytes}

    def get_ranges(self, path: str, *, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:  # noqa: ARG002
        """Return ranges of the file."""
        return [self._read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def _read(self, start: int, length: int) -> bytes:
        # After a failure nothing more is read: the next read would wait as long for the same error.
        if self.failure is None:
            try:
                data = self._file.read(start, start + length)
                if len(data) == length:
                    return data
                self.failure = OSError(f"expected {length} bytes, found {len(data)}")
            except Exception as error:
                self.failure = error
        raise OSError(str(self.failure)) from self.failure


class FileReader(BlockStoreReader):
    """A stored file as a file object, which reads blocks and caches the latest ones."""

    def __init__(self, file: StoredFile, kept: int = _KEPT) -> None:
        self._ranges = _CheckedRanges(file)
        super().__init__(cast("Any", self._ranges), file.key, max_cached_blocks=kept)
        self.nbytes, self.location = file.nbytes, file.location

    @property
    def file(self) -> BinaryIO:
        """The file object, as the libraries for file formats expect it."""
        return cast("BinaryIO", self)

    @property
    def failure(self) -> Exception | None:
        """The error of the first read that failed; None if none did."""
        return self._ranges.failure

    @property
    def name(self) -> str:
        """The name of the file, without its folder. OME-TIFF files name themselves."""
        name = self.location.rpartition("/")[2]
        return unquote(name) if self.location.partition("://")[0].lower() in ENCODED_SCHEMES else name

    def require_no_failure(self) -> None:
        """Raise `AdoptionError` if a read has failed. The libraries report that as damage of what they were reading."""
        if self.failure is not None:
            raise_translated(_unreadable(self.location, self.failure), self.failure)


class OtherFiles:
    """The other files that a file refers to, by the names that it has for them, where references are allowed."""

    def __init__(
        self, location: str, registries: Registries = (), why_none: Callable[[str], str] | None = None
    ) -> None:
        self._location, self._registries = location, registries
        # Returns why a file with a name is not opened; None if files are opened.
        self._why_none = why_none
        self._opened: dict[str, OtherFile] = {}
        self._readers: list[FileReader] = []
        self._not_opened: list[tuple[str, Exception]] = []

    def open(self, name: str) -> OtherFile:
        """Open a file; raise `CannotBeReadError` if that is not allowed, or there is none."""
        if self._why_none is not None:
            raise CannotBeReadError(self._why_none(name))
        url = location_of(name, self._location)
        if url not in self._opened:
            try:
                self._opened[url] = self._open(name, url)
            except StorageError as error:
                self._not_opened.append((name, error))
                raise
        return self._opened[url]

    def _open(self, name: str, url: str) -> OtherFile:
        shown = name.encode(errors="backslashreplace").decode()
        try:
            store, key = find_store(url, self._registries)
        except PartsStoreError:
            problem = f"its values are in another file, in a folder that references may not point to: {shown}"
            raise CannotBeReadError(problem) from None
        stored = find_file(store, key, url)
        if stored is None:
            raise CannotBeReadError(f"its values are in another file, which does not exist: {shown}")
        # Many files must not take more memory than one: earlier ones read their blocks again if they are needed.
        if len(self._readers) >= _OTHERS_KEPT:
            self._readers[-_OTHERS_KEPT].close()
        self._readers.append(FileReader(stored, _KEPT // _OTHERS_KEPT))
        return OtherFile(url, self._readers[-1].file, stored.nbytes, stored.checksum)

    def require_no_failure(self) -> None:
        """Raise `AdoptionError` if a file could not be opened or read because of its server."""
        for name, failure in self._not_opened:
            raise_translated(_unreadable(name, failure), failure)
        for reader in self._readers:
            reader.require_no_failure()


def location_of(name: str, location: str) -> str:
    """Return the URL of a file, given its name in the file at a URL: a path, or a path from the folder of that file."""
    scheme, _, rest = folder_of(location).partition("://")
    host, _, folder = rest.partition("/")
    is_encoded = scheme.lower() in ENCODED_SCHEMES
    folder = unquote(folder) if is_encoded else folder
    if name.startswith("/") and scheme.lower() != "file":
        raise CannotBeReadError(f"its values are in a file of another machine: {name}")
    path = posixpath.normpath(posixpath.join(f"/{folder}", name)).lstrip("/")
    return f"{scheme}://{host}/{quote(path) if is_encoded else path}"


def describe_file(found: SourceFormat, reader: FileReader, others: OtherFiles) -> Description:
    """Return what is in a file; raise `AdoptionError` if it is damaged, or it or another file cannot be read.

    Groups and arrays whose names are not valid in Zarr are among what is skipped. Raises `ImportError` if a package for
    the format is not installed.
    """
    try:
        description = found.describe(reader.file, reader.nbytes, others.open)
    except ImportError:
        raise
    # The libraries raise any error for a damaged file.
    except Exception as error:
        reader.require_no_failure()
        others.require_no_failure()
        raise_translated(refused_file(reader.location, _damage(error)), error)
    reader.require_no_failure()
    others.require_no_failure()
    skip_invalid_names(description)
    return description


def _damage(error: Exception) -> str:
    """Return what is wrong with a file that the library of its format cannot read."""
    cut = _TRUNCATED.search(str(error))
    if cut is None:
        return f"it is damaged: {first_line(error)}"
    found, expected = int(cut[1]), int(cut[2])
    return f"it is truncated: expected {expected:,} bytes, found {found:,}; copy or download the file again"


def open_stored[T](location: str, open_it: Callable[[], T]) -> T:
    """Return what `open_it` returns for a file; raise `AdoptionError` if that fails."""
    try:
        return open_it()
    except PartsStoreError:
        raise
    # Servers and networks fail in many ways, and each client library has its own errors.
    except Exception as error:
        raise_translated(_unreadable(location, error), error)


def read_from[T](reader: FileReader, read: Callable[[BinaryIO, int], T]) -> T:
    """Return what `read` returns for a file object and its size; raise `AdoptionError` if the file cannot be read."""
    try:
        return read(reader.file, reader.nbytes)
    except OSError as error:
        raise_translated(_unreadable(reader.location, reader.failure or error), reader.failure or error)


def _unreadable(location: str, error: Exception) -> AdoptionError:
    return refused_file(location, f"it cannot be read: {type(error).__name__}: {first_line(error)}")


def refused_file(location: str, problem: str) -> AdoptionError:
    """Return the error for a file, or a folder, that cannot be adopted."""
    return AdoptionError(location, (("the file", problem),))


def first_line(error: BaseException) -> str:
    """Return the first line of a message of another library, without secrets."""
    return hide_secrets(str(error).strip().partition("\n")[0])[:300]


# --- files that change ------------------------------------------------------------------------------------------------


def wait_for_next_second(modified: datetime) -> bool:
    """Wait until a later change of a file has a later time, in whole seconds; return whether that took time."""
    left = modified.replace(microsecond=0) + timedelta(seconds=1) + _LAG - datetime.now(UTC)
    # Do not wait for a time that is in the future.
    if not timedelta() < left <= timedelta(seconds=1) + _LAG:
        return False
    time.sleep(left.total_seconds())
    return True


# --- the files that a caller means ------------------------------------------------------------------------------------

type Files = str | Path | Iterable[str | Path]
"""A file, a pattern, or several of them."""


def list_files(files: Files, options: dict[str, Any]) -> list[str]:
    """Return the URLs of files, in the order of the list. What a pattern matches is in natural order: 2 before 10.

    Raises `StoreConfigError` for an empty list, for a pattern that matches nothing, and for a file that is listed
    twice. Files without a pattern are not looked for.
    """
    if not isinstance(files, str | Path | Iterable):
        raise StoreConfigError("files", "paths and URLs", f"an object of type {type(files).__name__}")
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


def first_of(locations: Sequence[str]) -> str:
    """Return the first of several URLs, without passwords, and the number of the others."""
    others = f" and {len(locations) - 1:,} other files" if len(locations) > 1 else ""
    return f"{hide_in_url(locations[0])}{others}" if locations else "no files"


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
