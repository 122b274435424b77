"""Reads of chunks that are incomplete, damaged, or change meanwhile: one write, none, or an error that says which."""

import itertools
from typing import Any

import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from parts_store.engine.steps import Get, Head, IfMatch, Outcome, StepRequest, Steps
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from parts_store.format.layout import Wanted
from parts_store.format.tags import Tag
from parts_store.transactions.reading import exists
from parts_store.transactions.staging import stage
from tests.transactions.objects import (
    KEY,
    Objects,
    chunk_of,
    every_request,
    pieces,
    protocol,
    settings,
    sliced,
)

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
def test_missing_anchor_is_no_chunk_and_missing_part_is_incomplete(layout: dict[str, int | None], tagged: bool) -> None:
    chunk = chunk_of(layout)
    parts = parts_of(layout, 2, 1)
    value = b"".join(parts.values())
    for count in range(len(parts) + 1):
        for missing in itertools.combinations(parts, count):
            objects = Objects(has_tags=tagged)
            fill(objects, parts, OLD)
            for key in missing:
                del objects.stored[key]
            steps = protocol(has_tags=tagged).read(chunk, [None], settings())
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
def test_range_in_a_missing_part_is_absent_or_an_error(
    layout: dict[str, int | None], tagged: bool, retries: int
) -> None:
    chunk = chunk_of(layout)
    parts = parts_of(layout, 2, 1)
    value = b"".join(parts.values())
    for wanted, missing in itertools.product(every_request(len(value) + 1), parts):
        objects = Objects(has_tags=tagged)
        fill(objects, parts, OLD)
        del objects.stored[missing]
        steps = protocol(has_tags=tagged).read(chunk, [wanted], settings(retries=retries))
        try:
            found = joined(objects, steps)
        except IncompleteChunkError as error:
            # There is no writer, so a missing part is damage after any number of repetitions.
            blamed = error.missing
            assert blamed == (missing,) != (chunk.anchor_key,)
        else:
            assert found == sliced(value, wanted) or (found is None and missing == chunk.anchor_key)


def test_absent_chunk_costs_one_request_or_two_without_the_anchor() -> None:
    chunk = chunk_of({".h": 1, "": None, ".i": 2})
    costs: list[tuple[Wanted, int]] = [
        (RangeByteRequest(1, 3), 1),
        (SuffixByteRequest(2), 2),
        (RangeByteRequest(0, 1), 2),
    ]
    for wanted, requests in costs:
        objects = Objects(has_tags=True)
        assert objects.run(protocol(has_tags=True).read(chunk, [wanted], settings())) is None
        assert len(objects.asked) == requests


def test_read_with_anchor_costs_one_more_request_in_the_same_batch() -> None:
    chunk = chunk_of({"": None, ".i": 2})
    objects = Objects(has_tags=True)
    fill(objects, parts_of({"": None, ".i": 2}, 3, 1), OLD)
    result = objects.run(protocol(has_tags=True).read(chunk, [SuffixByteRequest(2)], settings(), with_anchor=True))
    assert result is not None
    assert (objects.count(Get), objects.count(Head), objects.batches) == (1, 1, 1)
    assert result.version.generation == OLD
    assert result.version.condition == IfMatch(objects.stored[KEY].etag, None)


@EVERY_LAYOUT
def test_mixture_of_two_writes_is_incomplete(layout: dict[str, int | None]) -> None:
    chunk = chunk_of(layout)
    old, new = parts_of(layout, 2, 1), parts_of(layout, 2, 101)
    for origins in itertools.product(["old", "new", "foreign"], repeat=len(layout)):
        objects = Objects(has_tags=True)
        for key, origin in zip(chunk.part_keys, origins, strict=True):
            sizes = tuple(len(each) for each in old.values())
            tags = {"old": Tag(OLD, "c", sizes), "new": Tag(NEW, "s", sizes), "foreign": None}
            objects.put(key, (old if origin == "old" else new)[key], tags[origin])
        steps = protocol(has_tags=True).read(chunk, [None], settings())
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
def test_part_of_an_undeclared_size_is_reported_with_both_sizes(layout: dict[str, int | None], tagged: bool) -> None:
    chunk = chunk_of(layout)
    for suffix, declared in layout.items():
        for found in range(4):
            if declared is None or found == declared:
                continue
            objects = Objects(has_tags=tagged)
            parts = parts_of(layout, 2, 1) | {KEY + suffix: bytes(found)}
            fill(objects, parts, OLD)
            with pytest.raises(PartSizeError) as caught:
                objects.run(protocol(has_tags=tagged).read(chunk, [None], settings()))
            assert (caught.value.part_key, caught.value.expected, caught.value.found) == (KEY + suffix, declared, found)


def test_part_that_contradicts_its_tag_is_reported_with_both_sizes() -> None:
    chunk = chunk_of({"": None, ".i": 2})
    objects = Objects(has_tags=True)
    objects.put(KEY, b"abc", Tag(OLD, "c", (4, 2)))
    objects.put(f"{KEY}.i", b"de", Tag(OLD, "c", (4, 2)))
    with pytest.raises(PartSizeError) as caught:
        objects.run(protocol(has_tags=True).read(chunk, [None], settings()))
    assert (caught.value.part_key, caught.value.expected, caught.value.found) == (KEY, 4, 3)


