"""The two loops that carry steps to a backend: with an event loop, and without. They differ by one `await`."""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from typing import assert_never

from parts_store.engine.backend import MAX_BULK_DELETE, Backend, BackendRequest
from parts_store.engine.stats import Stats
from parts_store.engine.steps import (
    Delete,
    Done,
    Failed,
    Found,
    Get,
    Head,
    List,
    Lock,
    Move,
    Outcome,
    Put,
    Refer,
    Refused,
    Request,
    Steps,
    Trial,
    Wait,
    gate_of,
)
from parts_store.errors import ConcurrentWriteError
from parts_store.forks import require_own_process

# The first wait before a read is repeated; each further one is twice as long.
_FIRST_WAIT_SECONDS = 0.01
_MAX_AT_ONCE = 64
# How long a call without an event loop waits for a lock on the thread of one, which stands still meanwhile.
_MAX_SECONDS_ON_LOOP = 5.0
_MAX_THREADS = 32


async def run[T](steps: Steps[T], backend: Backend, stats: Stats, *, at_once: int = _MAX_AT_ONCE) -> T:
    """Carry out steps to their end, up to `at_once` requests of a batch at the same time."""
    require_own_process()
    outcomes: tuple[Outcome, ...] | None = None
    # Closed at once when a request fails, so that the steps can undo what they were about to make true.
    with ExitStack() as held, closing(steps):
        while True:
            try:
                batch = next(steps) if outcomes is None else steps.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(batch[0], Lock):
                outcomes = (_take(batch[0], backend, held),)
                if isinstance(outcomes[0], Done):
                    held.enter_context(_held_by_loop(batch[0], backend))
            else:
                outcomes = await _perform_all(batch, backend, stats, at_once)


def run_sync[T](steps: Steps[T], backend: Backend, stats: Stats) -> T:
    """Carry out steps to their end without an event loop."""
    require_own_process()
    outcomes: tuple[Outcome, ...] | None = None
    refused_since: float | None = None
    with ExitStack() as held, closing(steps):
        while True:
            try:
                batch = next(steps) if outcomes is None else steps.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(batch[0], Lock):
                outcomes = (_take(batch[0], backend, held),)
                if isinstance(outcomes[0], Refused):
                    refused_since = refused_since or time.monotonic()
                    _require_no_standstill(batch[0], backend, refused_since)
            else:
                outcomes = _perform_all_sync(batch, backend, stats)


def _take(lock: Lock, backend: Backend, held: ExitStack) -> Outcome:
    """Take a lock without waiting for it, to be given back when the steps have ended."""
    taken = backend.lock(lock)
    if taken is None:
        return Refused()
    held.callback(taken)
    return Done()


# The locks that the tasks of event loops hold; a task has it more than once if it shares it with others.
_of_loops: Counter[tuple[int, str, str]] = Counter()


def _names(lock: Lock, backend: Backend) -> list[tuple[int, str, str]]:
    """The lock, and the one that is shared, as the running event loop's."""
    loop = id(asyncio.get_running_loop())
    shared = [] if lock.shared is None else [lock.shared, gate_of(lock.shared)]
    return [(loop, str(backend), key) for key in (lock.key, *shared)]


@contextmanager
def _held_by_loop(lock: Lock, backend: Backend) -> Iterator[None]:
    """Remember that a task of the running event loop holds a lock."""
    name = _names(lock, backend)[0]
    _of_loops[name] += 1
    try:
        yield
    finally:
        _of_loops[name] -= 1
        if not _of_loops[name]:
            del _of_loops[name]


def _require_no_standstill(lock: Lock, backend: Backend, since: float) -> None:
    """Raise if waiting for a lock stops the event loop whose task holds it, or stops any event loop for long."""
    try:
        names = _names(lock, backend)
    except RuntimeError:
        # No event loop runs on this thread.
        return
    instead = "on the thread of an event loop, await `set` or `delete` instead of calling `set_sync` or `delete_sync`"
    if any(name in _of_loops for name in names):
        raise ConcurrentWriteError(lock.key, f"a task of this thread's event loop has its lock; {instead}")
    if time.monotonic() - since > _MAX_SECONDS_ON_LOOP:
        problem = f"somebody has held its lock for {_MAX_SECONDS_ON_LOOP:g} seconds; {instead}"
        raise ConcurrentWriteError(lock.key, problem)


