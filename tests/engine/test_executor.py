"""The loops leave nothing behind: no request under way, no step unfinished."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import obstore
import pytest
import zarr
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.executor import run, run_sync
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Done, Lock, Outcome, Put, Refused, Steps, Wait

SECONDS = 300


def opened_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass(slots=True)
class Slow:
    """A backend far away, whose requests take a while, and which knows how many are under way."""

    seconds: float = 0
    # No request ends before this is set.
    opened: threading.Event = field(default_factory=opened_gate)
    # A request of a thread ends only after so many were under way at once.
    together: int = 1
    under_way: int = 0
    most: int = 0
    made: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    counting: Any = field(default_factory=threading.Condition)

    has_latency: ClassVar[bool] = True

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        if lock.key in self.held:
            return None
        self.held.add(lock.key)
        return lambda: self.held.remove(lock.key)

    def _begin(self, key: str) -> None:
        with self.counting:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.made.append(key)
            self.counting.notify_all()

    def _end(self) -> None:
        with self.counting:
            self.under_way -= 1

    async def perform(self, request: Any) -> Outcome:
        self._begin(request.key)
        await asyncio.sleep(self.seconds)
        while not self.opened.is_set():  # noqa: ASYNC110 (threads wait for it, too)
            await asyncio.sleep(0)
        self._end()
        if request.key == "fails":
            raise OSError("refused")
        return Done()

    def perform_sync(self, request: Any) -> Outcome:
        self._begin(request.key)
        with self.counting:
            assert self.counting.wait_for(lambda: self.most >= self.together, SECONDS)
        assert self.opened.wait(SECONDS)
        time.sleep(self.seconds)
        self._end()
        if request.key == "fails":
            raise OSError("refused")
        return Done()


def puts(*keys: str) -> Steps[int]:
    outcomes = yield tuple(Put(key, b"", None, None, "test") for key in keys)
    return len(outcomes)


def carry_out(steps: Steps[Any], backend: Slow, *, synchronous: bool) -> None:
    if synchronous:
        run_sync(steps, backend, Stats())
    else:
        asyncio.run(run(steps, backend, Stats()))


def test_a_batch_is_carried_out_at_once_but_no_more_than_is_allowed() -> None:
    keys = [str(number) for number in range(20)]
    backend = Slow(0.01)
    assert asyncio.run(run(puts(*keys), backend, Stats(), at_once=5)) == 20
    assert backend.most == 5
    backend = Slow(0.01, together=8)
    assert run_sync(puts(*keys[:8]), backend, Stats()) == 8
    assert backend.most == 8


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_error_is_raised_bare_when_all_of_its_batch_have_ended(*, synchronous: bool) -> None:
    backend = Slow(0.05)
    with pytest.raises(OSError, match="refused"):
        carry_out(puts("a", "fails", "b"), backend, synchronous=synchronous)
    assert backend.under_way == 0
    assert sorted(backend.made) == ["a", "b", "fails"]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_thread_makes_a_request_of_its_batch_and_raises_when_all_have_ended(failing: int) -> None:
    backend = Slow(0.01, together=3)
    keys = ["a", "b"]
    keys.insert(failing, "fails")
    with ThreadPoolExecutor(1) as threads, pytest.raises(OSError, match="refused"):
        threads.submit(run_sync, puts(*keys), backend, Stats()).result()
    assert (backend.under_way, backend.most) == (0, 3)
    assert sorted(backend.made) == ["a", "b", "fails"]


def test_an_interrupt_waits_for_what_is_under_way(interruptible: None) -> None:
    # All requests have begun when the interrupt is sent, and none ends before it has arrived.
    backend = Slow(0.1, opened=threading.Event(), together=3)

    def interrupt() -> None:
        with backend.counting:
            assert backend.counting.wait_for(lambda: backend.most == 3, SECONDS)
        # Python forgets an interrupt that arrives just before the main thread begins to wait.
        while not backend.opened.wait(0.1):
            os.kill(os.getpid(), signal.SIGINT)

    def arrive(*_: object) -> None:
        if not backend.opened.is_set():
            backend.opened.set()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, arrive)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_sync(puts("a", "b", "c"), backend, Stats())
    thread.join()
    # A PUT that came later could destroy what is written next.
    assert backend.under_way == 0


@pytest.mark.parametrize("synchronous", [True, False])
def test_steps_are_closed_as_soon_as_a_request_fails(*, synchronous: bool) -> None:
    closed = []

    def steps() -> Steps[None]:
        try:
            yield (Put("fails", b"", None, None, "test"),)
        finally:
            closed.append(True)

    kept = steps()
    with pytest.raises(OSError, match="refused"):
        carry_out(kept, Slow(0), synchronous=synchronous)
    assert closed == [True]


def locked(then: str, *, seen: list[tuple[Outcome, ...]]) -> Steps[str]:
    seen.append((yield (Lock("l", "test"),)))
    seen.append((yield (Lock("l", "test"),)))
    yield (Put(then, b"", None, None, "test"),)
    if then == "raises":
        raise LookupError
    return then


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("then", ["ends", "fails", "raises"])
def test_lock_is_held_until_the_steps_end(then: str, *, synchronous: bool) -> None:
    backend, seen = Slow(0), list[tuple[Outcome, ...]]()
    held_at_the_end = []

    def steps() -> Steps[str]:
        try:
            return (yield from locked(then, seen=seen))
        finally:
            held_at_the_end.append(set(backend.held))

    if then == "ends":
        carry_out(steps(), backend, synchronous=synchronous)
    else:
        with pytest.raises((OSError, LookupError)):
            carry_out(steps(), backend, synchronous=synchronous)
    # A lock that is held is refused, also to the client that holds it.
    assert seen == [(Done(),), (Refused(),)]
    assert held_at_the_end == [{"l"}]
    assert backend.held == set()


async def some_turns() -> None:
    """Let the event loop do all that it can do without waiting."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("keys", [("a",), ("a", "b", "c"), ("fails",), ("a", "fails")])
