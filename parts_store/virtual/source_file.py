"""Read an existing file, and the files that it refers to, with the library for its format.

A failed request is never taken for damage of the file, and other files are read only where references are allowed.
"""

import posixpath
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote

from obspec_utils.readers import BlockStoreReader

from parts_store.errors import AdoptionError, PartsStoreError, StorageError, raise_translated
from parts_store.redaction import hide_secrets
from parts_store.virtual.description import CannotBeReadError, Description, OpenOther, OtherFile
from parts_store.virtual.existing_files import StoredFile, find_file
from parts_store.virtual.registered_files import Registries, find_store, folder_of
from parts_store.virtual.store_access import DOCUMENT, ENCODED_SCHEMES, NODES_FOLDER, PROTOCOL_FOLDER

# The clock of a file system may be behind by this much.
_LAG: Final = timedelta(milliseconds=50)
# What stands for a backslash in the name of a Zarr node.
_BACKSLASH: Final = "%5C"
# Names that a Zarr node cannot have, besides those of periods alone.
_INVALID_NAMES: Final = (NODES_FOLDER, PROTOCOL_FOLDER, DOCUMENT)
# How many blocks of 1 MiB are kept of a file; and of how many other files at the same time, and how many of each.
_KEPT: Final = 64
_OTHERS_KEPT: Final = 8
_LOCAL: Final = "file"


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
    if name.startswith("/") and scheme.lower() != _LOCAL:
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
        raise_translated(AdoptionError(reader.location, (("the file", f"it is damaged: {_text(error)}"),)), error)
    reader.require_no_failure()
    others.require_no_failure()
    skip_invalid_names(description)
    return description


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
    return AdoptionError(location, (("the file", f"it cannot be read: {type(error).__name__}: {_text(error)}"),))


def _text(error: Exception) -> str:
    return hide_secrets(str(error).partition("\n\nDebug source")[0].strip())


def skip_invalid_names(description: Description) -> None:
    """Move groups and arrays whose names are not valid in Zarr to those that are skipped.

    A name with a backslash, which zarr takes for a slash, is valid with `%5C` in its place.
    """
    _replace_backslashes(description)
    names = [*filter(None, description.groups), *(array.header.name for array in description.arrays)]
    reasons = {name: reason for name in names if (reason := why_invalid(name)) is not None}
    for name, reason in reasons.items():
        description.groups.pop(name, None)
        description.skip(name, reason)
    description.arrays[:] = [array for array in description.arrays if array.header.name not in reasons]


def _replace_backslashes(description: Description) -> None:
    known = {*description.groups, *(array.header.name for array in description.arrays)}
    new = {name: name.replace("\\", _BACKSLASH) for name in known if "\\" in name}
    if known & set(new.values()):
        return
    reason = "zarr takes the backslash in its name for a slash; adopted as {}"
    for name, new_name in sorted(new.items()):
        description.skip(name, reason.format(repr(new_name)), has_values=False)
    groups = {new.get(name, name): attributes for name, attributes in description.groups.items()}
    description.groups.clear()
    description.groups.update(groups)
    description.arrays[:] = [
        replace(array, header=replace(array.header, name=new.get(array.header.name, array.header.name)))
        for array in description.arrays
    ]


def why_invalid(name: str) -> str | None:
    """Return why a path of the file cannot be that of a Zarr node; None if it can."""
    for each in name.split("/"):
        if not each.strip(".") or each in _INVALID_NAMES or "\\" in each:
            return f"no node of Zarr can be called {each!r}"
    return None


def wait_for_next_second(modified: datetime) -> bool:
    """Wait until a later change of a file has a later time, in whole seconds; return whether that took time."""
    left = modified.replace(microsecond=0) + timedelta(seconds=1) + _LAG - datetime.now(UTC)
    # Do not wait for a time that is in the future.
    if not timedelta() < left <= timedelta(seconds=1) + _LAG:
        return False
    time.sleep(left.total_seconds())
    return True
