"""Repair of what writers that stopped have left, after any of their requests, and beside writers that live."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parts_store.engine.steps import (
    Delete,
    Done,
    Entry,
    List,
    Listed,
    Lock,
    Outcome,
    Put,
    Refused,
    Request,
    Steps,
    Wait,
)
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from parts_store.format.keys import Chunk, ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.tags import Tag
from parts_store.maintenance import execution
from parts_store.maintenance.repair import RepairOptions, find_chunk_beside, repair_chunk
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk, Survey, group_by_chunk
from parts_store.transactions import staging
from parts_store.transactions.journal import Journal
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.rules import Level
from tests.transactions.interruptions import (
    LAYOUTS,
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
    write,
)
from tests.transactions.objects import KEY, Objects, Returned, chunk_of, next_batch, pieces, protocol, settings

pytestmark = pytest.mark.slow

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
A_DAY_LATER = LONG_AGO + timedelta(days=1)
NOTHING_ASKED = RepairOptions(drops_incomplete=False, retags=False)
DROP = RepairOptions(drops_incomplete=True, retags=False)
RETAG = RepairOptions(drops_incomplete=False, retags=True)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES, ids=str)
WITH_TAGS = pytest.mark.parametrize("place", [place for place in PLACES if place.has_tags], ids=str)
IN_PARTS = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)


class Aged(Objects):
    """Objects with a clock: what is there at first is long ago, what is written is a day later."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored = dict(objects.stored)
        self._etags = itertools.count(5000)
        self.now = A_DAY_LATER
        self.modified: dict[str, datetime] = {}

    def put(self, key: str, data: bytes, tag: Tag | None = None) -> None:
        super().put(key, data, tag)
        self.modified[key] = self.now

    def perform(self, request: Request) -> Outcome:
        outcome = super().perform(request)
        if not isinstance(outcome, Listed):
            return outcome
        return Listed(tuple(replace(each, modified=self.modified.get(each.key, LONG_AGO)) for each in outcome.entries))

    def carry_out[T](self, steps: Steps[T]) -> T:
        return self.run(steps)


def in_array(layout: Layout) -> Chunk:
    """The chunk, in an array at `a`."""
    return replace(chunk_of(layout), array="a")


def repair(
    objects: Aged,
    layout: Layout,
    by: ChunkProtocol,
    options: RepairOptions = NOTHING_ASKED,
    min_age: timedelta | float = 0,
) -> list[Finding]:
    """What a repair of the array at `a` says, at first that nobody is writing; the objects change."""
    arrays = {"a": ArrayRecord({}, chunk_of(layout).parts, ChunkKeyEncoding("default", "/", 1), None)}
    listed = objects.perform(List("", ""))
    assert isinstance(listed, Listed)
    survey = Survey(arrays, group_by_chunk(listed.entries, arrays), ())
    found = execution.verify(objects, survey, by, settings())
    return execution.repair(objects, survey, found, by, min_age=min_age, options=options)


def what_is_read(objects: Objects, chunk: Chunk) -> bytes | str | None:
    reading = protocol(has_tags=objects.has_tags)
    try:
        result = objects.copy().run(reading.read(chunk, [None], settings(), with_anchor=True))
    except (IncompleteChunkError, PartSizeError):
        return "damaged"
    return None if result is None else b"".join(result.values[0] or ())


def plain_of(value: bytes | None, layout: Layout, unsized: int) -> dict[str, bytes]:
    """The objects that are this value, and nothing beside it."""
    if value is None:
        return {}
    old, new = value_of(layout, 2, 1)[0], value_of(layout, unsized, 101)[0]
    return {old: stored_as(layout, 2, 1), new: stored_as(layout, unsized, 101)}[value]


def is_about_chunk(finding: Finding) -> bool:
    return finding.chunk_key == KEY or "/.parts-txn/" in finding.chunk_key


# --- after any interruption ------------------------------------------------------------------------------------------


