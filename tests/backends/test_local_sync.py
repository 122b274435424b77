"""What is synchronised, and what happens if the disk fails or cannot do it."""

import errno
import fcntl
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore, S3Store
from zarr.core.buffer import cpu, default_buffer_prototype

import parts_store as ps
from parts_store.backends import local_files
from parts_store.maintenance.report import Problem
from parts_store.store.repositories import open_repository, open_writable

KEY = "a/c/0"
DESCRIPTORS = Path("/proc/self/fd")
OLD, NEW = b"old value", b"new value"


@pytest.fixture
def store(tmp_path: Path) -> ps.PartsStore:
    store = ps.PartsStore.from_url(tmp_path / "data", durable=True)
    ps.create_array(store, "a", parts=["", ps.Part(".end", size=4)], shape=(4,), chunks=(1,), dtype="int8")
    put(store, OLD)
    return store


def put(store: ps.PartsStore, value: bytes) -> None:
    store.set_sync(KEY, cpu.Buffer.from_bytes(value))


def read(store: ps.PartsStore) -> bytes:
    found = store.get_sync(KEY, prototype=default_buffer_prototype())
    assert found is not None
    return found.to_bytes()


def fail_at(number: int, error: int) -> Callable[[int], None]:
    """Return an `fsync` that fails once, at this call."""
    real, calls = os.fsync, iter(range(sys.maxsize))

    def sync(descriptor: int) -> None:
        if next(calls) == number:
            raise OSError(error, os.strerror(error))
        real(descriptor)

    return sync


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINVAL])
def test_a_failed_synchronisation_is_raised_and_not_repeated(
    store: ps.PartsStore, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    messages: list[str] = []
    for number in range(100):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail_at(number, error))
            try:
                put(store, NEW)
            except ps.errors.StorageError as raised:
                messages.append(str(raised))
            else:
                break
        assert read(ps.PartsStore(store.store)) in (OLD, NEW)
        put(store, OLD)
        assert read(store) == OLD
    # Two parts, the journal, its folder before and after, two moves, and the removal of the journal.
    assert len(messages) == 8
    assert all("could not be synchronised to the disk" in each for each in messages)
    assert {each.problem for each in store.verify().findings} <= {Problem.LEFTOVERS}


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP])
def test_a_filesystem_that_cannot_synchronise_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(os, "fsync", fail_at(0, error))
    with pytest.raises(ps.errors.StoreConfigError, match=r"durable: expected False, since the filesystem of .* cannot"):
        ps.PartsStore.from_url(tmp_path / "data", durable=True)


def test_a_disk_that_fails_when_the_store_is_opened_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail_at(0, errno.EIO))
    with pytest.raises(ps.errors.StorageError, match="could not be synchronised"):
        ps.PartsStore.from_url(tmp_path / "data", durable=True)


def test_a_system_that_cannot_synchronise_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "_CAN_SYNC_FOLDERS", False)
    with pytest.raises(ps.errors.StoreConfigError, match="durable: expected False, since this system"):
        ps.PartsStore.from_url(tmp_path, durable=True)


def test_the_folders_that_lead_to_a_new_store_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.add(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    if not DESCRIPTORS.is_dir():
        pytest.skip("this system does not tell the path of a descriptor")
    monkeypatch.setattr(os, "fsync", sync)
    ps.PartsStore.from_url(tmp_path / "new" / "data", durable=True)
    assert {str(tmp_path / "new" / "data"), str(tmp_path / "new"), str(tmp_path)} <= synced


def test_the_default_synchronises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail_at(0, errno.EIO))
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", parts=["", ps.Part(".end", size=1)], shape=(4,), chunks=(4,), dtype="int8")
    array[:] = 1
    array[:] = 2
    assert np.asarray(array[:]).tolist() == [2] * 4


@pytest.mark.parametrize("is_supported", [True, False])
def test_the_full_synchronisation_of_macos_or_else_fsync_is_used(
    monkeypatch: pytest.MonkeyPatch, is_supported: bool
) -> None:
    calls: list[object] = []

    def full_sync(_: int, command: int) -> None:
        if not is_supported:
            raise OSError(errno.ENOTSUP, "not supported")
        calls.append(command)

    monkeypatch.setattr(local_files, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    local_files.sync_descriptor(7)
    assert calls == ([51] if is_supported else ["fsync"])


def test_many_folders_need_few_descriptors(tmp_path: Path) -> None:
    if not DESCRIPTORS.is_dir():
        pytest.skip("this system does not count open descriptors")
    store = ps.PartsStore.from_url(tmp_path, durable=True)
    before = len(list(DESCRIPTORS.iterdir()))
    for number in range(100):
        store.set_sync(f"folder{number}/value", cpu.Buffer.from_bytes(OLD))
    assert len(list(DESCRIPTORS.iterdir())) <= before + 64


def test_a_folder_that_is_made_again_is_synchronised_with_the_folder_above(tmp_path: Path) -> None:
    sync = local_files.DiskSync(str(tmp_path))
    known = local_files._known_folders
    folder = tmp_path / "a"
    for _ in range(3):
        folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY)
        assert not known.has(str(folder), descriptor)
        sync.folder(str(folder))
        assert known.has(str(folder), descriptor)
        os.close(descriptor)
        folder.rmdir()
        sync.folder(str(folder))


# --- the option ---------------------------------------------------------------------------------------------------


def test_a_store_in_memory_refuses_to_be_durable() -> None:
    with pytest.raises(ps.errors.StoreConfigError, match="durable: expected False, since a store in memory"):
        ps.PartsStore(MemoryStore(), durable=True)


def test_an_object_store_is_durable_as_it_is() -> None:
    objects = S3Store("bucket", region="us-east-1", skip_signature=True)
    assert ps.PartsStore(objects, durable=True).supports_writes


@pytest.mark.parametrize("wrong", [1, None, "yes"])
def test_the_option_is_true_or_false(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ps.errors.StoreConfigError, match="durable: expected True or False"):
        ps.PartsStore(LocalStore(tmp_path), durable=wrong)


def test_a_repository_on_a_local_disk_refuses_to_be_durable(tmp_path: Path) -> None:
    open_repository(tmp_path / "repository")
    with pytest.raises(ps.errors.StoreConfigError, match="durable: expected False, since Icechunk"):
        open_writable(tmp_path / "repository", durable=True)


def test_stores_made_from_a_durable_store_are_durable(store: ps.PartsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        pickle.loads(pickle.dumps(store)),
        store.with_parts({}),
        store.with_own_catalog(),
        store.with_read_only(True).with_read_only(False),
        zarr.open_array(store, path="a").store,
    ]
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "failed")))
    for each in made:
        with pytest.raises(ps.errors.StorageError, match="could not be synchronised"):
            put(each, NEW)
    assert read(store) == OLD
