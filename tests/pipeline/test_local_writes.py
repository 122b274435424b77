"""Writes of many chunks to a local disk: the lock of the array is taken once, and given up for a deletion."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.backends import local_locks
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock
from parts_store.transactions.locking import array_locks

CHUNKS = 12
VALUES: NDArray[np.uint8] = np.arange(1, 8 * CHUNKS + 1, dtype=np.uint8)
SECONDS = 300


@pytest.fixture
def store(tmp_path: Path) -> ps.PartsStore:
    return ps.PartsStore.from_url(tmp_path / "objects")


def create(store: ps.PartsStore, path: str = "a") -> zarr.Array[Any]:
    arguments: dict[str, Any] = {"shape": VALUES.shape, "chunks": 8, "dtype": "uint8", "compressors": None}
    return ps.create_array(store, path, parts=["", ps.Part(".tail", size=2)], **arguments)


def lock_files(store: ps.PartsStore) -> list[Path]:
    return list(Path(str(store.store.prefix)).rglob("*.lock"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the lock files that were opened and locked, in their order."""
    paths: list[str] = []
    lock = local_locks._lock

    def counted(path: str, *arguments: Any) -> int | None:
        paths.append(Path(path).name)
        return lock(path, *arguments)

    monkeypatch.setattr(local_locks, "_lock", counted)
    return paths


@pytest.mark.parametrize("workers", [1, 4])
def test_one_call_takes_the_lock_of_the_array_once(store: ps.PartsStore, taken: list[str], workers: int) -> None:
    array = create(store)
    with zarr.config.set({"codec_pipeline.max_workers": workers}):
        for count in (1, 2):
            array[...] = VALUES
            assert [name for name in taken if name == "array.lock"] == ["array.lock"] * count
            assert lock_files(store) == []
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES)


def test_a_call_that_fails_releases_the_lock_of_the_array(
    store: ps.PartsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = create(store)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr("os.utime", fail)
        with pytest.raises(ps.errors.StorageError):
            array[...] = VALUES
    assert lock_files(store) == []
    array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)


def test_arrays_without_parts_and_exclusive_stores_take_no_lock(tmp_path: Path, taken: list[str]) -> None:
    store = ps.PartsStore.from_url(tmp_path / "objects", concurrency="exclusive")
    create(store)[...] = VALUES
    plain = zarr.create_array(store, name="plain", shape=VALUES.shape, chunks=8, dtype="uint8")
    ps.open_array(store, "plain", mode="r+")[...] = VALUES
    np.testing.assert_array_equal(plain[...], VALUES)
    assert taken == []


def test_a_deletion_does_not_wait_for_the_end_of_a_call(store: ps.PartsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    array = create(store)
    gate = Path(str(store.store.prefix)) / array_locks("a")[0]
    locks: list[Lock] = []
    lock = LocalBackend.lock

    def watched(backend: LocalBackend, wanted: Lock) -> Callable[[], None] | None:
        if wanted.shared is not None:
            locks.append(wanted)
            end = time.monotonic() + SECONDS
            # The second chunk is written when the deletion waits.
            while len(locks) == 2 and not gate.exists():
                assert time.monotonic() < end
        return lock(backend, wanted)

    monkeypatch.setattr(LocalBackend, "lock", watched)
    writer = threading.Thread(target=lambda: array.__setitem__(..., VALUES))
    with zarr.config.set({"codec_pipeline.max_workers": 1}):
        writer.start()
        end = time.monotonic() + SECONDS
        while len(locks) < 2:
            assert time.monotonic() < end
        asyncio.run(ps.PartsStore.from_url(str(store.store.prefix)).delete_dir("a/c"))
        writer.join(SECONDS)
    assert not writer.is_alive()
    # The first chunk was deleted, and the others were written afterwards.
    expected = VALUES.copy()
    expected[:8] = 0
    np.testing.assert_array_equal(array[...], expected)
    assert lock_files(store) == []
