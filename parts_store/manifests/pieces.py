"""The pieces that a chunk is made of: ranges of files, and bytes that the manifest holds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from parts_store.format.ranges import Span

type Checksum = str | datetime
"""How a change of a file is detected: its ETag, or a time after which the file must not have been modified."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of bytes of a file, which is given by its URL."""

    location: str
    span: Span
    checksum: Checksum | None = None

    @property
    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self.span.nbytes


type Piece = FileRange | bytes
"""Some bytes of a chunk: a range of a file, or the bytes themselves."""


def nbytes_of(*pieces: Piece) -> int:
    """Return the number of bytes of some pieces."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def slice_pieces(pieces: Sequence[Piece], span: Span) -> tuple[Piece, ...]:
    """Return the pieces that a range of a chunk is made of."""
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        nbytes = nbytes_of(piece)
        first, last = max(span.start - start, 0), min(span.stop - start, nbytes)
        if first < last:
            found.append(slice_piece(piece, Span(first, last)))
        start += nbytes
    return tuple(found)


def slice_piece(piece: Piece, span: Span) -> Piece:
    """Return a range of a piece."""
    if isinstance(piece, bytes):
        return piece[span.start : span.stop]
    start = piece.span.start
    return FileRange(piece.location, Span(start + span.start, start + span.stop), piece.checksum)


def merge_pieces(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the same bytes in fewer pieces: adjacent ranges of one file are merged, and so are adjacent bytes."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        match last, piece:
            case bytes(), bytes():
                merged[-1] = last + piece
            case FileRange(location, before, checksum), FileRange(same, after, same_checksum) if (
                location,
                checksum,
            ) == (same, same_checksum) and before.stop == after.start:
                merged[-1] = FileRange(location, Span(before.start, after.stop), checksum)
            case _:
                merged.append(piece)
    return tuple(merged)
