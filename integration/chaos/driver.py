"""Carry out a plan: start, kill and replace writers, while readers check every value.

Every chunk has at most one writer, and its writes are numbered. A write is *started*, then *acknowledged*. A write that
ended with an error, or whose process was killed, is *unresolved*: its value may be stored, or not, or be stored later.
A reader notes which write is acknowledged, reads, and then notes which write is started:

- torn: the value that was read belongs to no write, or is damaged.
- lost: the value that was read is older than the write that was acknowledged before the read. The value of an
  unresolved write is not lost if writes do not depend on reads: it may have been stored last.

A plan runs in its own process, which forks its writers and readers. That process never uses obstore, whose threads do
not survive a fork. So a writer costs a few milliseconds, and hundreds of writers can be killed.

    python -m integration.chaos PLAN    # the plan and the report are JSON
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

from integration.chaos.board import Board, Session
from integration.chaos.clients import finish, read_raw, read_shards, write_lane
from integration.chaos.plan import ROOT, Lane, Plan, create
from integration.server import die_with_parent

# How long a plan may take longer than it should, until it has done all that it should do.
MAX_SECONDS = 240.0


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
        began = time.monotonic()
        writers: dict[int, Writer] = {}
        rests = dict.fromkeys(range(len(self.plan.lanes)), 0.0)
        while not self._is_over(time.monotonic() - began):
            now = time.monotonic()
            for lane in self.plan.all_lanes:
                if lane.number not in writers and now >= rests[lane.number]:
                    writers[lane.number] = self._start_writer(lane)
                elif lane.number in writers and self.plan.kills and writers[lane.number].is_due(now):
                    self._kill(lane, writers.pop(lane.number).pid)
                    rests[lane.number] = time.monotonic() + self.plan.pause
            time.sleep(0.002)
        for number, writer in writers.items():
            self._kill(self.plan.all_lanes[number], writer.pid)
        time.sleep(self.plan.pause)

    def _is_over(self, seconds: float) -> bool:
        """Return whether all is done that the plan asks for, or whether it takes too long."""
        if self.plan.kills:
            return seconds >= self.plan.seconds or (self.kills >= self.plan.kills and self._has_least())
        return seconds >= self.plan.seconds and (self._has_least() or seconds >= self.plan.seconds + MAX_SECONDS)

    def _has_least(self) -> bool:
        found = counts_of(self.board, len(self.plan.lanes))
        return all(found[name] >= count for name, count in self.plan.least.items())

    def _start_writer(self, lane: Lane) -> "Writer":
        count = self.random.choice([self.board.started, self.board.acknowledged])
        before, delay = count(lane.number), self.random.uniform(*self.plan.life)
        return Writer(self.fork(partial(write_lane, lane=lane)), delay, lambda: count(lane.number) > before)

    def _kill(self, lane: Lane, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self.kills += os.WIFSIGNALED(status)
        if self.board.started(lane.number) > self.board.acknowledged(lane.number):
            self.board.give_up(lane.number, self.board.started(lane.number))


@dataclass
class Writer:
    """A process that writes, and when it is killed: some time after its first write has begun, or has ended."""

    pid: int
    delay: float
    has_begun: Callable[[], bool]
    due: float | None = None

    def is_due(self, now: float) -> bool:
        if self.due is None and self.has_begun():
            self.due = now + self.delay
        return self.due is not None and now >= self.due


def counts_of(board: Board, lanes: int) -> dict[str, int]:
    """Return how many writes, unresolved writes, unanswered requests and reads there were."""
    counts = board.counts
    return {
        "writes": sum(board.acknowledged(lane) for lane in range(lanes)),
        "unresolved": sum(len(board.unresolved(lane)) for lane in range(lanes)),
        "unanswered": board.unanswered,
        "reads": counts["raw reads"] + counts["sharded reads"],
    }


def run(plan: Plan) -> Report:
    """Carry out the plan in another process, and return the report."""
    with under_way(plan) as report_within:
        report = report_within(plan.seconds + 2 * MAX_SECONDS)
        if report is None:
            raise TimeoutError(f"the plan has no end: {plan}")
        return report


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
        **counts_of(board, len(plan.lanes)),
        conflicts=counts["raw conflicts"] + counts["sharded conflicts"],
        errors=counts["raw errors"] + counts["sharded errors"],
        seconds=time.monotonic() - began,
        violations=violations,
    )


@contextlib.contextmanager
def under_way(plan: Plan) -> Iterator[Callable[[float], Report | None]]:
    """Start the plan in another process; yield a function that waits for its report for some seconds."""
    command = [sys.executable, "-m", "integration.chaos", json.dumps(asdict(plan))]
    # A second thread would be lost in a fork.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:

        def report_within(seconds: float) -> Report | None:
            try:
                answer, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return None
            return Report(**json.loads(answer))

        try:
            yield report_within
        finally:
            process.kill()
