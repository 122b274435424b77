"""Run many tasks in a bounded number of threads, and stop all of them at the first error."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

import zarr

# Threads wait for the network most of the time, so there are more of them than cores.
DEFAULT_WORKERS: Final = 32
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def worker_count() -> int:
    """Return how many threads read and write chunks: zarr's `codec_pipeline.max_workers`, 32 if it is not set."""
    configured = zarr.config.get("codec_pipeline.max_workers", None)
    return max(1, int(configured)) if configured is not None else DEFAULT_WORKERS


class Batch[T]:
    """Tasks that are run in threads, and their results in the order of the tasks."""

    def __init__(self, tasks: Sequence[Callable[[], T]]) -> None:
        self._tasks = tasks
        self._numbers = iter(range(len(tasks)))
        self._results: list[T | None] = [None] * len(tasks)
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> list[T]:
        """Run all tasks and return their results; raise the first error, after which no task is begun."""
        count = min(worker_count(), len(self._tasks))
        if count == 1:
            self._work()
        else:
            wait([_pool(worker_count()).submit(self._work) for _ in range(count)])
        if self._error is not None:
            raise self._error
        return self._results  # type: ignore[return-value]

    def stop(self, error: BaseException) -> None:
        """Begin no further task. Tasks that have begun end by themselves."""
        with self._lock:
            self._error = self._error or error

    def _work(self) -> None:
        while (number := self._next()) is not None:
            try:
                self._results[number] = self._tasks[number]()
            except BaseException as error:
                self.stop(error)

    def _next(self) -> int | None:
        with self._lock:
            return None if self._error is not None else next(self._numbers, None)


def _pool(count: int) -> ThreadPoolExecutor:
    with _lock:
        if count not in _pools:
            _pools[count] = ThreadPoolExecutor(count, thread_name_prefix="parts_store_pipeline")
        return _pools[count]


def _forget_pools() -> None:
    """Forget pools whose threads are in the parent process."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
