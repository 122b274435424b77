"""Writes that stop after any of their requests: what is read then is one whole chunk, none, or an error."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from parts_store.errors import IncompleteChunkError
from parts_store.plan import transaction
from parts_store.plan.keys import Chunk
from parts_store.plan.ranges import Wanted
from parts_store.plan.reading import read
from parts_store.plan.steps import Delete, Outcome, Put, Request, Steps
from parts_store.plan.tags import Tag
from tests.plan.objects import KEY, Objects, Returned, chunk_of, every_request, knobs, next_batch, pieces, sliced

type Layout = dict[str, int | None]
type Write = Callable[[Chunk, list[memoryview], bool], Steps[None]]

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
OLD = "old0" * 8


def ids(layout: Layout) -> str:
    return "+".join(f"{suffix or 'main'}:{size}" for suffix, size in layout.items())


def value_of(layout: Layout, unsized: int, first: int) -> tuple[bytes, tuple[int, ...]]:
    """A chunk whose bytes count from `first`, and the sizes of its parts."""
    sizes = tuple(unsized if size is None else size for size in layout.values())
    return bytes(range(first, first + sum(sizes))), sizes


def holds_old(layout: Layout, present: tuple[str, ...], *, has_tags: bool) -> Objects:
    """A bucket with these parts of the old chunk."""
    value, sizes = value_of(layout, 2, 1)
    objects = Objects(has_tags=has_tags)
    for suffix, data in zip(layout, pieces(value, sizes), strict=True):
        if suffix in present:
            objects.put(KEY + suffix, data, Tag(OLD, "c", sizes))
    return objects


def every_start(layout: Layout, *, has_tags: bool) -> Iterator[Objects]:
    """A bucket for every set of the old chunk's parts: none, orphans, a chunk with holes, the whole chunk."""
    for count in range(len(layout) + 1):
        for present in itertools.combinations(layout, count):
            yield holds_old(layout, present, has_tags=has_tags)


def generations() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"{next(numbers):032x}"


def write(chunk: Chunk, data: list[memoryview], has_tags: bool) -> Steps[None]:
    return transaction.write(chunk, data, generation=generations(), has_tags=has_tags)


def write_if_absent(chunk: Chunk, data: list[memoryview], has_tags: bool) -> Steps[None]:
    return transaction.write_if_absent(chunk, data, generation=generations(), has_tags=has_tags)


def delete(chunk: Chunk, data: list[memoryview], has_tags: bool) -> Steps[None]:
    return transaction.delete(chunk)


OPERATIONS: list[Write] = [write, write_if_absent, delete]


def parts_of(layout: Layout, unsized: int) -> list[memoryview]:
    value, sizes = value_of(layout, unsized, 101)
    return [memoryview(part) for part in pieces(value, sizes)]


def single(batch: tuple[Request, ...]) -> list[Request]:
    """The requests of a batch, each of one object: a request for many may stop after any of them."""
    requests: list[Request] = []
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


def what_is_read(objects: Objects, chunk: Chunk, wanted: Wanted, *, with_anchor: bool = False) -> bytes | str | None:
    """The bytes, None, or that the chunk is incomplete."""
    steps = read(chunk, [wanted], knobs=knobs(has_tags=objects.has_tags), with_anchor=with_anchor)
    try:
        result = objects.copy().run(steps)
    except IncompleteChunkError as error:
        # An error that blames no part would help nobody.
        return "incomplete" if (*error.missing, *error.mixed) else "nothing is wrong"
    return None if result is None else b"".join(result.values[0])


def what_is_there(objects: Objects, chunk: Chunk) -> bytes | str | None:
    """What the table in api.md says of the objects in the bucket."""
    if chunk.anchor_key not in objects.stored:
        return None
    parts = [objects.stored.get(key) for key in chunk.part_keys]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({part.tag for part in found}) > 1:
        return "incomplete"
    return b"".join(part.data for part in found)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_an_interrupted_operation_leaves_what_the_objects_say_and_never_a_mixture(
    layout: Layout, operation: Write
) -> None:
    chunk = chunk_of(layout)
    old, _ = value_of(layout, 2, 1)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for start in every_start(layout, has_tags=True):
            for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), True)):
                found = what_is_read(stopped, chunk, None)
                assert found in (old, new, None, "incomplete"), (start.contents, stopped.contents)
                assert found == what_is_there(stopped, chunk), (start.contents, stopped.contents)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_ranges_after_an_interruption_are_of_one_write(layout: Layout, operation: Write) -> None:
    chunk = chunk_of(layout)
    old, sizes = value_of(layout, 2, 1)
    requests = every_request(sum(sizes) + 1)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for start in (holds_old(layout, present, has_tags=True) for present in ((), tuple(layout))):
            for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), True)):
                for wanted in requests:
                    found = what_is_read(stopped, chunk, wanted)
                    # A part may be older or newer than the anchor, or outlive it, but it is always of one write.
                    assert found in (sliced(old, wanted), sliced(new, wanted), None, "incomplete"), wanted
                    if what_is_there(stopped, chunk) is None:
                        assert what_is_read(stopped, chunk, wanted, with_anchor=True) is None


