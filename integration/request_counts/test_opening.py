"""Opening, listing and explaining cost what they cost with zarr's own store, or what is documented."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import S3Store
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import ObjectStore

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import (
    INNER_NBYTES,
    LAYOUTS,
    SHARD_PARTS,
    SHARDED,
    VALUES,
    Log,
    as_log,
    counted,
    create_chunk,
    create_shards,
    log_of,
    objects_below,
)
from parts_store import SHARD_INDEX, Part, PartsStore

type Act = Callable[[Store], Any]


def both_logs(bucket: Bucket, proxy: CountingProxy, prepare: Act, act: Act, *, parts: bool = False) -> tuple[Log, Log]:
    """Return the requests of an act with zarr's store and with `PartsStore`, each on a copy of the same objects.

    `prepare` writes what `act` finds, through another store, so that neither knows anything beforehand. With `parts`,
    ours finds arrays with parts where zarr's finds arrays without.
    """
    patterns = {"*": LAYOUTS[3]} if parts else None
    logs = []
    for name in ("theirs", "ours"):
        below = objects_below(bucket, proxy, name)
        prepare(ObjectStore(below) if name == "theirs" else PartsStore(below, parts=patterns))
        proxy.requests.clear()
        if name == "theirs":
            act(ObjectStore(below))
            logs.append(log_of(proxy.requests, f"{name}/"))
        else:
            with counted(proxy, store := PartsStore(below)) as seen:
                act(store)
            logs.append(log_of(seen, f"{name}/"))
    theirs, ours = logs
    return theirs, ours


def write_tree(store: Store) -> None:
    root = zarr.create_group(store)
    group = root.create_group("group")
    for name in ("a", "b"):
        array: zarr.Array[Any] = group.create_array(name, shape=(64, 64), chunks=(32, 64), dtype="uint8")
        array[...] = VALUES[:64, :64]


def write_consolidated_tree(store: Store) -> None:
    write_tree(store)
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(store)


OPENINGS: dict[str, tuple[Act, Act]] = {
    "array": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r")),
    "array to write": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r+")),
    "array of any format": (write_tree, lambda store: zarr.open(store, path="group/a", mode="r")),
    "array of format 3": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r", zarr_format=3)),
    "group": (write_tree, lambda store: zarr.open_group(store, mode="r")["group/a"]),
    "members": (write_tree, lambda store: list(zarr.open_group(store, path="group", mode="r").arrays())),
    "consolidated": (write_consolidated_tree, lambda store: zarr.open_consolidated(store)["group/a"]),
    "nothing": (write_tree, lambda store: store_has_no_array(store, "group/nothing")),
}


def store_has_no_array(store: Store, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        zarr.open_array(store, path=path, mode="r")


@pytest.mark.parametrize("parts", [False, True], ids=["plain", "parts"])
@pytest.mark.parametrize("opening", OPENINGS)
def test_opening_costs_the_same_as_with_zarrs_store(
    bucket: Bucket, proxy: CountingProxy, opening: str, *, parts: bool
) -> None:
    prepare, act = OPENINGS[opening]
    theirs, ours = both_logs(bucket, proxy, prepare, act, parts=parts)
    assert len(theirs) >= 1
    assert ours == theirs


def write_sharded(store: Store) -> None:
    zarr.create_array(store, name="a", compressors=None, **SHARDED)[...] = VALUES


def open_a(store: Store) -> zarr.Array[Any]:
    return zarr.open_array(store, path="a", mode="r")


async def _listed(store: Store, prefix: str) -> list[str]:
    return sorted([key async for key in store.list_prefix(prefix)] + [key async for key in store.list_dir(prefix)])


def nothing(store: Store) -> None:
    """There is nothing before."""


def write_some(store: Store) -> None:
    zarr.open_array(store, path="a", mode="r+")[10:80, 10:80] = 7


def change_metadata(store: Store) -> None:
    array = zarr.open_array(store, path="a", mode="r+")
    array.attrs["colour"] = "red"
    array.resize((200, 128))


PLAIN: dict[str, tuple[Act, Act]] = {
    "create": (nothing, lambda store: zarr.create_array(store, name="a", **SHARDED)),
    "write": (nothing, write_sharded),
    "write a tree": (nothing, write_tree),
    "write a part": (write_sharded, write_some),
    "change the metadata": (write_sharded, change_metadata),
    "full read": (write_sharded, lambda store: open_a(store)[...]),
    "inner chunk": (write_sharded, lambda store: open_a(store)[:5, :5]),
    "inner chunks": (write_sharded, lambda store: open_a(store)[10:100, 30:50]),
    "absent": (
        lambda store: zarr.create_array(store, name="a", **SHARDED),
        lambda store: open_a(store)[:5, :5],
    ),
    "list": (write_sharded, lambda store: sync(_listed(store, "a"))),
    "list a folder": (write_sharded, lambda store: sync(_listed(store, "a/c/"))),
    "list everything": (write_sharded, lambda store: sync(_listed(store, ""))),
    "exists": (write_sharded, lambda store: [open_a(store), sync(store.exists("a/c/0/0"))]),
    "size": (write_sharded, lambda store: [open_a(store), sync(store.getsize("a/c/0/0"))]),
    "size of everything": (write_sharded, lambda store: sync(store.getsize_prefix("a"))),
    "delete a chunk": (write_sharded, lambda store: [open_a(store), sync(store.delete("a/c/0/0"))]),
}
OF_SMALL_SHARDS = ("inner chunk", "inner chunks", "absent")


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("act", PLAIN)
def test_arrays_without_parts_cost_the_same_as_with_zarrs_store(bucket: Bucket, proxy: CountingProxy, act: str) -> None:
    theirs, ours = both_logs(bucket, proxy, *PLAIN[act])
    assert len(theirs) >= 1
    if act in OF_SMALL_SHARDS:
        # zarr reads the index, then the data. The shards are small, so each of them is read whole.
        chunks = {(verb, key, (None, None)) for verb, key, _ in theirs if "/c/" in key}
        theirs = sorted(chunks) + [each for each in theirs if "/c/" not in each[1]]
        ours = sorted(each for each in ours if "/c/" in each[1]) + [each for each in ours if "/c/" not in each[1]]
    assert ours == theirs


CHUNKS = 1200
PAGE = 1000


async def _put_all(objects: S3Store, keys: list[str]) -> None:
    at_once = asyncio.Semaphore(64)

    async def put(key: str) -> None:
        async with at_once:
            await obstore.put_async(objects, key, b"x")

    await asyncio.gather(*map(put, keys))


@pytest.mark.parametrize("count", [1, 3])
def test_listing_chunks_costs_pages_and_nothing_else(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, count: int
) -> None:
    suffixes = ["", ".one", ".two"][:count]
    arguments: dict[str, Any] = {"shape": (CHUNKS,), "chunks": (1,), "dtype": "uint8"}
    if count == 1:
        zarr.create_array(store, name="a", **arguments)
    else:
        ps.create_array(store, "a", parts=["", ps.Part(".one", size=1), ps.Part(".two", size=1)], **arguments)
    chunk_keys = [f"a/c/{number}" for number in range(CHUNKS)]
    part_keys = [key + suffix for key in chunk_keys for suffix in suffixes]
    direct = bucket.store()
    try:
        asyncio.run(_put_all(direct, part_keys))
        for prefix, documents in (("", ["zarr.json", "a/zarr.json"]), ("a", ["a/zarr.json"]), ("a/c", [])):
            proxy.requests.clear()
            store.stats.reset()
            listed = sync(_all_below(store, prefix))
            assert sorted(listed) == sorted(chunk_keys + documents)
            pages = math.ceil((len(part_keys) + len(documents)) / PAGE)
            assert Counter(each.kind for each in proxy.requests) == {"list": pages}
            # A call of ours is as many pages as it takes.
            assert store.stats.calls["list"] == sum(store.stats.calls.values()) == 1
    finally:
        # Many at once, for the bucket's own cleaning is one by one.
        for start in range(0, len(part_keys), 1000):
            obstore.delete(direct, part_keys[start : start + 1000])


async def _all_below(store: Store, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def test_listing_by_a_store_that_knows_nothing_reads_each_document_once(objects: S3Store, proxy: CountingProxy) -> None:
    create_shards(PartsStore(objects))[...] = VALUES
    stranger = PartsStore(objects)
    for documents in (1, 0):
        with counted(proxy, stranger) as seen:
            assert len(sync(_all_below(stranger, "a"))) == 5
        assert Counter(each.kind for each in seen) == Counter(
            {"list": 1, "get": documents} if documents else {"list": 1}
        )


SELECTIONS: dict[str, Any] = {
    "everything": np.s_[...],
    "one value": np.s_[3, 3],
    "first inner chunk": np.s_[:16, :16],
    "another inner chunk": np.s_[20:25, 40:45],
    "inner chunks of one shard": np.s_[0:64, 0:32],
    "a whole shard": np.s_[64:, :64],
    "corners of all shards": np.s_[40:70, 40:70],
    "every 50th": np.s_[::50, ::50],
    "nothing": np.s_[0:0, :],
}


def write_dense(array: zarr.Array[Any]) -> None:
    array[...] = VALUES


def write_holes(array: zarr.Array[Any]) -> None:
    array[10:30, 10:80] = VALUES[10:30, 10:80]


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("write", [write_dense, write_holes])
@pytest.mark.parametrize(
    "parts",
    [
        SHARD_PARTS,
        # The first inner chunk lies in the header and nowhere else.
        [Part(".header", size=INNER_NBYTES), Part(""), Part(".index", size=SHARD_INDEX)],
        [Part("")],
    ],
    ids=["header", "large header", "one part"],
)
def test_explain_lists_the_requests_that_the_read_then_makes(
    proxy: CountingProxy, store: PartsStore, parts: list[Part], write: Callable[[zarr.Array[Any]], None]
) -> None:
    ps.create_array(store, "a", parts=parts, compressors=None, **SHARDED)
    array = zarr.open_array(store, path="a")
    write(array)
    for name, selection in SELECTIONS.items():
        proxy.requests.clear()
        explained = store.explain("a", selection)
        # Documents and indexes are read, and data is not.
        indexes = {each.key for each in explained if each.why == "index of the shard"}
        assert {each.key for each in proxy.requests if each.kind == "get"} <= {"a/zarr.json", *indexes}, name
        with counted(proxy, store) as seen:
            array[selection]
        assert as_log(explained) == log_of(seen), name


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("count", LAYOUTS)
def test_explain_lists_the_parts_of_chunks_without_shards(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = 1
    explained = store.explain("a", np.s_[:3, :3])
    with counted(proxy, store) as seen:
        array[:3, :3]
    assert len(seen) == count
    assert as_log(explained) == log_of(seen)
