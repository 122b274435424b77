"""Threads: a bounded number of daemon threads, which a process that ends does not wait for.

The threads of `concurrent.futures.ThreadPoolExecutor` keep a process alive until the server has responded to all of
them, or until the last retry has failed.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from weakref import WeakSet


class Threads:
    """A pool of daemon threads."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        """Forget all threads and tasks."""
        self._changed = threading.Condition()
        self._tasks = deque[Callable[[], None]]()
        self._count = 0
        self._waiting = 0

    def submit[T](self, function: Callable[[], T]) -> Future[T]:
        """Run a function in a thread, as soon as one of them has time."""
        future = Future[T]()

        def task() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        self.start(task)
        return future

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
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
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


_pools: WeakSet[Threads] = WeakSet()


def _forget_threads() -> None:
    """Forget the threads, which do not exist in a forked process, and the locks, which they may hold."""
    for pool in _pools:
        pool._reset()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
