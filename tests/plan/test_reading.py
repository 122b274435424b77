"""Reads of chunks that are incomplete, damaged, or change meanwhile: one write, none, or an error that says which."""

import itertools
from collections.abc import Iterator

import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from parts_store.plan import transaction
from parts_store.plan.keys import Chunk
from parts_store.plan.ranges import Wanted
from parts_store.plan.reading import head, read, size
from parts_store.plan.steps import Get, Head, Outcome, Request, Steps
from parts_store.plan.tags import Tag
from tests.plan.objects import KEY, Objects, Returned, chunk_of, every_request, knobs, next_batch, pieces, sliced

LAYOUTS: list[dict[str, int | None]] = [
    {".h": 1, "": None, ".i": 2},
    {"": None, ".crc": 2},
    {".a": 1, ".b": None},
    {".a": 1, ".b": 2},
    {".t": None, "": 2},
    {".a": None, ".b": None},
]
OLD, NEW = "0" * 32, "1" * 32
TAGGED = pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "untagged"])
EVERY_LAYOUT = pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: "+".join(each or "main" for each in layout)
)


def parts_of(layout: dict[str, int | None], unsized: int, first: int) -> dict[str, bytes]:
    """The parts of a chunk whose bytes count from `first`."""
    sizes = tuple(unsized if each is None else each for each in layout.values())
    value = bytes(range(first, first + sum(sizes)))
    return {KEY + suffix: data for suffix, data in zip(layout, pieces(value, sizes), strict=True)}


def fill(objects: Objects, parts: dict[str, bytes], generation: str) -> None:
    for key, data in parts.items():
        objects.put(key, data, Tag(generation, "c", tuple(len(each) for each in parts.values())))


def joined(objects: Objects, steps: Steps[object]) -> bytes | None:
    result = objects.run(steps)
    return None if result is None else b"".join(result.values[0])  # type: ignore[attr-defined]


@TAGGED
@EVERY_LAYOUT
def test_without_its_anchor_there_is_no_chunk_and_without_another_part_it_is_incomplete_by_name(
    layout: dict[str, int | None], tagged: bool
) -> None:
    chunk = chunk_of(layout)
    parts = parts_of(layout, 2, 1)
    value = b"".join(parts.values())
    for count in range(len(parts) + 1):
        for missing in itertools.combinations(parts, count):
            objects = Objects(has_tags=tagged)
            fill(objects, parts, OLD)
            for key in missing:
                del objects.stored[key]
            steps = read(chunk, [None], knobs=knobs(has_tags=tagged))
            if chunk.anchor_key in missing:
                assert joined(objects, steps) is None
            elif not missing:
                assert joined(objects, steps) == value
            else:
                with pytest.raises(IncompleteChunkError) as caught:
                    objects.run(steps)
                assert (caught.value.chunk_key, caught.value.missing) == (KEY, missing)
                assert caught.value.mixed == ()


@TAGGED
@pytest.mark.parametrize("retries", [0, 1, 3])
@EVERY_LAYOUT
def test_a_range_in_a_missing_part_is_absent_or_an_error_and_never_other_bytes(
    layout: dict[str, int | None], tagged: bool, retries: int
) -> None:
    chunk = chunk_of(layout)
    parts = parts_of(layout, 2, 1)
    value = b"".join(parts.values())
    for wanted, missing in itertools.product(every_request(len(value) + 1), parts):
        objects = Objects(has_tags=tagged)
        fill(objects, parts, OLD)
        del objects.stored[missing]
        steps = read(chunk, [wanted], knobs=knobs(has_tags=tagged, retries=retries))
        try:
            found = joined(objects, steps)
        except IncompleteChunkError as error:
            # Nobody writes here, so that a missing part is damage, however often one looks.
            blamed = error.missing
            assert blamed == (missing,) != (chunk.anchor_key,)
        else:
            assert found == sliced(value, wanted) or (found is None and missing == chunk.anchor_key)


def test_a_read_of_parts_that_outlived_their_anchor_finds_it_out_when_asked_to() -> None:
    chunk = chunk_of({"": None, ".index": 2})
    objects = Objects(has_tags=True)
    objects.put(f"{KEY}.index", b"ab", Tag(OLD, "c", (3, 2)))
    assert joined(objects, read(chunk, [SuffixByteRequest(2)], knobs=knobs(has_tags=True), with_anchor=True)) is None


