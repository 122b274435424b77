"""Writes and deletes of tagged chunks: interruptions, results and costs."""

import itertools
from collections import Counter

import pytest

from parts_store.engine.steps import Delete, Head, IfAbsent, List, Put, StepRequest
from parts_store.transactions.reading import exists
from parts_store.transactions.rules import Level
from tests.transactions.interruptions import (
    EVERY_LAYOUT,
    EVERY_PLACE,
    IN_PARTS,
    NEW_SIZES,
    OPERATIONS,
    WITH_TAGS,
    Layout,
    Operation,
    Place,
    before,
    beside,
    every_interruption,
    every_start,
    holds_old,
    parts_of,
    stored_as,
    value_of,
    wanted_by,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import Objects, chunk_of, every_request, protocol, settings, sliced


@pytest.mark.sampled(5)
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@EVERY_LAYOUT
def test_interrupted_operation_leaves_the_old_or_the_new_chunk(
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
@pytest.mark.sampled(25, usual=5)
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@EVERY_LAYOUT
def test_ranges_after_interruption_belong_to_the_same_write(layout: Layout, operation: Operation, place: Place) -> None:
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


@pytest.mark.sampled(21)
@EVERY_PLACE
@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPERATIONS, repeat=2)))
@IN_PARTS
def test_next_operation_after_any_interruption_succeeds(
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
def test_write_after_an_interrupted_write_leaves_only_its_leftovers(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for start in every_start(place, layout):
        old = before(start, layout)
        for stopped in every_interruption(start, write(chunk, parts_of(layout, 0), place.protocol())):
            is_committed = what_is_read(stopped, chunk, None) != old
            left = beside(stopped)
            stopped.run(write(chunk, parts_of(layout, 3, 201), place.protocol(first_generation=100)))
            if not place.has_tags:
                # The write of a journal is finished. Files that were staged without a journal remain.
                assert beside(stopped) == (set() if is_committed else left)
            elif place.has_unique_etags or place.level is Level.EXCLUSIVE:
                # A copy that was never committed remains, because it looks like the copy of a writer at work.
                is_found = is_committed and place.level is not Level.EXCLUSIVE
                assert beside(stopped) == (set() if is_found else left)
            else:
                # Where ETags come back, what a dead writer had under way may still come: our copy stays for it.
                ours = {each for each in beside(stopped) - left if not each.endswith(".done")}
                assert beside(stopped) == left | ours | {f"{each}.done" for each in ours}
                assert bool(ours) == bool(left)


@EVERY_PLACE
@EVERY_LAYOUT
def test_finished_write_leaves_nothing_else_behind(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for unsized in NEW_SIZES:
        new, _ = value_of(layout, unsized, 101)
        for objects in every_start(place, layout):
            objects.run(write(chunk, parts_of(layout, unsized), place.protocol()))
            assert objects.contents == stored_as(layout, unsized)
            assert what_is_read(objects, chunk, None) == new


@EVERY_PLACE
@EVERY_LAYOUT
def test_deletion_leaves_nothing_or_orphans_at_level_writers(layout: Layout, place: Place) -> None:
    chunk = chunk_of(layout)
    for objects in every_start(place, layout):
        others = {key: data for key, data in objects.contents.items() if key != chunk.anchor_key}
        objects.run(place.protocol().delete(chunk))
        keeps_orphans = place.has_tags and place.level is Level.WRITERS
        assert objects.contents == (others if keeps_orphans else {})
        assert what_is_read(objects, chunk, None) is None


@EVERY_PLACE
@EVERY_LAYOUT
def test_write_if_absent_keeps_a_chunk_and_replaces_orphans(layout: Layout, place: Place) -> None:
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
def test_parts_of_a_write_share_a_tag_and_attempts_do_not(layout: Layout, place: Place) -> None:
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


def cost(objects: Objects) -> Counter[type[StepRequest]]:
    return Counter(type(request) for request in objects.asked)


@WITH_TAGS
@EVERY_LAYOUT
def test_new_chunk_costs_one_put_per_part_with_the_anchor_last(layout: Layout, place: Place) -> None:
    parts = len(layout)
    for operation in (write, write_if_absent):
        objects = place.empty()
        objects.run(operation(chunk_of(layout), parts_of(layout, 3), place.protocol()))
        puts = [request for request in objects.asked if isinstance(request, Put)]
        if place.level is not Level.FULL or parts == 1:
            assert cost(objects) == Counter({Put: parts})
            assert puts[-1].key == chunk_of(layout).anchor_key
            assert objects.batches == min(parts, 2)
            is_blind = parts == 1 and operation is write
            assert all(put.condition == (None if is_blind else IfAbsent()) for put in puts)


# How a client knows of the chunk: it read it, it does not know of it, it wrote it, or it wrote one that is gone by now.
KNOWN = ["read", "unknown", "written", "written and gone"]


@WITH_TAGS
@IN_PARTS
@pytest.mark.parametrize("known", KNOWN)
def test_overwrite_costs_the_documented_requests(layout: Layout, place: Place, known: str) -> None:
    chunk, parts, client = chunk_of(layout), len(layout), place.protocol()
    objects = holds_old(place, layout, tuple(layout))
    read = objects.run(protocol(has_tags=True).read(chunk, [None], settings()))
    assert read is not None
    if known.startswith("written"):
        objects.run(write(chunk, parts_of(layout, 3), client))
    if known == "written and gone":
        objects.run(place.protocol().delete(chunk))
    objects.asked.clear()
    objects.run(client.write(chunk, parts_of(layout, 2), read.version if known == "read" else None))
    is_exclusive = place.level is Level.EXCLUSIVE
    is_registered = not place.has_unique_etags and not is_exclusive
    # A client that does not know of the chunk notices it by a refused create.
    refused = parts - 1 if known == "unknown" and place.level is not Level.FULL else 0
    # What was read says what is there: no part is looked at before it is written, but where ETags come back.
    heads = int(is_registered) if known == "read" else 0 if is_exclusive else parts
    assert cost(objects) == Counter({Put: parts + 1 + refused, Head: heads, List: int(is_registered), Delete: 1})
    assert what_is_read(objects, chunk, None) == value_of(layout, 2, 101)[0]
    if known != "written and gone":
        assert objects.contents == stored_as(layout, 2)


@WITH_TAGS
@IN_PARTS
def test_client_that_has_deleted_a_chunk_creates_it_again(layout: Layout, place: Place) -> None:
    objects = holds_old(place, layout, ())
    client = place.protocol()
    objects.run(write(chunk_of(layout), parts_of(layout, 3), client))
    objects.run(client.delete(chunk_of(layout)))
    # At the level "writers", the other parts are left to `repair`.
    for key in chunk_of(layout).other_keys:
        objects.stored.pop(key, None)
    objects.asked.clear()
    objects.run(write(chunk_of(layout), parts_of(layout, 3), client))
    if place.level is not Level.FULL:
        assert cost(objects) == Counter({Put: len(layout)})


@WITH_TAGS
@EVERY_LAYOUT
def test_deletion_costs_two_requests(layout: Layout, place: Place) -> None:
    objects = holds_old(place, layout, tuple(layout))
    objects.run(place.protocol().delete(chunk_of(layout)))
    rest = int(len(layout) > 1 and place.level is not Level.WRITERS)
    assert cost(objects) == Counter({Delete: 1 + rest, Head: int(place.level is Level.FULL)})
