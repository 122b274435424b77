"""Byte ranges: half-open spans, and the resolution of zarr's byte requests for a given size."""

from dataclasses import dataclass

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

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


def require_byte_request(wanted: object) -> None:
    """Raise `TypeError`, with the message of zarr, unless `wanted` is a byte request or None."""
    if wanted is not None and not isinstance(wanted, RangeByteRequest | OffsetByteRequest | SuffixByteRequest):
        raise TypeError(f"Unexpected byte_range, got {wanted!r}")
