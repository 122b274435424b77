"""Objects that are read and written as files are what obstore reads and writes."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.backends import local_files
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Done, Found, Get, Head, Missing, Move, OutOfRange, Put
from parts_store.errors import LocalPathError, PartsStoreError
from parts_store.format.keys import PROTOCOL_FOLDER
from parts_store.format.tags import Tag
from parts_store.transactions.reading import Version

SIZES = (0, 1, 5)
WANTED = [
    None,
    *(RangeByteRequest(start, stop) for start in range(7) for stop in range(start + 1, 8)),
    *(OffsetByteRequest(offset) for offset in range(7)),
    *(SuffixByteRequest(suffix) for suffix in range(7)),
]


@pytest.fixture
def store(folder: Path) -> LocalStore:
    return LocalStore(folder, mkdir=True)


def shown(outcome: Any) -> Any:
    if not isinstance(outcome, Found):
        return outcome
    # obstore has no versions of files.
    return bytes(memoryview(outcome.data)), outcome.span, outcome.nbytes, outcome.etag, outcome.tag


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_range_of_a_file_is_the_range_that_obstore_reads(store: LocalStore, nbytes: int, wanted: Any) -> None:
    obstore.put(store, "a/c/0", bytes(range(nbytes)))
    request = Get("a/c/0", wanted, "test")
    expected = shown(ObjectBackend(store).perform_sync(request))
    assert shown(LocalBackend(store).perform_sync(request)) == expected
    assert shown(asyncio.run(LocalBackend(store).perform(request))) == expected
    assert isinstance(expected, tuple | OutOfRange)


def test_a_written_file_has_the_time_of_the_write_so_that_its_etag_never_comes_back(
    store: LocalStore, folder: Path
) -> None:
    # The clock of many kernels has steps of milliseconds, and inodes are used again: two writes within a step would
    # leave the ETag that a partial write has read before both of them.
    backend = LocalBackend(store)
    for number in range(50):
        begin = time.time_ns()
        assert backend.perform_sync(Put("a/c/0", bytes([number]), None, None, "test")) == Done()
        end = time.time_ns()
        assert begin <= (folder / "a/c/0").stat().st_mtime_ns <= end


@pytest.mark.parametrize(
    ("nbytes", "stops_after"), [(5, None), (5, 3), (5, BlockingIOError), (5, OSError), (300_000, 0)]
)
def test_a_read_in_an_event_loop_uses_a_thread_unless_the_kernel_has_all_bytes(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, nbytes: int, stops_after: Any
) -> None:
    value = os.urandom(nbytes)
    obstore.put(store, "a/c/0", value)
    threads: set[bool] = set()
    pread, preadv = os.pread, getattr(os, "preadv", None)
    if preadv is None or not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system cannot tell what it has in memory")

    def read_cached(file: int, buffers: Any, start: int, flags: int) -> int:
        if stops_after is not None and not isinstance(stops_after, int):
            raise stops_after
        read: int = preadv(file, [memoryview(buffers[0])[:stops_after]], start, flags)
        return read

    def read(file: int, size: int, start: int) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        return pread(file, size, start)

    monkeypatch.setattr(os, "preadv", read_cached)
    monkeypatch.setattr(os, "pread", read)
    found = asyncio.run(LocalBackend(store).perform(Get("a/c/0", None, "test")))
    assert shown(found)[0] == value
    assert threads == (set() if stops_after is None else {False})


def test_a_filesystem_that_cannot_tell_what_is_in_memory_is_asked_once(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(store, "a/c/0", b"x")
    asked: list[int] = []

    def read_cached(*_: object) -> int:
        asked.append(1)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "preadv", read_cached)
    for _ in range(3):
        assert shown(asyncio.run(LocalBackend(store).perform(Get("a/c/0", None, "test"))))[0] == b"x"
        assert asyncio.run(LocalBackend(store).perform(Get("a/c/1", None, "test"))) == Missing()
    assert asked == ([1] if hasattr(os, "RWF_NOWAIT") else [])


@pytest.mark.parametrize("nbytes", SIZES)
def test_size_and_etag_of_a_file_are_those_of_obstore(store: LocalStore, nbytes: int) -> None:
    obstore.put(store, "a/c/0", bytes(nbytes))
    request = Head("a/c/0", "test")
    assert shown(LocalBackend(store).perform_sync(request)) == shown(ObjectBackend(store).perform_sync(request))


def write_again(path: Path, data: bytes) -> None:
    """Write a file with the inode and the modification time of the one before, as a restored file may have them."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("wanted", [None, RangeByteRequest(1, 3)])