def test_an_absent_chunk_costs_one_request_or_two_where_the_anchor_is_not_asked_for() -> None:
    chunk = chunk_of({".h": 1, "": None, ".i": 2})
    costs: list[tuple[Wanted, int]] = [
        (RangeByteRequest(1, 3), 1),
        (SuffixByteRequest(2), 2),
        (RangeByteRequest(0, 1), 2),
    ]
    for wanted, requests in costs:
        objects = Objects(has_tags=True)
        assert objects.run(read(chunk, [wanted], knobs=knobs(has_tags=True))) is None
        assert len(objects.asked) == requests


def test_a_read_with_its_anchor_costs_one_more_request_in_the_same_batch() -> None:
    chunk = chunk_of({"": None, ".i": 2})
    objects = Objects(has_tags=True)
    fill(objects, parts_of({"": None, ".i": 2}, 3, 1), OLD)
    result = objects.run(read(chunk, [SuffixByteRequest(2)], knobs=knobs(has_tags=True), with_anchor=True))
    assert result is not None
    assert (objects.count(Get), objects.count(Head), objects.batches) == (1, 1, 1)
    assert (result.version.generation, result.version.anchor_etag) == (OLD, objects.stored[KEY].etag)


@EVERY_LAYOUT
def test_a_mixture_of_two_writes_or_of_tagged_and_untagged_parts_is_incomplete(layout: dict[str, int | None]) -> None:
    chunk = chunk_of(layout)
    old, new = parts_of(layout, 2, 1), parts_of(layout, 2, 101)
    for origins in itertools.product(["old", "new", "foreign"], repeat=len(layout)):
        objects = Objects(has_tags=True)
        for key, origin in zip(chunk.part_keys, origins, strict=True):
            sizes = tuple(len(each) for each in old.values())
            tags = {"old": Tag(OLD, "c", sizes), "new": Tag(NEW, "s", sizes), "foreign": None}
            objects.put(key, (old if origin == "old" else new)[key], tags[origin])
        steps = read(chunk, [None], knobs=knobs(has_tags=True))
        if len(set(origins)) == 1:
            assert joined(objects, steps) == b"".join((old if origins[0] == "old" else new).values())
            continue
        with pytest.raises(IncompleteChunkError) as caught:
            objects.run(steps)
        anchors = origins[chunk.parts.anchor]
        mixed = tuple(key for key, each in zip(chunk.part_keys, origins, strict=True) if each != anchors)
        assert (caught.value.missing, caught.value.mixed) == ((), mixed)


@TAGGED
@EVERY_LAYOUT
def test_a_part_of_another_size_than_declared_is_named_with_both(layout: dict[str, int | None], tagged: bool) -> None:
    chunk = chunk_of(layout)
    for suffix, declared in layout.items():
        for found in range(4):
            if declared is None or found == declared:
                continue
            objects = Objects(has_tags=tagged)
            parts = parts_of(layout, 2, 1) | {KEY + suffix: bytes(found)}
            fill(objects, parts, OLD)
            with pytest.raises(PartSizeError) as caught:
                objects.run(read(chunk, [None], knobs=knobs(has_tags=tagged)))
            assert (caught.value.part_key, caught.value.expected, caught.value.found) == (KEY + suffix, declared, found)


def test_a_part_of_another_size_than_its_tag_says_is_named_with_both() -> None:
    chunk = chunk_of({"": None, ".i": 2})
    objects = Objects(has_tags=True)
    objects.put(KEY, b"abc", Tag(OLD, "c", (4, 2)))
    objects.put(f"{KEY}.i", b"de", Tag(OLD, "c", (4, 2)))
    with pytest.raises(PartSizeError) as caught:
        objects.run(read(chunk, [None], knobs=knobs(has_tags=True)))
    assert (caught.value.part_key, caught.value.expected, caught.value.found) == (KEY, 4, 3)


@TAGGED
@EVERY_LAYOUT
def test_the_size_of_a_chunk_is_that_of_its_bytes(layout: dict[str, int | None], tagged: bool) -> None:
    for unsized in range(3):
        objects = Objects(has_tags=tagged)
        assert objects.run(size(chunk_of(layout))) is None
        assert objects.run(head(chunk_of(layout))) is None
        fill(objects, parts_of(layout, unsized, 1), OLD)
        assert objects.run(size(chunk_of(layout))) == sum(len(each) for each in objects.contents.values())
        assert objects.count(Get) == 0


# --- somebody writes at the same time -----------------------------------------------------------------------------


class Interleaved:
    """A read, one request at a time, between whose requests others may act."""

    def __init__(self, objects: Objects, chunk: Chunk, wanted: Wanted) -> None:
        self.objects = objects
        self.steps = read(chunk, [wanted], knobs=knobs(has_tags=objects.has_tags))

    def run(self) -> Iterator[None]:
        """Stops after every request; returns the bytes, None, or the name of the error."""
        batch = next_batch(self.steps)
        while not isinstance(batch, Returned):
            outcomes: list[Outcome] = []
            for request in batch:
                outcomes.append(self.objects.perform(request))
                yield
            batch = next_batch(self.steps, tuple(outcomes))
        self.found = None if batch.value is None else b"".join(batch.value.values[0])


