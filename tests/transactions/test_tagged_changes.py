"""Changes of tagged chunks that another client writes at the same time."""

import pytest

from parts_store.errors import ConcurrentWriteError
from parts_store.transactions.rules import Level
from tests.transactions.interruptions import (
    EVERY_LAYOUT,
    EVERY_PLACE,
    IN_PARTS,
    PLACES,
    Layout,
    Operation,
    Place,
    delete,
    holds_old,
    parts_of,
    seen_in,
    stored_as,
    what_is_read,
    write,
)
from tests.transactions.objects import chunk_of


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
