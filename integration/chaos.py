"""Writers that are killed, readers that check every value, and a board in shared memory on which both keep account.

Every chunk has one writer at a time, and its writes are numbered. A write is *started*, then *acknowledged*; one that
ended by an error, or with its process, is *unresolved*: it may be there, or not, or come at any later time. A reader
notes what is acknowledged, reads, and then notes what is started:

- torn: what it read is no number's value, or damage.
- lost: what it read is older than what was acknowledged before it began. The value of an unresolved write is not lost
  where writes are blind: it may have come last. Where a write depends on what was read, it may not.

A process of its own, which forks its writers and readers: it never uses obstore itself, whose threads do not survive a
fork, so that a writer costs a few milliseconds and can be killed by the hundreds.

    python -m integration.chaos PLAN    # the plan and the report are JSON
"""

import asyncio
import contextlib
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, S3Store
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype

import parts_store as ps
from integration.breaking import keys_of, read_plainly, repair
from integration.server import Server, die_with_parent
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Lost, Outcome
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, StorageError
from parts_store.options import Concurrency
from parts_store.transactions.server_probe import Features

ROOT = Path(__file__).parent.parent
PROTOTYPE = default_buffer_prototype()

type Kind = Literal["blind", "compared", "created", "deleted", "shard", "inner"]
"""How a lane's values are written: over anything; over what was read; each under a new key; now and then deleted; and
through zarr, as a whole shard, over anything; some inner chunks of one, over what was read.
"""

# How many numbers a lane has at most.
NUMBERS = 1 << 16
SLOTS, SLOT_ITEMS = 8, 4
SHARD_ITEMS = SLOTS * SLOT_ITEMS
RAW_SUFFIXES = (".head", "", ".sum")
SHARD_SUFFIXES = (".head", "", ".index")
ACKNOWLEDGED, UNRESOLVED = 1, 2
# What a broken network, or somebody else who writes, may make of an operation: never damage.
ALLOWED = (ConcurrentWriteError, AmbiguousWriteError, StorageError)


@dataclass(frozen=True, slots=True)
class Lane:
    """A chunk, or a row of them, and how it is written."""

    number: int
    kind: Kind

    def key(self, number: int) -> str:
        if self.kind == "created":
            return f"created/c/{number}"
        return f"sharded/c/{self.number}" if self.is_sharded else f"raw/c/{self.number}"

    def is_delete(self, number: int) -> bool:
        return self.kind == "deleted" and number % 3 == 0

    @property
    def is_blind(self) -> bool:
        return self.kind in ("blind", "deleted", "shard")

    @property
    def is_sharded(self) -> bool:
        return self.kind in ("shard", "inner")

    @property
    def items(self) -> slice:
        """Where its shard is."""
        return self.items_of(0, SLOTS)

    def items_of(self, first: int, last: int) -> slice:
        """Where these slots of its shard are."""
        start = self.number * SHARD_ITEMS
        return slice(start + first * SLOT_ITEMS, start + last * SLOT_ITEMS)

    def slots(self, number: int) -> tuple[int, ...]:
        """What a number's write makes of a shard: all slots the same, or what many have made of it."""
        return slots_of(number) if self.kind == "inner" else (number,) * SLOTS


@dataclass(frozen=True, slots=True)
class Plan:
    """Where, by whom and how long."""

    # A folder, or a bucket, with obstore's options for it.
    address: str
    options: dict[str, Any]
    level: Concurrency
    lanes: tuple[Kind, ...]
    # How many writers are killed, and how long it takes at most; without kills, how long it takes.
    kills: int
    seconds: float
    seed: int
    # How long nobody writes where somebody was killed: what was sent has arrived by then.
    pause: float = 0.0
    # How long a writer lives, at least and at most, before it is killed.
    life: tuple[float, float] = (0.02, 0.25)
    # In place of the other options when all is over, if any.
    direct: dict[str, Any] = field(default_factory=dict)

    def objects(self, *, is_direct: bool = False) -> Any:
        if not self.options:
            return LocalStore(self.address, automatic_cleanup=True)
        options = dict(self.direct if is_direct and self.direct else self.options)
        if retry := options.get("retry_config"):
            seconds = timedelta(seconds=retry["retry_timeout"])
            backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
            options["retry_config"] = retry | {"retry_timeout": seconds, "backoff": backoff}
        return S3Store(self.address, **options)

    def store(self) -> PartsStore:
        store = PartsStore(self.objects(), concurrency=self.level)
        if (server := store._operations.server) is not None:
            # MinIO supports everything. A writer that asked first would be killed before it writes.
            server.learn(Features(True, True, True, True))
        return store

    @staticmethod
    def options_of(server: Server, **options: Any) -> dict[str, Any]:
        """Obstore's options for a bucket there, and these beyond them."""
        client = {"allow_http": True, **options.pop("client_options", {})}
        return {
            "endpoint": server.endpoint,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": "us-east-1",
            "virtual_hosted_style_request": False,
            "client_options": client,
            **options,
        }

    @property
    def all_lanes(self) -> tuple[Lane, ...]:
        return tuple(Lane(number, kind) for number, kind in enumerate(self.lanes))


