"""The executors: carry out steps on a backend, with an event loop (`run`) or without (`run_sync`)."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, assert_never

from parts_store.engine import steps
from parts_store.engine.backend import MAX_BULK_DELETE, Backend, BackendRequest
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Found, Outcome, Request, Steps
from parts_store.engine.threads import Threads
from parts_store.errors import ConcurrentWriteError
from parts_store.forks import require_own_process

# The first wait before a retry; each further wait is twice as long.
_FIRST_WAIT_SECONDS = 0.01
# The requests that change what is stored.
_CHANGES = (steps.Put, steps.Refer, steps.Delete, steps.Move)
_MAX_AT_ONCE = 64
# How long `run_sync` may wait for a lock on the thread of an event loop, which is blocked meanwhile.
_MAX_SECONDS_ON_LOOP = 5.0
_MAX_THREADS = 64
# What a thread sets that is one of many which make requests at the same time: its own requests are made one by one,
# because handing them to other threads would cost time and send none of them earlier.
is_one_of_many: ContextVar[bool] = ContextVar("parts_store_is_one_of_many", default=False)


async def run[T](operation: Steps[T], backend: Backend, stats: Stats, *, at_once: int = _MAX_AT_ONCE) -> T:
    """Carry out steps to their end, with up to `at_once` requests of a batch at the same time."""
    require_own_process()
    outcomes: tuple[Outcome, ...] | None = None
    held: list[Callable[[], None]] = []
    try:
        while True:
            try:
                batch = next(operation) if outcomes is None else operation.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(batch[0], steps.Lock):
                outcomes = (_take(batch[0], backend, held),)
                if isinstance(outcomes[0], steps.Done):
                    held.append(_note_holder(batch[0], backend))
            else:
                outcomes = await _perform_all(batch, backend, stats, at_once)
    finally:
        _end(operation, held)


def run_sync[T](operation: Steps[T], backend: Backend, stats: Stats) -> T:
    """Carry out steps to their end without an event loop."""
    require_own_process()
    outcomes: tuple[Outcome, ...] | None = None
    refused_since: float | None = None
    held: list[Callable[[], None]] = []
    try:
        while True:
            try:
                batch = next(operation) if outcomes is None else operation.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(batch[0], steps.Lock):
                outcomes = (_take(batch[0], backend, held),)
                if isinstance(outcomes[0], steps.Refused):
                    refused_since = refused_since or time.monotonic()
                    _require_no_blocked_loop(batch[0], backend, refused_since)
            else:
                outcomes = _perform_all_sync(batch, backend, stats)
    finally:
        _end(operation, held)


def _end(operation: Steps[Any], held: list[Callable[[], None]]) -> None:
    """Close steps, so that they can undo what they prepared if a request has failed, and then release their locks."""
    if not held:
        operation.close()
        return
    with ExitStack() as releasing:
        for release in held:
            releasing.callback(release)
        operation.close()


def _take(lock: steps.Lock, backend: Backend, held: list[Callable[[], None]]) -> Outcome:
    """Take a lock without waiting for it; it is released when the steps have ended."""
    release = backend.lock(lock)
    if release is None:
        return steps.Refused()
    held.append(release)
    return steps.Done()


# How often the tasks of each event loop hold each lock.
_held_by_loops: Counter[tuple[int, str, str]] = Counter()


def _names(lock: steps.Lock, backend: Backend) -> list[tuple[int, str, str]]:
    """Return the entries of `_held_by_loops` for a lock and its shared lock, for the running event loop."""
    loop = id(asyncio.get_running_loop())
    shared = [] if lock.shared is None else [lock.shared, steps.gate_of(lock.shared)]
    return [(loop, str(backend), key) for key in (lock.key, *shared)]


def _note_holder(lock: steps.Lock, backend: Backend) -> Callable[[], None]:
    """Note that a task of the running event loop holds a lock; return what is to be called when it is released."""
    name = _names(lock, backend)[0]
    _held_by_loops[name] += 1

    def forget() -> None:
        _held_by_loops[name] -= 1
        if not _held_by_loops[name]:
            del _held_by_loops[name]

    return forget


def _require_no_blocked_loop(lock: steps.Lock, backend: Backend, since: float) -> None:
    """Raise if waiting blocks the event loop whose task holds the lock, or blocks any event loop for long."""
    try:
        names = _names(lock, backend)
    except RuntimeError:
        # No event loop runs on this thread.
        return
    instead = "on the thread of an event loop, await `set` or `delete` instead of calling `set_sync` or `delete_sync`"
    if any(name in _held_by_loops for name in names):
        raise ConcurrentWriteError(lock.key, f"a task of this thread's event loop holds its lock; {instead}")
    if time.monotonic() - since > _MAX_SECONDS_ON_LOOP:
        problem = f"its lock has been held for {_MAX_SECONDS_ON_LOOP:g} seconds; {instead}"
        raise ConcurrentWriteError(lock.key, problem)


async def _perform_all(batch: tuple[Request, ...], backend: Backend, stats: Stats, at_once: int) -> tuple[Outcome, ...]:
    if len(batch) == 1:
        return (await _perform(batch[0], backend, stats),)
    if not backend.capabilities.is_remote:
        return tuple([await _perform(request, backend, stats) for request in batch])
    if all(isinstance(request, steps.Get) for request in batch):
        # After an error, what the other reads return is of no use.
        return tuple(await run_for_each(batch, lambda request: _perform(request, backend, stats), at_once))
    places = asyncio.Semaphore(at_once)

    async def perform(request: Request) -> Outcome:
        async with places:
            return await _perform(request, backend, stats)

    # All requests end before an error is raised, so that none of them takes effect later.
    outcomes = await asyncio.gather(*map(perform, batch), return_exceptions=True)
    return _without_errors(outcomes)


def _perform_all_sync(batch: tuple[Request, ...], backend: Backend, stats: Stats) -> tuple[Outcome, ...]:
    if len(batch) == 1 or not backend.capabilities.is_remote or is_one_of_many.get():
        return tuple([_perform_sync(each, backend, stats) for each in batch])
    # A thread that would only wait makes the first request itself, unless Ctrl-C could interrupt it.
    own = 0 if threading.current_thread() is threading.main_thread() else 1
    futures = [_threads.submit(partial(_perform_sync, each, backend, stats)) for each in batch[own:]]
    try:
        first = [_outcome_or_error(each, backend, stats) for each in batch[:own]]
        wait(futures)
    except BaseException:
        # Ctrl-C: a PUT that continues in its thread could overwrite a later write.
        for future in futures:
            future.cancel()
        wait(futures)
        raise
    return _without_errors([*first, *(future.exception() or future.result() for future in futures)])


def _outcome_or_error(request: Request, backend: Backend, stats: Stats) -> Outcome | BaseException:
    try:
        return _perform_sync(request, backend, stats)
    except Exception as error:
        return error


def _without_errors(outcomes: list[Outcome | BaseException]) -> tuple[Outcome, ...]:
    """Return the outcomes; raise the first error, not an exception group, which users of zarr do not expect."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, BaseException))


