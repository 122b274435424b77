"""Repairs of what dead writers have left, after any of their requests."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from parts_store.engine.steps import (
    Delete,
    Entry,
    List,
    Lock,
    Outcome,
    Put,
    StepRequest,
)
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.tags import Tag
from parts_store.maintenance.repair import find_chunk_beside, repair_chunk
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions import staging
from parts_store.transactions.journaled import Journal
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.rules import Level
from tests.maintenance.aged_objects import (
    A_DAY_LATER,
    DROP,
    LONG_AGO,
    NOTHING_ASKED,
    RETAG,
    Aged,
    chunk_others,
    in_array,
    is_about_chunk,
    plain_of,
    repair,
    what_is_read,
)
from tests.transactions.interruptions import (
    EVERY_PLACE,
    IN_PARTS,
    LAYOUTS,
    OPERATIONS,
    PLACES,
    WITH_TAGS,
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
    write,
)
from tests.transactions.objects import KEY, Objects, pieces

pytestmark = pytest.mark.slow


# --- after any interruption ------------------------------------------------------------------------------------------


@pytest.mark.sampled(25, usual=5)
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_repair_keeps_values_and_drops_damage_if_asked(layout: Layout, operation: Operation, place: Place) -> None:
    chunk = in_array(layout)
    for unsized, start in itertools.product((0, 3), every_start(place, layout)):
        is_damaged = before(start, layout) == "incomplete"
        for stopped in every_interruption(start, operation(chunk, parts_of(layout, unsized), place.protocol())):
            value = what_is_read(stopped, chunk)
            objects = Aged(stopped)
            found = repair(objects, layout, place.protocol(first_generation=500))
            assert what_is_read(objects, chunk) == value, stopped.contents
            assert all(map(is_about_chunk, found))
            if value != "damaged":
                assert isinstance(value, bytes | None)
                assert objects.contents == plain_of(value, layout, unsized), stopped.contents
                assert all(each.is_repaired for each in found), found
                assert repair(objects, layout, place.protocol(first_generation=600)) == []
                continue
            # Without `drops_incomplete`, the chunk and its leftovers are kept.
            assert is_damaged
            assert objects.contents == stopped.contents
            assert not any(each.is_repaired for each in found)
            assert repair(objects, layout, place.protocol(first_generation=600)) == found
            dropped = repair(objects, layout, place.protocol(first_generation=700), DROP)
            assert all(each.is_repaired for each in dropped), dropped
            assert objects.contents == {}, stopped.contents
            assert repair(objects, layout, place.protocol(first_generation=800), DROP) == []


@EVERY_PLACE
@pytest.mark.parametrize("operation", [write, delete])
@pytest.mark.parametrize("layout", LAYOUTS[1:3], ids=ids)
def test_interrupted_repair_is_finished_by_the_next_one(layout: Layout, operation: Operation, place: Place) -> None:
    chunk = in_array(layout)
    for start in (holds_old(place, layout, present) for present in ((), tuple(layout), chunk_others(layout))):
        for stopped in every_interruption(start, operation(chunk, parts_of(layout, 3), place.protocol())):
            value = what_is_read(stopped, chunk)
            for limit in itertools.count():
                objects = Stopping(Aged(stopped), limit)
                try:
                    repair(objects, layout, place.protocol(first_generation=500))
                except StoppedError:
                    assert what_is_read(objects, chunk) == value, (stopped.contents, limit)
                    after = Aged(objects)
                    repair(after, layout, place.protocol(first_generation=600))
                    assert isinstance(value, bytes | None)
                    # The object that the clock is read from is then a leftover, and is removed as well.
                    assert after.contents == plain_of(value, layout, 3), (stopped.contents, limit)
                else:
                    break


class StoppedError(Exception):
    """An error that stands for the end of the process."""


class Stopping(Aged):
    """A bucket whose only client ends after a number of requests."""

    def __init__(self, objects: Aged, limit: int) -> None:
        super().__init__(objects)
        self.limit = limit

    def perform(self, request: StepRequest) -> Outcome:
        if len(self.asked) >= self.limit:
            raise StoppedError
        return super().perform(request)


# --- ages ------------------------------------------------------------------------------------------------------------


def dead_writers(place: Place, layout: Layout) -> Iterator[Objects]:
    """Yield every state that an interrupted write or delete leaves, of a chunk that existed or did not."""
    for operation, present in itertools.product((write, delete), ((), tuple(layout))):
        yield from every_interruption(
            holds_old(place, layout, present), operation(in_array(layout), parts_of(layout, 3), place.protocol())
        )


@EVERY_PLACE
@IN_PARTS
def test_objects_younger_than_min_age_are_kept(layout: Layout, place: Place) -> None:
    has_ages = place.has_tags or place.level is Level.EXCLUSIVE
    for stopped in dead_writers(place, layout):
        # By the clock of the store, which differs from the local clock, the writer wrote everything just now.
        objects = Aged(stopped)
        objects.modified = dict.fromkeys(stopped.stored, A_DAY_LATER)
        contents = objects.contents
        found = repair(objects, layout, place.protocol(first_generation=500), DROP, min_age=3600)
        if not has_ages:
            assert all(each.is_repaired for each in found)
            continue
        # Committed writes are completed, and nothing is removed.
        assert objects.contents.keys() >= contents.keys()
        assert {key for key in contents if objects.contents[key] != contents[key]} <= set(in_array(layout).other_keys)
        assert all(each.is_repaired or "; not repaired: younger than min_age" in each.detail for each in found)
        assert {each.problem for each in found if each.is_repaired} <= {Problem.INTERRUPTED}
        # Objects of exactly `min_age` are old enough.
        objects.now += timedelta(hours=1)
        found = repair(objects, layout, place.protocol(first_generation=600), DROP, min_age=timedelta(hours=1))
        assert all(each.is_repaired or is_kept(each, place) for each in found), found


@pytest.mark.parametrize("max_embedded", [0, 1200], ids=["large", "small"])
@EVERY_PLACE
@pytest.mark.parametrize("layout", LAYOUTS[1:4], ids=ids)
def test_committed_writes_are_completed_at_any_age(layout: Layout, place: Place, max_embedded: int) -> None:
    is_safe = place.has_tags and (place.has_unique_etags or max_embedded > 0)
    # Without locks, conditions and registrations, only the age, or the caller, says that the writer has ended.
    min_age = timedelta(0) if place.level is Level.EXCLUSIVE and not is_safe else timedelta(days=1)
    anchor = in_array(layout).anchor_key
    for stopped in killed_writers(place, layout, max_embedded):
        objects = Aged(stopped)
        objects.modified = dict.fromkeys(stopped.stored, A_DAY_LATER)
        found = repair(objects, layout, sized(place, max_embedded, 900), min_age=min_age)
        # As software without parts_store reads the chunk: the parts at their keys.
        plain = {key: data for key, data in objects.contents.items() if key.startswith(KEY)}
        values = [stored_as(layout, nbytes, first) for nbytes, first in WRITES]
        assert plain in values, stopped.contents
        # On an object store, the anchor is the commit.
        assert not place.has_tags or plain[anchor] == stopped.contents[anchor]
        assert all(each.is_repaired for each in found if each.problem is Problem.INTERRUPTED)
        assert what_is_read(objects, in_array(layout)) == b"".join(plain[KEY + suffix] for suffix in layout)


# The size of the part that may have any, and the first byte: of the first write, and of those of two killed writers.
WRITES = [(2, 1), (3, 101), (3, 201)]


def sized(place: Place, max_embedded: int, first_generation: int) -> ChunkProtocol:
    """Return a protocol whose anchors contain the other parts if these are small."""
    by = place.protocol(first_generation)
    return replace(by, rules=replace(by.rules, max_embedded=max_embedded))


def killed_writers(place: Place, layout: Layout, max_embedded: int) -> Iterator[Objects]:
    """Yield every state that one or two interrupted overwrites leave; of a chunk that was created, or overwritten."""
    chunk = in_array(layout)
    start = holds_old(place, layout, tuple(layout))
    again = start.copy()
    again.run(write(chunk, parts_of(layout, *WRITES[0]), sized(place, max_embedded, 300)))
    for old in (start, again):
        first = write(chunk, parts_of(layout, *WRITES[1]), sized(place, max_embedded, 500))
        for stopped in every_interruption(old, first):
            yield stopped
            second = write(chunk, parts_of(layout, *WRITES[2]), sized(place, max_embedded, 700))
            yield from every_interruption(stopped, second)


def is_kept(finding: Finding, place: Place) -> bool:
    """Return whether these are orphans that are kept because a concurrent writer would lose its parts."""
    is_risky = place.has_tags and place.has_unique_etags and place.level is not Level.EXCLUSIVE
    return is_risky and finding.problem is Problem.ORPHANS


@EVERY_PLACE
def test_clock_of_the_store_is_read_from_a_temporary_object(place: Place) -> None:
    layout: Layout = {"": None, ".i": 2}
    has_ages = place.has_tags or place.level is Level.EXCLUSIVE
    objects = Aged(holds_old(place, layout, (".i",)))
    repair(objects, layout, place.protocol(), min_age=3600)
    clocks = [each.key for each in objects.asked if isinstance(each, Put) and each.key.endswith(".clock")]
    assert len(clocks) == (1 if has_ages else 0)
    assert all(key.startswith("a/.parts-txn/") for key in clocks)
    assert not set(clocks) & set(objects.stored)
    # No clock is needed if there is nothing to repair, or if ages do not matter.
    ageless = Aged(holds_old(place, layout, (".i",)))
    assert all(each.is_repaired for each in repair(ageless, layout, place.protocol(), min_age=0))
    assert not any(each.key.endswith(".clock") for each in ageless.asked if isinstance(each, Put))
    for options, start in ((NOTHING_ASKED, holds_old(place, layout, ("",))), (DROP, place.empty())):
        idle = Aged(start)
        repair(idle, layout, place.protocol(), options)
        assert not any(isinstance(each, Put | Delete) for each in idle.asked)


class Meddler(Aged):
    """A bucket in which another repair removes every clock object before it is listed."""

    def perform(self, request: StepRequest) -> Outcome:
        if isinstance(request, List):
            for key in [key for key in self.stored if key.endswith(".clock")]:
                del self.stored[key]
        return super().perform(request)


def test_clock_object_removed_by_another_client_is_read_three_times() -> None:
    layout: Layout = {"": None, ".i": 2}
    place = PLACES[3]
    objects = Meddler(holds_old(place, layout, (".i",)))
    with pytest.raises(ConcurrentWriteError, match="another repair"):
        repair(objects, layout, place.protocol(), min_age=3600)
    assert sum(isinstance(each, Put) for each in objects.asked) == 3


# --- tags ------------------------------------------------------------------------------------------------------------


@WITH_TAGS
@IN_PARTS
def test_retag_changes_untagged_and_partly_tagged_chunks_only(layout: Layout, place: Place) -> None:
    chunk = in_array(layout)
    value, sizes = value_of(layout, 2, 1)
    tags = {"one": Tag("0a" * 16, "c", sizes), "two": Tag("0b" * 16, "c", sizes), "none": None}
    for chosen in itertools.product(tags, repeat=len(layout)):
        start = place.empty()
        for suffix, data, name in zip(layout, pieces(value, sizes), chosen, strict=True):
            start.put(KEY + suffix, data, tags[name])
        objects = Aged(start)
        found = repair(objects, layout, place.protocol(), RETAG)
        is_mixture = {"one", "two"} <= set(chosen)
        is_tagged = len(set(chosen)) == 1 and "none" not in chosen
        assert [each.is_repaired for each in found] == ([] if is_tagged else [not is_mixture]), chosen
        assert objects.contents == stored_as(layout, 2, 1)
        if is_mixture:
            assert objects.stored == start.stored
            continue
        (tag,) = {each.tag for each in objects.stored.values()}
        assert tag is not None
        assert tag.sizes == sizes
        assert what_is_read(objects, chunk) == value
        # Without `retags`, nothing is tagged.
        untouched = Aged(start)
        repair(untouched, layout, place.protocol(), NOTHING_ASKED)
        assert untouched.stored == start.stored


@WITH_TAGS
def test_retag_keeps_incomplete_chunks(place: Place) -> None:
    layout: Layout = {".h": 1, "": None, ".i": 2}
    for present in ({"": b"ab", ".i": b"cd"}, {".h": b"xy", "": b"ab", ".i": b"cd"}):
        start = place.empty()
        for suffix, data in present.items():
            start.put(KEY + suffix, data)
        objects = Aged(start)
        (finding,) = repair(objects, layout, place.protocol(), RETAG)
        assert finding.problem in (Problem.INCOMPLETE, Problem.WRONG_SIZE)
        assert not finding.is_repaired
        assert objects.stored == start.stored


@WITH_TAGS
def test_retag_checks_the_chunk_again(place: Place) -> None:
    layout: Layout = {".h": 1, "": None, ".i": 2}
    chunk = in_array(layout)
    one, two = Tag("0a" * 16, "c", (1, 2, 2)), Tag("0b" * 16, "c", (1, 2, 2))
    meanwhile: list[dict[str, tuple[bytes, Tag | None]]] = [
        {".h": (b"x", one), "": (b"ab", two), ".i": (b"cd", None)},
        {".h": (b"x", None), "": (b"ab", None), ".i": (b"too long", None)},
        {".h": (b"x", None), "": (b"ab", None)},
        {".h": (b"x", one), "": (b"ab", one), ".i": (b"cd", one)},
    ]
    record = ArrayRecord({}, chunk.parts, ChunkKeyEncoding("default", "/", 1), None)
    for parts, problem in itertools.product(meanwhile, (Problem.UNTAGGED, Problem.PARTLY_TAGGED)):
        objects = place.empty()
        for suffix, (data, tag) in parts.items():
            objects.put(KEY + suffix, data, tag)
        before = dict(objects.stored)
        finding = Finding(problem, KEY, chunk.part_keys, "as it was")
        assert objects.run(repair_chunk(ListedChunk(chunk), finding, record, place.protocol(), RETAG)) == finding
        assert objects.stored == before


# --- leftovers -------------------------------------------------------------------------------------------------------


@EVERY_PLACE
@pytest.mark.parametrize("has_chunk", [True, False], ids=["chunk", "no chunk"])
def test_all_kinds_of_leftovers_are_removed(has_chunk: bool, place: Place) -> None:
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    start = place.empty()
    if has_chunk:
        start.run(write(chunk, parts_of(layout, 3), place.protocol()))
    contents = start.contents
    names = [f"{'0c' * 16}.done", "unknown", "0d" * 16] if place.has_tags else ["unknown", f"{'0d' * 16}.0"]
    for name in names:
        start.put(f"{chunk.side_folder}/{name}", b"PARTSTXN1\n\x05\x00\x00\x00{wr")
    start.put(f"a/.parts-txn/{'0e' * 16}.clock", b"")
    objects = Aged(start)
    found = repair(objects, layout, place.protocol(first_generation=500))
    assert {each.problem for each in found} == {Problem.LEFTOVERS}
    assert all(each.is_repaired for each in found)
    assert objects.contents == contents


def test_leftover_lock_is_removed() -> None:
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    for place in (place for place in PLACES if not place.has_tags):
        start = place.empty()
        start.run(write(chunk, parts_of(layout, 3), place.protocol()))
        start.put(f"{chunk.side_folder}.lock", b"")
        objects = Aged(start)
        (finding,) = repair(objects, layout, place.protocol(first_generation=500))
        assert finding.is_repaired
        is_taken = any(isinstance(each, Lock) for each in objects.asked)
        assert is_taken == (place.level is not Level.EXCLUSIVE)
        # The release of a lock removes nothing here; on a real disk it removes the file.
        assert (f"{chunk.side_folder}.lock" in objects.stored) == is_taken


@WITH_TAGS
def test_leftovers_of_a_damaged_chunk_are_kept_until_it_is_dropped(place: Place) -> None:
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    start = holds_old(place, layout, ("",))
    start.put(f"{chunk.side_folder}/{'0c' * 16}", b"may be all that there is of it")
    objects = Aged(start)
    damage, beside = repair(objects, layout, place.protocol())
    assert (damage.problem, beside.problem) == (Problem.INCOMPLETE, Problem.LEFTOVERS)
    assert beside.detail.endswith("; not repaired: the chunk is damaged")
    assert objects.contents == start.contents
    found = repair(objects, layout, place.protocol(), DROP)
    assert [each.is_repaired for each in found] == [True, True]
    assert objects.contents == {}


@WITH_TAGS
def test_staged_copy_with_the_only_correct_part_is_kept(place: Place) -> None:
    for layout in ({"": None, ".i": 2}, {"": 2, ".t": None}):
        chunk = in_array(layout)
        start = place.empty()
        data = parts_of(layout, 3)
        tag = Tag("0b" * 16, "s", tuple(part.nbytes for part in data))
        start.perform(staging.stage(chunk, data, tag))
        start.put(chunk.part_keys[0], bytes(data[0]), tag)
        start.put(chunk.part_keys[1], bytes(data[1]) + b"!", tag)
        value = what_is_read(start, chunk)
        assert value == b"".join(data)
        objects = Aged(start)
        (finding,) = repair(objects, layout, place.protocol(), DROP)
        assert (finding.problem, finding.is_repaired) == (Problem.INTERRUPTED, False)
        assert what_is_read(objects, chunk) == value


def test_staged_part_is_not_read_to_find_its_chunk() -> None:
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    record = ArrayRecord({}, chunk.parts, ChunkKeyEncoding("default", "/", 1), None)
    objects = Objects(has_tags=False)
    said = Journal(chunk.relative, "0b" * 16, (1, 2)).dump()
    for name, expected in {"journal": chunk, f"{'0b' * 16}.0": None, f"{'0b' * 16}.done": None}.items():
        entry = Entry(f"{chunk.side_folder}/{name}", 1, None, LONG_AGO)
        objects.put(entry.key, said)
        objects.asked.clear()
        assert objects.run(find_chunk_beside(entry, "a", record)) == expected
        assert bool(objects.asked) == (expected is not None)
