"""Half-open spans of bytes, and zarr's byte requests resolved against a size."""

from dataclasses import dataclass

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

type Wanted = ByteRequest | None
"""What zarr asks for of a value: one of its three byte requests, or None for all of it."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Bytes `start <= i < stop`. May be empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"span [{self.start}, {self.stop}) is negative")

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.stop - self.start

    def covers(self, other: "Span") -> bool:
        """Whether every byte of `other` is in this span."""
        return self.start <= other.start and other.stop <= self.stop


def resolve(wanted: Wanted, nbytes: int) -> Span:
    """The bytes asked for of a value of `nbytes` bytes; what lies beyond it is left out, as slicing does."""
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
    """Refuses what is none of zarr's byte requests, in zarr's own words."""
    if wanted is not None and not isinstance(wanted, RangeByteRequest | OffsetByteRequest | SuffixByteRequest):
        raise TypeError(f"Unexpected byte_range, got {wanted!r}")
