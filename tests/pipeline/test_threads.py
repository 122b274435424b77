"""Tasks of one call run in a bounded number of threads, and none begins after an error or a cancellation."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import zarr

from parts_store.pipeline import threads
from parts_store.pipeline.threads import Pace, StoppedError, require_not_stopped, run

SECONDS = 300


@pytest.fixture(params=[1, 3], ids=["one worker", "three workers"])
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    count: int = request.param
    with zarr.config.set({"codec_pipeline.max_workers": count}):
        yield count


class Gate:
    """A task that waits until the gate is opened, and that counts how often it runs at the same time."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = 0
        self.at_once = 0
        self.most = 0
        self.changed = threading.Condition()

    def __call__(self) -> None:
        with self.changed:
            self.begun += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.changed.notify_all()
        assert self.opened.wait(SECONDS)
        with self.changed:
            self.at_once -= 1
            self.changed.notify_all()

    def wait(self, condition: Callable[["Gate"], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), SECONDS)


async def test_results_are_in_the_order_of_the_tasks(workers: int) -> None:
    assert await run([partial(int, number) for number in range(100)], finishes=False) == list(range(100))


async def test_no_tasks_have_no_results() -> None:
    assert await run([], finishes=False) == []


async def test_no_more_tasks_run_at_once_than_there_are_workers(workers: int) -> None:
    gate = Gate()
    running = asyncio.ensure_future(run([gate] * 9, finishes=False))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == workers)
    gate.opened.set()
    await running
    assert (gate.begun, gate.most) == (9, workers)


async def test_quick_tasks_run_one_after_another_in_one_thread(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine is, the pace of the first thread is not looked at before the end.
    monkeypatch.setattr(threads, "_ALONE_SECONDS", SECONDS)
    assert len(set(await run([threading.get_ident] * 100, finishes=False, pace=Pace(quick=0.001)))) == 1


async def test_quick_tasks_that_turn_out_to_be_slow_run_in_all_threads(workers: int) -> None:
    gate = Gate()
    running = asyncio.ensure_future(run([gate] * 9, finishes=False, pace=Pace(quick=0.001)))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == workers)
    gate.opened.set()
    await running
    assert (gate.begun, gate.most) == (9, workers)


async def test_the_first_error_is_raised_once_and_begins_no_task(workers: int) -> None:
    begun = []

    def task(number: int) -> None:
        begun.append(number)
        raise ValueError(f"task {number}")

    with pytest.raises(ValueError, match=r"task [012]$") as raised:
        await run([partial(task, number) for number in range(50)], finishes=False)
    assert len(begun) <= workers
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_cancelled_call_begins_no_further_task(workers: int, *, finishes: bool) -> None:
    gate = Gate()
    running = asyncio.ensure_future(run([gate] * 50, finishes=finishes))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == workers)
    running.cancel()
    # A call that waits for its tasks cannot end before the gate is opened.
    await asyncio.wait([running], timeout=0.05 if finishes else SECONDS)
    assert running.done() != finishes
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == 0)
    assert gate.begun == workers


async def test_a_second_cancellation_does_not_wait_for_tasks() -> None:
    gate = Gate()
    running = asyncio.ensure_future(run([gate], finishes=True))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == 1)
    running.cancel()
    # The event loop takes some turns until the call waits again.
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running], timeout=SECONDS)
    assert running.cancelled()
    gate.opened.set()


async def test_a_task_of_a_stopped_call_can_end_early() -> None:
    gate = Gate()
    ended = []

    def task() -> None:
        gate()
        try:
            require_not_stopped()
        except StoppedError as error:
            ended.append(error)
            raise

    running = asyncio.ensure_future(run([task], finishes=True))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == 1)
    running.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(ended) == 1


def test_a_task_outside_of_any_call_is_not_stopped() -> None:
    require_not_stopped()


async def test_tasks_may_wait_for_calls_of_their_own(workers: int) -> None:
    """All threads wait for calls that need threads too, three levels deep."""

    def nested(depth: int) -> int:
        if depth == 0:
            return 1
        return sum(asyncio.run(run([partial(nested, depth - 1)] * 3, finishes=False)))

    assert await run([partial(nested, 2)] * 5, finishes=False) == [9] * 5


async def test_threads_above_the_limit_end(workers: int) -> None:
    gate = Gate()
    before = set(threading.enumerate())
    running = [asyncio.ensure_future(run([gate] * 2, finishes=False)) for _ in range(10)]
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once >= 10)
    # Every call has a thread, and all calls together have no more than the limit otherwise.
    assert gate.most <= workers + 10
    gate.opened.set()
    await asyncio.gather(*running)
    ours = [each for each in set(threading.enumerate()) - before if each.name == "parts_store_pipeline"]
    # Which of them end is not known, so each is joined for a moment only.
    deadline = time.monotonic() + SECONDS
    while len(ours := [each for each in ours if each.is_alive()]) > workers and time.monotonic() < deadline:
        for thread in ours:
            thread.join(0.001)
    assert len(ours) <= workers


async def test_tasks_see_the_context_of_their_caller_and_not_that_of_each_other(workers: int) -> None:
    variable: ContextVar[int] = ContextVar("number", default=0)
    variable.set(7)

    def task() -> int:
        before = variable.get()
        variable.set(before + 1)
        return before

    assert await run([task] * 20, finishes=False) == [7] * 20


def test_a_task_may_end_after_the_event_loop_was_closed() -> None:
    gate = Gate()
    errors: list[Any] = []

    async def main() -> None:
        running = asyncio.ensure_future(run([gate], finishes=False))
        await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == 1)
        running.cancel()

    before, threading.excepthook = threading.excepthook, errors.append
    try:
        asyncio.run(main())
        gate.opened.set()
        gate.wait(lambda gate: gate.at_once == 0)
        # A thread that has failed would not run this task.
        asyncio.run(run([int], finishes=False))
    finally:
        threading.excepthook = before
    assert errors == []
