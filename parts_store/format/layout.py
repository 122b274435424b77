"""Byte ranges: which bytes of a value zarr requests, which part of a chunk holds them, and which part they go to.

If the sizes of parts are not known, a read first tries the place where the bytes are if the first part of unknown size
(counted from the end that the request counts from) is large enough. The response says the size of that part.
"""

from collections.abc import Buffer, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.errors import ChunkSizeError, PartsConfigError
from parts_store.format.parts import ConcatParts

type Wanted = ByteRequest | None
"""The part of a value that zarr requests: one of its three byte requests, or None for the whole value."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of bytes `start <= i < stop`. May be empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"span [{self.start}, {self.stop}) is negative")

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.stop - self.start

    def covers(self, other: "Span") -> bool:
        """Return whether every byte of `other` is in this span."""
        return self.start <= other.start and other.stop <= self.stop


def resolve(wanted: Wanted, nbytes: int) -> Span:
    """Return the requested bytes of a value of `nbytes` bytes, cut at its end as Python slices are."""
    match wanted:
        case None:
            return Span(0, nbytes)
        case RangeByteRequest(start=start, end=end):
            first = min(start, nbytes)
            return Span(first, max(first, min(end, nbytes)))
        case OffsetByteRequest(offset=offset):
            return Span(min(offset, nbytes), nbytes)
        case SuffixByteRequest(suffix=suffix):
            return Span(max(0, nbytes - suffix), nbytes)


def coalesce(spans: Iterable[Span], *, max_gap: int, max_nbytes: int) -> tuple[Span, ...]:
    """Return merged spans in ascending order; each of `spans` is inside exactly one of them.

    Two neighbours are merged if at most `max_gap` bytes are between them and the result has at most `max_nbytes` bytes,
    or if one covers the other.
    """
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if merged:
            last = merged[-1]
            both = Span(last.start, max(last.stop, span.stop))
            if last.covers(span) or (span.start - last.stop <= max_gap and both.nbytes <= max_nbytes):
                merged[-1] = both
                continue
        merged.append(span)
    return tuple(merged)


def require_byte_request(wanted: object) -> None:
    """Raise `TypeError`, with the message of zarr, unless `wanted` is a byte request or None."""
    if wanted is not None and not isinstance(wanted, RangeByteRequest | OffsetByteRequest | SuffixByteRequest):
        raise TypeError(f"Unexpected byte_range, got {wanted!r}")


@dataclass(frozen=True, slots=True, eq=False)
class BufferChain:
    """The bytes of several buffers, one buffer behind the other.

    A disk gets the buffers as they are. Whatever else takes a buffer gets a copy of all of them in one.
    """

    pieces: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return sum(piece.nbytes for piece in self.pieces)

    def __getitem__(self, wanted: slice) -> "BufferChain":
        start, stop, _ = wanted.indices(self.nbytes)
        found, at = [], 0
        for piece in self.pieces:
            found.append(piece[max(0, start - at) : max(0, stop - at)])
            at += piece.nbytes
        return BufferChain(tuple(piece for piece in found if piece.nbytes))

    def __buffer__(self, _flags: int, /) -> memoryview:
        return memoryview(b"".join(self.pieces))


type Encoded = memoryview | BufferChain
"""The bytes of a chunk that is written, or of a part of it."""


def pieces_of(data: Buffer) -> tuple[memoryview, ...]:
    """Return the buffers that data consists of."""
    return data.pieces if isinstance(data, BufferChain) else (memoryview(data).cast("B"),)


@dataclass(frozen=True, slots=True)
class Slice:
    """A byte range of one part, in the coordinates of the part. Never empty."""

    part: int
    span: Span


@dataclass(frozen=True, slots=True)
class Probe:
    """A request to one part that may return fewer bytes than requested, and returns the size of the part."""

    part: int
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Located:
    """A result of planning: the slices that contain exactly the requested bytes, in order."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class NeedSizes:
    """A result of planning: requests that find missing sizes of parts, and most likely the requested bytes too."""

    probes: tuple[Probe, ...]


