"""What reads, writes and listings cost: counted on the wire, range by range, and equal to our own counters."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import ObjectStore

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy, Seen
from integration.server import Server
from parts_store import SHARD_INDEX, Part, PartsStore

PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
}
SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
# Four by four inner chunks of 256 bytes in each of two by two shards.
SHARDED: dict[str, Any] = {"shape": (128, 128), "chunks": (16, 16), "shards": (64, 64), "dtype": "uint8"}
INNER_NBYTES = 16 * 16
INDEX_NBYTES = 16 * 16 + 4
HEADER_NBYTES = 64
# No value is the fill value, so that no inner chunk is left out.
VALUES: NDArray[Any] = (np.arange(128 * 128) % 251 + 1).astype("uint8").reshape(128, 128)

type Log = list[tuple[str, str, tuple[int | None, int | None]]]


@pytest.fixture(params=sorted(PIPELINES), autouse=True)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def objects(bucket: Bucket, proxy: CountingProxy) -> S3Store:
    """The bucket, through the proxy."""
    return objects_below(bucket, proxy, None)


@pytest.fixture
def store(objects: S3Store) -> PartsStore:
    return PartsStore(objects)


def objects_below(bucket: Bucket, proxy: CountingProxy, prefix: str | None) -> S3Store:
    user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
    return bucket.store(prefix, user=user)


@contextmanager
def counted(proxy: CountingProxy, store: PartsStore) -> Iterator[list[Seen]]:
    """The requests made inside, of which every one is counted by the store too."""
    seen: list[Seen] = []
    proxy.requests.clear()
    store.stats.reset()
    yield seen
    seen += proxy.requests
    ours = {kind: count for kind, count in store.stats.calls.items() if count}
    assert Counter(each.kind for each in seen) == ours


def log_of(seen: list[Seen], prefix: str = "") -> Log:
    """Kind, key and byte range of each request, in an order that does not depend on chance."""
    log = [(each.kind, (each.key or each.listed or "").removeprefix(prefix).strip("/"), each.bounds) for each in seen]
    return sorted(log, key=repr)


def as_log(requests: list[ps.Request]) -> Log:
    return sorted([(each.kind, each.key, (each.start, each.stop)) for each in requests], key=repr)


def gets(*wanted: tuple[str, tuple[int | None, int | None]]) -> Log:
    return sorted([("get", key, bounds) for key, bounds in wanted], key=repr)


def expected_log(*requests: tuple[str, str, tuple[int | None, int | None]]) -> Log:
    return sorted(requests, key=repr)


WHOLE = (None, None)


# --- chunks ---------------------------------------------------------------------------------------------------------

LAYOUTS: dict[int, list[Part]] = {
    1: [Part("")],
    2: [Part(""), Part(".tail", size=4)],
    3: [Part(".head", size=10), Part(""), Part(".tail", size=4)],
    4: [Part(".head", size=10), Part(".more", size=0), Part(""), Part(".tail", size=4)],
}


def create_chunk(store: PartsStore, parts: list[Part]) -> zarr.Array[Any]:
    return ps.create_array(store, "a", parts=parts, shape=(64, 64), chunks=(64, 64), dtype="uint8", compressors=None)


@pytest.mark.parametrize("count", LAYOUTS)
def test_the_first_write_of_a_chunk_is_one_put_for_each_part(
    proxy: CountingProxy, store: PartsStore, count: int
) -> None:
    array = create_chunk(store, LAYOUTS[count])
    with counted(proxy, store) as seen:
        array[...] = VALUES[:64, :64]
    assert sorted(each.key for each in seen) == sorted(f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count])
    assert {(each.method, each.if_none_match, each.status) for each in seen} == {("PUT", "*", 200)}


@pytest.mark.parametrize("count", LAYOUTS)
def test_a_full_read_of_a_chunk_is_one_get_for_each_part(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = VALUES[:64, :64]
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[...], VALUES[:64, :64])
    assert sorted(each.key for each in seen) == sorted(f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count])
    assert {each.method for each in seen} == {"GET"}


@pytest.mark.parametrize("count", LAYOUTS)
def test_a_full_read_by_a_store_that_knows_nothing_reads_the_document_once(
    objects: S3Store, proxy: CountingProxy, count: int
) -> None:
    create_chunk(PartsStore(objects), LAYOUTS[count])[...] = VALUES[:64, :64]
    stranger = PartsStore(objects)
    for documents in (1, 0):
        with counted(proxy, stranger) as seen:
            assert stranger.get_sync("a/c/0/0") is not None
        assert Counter(each.key for each in seen) == Counter({"a/zarr.json": documents} if documents else {}) + Counter(
            f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count]
        )


@pytest.mark.parametrize("count", LAYOUTS)
def test_whether_a_chunk_exists_is_one_head(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    create_chunk(store, LAYOUTS[count])[...] = 1
    for key, answer in (("a/c/0/0", True), ("a/c/0/1", False)):
        with counted(proxy, store) as seen:
            assert sync(store.exists(key)) is answer
        assert log_of(seen) == [("head", key, WHOLE)]


@pytest.mark.parametrize("count", LAYOUTS)
def test_the_size_of_a_chunk_is_one_head(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    create_chunk(store, LAYOUTS[count])[...] = 1
    with counted(proxy, store) as seen:
        assert sync(store.getsize("a/c/0/0")) == 64 * 64
    assert log_of(seen) == [("head", "a/c/0/0", WHOLE)]


# --- shards ---------------------------------------------------------------------------------------------------------


def create_shards(store: PartsStore) -> zarr.Array[Any]:
    return ps.create_array(store, "a", parts=SHARD_PARTS, compressors=None, **SHARDED)


def offsets_of(bucket: Bucket, shard: str) -> NDArray[Any]:
    """Where the shard's inner chunks begin, as its stored index says."""
    index = np.frombuffer(bucket.read(f"{shard}.index")[:-4], "<u8").reshape(4, 4, 2)
    assert (index[..., 1] == INNER_NBYTES).all()
    return index[..., 0].astype(int)


