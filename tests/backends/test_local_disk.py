"""A local disk: locks that end with their owner and leave nothing behind, renames, and ETags that do not come back."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.exceptions import GenericError
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.executor import run, run_sync
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Delete, Done, Found, Get, Head, IfAbsent, Lock, Missing, Move, Put, Refused, Steps
from parts_store.errors import ConcurrentWriteError, LocalPathError, StorageError
from parts_store.format.tags import Tag

LOCK = Lock("a/.parts-txn/0123.lock", "test")
TAG = Tag("0" * 32, "s", (1,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend(LocalStore(folder, mkdir=True, automatic_cleanup=True))


def put(key: str, data: bytes = b"x", *, tag: Tag | None = None, create: bool = False) -> Put:
    return Put(key, data, tag, IfAbsent() if create else None, "test")


# --- locks -----------------------------------------------------------------------------------------------------------


def test_lock_is_exclusive_until_it_is_released(backend: LocalBackend, folder: Path) -> None:
    release = backend.lock(LOCK)
    assert release is not None
    assert backend.lock(LOCK) is None
    assert LocalBackend(LocalStore(folder)).lock(LOCK) is None
    other = backend.lock(Lock("a/.parts-txn/4567.lock", "test"))
    assert other is not None
    other()
    release()
    again = backend.lock(LOCK)
    assert again is not None
    again()


def test_a_lock_that_is_given_back_leaves_no_file_and_no_folder(backend: LocalBackend, folder: Path) -> None:
    for _ in range(2):
        release = backend.lock(LOCK)
        assert release is not None
        assert (folder / LOCK.key).is_file()
        # What the steps kept beside it goes too, if it is empty.
        (folder / "a/.parts-txn/0123").mkdir()
        release()
        assert list(folder.rglob("*")) == []


def test_what_is_still_there_stays_when_a_lock_is_given_back(backend: LocalBackend, folder: Path) -> None:
    release = backend.lock(LOCK)
    assert release is not None
    backend.perform_sync(put("a/.parts-txn/0123/journal"))
    release()
    assert [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()] == [
        "a/.parts-txn/0123/journal"
    ]


def test_a_lock_of_a_thread_is_refused_to_another(backend: LocalBackend) -> None:
    taken: list[object] = []
    release = backend.lock(LOCK)
    assert release is not None
    thread = threading.Thread(target=lambda: taken.append(backend.lock(LOCK)))
    thread.start()
    thread.join()
    assert taken == [None]
    release()


HOLDER = """
import sys, time
from obstore.store import LocalStore
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock
assert LocalBackend(LocalStore(sys.argv[1])).lock(Lock(sys.argv[2], "test")) is not None
print("held", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def process_that_holds(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has taken the lock."""
    command = [sys.executable, "-c", HOLDER, str(folder), LOCK.key]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_lock_of_a_process_is_held_until_it_is_killed(backend: LocalBackend, folder: Path) -> None:
    with process_that_holds(folder) as process:
        assert backend.lock(LOCK) is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # Its file is still there, and means nothing.
        assert (folder / LOCK.key).exists()
        release = backend.lock(LOCK)
        assert release is not None
        release()
        assert not (folder / LOCK.key).exists()


def test_child_process_does_not_keep_the_lock(backend: LocalBackend) -> None:
    release = backend.lock(LOCK)
    assert release is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        release()
        again = backend.lock(LOCK)
        assert again is not None
        again()
        child.kill()


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_the_lock(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process opens the lock file, its holder removes it, and a third client creates and holds a new one.
    holder = backend.lock(LOCK)
    assert holder is not None
    theirs: list[Any] = []
    flock = sys.modules["parts_store.backends.local_files"].fcntl.flock

    def raced(descriptor: int, operation: int) -> None:
        if not theirs:
            theirs.append(None)
            holder()
            theirs[0] = backend.lock(LOCK)
        flock(descriptor, operation)

    monkeypatch.setattr("parts_store.backends.local_files.fcntl.flock", raced)
    assert backend.lock(LOCK) is None
    assert theirs[0] is not None
    theirs[0]()
    assert not (folder / LOCK.key).exists()


def count_under_lock(folder: str, times: int) -> None:
    """Increment a number in a file, so that two increments at the same time would lose one."""
    backend = LocalBackend(LocalStore(folder))
    number = Path(folder, "number")
    for _ in range(times):
        while (release := backend.lock(LOCK)) is None:
            pass
        number.write_text(str(int(number.read_text()) + 1))
        release()


@pytest.mark.slow
def test_only_one_of_many_processes_holds_a_lock(backend: LocalBackend, folder: Path) -> None:
    (folder / "number").write_text("0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_under_lock, args=(str(folder), 300)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (folder / "number").read_text() == "900"
    assert not (folder / LOCK.key).exists()


def holding(then: str) -> Steps[object]:
    (outcome,) = yield (LOCK,)
    if then == "raises":
        raise LookupError
    return outcome


@pytest.mark.parametrize("then", ["ends", "raises"])
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_lock_ends_with_the_steps_that_took_it(
    backend: LocalBackend, folder: Path, then: str, *, synchronous: bool
) -> None:
    with contextlib.suppress(LookupError):
        if synchronous:
            assert run_sync(holding(then), backend, Stats()) == Done()
        else:
            assert asyncio.run(run(holding(then), backend, Stats())) == Done()
    assert not (folder / LOCK.key).exists()
    release = backend.lock(LOCK)
    assert release is not None
    try:
        assert run_sync(holding("ends"), backend, Stats()) == Refused()
    finally:
        release()


def test_object_stores_have_no_locks_and_no_renames() -> None:
    backend = ObjectBackend(MemoryStore())
    with pytest.raises(TypeError, match="an object store has no locks"):
        backend.lock(LOCK)
    with pytest.raises(TypeError, match="an object store has no locks"):
        backend.perform_sync(Move("a", "b", "test"))


# --- objects ---------------------------------------------------------------------------------------------------------


def perform(backend: LocalBackend, request: Any, *, synchronous: bool) -> Any:
    return backend.perform_sync(request) if synchronous else asyncio.run(backend.perform(request))


def etag_of(backend: LocalBackend, key: str) -> str:
    found = backend.perform_sync(Head(key, "test"))
    assert isinstance(found, Found)
    assert found.etag is not None
    return found.etag


@pytest.mark.parametrize("synchronous", [True, False])
def test_the_etag_of_an_object_with_a_tag_never_comes_back(backend: LocalBackend, *, synchronous: bool) -> None:
    # The same bytes, as fast as can be, and removed in between, so that the file system uses its inodes again.
    seen = set()
    for number in range(300):
        perform(backend, put("a/t", tag=TAG), synchronous=synchronous)
        seen.add(etag_of(backend, "a/t"))
        if number % 2:
            perform(backend, Delete(("a/t",), "test"), synchronous=synchronous)
    assert len(seen) == 300


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_move_takes_the_place_of_another_or_of_none_and_keeps_the_etag(
    backend: LocalBackend, folder: Path, *, synchronous: bool
) -> None:
    for target in ("a/c/0", "a/c/0", "a/new/folder/0"):
        perform(backend, put("a/t", target.encode(), tag=TAG), synchronous=synchronous)
        etag = etag_of(backend, "a/t")
        assert perform(backend, Move("a/t", target, "test"), synchronous=synchronous) == Done()
        assert etag_of(backend, target) == etag
        assert (folder / target).read_bytes() == target.encode()
        assert not (folder / "a/t").exists()
    assert perform(backend, Move("a/t", "a/c/0", "test"), synchronous=synchronous) == Missing()
    assert (folder / "a/c/0").read_bytes() == b"a/c/0"


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_object_that_is_there_is_not_created_again(backend: LocalBackend, *, synchronous: bool) -> None:
    assert perform(backend, put("a/journal", b"1", create=True), synchronous=synchronous) == Done()
    assert perform(backend, put("a/journal", b"2", create=True), synchronous=synchronous) == Refused()
    found = perform(backend, Get("a/journal", None, "test"), synchronous=synchronous)
    assert bytes(memoryview(found.data)) == b"1"


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_error_of_the_kernel_is_raised_and_no_answer_that_got_lost(
    backend: LocalBackend, folder: Path, *, synchronous: bool
) -> None:
    (folder / "a").write_bytes(b"no folder")
    with pytest.raises((StorageError, LocalPathError)):
        perform(backend, put("a/t", tag=TAG), synchronous=synchronous)


# --- writers that are killed -----------------------------------------------------------------------------------------

WRITER = """
import sys
import numpy as np, zarr
import parts_store as ps
array = zarr.open_array(ps.PartsStore.from_url(sys.argv[1], concurrency=sys.argv[2]), path="a")
print("ready", flush=True)
value = 0
while True:
    value = value % 250 + 1
    array[...] = np.full(array.shape, value, array.dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", ["writers", "full"])
def test_killed_processes_leave_a_whole_writable_chunk(folder: Path, concurrency: Any) -> None:
    store = ps.PartsStore.from_url(folder, concurrency=concurrency)
    parts: Any = [ps.Part(".head", size=1000), "", ps.Part(".tail", size=4)]
    shape: dict[str, Any] = {"shape": (100_000,), "chunks": (100_000,), "dtype": "uint8", "compressors": None}
    array: Any = ps.create_array(store, "a", parts=parts, **shape)
    array[...] = 251
    for turn in range(3):
        command = [sys.executable, "-c", WRITER, str(folder), concurrency]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        try:
            for writer in writers:
                assert writer.stdout is not None
                writer.stdout.readline()
            for _ in range(10):
                # Two writers without a pause may be faster than a reader, which then gets a value of one of them.
                with contextlib.suppress(ConcurrentWriteError):
                    assert len(np.unique(np.asarray(array[...]))) == 1
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
                if writer.stdout is not None:
                    writer.stdout.close()
        assert len(np.unique(np.asarray(array[...]))) == 1
        array[...] = 251 + turn % 2
        np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], 251 + turn % 2)
    # What the dead had staged lies there until it is collected, but no journal and no lock.
    left = {each.name for each in (folder / "a").rglob("*") if ".parts-txn" in each.parts and each.is_file()}
    assert not any(name == "journal" or name.endswith(".lock") for name in left)


def test_cancelled_write_leaves_the_old_or_the_new_chunk(
    folder: Path,
) -> None:
    store = ps.PartsStore.from_url(folder)
    parts: Any = [ps.Part(".head", size=1000), ""]
    shape: dict[str, Any] = {"shape": (10_000_000,), "chunks": (10_000_000,), "dtype": "uint8", "compressors": None}
    array: Any = ps.create_array(store, "a", parts=parts, **shape)
    array[...] = 1

    async def cancelled(value: int, after: float) -> None:
        buffer = cpu.Buffer.from_bytes(bytes([value]) * 10_000_000)
        task = asyncio.create_task(ps.PartsStore.from_url(folder).set("a/c/0", buffer))
        await asyncio.sleep(after)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        # Another writer, while what was cancelled may go on.
        await ps.PartsStore.from_url(folder).set("a/c/0", cpu.Buffer.from_bytes(bytes([value + 1]) * 10_000_000))

    for turn in range(8):
        asyncio.run(cancelled(2 * turn + 2, turn * 0.002))
        np.testing.assert_array_equal(array[...], 2 * turn + 3)


@pytest.mark.parametrize("synchronous", [True, False])
def test_write_is_repeated_if_its_folder_is_removed(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, *, synchronous: bool
) -> None:
    key = "/".join(["a" * 100] * 4)

    def fail(*_: object, **__: object) -> Any:
        raise GenericError(f"Unable to open file {folder / key}#1: No such file or directory (os error 2)")

    monkeypatch.setattr(obstore, "put", fail)
    monkeypatch.setattr(obstore, "put_async", fail)
    assert perform(backend, put(key, b"whole"), synchronous=synchronous) == Done()
    assert (folder / key).read_bytes() == b"whole"


SHARING = Lock("a/.parts-txn/0123.lock", "test", "a/.parts-txn/array.lock")
OTHER = Lock("a/.parts-txn/4567.lock", "test", "a/.parts-txn/array.lock")
ARRAY = Lock("a/.parts-txn/array.lock", "test")


def test_a_lock_is_shared_until_its_last_holder_releases_it(backend: LocalBackend, folder: Path) -> None:
    for order in (1, -1):
        releases = [backend.lock(each) for each in (SHARING, OTHER)][::order]
        for release in releases:
            assert LocalBackend(LocalStore(folder)).lock(ARRAY) is None
            assert release is not None
            release()
        assert list(folder.rglob("*")) == []
        exclusive = backend.lock(ARRAY)
        assert exclusive is not None
        assert backend.lock(SHARING) is None
        exclusive()


def test_a_shared_lock_whose_file_was_removed_is_taken_again(backend: LocalBackend, folder: Path) -> None:
    old = backend.lock(SHARING)
    (folder / ARRAY.key).unlink()
    new = backend.lock(OTHER)
    assert old is not None
    assert new is not None
    old()
    assert LocalBackend(LocalStore(folder)).lock(ARRAY) is None
    new()
    assert list(folder.rglob("*")) == []
