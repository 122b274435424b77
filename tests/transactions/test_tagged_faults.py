"""Writes of tagged chunks whose requests fail or get no response."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from operator import eq

import pytest

from parts_store.engine.steps import Lost, Outcome, Put, Refused, StepRequest
from parts_store.errors import AmbiguousWriteError
from parts_store.transactions.reading import Absent
from tests.transactions.interruptions import (
    EVERY_LAYOUT,
    IN_PARTS,
    SIDE,
    WITH_TAGS,
    Layout,
    Operation,
    Place,
    before,
    beside,
    every_start,
    holds_old,
    parts_of,
    seen_in,
    value_of,
    wanted_by,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import KEY, Hooked, Objects, chunk_of

LOST = Lost(OSError("connection reset"))


def faulty(start: Objects, at: int, fault: str) -> tuple[Hooked, Iterator[int]]:
    """Return a bucket that does something else with one request to write, and an iterator over the numbers of these."""
    numbers = itertools.count()

    def answer(request: StepRequest) -> Outcome | None:
        if not isinstance(request, Put) or next(numbers) != at:
            return None
        if fault == "answer lost":
            Objects.perform(objects, request)
        # Some servers refuse one of two simultaneous requests, although the condition is met.
        if fault == "refused":
            return None if request.condition is None else Refused()
        return LOST

    objects = Hooked(start, answer)
    return objects, numbers


@pytest.mark.sampled(5)
@WITH_TAGS
@pytest.mark.parametrize("fault", ["request lost", "answer lost", "refused"])
@pytest.mark.parametrize("operation", [write, write_if_absent])
@EVERY_LAYOUT
def test_unanswered_or_refused_request_does_not_stop_a_write(
    layout: Layout, operation: Operation, fault: str, place: Place
) -> None:
    chunk = chunk_of(layout)
    for start in every_start(place, layout):
        old = before(start, layout)
        if old == "incomplete":
            # The anchor of another writer is there. Whether this one was written before it is not known.
            continue
        expected = wanted_by(operation, value_of(layout, 3, 101)[0], old)
        for at in itertools.count():
            objects, numbers = faulty(start, at, fault)
            objects.run(operation(chunk, parts_of(layout, 3), place.protocol()))
            assert what_is_read(objects, chunk, None) == expected
            if next(numbers) <= at:
                break


@WITH_TAGS
@EVERY_LAYOUT
def test_unanswered_change_that_finds_another_write_is_ambiguous(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    theirs = place.empty()
    theirs.run(write(chunk, parts_of(layout, 2, 201), place.protocol(first_generation=100)))

    def answer(request: StepRequest) -> Outcome | None:
        """Do not answer the PUT of the anchor; then the chunk of another writer is there."""
        if not isinstance(request, Put) or request.key != chunk.anchor_key:
            return None
        objects.stored |= theirs.stored
        return LOST

    objects = Hooked(place.empty(), answer)
    with pytest.raises(AmbiguousWriteError, match="may or may not have been written: no answer came") as caught:
        objects.run(place.protocol().write(chunk, parts_of(layout, 3), Absent()))
    assert isinstance(caught.value.__cause__, OSError)
    assert what_is_read(objects, chunk, None) == value_of(layout, 2, 201)[0]


def deaf(objects: Objects, is_deaf_to: Callable[[str], bool]) -> Hooked:
    """Return a bucket that never answers a request to write one of these objects."""
    return Hooked(objects, lambda request: LOST if isinstance(request, Put) and is_deaf_to(request.key) else None)


@WITH_TAGS
@IN_PARTS
def test_unanswered_anchor_is_ambiguous_after_six_attempts(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for start in (place.empty(), holds_old(place, layout, tuple(layout))):
        known = seen_in(start, layout)
        objects = deaf(start, lambda key: key == chunk.anchor_key)
        with pytest.raises(AmbiguousWriteError, match="no answer came to 6 requests"):
            objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert sum(isinstance(each, Put) and each.key == chunk.anchor_key for each in objects.asked) == 6
        assert what_is_read(objects, chunk, None) == before(start, layout)


@WITH_TAGS
@IN_PARTS
def test_unanswered_staged_copy_raises_and_writes_nothing(layout: Layout, place: Place) -> None:
    start = holds_old(place, layout, tuple(layout))
    objects = deaf(start, lambda key: SIDE in key)
    with pytest.raises(OSError, match="connection reset") as caught:
        objects.run(write(chunk_of(layout), parts_of(layout, 3), place.protocol()))
    assert any(KEY in note and "is not written" in note for note in caught.value.__notes__)
    assert objects.contents == start.contents


@WITH_TAGS
@IN_PARTS
def test_unanswered_part_after_commit_is_read_from_the_staged_copy(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for deaf_to in chunk.other_keys:
        objects = deaf(holds_old(place, layout, tuple(layout)), partial(eq, deaf_to))
        known = seen_in(objects, layout)
        objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert what_is_read(objects, chunk, None) == value_of(layout, 3, 101)[0]
        assert len(beside(objects)) == 1
        # The next write, whose requests are answered, leaves an intact chunk.
        after = objects.copy()
        after.run(write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100)))
        assert what_is_read(after, chunk, None) == value_of(layout, 1, 201)[0]
