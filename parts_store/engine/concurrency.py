"""Run many requests or functions at the same time, with a limit.

| function            | what runs at the same time             | the caller waits      |
|---------------------|----------------------------------------|-----------------------|
| `run_for_each`      | coroutines                             | on its event loop     |
| `run_in_threads`    | functions in threads                   | on its event loop     |
| `run_tasks_sync`    | functions in threads, and in this one  | without an event loop |

Results are in the order of what was given. After an error nothing further is begun, and the error is raised when
everything that was begun has ended; of several errors, the first in the order of what was given. (Files are
parsed, and tasks on other machines are run, by `executors`.)

The threads are daemon threads, which a process that ends does not wait for. Those of
`concurrent.futures.ThreadPoolExecutor` keep a process alive until the server has responded to all of them, or until the
last retry has failed.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, Final, cast

from parts_store._compat.zarr import watch_caller

# How long a thread works alone before its pace is looked at.
_ALONE_SECONDS: Final = 0.02
# Whether the running task is one of more tasks than there are threads: then its own requests are made one by one,
# because handing them to other threads would cost time and send none of them earlier.
is_one_of_many: ContextVar[bool] = ContextVar("parts_store_is_one_of_many", default=False)


async def run_for_each[T, R](
    items: Collection[T], act: Callable[[T], Awaitable[R]], at_once: int, *, finishes: bool = False
) -> list[R]:
    """Await `act(item)` for every item, at most `at_once` at the same time, and return the results in order.

    After the first error the other calls are cancelled, unless `finishes` is true: calls that have begun end by
    themselves then, because what they do must not take effect later.
    """
    if not items:
        return []
    waiting = iter(enumerate(items))
    results: dict[int, R] = {}
    errors: dict[int, Exception] = {}

    async def work() -> None:
        for number, item in waiting:
            if errors:
                return
            try:
                results[number] = await act(item)
            except Exception as error:
                errors[number] = error
                raise

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(items)))]
    is_cancelled = True
    try:
        # It hands a cancellation on to all calls, and ends when the first of them ends. A cancellation is handed on at
        # once: otherwise a second one could reach the calls together with the first, and calls that end only when they
        # are cancelled twice would not end.
        with suppress(Exception):
            await asyncio.gather(*workers)
        is_cancelled = False
    finally:
        if is_cancelled or (errors and not finishes):
            _cancel_once(workers)
        await asyncio.gather(*workers, return_exceptions=True)
    if errors:
        raise errors[min(errors)]
    for worker in workers:
        # Raises what is no error, such as a cancellation by the call itself.
        worker.result()
    return [results[number] for number in range(len(items))]


def _cancel_once(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel the tasks that were not cancelled before: those wait for the request that they have sent."""
    for task in tasks:
        if not task.cancelling():
            task.cancel()