@pytest.mark.parametrize("operation", [write_if_absent, delete])
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_without_tags_creation_and_deletion_are_never_read_as_a_mixture(layout: Layout, operation: Write) -> None:
    chunk = chunk_of(layout)
    old, sizes = value_of(layout, 2, 1)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for start in (holds_old(layout, present, has_tags=False) for present in ((), tuple(layout))):
            for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), False)):
                for wanted in every_request(sum(sizes) + 1):
                    found = what_is_read(stopped, chunk, wanted)
                    assert found in (sliced(old, wanted), sliced(new, wanted), None, "incomplete"), wanted
                assert what_is_read(stopped, chunk, None) in (old, new, None)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)
def test_without_tags_an_interrupted_overwrite_is_never_read_as_a_mixture(layout: Layout) -> None:
    chunk = chunk_of(layout)
    old, _ = value_of(layout, 2, 1)
    new, _ = value_of(layout, 2, 101)
    # Also where an earlier interruption has left some of the old parts.
    for start in every_start(layout, has_tags=False):
        for stopped in every_interruption(start, write(chunk, parts_of(layout, 2), False)):
            found = what_is_read(stopped, chunk, None)
            assert found in (old, new, None, "incomplete"), (start.contents, stopped.contents)


@pytest.mark.parametrize("has_tags", [True, False], ids=["tagged", "untagged"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_finished_write_is_there_whatever_was_before(layout: Layout, has_tags: bool) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        new, sizes = value_of(layout, unsized, 101)
        for objects in every_start(layout, has_tags=has_tags):
            objects.run(write(chunk, parts_of(layout, unsized), has_tags))
            assert objects.contents == dict(zip(chunk.part_keys, pieces(new, sizes), strict=True))
            assert what_is_read(objects, chunk, None) == new


@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_finished_deletion_leaves_nothing_whatever_was_before(layout: Layout) -> None:
    for objects in every_start(layout, has_tags=True):
        objects.run(transaction.delete(chunk_of(layout)))
        assert objects.contents == {}


@pytest.mark.parametrize("has_tags", [True, False], ids=["tagged", "untagged"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_write_if_absent_changes_nothing_of_a_chunk_and_replaces_orphans(layout: Layout, has_tags: bool) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        new, sizes = value_of(layout, unsized, 101)
        for objects in every_start(layout, has_tags=has_tags):
            before = objects.contents
            objects.run(write_if_absent(chunk, parts_of(layout, unsized), has_tags))
            if chunk.anchor_key in before:
                assert objects.contents.items() >= before.items()
                expected = what_is_there(holds_old(layout, tuple(layout), has_tags=has_tags), chunk)
                if len(before) < len(layout):
                    expected = "incomplete"
                assert what_is_read(objects, chunk, None) == expected
            else:
                assert objects.contents == dict(zip(chunk.part_keys, pieces(new, sizes), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_new_chunk_costs_one_put_for_each_part_and_the_anchor_is_the_last(layout: Layout) -> None:
    for operation in (write, write_if_absent):
        objects = Objects(has_tags=True)
        objects.run(operation(chunk_of(layout), parts_of(layout, 3), True))
        assert len(objects.asked) == len(layout)
        assert all(isinstance(request, Put) and request.create for request in objects.asked)
        assert isinstance(last := objects.asked[-1], Put)
        assert last.key == chunk_of(layout).anchor_key
        assert objects.batches == min(len(layout), 2)


@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_all_parts_of_a_write_carry_one_tag_with_all_sizes_and_no_two_attempts_the_same(layout: Layout) -> None:
    chunk = chunk_of(layout)
    for start in every_start(layout, has_tags=True):
        start.run(write(chunk, parts_of(layout, 3), True))
        (tag,) = {start.stored[key].tag for key in chunk.part_keys}
        assert tag is not None
        assert tag.sizes == tuple(3 if size is None else size for size in layout.values())
        puts = [request for request in start.asked if isinstance(request, Put)]
        created = {put.tag.generation for put in puts if put.tag is not None and put.create}
        written = {put.tag.generation for put in puts if put.tag is not None and not put.create}
        assert len(created) == 1
        assert len(written) <= 1
        assert not created & written


def test_a_backend_without_tags_is_sent_none() -> None:
    layout = LAYOUTS[2]
    for operation in OPERATIONS:
        for start in every_start(layout, has_tags=False):
            start.run(operation(chunk_of(layout), parts_of(layout, 3), False))
            assert all(request.tag is None for request in start.asked if isinstance(request, Put))
