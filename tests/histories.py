"""Histories of partial writes, reads and deletes by several clients at once, and whether they are linearizable.

A history is recorded with threads and real stores. For each inner chunk, a search finds an order of its operations that
respects real time and explains every read, or shows that there is none. Every history has a seed, which decides what
each client does; the order in which threads run is recorded, not repeated.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

import parts_store as ps
from parts_store.errors import ConcurrentWriteError

INNER, SIZE = 4, 3
CLIENTS, OPERATIONS = 4, 8
type State = tuple[int, ...]
PARTS: dict[str, Any] = {"no parts": None, "two parts": ["", ps.Part(".index", size=ps.SHARD_INDEX)]}


@dataclass(frozen=True, slots=True)
class Operation:
    """What a client did to one inner chunk, and when it began and ended."""

    begin: float
    end: float
    # Element by element, what is written; None: not written.
    written: tuple[int | None, ...] | None
    # What was read.
    found: State | None = None

    def apply(self, state: State) -> State | None:
        """Return the state after the operation, None if the operation cannot have happened in this state."""
        if self.written is not None:
            return tuple(old if new is None else new for old, new in zip(state, self.written, strict=True))
        return state if self.found == state else None


def is_linearizable(operations: Sequence[Operation], initial: State) -> bool:
    """Search for an order of the operations that respects real time and explains what was read (Wing and Gong)."""
    remaining = frozenset(range(len(operations)))
    failed: set[tuple[frozenset[int], State]] = set()
    stack = [(remaining, initial)]
    while stack:
        left, state = stack.pop()
        if not left:
            return True
        if (left, state) in failed:
            continue
        failed.add((left, state))
        first_end = min(operations[number].end for number in left)
        # An operation that began after another one had ended cannot come before it.
        possible = [number for number in left if operations[number].begin <= first_end]
        states = [(number, operations[number].apply(state)) for number in possible]
        stack += [(left - {number}, after) for number, after in states if after is not None]
    return False


def violations(histories: Sequence[Sequence[Operation]]) -> list[str]:
    """Return the histories of inner chunks that no order of their operations explains."""
    wrong = [(chunk, each) for chunk, each in enumerate(histories) if not is_linearizable(each, (0,) * SIZE)]
    return [f"inner chunk {chunk} is not linearizable: {each}" for chunk, each in wrong]


class Client:
    """A client that reads and writes regions of one shard, as its seed says, and records it."""

    def __init__(self, objects: Any, number: int, seed: int) -> None:
        self.array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r+")
        self.chance = random.Random(seed * 1000 + number)
        self.values = iter(range(number * 1000 + 1, number * 1000 + 1000))
        self.history: list[tuple[int, Operation]] = []
        self.error: Exception | None = None

    def run(self, barrier: threading.Barrier) -> None:
        try:
            barrier.wait(300)
            self._work()
        except Exception as error:
            self.error = error

    def _work(self) -> None:
        for _ in range(OPERATIONS):
            kind = self.chance.choice(["write", "write", "clear", "read"])
            chunk = self.chance.randrange(INNER)
            start = chunk * SIZE + self.chance.randrange(SIZE)
            # Also beyond the end of an inner chunk.
            stop = min(start + self.chance.randint(1, SIZE), INNER * SIZE)
            if kind == "read":
                self._read(chunk)
            else:
                self._write(start, stop, 0 if kind == "clear" else next(self.values))

    def _read(self, chunk: int) -> None:
        begin = time.monotonic()
        try:
            found = tuple(np.asarray(self.array[chunk * SIZE : (chunk + 1) * SIZE]).tolist())
        except ConcurrentWriteError:
            # The shard changed between the read of its index and that of its data.
            return
        self.history.append((chunk, Operation(begin, time.monotonic(), None, found)))

    def _write(self, start: int, stop: int, value: int) -> None:
        begin = time.monotonic()
        try:
            self.array[start:stop] = value
        except ConcurrentWriteError:
            # Nothing was written.
            return
        end = time.monotonic()
        for chunk in range(start // SIZE, -(-stop // SIZE)):
            places = range(chunk * SIZE, (chunk + 1) * SIZE)
            written = tuple(value if start <= place < stop else None for place in places)
            self.history.append((chunk, Operation(begin, end, written)))


def record(objects: Any, parts: Any, seed: int) -> list[list[Operation]]:
    """Let clients work at the same time; return the history of each inner chunk."""
    arguments: dict[str, Any] = {"shape": (INNER * SIZE,), "chunks": (SIZE,), "shards": (INNER * SIZE,)}
    arguments |= {"dtype": "i4", "fill_value": 0}
    if parts is None:
        zarr.create_array(ps.PartsStore(objects), name="a", overwrite=True, **arguments)
    else:
        ps.create_array(ps.PartsStore(objects), "a", parts=parts, overwrite=True, **arguments)
    clients = [Client(objects, number, seed) for number in range(CLIENTS)]
    barrier = threading.Barrier(CLIENTS)
    threads = [threading.Thread(target=client.run, args=(barrier,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        if client.error is not None:
            raise client.error
    # What is there at the end was read, too.
    clients[0].history += [(chunk, each) for chunk, each in last_reads(objects)]
    found: list[list[Operation]] = [[] for _ in range(INNER)]
    for client in clients:
        for chunk, each in client.history:
            found[chunk].append(each)
    return found


def last_reads(objects: Any) -> list[tuple[int, Operation]]:
    begin = time.monotonic()
    values = np.asarray(zarr.open_array(ps.PartsStore(objects), path="a", mode="r")[...]).reshape(INNER, SIZE)
    return [(chunk, Operation(begin, time.monotonic(), None, tuple(row.tolist()))) for chunk, row in enumerate(values)]
