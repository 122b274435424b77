"""The executors: carry out steps on a backend, with an event loop (`run`) or without (`run_sync`)."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, assert_never

from parts_store.engine import steps
from parts_store.engine.backend import MAX_BULK_DELETE, Backend, BackendRequest
from parts_store.engine.concurrency import is_one_of_many, require_not_stopped, run_for_each, run_tasks_sync
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Found, Outcome, StepRequest, Steps
from parts_store.errors import ConcurrentWriteError
from parts_store.forks import require_own_process
from parts_store.format.layout import pieces_of

# The first wait before a retry; each further wait is twice as long.
_FIRST_WAIT_SECONDS = 0.01
# The requests that change what is stored.
_CHANGES = (steps.Put, steps.Refer, steps.Delete, steps.Move)
_MAX_AT_ONCE: Final = 64
# How long `run_sync` may wait for a lock on the thread of an event loop, which is blocked meanwhile.
_MAX_SECONDS_ON_LOOP = 5.0
# How long a writer waits for other clients in all, and the longest of its waits between two attempts.
_MAX_SECONDS: Final = 300.0
_LONGEST_WAIT_SECONDS: Final = 0.5


async def run[T](operation: Steps[T], backend: Backend, stats: Stats, *, at_once: int = _MAX_AT_ONCE) -> T:
    """Carry out steps to their end, with up to `at_once` requests of a batch at the same time."""
    with closing(_without_locks(operation, backend, has_loop=True)) as batches:
        try:
            batch = next(batches)
            while True:
                batch = batches.send(await _perform_all(batch, backend, stats, at_once))
        except StopIteration as done:
            value: T = done.value
            return value


def run_sync[T](operation: Steps[T], backend: Backend, stats: Stats) -> T:
    """Carry out steps to their end without an event loop."""
    with closing(_without_locks(operation, backend, has_loop=False)) as batches:
        try:
            batch = next(batches)
            while True:
                batch = batches.send(_perform_all_sync(batch, backend, stats))
        except StopIteration as done:
            value: T = done.value
            return value


def _without_locks[T](operation: Steps[T], backend: Backend, *, has_loop: bool) -> Steps[T]:
    """Take the locks of steps, refuse them further waits after five minutes, and yield all other batches.

    When this generator ends or is closed, the steps are closed, and then their locks are released.
    """
    require_own_process()
    outcomes: tuple[Outcome, ...] | None = None
    refused_since: float | None = None
    held: list[Callable[[], None]] = []
    patience: Patience | None = None
    try:
        while True:
            try:
                batch = next(operation) if outcomes is None else operation.send(outcomes)
            except StopIteration as done:
                value: T = done.value
                return value
            first = batch[0]
            if isinstance(first, steps.Lock):
                outcomes = (_take(first, backend, held),)
                is_taken = isinstance(outcomes[0], steps.Done)
                if has_loop and is_taken:
                    held.append(_note_holder(first, backend))
                elif not has_loop and not is_taken:
                    refused_since = refused_since or time.monotonic()
                    _require_no_blocked_loop(first, backend, refused_since)
                continue
            if isinstance(first, steps.Wait) and first.is_for_others:
                patience = patience or _patience.get() or Patience()
                if patience.is_over():
                    outcomes = (steps.Refused(),)
                    continue
            outcomes = yield batch
    finally:
        _end(operation, held)


class Patience:
    """How long a writer waits for other clients: five minutes since it first had to wait, whatever it waits for."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time since the writer first had to wait, which is now if it had not to wait before."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since

    def is_over(self) -> bool:
        """Return whether the writer has to give up."""
        return self.seconds > _MAX_SECONDS


# The patience that several operations share, because they are attempts of one write.
_patience: ContextVar[Patience | None] = ContextVar("parts_store_patience", default=None)


def retry(write: Callable[[], None]) -> None:
    """Write a chunk, and write it again as long as other clients change it in between.

    Only `ConcurrentWriteError` is followed by a further attempt: nothing was written then, and the next attempt reads
    what the other client has written. After `AmbiguousWriteError` this is unknown: a second attempt could overwrite
    what a third client wrote to the same region after the first one.

    Raises
    ------
    ConcurrentWriteError
        If other clients have changed the chunk for five minutes, or have held its lock. The waits of all attempts count
        together. The error of the last attempt is its cause.
    """
    patience = Patience()
    token = _patience.set(patience)
    attempts = 0
    try:
        while True:
            try:
                write()
            except ConcurrentWriteError as error:
                attempts += 1
                if patience.is_over():
                    problem = (
                        f"it was changed during all {attempts} attempts to write it, in {patience.seconds:.0f} seconds"
                        "; let fewer clients write to it at the same time, or use smaller chunks or shards"
                    )
                    raise ConcurrentWriteError(error.chunk_key, problem) from error
                # Every wait is random, and on average twice as long as the one before, up to the longest.
                longest = min(_FIRST_WAIT_SECONDS / 5 * 2.0 ** min(attempts, 16), _LONGEST_WAIT_SECONDS)
                # Nothing of this write is stored, so it can end here if the caller does not want it any more.
                require_not_stopped()
                time.sleep(random.uniform(0, longest))  # noqa: S311 - not for cryptography
            else:
                return
    finally:
        _patience.reset(token)


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


async def _perform_all(
    batch: tuple[StepRequest, ...], backend: Backend, stats: Stats, at_once: int
) -> tuple[Outcome, ...]:
    if len(batch) == 1:
        return (await _perform(batch[0], backend, stats),)
    if not backend.has_latency:
        return tuple([await _perform(request, backend, stats) for request in batch])
    # After an error, what other reads return is of no use. All other requests end before an error is raised, so that
    # none of them takes effect later.
    finishes = not all(isinstance(request, steps.Get) for request in batch)
    perform = partial(_perform, backend=backend, stats=stats)
    return tuple(await run_for_each(batch, perform, at_once, finishes=finishes))


def _perform_all_sync(batch: tuple[StepRequest, ...], backend: Backend, stats: Stats) -> tuple[Outcome, ...]:
    if len(batch) == 1 or not backend.has_latency or is_one_of_many.get():
        return tuple([_perform_sync(request, backend, stats) for request in batch])
    return tuple(run_tasks_sync([partial(_perform_sync, request, backend, stats) for request in batch], _MAX_AT_ONCE))


async def _perform(request: StepRequest, backend: Backend, stats: Stats) -> Outcome:
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


def _perform_sync(request: StepRequest, backend: Backend, stats: Stats) -> Outcome:
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
            is_written = not isinstance(outcome, steps.Refused | steps.Failed)
            written = sum(piece.nbytes for piece in pieces_of(data)) if is_written else 0
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