@TAGGED
@EVERY_LAYOUT
def test_the_size_of_a_chunk_is_that_of_its_bytes(layout: dict[str, int | None], tagged: bool) -> None:
    for unsized in range(3):
        objects = Objects(has_tags=tagged)
        assert objects.run(protocol(has_tags=tagged).size(chunk_of(layout))) is None
        assert not objects.run(exists(chunk_of(layout)))
        fill(objects, parts_of(layout, unsized, 1), OLD)
        assert objects.run(exists(chunk_of(layout)))
        nbytes = sum(len(each) for each in objects.contents.values())
        assert objects.run(protocol(has_tags=tagged).size(chunk_of(layout))) == nbytes
        # No part of it is read; on a disk, whether there is a journal is looked at.
        assert not objects.keys_read & set(chunk_of(layout).part_keys)
        assert objects.count(Get) == (0 if tagged or len(layout) == 1 else 2)


@EVERY_LAYOUT
def test_a_read_writes_nothing_and_takes_no_lock(layout: dict[str, int | None]) -> None:
    for has_tags in (True, False):
        objects = Objects(has_tags=has_tags)
        fill(objects, parts_of(layout, 2, 1), OLD)
        contents = objects.contents
        objects.run(protocol(has_tags=has_tags).read(chunk_of(layout), [None], settings(), with_anchor=True))
        assert all(isinstance(request, Get | Head) for request in objects.asked)
        assert objects.contents == contents


def test_read_after_interrupted_overwrite_costs_two_more_requests() -> None:
    layout: dict[str, int | None] = {".h": 1, "": None, ".i": 2}
    chunk = chunk_of(layout)
    old, new = parts_of(layout, 2, 1), parts_of(layout, 3, 101)
    objects = Objects(has_tags=True)
    fill(objects, old, OLD)
    tag = Tag(NEW, "s", (1, 3, 2))
    objects.perform(stage(chunk, [memoryview(each) for each in new.values()], tag))
    objects.put(KEY, new[KEY], tag)
    objects.asked.clear()
    assert joined(objects, protocol(has_tags=True).read(chunk, [None], settings())) == b"".join(new.values())
    whole = len(objects.asked)
    assert whole <= 3 + 1 + 1
    # What is in the anchor alone needs no copy.
    objects.asked.clear()
    assert joined(objects, protocol(has_tags=True).read(chunk, [RangeByteRequest(1, 4)], settings())) == new[KEY]
    assert len(objects.asked) == 1


@pytest.mark.parametrize("damage", ["cut", "other write", "other parts", "no copy", "settle", "no json"])
def test_invalid_staged_copy_is_not_used(damage: str) -> None:
    layout: dict[str, int | None] = {"": None, ".i": 2}
    chunk = chunk_of(layout)
    old, new = parts_of(layout, 2, 1), parts_of(layout, 3, 101)
    objects = Objects(has_tags=True)
    fill(objects, old, OLD)
    tag = Tag(NEW, "s", (3, 2))
    data = [memoryview(each) for each in new.values()]
    copies: dict[str, Any] = {
        "cut": bytes(memoryview(stage(chunk, data, tag).data))[:-1],
        "other write": stage(chunk, data, Tag(OLD, "s", (3, 2))).data,
        "other parts": stage(chunk_of({"": None, ".j": 2}), data, tag).data,
        "no copy": b"",
        "settle": stage(chunk, data, tag, "settle").data,
        "no json": b"PARTSTXN1\n\x02\0\0\0{]ab",
    }
    objects.put(stage(chunk, data, tag).key, bytes(memoryview(copies[damage])), tag)
    objects.put(KEY, new[KEY], tag)
    with pytest.raises(IncompleteChunkError) as caught:
        objects.run(protocol(has_tags=True).read(chunk, [None], settings()))
    assert caught.value.mixed == (f"{KEY}.i",)


class Restless(Objects):
    """A bucket in which another client writes one object again after every request for it."""

    def __init__(self, key: str, *, has_tags: bool) -> None:
        super().__init__(has_tags=has_tags)
        self.key = key

    def perform(self, request: StepRequest) -> Outcome:
        outcome = super().perform(request)
        if isinstance(request, Get | Head) and request.key == self.key:
            stored = self.stored[self.key]
            self.put(self.key, stored.data, stored.tag)
        return outcome


@TAGGED
@pytest.mark.parametrize("suffix", ["", ".i"])
def test_chunk_that_keeps_changing_is_not_reported_as_incomplete(suffix: str, tagged: bool) -> None:
    chunk = chunk_of({"": 4, ".i": 4})
    objects = Restless(KEY + suffix, has_tags=tagged)
    fill(objects, {KEY: b"abcd", f"{KEY}.i": b"efgh"}, OLD)
    for wanted in ([RangeByteRequest(0, 1), RangeByteRequest(3, 4)], [RangeByteRequest(4, 5), RangeByteRequest(7, 8)]):
        if (wanted[0].start < 4) == (suffix == ""):
            with pytest.raises(ConcurrentWriteError, match=KEY):
                objects.run(protocol(has_tags=tagged).read(chunk, wanted, settings()))
