"""Read an existing file with the library for its format, and check that the file does not change meanwhile."""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote

from parts_store.adoption.description import Description, OpenOther, OtherFile, open_no_other
from parts_store.adoption.formats import FORMATS, FileFormat, find_format
from parts_store.adoption.report import Skipped
from parts_store.backends.existing_files import StoredFile
from parts_store.errors import AdoptionError, PartsStoreError, StorageError, raise_translated
from parts_store.format.keys import DOCUMENT, NODES_FOLDER, PROTOCOL_FOLDER
from parts_store.format.references import ENCODED_SCHEMES
from parts_store.redaction import hide_secrets

# The clock of a file system may be behind by this much.
_LAG: Final = timedelta(milliseconds=50)
# What stands for a backslash in the name of a Zarr node.
_BACKSLASH: Final = "%5C"
# Names that a Zarr node cannot have, besides those of periods alone.
_INVALID_NAMES: Final = (NODES_FOLDER, PROTOCOL_FOLDER, DOCUMENT)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An existing file, its format, and what is in it."""

    stored: StoredFile
    format: FileFormat
    description: Description


def open_stored[T](location: str, open_it: Callable[[], T]) -> T:
    """Return what `open_it` returns for a file; raise `AdoptionError` if that fails."""
    try:
        return open_it()
    except PartsStoreError:
        raise
    # Servers and networks fail in many ways, and each client library has its own errors.
    except Exception as error:
        raise_translated(_unreadable(location, error), error)


def read_source(
    stored: StoredFile,
    reader: "BlockReader | None" = None,
    formats: Sequence[FileFormat] = FORMATS,
    open_other: OpenOther = open_no_other,
) -> SourceFile:
    """Return a file with what is in it; raise `AdoptionError` if no format matches, or the file is damaged.

    `open_other` opens files that it refers to. Raises `ImportError` if a package for its format is not installed.
    """
    reader = reader or BlockReader(stored)
    file = reader.buffered()
    found = _find_format(file, reader, stored, formats)
    others = _OtherFiles(open_other)
    try:
        description = found.describe(file, reader.nbytes, others.open)
    except ImportError:
        raise
    # The libraries raise any error for a damaged file.
    except Exception as error:
        _require_no_failure(reader, others)
        raise_translated(AdoptionError(stored.location, (("the file", f"it is damaged: {_text(error)}"),)), error)
    _require_no_failure(reader, others)
    return SourceFile(stored, found, description)


def _require_no_failure(reader: "BlockReader", others: "_OtherFiles") -> None:
    """Raise `AdoptionError` if a read has failed. The libraries report that as damage of what they were reading."""
    for location, failure in ((reader.location, reader.failure), *others.failures()):
        if failure is not None:
            raise_translated(_unreadable(location, failure), failure)


class _OtherFiles:
    """The other files that a file refers to, and their failures."""

    def __init__(self, open_other: OpenOther) -> None:
        self._open_other = open_other
        self._opened: list[OtherFile] = []
        self._not_opened: list[tuple[str, Exception]] = []

    def open(self, name: str) -> OtherFile:
        """Open a file, and keep it or the failure of the server."""
        try:
            self._opened.append(self._open_other(name))
        except StorageError as error:
            self._not_opened.append((name, error))
            raise
        return self._opened[-1]

    def failures(self) -> Iterator[tuple[str, Exception | None]]:
        """Yield all files with the error of the server, or None."""
        yield from self._not_opened
        for other in self._opened:
            yield other.location, other.failure()


def require_known_format(stored: StoredFile) -> None:
    """Raise `AdoptionError` unless the file has a format whose copies can be adopted."""
    reader = BlockReader(stored)
    _find_format(reader.buffered(), reader, stored, FORMATS)


def _find_format(
    file: BinaryIO, reader: "BlockReader", stored: StoredFile, formats: Sequence[FileFormat]
) -> FileFormat:
    found = read_from(reader, lambda: find_format(file, reader.nbytes, formats))
    if found is None:
        names = " or ".join(each.NAME for each in formats)
        raise AdoptionError(stored.location, (("the file", f"expected {names}, found another format"),))
    return found


def read_from[T](reader: "BlockReader", read: Callable[[], T]) -> T:
    """Return what `read` returns; raise `AdoptionError` if the file cannot be read."""
    try:
        return read()
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
        description.skipped.append(Skipped(name, reason))
    description.arrays[:] = [array for array in description.arrays if array.header.name not in reasons]


def _replace_backslashes(description: Description) -> None:
    known = {*description.groups, *(array.header.name for array in description.arrays)}
    new = {name: name.replace("\\", _BACKSLASH) for name in known if "\\" in name}
    if known & set(new.values()):
        return
    reason = "zarr takes the backslash in its name for a slash; adopted as {}"
    description.skipped += [
        Skipped(name, reason.format(repr(each)), has_values=False) for name, each in sorted(new.items())
    ]
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


def require_same(file: StoredFile, now: StoredFile) -> None:
    """Raise `AdoptionError` if the file was changed while it was read."""
    if (now.nbytes, now.checksum) != (file.nbytes, file.checksum):
        raise AdoptionError(file.location, (("the file", "it was changed while it was read; adopt it again"),))


class BlockReader(io.RawIOBase):
    """A stored file as a file object, which reads blocks and caches the latest ones.

    Files that are read together can share the cache, so that many of them take no more memory than one.
    """

    _BLOCK: Final = 1 << 20
    _KEPT: Final = 64

    def __init__(self, file: StoredFile, blocks: "dict[tuple[str, int], bytes] | None" = None) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self.nbytes, self.location = file.nbytes, file.location
        # By the location of a file, and the number of a block.
        self._blocks = {} if blocks is None else blocks
        self._buffered: io.BufferedReader | None = None
        # The error of the first read that failed. The libraries do not keep it.
        self.failure: Exception | None = None

    def buffered(self) -> BinaryIO:
        """Return a file object for small reads, always the same: one that is deleted would close this object."""
        if self._buffered is None:
            self._buffered = io.BufferedReader(self, 1 << 16)
        return cast("BinaryIO", self._buffered)

    @property
    def name(self) -> str:
        """The name of the file, without its folder. OME-TIFF files name themselves."""
        name = self.location.rpartition("/")[2]
        return unquote(name) if self.location.partition("://")[0].lower() in ENCODED_SCHEMES else name

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set where the next read begins, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.nbytes}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of a block, and return the number of bytes."""
        if self._at >= self.nbytes:
            return 0
        number, start = divmod(self._at, self._BLOCK)
        piece = self._block(number)[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        key = self.location, number
        block = self._blocks.pop(key, None)
        if block is None:
            block = self._read(number * self._BLOCK, (number + 1) * self._BLOCK)
        self._blocks[key] = block
        if len(self._blocks) > self._KEPT:
            del self._blocks[next(iter(self._blocks))]
        return block

    def _read(self, start: int, stop: int) -> bytes:
        # After a failure nothing more is read: the next read would wait as long for the same error.
        if self.failure is None:
            try:
                data = self._file.read(start, stop)
                if len(data) == min(stop, self.nbytes) - start:
                    return data
                self.failure = OSError(f"expected {min(stop, self.nbytes) - start} bytes, found {len(data)}")
            except Exception as error:
                self.failure = error
        raise OSError(str(self.failure)) from self.failure