def writing(objects: Objects, chunk: Chunk, parts: dict[str, bytes]) -> Iterator[Request]:
    """An overwrite, one request at a time."""
    numbers = itertools.count(7)
    data = [memoryview(each) for each in parts.values()]
    steps = transaction.write(chunk, data, generation=lambda: f"{next(numbers):032x}", has_tags=objects.has_tags)
    batch = next_batch(steps)
    while not isinstance(batch, Returned):
        outcomes: list[Outcome] = []
        for request in batch:
            outcomes.append(objects.perform(request))
            yield request
        batch = next_batch(steps, tuple(outcomes))


def read_amid_a_write(
    chunk: Chunk, old: dict[str, bytes], new: dict[str, bytes], wanted: Wanted, pauses: tuple[int, int], *, tagged: bool
) -> bytes | str | None:
    """What is read where the writer makes some requests, then the reader some, then the writer the rest."""
    objects = Objects(has_tags=tagged)
    fill(objects, old, OLD)
    reader, writer = Interleaved(objects, chunk, wanted), writing(objects, chunk, new)
    running = reader.run()
    before_reader, before_writer = pauses
    for _ in itertools.islice(writer, before_reader):
        pass
    try:
        for _ in itertools.islice(running, before_writer):
            pass
        for _ in writer:
            pass
        for _ in running:
            pass
    except IncompleteChunkError as error:
        # An error that blames no part would help nobody.
        return "incomplete" if (*error.missing, *error.mixed) else "nothing is wrong"
    except ConcurrentWriteError:
        return "changing"
    return reader.found


@EVERY_LAYOUT
def test_a_read_amid_an_overwrite_is_the_old_or_the_new_chunk_and_never_a_mixture(
    layout: dict[str, int | None],
) -> None:
    chunk = chunk_of(layout)
    if len(chunk.parts.unsized) > 1:
        return
    for unsized in (1, 2, 3):
        old, new = parts_of(layout, 2, 1), parts_of(layout, unsized, 101)
        values = [b"".join(each.values()) for each in (old, new)]
        for wanted in every_request(4):
            for pauses in itertools.product(range(7), range(5)):
                found = read_amid_a_write(chunk, old, new, wanted, pauses, tagged=True)
                # The writer finishes in the end, so that the read does too.
                assert found in [sliced(value, wanted) for value in values], (wanted, pauses, unsized)


@EVERY_LAYOUT
def test_without_tags_a_read_around_a_whole_overwrite_is_the_old_or_the_new_chunk(
    layout: dict[str, int | None],
) -> None:
    chunk = chunk_of(layout)
    if len(chunk.parts.unsized) > 1:
        return
    for unsized in (1, 2, 3):
        old, new = parts_of(layout, 2, 1), parts_of(layout, unsized, 101)
        values = [b"".join(each.values()) for each in (old, new)]
        for wanted, before_writer in itertools.product(every_request(5), range(8)):
            found = read_amid_a_write(chunk, old, new, wanted, (0, before_writer), tagged=False)
            assert found in [sliced(value, wanted) for value in values], (wanted, before_writer, unsized)


class Restless(Objects):
    """A bucket in which somebody writes one object again after every look at it."""

    def __init__(self, key: str, *, has_tags: bool) -> None:
        super().__init__(has_tags=has_tags)
        self.key = key

    def perform(self, request: Request) -> Outcome:
        outcome = super().perform(request)
        if isinstance(request, Get | Head) and request.key == self.key:
            stored = self.stored[self.key]
            self.put(self.key, stored.data, stored.tag)
        return outcome


@TAGGED
@pytest.mark.parametrize("suffix", ["", ".i"])
def test_a_chunk_that_changes_at_every_look_is_being_written_and_not_incomplete(suffix: str, tagged: bool) -> None:
    chunk = chunk_of({"": 4, ".i": 4})
    objects = Restless(KEY + suffix, has_tags=tagged)
    fill(objects, {KEY: b"abcd", f"{KEY}.i": b"efgh"}, OLD)
    for wanted in ([RangeByteRequest(0, 1), RangeByteRequest(3, 4)], [RangeByteRequest(4, 5), RangeByteRequest(7, 8)]):
        if (wanted[0].start < 4) == (suffix == ""):
            with pytest.raises(ConcurrentWriteError, match=KEY):
                objects.run(read(chunk, wanted, knobs=knobs(has_tags=tagged)))