@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_repair_leaves_what_was_read_before_it_alone_and_plain(
    layout: Layout, operation: Operation, place: Place
) -> None:
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
            # Nobody asked for more: the chunk and what is beside it stay.
            assert is_damaged
            assert objects.contents == stopped.contents
            assert not any(each.is_repaired for each in found)
            assert repair(objects, layout, place.protocol(first_generation=600)) == found


@EVERY_PLACE
@pytest.mark.parametrize("operation", [write, delete])
@IN_PARTS
def test_what_cannot_be_read_is_dropped_if_that_is_asked_for_and_nothing_else_is(
    layout: Layout, operation: Operation, place: Place
) -> None:
    chunk = in_array(layout)
    for start in every_start(place, layout):
        for stopped in every_interruption(start, operation(chunk, parts_of(layout, 3), place.protocol())):
            value = what_is_read(stopped, chunk)
            objects = Aged(stopped)
            found = repair(objects, layout, place.protocol(first_generation=500), DROP)
            assert all(each.is_repaired for each in found), found
            left = None if isinstance(value, str) else value
            assert objects.contents == plain_of(left, layout, 3), stopped.contents
            assert repair(objects, layout, place.protocol(first_generation=600), DROP) == []


@EVERY_PLACE
@pytest.mark.parametrize("operation", [write, delete])
@pytest.mark.parametrize("layout", LAYOUTS[1:3], ids=ids)
def test_a_repair_that_stops_anywhere_changes_nothing_of_what_is_read_and_the_next_one_ends_it(
    layout: Layout, operation: Operation, place: Place
) -> None:
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
                    # The clock's own object is a stray then, and goes too.
                    assert after.contents == plain_of(value, layout, 3), (stopped.contents, limit)
                else:
                    break


def chunk_others(layout: Layout) -> tuple[str, ...]:
    """The suffixes of the parts that are not the anchor."""
    return tuple(key.removeprefix(KEY) for key in chunk_of(layout).other_keys)


class StoppedError(Exception):
    """The process has ended."""


class Stopping(Aged):
    """A bucket whose only client ends after so many requests."""

    def __init__(self, objects: Aged, limit: int) -> None:
        super().__init__(objects)
        self.limit = limit

    def perform(self, request: Request) -> Outcome:
        if len(self.asked) >= self.limit:
            raise StoppedError
        return super().perform(request)


# --- ages ------------------------------------------------------------------------------------------------------------


def dead_writers(place: Place, layout: Layout) -> Iterator[Objects]:
    """Everything that a dead writer, or a dead deleter, leaves of a chunk that was there, or was not."""
    for operation, present in itertools.product((write, delete), ((), tuple(layout))):
        yield from every_interruption(
            holds_old(place, layout, present), operation(in_array(layout), parts_of(layout, 3), place.protocol())
        )


@EVERY_PLACE
@IN_PARTS
def test_what_is_younger_than_asked_for_by_the_stores_clock_is_left_alone(layout: Layout, place: Place) -> None:
    has_ages = place.has_tags or place.level is Level.EXCLUSIVE
    for stopped in dead_writers(place, layout):
        # Everything that the writer wrote is of the very moment by the store's clock, which is far from ours.
        objects = Aged(stopped)
        objects.modified = dict.fromkeys(stopped.stored, A_DAY_LATER)
        contents = objects.contents
        found = repair(objects, layout, place.protocol(first_generation=500), DROP, min_age=3600)
        if not has_ages:
            assert all(each.is_repaired for each in found)
            continue
        assert objects.contents == contents
        assert not any(each.is_repaired for each in found)
        assert all(each.detail.endswith("; not repaired: younger than min_age") for each in found)
        # As old as asked for is old enough.
        objects.now += timedelta(hours=1)
        found = repair(objects, layout, place.protocol(first_generation=600), DROP, min_age=timedelta(hours=1))
        assert all(each.is_repaired or is_kept(each, place) for each in found), found


def is_kept(finding: Finding, place: Place) -> bool:
    """Whether these are orphans where somebody who writes just now would lose his parts."""
    is_risky = place.has_tags and place.has_unique_etags and place.level is not Level.EXCLUSIVE
    return is_risky and finding.problem is Problem.ORPHANS


