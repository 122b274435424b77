"""Objects in a dictionary: what a backend is to a plan, without any of the package's own."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.plan.keys import Chunk
from parts_store.plan.ranges import Span, Wanted
from parts_store.plan.reading import Knobs
from parts_store.plan.spec import ConcatParts
from parts_store.plan.steps import (
    AlreadyExists,
    Delete,
    Done,
    Found,
    Get,
    Head,
    Missing,
    Outcome,
    OutOfRange,
    Put,
    Request,
    Steps,
    Wait,
)
from parts_store.plan.tags import Tag

KEY = "a/c/0"


@dataclass(frozen=True)
class Stored:
    data: bytes
    tag: Tag | None
    etag: str


class Objects:
    """A bucket that keeps tags or does not, and writes down what it is asked."""

    def __init__(self, *, has_tags: bool) -> None:
        self.has_tags = has_tags
        self.stored: dict[str, Stored] = {}
        self.asked: list[Request] = []
        self.batches = 0
        self._etags = itertools.count()

    def put(self, key: str, data: bytes, tag: Tag | None = None) -> None:
        self.stored[key] = Stored(data, tag if self.has_tags else None, f"etag {next(self._etags)}")

    def copy(self) -> "Objects":
        other = Objects(has_tags=self.has_tags)
        other.stored = dict(self.stored)
        other._etags = itertools.count(1000)
        return other

    @property
    def contents(self) -> dict[str, bytes]:
        return {key: each.data for key, each in self.stored.items()}

    def perform(self, request: Request) -> Outcome:
        self.asked.append(request)
        match request:
            case Wait():
                return Done()
            case Delete(keys):
                for key in keys:
                    self.stored.pop(key, None)
                return Done()
            case Put(key, data, tag, create):
                if create and key in self.stored:
                    return AlreadyExists()
                self.put(key, bytes(memoryview(data)), tag)
                return Done()
            case Get(key) | Head(key) if key not in self.stored:
                return Missing()
            case Head(key):
                return self._found(key, Span(0, 0))
            case Get(key, wanted):
                span = requested(wanted, len(self.stored[key].data))
                return OutOfRange() if span is None else self._found(key, span)

    def _found(self, key: str, span: Span) -> Found:
        each = self.stored[key]
        return Found(each.data[span.start : span.stop], span, len(each.data), each.etag, each.tag)

    def run[T](self, steps: Steps[T]) -> T:
        """Carries out all steps, and returns what they return."""
        batch = next_batch(steps)
        while not isinstance(batch, Returned):
            self.batches += 1
            batch = next_batch(steps, tuple(self.perform(request) for request in batch))
        return batch.value

    def count(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.asked)

    @property
    def keys_read(self) -> set[str]:
        return {request.key for request in self.asked if isinstance(request, Get)}


@dataclass(frozen=True)
class Returned[T]:
    """What a protocol returned."""

    value: T


def next_batch[T](steps: Steps[T], outcomes: tuple[Outcome, ...] | None = None) -> tuple[Request, ...] | Returned[T]:
    """The next requests of a protocol, or what it returns."""
    try:
        return next(steps) if outcomes is None else steps.send(outcomes)
    except StopIteration as done:
        return Returned(done.value)


def requested(wanted: Wanted, nbytes: int) -> Span | None:
    """The bytes that object stores answer with; None where they say that the range cannot be satisfied."""
    match wanted:
        case None:
            return Span(0, nbytes)
        case RangeByteRequest(start=start, end=end):
            assert start < end, "object stores refuse an empty range"
            return Span(start, min(end, nbytes)) if start < nbytes else None
        case OffsetByteRequest(offset=offset):
            return Span(offset, nbytes) if offset < nbytes else None
        case SuffixByteRequest(suffix=suffix):
            assert suffix > 0, "object stores refuse an empty range"
            return Span(max(0, nbytes - suffix), nbytes) if nbytes else None


def sliced(chunk: bytes, wanted: Wanted) -> bytes:
    """What a request asks of a chunk, in Python's own terms."""
    match wanted:
        case None:
            return chunk
        case RangeByteRequest(start=start, end=end):
            return chunk[start:end]
        case OffsetByteRequest(offset=offset):
            return chunk[offset:]
        case SuffixByteRequest(suffix=suffix):
            return chunk[-suffix:] if suffix else b""


def every_request(limit: int) -> list[Wanted]:
    """All byte requests with numbers up to `limit`."""
    numbers = range(limit + 1)
    pairs = itertools.combinations_with_replacement(numbers, 2)
    return [
        None,
        *(RangeByteRequest(start, end) for start, end in pairs),
        *(OffsetByteRequest(offset) for offset in numbers),
        *(SuffixByteRequest(suffix) for suffix in numbers),
    ]


def every_size(count: int, total: int) -> list[tuple[int, ...]]:
    """All sizes of `count` parts of at most `total` bytes together."""
    return [sizes for sizes in itertools.product(range(total + 1), repeat=count) if sum(sizes) <= total]


def every_declaration(sizes: tuple[int, ...]) -> list[tuple[int | None, ...]]:
    """The sizes, each of them declared or not."""
    return list(itertools.product(*((size, None) for size in sizes)))


def pieces(chunk: bytes, sizes: tuple[int, ...]) -> list[bytes]:
    """The chunk, cut into parts."""
    stops = list(itertools.accumulate(sizes))
    return [chunk[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]


def chunk_of(declared: Mapping[str, int | None]) -> Chunk:
    """A chunk with parts of these suffixes and sizes."""
    objects = [{"key_suffix": suffix} | ({} if size is None else {"size": size}) for suffix, size in declared.items()]
    return Chunk(KEY, ConcatParts(objects))


def knobs(*, has_tags: bool, max_gap: int = 0, max_nbytes: int = 1000, retries: int = 2) -> Knobs:
    return Knobs(max_gap=max_gap, max_nbytes=max_nbytes, retries=retries, has_tags=has_tags)