def plan_read(sizes: Sequence[int | None], wanted: Wanted) -> Located | NeedSizes:
    """Return where the requested bytes are, given the sizes of the parts, None where a size is not known."""
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return _locate(known, resolve(wanted, sum(known)))
    first = next(index for index, size in enumerate(sizes) if size is None)
    before = sum(known[:first])
    match wanted:
        case RangeByteRequest(start=start, end=end) if end <= start:
            return Located(())
        case None:
            return NeedSizes(tuple(Probe(part, None) for part in range(len(sizes))))
        case RangeByteRequest(start=start, end=end):
            if end <= before:
                return _locate(known[:first], resolve(wanted, before))
            probe = Probe(first, RangeByteRequest(max(0, start - before), end - before))
            return NeedSizes((*_as_probes(_locate(known[:first], resolve(wanted, before)).slices), probe))
        case OffsetByteRequest(offset=offset):
            probe = Probe(first, OffsetByteRequest(offset - before) if offset > before else None)
            after = tuple(Probe(part, None) for part in range(first + 1, len(sizes)))
            return NeedSizes((*_as_probes(_locate(known[:first], resolve(wanted, before)).slices), probe, *after))
        case SuffixByteRequest(suffix=suffix):
            return _plan_suffix(sizes, suffix)


def _plan_suffix(sizes: Sequence[int | None], suffix: int) -> Located | NeedSizes:
    last = max(index for index, size in enumerate(sizes) if size is None)
    after = [size for size in sizes[last + 1 :] if size is not None]
    tail = _locate(after, resolve(SuffixByteRequest(suffix), sum(after))).slices
    slices = tuple(Slice(last + 1 + each.part, each.span) for each in tail)
    if suffix <= sum(after):
        return Located(slices)
    return NeedSizes((Probe(last, SuffixByteRequest(suffix - sum(after))), *_as_probes(slices)))


def _locate(sizes: Sequence[int], span: Span) -> Located:
    slices = []
    for part, (size, stop) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        start = stop - size
        inside = Span(min(max(span.start - start, 0), size), min(max(span.stop - start, 0), size))
        if inside.nbytes:
            slices.append(Slice(part, inside))
    return Located(tuple(slices))


def _as_probes(slices: tuple[Slice, ...]) -> tuple[Probe, ...]:
    return tuple(Probe(each.part, RangeByteRequest(each.span.start, each.span.stop)) for each in slices)


def require_fit(parts: ConcatParts, sizes: Sequence[int], chunk_key: str) -> None:
    """Raise unless these sizes, one for each part, fit the parts of a chunk."""
    if len(sizes) != len(parts.parts):
        raise PartsConfigError("parts", f"{len(parts.parts)} values for the parts of {chunk_key!r}", str(len(sizes)))
    for part, size, found in zip(parts.parts, parts.sizes, sizes, strict=True):
        if size is not None and found != size:
            raise ChunkSizeError(chunk_key + part.key_suffix, f"{size}", found)


def require_writable(parts: ConcatParts) -> None:
    """Raise `PartsConfigError` if more than one part has no size, so that a chunk cannot be split."""
    if len(parts.unsized) > 1:
        suffixes = ", ".join(repr(parts.parts[index].key_suffix) for index in parts.unsized)
        raise PartsConfigError("parts", "at most one part without 'size' for writing", suffixes)


def require_no_empty(parts: ConcatParts, sizes: Sequence[int], chunk_key: str) -> None:
    """Raise `ChunkSizeError` if a part would be empty, because a session stores no empty chunks."""
    for part, found in zip(parts.parts, sizes, strict=True):
        if not found:
            raise ChunkSizeError(chunk_key + part.key_suffix, "at least 1", found)


def plan_split(parts: ConcatParts, nbytes: int, chunk_key: str) -> tuple[Span, ...]:
    """Return the bytes of a chunk of `nbytes` bytes that go to each part.

    Raises `ChunkSizeError` if the sizes of the parts do not fit the chunk, and `PartsConfigError` if more than one part
    has no size.
    """
    require_writable(parts)
    fixed = sum(size for size in parts.sizes if size is not None)
    if nbytes < fixed or (not parts.unsized and nbytes != fixed):
        expected = f"at least {fixed}" if parts.unsized else f"{fixed}"
        raise ChunkSizeError(chunk_key, expected, nbytes)
    sizes = [nbytes - fixed if size is None else size for size in parts.sizes]
    return tuple(Span(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True))
