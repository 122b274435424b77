"""SmallReads: keep what was read of a file in small pieces, and show other bytes in some places.

The directories of a stack can be anywhere between its pages, and tifffile reads them several times. The blocks that
`BlockReader` keeps are too few for that.
"""

import io
from typing import Any, BinaryIO, Final, override


class SmallReads(io.RawIOBase):
    """A file object on another one, which caches pieces of 4 KiB."""

    _PIECE: Final = 1 << 12
    _KEPT: Final = 1 << 14
    # Larger reads are of tiles and strips, which are read once.
    _LARGEST: Final = 1 << 16

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        super().__init__()
        self._file, self._nbytes, self._at = file, nbytes, 0
        # The other bytes, by their places in the file.
        self.changes: dict[int, bytes] = {}
        self._pieces: dict[int, bytes] = {}

    @property
    def name(self) -> str:
        """The name of the file, without its folder; empty if it is not known."""
        return str(getattr(self._file, "name", ""))

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        self._at = start + offset
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read until the buffer is full, or the file ends, and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        start, stop = self._at, min(self._at + len(view), self._nbytes)
        if start >= stop:
            return 0
        data = bytearray(self._read(start, stop) if stop - start > self._LARGEST else self._small(start, stop))
        for place, change in self.changes.items():
            if place < stop and start < place + len(change):
                for at in range(max(place, start), min(place + len(change), stop)):
                    data[at - start] = change[at - place]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _small(self, start: int, stop: int) -> bytes:
        first, last = start // self._PIECE, -(-stop // self._PIECE)
        pieces = b"".join(self._piece(number) for number in range(first, last))
        return pieces[start - first * self._PIECE : stop - first * self._PIECE]

    def _piece(self, number: int) -> bytes:
        piece = self._pieces.pop(number, None)
        if piece is None:
            piece = self._read(number * self._PIECE, (number + 1) * self._PIECE)
        self._pieces[number] = piece
        if len(self._pieces) > self._KEPT:
            del self._pieces[next(iter(self._pieces))]
        return piece

    def _read(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return self._file.read(stop - start)
