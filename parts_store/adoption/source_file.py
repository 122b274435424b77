"""An existing file as the library for its format reads it; and that it stays as it was while it is."""

import io
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, cast

from parts_store.adoption.description import Description
from parts_store.adoption.formats.hdf5 import reader as hdf5
from parts_store.backends.existing_files import StoredFile
from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.redaction import hide_secrets

# The clock that files get their time from lags behind.
_LAG: Final = timedelta(milliseconds=50)


def opened(location: str, open_it: Callable[[], StoredFile]) -> StoredFile:
    """The file, or an error that says why it cannot be read."""
    try:
        return open_it()
    except PartsStoreError:
        raise
    # A server's refusal, a network's failure: each client has its own.
    except Exception as error:
        raise_translated(_unreadable(location, error), error)


def describe_file(file: StoredFile) -> Description:
    """What is in the file, by the module for its format."""
    reader = _Reader(file)
    try:
        description = _description(reader)
    # Whatever h5py says of a damaged file.
    except Exception as error:
        if reader.failure is None:
            raise_translated(AdoptionError(file.location, (("the file", f"it is damaged: {_said(error)}"),)), error)
    # h5py takes a failed read for damage, of whatever it was reading then.
    if reader.failure is not None:
        raise_translated(_unreadable(file.location, reader.failure), reader.failure)
    if description is None:
        raise _unknown(file)
    return description


def require_known(file: StoredFile) -> None:
    """Raise unless the file is of a format that can be adopted."""
    reader = _Reader(file)
    is_known = hdf5.is_one(cast("BinaryIO", io.BufferedReader(reader, 1 << 16)), reader.nbytes)
    if reader.failure is not None:
        raise _unreadable(file.location, reader.failure) from reader.failure
    if not is_known:
        raise _unknown(file)


def _unknown(file: StoredFile) -> AdoptionError:
    return AdoptionError(file.location, (("the file", "expected HDF5 or netCDF4, found another format"),))


def _description(reader: "_Reader") -> Description | None:
    """None if no module knows the format."""
    file, nbytes = cast("BinaryIO", io.BufferedReader(reader, 1 << 16)), reader.nbytes
    return hdf5.describe(file, nbytes) if hdf5.is_one(file, nbytes) else None


def _unreadable(location: str, error: Exception) -> AdoptionError:
    return AdoptionError(location, (("the file", f"it cannot be read: {type(error).__name__}: {_said(error)}"),))


def _said(error: Exception) -> str:
    return hide_secrets(str(error).partition("\n\nDebug source")[0].strip())


def wait_for_next_second(file: StoredFile) -> None:
    """Wait until a later change of the file has a later time: Icechunk compares whole seconds."""
    if isinstance(file.checksum, datetime):
        end = file.checksum.replace(microsecond=0) + timedelta(seconds=1) + _LAG
        left = end - datetime.now(UTC)
        # A time in the future is none that could be waited for.
        if timedelta() < left <= timedelta(seconds=1) + _LAG:
            time.sleep(left.total_seconds())


def require_same(file: StoredFile, now: StoredFile) -> None:
    """Raise if the file was changed while it was looked at."""
    if (now.nbytes, now.checksum) != (file.nbytes, file.checksum):
        raise AdoptionError(file.location, (("the file", "it was changed while it was looked at; adopt it again"),))


class _Reader(io.RawIOBase):
    """A stored file, as a format's library reads it: in blocks, the latest of which are kept."""

    _BLOCK: Final = 1 << 20
    _KEPT: Final = 64

    def __init__(self, file: StoredFile) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self.nbytes = file.nbytes
        self._blocks: dict[int, bytes] = {}
        # Why a read failed, if one did: a library may say less.
        self.failure: Exception | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Where the next read begins."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.nbytes}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Up to the end of a block."""
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
        # Once is enough: the others would wait as long.
        if self.failure is None:
            try:
                data = self._file.read(start, stop)
                if len(data) == min(stop, self.nbytes) - start:
                    return data
                self.failure = OSError(f"expected {min(stop, self.nbytes) - start} bytes, found {len(data)}")
            except Exception as error:
                self.failure = error
        raise OSError(str(self.failure)) from self.failure
