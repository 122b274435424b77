"""Writes of tagged chunks whose requests fail or get no response."""

import itertools

import pytest

from parts_store.engine.steps import Lost, Outcome, Put, Refused, StepRequest
from parts_store.errors import AmbiguousWriteError
from parts_store.transactions.reading import Absent
from tests.transactions.cases import EVERY_LAYOUT, IN_PARTS, SIDE, WITH_TAGS, beside, seen_in, wanted_by
from tests.transactions.interruptions import (
    Layout,
    Operation,
    Place,
    before,
    every_start,
    holds_old,
    parts_of,
    value_of,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import KEY, Objects, chunk_of


class Faulty(Objects):
    """A bucket that does something else with one request to write, by its number."""

    def __init__(self, objects: Objects, at: int, fault: str) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored = dict(objects.stored)
        self._etags = itertools.count(2000)
        self.at, self.fault, self.made = at, fault, 0

    def perform(self, request: StepRequest) -> Outcome:
        if not isinstance(request, Put):
            return super().perform(request)
        self.made += 1
        if self.made != self.at + 1:
            return super().perform(request)
        if self.fault == "answer lost":
            super().perform(request)
        # Some servers refuse one of two simultaneous requests, although the condition is met.
        if self.fault == "refused":
            return Refused() if request.condition is not None else super().perform(request)
        return Lost(OSError("connection reset"))


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
            objects = Faulty(start, at, fault)
            objects.run(operation(chunk, parts_of(layout, 3), place.protocol()))
            assert what_is_read(objects, chunk, None) == expected
            if objects.made <= at:
                break


class Overtaken(Objects):
    """A bucket that does not answer the PUT of the anchor, and then has the chunk of another writer."""

    def __init__(self, anchor_key: str, theirs: Objects) -> None:
        super().__init__(has_tags=True, has_unique_etags=theirs.has_unique_etags)
        self.anchor_key, self.theirs = anchor_key, theirs

    def perform(self, request: StepRequest) -> Outcome:
        if isinstance(request, Put) and request.key == self.anchor_key:
            self.stored |= self.theirs.stored
            return Lost(OSError("connection reset"))
        return super().perform(request)


@WITH_TAGS
@EVERY_LAYOUT
def test_unanswered_change_that_finds_another_write_is_ambiguous(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    theirs = place.empty()
    theirs.run(write(chunk, parts_of(layout, 2, 201), place.protocol(first_generation=100)))
    objects = Overtaken(chunk.anchor_key, theirs)
    with pytest.raises(AmbiguousWriteError, match="may or may not have been written: no answer came") as caught:
        objects.run(place.protocol().write(chunk, parts_of(layout, 3), Absent()))
    assert isinstance(caught.value.__cause__, OSError)
    assert what_is_read(objects, chunk, None) == value_of(layout, 2, 201)[0]


class Deaf(Objects):
    """A bucket that never answers a request to write one object."""

    def __init__(self, objects: Objects, deaf_to: str) -> None:
        super().__init__(has_tags=True, has_unique_etags=objects.has_unique_etags)
        self.stored, self.deaf_to = dict(objects.stored), deaf_to

    def perform(self, request: StepRequest) -> Outcome:
        if isinstance(request, Put) and self.deaf_to in request.key:
            self.asked.append(request)
            return Lost(OSError("connection reset"))
        return super().perform(request)


@WITH_TAGS
@IN_PARTS
def test_unanswered_anchor_is_ambiguous_after_six_attempts(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for start in (place.empty(), holds_old(place, layout, tuple(layout))):
        known = seen_in(start, layout)

        class DeafToAnchor(Deaf):
            def perform(self, request: StepRequest) -> Outcome:
                is_anchor = isinstance(request, Put) and request.key == chunk.anchor_key
                return super().perform(request) if is_anchor else Objects.perform(self, request)

        objects = DeafToAnchor(start, chunk.anchor_key)
        with pytest.raises(AmbiguousWriteError, match="no answer came to 6 requests"):
            objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert sum(isinstance(each, Put) and each.key == chunk.anchor_key for each in objects.asked) == 6
        assert what_is_read(objects, chunk, None) == before(start, layout)


@WITH_TAGS
@IN_PARTS
def test_unanswered_staged_copy_raises_and_writes_nothing(layout: Layout, place: Place) -> None:
    start = holds_old(place, layout, tuple(layout))
    objects = Deaf(start, SIDE)
    with pytest.raises(OSError, match="connection reset") as caught:
        objects.run(write(chunk_of(layout), parts_of(layout, 3), place.protocol()))
    assert any(KEY in note and "is not written" in note for note in caught.value.__notes__)
    assert objects.contents == start.contents


@WITH_TAGS
@IN_PARTS
def test_unanswered_part_after_commit_is_read_from_the_staged_copy(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for deaf_to in chunk.other_keys:
        objects = Deaf(holds_old(place, layout, tuple(layout)), deaf_to)
        known = seen_in(objects, layout)
        objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert what_is_read(objects, chunk, None) == value_of(layout, 3, 101)[0]
        assert len(beside(objects)) == 1
        # The next write, whose requests are answered, leaves an intact chunk.
        after = objects.copy()
        after.run(write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100)))
        assert what_is_read(after, chunk, None) == value_of(layout, 1, 201)[0]