@EVERY_PLACE
def test_the_time_is_that_of_an_object_which_is_written_for_it_and_removed(place: Place) -> None:
    layout: Layout = {"": None, ".i": 2}
    has_ages = place.has_tags or place.level is Level.EXCLUSIVE
    objects = Aged(holds_old(place, layout, (".i",)))
    repair(objects, layout, place.protocol(), min_age=3600)
    clocks = [each.key for each in objects.asked if isinstance(each, Put) and each.key.endswith(".clock")]
    assert len(clocks) == (1 if has_ages else 0)
    assert all(key.startswith("a/.parts-txn/") for key in clocks)
    assert not set(clocks) & set(objects.stored)
    # None is needed where there is nothing to do, or all is old enough.
    ageless = Aged(holds_old(place, layout, (".i",)))
    assert all(each.is_repaired for each in repair(ageless, layout, place.protocol(), min_age=0))
    assert not any(each.key.endswith(".clock") for each in ageless.asked if isinstance(each, Put))
    for options, start in ((NOTHING_ASKED, holds_old(place, layout, ("",))), (DROP, place.empty())):
        idle = Aged(start)
        repair(idle, layout, place.protocol(), options)
        assert not any(isinstance(each, Put | Delete) for each in idle.asked)


@pytest.mark.parametrize("min_age", [float("inf"), timedelta.max, 1e300])
def test_no_age_is_too_great(min_age: Any) -> None:
    layout: Layout = {"": None, ".i": 2}
    place = PLACES[3]
    objects = Aged(holds_old(place, layout, (".i",)))
    (finding,) = repair(objects, layout, place.protocol(), min_age=min_age)
    assert not finding.is_repaired


class Meddler(Aged):
    """A bucket in which another repair removes every clock before it is looked at."""

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, List):
            for key in [key for key in self.stored if key.endswith(".clock")]:
                del self.stored[key]
        return super().perform(request)


def test_a_clock_that_somebody_removes_is_looked_at_three_times() -> None:
    layout: Layout = {"": None, ".i": 2}
    place = PLACES[3]
    objects = Meddler(holds_old(place, layout, (".i",)))
    with pytest.raises(ConcurrentWriteError, match="another repair"):
        repair(objects, layout, place.protocol(), min_age=3600)
    assert sum(isinstance(each, Put) for each in objects.asked) == 3


# --- tags ------------------------------------------------------------------------------------------------------------


@WITH_TAGS
@IN_PARTS
def test_retag_makes_one_write_of_what_is_partly_or_not_tagged_and_of_nothing_else(
    layout: Layout, place: Place
) -> None:
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
        # Without being asked, nothing is tagged.
        untouched = Aged(start)
        repair(untouched, layout, place.protocol(), NOTHING_ASKED)
        assert untouched.stored == start.stored


@WITH_TAGS
def test_retag_leaves_what_is_missing_or_of_a_wrong_size_as_it_is(place: Place) -> None:
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
def test_retag_believes_what_is_there_and_not_what_was_found_before(place: Place) -> None:
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


@WITH_TAGS
def test_a_chunk_that_somebody_writes_meanwhile_is_not_tagged_anew(place: Place) -> None:
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    if place.level is Level.EXCLUSIVE:
        return
    for at in range(4, 40):
        start = place.empty()
        for key, data in stored_as(layout, 2, 1).items():
            start.put(key, data)
        objects = Racing(start, at, write(chunk, parts_of(layout, 3), place.protocol()), None)
        repair(objects, layout, place.protocol(first_generation=500), RETAG)
        if not objects.has_raced:
            break
        # The write was finished before the repair, whose tags are the same value's or not written.
        after = Aged(objects)
        repair(after, layout, place.protocol(first_generation=700))
        assert what_is_read(after, chunk) == value_of(layout, 3, 101)[0], at
    else:
        pytest.fail("the repair never ended before the writer began")