def in_main(offset: int) -> tuple[int, int]:
    """The bytes of the main part that hold what is left of an inner chunk after the header."""
    return max(0, offset - HEADER_NBYTES), offset + INNER_NBYTES - HEADER_NBYTES


def test_an_inner_chunk_costs_one_get_of_the_index_and_one_of_each_object_it_touches(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore
) -> None:
    array = create_shards(store)
    array[...] = VALUES
    offsets = offsets_of(bucket, "a/c/0/0")
    assert 0 in offsets
    for row, column in np.ndindex(4, 4):
        selection = np.s_[16 * row + 2 : 16 * row + 9, 16 * column + 3 : 16 * column + 4]
        with counted(proxy, store) as seen:
            np.testing.assert_array_equal(array[selection], VALUES[selection])
        offset = int(offsets[row, column])
        data = [("a/c/0/0", in_main(offset))]
        if offset == 0:
            data.append(("a/c/0/0.header", (0, HEADER_NBYTES)))
        assert log_of(seen) == gets(("a/c/0/0.index", (0, INDEX_NBYTES)), *data)


def test_near_inner_chunks_cost_one_get_of_each_object_together(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore
) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[0:64, 0:32], VALUES[0:64, 0:32])
    offsets = offsets_of(bucket, "a/c/0/0")[:, :2]
    start, stop = in_main(offsets.min())[0], in_main(offsets.max())[1]
    assert log_of(seen) == gets(
        ("a/c/0/0.index", (0, INDEX_NBYTES)), ("a/c/0/0.header", (0, HEADER_NBYTES)), ("a/c/0/0", (start, stop))
    )
    # Eight ranges of the main part were read as one.
    assert store.stats.saved_by_coalescing == 7


def test_far_inner_chunks_cost_one_get_for_each_group(bucket: Bucket, proxy: CountingProxy, store: PartsStore) -> None:
    with zarr.config.set({"array.sharding_coalesce_max_gap_bytes": INNER_NBYTES - 1}):
        create_shards(store)[...] = VALUES
        array = zarr.open_array(store, path="a")
    offsets = offsets_of(bucket, "a/c/0/0")
    places = [tuple(np.argwhere(offsets == slot * INNER_NBYTES)[0]) for slot in (0, 1, 3, 5, 6)]
    rows, columns = ([16 * int(place[axis]) for place in places] for axis in (0, 1))
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array.vindex[rows, columns], VALUES[rows, columns])
    groups = [(0, 2), (3, 4), (5, 7)]
    main = [(in_main(first * INNER_NBYTES)[0], in_main((stop - 1) * INNER_NBYTES)[1]) for first, stop in groups]
    assert log_of(seen) == gets(
        ("a/c/0/0.index", (0, INDEX_NBYTES)),
        ("a/c/0/0.header", (0, HEADER_NBYTES)),
        *(("a/c/0/0", bounds) for bounds in main),
    )


def test_a_selection_over_many_shards_costs_each_of_them_the_same(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[40:70, 40:70], VALUES[40:70, 40:70])
    shards = ("a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1")
    assert Counter(each.key for each in seen if each.key.endswith(".index")) == Counter(
        f"{key}.index" for key in shards
    )
    assert Counter(each.key for each in seen if not each.key.endswith((".index", ".header"))) == Counter(shards)
    assert {each.method for each in seen} == {"GET"}


