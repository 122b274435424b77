"""The findings for every state of a small chunk, compared with a table."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from parts_store.engine.steps import Get, Head, List, Listed, Outcome, StepRequest
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from parts_store.format.keys import Chunk, ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.tags import Tag
from parts_store.maintenance.diagnosis import diagnose_chunk, diagnose_chunks
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import group_by_chunk
from parts_store.transactions import staging
from parts_store.transactions.journaled import Journal, journal_key, staged_keys
from tests.maintenance.aged_objects import in_array
from tests.transactions.interruptions import (
    EVERY_PLACE,
    LAYOUTS,
    OPERATIONS,
    PLACES,
    Layout,
    Operation,
    Place,
    every_interruption,
    every_start,
    ids,
    parts_of,
    write,
)
from tests.transactions.objects import KEY, Client, Objects, chunk_of, pieces, protocol, settings


def record_of(layout: Layout) -> ArrayRecord:
    return ArrayRecord({}, chunk_of(layout).parts, ChunkKeyEncoding("default", "/", 1), None)


def findings_in(objects: Objects, layout: Layout) -> list[Finding]:
    """Return the findings for the chunks of the array at `a`."""
    outcome = objects.copy().perform(List("", ""))
    assert isinstance(outcome, Listed)
    record = record_of(layout)
    found = group_by_chunk(outcome.entries, {"a": record})
    steps = diagnose_chunks(
        list(found.chunks.values()), record, protocol(has_tags=objects.has_tags), settings(), with_bytes=False
    )
    return objects.copy().run(steps)


def is_readable(objects: Objects, chunk: Chunk) -> bool:
    """Return whether reading the whole chunk raises nothing."""
    try:
        objects.copy().run(protocol(has_tags=objects.has_tags).read(chunk, [None], settings(), with_anchor=True))
    except (IncompleteChunkError, PartSizeError, ConcurrentWriteError):
        return False
    return True


# --- every state of a chunk on an object store -----------------------------------------------------------------------

OLD, NEW = "0a" * 16, "0b" * 16


@dataclass(frozen=True)
class State:
    """The object at the key of a part: of the old write, of the new write, of another program, or none."""

    of: Literal["old", "new", "foreign"] | None
    has_right_size: bool = True


EVERY_STATE = [State(None), *(State(of, right) for of in ("old", "new", "foreign") for right in (True, False))]


def place_parts(objects: Objects, layout: Layout, states: tuple[State, ...]) -> None:
    sizes = tuple(3 if size is None else size for size in layout.values())
    modes: dict[str | None, Tag] = {"old": Tag(OLD, "c", sizes), "new": Tag(NEW, "s", sizes)}
    for suffix, state, data in zip(layout, states, pieces(bytes(range(sum(sizes))), sizes), strict=True):
        if state.of is not None:
            objects.put(KEY + suffix, data if state.has_right_size else data + b"!", modes.get(state.of))


def by_the_table(layout: Layout, states: Mapping[str, State], anchor: str) -> tuple[Problem, tuple[str, ...]] | None:
    """Return the worst problem of the parts, without a staged copy."""

    def those(condition: object) -> tuple[str, ...]:
        return tuple(suffix for suffix in layout if condition(states[suffix]))  # type: ignore[operator]

    present = those(lambda state: state.of)
    tagged = {states[suffix].of for suffix in present} - {"foreign"}
    # Neither the array nor a tag says the size of such a part.
    wrong = those(lambda state: not state.has_right_size)
    wrong = tuple(suffix for suffix in wrong if layout[suffix] is not None or states[suffix].of != "foreign")
    foreign = those(lambda state: state.of == "foreign")
    rows = [
        (anchor not in present, Problem.ORPHANS, present),
        (len(present) < len(layout), Problem.INCOMPLETE, those(lambda state: not state.of)),
        (bool(wrong), Problem.WRONG_SIZE, wrong[:1]),
        (len(tagged) == 2, Problem.MIXTURE, those(lambda state: state.of != states[anchor].of)),
        (bool(tagged and foreign), Problem.PARTLY_TAGGED, foreign),
        (not tagged, Problem.UNTAGGED, tuple(layout)),
    ]
    found = next((row[1:] for row in rows if row[0]), None)
    return found if found is None or found[1] else None


def with_copy(layout: Layout, states: Mapping[str, State], anchor: str) -> tuple[Problem, tuple[str, ...]] | None:
    """Return the worst problem if the staged copy of the new write exists."""
    alone = by_the_table(layout, states, anchor)
    if alone is None or not alone[0].is_damage or states[anchor].of != "new":
        return alone
    from_copy = {suffix: states[suffix] if suffix == anchor else State("new") for suffix in layout}
    return by_the_table(layout, from_copy, anchor) or (Problem.INTERRUPTED, alone[1])


SMALL: list[Layout] = [
    {"": None, ".i": 2},
    {".h": 1, "": None, ".i": 2},
    {".a": 1, ".b": 2},
    {"": 2, ".t": None},
    {".t": None, "": 2, ".u": 1},
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("copy", ["no copy", "copy", "damaged copy", "copy of another write"])
@pytest.mark.parametrize("layout", SMALL, ids=ids)
def test_diagnosis_of_every_state_on_an_object_store(layout: Layout, copy: str) -> None:
    chunk = in_array(layout)
    anchor = chunk.anchor_key.removeprefix(KEY)
    sizes = tuple(3 if size is None else size for size in layout.values())
    key = staging.key_of(chunk, NEW if copy != "copy of another write" else "0c" * 16)
    for states in itertools.product(EVERY_STATE, repeat=len(layout)):
        objects = Objects(has_tags=True)
        place_parts(objects, layout, states)
        if not objects.stored:
            continue
        if copy != "no copy":
            data = [memoryview(part) for part in pieces(bytes(range(sum(sizes))), sizes)]
            objects.perform(staging.stage(chunk, data, Tag(key.rpartition("/")[2], "s", sizes)))
        if copy == "damaged copy":
            objects.put(key, objects.stored[key].data[:-1], objects.stored[key].tag)
        table = with_copy if copy == "copy" else by_the_table
        expected = table(layout, dict(zip(layout, states, strict=True)), anchor)
        found = findings_in(objects, layout)
        beside = [each for each in found if each.problem is Problem.LEFTOVERS]
        others = [each for each in found if each.problem is not Problem.LEFTOVERS]
        suffixes = [(each.problem, tuple(one.removeprefix(KEY) for one in each.keys)) for each in others]
        assert suffixes == ([] if expected is None else [expected]), states
        assert all(each.chunk_key == KEY and not each.is_repaired and each.detail for each in found)
        is_interrupted = expected is not None and expected[0] is Problem.INTERRUPTED
        has_leftovers = copy != "no copy" and not is_interrupted
        assert [each.keys for each in beside] == ([(key,)] if has_leftovers else []), states
        # Reading fails if and only if the problem is damage.
        is_damaged = any(each.problem.is_damage for each in found)
        assert is_readable(objects, chunk) == (not is_damaged), states


def test_part_size_must_match_the_array_and_the_tag() -> None:
    layout: Layout = {"": None, ".i": 2}
    objects = Objects(has_tags=True)
    # The document was changed: the parts have the size that it says, and not the size in their tags.
    for suffix, data in (("", b"abc"), (".i", b"de")):
        objects.put(KEY + suffix, data, Tag(OLD, "c", (3, 1)))
    (finding,) = findings_in(objects, layout)
    assert (finding.problem, finding.keys) == (Problem.WRONG_SIZE, (f"{KEY}.i",))
    assert finding.detail == "expected 1 bytes, found 2"
    assert not is_readable(objects, in_array(layout))


def test_chunk_of_one_part_is_checked_only_with_leftovers() -> None:
    layout: Layout = {"": None}
    objects = Objects(has_tags=True)
    objects.put(KEY, b"abc")
    assert findings_in(objects, layout) == []
    chunk = in_array(layout)
    objects.put(f"{chunk.side_folder}/{NEW}", b"")
    (finding,) = findings_in(objects, layout)
    assert (finding.problem, finding.keys) == (Problem.LEFTOVERS, (f"{chunk.side_folder}/{NEW}",))


# --- every state of a chunk on a local disk --------------------------------------------------------------------------


def on_disk(
    layout: Layout, has_journal: bool
) -> Iterator[tuple[Objects, dict[str, int | None], dict[str, int | None]]]:
    """Yield a local disk for every state of a chunk, with the sizes of the part and of the staged file."""
    chunk = in_array(layout)
    sizes = {suffix: 3 if size is None else size for suffix, size in layout.items()}
    choices = [(None, size, size + 1) for size in sizes.values()]
    for there in itertools.product(*choices):
        for staged in itertools.product(*choices):
            objects = Objects(has_tags=False)
            for suffix, nbytes in zip(layout, there, strict=True):
                if nbytes is not None:
                    objects.put(KEY + suffix, bytes(nbytes))
            for key, nbytes in zip(staged_keys(chunk, NEW), staged, strict=True):
                if nbytes is not None:
                    objects.put(key, bytes(nbytes))
            if has_journal:
                record = Journal(chunk.relative, NEW, tuple(sizes.values()))
                objects.put(journal_key(chunk), record.dump())
            if any(nbytes is not None for nbytes in there):
                yield objects, dict(zip(layout, there, strict=True)), dict(zip(layout, staged, strict=True))


def on_disk_by_the_table(
    layout: Layout, there: Mapping[str, int | None], anchor: str
) -> tuple[Problem, tuple[str, ...]] | None:
    present = tuple(suffix for suffix in layout if there[suffix] is not None)
    missing = tuple(suffix for suffix in layout if there[suffix] is None)
    wrong = tuple(suffix for suffix in present if layout[suffix] is not None and there[suffix] != layout[suffix])
    if anchor in missing:
        return (Problem.ORPHANS, present) if present else None
    if missing:
        return Problem.INCOMPLETE, missing
    return (Problem.WRONG_SIZE, wrong[:1]) if wrong else None


@pytest.mark.parametrize("has_journal", [False, True], ids=["no journal", "journal"])
@pytest.mark.parametrize("layout", [SMALL[0], SMALL[2], SMALL[3]], ids=ids)
def test_diagnosis_of_every_state_on_a_local_disk(layout: Layout, has_journal: bool) -> None:
    chunk = in_array(layout)
    anchor = chunk.anchor_key.removeprefix(KEY)
    for objects, there, staged in on_disk(layout, has_journal):
        left = tuple(suffix for suffix in layout if staged[suffix] is not None)
        expected = on_disk_by_the_table(layout, there, anchor)
        if has_journal:
            # A staged file takes the place of the part.
            both = {suffix: there[suffix] if staged[suffix] is None else staged[suffix] for suffix in layout}
            expected = on_disk_by_the_table(layout, both, anchor)
            if expected is not None and expected[0] is Problem.ORPHANS:
                expected = Problem.INCOMPLETE, (anchor,)
            keys = dict(zip(layout, staged_keys(chunk, NEW), strict=True))
            if expected is None and left:
                expected = Problem.INTERRUPTED, tuple(keys[suffix] for suffix in left)
        found = findings_in(objects, layout)
        others = [each for each in found if each.problem is not Problem.LEFTOVERS]
        named = [(each.problem, tuple(one.removeprefix(KEY) for one in each.keys)) for each in others]
        assert named == ([] if expected is None else [expected]), objects.contents
        is_interrupted = expected is not None and expected[0] is Problem.INTERRUPTED
        has_leftovers = bool(has_journal or left) and not is_interrupted
        assert (len(found) > len(others)) == has_leftovers, objects.contents
        is_damaged = expected is not None and expected[0].is_damage
        assert is_readable(objects, chunk) == (not is_damaged), objects.contents


# --- writes in progress -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_interrupted_operation_is_never_damage(layout: Layout, operation: Operation, place: Place) -> None:
    chunk = in_array(layout)
    for start in every_start(place, layout):
        if not is_readable(start, chunk):
            continue
        for stopped in every_interruption(start, operation(chunk, parts_of(layout, 3), place.protocol())):
            found = findings_in(stopped, layout)
            assert not any(each.problem.is_damage for each in found), stopped.contents
            result = stopped.copy().run(
                protocol(has_tags=place.has_tags).read(chunk, [None], settings(), with_anchor=True)
            )
            value = None if result is None else b"".join(result.values[0] or ())
            plain = [stopped.stored.get(key) for key in chunk.part_keys]
            parts = [each for each in plain if each is not None]
            # Interrupted if and only if this library reads another value, or other tags, than the parts have.
            is_plain = b"".join(each.data for each in parts) == value and len({each.tag for each in parts}) == 1
            needs_side_objects = value is not None and (None in plain or not is_plain)
            is_interrupted = any(each.problem is Problem.INTERRUPTED for each in found)
            assert is_interrupted == needs_side_objects, stopped.contents
            # Orphans and leftovers are reported.
            if not found and set(chunk.part_keys) & set(stopped.contents):
                assert set(stopped.contents) == set(chunk.part_keys)
                assert value is not None


class Changing(Objects):
    """A bucket in which another client makes a request before every n-th request."""

    def __init__(self, objects: Objects, theirs: Iterator[object], every: int) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored, self.theirs, self.every, self.ours = objects.stored, theirs, every, 0
        self.is_theirs = False
        self._etags = itertools.count(5000)

    def perform(self, request: StepRequest) -> Outcome:
        if not self.is_theirs:
            self.ours += 1
            if self.ours % self.every == 0:
                self.is_theirs = True
                next(self.theirs, None)
                self.is_theirs = False
        return super().perform(request)


def step_by_step(objects: Objects, chunk: Chunk, layout: Layout, place: Place, *, same: bool) -> Iterator[None]:
    """Write again and again, one request at a time, the same bytes or other bytes each time."""
    for number in itertools.count(1):
        first = 101 if same else (number * 7) % 200
        writing = write(chunk, parts_of(layout, 2, first), place.protocol(first_generation=1000 * number))
        writer = Client(objects, writing)
        while writer.take():
            writer.go(1)
            yield


@pytest.mark.sampled(5)
@EVERY_PLACE
@pytest.mark.parametrize("same", [False, True], ids=["others", "the same bytes"])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("layout", [SMALL[0], SMALL[1]], ids=ids)
def test_write_in_progress_is_never_damage(layout: Layout, every: int, same: bool, place: Place) -> None:
    chunk = in_array(layout)
    for head_start in range(12):
        base = place.empty()
        base.run(write(chunk, parts_of(layout, 2, 101), place.protocol()))
        objects = Changing(base, iter(()), every)
        theirs = step_by_step(objects, chunk, layout, place, same=same)
        objects.is_theirs = True
        for _ in itertools.islice(theirs, head_start):
            pass
        objects.is_theirs, objects.theirs = False, theirs
        finding = objects.run(diagnose_chunk(chunk, None, place.protocol()))
        assert finding is None or not finding.problem.is_damage, finding


@pytest.mark.parametrize("layout", [SMALL[0], SMALL[1]], ids=ids)
def test_delete_or_create_during_the_check_on_a_disk_is_not_damage(layout: Layout) -> None:
    chunk = in_array(layout)
    disk = Place(next(iter(PLACES)).level, has_tags=False)

    def there(objects: Objects) -> None:
        objects.run(write(chunk, parts_of(layout, 2), disk.protocol(first_generation=100)))

    def gone(objects: Objects) -> None:
        for key in chunk.part_keys:
            objects.stored.pop(key, None)

    for change, start in ((there, gone), (gone, there)):
        for at in range(1, 20):
            base = disk.empty()
            start(base)

            def theirs(objects: Objects, at: int = at, change: object = change) -> Iterator[None]:
                for _ in range(at - 1):
                    yield
                change(objects)  # type: ignore[operator]
                yield

            objects = Changing(base, iter(()), 1)
            objects.theirs = theirs(objects)
            finding = objects.run(diagnose_chunk(chunk, None, protocol(has_tags=False)))
            assert finding is None or not finding.problem.is_damage, (at, finding)


# --- requests --------------------------------------------------------------------------------------------------------


def test_suspicious_chunks_are_checked_together() -> None:
    layout: Layout = {"": None, ".i": 2}
    record = record_of(layout)
    objects = Objects(has_tags=True)
    for number in range(50):
        # Half of the chunks have no index.
        objects.put(f"a/c/{number}", b"abc", Tag(OLD, "c", (3, 2)))
        if number % 2:
            objects.put(f"a/c/{number}.i", b"de", Tag(OLD, "c", (3, 2)))
    outcome = objects.perform(List("", ""))
    assert isinstance(outcome, Listed)
    listings = list(group_by_chunk(outcome.entries, {"a": record}).chunks.values())
    objects.asked.clear()
    found = objects.run(diagnose_chunks(listings, record, protocol(has_tags=True), settings(), with_bytes=False))
    assert [each.keys for each in found] == [(f"a/c/{number}.i",) for number in range(0, 50, 2)]
    # One batch for the complete chunks; for the others the anchor, the parts, and the anchor again.
    assert objects.batches == 4
    assert objects.count(Head) == 25 * 2 + 25 * 4
    assert objects.count(Get) == 0
