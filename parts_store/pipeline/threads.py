"""Run many tasks in a bounded number of threads, and stop all of them at the first error."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, Final, cast

import zarr

from parts_store.engine.threads import Threads

# Threads wait for the network most of the time, so there are more of them than cores.
DEFAULT_WORKERS: Final = 32
_pools: Final[dict[int, Threads]] = {}


def worker_count() -> int:
    """Return how many threads read and write chunks: zarr's `codec_pipeline.max_workers`, 32 if it is not set."""
    configured = zarr.config.get("codec_pipeline.max_workers", None)
    return max(1, int(configured)) if configured is not None else DEFAULT_WORKERS


async def run[T](tasks: Sequence[Callable[[], T]], *, finishes: bool) -> list[T]:
    """Run tasks in threads and return their results in the order of the tasks; raise the first error.

    After an error, and when the caller is cancelled, no further task is begun. A caller that is cancelled waits for the
    tasks that have begun if `finishes` is true: a write that continues could overwrite a later one. A second
    cancellation does not wait.
    """
    if not tasks:
        return []
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def end() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            # The event loop was closed: its tasks had been cancelled, and nothing waits any more.
            return

    batch = _Batch(tasks, end)
    batch.start(worker_count())
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError as error:
        batch.stop(error)
        if finishes:
            await ended
        raise
    return batch.take_results()


class StoppedError(Exception):
    """What ends a task after another task of its batch has failed, or after the caller was cancelled."""


def require_not_stopped() -> None:
    """Raise `StoppedError` if the running task belongs to a batch that was stopped, and its result is of no use."""
    batch = _running.get()
    if batch is not None and batch.is_stopped:
        raise StoppedError


class _Batch[T]:
    """Tasks that threads run, and their results in the order of the tasks."""

    def __init__(self, tasks: Sequence[Callable[[], T]], end: Callable[[], None]) -> None:
        self._tasks = tasks
        self._end = end
        self._context = copy_context()
        self._results: list[T | None] = [None] * len(tasks)
        self._lock = threading.Lock()
        self._begun = 0
        self._unfinished = 0
        self._error: BaseException | None = None
        self.is_stopped = False

    def start(self, workers: int) -> None:
        """Begin the tasks, at most `workers` of them at the same time."""
        pool = _pools.get(workers) or _pools.setdefault(workers, Threads(workers, "parts_store_pipeline"))
        # One thread suffices for progress, also when all threads of the pool wait for what they read from other arrays.
        pool.start(self._work, is_urgent=True)
        for _ in range(min(workers, len(self._tasks)) - 1):
            pool.start(self._work)

    def stop(self, error: BaseException) -> None:
        """Begin no further task. Tasks that have begun end by themselves."""
        with self._lock:
            if not self.is_stopped:
                self.is_stopped, self._error = True, error
            is_over = not self._unfinished
        if is_over:
            self._end()

    def take_results(self) -> list[T]:
        """Return the results of all tasks; raise the first error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The traceback of the error refers to this frame, and a cycle would keep the arrays in memory.
                self._error = None
        return cast("list[T]", self._results)

    def _work(self) -> None:
        while (number := self._begin()) is not None:
            try:
                self._results[number] = self._context.copy().run(self._run, number)
            except BaseException as error:
                self.stop(error)
            self._finish()

    def _run(self, number: int) -> T:
        _running.set(self)
        return self._tasks[number]()

    def _begin(self) -> int | None:
        """Return the number of the next task, None if there is none."""
        with self._lock:
            if self.is_stopped or self._begun == len(self._tasks):
                return None
            self._begun += 1
            self._unfinished += 1
            return self._begun - 1

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            is_over = not self._unfinished and (self.is_stopped or self._begun == len(self._tasks))
        if is_over:
            self._end()


_running: ContextVar[_Batch[Any] | None] = ContextVar("parts_store_batch", default=None)