def test_cancelled_steps_hold_the_lock_until_their_requests_end(
    keys: tuple[str, ...],
) -> None:
    backend = Slow(opened=threading.Event())

    def steps() -> Steps[None]:
        yield (Lock("l", "test"),)
        yield tuple(Put(key, b"", None, None, "test") for key in keys)
        yield (Put("later", b"", None, None, "test"),)

    async def cancelled() -> None:
        running = asyncio.create_task(run(steps(), backend, Stats()))
        await some_turns()
        running.cancel()
        await some_turns()
        # A PUT that continues by itself could arrive after the write of the next holder of the lock.
        assert (backend.held, backend.under_way) == ({"l"}, len(keys))
        backend.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (backend.held, backend.under_way) == (set(), 0)

    asyncio.run(cancelled())
    assert sorted(backend.made) == sorted(keys)


def test_second_cancellation_does_not_wait_for_requests() -> None:
    backend = Slow(opened=threading.Event())

    async def cancelled() -> None:
        running = asyncio.create_task(run(locked("ends", seen=[]), backend, Stats()))
        await some_turns()
        for _ in range(2):
            assert backend.held == {"l"}
            running.cancel()
            await some_turns()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert backend.held == set()

    asyncio.run(asyncio.wait_for(cancelled(), SECONDS))


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_lock_is_taken_alone(*, synchronous: bool) -> None:
    def steps() -> Steps[None]:
        yield (Put("a", b"", None, None, "test"), Lock("l", "test"))

    with pytest.raises(TypeError, match="expected a lock in a batch of its own"):
        carry_out(steps(), Slow(0), synchronous=synchronous)


