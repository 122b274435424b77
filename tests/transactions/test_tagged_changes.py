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
def test_a_chunk_that_is_still_what_was_read_is_changed(layout: Layout, present: bool, place: Place) -> None:
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
def test_a_chunk_that_is_not_what_was_read_any_more_is_left_as_it_is(
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


# At `exclusive` nobody else writes at all, and on S3 ETags alone do not tell.
NOBODY_ELSE = [place for place in PLACES if place.level is Level.EXCLUSIVE and not place.has_unique_etags]


@pytest.mark.parametrize("change", ["write", "delete"])
@pytest.mark.parametrize("place", [place for place in PLACES if place not in NOBODY_ELSE], ids=str)
@IN_PARTS
def test_a_write_that_changed_all_but_the_anchor_is_not_what_was_read_either(
    layout: Layout, place: Place, change: str
) -> None:
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
def test_a_change_that_is_interrupted_is_made_or_not(layout: Layout, place: Place) -> None:
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
def test_of_two_writers_one_is_there_whole_and_nothing_beside_it(layout: Layout, place: Place) -> None:
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "place", [each for each in PLACES if each.has_tags and each.level is not Level.EXCLUSIVE], ids=str
)
@IN_PARTS
def test_of_two_who_change_what_they_have_read_exactly_one_succeeds(layout: Layout, place: Place) -> None:
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "place", [each for each in PLACES if each.has_tags and each.level is not Level.EXCLUSIVE], ids=str
)
@IN_PARTS
def test_a_write_that_nothing_was_read_for_is_never_undone_by_a_change_that_did_not_see_it(
    layout: Layout, place: Place
) -> None:
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