def create(plan: Plan) -> None:
    """The arrays of all lanes."""
    store = PartsStore(plan.objects(is_direct=True))
    raw = [Part(".head", size=16), Part(""), Part(".sum", size=16)]
    for name in ("raw", "created"):
        arguments: dict[str, Any] = {"shape": (NUMBERS,), "chunks": (1,), "dtype": "uint8", "compressors": None}
        ps.create_array(store, name, parts=raw, **arguments)
    shard = [Part(".head", size=16), Part(""), Part(".index", size=SHARD_INDEX)]
    shape = (len(plan.lanes) * SHARD_ITEMS,)
    layout: dict[str, Any] = {"shape": shape, "shards": (SHARD_ITEMS,), "chunks": (SLOT_ITEMS,), "dtype": "uint64"}
    ps.create_array(store, "sharded", parts=shard, **layout)


# --- values -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def value_of(lane: int, number: int) -> bytes:
    """The value of a number: it says which, has any size, and a digest at its end."""
    source = random.Random(lane << 32 | number)
    body = source.randbytes(source.choice([0, 1, 100, 3000, 3000, 50_000]))
    head = struct.pack("<QQ", number, len(body))
    return head + body + blake2b(head + body, digest_size=16).digest()


def number_in(lane: int, value: bytes) -> int | None:
    """The number whose value this is; None if it is torn."""
    number: int = struct.unpack_from("<Q", value)[0] if len(value) >= 32 else NUMBERS
    return number if number < NUMBERS and value == value_of(lane, number) else None


@lru_cache(maxsize=4096)
def slots_of(number: int) -> tuple[int, ...]:
    """The slots of a shard after so many writes of some of them: of one, and every fifth time of the first six."""
    slots = [0] * SLOTS
    # Before that, every slot was written by something that came later.
    for each in range(max(0, number - 5 * SLOTS), number + 1):
        for slot in written_by(each):
            slots[slot] = each
    return tuple(slots)


def written_by(number: int) -> range:
    """The slots that a write sets."""
    return range(number % SLOTS, number % SLOTS + 1) if number % 5 else range(6)


# --- the board --------------------------------------------------------------------------------------------------------


class Board:
    """What has been started and acknowledged; in memory that survives whoever writes there."""

    def __init__(self, lanes: int) -> None:
        self._counters = memoryview(mmap.mmap(-1, 8 * (3 * lanes + len(COUNTERS)))).cast("Q")
        self._fates = mmap.mmap(-1, lanes * NUMBERS)
        self._lanes = lanes

    def started(self, lane: int) -> int:
        return self._counters[lane]

    def acknowledged(self, lane: int) -> int:
        return self._counters[self._lanes + lane]

    def start(self, lane: int, number: int) -> None:
        if number >= NUMBERS:
            raise OverflowError("more writes than numbers")
        self._counters[lane] = max(number, self._counters[lane])

    def acknowledge(self, lane: int, number: int) -> None:
        self._fates[lane * NUMBERS + number] = ACKNOWLEDGED
        self._counters[self._lanes + lane] = number

    def give_up(self, lane: int, number: int) -> None:
        if self._fates[lane * NUMBERS + number] != ACKNOWLEDGED:
            self._fates[lane * NUMBERS + number] = UNRESOLVED

    def is_acknowledged(self, lane: int, number: int) -> bool:
        return self._fates[lane * NUMBERS + number] == ACKNOWLEDGED

    def unresolved(self, lane: int) -> list[int]:
        fates = self._fates[lane * NUMBERS : lane * NUMBERS + self.started(lane) + 1]
        return [number for number, fate in enumerate(fates) if fate == UNRESOLVED]

    def count_unanswered(self, lane: int) -> None:
        self._counters[2 * self._lanes + lane] += 1

    @property
    def unanswered(self) -> int:
        return sum(self._counters[2 * self._lanes : 3 * self._lanes])

    def count(self, name: str, by: int = 1) -> None:
        """Only one process counts under each name."""
        self._counters[3 * self._lanes + COUNTERS.index(name)] += by

    @property
    def counts(self) -> dict[str, int]:
        return {name: self._counters[3 * self._lanes + at] for at, name in enumerate(COUNTERS)}


