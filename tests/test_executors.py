"""Tasks run on every kind of executor, and end before their results are given up."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest
from distributed import Client

from parts_store.errors import StoreConfigError
from parts_store.executors import open_workers

COUNT = 150
"""More tasks than are submitted at first."""


def square(number: int) -> int:
    if number == 7:
        raise ValueError("seven")
    return number * number


def odd_ones_first(number: int) -> int:
    time.sleep(0.002 * (number % 2 == 0))
    return number


class Work:
    """Tasks of this process that take some time."""

    begun: ClassVar[set[int]] = set()
    ended: ClassVar[set[int]] = set()

    @classmethod
    def wait(cls, number: int) -> None:
        cls.begun.add(number)
        time.sleep(0.02)
        cls.ended.add(number)


@contextmanager
def dask_client() -> Iterator[Any]:
    with Client(processes=False, dashboard_address=":0") as client:
        yield client


@contextmanager
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as executor:
        yield executor


@contextmanager
def nothing() -> Iterator[None]:
    yield None


@contextmanager
def word() -> Iterator[str]:
    yield "dask"


KINDS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": nothing,
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": processes,
    "client": dask_client,
    "word": word,
}
SLOW = ("processes", "client", "word")


@pytest.fixture(params=[pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in KINDS])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    with KINDS[request.param]() as opened:
        yield opened


def test_every_task_is_run_once_and_keeps_its_number(executor: Any) -> None:
    with open_workers(executor) as workers:
        finished = {task.number: task for task in workers.run(square, range(100, 100 + COUNT))}
        assert {number: task.result() for number, task in finished.items()} == {
            number: (100 + number) ** 2 for number in range(COUNT)
        }
        assert list(workers.run(square, [])) == []
        # A second time, as the caller may have several things to do.
        assert [task.result() for task in workers.run(square, [3])] == [9]


def test_an_error_belongs_to_its_task_and_others_go_on(executor: Any) -> None:
    with open_workers(executor) as workers:
        finished = {task.number: task for task in workers.run(square, range(COUNT))}
    assert len(finished) == COUNT
    assert [number for number, task in finished.items() if task.error is not None] == [7]
    with pytest.raises(ValueError, match="seven"):
        finished[7].result()


def test_results_come_in_the_order_of_items(executor: Any) -> None:
    with open_workers(executor) as workers:
        assert list(workers.run_in_order(odd_ones_first, range(COUNT))) == list(range(COUNT))
        with pytest.raises(ValueError, match="seven"):
            list(workers.run_in_order(square, range(COUNT)))


@pytest.mark.slow
def test_a_task_of_dask_uses_the_client_it_runs_on() -> None:
    with dask_client() as client:
        assert client.submit(_nested, 5, pure=False).result() == [0, 1, 4, 9, 16]


def _nested(count: int) -> list[int]:
    with open_workers("dask") as workers:
        return list(workers.run_in_order(square, range(count)))


@pytest.mark.parametrize("kind", ["threads", pytest.param("client", marks=pytest.mark.slow)])
def test_tasks_have_ended_when_the_iteration_is_given_up(kind: str) -> None:
    with KINDS[kind]() as executor, open_workers(executor) as workers:
        Work.begun.clear()
        Work.ended.clear()
        tasks = workers.run(Work.wait, range(1000))
        next(tasks)
        tasks.close()
        assert Work.begun == Work.ended
        known = set(Work.begun)
        time.sleep(0.1)
        assert Work.begun == known
        assert len(known) < 200


def test_only_some_tasks_are_submitted_before_results_are_taken() -> None:
    class Counting(ThreadPoolExecutor):
        submitted = 0

        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            self.submitted += 1
            return super().submit(*args, **kwargs)

    with Counting(2) as executor, open_workers(executor) as workers:
        tasks = workers.run(square, range(10, 1010))
        next(tasks)
        assert executor.submitted == 64
        assert sum(1 for _ in tasks) == 999
        assert executor.submitted == 1000


def test_the_executor_of_the_caller_stays_open() -> None:
    with ThreadPoolExecutor(1) as executor:
        with open_workers(executor) as workers:
            assert list(workers.run_in_order(square, [2])) == [4]
        assert executor.submit(square, 3).result() == 9


@pytest.mark.slow
# Lithops leaves files open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_lithops_runs_every_task_and_keeps_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lithops", reason="`pip install lithops` to run it")
    # Processes of this machine. What Lithops remembers of an interpreter is in the home folder.
    config = {"lithops": {"backend": "localhost", "storage": "localhost"}, "localhost": {"runtime": sys.executable}}
    monkeypatch.setenv("LITHOPS_CONFIG", json.dumps(config))
    monkeypatch.setattr("lithops.constants.CACHE_DIR", str(tmp_path))
    with open_workers("lithops") as workers:
        finished = {task.number: task for task in workers.run(square, range(5, 10))}
        assert [finished[number].value for number in range(5)] == [25, 36, None, 64, 81]
        assert [repr(finished[number].error) for number in range(5) if number != 2] == ["None"] * 4
        with pytest.raises(ValueError, match="seven"):
            finished[2].result()
        assert list(workers.run(square, [])) == []


def test_lithops_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lithops", None)
    with (
        pytest.raises(ImportError, match=r"^executor='lithops' needs lithops: pip install lithops$"),
        open_workers("lithops"),
    ):
        pass


@pytest.mark.parametrize("executor", ["Lithops", 4, ThreadPoolExecutor, object(), True, [], "Dask"])
def test_other_values_are_refused(executor: Any) -> None:
    with (
        pytest.raises(
            StoreConfigError, match=r"executor: expected an instance of concurrent\.futures\.Executor, a dis"
        ),
        open_workers(executor),
    ):
        pass


@pytest.mark.slow
def test_tasks_that_a_shutdown_cancels_do_not_hang_the_caller() -> None:
    busy = threading.Event()
    submitted = threading.Semaphore(0)

    class Counted(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(*args, **kwargs)
            submitted.release()
            return future

    with Counted(1) as pool, open_workers(pool) as workers:

        def stop() -> None:
            for _ in range(3):
                submitted.acquire()
            # The caller waits by now, or will find that its tasks are cancelled.
            time.sleep(0.2)
            pool.shutdown(wait=False, cancel_futures=True)
            busy.set()

        pool.submit(busy.wait, 300)
        stopping = threading.Thread(target=stop)
        stopping.start()
        found = [type(each.error) for each in workers.run(str, [1, 2])]
        stopping.join()
    assert found == [CancelledError, CancelledError]
