"""Writes that stop after any of their requests: what is read then is the old chunk or the new one, and nothing else."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from parts_store.engine.steps import Delete, Get, Head, IfAbsent, List, Lost, Outcome, Put, Refused, Request, Steps
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError
from parts_store.transactions.reading import exists
from parts_store.transactions.rules import Level
from parts_store.transactions.versions import Absent, Seen
from tests.transactions.interruptions import (
    LAYOUTS,
    NEW_SIZES,
    OPERATIONS,
    PLACES,
    Layout,
    Operation,
    Place,
    before,
    delete,
    every_interruption,
    every_start,
    holds_old,
    ids,
    parts_of,
    stored_as,
    value_of,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import (
    KEY,
    Objects,
    Returned,
    chunk_of,
    every_request,
    next_batch,
    protocol,
    settings,
    sliced,
)

EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
IN_PARTS = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES, ids=str)
WITH_TAGS = pytest.mark.parametrize("place", [place for place in PLACES if place.has_tags], ids=str)
SIDE = ".parts-txn/"


def wanted_by(operation: Operation, new: bytes, start: bytes | str | None) -> bytes | str | None:
    """What there is when the operation has ended."""
    if operation is delete:
        return None
    return new if operation is write or start is None else start


def beside(objects: Objects) -> set[str]:
    """The keys of what the protocol keeps beside the chunk."""
    return {key for key in objects.stored if SIDE in key}


# --- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@EVERY_LAYOUT
def test_an_interrupted_operation_leaves_what_was_until_what_is_to_be_is_there(
    layout: Layout, operation: Operation, place: Place
) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for start in every_start(place, layout):
            old = before(start, layout)
            end = wanted_by(operation, new, old)
            found = [
                what_is_read(stopped, chunk, None)
                for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), place.protocol()))
            ]
            # One moment at which the old becomes the new, and neither nothing nor a mixture between them.
            commit = found.index(end) if old != end else 0
            assert found == [old] * commit + [end] * (len(found) - commit), start.contents


@pytest.mark.slow
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@EVERY_LAYOUT
def test_every_range_after_an_interruption_is_of_the_write_that_is_read_whole(
    layout: Layout, operation: Operation, place: Place
) -> None:
    chunk = chunk_of(layout)
    old, sizes = value_of(layout, 2, 1)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for start in (holds_old(place, layout, present) for present in ((), tuple(layout))):
            for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), place.protocol())):
                whole = what_is_read(stopped, chunk, None)
                assert isinstance(whole, bytes | None)
                assert stopped.copy().run(exists(chunk)) == (whole is not None)
                assert stopped.copy().run(place.protocol().size(chunk)) == (None if whole is None else len(whole))
                for wanted in every_request(sum(sizes) + 1):
                    expected = None if whole is None else sliced(whole, wanted)
                    assert what_is_read(stopped, chunk, wanted) == expected, wanted
                    # Without a look at the anchor, a part may be older or newer than it, or outlive it.
                    alone = what_is_read(stopped, chunk, wanted, with_anchor=False)
                    assert alone in (sliced(old, wanted), sliced(new, wanted), None), wanted


@pytest.mark.sampled(7)
@EVERY_PLACE
@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPERATIONS, repeat=2)))
@IN_PARTS
def test_after_any_interruption_the_next_operation_does_what_it_says(
    layout: Layout, first: Operation, second: Operation, place: Place
) -> None:
    chunk = chunk_of(layout)
    new, _ = value_of(layout, 3, 201)
    for start in every_start(place, layout):
        for stopped in every_interruption(start, first(chunk, parts_of(layout, 0), place.protocol())):
            found = what_is_read(stopped, chunk, None)
            after = stopped.copy()
            after.run(second(chunk, parts_of(layout, 3, 201), place.protocol(first_generation=100)))
            assert what_is_read(after, chunk, None) == wanted_by(second, new, found), stopped.contents
            if second is write:
                plain = {key: data for key, data in after.contents.items() if key not in beside(after)}
                # Other programs read it too.
                assert plain == stored_as(layout, 3, 201)


@pytest.mark.sampled(5)
@EVERY_PLACE
@IN_PARTS
def test_after_an_interrupted_write_the_next_one_leaves_only_what_the_dead_writer_had_not_finished(
    layout: Layout, place: Place
) -> None:
    chunk = chunk_of(layout)
    for start in every_start(place, layout):
        old = before(start, layout)
        for stopped in every_interruption(start, write(chunk, parts_of(layout, 0), place.protocol())):
            is_committed = what_is_read(stopped, chunk, None) != old
            left = beside(stopped)
            stopped.run(write(chunk, parts_of(layout, 3, 201), place.protocol(first_generation=100)))
            if not place.has_tags:
                # What a journal speaks of is brought to its end; what was staged for none, nobody knows of.
                assert beside(stopped) == (set() if is_committed else left)
            elif place.has_unique_etags or place.level is Level.EXCLUSIVE:
                # A copy that was never committed, nobody can know to be left behind; nor, without looking, any other.
                is_found = is_committed and place.level is not Level.EXCLUSIVE
                assert beside(stopped) == (set() if is_found else left)
            else:
                # Where ETags come back, what a dead writer had under way may still come: our copy stays for it.
                ours = {each for each in beside(stopped) - left if not each.endswith(".done")}
                assert beside(stopped) == left | ours | {f"{each}.done" for each in ours}
                assert bool(ours) == bool(left)


@pytest.mark.sampled(5)
@EVERY_PLACE
@IN_PARTS
def test_writes_that_die_one_after_the_other_are_each_read_whole(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    values = [value_of(layout, 2, 1)[0], value_of(layout, 3, 101)[0], value_of(layout, 1, 201)[0]]
    start = holds_old(place, layout, tuple(layout))
    for once in every_interruption(start, write(chunk, parts_of(layout, 3), place.protocol())):
        first = what_is_read(once, chunk, None)
        assert first in values[:2]
        steps = write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100))
        for twice in every_interruption(once, steps):
            assert what_is_read(twice, chunk, None) in (first, values[2])


# --- operations that end ---------------------------------------------------------------------------------------------


@EVERY_PLACE
@EVERY_LAYOUT
def test_a_finished_write_is_there_alone_whatever_was_before(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for objects in every_start(place, layout):
            objects.run(write(chunk, parts_of(layout, unsized), place.protocol()))
            assert objects.contents == stored_as(layout, unsized)
            assert what_is_read(objects, chunk, None) == new


@EVERY_PLACE
@EVERY_LAYOUT
def test_a_finished_deletion_leaves_nothing_or_orphans_where_others_may_write(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for objects in every_start(place, layout):
        others = {key: data for key, data in objects.contents.items() if key != chunk.anchor_key}
        objects.run(place.protocol().delete(chunk))
        keeps_orphans = place.has_tags and place.level is Level.WRITERS
        assert objects.contents == (others if keeps_orphans else {})
        assert what_is_read(objects, chunk, None) is None


@EVERY_PLACE
@EVERY_LAYOUT
def test_a_write_if_absent_changes_nothing_of_a_chunk_and_replaces_orphans(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        for objects in every_start(place, layout):
            old = before(objects, layout)
            contents = objects.contents
            objects.run(write_if_absent(chunk, parts_of(layout, unsized), place.protocol()))
            if chunk.anchor_key in contents:
                assert objects.contents.items() >= contents.items()
                assert beside(objects) == set()
                assert what_is_read(objects, chunk, None) == old
            else:
                assert objects.contents == stored_as(layout, unsized)


@WITH_TAGS
@EVERY_LAYOUT
def test_all_parts_of_a_write_carry_one_tag_with_all_sizes_and_no_two_attempts_the_same(
    layout: Layout, place: Place
) -> None:
    chunk = chunk_of(layout)
    for start in every_start(place, layout):
        start.run(write(chunk, parts_of(layout, 3), place.protocol()))
        (tag,) = {start.stored[key].tag for key in chunk.part_keys}
        assert tag is not None
        assert tag.sizes == tuple(3 if each is None else each for each in layout.values())
        puts = [request for request in start.asked if isinstance(request, Put)]
        # One generation for the attempt to create it, another for the staged one that follows.
        attempts = {(put.tag.generation, put.tag.mode) for put in puts if put.tag}
        assert len(attempts) == len(dict(attempts)) <= 2
        assert (tag.generation, tag.mode) in attempts
        # Every object of the protocol is a part of something: nothing is written without saying by whom.
        assert all(put.tag is not None for put in puts)


# --- what it costs ---------------------------------------------------------------------------------------------------


def cost(objects: Objects) -> dict[type[Request], int]:
    kinds: tuple[type[Request], ...] = (Put, Head, Get, List, Delete)
    return {kind: objects.count(kind) for kind in kinds if objects.count(kind)}


@WITH_TAGS
@EVERY_LAYOUT
def test_a_new_chunk_costs_one_put_for_each_part_and_the_anchor_is_the_last(layout: Layout, place: Place) -> None:
    parts = len(layout)
    for operation in (write, write_if_absent):
        objects = place.empty()
        objects.run(operation(chunk_of(layout), parts_of(layout, 3), place.protocol()))
        puts = [request for request in objects.asked if isinstance(request, Put)]
        if place.level is not Level.FULL or parts == 1:
            assert cost(objects) == {Put: parts}
            assert puts[-1].key == chunk_of(layout).anchor_key
            assert objects.batches == min(parts, 2)
            is_blind = parts == 1 and operation is write
            assert all(put.condition == (None if is_blind else IfAbsent()) for put in puts)


@WITH_TAGS
@IN_PARTS
def test_an_overwrite_after_a_read_costs_what_the_table_says(layout: Layout, place: Place) -> None:
    parts = len(layout)
    chunk = chunk_of(layout)
    objects = holds_old(place, layout, tuple(layout))
    known = objects.run(protocol(has_tags=True).read(chunk, [None], settings()))
    assert known is not None
    objects.asked.clear()
    objects.run(place.protocol().write(chunk, parts_of(layout, 3), known.version))
    registered = not place.has_unique_etags and place.level is not Level.EXCLUSIVE
    # What was read says what is there: no part is looked at before it is written, but where ETags come back.
    expected = {Put: parts + 1, Delete: 1} | ({Head: 2, List: 1} if registered else {})
    assert cost(objects) == expected
    assert objects.contents == stored_as(layout, 3)


@WITH_TAGS
@IN_PARTS
def test_a_blind_overwrite_finds_out_that_there_is_a_chunk_by_being_refused(layout: Layout, place: Place) -> None:
    parts = len(layout)
    objects = holds_old(place, layout, tuple(layout))
    objects.run(write(chunk_of(layout), parts_of(layout, 3), place.protocol()))
    registered = not place.has_unique_etags and place.level is not Level.EXCLUSIVE
    refused = 0 if place.level is Level.FULL else parts - 1
    heads = (0 if place.level is Level.EXCLUSIVE else parts) + int(registered)
    lists = int(registered)
    expected = {Put: parts + 1 + refused, Head: heads, List: lists, Delete: 1}
    assert cost(objects) == {kind: count for kind, count in expected.items() if count}


@WITH_TAGS
@EVERY_LAYOUT
def test_a_deletion_costs_one_request_for_the_anchor_and_one_for_the_rest(layout: Layout, place: Place) -> None:
    objects = holds_old(place, layout, tuple(layout))
    objects.run(place.protocol().delete(chunk_of(layout)))
    rest = int(len(layout) > 1 and place.level is not Level.WRITERS)
    heads = {Head: 1} if place.level is Level.FULL else {}
    assert cost(objects) == {Delete: 1 + rest} | heads


# --- what was read before --------------------------------------------------------------------------------------------


def seen_in(objects: Objects, layout: Layout) -> Seen:
    """What somebody sees who reads the chunk in order to change it."""
    known = objects.copy().run(protocol(has_tags=objects.has_tags).read(chunk_of(layout), [None], settings()))
    return Absent() if known is None else known.version


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
        with pytest.raises(ConcurrentWriteError, match="not what it was when it was read to be changed"):
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
    with pytest.raises(ConcurrentWriteError, match="not what it was when it was read to be changed"):
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


# --- answers that do not come ----------------------------------------------------------------------------------------


class Faulty(Objects):
    """A bucket that does something else with one request to write, by its number."""

    def __init__(self, objects: Objects, at: int, fault: str) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored = dict(objects.stored)
        self._etags = itertools.count(2000)
        self.at, self.fault, self.made = at, fault, 0

    def perform(self, request: Request) -> Outcome:
        if not isinstance(request, Put):
            return super().perform(request)
        self.made += 1
        if self.made != self.at + 1:
            return super().perform(request)
        if self.fault == "answer lost":
            super().perform(request)
        # Some refuse although nobody is there, when two come at the same time.
        if self.fault == "refused":
            return Refused() if request.condition is not None else super().perform(request)
        return Lost(OSError("connection reset"))


@pytest.mark.sampled(5)
@WITH_TAGS
@pytest.mark.parametrize("fault", ["request lost", "answer lost", "refused"])
@pytest.mark.parametrize("operation", [write, write_if_absent])
@EVERY_LAYOUT
def test_a_request_without_an_answer_or_refused_for_no_reason_does_not_stop_a_write(
    layout: Layout, operation: Operation, fault: str, place: Place
) -> None:
    chunk = chunk_of(layout)
    for start in every_start(place, layout):
        old = before(start, layout)
        if old == "incomplete":
            # There is somebody else's anchor, and whether ours was before it nobody can know.
            continue
        expected = wanted_by(operation, value_of(layout, 3, 101)[0], old)
        for at in itertools.count():
            objects = Faulty(start, at, fault)
            objects.run(operation(chunk, parts_of(layout, 3), place.protocol()))
            assert what_is_read(objects, chunk, None) == expected
            if objects.made <= at:
                break


class Overtaken(Objects):
    """A bucket in which our anchor gets lost, and somebody else's chunk is there instead."""

    def __init__(self, anchor_key: str, theirs: Objects) -> None:
        super().__init__(has_tags=True, has_unique_etags=theirs.has_unique_etags)
        self.anchor_key, self.theirs = anchor_key, theirs

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, Put) and request.key == self.anchor_key:
            self.stored |= self.theirs.stored
            return Lost(OSError("connection reset"))
        return super().perform(request)


