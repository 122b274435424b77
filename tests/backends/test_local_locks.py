"""Locks of a local disk: they exclude threads and processes, end with their owner, and leave nothing behind."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from parts_store.backends import local_locks
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock, Put
from parts_store.errors import LocalPathError, StorageError
from tests.effort import examples

SHARED = "a/.parts-txn/array.lock"
LOCK = Lock("a/.parts-txn/0123.lock", "test")
CHUNK = Lock(LOCK.key, "test", SHARED)
OTHER = Lock("a/.parts-txn/4567.lock", "test", SHARED)
ARRAY = Lock(SHARED, "test")
GATE = Lock("a/.parts-txn/array.wanted.lock", "test")
BOTH_KINDS = [True, False] if local_locks.has_names() else [False]


@pytest.fixture(autouse=True, params=BOTH_KINDS, ids=lambda has_names: "byte ranges" if has_names else "files")
def has_names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Locks of chunks as byte ranges of one file, and as a file each, which other systems than Linux need."""
    found: bool = request.param
    monkeypatch.setattr(local_locks, "has_names", lambda: found)
    return found


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend(LocalStore(folder, mkdir=True, automatic_cleanup=True))


def take(backend: LocalBackend, lock: Lock) -> Callable[[], None]:
    """Take a lock that is free, and return what releases it."""
    release = backend.lock(lock)
    assert release is not None
    return release


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


# --- exclusive locks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", [LOCK, CHUNK], ids=["file", "chunk"])
def test_lock_is_exclusive_until_it_is_released(backend: LocalBackend, folder: Path, lock: Lock) -> None:
    release = take(backend, lock)
    assert backend.lock(lock) is None
    assert LocalBackend(LocalStore(folder)).lock(lock) is None
    take(backend, Lock("a/.parts-txn/4567.lock", "test", lock.shared))()
    assert backend.lock(lock) is None
    release()
    take(backend, lock)()
    assert list(folder.rglob("*")) == []


