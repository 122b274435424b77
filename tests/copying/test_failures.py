"""A copy that fails leaves nothing behind, and verification finds what a destination did not keep."""

import asyncio
import itertools
import signal
import threading
from pathlib import Path
from typing import Any, override

import obstore
import pytest
from zarr.core.buffer import Buffer, BufferPrototype, cpu

import parts_store as ps
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Done, Outcome, Put, Steps
from parts_store.errors import ConcurrentWriteError, CopyMismatchError
from tests.copying.places import CHUNKS, Place, chunks_in, documents_of, fill, new_place, of_v2, require_filled
from tests.copying.watched import Watched, events_of, new_watched
from tests.effort import some


@pytest.mark.slow
@pytest.mark.parametrize("fails_late", [False, True])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_copy_that_fails_at_any_write_leaves_nothing_behind(kind: str, fails_late: bool, tmp_path: Path) -> None:
    source = new_place("whole", tmp_path)
    fill(source.store)
    # Ten chunks, and the documents of five arrays, of three groups, and of the one above them.
    for number in some(range(1, 20), fails_late + (kind == "disk")):
        destination = new_watched(kind, tmp_path, fails_at=number, fails_late=fails_late)
        with pytest.raises(OSError, match=r"the disk is full|no answer came") as caught:
            ps.copy(source.store, destination.store, to="x", max_concurrency=3)
        assert not hasattr(caught.value, "__notes__")
        assert destination.raw() == {}
        assert destination.store.parts_of("x/two") is None
        events_of(destination).fails_at = None
        ps.copy(source.store, destination.store, to="x")
        require_filled(destination.store, "x")
    destination = new_watched(kind, tmp_path, fails_at=20)
    ps.copy(source.store, destination.store, to="x")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("written", [False, True])
