"""Many calls at the same time: their order, their limit and their errors, as coroutines and in threads."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from parts_store.engine import concurrency
from parts_store.engine.concurrency import (
    StoppedError,
    require_not_stopped,
    run_for_each,
    run_in_threads,
    run_tasks_sync,
)

SECONDS = 300


@pytest.fixture(params=[1, 3], ids=["one worker", "three workers"])
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


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
    for count in (0, 100):
        tasks = [partial(int, number) for number in range(count)]
        assert await run_in_threads(tasks, workers, finishes=False) == list(range(count))


@pytest.mark.parametrize("quick", [0, 0.001], ids=["any", "expected to be quick"])
async def test_slow_tasks_run_in_as_many_threads_as_there_are_workers(workers: int, quick: float) -> None:
    gate = Gate()
    running = asyncio.ensure_future(run_in_threads([gate] * 9, workers, finishes=False, quick=quick))
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == workers)
    gate.opened.set()
    await running
    assert (gate.begun, gate.most) == (9, workers)


async def test_quick_tasks_run_one_after_another_in_one_thread(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine is, the pace of the first thread is not looked at before the end.
    monkeypatch.setattr(concurrency, "_ALONE_SECONDS", SECONDS)
    assert len(set(await run_in_threads([threading.get_ident] * 100, workers, finishes=False, quick=0.001))) == 1


async def test_the_first_error_is_raised_once_and_begins_no_task(workers: int) -> None:
    begun = []

    def task(number: int) -> None:
        begun.append(number)
        raise ValueError(f"task {number}")

    with pytest.raises(ValueError, match=r"task [012]$") as raised:
        await run_in_threads([partial(task, number) for number in range(50)], workers, finishes=False)
    assert len(begun) <= workers
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_cancelled_call_begins_no_further_task(workers: int, *, finishes: bool) -> None:
    gate = Gate()
    running = asyncio.ensure_future(run_in_threads([gate] * 50, workers, finishes=finishes))
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
    running = asyncio.ensure_future(run_in_threads([gate], 3, finishes=True))
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

    running = asyncio.ensure_future(run_in_threads([task], 3, finishes=True))
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
        return sum(asyncio.run(run_in_threads([partial(nested, depth - 1)] * 3, workers, finishes=False)))

    assert await run_in_threads([partial(nested, 2)] * 5, workers, finishes=False) == [9] * 5


async def test_threads_above_the_limit_end(workers: int) -> None:
    gate = Gate()
    before = set(threading.enumerate())
    running = [asyncio.ensure_future(run_in_threads([gate] * 2, workers, finishes=False)) for _ in range(10)]
    await asyncio.to_thread(gate.wait, lambda gate: gate.at_once >= 10)
    # Every call has a thread, and all calls together have no more than the limit otherwise.
    assert gate.most <= workers + 10
    gate.opened.set()
    await asyncio.gather(*running)
    ours = [each for each in set(threading.enumerate()) - before if each.name == "parts_store"]
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

    assert await run_in_threads([task] * 20, workers, finishes=False) == [7] * 20


def test_a_task_may_end_after_the_event_loop_was_closed() -> None:
    gate = Gate()
    errors: list[Any] = []

    async def main() -> None:
        running = asyncio.ensure_future(run_in_threads([gate], 3, finishes=False))
        await asyncio.to_thread(gate.wait, lambda gate: gate.at_once == 1)
        running.cancel()

    before, threading.excepthook = threading.excepthook, errors.append
    try:
        asyncio.run(main())
        gate.opened.set()
        gate.wait(lambda gate: gate.at_once == 0)
        # A thread that has failed would not run this task.
        asyncio.run(run_in_threads([int], 3, finishes=False))
    finally:
        threading.excepthook = before
    assert errors == []


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_results_are_in_order_and_calls_are_limited(count: int, at_once: int) -> None:
    running: list[int] = []
    most = 0

    async def double(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await asyncio.sleep(0.001 * (count - number))
        running.remove(number)
        return 2 * number

    assert asyncio.run(run_for_each(range(count), double, at_once)) == [2 * number for number in range(count)]
    assert most == min(count, at_once)


def test_error_cancels_other_calls_and_is_raised_after_they_end() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def act(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(0 if number == 1 else 60)
            raise LookupError(number)
        finally:
            ended.append(number)

    with pytest.raises(LookupError, match="1"):
        asyncio.run(run_for_each(range(5), act, 3))
    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1, 2]


def test_calls_that_must_finish_are_not_cancelled_and_the_first_error_in_order_is_raised() -> None:
    ended: list[int] = []

    async def act(number: int) -> None:
        await asyncio.sleep(0.02 if number == 0 else 0)
        ended.append(number)
        if number < 2:
            raise LookupError(number)

    with pytest.raises(LookupError, match="0") as raised:
        asyncio.run(run_for_each(range(9), act, 3, finishes=True))
    assert raised.value.__context__ is None
    assert {0, 1, 2} <= set(ended)


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a thread that is not the main thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result(SECONDS)


@pytest.mark.parametrize("finishes", [False, True])
async def test_one_cancellation_reaches_every_call_once(*, finishes: bool) -> None:
    sent, ends = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def act(name: str) -> None:
        try:
            if name == "was sent":
                sent.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # As a request that was sent: it ends by itself, unless it is cancelled again.
            if name == "was sent":
                await ends.wait()
                ended.append(name)
            raise

    task = asyncio.ensure_future(run_for_each(["ends at once", "was sent"], act, 2, finishes=finishes))
    await sent.wait()
    task.cancel()
    for _ in range(9):
        await asyncio.sleep(0)
    assert not task.done()
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["was sent"]


async def test_two_cancellations_in_a_row_reach_every_call() -> None:
    begun, cancellations = asyncio.Event(), 0

    async def act(_: int) -> None:
        nonlocal cancellations
        for _ in range(2):
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1
        raise asyncio.CancelledError

    task = asyncio.ensure_future(run_for_each(range(2), act, 2, finishes=True))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancellations == 4


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["main thread", "other thread"])
def test_threads_without_an_event_loop_return_results_in_order_and_raise_the_first_error(
    call: Callable[[Callable[[], Any]], Any], workers: int
) -> None:
    assert call(lambda: run_tasks_sync([], workers)) == []
    assert call(lambda: run_tasks_sync([partial(int, number) for number in range(50)], workers)) == list(range(50))
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        raise LookupError(number)

    with pytest.raises(LookupError, match=r"^0$"):
        call(lambda: run_tasks_sync([partial(fail, number) for number in range(50)], workers))
    assert len(begun) <= workers


def test_threads_without_an_event_loop_may_start_threads_of_their_own(workers: int) -> None:
    def nested(depth: int) -> int:
        return 1 if depth == 0 else sum(run_tasks_sync([partial(nested, depth - 1)] * 3, workers))

    assert run_tasks_sync([partial(nested, 2)] * 5, workers) == [9] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    gate = Gate()
    # All threads of the pool are busy.
    waiting = threading.Thread(target=run_tasks_sync, args=([gate] * 2, 2))
    waiting.start()
    gate.wait(lambda gate: gate.at_once == 2)
    child = os.fork()
    if child == 0:
        # The child must not run the rest of the tests, whatever happens.
        try:
            os._exit(sum(run_tasks_sync([lambda: 14] * 3, 2)))
        finally:
            os._exit(1)
    gate.opened.set()
    waiting.join(SECONDS)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_tasks_do_not_wait_for_threads_that_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start"):
                run_tasks_sync([int] * 7, 7)
    assert run_tasks_sync([int] * 7, 7) == [0] * 7