def test_the_lock_of_a_chunk_excludes_stores_with_other_folders(backend: LocalBackend, folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    release = take(backend, CHUNK)
    above = LocalBackend(LocalStore(folder.parent))
    for prefix in ("objects", "link"):
        assert above.lock(Lock(f"{prefix}/{CHUNK.key}", "test", f"{prefix}/{SHARED}")) is None
        take(above, Lock(f"{prefix}/{OTHER.key}", "test", f"{prefix}/{SHARED}"))()
    release()


def test_what_is_still_there_stays_when_a_lock_is_given_back(backend: LocalBackend, folder: Path) -> None:
    release = take(backend, CHUNK)
    backend.perform_sync(Put("a/.parts-txn/0123.journal", b"x", None, None, "test"))
    release()
    assert files(folder) == ["a/.parts-txn/0123.journal"]


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "held"])
def test_a_lock_that_is_released_while_its_thread_takes_another_is_given_back(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    # The garbage collector may end an abandoned task, which releases its locks, at any line of any thread.
    abandoned, is_same = [backend.lock(CHUNK)], local_locks._is_same_file
    if is_kept:
        keeping = contextlib.ExitStack()
        keeping.enter_context(backend.keep_lock(SHARED))
        abandoned.append(keeping.close)

    def collect(descriptor: int, path: str) -> bool:
        while abandoned and (release := abandoned.pop()):
            release()
        return is_same(descriptor, path)

    taken: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(local_locks, "_is_same_file", collect)
        thread = threading.Thread(target=lambda: taken.append(backend.lock(OTHER)), daemon=True)
        thread.start()
        thread.join(300)
        assert taken, "the thread waits for itself"
    assert not abandoned
    take(backend, CHUNK)()
    taken[0]()
    assert list(folder.rglob("*")) == []


HOLDER = """
import sys, time
from obstore.store import LocalStore
from parts_store.backends import local_locks
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock
local_locks.has_names = lambda: sys.argv[2] == "True"
assert LocalBackend(LocalStore(sys.argv[1])).lock(Lock(sys.argv[3], "test", *sys.argv[4:])) is not None
print("held", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def process_that_holds(folder: Path, lock: Lock, *, has_names: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has taken the lock."""
    shared = [] if lock.shared is None else [lock.shared]
    command = [sys.executable, "-c", HOLDER, str(folder), str(has_names), lock.key, *shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("lock", [LOCK, CHUNK], ids=["file", "chunk"])
def test_lock_of_a_process_is_held_until_it_is_killed(
    backend: LocalBackend, folder: Path, lock: Lock, *, has_names: bool
) -> None:
    with process_that_holds(folder, lock, has_names=has_names) as process:
        held = files(folder)
        assert held
        assert backend.lock(lock) is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # Its files are still there, and mean nothing.
        assert files(folder) == held
        take(backend, lock)()
        assert files(folder) == []


@pytest.mark.parametrize("lock", [LOCK, CHUNK], ids=["file", "chunk"])
def test_child_process_does_not_keep_the_lock(backend: LocalBackend, lock: Lock) -> None:
    release = take(backend, lock)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        release()
        take(backend, lock)()
        child.kill()


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_the_lock(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process opens the lock file, its holder removes it, and a third client creates and holds a new one.
    holder = take(backend, LOCK)
    theirs: list[Any] = []
    set_lock = local_locks._set_lock

    def raced(*arguments: Any) -> bool:
        if not theirs:
            theirs.append(None)
            holder()
            theirs[0] = backend.lock(LOCK)
        return set_lock(*arguments)

    monkeypatch.setattr(local_locks, "_set_lock", raced)
    assert backend.lock(LOCK) is None
    assert theirs[0] is not None
    theirs[0]()
    assert not (folder / LOCK.key).exists()


def count_under_lock(folder: str, times: int, lock: Lock, has_names: bool) -> None:
    """Increment a number in a file, so that two increments at the same time would lose one."""
    local_locks.has_names = lambda: has_names  # type: ignore[assignment]  # in a process of its own
    backend = LocalBackend(LocalStore(folder))
    number = Path(folder, "number")
    for _ in range(times):
        while (release := backend.lock(lock)) is None:
            pass
        number.write_text(str(int(number.read_text()) + 1))
        release()


@pytest.mark.slow
@pytest.mark.parametrize("lock", [LOCK, CHUNK], ids=["file", "chunk"])
def test_only_one_of_many_processes_holds_a_lock(
    backend: LocalBackend, folder: Path, lock: Lock, *, has_names: bool
) -> None:
    assert isinstance(backend, LocalBackend)
    (folder / "number").write_text("0")
    context = multiprocessing.get_context("spawn")
    times = examples(300)
    arguments = (str(folder), times, lock, has_names)
    processes = [context.Process(target=count_under_lock, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (folder / "number").read_text() == str(3 * times)
    assert files(folder) == ["number"]


def test_a_holder_never_removes_the_lock_file_of_another(backend: LocalBackend, folder: Path) -> None:
    first = take(backend, LOCK)
    # Another program removes the file.
    (folder / LOCK.key).unlink()
    second = take(backend, LOCK)
    first()
    assert (folder / LOCK.key).exists()
    assert backend.lock(LOCK) is None
    second()
    assert not (folder / LOCK.key).exists()


# --- shared locks -----------------------------------------------------------------------------------------------------


def test_a_lock_is_shared_until_its_last_holder_releases_it(backend: LocalBackend, folder: Path) -> None:
    for order in (1, -1):
        releases = [backend.lock(each) for each in (CHUNK, OTHER)][::order]
        for release in releases:
            assert LocalBackend(LocalStore(folder)).lock(ARRAY) is None
            assert release is not None
            release()
        assert list(folder.rglob("*")) == []
        exclusive = take(backend, ARRAY)
        assert backend.lock(CHUNK) is None
        exclusive()
    # A client that waits for an exclusive lock goes first.
    gate = take(backend, GATE)
    assert backend.lock(CHUNK) is None
    gate()
    assert list(folder.rglob("*")) == []


def test_a_shared_lock_whose_file_was_removed_is_taken_again(backend: LocalBackend, folder: Path) -> None:
    old = backend.lock(CHUNK)
    (folder / SHARED).unlink()
    new = backend.lock(OTHER)
    assert backend.lock(CHUNK) is None
    assert old is not None
    assert new is not None
    old()
    assert LocalBackend(LocalStore(folder)).lock(ARRAY) is None
    new()
    assert list(folder.rglob("*")) == []


@pytest.mark.slow
def test_a_process_that_shares_a_lock_does_not_remove_the_file_of_another(
    backend: LocalBackend, folder: Path, *, has_names: bool
) -> None:
    with process_that_holds(folder, OTHER, has_names=has_names):
        release = take(backend, CHUNK)
        assert backend.lock(OTHER) is None
        release()
        assert (folder / SHARED).exists()
        assert backend.lock(ARRAY) is None
        assert backend.lock(OTHER) is None


# --- locks that are kept ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_shared_lock_is_kept_from_one_holder_to_the_next(
    backend: LocalBackend, folder: Path, *, has_names: bool
) -> None:
    with backend.keep_lock(SHARED):
        assert files(folder) == []
        for each in (CHUNK, OTHER, CHUNK):
            take(backend, each)()
            assert files(folder) == [SHARED]
            assert LocalBackend(LocalStore(folder)).lock(ARRAY) is None
        # The lock of a chunk is not kept.
        with process_that_holds(folder, CHUNK, has_names=has_names):
            assert backend.lock(CHUNK) is None
    # The process was killed, and no client has changed the array since.
    take(backend, ARRAY)()
    assert backend.lock(CHUNK) is not None


def test_a_lock_is_kept_until_the_last_block_has_ended(backend: LocalBackend, folder: Path) -> None:
    with backend.keep_lock(SHARED):
        with backend.keep_lock(SHARED):
            take(backend, CHUNK)()
        assert files(folder) == [SHARED]
        release = take(backend, CHUNK)
    # A holder that has not finished keeps the lock after the block.
    assert backend.lock(ARRAY) is None
    release()
    assert list(folder.rglob("*")) == []


def test_a_kept_lock_is_given_to_a_client_that_waits_for_it(backend: LocalBackend, folder: Path) -> None:
    other = LocalBackend(LocalStore(folder))
    with backend.keep_lock(SHARED):
        holder = take(backend, OTHER)
        gate = take(other, GATE)
        # A lock that is held is not given up.
        assert backend.lock(CHUNK) is None
        assert other.lock(ARRAY) is None
        holder()
        assert other.lock(ARRAY) is None
        # The next writer sees that a client waits.
        assert backend.lock(CHUNK) is None
        exclusive = take(other, ARRAY)
        assert backend.lock(CHUNK) is None
        exclusive()
        gate()
        take(backend, CHUNK)()
        assert files(folder) == [SHARED]
    assert list(folder.rglob("*")) == []


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_lock_of_a_chunk_that_fails_leaves_no_lock_behind(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_names: bool
) -> None:
    name = "fcntl" if has_names else "flock"
    call, calls = getattr(fcntl, name), []

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        # The first call locks the array, the second one the chunk.
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, name, fail)
        with pytest.raises(StorageError):
            backend.lock(CHUNK)
    # A lock file that could not be locked is left for the next client.
    assert files(folder) == ([] if has_names else [CHUNK.key])
    take(backend, CHUNK)()
    assert list(folder.rglob("*")) == []


def test_a_folder_in_the_place_of_a_lock_is_an_error(backend: LocalBackend, folder: Path) -> None:
    (folder / SHARED).mkdir(parents=True)
    with pytest.raises(LocalPathError, match="expected a file that can be locked"):
        backend.lock(CHUNK)
