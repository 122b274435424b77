"""Which bytes to fetch for chunks that are made of pieces, and how what is fetched becomes the chunks. Pure.

Ranges of one file are merged over all chunks and parts that they belong to.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parts_store.engine.coalesce import coalesce
from parts_store.format.ranges import Span
from parts_store.manifests.entries import Checksum, FileRange, Piece

type _File = tuple[str, Checksum | None]
"""A file as a reference knows it: two that know different versions of it are not read together."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Ranges of files that cover all that is wanted, in order by file."""

    fetches: tuple[FileRange, ...]
    _starts: Mapping[_File, list[int]] = field(repr=False)
    _firsts: Mapping[_File, int] = field(repr=False)

    @classmethod
    def of(cls, pieces: Iterable[Piece], *, max_gap: int, max_nbytes: int) -> "FetchPlan":
        """The plan for these pieces: two ranges of a file are one fetch if at most `max_gap` bytes lie between them."""
        wanted: dict[_File, set[Span]] = {}
        for piece in pieces:
            if isinstance(piece, FileRange) and piece.nbytes:
                wanted.setdefault((piece.location, piece.checksum), set()).add(piece.span)
        fetches: list[FileRange] = []
        starts, firsts = {}, {}
        for file, spans in wanted.items():
            merged = coalesce(spans, max_gap=max_gap, max_nbytes=max_nbytes)
            starts[file], firsts[file] = [span.start for span in merged], len(fetches)
            location, checksum = file
            fetches += [FileRange(location, span, checksum) for span in merged]
        return cls(tuple(fetches), starts, firsts)

    def cut(self, piece: Piece, fetched: Sequence[memoryview]) -> memoryview:
        """The bytes of a piece, from those of the fetches."""
        if isinstance(piece, bytes):
            return memoryview(piece)
        if not piece.nbytes:
            return memoryview(b"")
        # `coalesce` gives spans in order, of which the last that does not begin later covers the piece.
        file = (piece.location, piece.checksum)
        number = self._firsts[file] + bisect_right(self._starts[file], piece.span.start) - 1
        start = piece.span.start - self.fetches[number].span.start
        return fetched[number][start : start + piece.nbytes]


def nbytes_of(pieces: Sequence[Piece]) -> int:
    """How many bytes pieces are together."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def slice_pieces(pieces: Sequence[Piece], span: Span) -> tuple[Piece, ...]:
    """The pieces of which a range of a chunk is made."""
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        nbytes = nbytes_of([piece])
        first, last = max(span.start - start, 0), min(span.stop - start, nbytes)
        if first < last:
            found.append(slice_piece(piece, Span(first, last)))
        start += nbytes
    return tuple(found)


def slice_piece(piece: Piece, span: Span) -> Piece:
    """A range of a piece."""
    if isinstance(piece, bytes):
        return piece[span.start : span.stop]
    start = piece.span.start
    return FileRange(piece.location, Span(start + span.start, start + span.stop), piece.checksum)


def merge_pieces(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same bytes in fewer pieces: neighbours that touch in one file, or that are bytes both, are one."""
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
