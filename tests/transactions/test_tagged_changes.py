"""Changes of tagged chunks that another client writes at the same time."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from parts_store.engine.steps import Steps
from parts_store.errors import ConcurrentWriteError
from parts_store.transactions.rules import Level
from parts_store.transactions.versions import Seen
from tests.transactions.cases import EVERY_LAYOUT, EVERY_PLACE, IN_PARTS, beside, seen_in
from tests.transactions.interruptions import (
    PLACES,
    Layout,
    Operation,
    Place,
    before,
    delete,
    every_interruption,
    holds_old,
    parts_of,
    stored_as,
    value_of,
    what_is_read,
    write,
)
from tests.transactions.objects import Objects, Returned, chunk_of, next_batch


@EVERY_PLACE
@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
@EVERY_LAYOUT
def test_change_of_an_unchanged_chunk_succeeds(layout: Layout, present: bool, place: Place) -> None:
    chunk = chunk_of(layout)
    start = holds_old(place, layout, tuple(layout) if present else ())
    seen = seen_in(start, layout)
    written = start.copy()
    written.run(place.protocol().write(chunk, parts_of(layout, 3), seen))
    assert written.contents == stored_as(layout, 3)
    start.run(place.protocol().delete(chunk, seen))
    assert what_is_read(start, chunk, None) is None


@EVERY_PLACE
@pytest.mark.parametrize("meanwhile", [write, delete])
@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
@EVERY_LAYOUT
def test_change_of_a_chunk_that_has_changed_is_refused(
    layout: Layout, present: bool, meanwhile: Operation, place: Place
) -> None:
    chunk = chunk_of(layout)
    start = holds_old(place, layout, tuple(layout) if present else ())
    seen = seen_in(start, layout)
    start.run(meanwhile(chunk, parts_of(layout, 2, 201), place.protocol(first_generation=100)))
    theirs = what_is_read(start, chunk, None)
    if theirs is None and not present:
        return
    contents = start.contents
    for change in (
        place.protocol().write(chunk, parts_of(layout, 3), seen),
        place.protocol().delete(chunk, seen),
    ):
        with pytest.raises(ConcurrentWriteError, match="it was changed after it was read for this write"):
            start.run(change)
        assert what_is_read(start, chunk, None) == theirs
        if theirs is not None:
            assert start.contents == contents


# At the level "exclusive" there is no other writer, and on S3 the ETag alone does not show a change.
UNNOTICED = [place for place in PLACES if place.level is Level.EXCLUSIVE and not place.has_unique_etags]


@pytest.mark.parametrize("change", ["write", "delete"])
@pytest.mark.parametrize("place", [place for place in PLACES if place not in UNNOTICED], ids=str)
@IN_PARTS
def test_change_is_refused_if_all_parts_but_the_anchor_changed(layout: Layout, place: Place, change: str) -> None:
    chunk = chunk_of(layout)
    start = holds_old(place, layout, tuple(layout))
    seen = seen_in(start, layout)
    theirs = parts_of(layout, 2, 201)
    theirs[chunk.parts.anchor] = parts_of(layout, 2, 1)[chunk.parts.anchor]
    start.run(write(chunk, theirs, place.protocol(first_generation=100)))
    mine = parts_of(layout, 2)
    steps = {
        "write": place.protocol().write(chunk, mine, seen),
        "delete": place.protocol().delete(chunk, seen),
    }
    with pytest.raises(ConcurrentWriteError, match="it was changed after it was read for this write"):
        start.run(steps[change])
    assert what_is_read(start, chunk, None) == b"".join(theirs)


@EVERY_PLACE
@IN_PARTS
def test_interrupted_change_is_applied_or_not(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for present in ((), tuple(layout)):
        start = holds_old(place, layout, present)
        old, new = before(start, layout), value_of(layout, 3, 101)[0]
        steps = place.protocol().write(chunk, parts_of(layout, 3), seen_in(start, layout))
        found = [what_is_read(stopped, chunk, None) for stopped in every_interruption(start, steps)]
        commit = found.index(new)
        assert found == [old] * commit + [new] * (len(found) - commit)


def every_pause(layout: Layout) -> list[tuple[int, int]]:
    """After how many requests one of two stops, and the other, so that each of them comes to its end."""
    numbers = range(2 * len(layout) + 8)
    return [(first, second) for first in numbers for second in numbers]


def interleaved(objects: Objects, first: Steps[None], second: Steps[None], pauses: tuple[int, int]) -> None:
    """The first up to a request, the second up to another, the rest of the first, the rest of the second."""

    def requests(steps: Steps[None]) -> Iterator[None]:
        batch = next_batch(steps)
        while not isinstance(batch, Returned):
            outcomes = []
            for request in batch:
                outcomes.append(objects.perform(request))
                yield
            batch = next_batch(steps, tuple(outcomes))

    one, other = requests(first), requests(second)
    for _ in itertools.islice(one, pauses[0]):
        pass
    for _ in itertools.islice(other, pauses[1]):
        pass
    for steps in (one, other):
        for _ in steps:
            pass


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "place", [each for each in PLACES if each.has_tags and each.level is not Level.EXCLUSIVE], ids=str
)
@IN_PARTS
def test_one_of_two_concurrent_writes_survives_without_leftovers(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    values = [stored_as(layout, 3, 101), stored_as(layout, 1, 201)]
    for present in ((), tuple(layout)):
        for pauses in every_pause(layout):
            objects = holds_old(place, layout, present)
            first = write(chunk, parts_of(layout, 3), place.protocol())
            second = write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100))
            interleaved(objects, first, second, pauses)
            plain = {key: data for key, data in objects.contents.items() if key not in beside(objects)}
            assert plain in values, (present, pauses)
            if place.has_unique_etags:
                assert beside(objects) == set()


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    "place", [each for each in PLACES if each.has_tags and each.level is not Level.EXCLUSIVE], ids=str
)
@IN_PARTS
def test_one_of_two_concurrent_changes_succeeds(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for present in ((), tuple(layout)):
        for pauses in every_pause(layout):
            objects = holds_old(place, layout, present)
            known = seen_in(objects, layout)
            succeeded: list[int] = []

            def change(first: int, number: int, known: Seen = known, to: list[int] = succeeded) -> Steps[None]:
                try:
                    by = place.protocol(first_generation=number)
                    yield from by.write(chunk, parts_of(layout, 2, first), known)
                except ConcurrentWriteError:
                    return
                to.append(first)

            interleaved(objects, change(101, 0), change(201, 100), pauses)
            assert len(succeeded) == 1, (present, pauses)
            assert what_is_read(objects, chunk, None) == value_of(layout, 2, succeeded[0])[0]


@pytest.mark.sampled(25)
@pytest.mark.parametrize(
    "place", [each for each in PLACES if each.has_tags and each.level is not Level.EXCLUSIVE], ids=str
)
@IN_PARTS
def test_change_never_undoes_a_write_that_it_did_not_see(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for present in ((), tuple(layout)):
        for pauses, is_first in itertools.product(every_pause(layout), (True, False)):
            objects = holds_old(place, layout, present)
            known = seen_in(objects, layout)

            def change(known: Seen = known) -> Steps[None]:
                with contextlib.suppress(ConcurrentWriteError):
                    yield from place.protocol().write(chunk, parts_of(layout, 3), known)

            blind = write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100))
            interleaved(objects, *((blind, change()) if is_first else (change(), blind)), pauses)
            assert what_is_read(objects, chunk, None) == value_of(layout, 1, 201)[0], (present, pauses, is_first)
