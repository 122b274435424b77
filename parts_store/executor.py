"""The two loops that carry steps to a backend: with an event loop, and without. They differ by one `await`."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import assert_never

from parts_store.backends import MAX_BULK_DELETE, Backend, BackendRequest
from parts_store.plan.steps import (
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
)
from parts_store.stats import Stats

# The first wait before a read is repeated; each further one is twice as long.
_FIRST_WAIT_SECONDS = 0.01
_MAX_AT_ONCE = 64
_MAX_THREADS = 32


async def run[T](steps: Steps[T], backend: Backend, stats: Stats, *, at_once: int = _MAX_AT_ONCE) -> T:
    """Carry out steps to their end, up to `at_once` requests of a batch at the same time."""
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
            else:
                outcomes = await _perform_all(batch, backend, stats, at_once)


def run_sync[T](steps: Steps[T], backend: Backend, stats: Stats) -> T:
    """Carry out steps to their end without an event loop."""
    outcomes: tuple[Outcome, ...] | None = None
    with ExitStack() as held, closing(steps):
        while True:
            try:
                batch = next(steps) if outcomes is None else steps.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(batch[0], Lock):
                outcomes = (_take(batch[0], backend, held),)
            else:
                outcomes = _perform_all_sync(batch, backend, stats)


def _take(lock: Lock, backend: Backend, held: ExitStack) -> Outcome:
    """Take a lock without waiting for it, to be given back when the steps have ended."""
    taken = backend.lock(lock)
    if taken is None:
        return Refused()
    held.callback(taken)
    return Done()


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
