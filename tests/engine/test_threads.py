"""Many calls at the same time: their order, their limit and their errors; and the pool of daemon threads."""

import asyncio
import os
import threading
from concurrent.futures import wait

import pytest

from parts_store.engine.concurrency import run_for_each
from parts_store.engine.threads import Threads

SECONDS = 300


def test_results_and_errors_are_those_of_the_functions() -> None:
    pool = Threads(2, "test")
    futures = [pool.submit(lambda number=number: 12 // number) for number in range(5)]  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        futures[0].result(SECONDS)
    assert [future.result(SECONDS) for future in futures[1:]] == [12, 6, 4, 3]


def test_no_more_threads_than_the_limit_are_started_and_all_are_daemons() -> None:
    pool = Threads(3, "test of the limit")
    futures = [pool.submit(lambda: None) for _ in range(50)]
    assert not wait(futures, SECONDS).not_done
    ours = [each for each in threading.enumerate() if each.name == "test of the limit"]
    assert 1 <= len(ours) <= 3
    assert all(each.daemon for each in ours)


def test_a_cancelled_function_is_not_called() -> None:
    pool = Threads(1, "test")
    opened = threading.Event()
    first = pool.submit(lambda: opened.wait(SECONDS))
    called: list[int] = []
    second = pool.submit(lambda: called.append(1))
    assert second.cancel()
    opened.set()
    assert first.result(SECONDS)
    pool.submit(lambda: None).result(SECONDS)
    assert called == []


def test_an_urgent_task_does_not_wait_for_a_thread() -> None:
    pool = Threads(1, "test")
    done = threading.Event()

    def task() -> bool:
        pool.start(done.set, is_urgent=True)
        return done.wait(SECONDS)

    assert pool.submit(task).result(SECONDS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    pool = Threads(1, "test")
    opened = threading.Event()
    # The only thread is busy, and a function waits for it.
    waiting = [pool.submit(lambda: opened.wait(SECONDS)) for _ in range(2)]
    child = os.fork()
    if child == 0:
        # The child must not run the rest of the tests, whatever happens.
        try:
            os._exit(pool.submit(lambda: 42).result(SECONDS))
        finally:
            os._exit(1)
    opened.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert [each.result(SECONDS) for each in waiting] == [True, True]


def test_tasks_do_not_wait_for_threads_that_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = Threads(2, "test")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        for is_urgent in (False, False, True, True):
            with pytest.raises(RuntimeError, match="can't start"):
                pool.start(lambda: None, is_urgent=is_urgent)
    assert pool.submit(lambda: 1).result(SECONDS) == 1
    blocked = threading.Event()
    try:
        first = pool.submit(lambda: blocked.wait(SECONDS))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            # The thread that there is carries it out.
            second = pool.submit(lambda: 2)
    finally:
        blocked.set()
    assert (first.result(SECONDS), second.result(SECONDS)) == (True, 2)


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