COUNTERS = ("raw reads", "sharded reads", "raw conflicts", "sharded conflicts", "raw errors", "sharded errors", "stop")


class Noting:
    """A backend that notes which of its requests were not answered; the writer seldom lets anybody know."""

    def __init__(self, inner: Any, board: Board, lane: int) -> None:
        self._inner, self._board, self._lane = inner, board, lane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def perform(self, request: BackendRequest) -> Outcome:
        return self._noted(await self._inner.perform(request))

    def perform_sync(self, request: BackendRequest) -> Outcome:
        return self._noted(self._inner.perform_sync(request))

    def _noted(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Lost):
            self._board.count_unanswered(self._lane)
        return outcome


@dataclass
class Session:
    """What every process of a plan has."""

    plan: Plan
    board: Board
    # An open file for what must not happen.
    violations: int
    random: random.Random
    store: PartsStore = field(init=False)

    def open(self, lane: Lane | None = None) -> None:
        self.store = self.plan.store()
        if lane is not None:
            self.store._backend = cast("Any", Noting(self.store._backend, self.board, lane.number))

    def report(self, kind: str, lane: Lane, detail: str) -> None:
        os.write(self.violations, (json.dumps([kind, lane.number, lane.kind, detail]) + "\n").encode())

    def judge(self, lane: Lane, found: int | None, before: int) -> None:
        """Whether this number, or nothing, may be what a read found that began after `before` was acknowledged."""
        after = self.board.started(lane.number)
        if found is None:
            deletes = [each for each in range(before, after + 1) if lane.is_delete(each)]
            deletes += [each for each in self.board.unresolved(lane.number) if lane.is_delete(each)]
            if before and not deletes:
                self.report("lost", lane, f"nothing, after {before}")
        elif found > after or lane.is_delete(found):
            self.report("torn", lane, f"{found}, which nobody wrote; {after} is started")
        elif found < before and not (lane.is_blind and found in self.board.unresolved(lane.number)):
            self.report("lost", lane, f"{found}, after {before}")


# --- writers ----------------------------------------------------------------------------------------------------------


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
    """The array of all shards, however often it takes."""
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
    """The number in each slot; None where a slot has two."""
    rows: NDArray[np.uint64] = items.reshape(-1, SLOT_ITEMS)
    return tuple(int(row[0]) for row in rows) if (rows == rows[:, :1]).all() else None


def _number_in(session: Session, lane: Lane, found: Buffer | None) -> int | None:
    """The number whose value was found, if any."""
    value = None if found is None else found.to_bytes()
    number = None if value is None else number_in(lane.number, value)
    if value is not None and number is None:
        session.report("torn", lane, f"{value[:32]!r} and so on, {len(value)} bytes")
        raise SystemExit
    return number


# --- readers ----------------------------------------------------------------------------------------------------------


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


# --- the end ----------------------------------------------------------------------------------------------------------


def finish(session: Session) -> None:
    """A repair leaves nothing beside the chunks; and all of them are read, by everybody, as the same."""
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


# --- the process ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What happened."""

    kills: int
    # Acknowledged.
    writes: int
    # Ended by an error, or in the middle by a kill.
    unresolved: int
    # Requests of writers without an answer.
    unanswered: int
    reads: int
    conflicts: int
    errors: int
    seconds: float
    # What must not happen: its kind, the lane and how it is written, and what it was.
    violations: list[tuple[str, int, str, str]]

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in asdict(self).items() if name != "violations"]
        return "\n".join([*lines, *(" ".join(map(str, each)) for each in self.violations)])


