"""Which keys a session shows, and how a store on a session is printed, compared and pickled."""

import json
import pickle
from collections.abc import Callable

import icechunk
import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ReservedKeyError, StoreConfigError
from tests.backends.icechunk_session.stores import (
    KINDS,
    LAYOUTS,
    PLAIN,
    SHARDED,
    buffer,
    keys_of,
    make_bytes,
    make_sharded,
    value_of,
)


@pytest.mark.parametrize(
    "key",
    [
        "a/__parts__/.index/c/0",
        "a/__parts__/.index/zarr.json",
        "a/__parts__/zarr.json",
        "a/__parts__",
        "__parts__/x/zarr.json",
        "a/c/0.index",
    ],
)
def test_the_keys_of_parts_are_not_there_and_cannot_be_changed(store: ps.PartsStore, key: str) -> None:
    array = make_sharded(store, split=True)
    before = keys_of(store.session.store.list())
    assert value_of(store, key) is None
    assert value_of(store, key, RangeByteRequest(0, 1)) is None
    assert store.get_sync(key) is None
    assert not sync(store.exists(key))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize(key))
    document = buffer(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode())
    changes: list[Callable[[], object]] = [
        lambda: sync(store.set(key, document)),
        lambda: store.set_sync(key, document),
        lambda: sync(store.set_if_not_exists(key, document)),
        lambda: sync(store.delete(key)),
        lambda: store.delete_sync(key),
    ]
    for change in changes:
        with pytest.raises(ReservedKeyError):
            change()
    assert keys_of(store.session.store.list()) == before
    np.testing.assert_array_equal(array[:], np.arange(1, 17))


@pytest.mark.parametrize("folder", ["a/__parts__", "a/__parts__/", "a/__parts__/.index", "a/__parts__/.index/c"])
def test_the_folders_of_parts_are_empty_and_cannot_be_deleted(store: ps.PartsStore, folder: str) -> None:
    array = make_sharded(store, split=True)
    assert keys_of(store.list_dir(folder)) == set()
    assert keys_of(store.list_prefix(folder)) == set()
    assert sync(store.is_empty(folder))
    with pytest.raises(ReservedKeyError):
        sync(store.delete_dir(folder))
    with pytest.raises(ValueError, match=r"parts|parent"):
        zarr.create_group(store, path=folder.rstrip("/"), overwrite=True)
    with pytest.raises(StoreConfigError):
        store.verify(folder)
    np.testing.assert_array_equal(array[:], np.arange(1, 17))


@KINDS
def test_the_folder_of_chunks_is_listed_only_if_there_are_some(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    make_bytes(store, LAYOUTS["both"], "g/c", split=split)
    for _ in range(2):
        assert keys_of(store.list_dir("a")) == {"zarr.json"}
        assert keys_of(store.list_dir("a/c")) == set()
        assert keys_of(store.list_dir("g")) == {"zarr.json", "c"}
        store.set_sync("a/c/3", buffer(b"12345"))
        assert keys_of(store.list_dir("a")) == {"zarr.json", "c"}
        assert keys_of(store.list_dir("a/c")) == {"3"}
        store.delete_sync("a/c/3")


def test_stores_are_equal_if_their_sessions_are(repository: icechunk.Repository, session: icechunk.Session) -> None:
    store = ps.PartsStore.from_session(session)
    assert store == ps.PartsStore.from_session(session)
    assert store != ps.PartsStore.from_session(repository.writable_session("main"))
    assert store == ps.PartsStore.from_session(session, parts={"*": [""]})
    assert store.with_parts({"*": SHARDED}) == store.with_parts({"*": SHARDED}, split=True)
    assert store.session is session
    assert store.store is session


@KINDS
def test_read_only_sessions_and_forks_are_pickled(on_disk: icechunk.Repository, *, split: bool) -> None:
    session = on_disk.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=split)
    with pytest.raises(pickle.PicklingError, match="fork the session"):
        pickle.dumps(ps.PartsStore.from_session(session))
    session.commit("an array")
    reader = ps.PartsStore.from_session(on_disk.readonly_session("main"), index_cache_bytes=5, retries=2)
    zarr.open_array(reader, path="a")
    copy = pickle.loads(pickle.dumps(reader))
    # Icechunk takes no two sessions for the same, and so these are not.
    assert copy.session.snapshot_id == reader.session.snapshot_id
    assert copy.read_only
    assert copy.catalog.to_state() == reader.catalog.to_state()
    np.testing.assert_array_equal(zarr.open_array(copy, path="a")[:], np.arange(1, 17))
    writing = on_disk.writable_session("main")
    fork = writing.fork()
    forked = ps.PartsStore.from_session(fork).with_parts({"new": SHARDED}, split=split)
    sent = pickle.loads(pickle.dumps(forked))
    assert not sent.read_only
    zarr.open_array(sent, path="a")[2:4] = 50
    new = zarr.create_array(sent, name="new", **PLAIN)
    new[:] = 6
    writing.merge(pickle.loads(pickle.dumps(sent)).session)
    merged = ps.PartsStore.from_session(writing)
    np.testing.assert_array_equal(zarr.open_array(merged, path="a")[:5], [1, 2, 50, 50, 5])
    np.testing.assert_array_equal(zarr.open_array(merged, path="new")[:], [6] * 16)
    assert any(key.startswith("new/__parts__") for key in keys_of(writing.store.list())) == split
    assert merged.verify().is_clean
