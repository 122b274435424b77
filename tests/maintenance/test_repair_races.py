"""Repairs beside writers that are at work."""

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from parts_store.engine.steps import (
    Delete,
    Done,
    Lock,
    Outcome,
    Refused,
    StepRequest,
    Steps,
    Wait,
)
from parts_store.transactions.rules import Level
from tests.maintenance.aged_objects import (
    DROP,
    NOTHING_ASKED,
    RETAG,
    Aged,
    chunk_others,
    in_array,
    plain_of,
    repair,
    what_is_read,
)
from tests.transactions.interruptions import (
    LAYOUTS,
    PLACES,
    WITH_TAGS,
    Layout,
    Operation,
    Place,
    delete,
    every_interruption,
    holds_old,
    ids,
    parts_of,
    stored_as,
    value_of,
    write,
)
from tests.transactions.objects import KEY, Client, Objects

pytestmark = pytest.mark.slow


class Racing(Aged):
    """A bucket in which a writer makes some requests before a request of the repair, and the rest after it."""

    def __init__(self, objects: Objects, at: int, steps: Steps[None], count: int | None) -> None:
        super().__init__(objects)
        self.at, self.pause = at, count
        self.writer = Client(self, steps)
        self.is_writer = self.has_raced = False
        self.raced_before: StepRequest | None = None
        self.made = 0
        self.locks: set[str] = set()
        self.locks_of_writer: set[str] = set()

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
        if self.writer.has_ended:
            self.locks_of_writer.clear()

    def perform(self, request: StepRequest) -> Outcome:
        if self.is_writer:
            if isinstance(request, Lock):
                if request.key in self.locks:
                    return Refused()
                self.locks_of_writer.add(request.key)
            return super().perform(request)
        self.made += 1
        if self.made == self.at:
            self.has_raced, self.raced_before = True, request
            self._race(self.pause)
        if isinstance(request, Lock):
            if request.key in self.locks_of_writer:
                return Refused()
            self.locks.add(request.key)
        if isinstance(request, Wait):
            # The repair waits for the holder of the lock, which goes on.
            self._race(None)
            return Done()
        return super().perform(request)

    def end(self) -> None:
        """Let the writer finish."""
        self.locks.clear()
        self._race(None)
        assert self.writer.has_ended


def scenes(place: Place, layout: Layout) -> dict[str, Objects]:
    """Return what a dead writer has left, one example of each kind."""
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
    """Yield races of a repair and an operation, for every point where they can alternate."""
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


# At the level EXCLUSIVE, no repair runs beside a writer.
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
def test_repair_never_loses_a_concurrent_commit(layout: Layout, scene: str, operation: Operation, place: Place) -> None:
    chunk = in_array(layout)
    end = None if operation is delete else value_of(layout, 3, 101)[0]
    lost: set[type] = set()
    for objects, race in every_race(place, layout, scenes(place, layout)[scene], operation):
        found = what_is_read(objects, chunk)
        if found != end:
            lost.add(type(objects.raced_before))
            # The loss is not silent: reading what is left of the chunk raises.
            assert found == "damaged", race
            continue
        # The next repair finishes what this one has left.
        after = Aged(objects)
        repair(after, layout, place.protocol(first_generation=700))
        assert after.contents == plain_of(end, layout, 3), race
    assert lost == set()


@pytest.mark.parametrize("place", RACES, ids=str)
@pytest.mark.parametrize("is_dropped", [False, True], ids=["orphans, min_age=0", "dropped"])
@pytest.mark.parametrize("layout", LAYOUTS[1:3], ids=ids)
def test_repair_that_removes_a_concurrent_write_says_so(layout: Layout, is_dropped: bool, place: Place) -> None:
    chunk, end = in_array(layout), value_of(layout, 3, 101)[0]
    present = (chunk.anchor_key.removeprefix(KEY),) if is_dropped else chunk_others(layout)
    options, min_age = (DROP, timedelta(hours=1)) if is_dropped else (NOTHING_ASKED, timedelta(0))
    lost: set[type] = set()
    for at in itertools.count(1):
        writing = write(chunk, parts_of(layout, 3), place.protocol())
        objects = Racing(holds_old(place, layout, present), at, writing, None)
        repair(objects, layout, place.protocol(first_generation=500), options, min_age=min_age)
        if not objects.has_raced:
            break
        objects.end()
        if (found := what_is_read(objects, chunk)) != end:
            # The caller asked for a chunk to be dropped. Otherwise the loss is not silent.
            assert is_dropped or found == "damaged"
            lost.add(type(objects.raced_before))
    # A DELETE request has no condition. Writers that are registered are safe from the removal of orphans.
    assert lost == ({Delete} if place.has_tags and (is_dropped or place.has_unique_etags) else set())


@WITH_TAGS
def test_retag_does_not_overwrite_a_concurrent_write(place: Place) -> None:
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
        # The write was finished before the repair, which keeps its value.
        after = Aged(objects)
        repair(after, layout, place.protocol(first_generation=700))
        assert what_is_read(after, chunk) == value_of(layout, 3, 101)[0], at
    else:
        pytest.fail("the repair never ended before the writer began")
