"""The journal of a local disk: it decides what the chunk is, until a client has finished its write."""

import itertools
from collections.abc import Iterator

import pytest

from parts_store.engine.steps import (
    Delete,
    Found,
    IfAbsent,
    Lock,
    Move,
    Outcome,
    Put,
    Refused,
    StepRequest,
    Steps,
    Wait,
)
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Span
from parts_store.transactions import journaled
from parts_store.transactions.journaled import Journal, journal_key, staged_keys
from parts_store.transactions.rules import Level
from tests.transactions.interruptions import (
    EVERY_LAYOUT,
    IN_PARTS,
    Layout,
    Operation,
    Place,
    delete,
    every_interruption,
    every_start,
    holds_old,
    parts_of,
    stored_as,
    value_of,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import Hooked, Objects, chunk_of, protocol, settings

DISK = Place(Level.WRITERS, has_tags=False)
EVERY_LEVEL = pytest.mark.parametrize("level", Level, ids=lambda level: level.value)


@EVERY_LEVEL
@pytest.mark.parametrize("operation", [write, write_if_absent, delete])
@EVERY_LAYOUT
def test_changes_hold_the_chunk_lock_unless_exclusive(layout: Layout, operation: Operation, level: Level) -> None:
    chunk = chunk_of(layout)
    place = Place(level, has_tags=False)
    for start in every_start(place, layout):
        start.run(operation(chunk, parts_of(layout, 3), place.protocol()))
        locks = [request for request in start.asked if isinstance(request, Lock)]
        if level is Level.EXCLUSIVE:
            assert locks == []
        else:
            assert [lock.key for lock in locks] == [f"{chunk.side_folder}.lock"]
            assert isinstance(start.asked[0], Lock)


@IN_PARTS
def test_overwrite_is_staged_then_journaled_then_moved(layout: Layout) -> None:
    chunk = chunk_of(layout)
    objects = holds_old(DISK, layout, tuple(layout))
    objects.run(write(chunk, parts_of(layout, 3), DISK.protocol()))
    changes = [request for request in objects.asked if isinstance(request, Put | Move | Delete)]
    (generation,) = {put.tag.generation for put in changes if isinstance(put, Put) and put.tag}
    staged = staged_keys(chunk, generation)
    kinds = [type(request).__name__ for request in changes]
    assert kinds == ["Put"] * len(layout) + ["Put"] + ["Move"] * len(layout) + ["Delete"]
    assert [put.key for put in changes if isinstance(put, Put)] == [*staged, journal_key(chunk)]
    commit = changes[len(layout)]
    assert isinstance(commit, Put)
    assert commit.condition == IfAbsent()
    moves = {move.source: move.target for move in changes if isinstance(move, Move)}
    assert moves == dict(zip(staged, chunk.part_keys, strict=True))
    # Every byte is written once: the rest are renames.
    nbytes = sum(memoryview(put.data).nbytes for put in changes[: len(layout)] if isinstance(put, Put))
    assert nbytes == len(value_of(layout, 3, 101)[0])


@EVERY_LAYOUT
def test_new_chunk_needs_no_journal_and_its_anchor_comes_last(layout: Layout) -> None:
    for operation in (write, write_if_absent):
        objects = DISK.empty()
        objects.run(operation(chunk_of(layout), parts_of(layout, 3), DISK.protocol()))
        moves = [request for request in objects.asked if isinstance(request, Move)]
        assert moves[-1].target == chunk_of(layout).anchor_key
        assert not any(isinstance(each, Put) and each.key.endswith(".journal") for each in objects.asked)


@IN_PARTS
def test_writes_stage_under_different_names(layout: Layout) -> None:
    # A cancelled write may go on for a while, and must not overwrite the staged parts of another write.
    chunk = chunk_of(layout)
    objects = holds_old(DISK, layout, tuple(layout))
    by = DISK.protocol()
    staged = []
    for _ in range(3):
        objects.asked.clear()
        objects.run(by.write(chunk, parts_of(layout, 3)))
        staged += [move.source for move in objects.asked if isinstance(move, Move)]
    assert len(set(staged)) == 3 * len(layout)
    assert all(key.startswith(f"{chunk.side_folder}.") for key in staged)


@IN_PARTS
def test_readers_and_size_follow_the_journal(layout: Layout) -> None:
    chunk = chunk_of(layout)
    new, _ = value_of(layout, 3, 101)
    seen = 0
    start = holds_old(DISK, layout, tuple(layout))
    for stopped in every_interruption(start, write(chunk, parts_of(layout, 3), DISK.protocol())):
        if journal_key(chunk) in stopped.stored:
            seen += 1
            assert what_is_read(stopped, chunk, None) == new
            assert stopped.copy().run(protocol(has_tags=False).size(chunk)) == len(new)
            result = stopped.copy().run(protocol(has_tags=False).read(chunk, [None], settings()))
            assert result is not None
            # A staged part keeps its ETag when it is moved, so a client that has read it may change the chunk.
            after = stopped.copy()
            after.run(DISK.protocol(100).write(chunk, parts_of(layout, 1, 201), result.version))
            assert after.contents == stored_as(layout, 1, 201)
    assert seen > len(layout)


@IN_PARTS
def test_next_operation_and_recovery_finish_a_journal(layout: Layout) -> None:
    chunk = chunk_of(layout)
    start = holds_old(DISK, layout, tuple(layout))
    for stopped in every_interruption(start, write(chunk, parts_of(layout, 3), DISK.protocol())):
        is_interrupted = journal_key(chunk) in stopped.stored
        recovered = stopped.copy()
        assert recovered.run(journaled.recover(chunk)) is is_interrupted
        if is_interrupted:
            assert recovered.contents == stored_as(layout, 3)
        assert recovered.run(journaled.recover(chunk)) is False
        # Also one that stops as well, any number of times.
        for again in every_interruption(stopped, recovery(chunk)):
            assert what_is_read(again, chunk, None) == what_is_read(stopped, chunk, None)
        # A write if absent finds the chunk, in order.
        absent = stopped.copy()
        absent.run(write_if_absent(chunk, parts_of(layout, 1, 201), DISK.protocol(100)))
        assert what_is_read(absent, chunk, None) == what_is_read(stopped, chunk, None)
        assert journal_key(chunk) not in absent.stored


def recovery(chunk: Chunk) -> Steps[None]:
    yield from journaled.recover(chunk)


def held(refusals: int) -> Hooked:
    """Return a disk on which another process holds the lock for some time."""
    left = iter(range(refusals))

    def answer(request: StepRequest) -> Outcome | None:
        return Refused() if isinstance(request, Lock) and next(left, None) is not None else None

    return Hooked(DISK.empty(), answer)


@pytest.mark.parametrize("refusals", [0, 1, 5, 1000])
def test_writer_waits_for_a_held_lock(refusals: int) -> None:
    layout: Layout = {"": None, ".i": 2}
    objects = held(refusals)
    objects.run(write(chunk_of(layout), parts_of(layout, 3), DISK.protocol()))
    assert objects.contents == stored_as(layout, 3)
    waits = [request.repeat for request in objects.asked if isinstance(request, Wait)]
    # Longer each time, but never so long that it is not noticed when the lock is free.
    assert waits == [min(repeat, 5) for repeat in range(1, refusals + 1)]


def test_lock_that_is_never_released_raises_after_the_last_wait() -> None:
    layout: Layout = {"": None, ".i": 2}
    for operation in (write, write_if_absent, delete):
        waits = itertools.count(1)

        def answer(request: StepRequest, waits: Iterator[int] = waits) -> Outcome | None:
            """Never release the lock, and refuse a wait for other clients after some waits."""
            is_over = isinstance(request, Wait) and request.is_for_others and next(waits) > 10
            return Refused() if isinstance(request, Lock) or is_over else None

        objects = Hooked(DISK.empty(), answer)
        with pytest.raises(ConcurrentWriteError, match="held its lock for five minutes"):
            objects.run(operation(chunk_of(layout), parts_of(layout, 3), DISK.protocol()))
        assert sum(isinstance(each, Wait) for each in objects.asked) == 11
        assert objects.contents == {}


@IN_PARTS
def test_exclusive_writer_notices_another_journal(layout: Layout) -> None:
    place = Place(Level.EXCLUSIVE, has_tags=False)
    chunk = chunk_of(layout)

    def answer(request: StepRequest) -> None:
        """Let another process commit just before this one."""
        if isinstance(request, Put) and request.key == journal_key(chunk):
            objects.put(request.key, Journal(chunk.relative, "f" * 32, (1,) * len(layout)).dump())

    objects = Hooked(holds_old(place, layout, tuple(layout)), answer)
    with pytest.raises(ConcurrentWriteError, match="although concurrency='exclusive' promises a single writer"):
        objects.run(write(chunk, parts_of(layout, 3), place.protocol()))
    assert {key: objects.contents[key] for key in chunk.part_keys} == stored_as(layout, 2, 1)


def found(data: bytes) -> Found:
    return Found(data, Span(0, len(data)), len(data), "etag", None, None)


# --- a journal that a power failure has cut off -----------------------------------------------------------------------

UNREADABLE = "nothing is wrong"


@pytest.mark.parametrize("rest", [b"", b"\0", b"\xff", b" "])
def test_a_journal_that_is_cut_off_is_not_valid(rest: bytes) -> None:
    journal = Journal("c/0/0", "0123456789abcdef" * 2, (3, 260))
    whole = journal.dump()
    assert Journal.parse(found(whole)) == journal
    for length in range(len(whole)):
        # The blocks of a file that were not written are absent, or have any content.
        assert Journal.parse(found(whole[:length] + rest * (len(whole) - length))) is None


def torn(layout: Layout, chunk: Chunk) -> Iterator[Objects]:
    """Yield the disk after each step of an overwrite that has a journal, with the journal cut off."""
    start = holds_old(DISK, layout, tuple(layout))
    for stopped in every_interruption(start, write(chunk, parts_of(layout, 3), DISK.protocol())):
        if (journal := stopped.stored.get(journal_key(chunk))) is not None:
            for length in (0, len(journal.data) // 2, len(journal.data) - 1):
                objects = stopped.copy()
                objects.put(journal_key(chunk), journal.data[:length])
                yield objects


@IN_PARTS
@pytest.mark.parametrize("operation", [write, write_if_absent, delete])
def test_an_interrupted_change_of_a_chunk_with_a_torn_journal_reveals_no_mixture(
    layout: Layout, operation: Operation
) -> None:
    chunk = chunk_of(layout)
    new, _ = value_of(layout, 1, 201)
    after: dict[Operation, bytes | str | None] = {write: new, write_if_absent: UNREADABLE, delete: None}
    allowed = after[operation]
    count = 0
    for objects in torn(layout, chunk):
        assert what_is_read(objects, chunk, None) == UNREADABLE
        steps = operation(chunk, parts_of(layout, 1, 201), DISK.protocol(100))
        for stopped in every_interruption(objects, steps):
            assert what_is_read(stopped, chunk, None) in (UNREADABLE, allowed)
            count += 1
        assert what_is_read(stopped, chunk, None) == allowed
    assert count > 10


@IN_PARTS
def test_an_interrupted_write_of_a_deleted_chunk_with_a_torn_journal_can_be_repeated(layout: Layout) -> None:
    chunk = chunk_of(layout)
    for objects in torn(layout, chunk):
        objects.stored.pop(chunk.anchor_key, None)
        for stopped in every_interruption(objects, write(chunk, parts_of(layout, 1, 201), DISK.protocol(100))):
            stopped.run(write(chunk, parts_of(layout, 3, 101), DISK.protocol(200)))
            written = {key: stopped.contents[key] for key in chunk.part_keys}
            assert written == stored_as(layout, 3, 101)
            assert journal_key(chunk) not in stopped.stored
