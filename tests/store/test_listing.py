"""Listings show chunks, and neither parts nor the objects of the write protocol."""

from typing import Any

import obstore
import pytest
import zarr
from obstore.store import MemoryStore
from zarr.core.sync import sync

import parts_store as ps
from tests.store.arrays import HEADER_DATA_INDEX, VALUES, collect, content, create, create_sharded, keys_of


@pytest.mark.sampled(5)
@pytest.mark.parametrize("encoding", [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")])
@pytest.mark.parametrize("parts", [HEADER_DATA_INDEX, [ps.Part(".a", size=8), ".b"]], ids=["main", "no main"])
def test_listings_show_chunks_and_neither_parts_nor_protocol_objects(
    objects: Any, encoding: tuple[str, str], parts: Any
) -> None:
    name, separator = encoding
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    array = create(
        store,
        parts,
        "group/a",
        chunks=(8, 8),
        shards=(32, 32),
        chunk_key_encoding={"name": name, "separator": separator},
    )
    array[...] = VALUES
    obstore.put(objects, "group/a/.parts-txn/00/11", b"staged")
    start = f"c{separator}" if name == "default" else ""
    chunks = {f"group/a/{start}{i}{separator}{j}" for i in range(2) for j in range(2)}
    for fresh in (store, ps.PartsStore(objects)):
        assert set(sync(collect(fresh.list()))) == {"zarr.json", "group/zarr.json", "group/a/zarr.json", *chunks}
        assert set(sync(collect(fresh.list_prefix("group/a")))) == {"group/a/zarr.json", *chunks}
        names = {key.removeprefix("group/a/").split("/")[0] for key in chunks} | {"zarr.json"}
        assert set(sync(collect(fresh.list_dir("group/a")))) == names
        assert set(sync(collect(fresh.list_dir("group")))) == {"a", "zarr.json"}
    total = sum(
        len(content(objects, key)) for key in keys_of(objects) if key.startswith("group/") and ".parts" not in key
    )
    assert sync(store.getsize_prefix("group")) == total


def test_delete_dir_removes_everything_below_and_nothing_beside(objects: Any) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    for name in ("a", "ab"):
        create_sharded(store, name=name)[...] = VALUES
        obstore.put(objects, f"{name}/.parts-txn/00/11", b"staged")
    beside = {key for key in keys_of(objects) if not key.startswith("a/")}
    sync(store.delete_dir("a"))
    assert keys_of(objects) == beside
    assert store.parts_of("a") is None
    assert store.parts_of("ab") is not None
    sync(store.clear())
    assert keys_of(objects) == set()
    assert sync(store.is_empty(""))


def test_folder_of_orphaned_parts_is_not_listed() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = ps.create_array(
        store, "a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None, parts=["", ps.Part(".t", size=1)]
    )
    array[...] = 1
    assert set(sync(collect(store.list_dir("a")))) == {"zarr.json", "c"}
    store.delete_sync("a/c/0")
    assert "a/c/0.t" in {each["path"] for each in obstore.list(objects).collect()}
    assert set(sync(collect(store.list_dir("a")))) == {"zarr.json"}


def test_folder_of_orphaned_parts_among_chunks_is_not_listed() -> None:
    store = ps.PartsStore(MemoryStore())
    array = ps.create_array(
        store, "g/a", shape=(4, 2), chunks=(2, 2), dtype="uint8", compressors=None, parts=["", ps.Part(".t", size=1)]
    )
    array[...] = 1
    store.delete_sync("g/a/c/1/0")
    assert set(sync(collect(store.list_dir("g/a/c")))) == {"0"}
    store.delete_sync("g/a/c/0/0")
    assert set(sync(collect(store.list_dir("g/a/c")))) == set()
    assert set(sync(collect(store.list_dir("g")))) == {"zarr.json", "a"}