def test_a_copy_that_fails_within_a_chunk_leaves_none_of_its_parts(
    source: Place, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform, puts = ObjectBackend.perform, itertools.count(1)
    fails_at = 0

    async def failing(backend: ObjectBackend, request: BackendRequest) -> Outcome:
        fails = isinstance(request, Put) and next(puts) == fails_at
        outcome = await perform(backend, request) if written or not fails else Done()
        if fails:
            raise OSError("the disk is full")
        return outcome

    monkeypatch.setattr(ObjectBackend, "perform", failing)
    nobjects = len(source.raw())
    for fails_at in range(1, nobjects + 1):  # noqa: B007 - `failing` looks at it
        puts, destination = itertools.count(1), new_place("memory", tmp_path)
        with pytest.raises(OSError, match="the disk is full"):
            ps.copy(source.store, destination.store, max_concurrency=2)
        assert destination.raw() == {}
    puts, fails_at = itertools.count(1), nobjects + 1
    ps.copy(source.store, new_place("memory", tmp_path).store)


def test_a_crash_at_any_write_leaves_no_array_without_all_of_its_chunks(source: Place, tmp_path: Path) -> None:
    destination = new_watched("memory", tmp_path)
    ps.copy(source.store, destination.store, to="x", max_concurrency=1)
    sets = events_of(destination).sets
    documents = [key for key in sets if key.endswith("zarr.json")]
    # All chunks, then what is below before what is above.
    assert sets == [f"x/{key}" for key in CHUNKS] + documents
    assert [key.count("/") for key in documents] == sorted((key.count("/") for key in documents), reverse=True)
    assert len(documents) == 9


def test_what_makes_an_array_of_zarr_v2_comes_after_its_attributes(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_watched("memory", tmp_path)
    of_v2(source.store)
    ps.copy(source.store, destination.store, path="old", max_concurrency=1)
    sets = events_of(destination).sets
    assert sets == ["old/0", "old/1", "old/.zattrs", "old/.zarray", ".zgroup"]


@pytest.mark.slow
def test_a_failure_leaves_a_session_uncommitted(source: Place, tmp_path: Path) -> None:
    for number in (1, 5, 12, 18):
        destination = new_watched("session", tmp_path, fails_at=number)
        with pytest.raises(OSError, match="the disk is full"):
            ps.copy(source.store, destination.store)
        assert chunks_in(destination.repository.readonly_session("main")) == {}
        destination.session.discard_changes()
        events_of(destination).fails_at = None
        ps.copy(source.store, destination.store)
        require_filled(destination.store)


def test_failed_cleanup_after_a_failed_copy_is_named(source: Place, tmp_path: Path) -> None:
    class Stuck(Watched):
        @override
        def carry_out[T](self, steps: Steps[T]) -> T:
            if self.events.sets:
                raise PermissionError("nothing is deleted here")
            return super().carry_out(steps)

    destination = new_watched("memory", tmp_path, Stuck, fails_at=3)
    with pytest.raises(OSError, match="the disk is full") as caught:
        ps.copy(source.store, destination.store)
    assert caught.value.__notes__ == [
        "what was copied so far could not be removed again: nothing is deleted here",
    ]
    assert not documents_of(destination.raw())


def test_foreign_objects_at_the_destination_survive_a_failure(source: Place, tmp_path: Path) -> None:
    destination = new_watched("memory", tmp_path, fails_at=4)

    def write(done: int, total: int) -> None:
        obstore.put(destination.store.store, "x/new", b"of another client")

    with pytest.raises(OSError, match="the disk is full"):
        ps.copy(source.store, destination.store, to="x", progress=write)
    assert destination.raw() == {"x/new": b"of another client"}


def test_chunk_that_vanishes_during_a_copy_is_an_error(source: Place, destination: Place) -> None:

    def remove(done: int, total: int) -> None:
        obstore.delete(source.store.store, ["two/c/3"])

    with pytest.raises(ConcurrentWriteError, match="two/c/3"):
        ps.copy(source.store, destination.store, progress=remove, max_concurrency=1)
    assert destination.raw() == {}


def test_ctrl_c_ends_the_copy_and_leaves_nothing(tmp_path: Path, interruptible: None) -> None:
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    class Interrupting(Watched):
        @override
        async def get(self, key: str, prototype: BufferPrototype, byte_range: Any = None) -> Buffer | None:
            if self.events.reads == 4:
                # Python forgets an interrupt that arrives just before the main thread begins to wait.
                while not interrupted.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    await asyncio.sleep(0.1)
                await asyncio.sleep(600)
            return await super().get(key, prototype, byte_range)

    source, destination = new_watched("memory", tmp_path, Interrupting), new_watched("memory", tmp_path)
    fill(ps.PartsStore(source.store.store))
    signal.signal(signal.SIGINT, interrupt)
    with pytest.raises(KeyboardInterrupt):
        ps.copy(source.store, destination.store, max_concurrency=1)
    assert len(events_of(destination).sets) == 4
    assert destination.raw() == {}


@pytest.mark.parametrize(
    ("victim", "data", "found"),
    [
        ("deep/plain/c/1", b"wrong", "5 other bytes"),
        ("deep/plain/c/1", None, "found nothing"),
        ("deep/plain/zarr.json", b"{}", "2 other bytes"),
    ],
)
def test_destination_that_stores_other_bytes_is_an_error(
    source: Place, victim: str, data: bytes | None, found: str, tmp_path: Path
) -> None:
    class Forgetful(ps.PartsStore):
        """A store that stores other bytes than it is given, for one key."""

        @override
        async def set(self, key: str, value: Buffer) -> None:
            await super().set(key, value)
            if key == victim:
                await (obstore.delete_async if data is None else obstore.put_async)(
                    self.store, key, *([data] if data else [])
                )

    destination = new_place("memory", tmp_path, Forgetful)
    with pytest.raises(CopyMismatchError, match=found) as caught:
        ps.copy(source.store, destination.store)
    assert caught.value.key == victim
    assert destination.raw() == {}
    ps.copy(source.store, destination.store, verify=False)
    assert destination.raw().get(victim) == data


def test_flipped_bit_in_a_part_is_an_error(source: Place, tmp_path: Path) -> None:
    class Flipping(ps.PartsStore):
        @override
        async def set(self, key: str, value: Buffer) -> None:
            if key == "two/c/3":
                data = bytearray(value.to_bytes())
                data[-1] ^= 1
                value = cpu.Buffer.from_bytes(bytes(data))
            await super().set(key, value)

    mismatch = "'two/c/3': expected the 8 bytes that were written, found 8 other bytes"
    for kind in ("memory", "session"):
        with pytest.raises(CopyMismatchError, match=mismatch):
            ps.copy(source.store, new_place(kind, tmp_path, Flipping).store)


def test_copy_without_verification_reads_nothing_back(source: Place, tmp_path: Path) -> None:
    for verify, reads in ((False, 0), (True, len(CHUNKS))):
        destination = new_watched("memory", tmp_path)
        ps.copy(source.store, destination.store, verify=verify)
        assert events_of(destination).reads == reads