# --- what is beside a chunk ------------------------------------------------------------------------------------------


@EVERY_PLACE
@pytest.mark.parametrize("has_chunk", [True, False], ids=["chunk", "no chunk"])
def test_lone_marks_locks_clocks_and_what_nobody_knows_are_removed(has_chunk: bool, place: Place) -> None:
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


def test_a_lock_is_removed_by_who_takes_it_and_by_hand_where_nobody_takes_any() -> None:
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
        # Here, giving it back removes nothing; on a real disk it does.
        assert (f"{chunk.side_folder}.lock" in objects.stored) == is_taken


@WITH_TAGS
def test_what_is_beside_a_damaged_chunk_stays_until_the_chunk_is_dropped(place: Place) -> None:
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
def test_a_copy_that_alone_has_a_part_in_its_right_size_stays(place: Place) -> None:
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


def test_a_part_that_is_staged_is_not_read_to_find_out_whose_it_is() -> None:
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


# --- beside writers that live ----------------------------------------------------------------------------------------


@dataclass
class Client:
    """Steps, one request at a time."""

    objects: Objects
    steps: Steps[None]
    waiting: list[Request] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    has_begun: bool = False
    has_ended: bool = False
    locks: set[str] = field(default_factory=set)

    def go(self, count: int | None) -> None:
        """The next requests; all of them if None; none beyond a lock that somebody holds."""
        while not self.has_ended and count != 0:
            if not self.waiting:
                batch = next_batch(self.steps, tuple(self.outcomes) if self.has_begun else None)
                self.has_begun, self.outcomes = True, []
                if isinstance(batch, Returned):
                    self.has_ended = True
                    self.locks.clear()
                    return
                self.waiting = list(batch)
            request = self.waiting[0]
            outcome = self.objects.perform(request)
            if isinstance(outcome, Refused) and isinstance(request, Lock):
                return
            if isinstance(request, Lock):
                self.locks.add(request.key)
            self.waiting.pop(0)
            self.outcomes.append(outcome)
            count = None if count is None else count - 1


class Racing(Aged):
    """A bucket in which a writer makes so many requests before one of the repair's, and the rest after its end."""

    def __init__(self, objects: Objects, at: int, steps: Steps[None], count: int | None) -> None:
        super().__init__(objects)
        self.at, self.pause = at, count
        self.writer = Client(self, steps)
        self.is_writer = self.has_raced = False
        self.raced_before: Request | None = None
        self.made = 0
        self.locks: set[str] = set()

    def run[T](self, steps: Steps[T]) -> T:
        try:
            return super().run(steps)
        finally:
            if not self.is_writer:
                self.locks.clear()

    def _race(self, count: int | None) -> None:
        self.is_writer = True
        self.writer.go(count)
        self.is_writer = False

    def perform(self, request: Request) -> Outcome:
        if self.is_writer:
            is_held = isinstance(request, Lock) and request.key in self.locks
            return Refused() if is_held else super().perform(request)
        self.made += 1
        if self.made == self.at:
            self.has_raced, self.raced_before = True, request
            self._race(self.pause)
        if isinstance(request, Lock):
            if request.key in self.writer.locks:
                return Refused()
            self.locks.add(request.key)
        if isinstance(request, Wait):
            # We wait for who holds a lock, and he goes on.
            self._race(None)
            return Done()
        return super().perform(request)

    def end(self) -> None:
        """What is left of the writer."""
        self.locks.clear()
        self._race(None)
        assert self.writer.has_ended


def scenes(place: Place, layout: Layout) -> dict[str, Objects]:
    """What a dead writer has left, once of each kind."""
    chunk = in_array(layout)
    found: dict[str, Objects] = {}
    whole = holds_old(place, layout, tuple(layout))
    steps = write(chunk, parts_of(layout, 1, 201), place.protocol(first_generation=900))
    for stopped in every_interruption(whole, steps):
        kind = "committed" if what_is_read(stopped, chunk) != what_is_read(whole, chunk) else "staged"
        if len(stopped.stored) > len(layout):
            found[kind] = stopped
    return {"whole": whole, "orphans": holds_old(place, layout, chunk_others(layout)), **found}


