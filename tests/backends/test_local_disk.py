"""A local disk: files that are written whole, renames, and ETags that do not come back."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
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
from parts_store.backends import local_files
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Delete, Done, Found, Head, IfAbsent, Lock, Missing, Move, Put
from parts_store.errors import ConcurrentWriteError
from parts_store.format.layout import BufferChain
from parts_store.format.tags import Tag

LOCK = Lock("a/.parts-txn/0123.lock", "test")
TAG = Tag("0" * 32, "s", (1,))


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend(LocalStore(folder, mkdir=True, automatic_cleanup=True))


def put(key: str, data: bytes = b"x", *, tag: Tag | None = None, create: bool = False) -> Put:
    return Put(key, data, tag, IfAbsent() if create else None, "test")


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


def cut(data: bytes, sizes: Sequence[int]) -> BufferChain:
    """Return data in buffers of these sizes, and one with the rest."""
    stops = [0, *accumulate(sizes), len(data)]
    return BufferChain(tuple(memoryview(data)[start:stop] for start, stop in pairwise(stops)))


@pytest.mark.parametrize("sizes", [(), (0,), (100,), (1, 30, 0, 7), (1,) * 90])
@pytest.mark.parametrize("limit", [1, 7, 64, 1000])
@pytest.mark.parametrize("has_writev", [True, False])
def test_all_bytes_are_written_if_the_system_takes_a_few_at_once(
    monkeypatch: pytest.MonkeyPatch, backend: LocalBackend, sizes: tuple[int, ...], limit: int, has_writev: bool
) -> None:
    original = os.write
    monkeypatch.setattr(os, "writev", lambda at, buffers: original(at, b"".join(buffers)[:limit]), raising=False)
    monkeypatch.setattr(os, "write", lambda at, data: original(at, data[:limit]))
    monkeypatch.setattr(local_files, "_HAS_WRITEV", has_writev)
    data = bytes(range(100))
    assert backend.perform_sync(Put("a/c/0", cut(data, sizes), None, None, "test")) == Done()
    assert obstore.get(backend.store, "a/c/0").bytes().to_bytes() == data


def test_more_buffers_are_written_than_the_system_takes_at_once(backend: LocalBackend) -> None:
    data = bytes(range(250)) * 20
    assert backend.perform_sync(Put("a/c/0", cut(data, (1,) * 4999), None, None, "test")) == Done()
    assert obstore.get(backend.store, "a/c/0").bytes().to_bytes() == data


@pytest.mark.slow
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


@pytest.mark.slow
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
