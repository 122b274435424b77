"""A board in shared memory on which writers and readers record what they did."""

import json
import mmap
import os
import random
from dataclasses import dataclass, field
from typing import Any, cast

from integration.chaos.plan import NUMBERS, Lane, Plan
from parts_store import PartsStore
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Lost, Outcome

ACKNOWLEDGED, UNRESOLVED = 1, 2


class Board:
    """The writes that were started and acknowledged, in memory that outlives the processes that write there."""

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
    """A backend that counts its requests without a response, which a writer seldom reports."""

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
            self.report("torn", lane, f"{found}, which no write stored; {after} is started")
        elif found < before and not (lane.is_blind and found in self.board.unresolved(lane.number)):
            self.report("lost", lane, f"{found}, after {before}")