def every_race(
    place: Place, layout: Layout, scene: Objects, operation: Operation
) -> Iterator[tuple[Racing, tuple[int, int | None]]]:
    """A repair, and an operation that begins before any of its requests, and goes on after any of its own."""
    chunk = in_array(layout)
    for count in [*range(1, 2 * len(layout) + 10), None]:
        for at in itertools.count(1):
            steps = operation(chunk, parts_of(layout, 3), place.protocol())
            objects = Racing(scene, at, steps, count)
            repair(objects, layout, place.protocol(first_generation=500), min_age=timedelta(hours=1))
            if not objects.has_raced:
                break
            objects.end()
            yield objects, (at, count)


# Where there is one writer at a time, it is not the repair.
RACES = [place for place in PLACES if place.level is not Level.EXCLUSIVE]


@pytest.mark.parametrize("place", RACES, ids=str)
@pytest.mark.parametrize(
    ("layout", "scene", "operation"),
    [
        *(
            (LAYOUTS[1], *each)
            for each in itertools.product(["whole", "orphans", "staged", "committed"], [write, delete])
        ),
        *((LAYOUTS[2], scene, write) for scene in ("orphans", "committed")),
    ],
)
def test_a_repair_beside_a_writer_never_loses_what_the_writer_has_committed(
    layout: Layout, scene: str, operation: Operation, place: Place
) -> None:
    chunk = in_array(layout)
    end = None if operation is delete else value_of(layout, 3, 101)[0]
    lost: set[type] = set()
    for objects, race in every_race(place, layout, scenes(place, layout)[scene], operation):
        found = what_is_read(objects, chunk)
        if found != end:
            lost.add(type(objects.raced_before))
            # Never silently: what is left of the chunk says so.
            assert found == "damaged", race
            continue
        # And what it left alone, the next one ends.
        after = Aged(objects)
        repair(after, layout, place.protocol(first_generation=700))
        assert after.contents == plain_of(end, layout, 3), race
    assert lost == set()


@pytest.mark.parametrize("place", RACES, ids=str)
def test_who_says_that_nobody_writes_while_somebody_does_may_lose_a_chunk_but_never_silently(place: Place) -> None:
    layout, lost = LAYOUTS[1], set()
    chunk, end = in_array(layout), value_of(layout, 3, 101)[0]
    for at in itertools.count(1):
        objects = Racing(
            scenes(place, layout)["orphans"], at, write(chunk, parts_of(layout, 3), place.protocol()), None
        )
        repair(objects, layout, place.protocol(first_generation=500), min_age=0)
        if not objects.has_raced:
            break
        objects.end()
        if what_is_read(objects, chunk) != end:
            assert what_is_read(objects, chunk) == "damaged"
            lost.add(type(objects.raced_before))
    # A delete knows no conditions, and there writers do not look for each other.
    assert lost == ({Delete} if place.has_tags and place.has_unique_etags else set())


@pytest.mark.parametrize("place", RACES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS[1:3], ids=ids)
def test_a_chunk_that_is_whole_again_by_the_time_it_would_be_dropped_stays(layout: Layout, place: Place) -> None:
    chunk = in_array(layout)
    end = value_of(layout, 3, 101)[0]
    lost: set[type] = set()
    for at in itertools.count(1):
        scene = holds_old(place, layout, (chunk.anchor_key.removeprefix(KEY),))
        objects = Racing(scene, at, write(chunk, parts_of(layout, 3), place.protocol()), None)
        repair(objects, layout, place.protocol(first_generation=500), DROP, min_age=timedelta(hours=1))
        if not objects.has_raced:
            break
        objects.end()
        if what_is_read(objects, chunk) != end:
            lost.add(type(objects.raced_before))
    # The same as for orphans; but here no writer can know, and the caller asked for it.
    assert lost == ({Delete} if place.has_tags else set())
