"""Writers and readers, and the check of what is stored at the end."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer

from integration.breaking import keys_of, read_plainly, repair
from integration.chaos.board import Session
from integration.chaos.plan import (
    ALLOWED,
    NUMBERS,
    PROTOTYPE,
    RAW_SUFFIXES,
    SHARD_SUFFIXES,
    SLOT_ITEMS,
    SLOTS,
    Lane,
    number_in,
    slots_of,
    value_of,
    written_by,
)
from parts_store import PartsStore
from parts_store.errors import ConcurrentWriteError


def write_lane(session: Session, lane: Lane) -> None:
    """Write one number after the other, for ever."""
    session.open(lane)
    array = _open_shards(session, "r+") if lane.is_sharded else None
    while True:
        try:
            if array is None:
                _write_raw(session, lane)
            elif lane.kind == "shard":
                _write_shard(session, lane, array)
            else:
                _write_inner(session, lane, array)
        except ALLOWED:
            session.board.give_up(lane.number, session.board.started(lane.number))


def _open_shards(session: Session, mode: Literal["r", "r+"]) -> Any:
    """Open the array of all shards, with as many attempts as it takes."""
    while True:
        with contextlib.suppress(*ALLOWED):
            return zarr.open_array(session.store, path="sharded", mode=mode)


def _write_raw(session: Session, lane: Lane) -> None:
    store, board = session.store, session.board
    number = board.started(lane.number) + 1
    key, value = lane.key(number), PROTOTYPE.buffer.from_bytes(value_of(lane.number, number))
    if lane.kind == "compared":
        # As zarr changes a chunk: read and written by the same key, in the same context.
        before = board.acknowledged(lane.number)
        session.judge(lane, _number_in(session, lane, store.get_sync(key)), before)
    board.start(lane.number, number)
    if lane.is_delete(number):
        store.delete_sync(key)
    elif number % 2 or lane.kind == "compared":
        store.set_sync(key, value)
    else:
        asyncio.run(store.set(key, value))
    board.acknowledge(lane.number, number)


def _write_shard(session: Session, lane: Lane, array: Any) -> None:
    number = session.board.started(lane.number) + 1
    session.board.start(lane.number, number)
    array[lane.items] = number
    session.board.acknowledge(lane.number, number)


def _write_inner(session: Session, lane: Lane, array: Any) -> None:
    board = session.board
    before, last = board.acknowledged(lane.number), board.started(lane.number)
    slots = _slots(array[lane.items])
    now = next((each for each in range(before, last + 1) if slots_of(each) == slots), None)
    if now is None:
        session.report("lost", lane, f"{slots}, after {before}; {last} is started")
        raise SystemExit
    board.start(lane.number, now + 1)
    slots_written = written_by(now + 1)
    array[lane.items_of(slots_written.start, slots_written.stop)] = now + 1
    board.acknowledge(lane.number, now + 1)


def _slots(items: Any) -> tuple[int, ...] | None:
    """Return the number in each slot, or None if a slot has two numbers."""
    rows: NDArray[np.uint64] = items.reshape(-1, SLOT_ITEMS)
    return tuple(int(row[0]) for row in rows) if (rows == rows[:, :1]).all() else None


def _number_in(session: Session, lane: Lane, found: Buffer | None) -> int | None:
    """Return the number of the write whose value was found, or None."""
    value = None if found is None else found.to_bytes()
    number = None if value is None else number_in(lane.number, value)
    if value is not None and number is None:
        session.report("torn", lane, f"{value[:32]!r} and so on, {len(value)} bytes")
        raise SystemExit
    return number


def read_raw(session: Session) -> None:
    """Read chunks whole and in ranges, until it is said to stop."""
    session.open()

    def read(lane: Lane) -> None:
        before = session.board.acknowledged(lane.number)
        if lane.kind == "created":
            _read_created(session, lane)
        elif session.random.random() < 0.5:
            session.judge(lane, _number_in(session, lane, session.store.get_sync(lane.key(0))), before)
        else:
            session.judge(lane, _read_ranges(session, lane), before)

    _read_until_stop(session, [lane for lane in session.plan.all_lanes if not lane.is_sharded], "raw", read)


def _read_created(session: Session, lane: Lane) -> None:
    newest = session.board.started(lane.number)
    number = session.random.randint(max(1, newest - 20), newest + 1)
    is_there = session.board.is_acknowledged(lane.number, number)
    found = _number_in(session, lane, session.store.get_sync(lane.key(number)))
    if found is None and is_there:
        session.report("lost", lane, f"nothing at {number}")
    elif found not in (None, number):
        session.report("torn", lane, f"{found} at {number}")


def _read_ranges(session: Session, lane: Lane) -> int | None:
    ranges: list[ByteRequest | None] = [RangeByteRequest(0, 16), SuffixByteRequest(16), RangeByteRequest(10, 30)]
    try:
        values = session.store.get_ranges_sync(lane.key(0), ranges, prototype=PROTOTYPE)
    except BaseExceptionGroup as group:
        if group.subgroup(FileNotFoundError) is None:
            raise
        return None
    head, tail, middle = (b"" if each is None else each.to_bytes() for _, each in sorted(values, key=lambda at: at[0]))
    number: int = struct.unpack_from("<Q", head)[0]
    value = value_of(lane.number, min(number, NUMBERS))
    if (head, tail, middle) != (value[:16], value[-16:], value[10:30]):
        session.report("torn", lane, f"the ranges of {number} are not of one write")
        raise SystemExit
    return number


def read_shards(session: Session) -> None:
    """Read shards through zarr, whole and some of their inner chunks, until it is said to stop."""
    session.open()
    array = _open_shards(session, "r")
    board = session.board

    def read(lane: Lane) -> None:
        first, last = sorted(session.random.sample(range(SLOTS + 1), 2))
        before = board.acknowledged(lane.number)
        slots = _slots(array[lane.items_of(first, last)])
        after = board.started(lane.number)
        may_be = range(before, after + 1)
        candidates = [*may_be, *(board.unresolved(lane.number) if lane.is_blind else ())]
        if not any(lane.slots(number)[first:last] == slots for number in candidates):
            is_older = any(lane.slots(number)[first:last] == slots for number in range(before))
            detail = f"{slots} from slot {first}, between {before} and {after}"
            session.report("lost" if is_older else "torn", lane, detail)

    _read_until_stop(session, [lane for lane in session.plan.all_lanes if lane.is_sharded], "sharded", read)


def _read_until_stop(session: Session, lanes: list[Lane], name: str, read: Callable[[Lane], None]) -> None:
    """Read a lane, again and again; what is no answer is counted."""
    while lanes and not session.board.counts["stop"]:
        try:
            read(session.random.choice(lanes))
        except ConcurrentWriteError:
            session.board.count(f"{name} conflicts")
        except ALLOWED:
            session.board.count(f"{name} errors")
        else:
            session.board.count(f"{name} reads")


def finish(session: Session) -> None:
    """Check that a repair leaves no objects beside the chunks, and that all readers agree about them."""
    session.store = PartsStore(session.plan.objects(is_direct=True), concurrency=session.plan.level)
    anyone = Lane(0, "blind")
    report = repair(session.store)
    if not report.is_clean:
        session.report("untidy", anyone, str(report))
    findings = session.store.verify(checksums=True).findings
    if findings:
        session.report("untidy", anyone, str(findings))
    if beside := [key for key in keys_of(session.store.store, "") if ".parts-txn" in key or "#" in key]:
        session.report("untidy", anyone, f"{len(beside)} objects left: {sorted(beside)[:5]}")
    array = zarr.open_array(session.store, path="sharded", mode="r")
    for lane in session.plan.all_lanes:
        numbers = range(1, session.board.started(lane.number) + 1) if lane.kind == "created" else (0,)
        for number in numbers:
            _check_at_rest(session, lane, lane.key(number), array)


def _check_at_rest(session: Session, lane: Lane, key: str, array: Any) -> None:
    found = session.store.get_sync(key)
    value = None if found is None else found.to_bytes()
    try:
        plain = read_plainly(session.store.store, key, SHARD_SUFFIXES if lane.is_sharded else RAW_SUFFIXES)
    except ValueError as error:
        session.report("torn", lane, str(error))
        return
    if plain != value:
        session.report("torn", lane, f"another program reads something else at {key!r}")
    before = session.board.acknowledged(lane.number)
    if lane.kind == "created":
        number = int(key.rpartition("/")[2])
        if (value is None and session.board.is_acknowledged(lane.number, number)) or (
            value is not None and number_in(lane.number, value) != number
        ):
            session.report("lost", lane, key)
    elif lane.is_sharded:
        slots = _slots(array[lane.items])
        candidates = [*range(before, session.board.started(lane.number) + 1), *session.board.unresolved(lane.number)]
        if not any(lane.slots(number) == slots for number in candidates):
            session.report("lost", lane, f"{slots}, after {before}")
    else:
        session.judge(lane, _number_in(session, lane, found), before)