@pytest.mark.parametrize("synchronous", [True, False])
def test_every_wait_is_on_average_twice_as_long_as_the_last(
    monkeypatch: pytest.MonkeyPatch, *, synchronous: bool
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(asyncio, "sleep", sleep)

    def steps() -> Steps[None]:
        for repeat in range(1, 6):
            assert (yield (Wait(repeat),)) == (Done(),)

    for part in (0.0, 0.5, 1.0):
        waited.clear()
        monkeypatch.setattr("random.uniform", lambda low, high, part=part: low + part * (high - low))
        carry_out(steps(), Slow(0), synchronous=synchronous)
        assert waited == pytest.approx([(0.5 + part) * 0.01 * 2**times for times in range(5)])


def test_a_document_that_could_not_be_written_is_not_believed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    original = ObjectBackend.perform

    async def refusing(self: ObjectBackend, request: Any) -> Outcome:
        if isinstance(request, Put) and request.key == "a/zarr.json":
            raise PermissionError("no")
        return await original(self, request)

    monkeypatch.setattr(ObjectBackend, "perform", refusing)
    with pytest.raises(PermissionError) as kept:
        ps.create_array(store, "a", parts=[""], shape=(4,), dtype="uint8")
    assert kept.value is not None
    assert store.parts_of("a") is None


def test_an_array_of_shards_without_parts_is_explained_too() -> None:
    store = ps.PartsStore(MemoryStore())
    array = zarr.create_array(store, name="a", shape=(1024, 512), chunks=(64, 64), shards=(512, 512), dtype="uint16")
    array[...] = 7
    index, data = store.explain("a", (slice(0, 8), slice(0, 8)))
    assert (index.why, index.start, index.stop) == ("index of the shard", -1028, None)
    assert data.why == "data"
    assert data.key == "a/c/0/0"
    assert len(store.explain("a", (slice(0, 512), slice(0, 512)))) == 1


def test_index_is_checked_once_after_a_refused_read() -> None:
    objects = MemoryStore()
    # What follows is of one and the same request for an index, so nothing is remembered of it.
    store = ps.PartsStore(objects, index_cache_bytes=0)
    parts: Any = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    array = ps.create_array(store, "a", parts=parts, shape=(16,), chunks=(4,), shards=(16,), dtype="uint8")
    array[...] = 1
    index = store._operations.catalog.arrays()["a"].shard_index
    assert index is not None
    prototype = default_buffer_prototype()
    # The range is no inner chunk, so that it identifies none.
    ranges: Any = [RangeByteRequest(0, 3)]
    store.get_sync("a/c/0", byte_range=index.request)
    zarr.open_array(ps.PartsStore(objects), path="a")[...] = 2
    with pytest.raises(ps.errors.ConcurrentWriteError):
        store.get_ranges_sync("a/c/0", ranges, prototype=prototype)
    for heads in (1, 0):
        store.stats.reset()
        store.get_sync("a/c/0", byte_range=index.request)
        assert (store.stats.get, store.stats.head) == (1, heads)
    # Our own write ends what the index was good for.
    shard = bytes(obstore.get(objects, "a/c/0").bytes()) + bytes(obstore.get(objects, "a/c/0.index").bytes())
    store.set_sync("a/c/0", prototype.buffer.from_bytes(shard))
    assert store.get_ranges_sync("a/c/0", ranges, prototype=prototype)


def test_urls_of_files_are_decoded_and_of_other_machines_refused(tmp_path: Any) -> None:
    store = ps.PartsStore.from_url(f"file://{tmp_path}/a%20b")
    assert (tmp_path / "a b").is_dir()
    assert "a b" in repr(store)
    assert "a c" in repr(ps.PartsStore.from_url(f"file://localhost{tmp_path}/a%20c"))
    with pytest.raises(ps.errors.StoreConfigError, match="on this machine"):
        ps.PartsStore.from_url("file://elsewhere/x")
    with pytest.raises(ps.errors.StoreConfigError, match="obstore takes for az://"):
        ps.PartsStore.from_url("az://container/x")
