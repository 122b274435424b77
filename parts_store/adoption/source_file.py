"""Read an existing file with the library for its format, and check that the file does not change meanwhile."""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, cast

from parts_store.adoption.description import Description
from parts_store.adoption.formats import FORMATS, FileFormat, find_format
from parts_store.backends.existing_files import StoredFile
from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.redaction import hide_secrets

# The clock of a file system may be behind by this much.
_LAG: Final = timedelta(milliseconds=50)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An existing file, its format, and what is in it."""

    stored: StoredFile
    format: FileFormat
    description: Description


def open_stored(location: str, open_it: Callable[[], StoredFile]) -> StoredFile:
    """Return the file that `open_it` opens; raise `AdoptionError` if that fails."""
    try:
        return open_it()
    except PartsStoreError:
        raise
    # Servers and networks fail in many ways, and each client library has its own errors.
    except Exception as error:
        raise_translated(_unreadable(location, error), error)


def read_source(stored: StoredFile) -> SourceFile:
    """Return a file with what is in it; raise `AdoptionError` if no format matches, or the file is damaged."""
    reader = _BlockReader(stored)
    file = cast("BinaryIO", io.BufferedReader(reader, 1 << 16))
    found = _find_format(file, reader, stored)
    try:
        description = found.describe(file, reader.nbytes)
    # The libraries raise any error for a damaged file.
    except Exception as error:
        if reader.failure is None:
            raise_translated(AdoptionError(stored.location, (("the file", f"it is damaged: {_text(error)}"),)), error)
    # The libraries report a failed read as damage of what they were reading.
    if reader.failure is not None:
        raise_translated(_unreadable(stored.location, reader.failure), reader.failure)
    return SourceFile(stored, found, description)


def require_known_format(stored: StoredFile) -> None:
    """Raise `AdoptionError` unless the file has a format that can be adopted."""
    reader = _BlockReader(stored)
    _find_format(cast("BinaryIO", io.BufferedReader(reader, 1 << 16)), reader, stored)


def _find_format(file: BinaryIO, reader: "_BlockReader", stored: StoredFile) -> FileFormat:
    try:
        found = find_format(file, reader.nbytes)
    except OSError as error:
        raise_translated(_unreadable(stored.location, reader.failure or error), reader.failure or error)
    if found is None:
        names = " or ".join(each.NAME for each in FORMATS)
        raise AdoptionError(stored.location, (("the file", f"expected {names}, found another format"),))
    return found


def _unreadable(location: str, error: Exception) -> AdoptionError:
    return AdoptionError(location, (("the file", f"it cannot be read: {type(error).__name__}: {_text(error)}"),))


def _text(error: Exception) -> str:
    return hide_secrets(str(error).partition("\n\nDebug source")[0].strip())


def wait_for_next_second(file: StoredFile) -> None:
    """Wait until a later change of the file has a later time, because Icechunk compares whole seconds."""
    if isinstance(file.checksum, datetime):
        end = file.checksum.replace(microsecond=0) + timedelta(seconds=1) + _LAG
        left = end - datetime.now(UTC)
        # Do not wait for a time that is in the future.
        if timedelta() < left <= timedelta(seconds=1) + _LAG:
            time.sleep(left.total_seconds())


def require_same(file: StoredFile, now: StoredFile) -> None:
    """Raise `AdoptionError` if the file was changed while it was read."""
    if (now.nbytes, now.checksum) != (file.nbytes, file.checksum):
        raise AdoptionError(file.location, (("the file", "it was changed while it was read; adopt it again"),))


class _BlockReader(io.RawIOBase):
    """A stored file as a file object, which reads blocks and caches the latest ones."""

    _BLOCK: Final = 1 << 20
    _KEPT: Final = 64

    def __init__(self, file: StoredFile) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self.nbytes = file.nbytes
        self._blocks: dict[int, bytes] = {}
        # The error of the first read that failed. The libraries do not keep it.
        self.failure: Exception | None = None

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
        block = self._blocks.pop(number, None)
        if block is None:
            block = self._read(number * self._BLOCK, (number + 1) * self._BLOCK)
        self._blocks[number] = block
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
