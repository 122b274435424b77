"""Run many tasks in a bounded number of threads, and stop all of them at the first error."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, Final, NamedTuple, cast

import zarr

from parts_store._compat.zarr import watch_caller
from parts_store.engine.executor import is_one_of_many
from parts_store.engine.threads import Threads

# Threads wait for the network most of the time, so there are more of them than cores.
_WORKERS: Final = 32
# How many threads there are for small chunks on a network, whose requests take the same time as those of larger chunks.
_WORKERS_FOR_SMALL: Final = 96
# How long a thread works alone before its pace is looked at.
_ALONE_SECONDS: Final = 0.02
_pools: Final[dict[int, Threads]] = {}


class Pace(NamedTuple):
    """How many threads suit the tasks of a batch."""

    # The tasks are small and wait for a network: there are more threads.
    is_small: bool = False
    # One thread works alone as long as a task takes less than so many seconds: threads that need Python's lock most of
    # the time lose more by waiting for it than they gain.
    quick: float = 0.0


_ALL_AT_ONCE: Final = Pace()


def worker_count(*, is_small: bool = False) -> int:
    """Return the most threads that read and write chunks: zarr's `codec_pipeline.max_workers`, if it is set.

    If it is not set, there are more threads where each chunk `is_small` and on a network.
    """
    configured = zarr.config.get("codec_pipeline.max_workers", None)
    if configured is not None:
        return max(1, int(configured))
    return _WORKERS_FOR_SMALL if is_small else _WORKERS


async def run[T](tasks: Sequence[Callable[[], T]], *, finishes: bool, pace: Pace = _ALL_AT_ONCE) -> list[T]:
    """Run tasks in threads and return their results in the order of the tasks; raise the first error.

    After an error, and when the caller is cancelled, no further task is begun. A caller that is cancelled waits for the
    tasks that have begun if `finishes` is true: a write that continues could overwrite a later one. A second
    cancellation does not wait. If `finishes` is true, no further task is begun either after the thread that waits for
    the result has left, as it does after Ctrl-C.
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

    batch = _Batch(tasks, end, worker_count(is_small=pace.is_small), watch_caller() if finishes else lambda: True)
    batch.start()
    if not pace.quick:
        batch.start_others()
    try:
        await _wait_for(ended, batch, pace.quick)
    except asyncio.CancelledError as error:
        batch.stop(error)
        if finishes:
            await ended
        raise
    return batch.take_results()


async def _wait_for(ended: asyncio.Future[None], batch: "_Batch[Any]", quick: float) -> None:
    """Wait for the end of all tasks, and begin the other threads if one thread alone takes too long for a task."""
    begun = 0
    while batch.has_more_threads:
        done, _ = await asyncio.wait([ended], timeout=_ALONE_SECONDS)
        if done:
            return
        if (batch.begun - begun) * quick < _ALONE_SECONDS:
            batch.start_others()
        begun = batch.begun
    await asyncio.shield(ended)


class StoppedError(Exception):
    """What ends a task after another task of its batch has failed, or after the caller was cancelled or has left."""


def require_not_stopped() -> None:
    """Raise `StoppedError` if the running task belongs to a batch that was stopped, and its result is of no use."""
    batch = _running.get()
    if batch is not None and batch.is_stopped:
        raise StoppedError


class _Batch[T]:
    """Tasks that threads run, and their results in the order of the tasks."""

    def __init__(
        self, tasks: Sequence[Callable[[], T]], end: Callable[[], None], workers: int, has_caller: Callable[[], bool]
    ) -> None:
        self._tasks = tasks
        self._end = end
        self._has_caller = has_caller
        self._context = copy_context()
        self._results: list[T | None] = [None] * len(tasks)
        self._lock = threading.Lock()
        self.begun = 0
        self._pool = _pools.get(workers) or _pools.setdefault(workers, Threads(workers, "parts_store_pipeline"))
        self._others = min(workers, len(tasks)) - 1
        # Whether there are more tasks than threads, so that all threads are busy.
        self._is_crowded = len(tasks) > workers
        self._unfinished = 0
        self._error: BaseException | None = None
        self.is_stopped = False

    @property
    def has_more_threads(self) -> bool:
        """Whether `start_others` would begin tasks in further threads."""
        return self._others > 0

    def start(self) -> None:
        """Begin the tasks, one after another."""
        # One thread suffices for progress, also when all threads of the pool wait for what they read from other arrays.
        self._pool.start(self._work, is_urgent=True)

    def start_others(self) -> None:
        """Begin tasks in the other threads too, as many at the same time as there are workers."""
        others, self._others = self._others, 0
        for _ in range(others):
            self._pool.start(self._work)

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
        is_one_of_many.set(self._is_crowded)
        return self._tasks[number]()

    def _begin(self) -> int | None:
        """Return the number of the next task, None if there is none."""
        if not self._has_caller():
            self.stop(StoppedError())
        with self._lock:
            if self.is_stopped or self.begun == len(self._tasks):
                return None
            self.begun += 1
            self._unfinished += 1
            return self.begun - 1

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            is_over = not self._unfinished and (self.is_stopped or self.begun == len(self._tasks))
        if is_over:
            self._end()


_running: ContextVar[_Batch[Any] | None] = ContextVar("parts_store_batch", default=None)
