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
    """Carry out the plan in another process, and return the report."""
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
    """Start the plan in another process; yield a function that waits for its report."""
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
