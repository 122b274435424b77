"""Every way in which a write can stop: after each of its requests, or in the middle of a batch of them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from parts_store.engine.steps import Delete, Outcome, StepRequest, Steps
from parts_store.errors import IncompleteChunkError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Wanted
from parts_store.format.tags import Tag
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import Absent, Seen
from parts_store.transactions.rules import Level
from tests.transactions.objects import KEY, Objects, Returned, chunk_of, next_batch, pieces, protocol, settings

type Layout = dict[str, int | None]
type Operation = Callable[[Chunk, list[memoryview], ChunkProtocol], Steps[None]]

LAYOUTS: list[Layout] = [
    {"": None},
    {"": None, ".crc": 2},
    {".h": 1, "": None, ".i": 2},
    {".a": 1, ".b": None},
    {".a": 1, ".b": 2},
    {"": 2, ".t": None},
    {".t": None, "": 2},
]
# The size of the part that may have any, in the new write; it has two bytes in the old one.
NEW_SIZES = (0, 2, 3)
OLD = "0123abcd" * 4


@dataclass(frozen=True)
class Place:
    """Where objects are kept, and what its writers promise."""

    level: Level
    has_tags: bool
    has_unique_etags: bool = True

    def __str__(self) -> str:
        kind = "disk" if not self.has_tags else "memory" if self.has_unique_etags else "s3"
        return f"{kind}-{self.level.value}"

    def empty(self) -> Objects:
        return Objects(has_tags=self.has_tags, has_unique_etags=self.has_unique_etags)

    def protocol(self, first_generation: int = 0) -> ChunkProtocol:
        return protocol(
            has_tags=self.has_tags,
            level=self.level,
            has_unique_etags=self.has_unique_etags,
            first_generation=first_generation,
        )


# A local disk's ETags are made of time and inode; in what `Objects` is, they count.
PLACES = [
    Place(level, has_tags, has_unique_etags)
    for level in Level
    for has_tags, has_unique_etags in ((True, True), (True, False), (False, True))
]


def ids(layout: Layout) -> str:
    return "+".join(f"{suffix or 'main'}:{size}" for suffix, size in layout.items())


EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
IN_PARTS = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES, ids=str)
WITH_TAGS = pytest.mark.parametrize("place", [place for place in PLACES if place.has_tags], ids=str)
SIDE = ".parts-txn/"


def value_of(layout: Layout, unsized: int, first: int) -> tuple[bytes, tuple[int, ...]]:
    """A chunk whose bytes count from `first`, and the sizes of its parts."""
    sizes = tuple(unsized if size is None else size for size in layout.values())
    return bytes(range(first, first + sum(sizes))), sizes


def parts_of(layout: Layout, unsized: int, first: int = 101) -> list[memoryview]:
    value, sizes = value_of(layout, unsized, first)
    return [memoryview(part) for part in pieces(value, sizes)]


def stored_as(layout: Layout, unsized: int, first: int = 101) -> dict[str, bytes]:
    """The objects that are this chunk, and nothing beside it."""
    value, sizes = value_of(layout, unsized, first)
    return {KEY + suffix: data for suffix, data in zip(layout, pieces(value, sizes), strict=True)}


def holds_old(place: Place, layout: Layout, present: tuple[str, ...]) -> Objects:
    """A bucket with these parts of the old chunk."""
    value, sizes = value_of(layout, 2, 1)
    objects = place.empty()
    for suffix, data in zip(layout, pieces(value, sizes), strict=True):
        if suffix in present:
            objects.put(KEY + suffix, data, Tag(OLD, "c", sizes))
    return objects


def every_start(place: Place, layout: Layout) -> Iterator[Objects]:
    """A bucket for every set of the old chunk's parts: none, orphans, a chunk with holes, the whole chunk."""
    for count in range(len(layout) + 1):
        for present in itertools.combinations(layout, count):
            yield holds_old(place, layout, present)


def write(chunk: Chunk, data: list[memoryview], by: ChunkProtocol) -> Steps[None]:
    return by.write(chunk, data)


def write_if_absent(chunk: Chunk, data: list[memoryview], by: ChunkProtocol) -> Steps[None]:
    return by.write_if_absent(chunk, data)


def delete(chunk: Chunk, data: list[memoryview], by: ChunkProtocol) -> Steps[None]:
    return by.delete(chunk)


OPERATIONS: list[Operation] = [write, write_if_absent, delete]


def single(batch: tuple[StepRequest, ...]) -> list[StepRequest]:
    """The requests of a batch, each of one object: a request for many may stop after any of them."""
    requests: list[StepRequest] = []
    for request in batch:
        requests += [Delete((key,), request.why) for key in request.keys] if isinstance(request, Delete) else [request]
    return requests


def every_interruption(start: Objects, steps: Steps[None]) -> Iterator[Objects]:
    """The bucket after every prefix of the batches, and every set of the requests of the next one; whole last."""
    objects = start.copy()
    batch = next_batch(steps)
    while not isinstance(batch, Returned):
        requests = single(batch)
        for count in range(len(requests)):
            for done in itertools.combinations(requests, count):
                stopped = objects.copy()
                for request in done:
                    stopped.perform(request)
                yield stopped
        outcomes: tuple[Outcome, ...] = tuple(objects.perform(request) for request in batch)
        batch = next_batch(steps, outcomes)
    yield objects


def what_is_read(objects: Objects, chunk: Chunk, wanted: Wanted, *, with_anchor: bool = True) -> bytes | str | None:
    """The bytes, None, or that the chunk is incomplete."""
    steps = protocol(has_tags=objects.has_tags).read(chunk, [wanted], settings(), with_anchor=with_anchor)
    try:
        result = objects.copy().run(steps)
    except IncompleteChunkError as error:
        # An error that names no part would not help a user.
        return "incomplete" if (*error.missing, *error.mixed) else "nothing is wrong"
    return None if result is None else b"".join(result.values[0] or ())


def before(objects: Objects, layout: Layout) -> bytes | str | None:
    """What a bucket of `every_start` holds, by the promise that the anchor's existence is the chunk's."""
    if chunk_of(layout).anchor_key not in objects.stored:
        return None
    return (
        b"".join(objects.contents[KEY + suffix] for suffix in layout)
        if len(objects.stored) == len(layout)
        else "incomplete"
    )


def wanted_by(operation: Operation, new: bytes, start: bytes | str | None) -> bytes | str | None:
    """What there is when the operation has ended."""
    if operation is delete:
        return None
    return new if operation is write or start is None else start


def beside(objects: Objects) -> set[str]:
    """The keys of what the protocol keeps beside the chunk."""
    return {key for key in objects.stored if SIDE in key}


def seen_in(objects: Objects, layout: Layout) -> Seen:
    """Return what a client sees of the chunk when it reads the chunk to change it."""
    known = objects.copy().run(protocol(has_tags=objects.has_tags).read(chunk_of(layout), [None], settings()))
    return Absent() if known is None else known.version
