"""Objects in a dictionary: what a backend is to a plan, without any of the package's own."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.engine.steps import (
    Delete,
    Done,
    Entry,
    Found,
    Get,
    Head,
    IfAbsent,
    IfMatch,
    List,
    Listed,
    Lock,
    Missing,
    Move,
    Outcome,
    OutOfRange,
    Put,
    Refer,
    Refused,
    StepRequest,
    Steps,
    Trial,
    Wait,
)
from parts_store.format.keys import Chunk
from parts_store.format.layout import Span, Wanted
from parts_store.format.parts import ConcatParts
from parts_store.format.tags import Tag
from parts_store.transactions.journaled import JournaledProtocol
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.tagged import TaggedProtocol

KEY = "a/c/0"


@dataclass(frozen=True)
class Stored:
    data: bytes
    tag: Tag | None
    etag: str


class Objects:
    """A bucket that keeps tags, or a local disk that does not; it writes down what it is asked."""

    def __init__(self, *, has_tags: bool, has_unique_etags: bool = True) -> None:
        self.has_tags = has_tags
        self.has_unique_etags = has_unique_etags
        self.stored: dict[str, Stored] = {}
        self.asked: list[StepRequest] = []
        self.batches = 0
        self._etags = itertools.count()

    def put(self, key: str, data: bytes, tag: Tag | None = None) -> None:
        etag = f"etag {next(self._etags)}" if self.has_unique_etags else md5(data, usedforsecurity=False).hexdigest()
        self.stored[key] = Stored(data, tag if self.has_tags else None, etag)

    def copy(self) -> "Objects":
        other = Objects(has_tags=self.has_tags, has_unique_etags=self.has_unique_etags)
        other.stored = dict(self.stored)
        other._etags = itertools.count(1000)
        return other

    @property
    def contents(self) -> dict[str, bytes]:
        return {key: each.data for key, each in self.stored.items()}

    def perform(self, request: StepRequest) -> Outcome:  # noqa: C901 - a case for each kind of request
        self.asked.append(request)
        match request:
            case Wait():
                return Done()
            case Lock():
                assert not self.has_tags, "only a local disk has locks"
                return Done()
            case Move(source, target):
                assert not self.has_tags, "only a local disk has renames"
                if source not in self.stored:
                    return Missing()
                self.stored[target] = self.stored.pop(source)
                return Done()
            case List(folder):
                return self._listed(f"{folder}/" if folder else "")
            case Delete(keys):
                for key in keys:
                    self.stored.pop(key, None)
                return Done()
            case Put():
                return self._put(request)
            case Trial(inner):
                return self.perform(inner)
            case Get() | Head():
                return self._look(request)
            case Refer():
                raise AssertionError("only a session has references")

    def _put(self, put: Put) -> Outcome:
        is_met = {
            None: True,
            IfAbsent(): put.key not in self.stored,
            IfMatch(self.stored[put.key].etag if put.key in self.stored else "none", None): True,
        }
        if not is_met.get(put.condition, False):
            return Refused()
        self.put(put.key, bytes(memoryview(put.data)), put.tag)
        return Done()

    def _look(self, request: Get | Head) -> Outcome:
        if request.key not in self.stored:
            return Missing()
        if isinstance(request, Head):
            return self._found(request.key, Span(0, 0))
        if request.if_match not in (None, self.stored[request.key].etag):
            return Refused()
        span = requested(request.wanted, len(self.stored[request.key].data))
        return OutOfRange() if span is None else self._found(request.key, span)

    def _listed(self, start: str) -> Listed:
        long_ago = datetime(2000, 1, 1, tzinfo=UTC)
        below = {key: each for key, each in self.stored.items() if key.startswith(start)}
        return Listed(tuple(Entry(key, len(each.data), each.etag, long_ago) for key, each in below.items()))

    def _found(self, key: str, span: Span) -> Found:
        each = self.stored[key]
        return Found(each.data[span.start : span.stop], span, len(each.data), each.etag, None, each.tag)

    def run[T](self, steps: Steps[T]) -> T:
        """Carries out all steps, and returns what they return."""
        batch = next_batch(steps)
        while not isinstance(batch, Returned):
            self.batches += 1
            batch = next_batch(steps, tuple(self.perform(request) for request in batch))
        return batch.value

    def count(self, kind: type[StepRequest]) -> int:
        return sum(isinstance(request, kind) for request in self.asked)

    @property
    def keys_read(self) -> set[str]:
        return {request.key for request in self.asked if isinstance(request, Get)}


class Hooked(Objects):
    """Objects like others, except for the requests to which `answer` returns an outcome."""

    def __init__(self, objects: Objects, answer: Callable[[StepRequest], Outcome | None]) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored = dict(objects.stored)
        self._etags = itertools.count(2000)
        self.answer = answer

    def perform(self, request: StepRequest) -> Outcome:
        outcome = self.answer(request)
        if outcome is None:
            return super().perform(request)
        self.asked.append(request)
        return outcome


@dataclass
class Client:
    """A client that carries out steps on objects, as far as it is told to."""

    objects: Objects
    steps: Steps[None]
    # The requests of a batch that were not made yet, and the outcomes of the others.
    waiting: list[StepRequest] = field(default_factory=list)
    outcomes: list[Outcome] | None = None
    has_ended: bool = False

    def go(self, count: int | None) -> bool:
        """Make the next requests, all of them if `count` is None; stop at a lock that is held. Return whether it ended.

        The outcomes of the last batch are taken when the next request is to be made.
        """
        while count != 0 and self.take():
            outcome = self.objects.perform(self.waiting[0])
            if isinstance(outcome, Refused) and isinstance(self.waiting[0], Lock):
                break
            assert self.outcomes is not None
            self.outcomes.append(outcome)
            self.waiting.pop(0)
            count = None if count is None else count - 1
        return self.has_ended

    def take(self) -> bool:
        """Take the outcomes of a batch whose requests were all made; return whether there is a next request."""
        if not self.waiting and not self.has_ended:
            batch = next_batch(self.steps, None if self.outcomes is None else tuple(self.outcomes))
            self.outcomes = []
            self.has_ended = isinstance(batch, Returned)
            self.waiting = [] if isinstance(batch, Returned) else list(batch)
        return not self.has_ended

    def go_batches(self, count: int) -> None:
        """Make all requests of the next batches."""
        for _ in range(count):
            if self.take():
                self.go(len(self.waiting))


@dataclass(frozen=True)
class Returned[T]:
    """What a protocol returned."""

    value: T


def next_batch[T](
    steps: Steps[T], outcomes: tuple[Outcome, ...] | None = None
) -> tuple[StepRequest, ...] | Returned[T]:
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


def settings(*, max_gap: int = 0, max_nbytes: int = 1000, retries: int = 2) -> ReadSettings:
    return ReadSettings(max_gap=max_gap, max_nbytes=max_nbytes, retries=retries)


def protocol(
    *,
    has_tags: bool,
    level: Level = Level.WRITERS,
    has_unique_etags: bool = True,
    first_generation: int = 0,
    max_embedded: int = 0,
) -> ChunkProtocol:
    """The protocol of object stores or of a local disk, with generations that count."""
    numbers = itertools.count(first_generation)
    rules = Rules(
        level,
        has_tags,
        has_unique_etags,
        lambda: f"{next(numbers):032x}",
        lambda: lambda: 0.0,
        max_embedded=max_embedded,
    )
    return TaggedProtocol(rules) if has_tags else JournaledProtocol(rules)