async def _perform_all(batch: tuple[Request, ...], backend: Backend, stats: Stats, at_once: int) -> tuple[Outcome, ...]:
    if len(batch) == 1:
        return (await _perform(batch[0], backend, stats),)
    places = asyncio.Semaphore(at_once)

    async def perform(request: Request) -> Outcome:
        async with places:
            return await _perform(request, backend, stats)

    # All of them come to an end before an error is raised: nothing of ours is still under way then.
    outcomes = await asyncio.gather(*map(perform, batch), return_exceptions=True)
    return _without_errors(outcomes)


def _perform_all_sync(batch: tuple[Request, ...], backend: Backend, stats: Stats) -> tuple[Outcome, ...]:
    if len(batch) == 1 or not backend.capabilities.is_remote:
        return tuple(_perform_sync(each, backend, stats) for each in batch)
    futures = [_threads().submit(_perform_sync, each, backend, stats) for each in batch]
    try:
        wait(futures)
    except BaseException:
        # Ctrl-C: a PUT that went on by itself could come after what is written next.
        for future in futures:
            future.cancel()
        wait(futures)
        raise
    errors = [future.exception() for future in futures]
    return _without_errors([error or future.result() for error, future in zip(errors, futures, strict=True)])


def _without_errors(outcomes: list[Outcome | BaseException]) -> tuple[Outcome, ...]:
    """The outcomes, or the first error, bare: zarr's users do not expect a group."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, BaseException))


async def _perform(request: Request, backend: Backend, stats: Stats) -> Outcome:
    if isinstance(request, Trial):
        try:
            return await _perform(request.request, backend, stats)
        except Exception as error:
            return _failed(request, error, stats)
    if isinstance(request, Wait):
        await asyncio.sleep(_seconds(request))
        return Done()
    if isinstance(request, Lock):
        raise TypeError(f"a lock is taken alone: {request}")
    if isinstance(request, Put | Refer | Delete | Move):
        outcome = await _to_its_end(request, backend)
    else:
        outcome = await backend.perform(request)
    _count(request, outcome, stats)
    return outcome


async def _to_its_end(request: BackendRequest, backend: Backend) -> Outcome:
    """Carry out a request, also if it is cancelled: if it went on by itself, it could come after what is written next.

    Who cannot wait for that cancels again.
    """
    performing = asyncio.ensure_future(backend.perform(request))
    try:
        return await asyncio.shield(performing)
    except asyncio.CancelledError:
        await asyncio.wait({performing})
        # It is nobody's business any more, not even what went wrong.
        if not performing.cancelled():
            performing.exception()
        raise


def _perform_sync(request: Request, backend: Backend, stats: Stats) -> Outcome:
    if isinstance(request, Trial):
        try:
            return _perform_sync(request.request, backend, stats)
        except Exception as error:
            return _failed(request, error, stats)
    if isinstance(request, Wait):
        time.sleep(_seconds(request))
        return Done()
    if isinstance(request, Lock):
        raise TypeError(f"a lock is taken alone: {request}")
    outcome = backend.perform_sync(request)
    _count(request, outcome, stats)
    return outcome


def _failed(trial: Trial, error: Exception, stats: Stats) -> Outcome:
    """The outcome of a trial that raised; the request was made, and counts."""
    outcome = Failed(error)
    _count(trial.request, outcome, stats)
    return outcome


def _seconds(wait: Wait) -> float:
    return _FIRST_WAIT_SECONDS * 2.0 ** (wait.repeat - 1)


def _count(request: BackendRequest, outcome: Outcome, stats: Stats) -> None:
    match request:
        case Get():
            stats.count("get", nbytes_read=memoryview(outcome.data).nbytes if isinstance(outcome, Found) else 0)
        case Head():
            stats.count("head")
        case Put(data=data):
            written = 0 if isinstance(outcome, Refused | Failed) else memoryview(data).nbytes
            stats.count("put", nbytes_written=written)
        case Refer():
            stats.count("put")
        case Delete(keys):
            stats.count("delete", calls=-(-len(keys) // MAX_BULK_DELETE))
        case List():
            stats.count("list")
        case Move():
            stats.count("copy")
        case never:
            assert_never(never)


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _threads() -> ThreadPoolExecutor:
    """The threads that make the requests of a batch at once, where there is no event loop."""
    global _pool  # noqa: PLW0603 - threads are worth sharing between stores
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="parts_store")
        return _pool


def _forget_threads() -> None:
    """Threads do not survive a fork, and a lock may be held by one of them."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
