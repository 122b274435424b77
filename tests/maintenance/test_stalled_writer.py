"""A writer that stalls until a repair takes it for dead, goes on, and dies: the chunk is the old one or the new one."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.engine.steps import Steps
from parts_store.errors import ConcurrentWriteError, StoreConfigError
from parts_store.format.keys import Chunk
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import Absent, Seen
from parts_store.transactions.rules import Level
from parts_store.transactions.staging import MAX_STALL
from tests.maintenance.aged_objects import Aged, in_array, repair, what_is_read
from tests.transactions.interruptions import (
    IN_PARTS,
    WITH_TAGS,
    Layout,
    Place,
    holds_old,
    parts_of,
    stored_as,
    value_of,
)
from tests.transactions.objects import Client, Objects, protocol, settings

SHORT = timedelta(minutes=15)


def timed(bucket: Aged, place: Place) -> ChunkProtocol:
    untimed = place.protocol()
    return replace(untimed, rules=replace(untimed.rules, start_watch=bucket.start_watch))


def begin(bucket: Aged, chunk: Chunk, layout: Layout, place: Place, seen: Seen | None) -> Steps[None]:
    return timed(bucket, place).write(chunk, parts_of(layout, 3), seen)


def every_stall(
    start: Objects, chunk: Chunk, layout: Layout, place: Place, *, conditional: bool
) -> Iterator[tuple[Aged, Client]]:
    """The bucket and the writer, for every batch after which it stalls, before it takes the answers."""
    for batches in itertools.count(1):
        bucket = Aged(start)
        seen: Seen | None = None
        if conditional:
            found = bucket.run(protocol(has_tags=True).read(chunk, [None], settings(), with_anchor=True))
            seen = Absent() if found is None else found.version
        writer = Client(bucket, begin(bucket, chunk, layout, place, seen))
        writer.go_batches(batches)
        if writer.has_ended:
            return
        yield bucket, writer


@pytest.mark.sampled(60)
@WITH_TAGS
@IN_PARTS
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("exists", [True, False])
def test_stalled_writer_never_leaves_damage(layout: Layout, place: Place, exists: bool, conditional: bool) -> None:
    chunk = in_array(layout)
    start = holds_old(place, layout, tuple(layout) if exists else ())
    old, new = (value_of(layout, 2, 1)[0] if exists else None), value_of(layout, 3, 101)[0]
    tried = 0
    for more in range(12):
        for bucket, writer in every_stall(start, chunk, layout, place, conditional=conditional):
            bucket.now += SHORT
            repair(bucket, layout, place.protocol(first_generation=500), min_age=SHORT)
            writer.go_batches(more)
            has_ended = not writer.take()
            # It dies here, or has ended.
            tried += 1
            assert what_is_read(bucket, chunk) in ((new,) if has_ended else (old, new))
            repair(bucket, layout, place.protocol(first_generation=600))
            value = what_is_read(bucket, chunk)
            assert value in ((new,) if has_ended else (old, new))
            if value is not None:
                plain = stored_as(layout, 3, 101) if value == new else stored_as(layout, 2, 1)
                assert bucket.contents == plain
    assert tried > 12


@WITH_TAGS
@IN_PARTS
def test_stalled_writer_never_damages_later_writes(layout: Layout, place: Place) -> None:
    chunk = in_array(layout)
    if place.level is Level.EXCLUSIVE:
        return
    start = holds_old(place, layout, tuple(layout))
    new, others = value_of(layout, 3, 101)[0], value_of(layout, 2, 1)[0]
    for bucket, writer in every_stall(start, chunk, layout, place, conditional=False):
        bucket.now += timedelta(hours=25)
        # Another value, and then the same bytes as before: on S3, their ETags come back.
        bucket.run(place.protocol(first_generation=500).write(chunk, parts_of(layout, 1, 50)))
        bucket.run(place.protocol(first_generation=600).write(chunk, parts_of(layout, 2, 1)))
        writer.go(None)
        assert what_is_read(bucket, chunk) in (new, others)
        assert bucket.contents in (stored_as(layout, 3, 101), stored_as(layout, 2, 1))


@WITH_TAGS
def test_stalled_change_is_refused_after_a_write_of_the_same_bytes(place: Place) -> None:
    if place.level is Level.EXCLUSIVE:
        return
    layout: Layout = {"": None, ".i": 2}
    chunk = in_array(layout)
    start = holds_old(place, layout, tuple(layout))
    for at, (bucket, writer) in enumerate(every_stall(start, chunk, layout, place, conditional=True)):
        if at > 0:
            break
        bucket.now += timedelta(hours=1)
        bucket.run(place.protocol(first_generation=600).write(chunk, parts_of(layout, 2, 1)))
        with pytest.raises(ConcurrentWriteError):
            writer.go(None)
        assert what_is_read(bucket, chunk) == value_of(layout, 2, 1)[0]


@pytest.mark.parametrize("min_age", [0.001, 60, 899.9, timedelta(minutes=14)])
def test_a_repair_refuses_an_age_at_which_a_writer_may_only_stall(min_age: float | timedelta) -> None:
    store = ps.PartsStore(MemoryStore())
    ps.create_array(store, "a", shape=(2,), chunks=(2,), dtype="u1", parts=["", ps.Part(".t", size=1)])
    with pytest.raises(StoreConfigError, match="min_age: expected 0 if no client is writing, or at least 900"):
        store.repair(min_age=min_age)
    assert store.repair(min_age=900).is_clean
    assert store.repair(min_age=0).is_clean


def test_the_watch_of_a_store_goes_on_and_is_shorter_than_any_age() -> None:
    watch = ps.PartsStore(MemoryStore()).protocol.rules.start_watch()
    seconds = [watch() for _ in range(100)]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < MAX_STALL < SHORT.total_seconds()