def test_a_whole_shard_costs_one_get_for_each_part(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:64, 64:], VALUES[:64, 64:])
    assert Counter(each.key for each in seen) == Counter(f"a/c/0/1{part.key_suffix}" for part in SHARD_PARTS)
    assert {each.method for each in seen} == {"GET"}


def test_an_index_at_the_start_costs_the_same(proxy: CountingProxy, store: PartsStore) -> None:
    codec = zarr.codecs.ShardingCodec(chunk_shape=(16, 16), index_location="start")
    arguments: dict[str, Any] = {
        "shape": (64, 64),
        "chunks": (64, 64),
        "dtype": "uint8",
        "serializer": codec,
        "compressors": None,
    }
    array = ps.create_array(store, "a", parts=[Part(".index", size=SHARD_INDEX), Part("")], **arguments)
    array[...] = VALUES[:64, :64]
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, :5], VALUES[:5, :5])
    assert [key for _, key, _ in log_of(seen)] == ["a/c/0/0", "a/c/0/0.index"]
    assert {each.method for each in seen} == {"GET"}


def test_a_shard_with_holes_costs_one_head_more(bucket: Bucket, proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[:16, :32] = VALUES[:16, :32]
    index = ("get", "a/c/0/0.index", (0, INDEX_NBYTES))
    head = ("head", "a/c/0/0", WHOLE)
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 16:20], VALUES[:5, 16:20])
    assert log_of(seen) == expected_log(index, head, ("get", "a/c/0/0", in_main(INNER_NBYTES)))
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 40:45], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(index, head)


def test_a_part_of_an_absent_shard_costs_two_requests(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, :5], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(
        ("get", "a/c/0/0.index", (0, INDEX_NBYTES)),
        ("head", "a/c/0/0", WHOLE),
    )
    assert {each.status for each in seen} == {404}


def test_the_first_write_of_shards_is_one_put_for_each_part(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    with counted(proxy, store) as seen:
        array[:64, :] = VALUES[:64, :]
    assert sorted(each.key for each in seen) == sorted(
        f"a/c/0/{column}{part.key_suffix}" for column in range(2) for part in SHARD_PARTS
    )
    assert {(each.method, each.if_none_match, each.status) for each in seen} == {("PUT", "*", 200)}


# --- the same as zarr's own store -----------------------------------------------------------------------------------

type Act = Callable[[Store], Any]


def both_logs(bucket: Bucket, proxy: CountingProxy, prepare: Act, act: Act, *, parts: bool = False) -> tuple[Log, Log]:
    """What the same act costs with zarr's store and with ours, each on the same objects below a prefix of its own.

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
def test_opening_costs_what_it_costs_with_zarrs_own_store(
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


@pytest.mark.parametrize("act", PLAIN)
def test_arrays_without_parts_cost_what_they_cost_with_zarrs_own_store(
    bucket: Bucket, proxy: CountingProxy, act: str
) -> None:
    theirs, ours = both_logs(bucket, proxy, *PLAIN[act])
    assert len(theirs) >= 1
    assert ours == theirs


# --- listings -------------------------------------------------------------------------------------------------------

CHUNKS = 1200
PAGE = 1000


async def _put_all(objects: S3Store, keys: list[str]) -> None:
    at_once = asyncio.Semaphore(64)

    async def put(key: str) -> None:
        async with at_once:
            await obstore.put_async(objects, key, b"x")

    await asyncio.gather(*map(put, keys))


# A listing has no pipeline.
@pytest.mark.parametrize("pipeline", ["batched"], indirect=True)
@pytest.mark.parametrize("count", [1, 3])
def test_listing_chunks_costs_pages_and_nothing_else(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, count: int
) -> None:
    suffixes = ["", ".one", ".two"][:count]
    arguments: dict[str, Any] = {"shape": (CHUNKS,), "chunks": (1,), "dtype": "uint8"}
    if count == 1:
        zarr.create_array(store, name="a", **arguments)
    else:
        ps.create_array(store, "a", parts=suffixes, **arguments)
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


# --- explain --------------------------------------------------------------------------------------------------------

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
    array = ps.create_array(store, "a", parts=parts, compressors=None, **SHARDED)
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


@pytest.mark.parametrize("count", LAYOUTS)
def test_explain_lists_the_parts_of_chunks_without_shards(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = 1
    explained = store.explain("a", np.s_[:3, :3])
    with counted(proxy, store) as seen:
        array[:3, :3]
    assert len(seen) == count
    assert as_log(explained) == log_of(seen)