def test_version_and_stamp_tell_a_file_from_one_with_the_same_inode_time_and_size(
    store: LocalStore, folder: Path, wanted: Any
) -> None:
    obstore.put(store, "a/c/0", b"before")
    backend = LocalBackend(store)
    requests = (Get("a/c/0", wanted, "test"), Head("a/c/0", "test"))
    first, *others = [backend.perform_sync(request) for _ in range(2) for request in requests]
    assert isinstance(first, Found)
    assert all(isinstance(each, Found) and each.unchanged == first.unchanged for each in others)
    stamp = backend.stamp("a/c/0")
    assert backend.stamp("a/c/0") == stamp
    write_again(folder / "a/c/0", b"after!")
    assert backend.stamp("a/c/0") != stamp
    for request in requests:
        found = backend.perform_sync(request)
        assert isinstance(found, Found)
        assert found.etag == first.etag
        assert found.unchanged != first.unchanged


def test_file_of_the_write_protocol_is_the_same_object_after_a_move(store: LocalStore) -> None:
    staged = f"a/{PROTOCOL_FOLDER}/c.0.0"
    backend = LocalBackend(store)
    backend.perform_sync(Put(staged, b"x", Tag("0" * 32, "s", (1,)), None, "test"))
    read = backend.perform_sync(Get(staged, None, "test"))
    assert isinstance(read, Found)
    backend.perform_sync(Move(staged, "a/c/0", "test"))
    now = backend.perform_sync(Head("a/c/0", "test"))
    assert isinstance(now, Found)
    assert Version(None, (read.unchanged,), 0).is_still(now)


@pytest.mark.parametrize("key", ["a/d", "a", "a/c/0/1", "b"])
@pytest.mark.parametrize("request_of", [lambda key: Get(key, None, "test"), lambda key: Head(key, "test")])
def test_folders_and_keys_below_files_are_missing(store: LocalStore, key: str, request_of: Any) -> None:
    obstore.put(store, "a/c/0", b"x")
    for backend in (LocalBackend(store), ObjectBackend(store)):
        assert backend.perform_sync(request_of(key)) == Missing()


@pytest.mark.parametrize(
    "key", ["", "a//b", "/a", "a/", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", "a/b#1", "a b", "a%2fb", "é/ü", "..."]
)
def test_a_key_is_refused_if_and_only_if_obstore_refuses_it(store: LocalStore, folder: Path, key: str) -> None:
    put, get = Put(key, b"x", None, None, "test"), Get(key, None, "test")
    try:
        ObjectBackend(store).perform_sync(put)
    except PartsStoreError:
        with pytest.raises(PartsStoreError):
            LocalBackend(store).perform_sync(put)
        assert list(folder.rglob("*")) == []
        return
    stored = shown(ObjectBackend(store).perform_sync(get))
    assert shown(LocalBackend(store).perform_sync(get)) == stored
    obstore.delete(store, key)
    assert LocalBackend(store).perform_sync(put) == Done()
    assert bytes(obstore.get(store, key).bytes()) == b"x"


def test_a_file_that_was_not_finished_is_not_listed(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        # As if the process was killed here.
        patched.setattr(os, "unlink", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            LocalBackend(store).perform_sync(Put("a/c/0", b"new", None, None, "test"))
    assert [each.read_bytes() for each in folder.rglob("*") if each.is_file()] == [b"new"]
    assert [each["path"] for page in obstore.list(store) for each in page] == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(store, "a/c/0", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(local_files, "_write_some", fail)
        with pytest.raises(PartsStoreError, match="No space left"):
            LocalBackend(store).perform_sync(Put("a/c/0", b"new", None, None, "test"))
    assert [each.read_bytes() for each in folder.rglob("*") if each.is_file()] == [b"old"]


def test_system_calls_that_read_and_write_less_than_asked_are_continued(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, nbytes, start: pread(file, min(nbytes, 3), start))
    monkeypatch.setattr(local_files, "_write_some", lambda file, pieces: os.write(file, pieces[0][:3]))
    local_files.write(str(folder / "x"), "x", bytes(range(10)))
    assert (folder / "x").read_bytes() == bytes(range(10))
    found = local_files.read(str(folder / "x"), "x", RangeByteRequest(1, 9))
    assert shown(found)[0] == bytes(range(1, 9))


@pytest.mark.parametrize("request_of", [Get("a/c/0", None, "test"), Head("a/c/0", "test")], ids=["get", "head"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_named_pipe_is_refused_and_makes_no_read_wait(
    store: LocalStore, folder: Path, request_of: Get | Head, is_linked: bool
) -> None:
    (folder / "a/c").mkdir(parents=True)
    os.mkfifo(folder / ("pipe" if is_linked else "a/c/0"))
    if is_linked:
        (folder / "a/c/0").symlink_to(folder / "pipe")
    with pytest.raises(LocalPathError, match=r"'a/c/0': expected a file"):
        LocalBackend(store).perform_sync(request_of)
    with pytest.raises(LocalPathError, match=r"'a/c/0': expected a file"):
        asyncio.run(LocalBackend(store).perform(request_of))


def test_a_device_is_refused(store: LocalStore, folder: Path) -> None:
    (folder / "zero").symlink_to("/dev/zero")
    with pytest.raises(LocalPathError, match=r"'zero': expected a file"):
        LocalBackend(store).perform_sync(Get("zero", None, "test"))