async def run_in_threads[T](
    tasks: Sequence[Callable[[], T]], at_once: int, *, finishes: bool, quick: float = 0.0
) -> list[T]:
    """Run tasks in threads and return their results in the order of the tasks; raise the first error.

    After an error, and when the caller is cancelled, no further task is begun. A caller that is cancelled waits for the
    tasks that have begun if `finishes` is true: a write that continues could overwrite a later one. A second
    cancellation does not wait. If `finishes` is true, no further task is begun either after the thread that waits for
    the result has left, as it does after Ctrl-C.

    One thread works alone as long as a task takes less than `quick` seconds: threads that need Python's lock most of
    the time lose more by waiting for it than they gain.
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

    batch = _Batch(tasks, end, at_once, watch_caller() if finishes else lambda: True)
    batch.start()
    if not quick:
        batch.start_others()
    try:
        await _wait_for(ended, batch, quick)
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


def run_tasks_sync[T](tasks: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """Run tasks in threads without an event loop and return their results in the order of the tasks.

    After an error, and after Ctrl-C, no further task is begun, and the tasks that have begun have ended.
    """
    if not tasks:
        return []
    ended = threading.Event()
    batch = _Batch(tasks, ended.set, at_once)
    # A thread that would only wait runs tasks itself, unless Ctrl-C could interrupt it.
    is_main = threading.current_thread() is threading.main_thread()
    try:
        batch.start_others()
        if is_main:
            batch.start()
        else:
            batch.work()
        ended.wait()
    except BaseException as error:
        # A PUT that continues in its thread could overwrite a later write.
        batch.stop(error)
        ended.wait()
        raise
    return batch.take_results()


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
        self,
        tasks: Sequence[Callable[[], T]],
        end: Callable[[], None],
        at_once: int,
        has_caller: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tasks = tasks
        self._end = end
        self._has_caller = has_caller
        self._context = copy_context()
        self._results: list[T | None] = [None] * len(tasks)
        self._lock = threading.Lock()
        self.begun = 0
        self._pool = _pools.get(at_once) or _pools.setdefault(at_once, _Threads(at_once))
        self._others = min(at_once, len(tasks)) - 1
        # Whether there are more tasks than threads, so that all threads are busy.
        self._is_crowded = len(tasks) > at_once
        self._unfinished = 0
        # The error to raise, and the number of its task.
        self._error: tuple[int, BaseException] | None = None
        self.is_stopped = False

    @property
    def has_more_threads(self) -> bool:
        """Whether `start_others` would begin tasks in further threads."""
        return self._others > 0

    def start(self) -> None:
        """Begin the tasks, one after another."""
        # One thread suffices for progress, also when all threads of the pool wait for what they read from other arrays.
        self._pool.start(self.work, is_urgent=True)

    def start_others(self) -> None:
        """Begin tasks in the other threads too, as many at the same time as there may be."""
        others, self._others = self._others, 0
        for _ in range(others):
            self._pool.start(self.work)

    def stop(self, error: BaseException, number: int = -1) -> None:
        """Begin no further task, because of an error of a task or of the caller. Tasks that have begun end.

        Of several errors, that of the first task is raised.
        """
        with self._lock:
            self.is_stopped = True
            if self._error is None or (number < self._error[0] and not isinstance(error, StoppedError)):
                self._error = number, error
            is_over = not self._unfinished
        if is_over:
            self._end()

    def take_results(self) -> list[T]:
        """Return the results of all tasks; raise the first error."""
        if self._error is not None:
            try:
                raise self._error[1]
            finally:
                # The traceback of the error refers to this frame, and a cycle would keep the arrays in memory.
                self._error = None
        return cast("list[T]", self._results)

    def work(self) -> None:
        """Run tasks in this thread until all have begun."""
        while (number := self._begin()) is not None:
            try:
                self._results[number] = self._context.copy().run(self._run, number)
            except BaseException as error:
                self.stop(error, number)
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


class _Threads:
    """A bounded number of daemon threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reset()

    def reset(self) -> None:
        """Forget all threads and tasks."""
        self._changed = threading.Condition()
        self._tasks = deque[Callable[[], None]]()
        self._count = 0
        self._waiting = 0

    def start(self, task: Callable[[], None], *, is_urgent: bool = False) -> None:
        """Run a task, which raises nothing, in a thread.

        An urgent task does not wait for a thread that has time: if there is none, it gets a further thread, above the
        limit. So tasks of the pool may wait for urgent tasks.
        """
        with self._changed:
            if is_urgent:
                self._tasks.appendleft(task)
            else:
                self._tasks.append(task)
            if self._waiting >= len(self._tasks):
                self._changed.notify()
                return
            if self._count >= self._limit and not is_urgent:
                return
            self._count += 1
        try:
            threading.Thread(target=self._work, name="parts_store", daemon=True).start()
        except RuntimeError:
            # The system has no further thread. A thread that does not exist must not count, or tasks would wait for it.
            with self._changed:
                self._count -= 1
                if task in self._tasks and (is_urgent or not self._count):
                    self._tasks.remove(task)
                    raise

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks:
                    if self._count > self._limit:
                        self._count -= 1
                        return
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
                task = self._tasks.popleft()
            task()
            # A thread that waits keeps nothing of the task before in memory.
            del task


# The pools of this process, by their limits.
_pools: Final[dict[int, _Threads]] = {}


def _forget_threads() -> None:
    """Forget the threads, which do not exist in a forked process, and the locks, which they may hold."""
    for pool in _pools.values():
        pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