@WITH_TAGS
@EVERY_LAYOUT
def test_a_change_without_an_answer_that_finds_another_write_is_ambiguous(layout: Layout, place: Place) -> None:
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

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, Put) and self.deaf_to in request.key:
            self.asked.append(request)
            return Lost(OSError("connection reset"))
        return super().perform(request)


@WITH_TAGS
@IN_PARTS
def test_an_anchor_that_is_never_answered_is_ambiguous_and_tried_six_times(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for start in (place.empty(), holds_old(place, layout, tuple(layout))):
        known = seen_in(start, layout)

        class DeafToAnchor(Deaf):
            def perform(self, request: Request) -> Outcome:
                is_anchor = isinstance(request, Put) and request.key == chunk.anchor_key
                return super().perform(request) if is_anchor else Objects.perform(self, request)

        objects = DeafToAnchor(start, chunk.anchor_key)
        with pytest.raises(AmbiguousWriteError, match="no answer came to 6 requests"):
            objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert sum(isinstance(each, Put) and each.key == chunk.anchor_key for each in objects.asked) == 6
        assert what_is_read(objects, chunk, None) == before(start, layout)


@WITH_TAGS
@IN_PARTS
def test_a_staged_copy_that_is_never_answered_is_the_stores_error_and_nothing_was_written(
    layout: Layout, place: Place
) -> None:
    start = holds_old(place, layout, tuple(layout))
    objects = Deaf(start, SIDE)
    with pytest.raises(OSError, match="connection reset") as caught:
        objects.run(write(chunk_of(layout), parts_of(layout, 3), place.protocol()))
    assert any(KEY in note and "is not written" in note for note in caught.value.__notes__)
    assert objects.contents == start.contents


@WITH_TAGS
@IN_PARTS
def test_a_part_that_is_never_answered_after_the_commit_is_read_from_the_staged_copy(
    layout: Layout, place: Place
) -> None:
    chunk = chunk_of(layout)
    for deaf_to in chunk.other_keys:
        objects = Deaf(holds_old(place, layout, tuple(layout)), deaf_to)
        known = seen_in(objects, layout)
        objects.run(place.protocol().write(chunk, parts_of(layout, 3), known))
        assert what_is_read(objects, chunk, None) == value_of(layout, 3, 101)[0]
        assert len(beside(objects)) == 1
        # And whoever writes next, while requests are answered, leaves the chunk whole.
        after = objects.copy()
        after.run(write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=100)))
        assert what_is_read(after, chunk, None) == value_of(layout, 1, 201)[0]


# --- two at the same time --------------------------------------------------------------------------------------------


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