@dataclass
class Driver:
    """Starts, kills and replaces writers, while readers read."""

    plan: Plan
    board: Board
    violations: int
    random: random.Random
    kills: int = 0

    def fork(self, work: Callable[[Session], None]) -> int:
        """The process that does this."""
        seed = self.random.getrandbits(32)
        pid = os.fork()
        if pid:
            return pid
        session = Session(self.plan, self.board, self.violations, random.Random(seed))
        try:
            die_with_parent()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            work(session)
        except SystemExit:
            os._exit(0)
        except BaseException:
            session.report("error", Lane(0, "blind"), traceback.format_exc()[-3000:])
            os._exit(1)
        os._exit(0)

    def run(self) -> None:
        """All of the plan."""
        self._wait(self.fork(lambda session: create(session.plan)))
        readers = [self.fork(read_raw), self.fork(read_shards)]
        try:
            self._write()
        finally:
            self.board.count("stop")
            for reader in readers:
                self._wait(reader)
        self._wait(self.fork(finish))

    def _wait(self, pid: int) -> None:
        os.waitpid(pid, 0)

    def _write(self) -> None:
        deadline = time.monotonic() + self.plan.seconds
        writers: dict[int, tuple[int, float]] = {}
        rests = dict.fromkeys(range(len(self.plan.lanes)), 0.0)
        while time.monotonic() < deadline and not 0 < self.plan.kills <= self.kills:
            now = time.monotonic()
            for lane in self.plan.all_lanes:
                if lane.number not in writers and now >= rests[lane.number]:
                    delay = self.random.uniform(*self.plan.life) if self.plan.kills else self.plan.seconds
                    writers[lane.number] = self.fork(partial(write_lane, lane=lane)), now + delay
                elif lane.number in writers and now >= writers[lane.number][1]:
                    self._kill(lane, writers.pop(lane.number)[0])
                    rests[lane.number] = time.monotonic() + self.plan.pause
            time.sleep(0.002)
        for number, (pid, _) in writers.items():
            self._kill(self.plan.all_lanes[number], pid)
        time.sleep(self.plan.pause)

    def _kill(self, lane: Lane, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self.kills += os.WIFSIGNALED(status)
        if self.board.started(lane.number) > self.board.acknowledged(lane.number):
            self.board.give_up(lane.number, self.board.started(lane.number))


def run(plan: Plan) -> Report:
    """The plan, carried out by a process of its own."""
    with under_way(plan) as report:
        return report()


def main(plan: Plan) -> Report:
    """Carry out a plan in this process."""
    began = time.monotonic()
    board = Board(len(plan.lanes))
    with tempfile.TemporaryFile() as file:
        driver = Driver(plan, board, file.fileno(), random.Random(plan.seed))
        driver.run()
        file.seek(0)
        violations = [json.loads(line) for line in file]
    counts = board.counts
    return Report(
        kills=driver.kills,
        writes=sum(board.acknowledged(lane) for lane in range(len(plan.lanes))),
        unresolved=sum(len(board.unresolved(lane)) for lane in range(len(plan.lanes))),
        unanswered=board.unanswered,
        reads=counts["raw reads"] + counts["sharded reads"],
        conflicts=counts["raw conflicts"] + counts["sharded conflicts"],
        errors=counts["raw errors"] + counts["sharded errors"],
        seconds=time.monotonic() - began,
        violations=violations,
    )


@contextlib.contextmanager
def under_way(plan: Plan) -> Iterator[Callable[[], Report]]:
    """The plan in a process of its own; gives what waits for its report."""
    command = [sys.executable, "-m", "integration.chaos", json.dumps(asdict(plan))]
    # A second thread would be lost in a fork.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:

        def report() -> Report:
            answer, _ = process.communicate(timeout=plan.seconds + 120)
            return Report(**json.loads(answer))

        try:
            yield report
        finally:
            process.kill()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(asdict(main(Plan(**given | {"lanes": tuple(given["lanes"])})))))