async def _perform(request: Request, backend: Backend, stats: Stats) -> Outcome:
    if isinstance(request, steps.Trial):
        try:
            return await _perform(request.request, backend, stats)
        except Exception as error:
            return _failed(request, error, stats)
    if isinstance(request, steps.Wait):
        await asyncio.sleep(_seconds(request))
        return steps.Done()
    if isinstance(request, steps.Lock):
        raise TypeError(f"expected a lock in a batch of its own, found {request}")
    if isinstance(request, _CHANGES):
        outcome = await _finish(request, backend)
    else:
        outcome = await backend.perform(request)
    _count(request, outcome, stats)
    return outcome


async def _finish(request: BackendRequest, backend: Backend) -> Outcome:
    """Carry out a request to its end even if the task is cancelled; otherwise it could overwrite a later write.

    A second cancellation does not wait.
    """
    # Local backends mostly finish at once, and then the event loop has nothing to do.
    performing = asyncio.Task(backend.perform(request), loop=asyncio.get_running_loop(), eager_start=True)
    if performing.done():
        return performing.result()
    try:
        return await asyncio.shield(performing)
    except asyncio.CancelledError:
        await asyncio.wait({performing})
        # The result is no longer needed. Reading the exception prevents a warning of asyncio.
        if not performing.cancelled():
            performing.exception()
        raise


def _perform_sync(request: Request, backend: Backend, stats: Stats) -> Outcome:
    if isinstance(request, steps.Trial):
        try:
            return _perform_sync(request.request, backend, stats)
        except Exception as error:
            return _failed(request, error, stats)
    if isinstance(request, steps.Wait):
        time.sleep(_seconds(request))
        return steps.Done()
    if isinstance(request, steps.Lock):
        raise TypeError(f"expected a lock in a batch of its own, found {request}")
    outcome = backend.perform_sync(request)
    _count(request, outcome, stats)
    return outcome


def _failed(trial: steps.Trial, error: Exception, stats: Stats) -> Outcome:
    """Return the outcome of a trial that raised, and count the request."""
    outcome = steps.Failed(error)
    _count(trial.request, outcome, stats)
    return outcome


def _seconds(wait: steps.Wait) -> float:
    # At random, so that clients that got into each other's way do not do so again.
    return _FIRST_WAIT_SECONDS * 2.0 ** (wait.repeat - 1) * random.uniform(0.5, 1.5)  # noqa: S311


def _count(request: BackendRequest, outcome: Outcome, stats: Stats) -> None:
    match request:
        case steps.Get():
            stats.count("get", nbytes_read=memoryview(outcome.data).nbytes if isinstance(outcome, Found) else 0)
        case steps.Head():
            stats.count("head")
        case steps.Put(data=data):
            written = 0 if isinstance(outcome, steps.Refused | steps.Failed) else memoryview(data).nbytes
            stats.count("put", nbytes_written=written)
        case steps.Refer():
            stats.count("put")
        case steps.Delete(keys):
            stats.count("delete", calls=-(-len(keys) // MAX_BULK_DELETE))
        case steps.List():
            stats.count("list")
        case steps.Move():
            stats.count("copy")
        case never:
            assert_never(never)


# The threads that make the requests of a batch at the same time without an event loop. All stores share them.
_threads = Threads(_MAX_THREADS, "parts_store")
