"""What reads and writes of inner chunks of a shard cost."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import (
    HEADER_NBYTES,
    INDEX_NBYTES,
    INNER_NBYTES,
    LAYOUTS,
    SHARD_PARTS,
    SHARDED,
    VALUES,
    WHOLE,
    counted,
    create_chunk,
    create_shards,
    expected_log,
    gets,
    in_main,
    log_of,
)
from integration.request_counts.places import COLUMNS, KEY, LEVELS, Costs, Place, stored_parts, table
from integration.writers import Death, abandon
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.store.options import Concurrency

pytestmark = pytest.mark.usefixtures("pipeline")


def offsets_of(bucket: Bucket, shard: str) -> NDArray[Any]:
    """Where the shard's inner chunks begin, as its stored index says."""
    index = np.frombuffer(bucket.read(f"{shard}.index")[:-4], "<u8").reshape(4, 4, 2)
    assert (index[..., 1] == INNER_NBYTES).all()
    return index[..., 0].astype(int)


def test_inner_chunk_is_one_get_per_object_and_first_one_of_the_index(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore
) -> None:
    array = create_shards(store)
    array[...] = VALUES
    offsets = offsets_of(bucket, "a/c/0/0")
    assert 0 in offsets
    index = [("a/c/0/0.index", (0, INDEX_NBYTES))]
    for row, column in np.ndindex(4, 4):
        selection = np.s_[16 * row + 2 : 16 * row + 9, 16 * column + 3 : 16 * column + 4]
        with counted(proxy, store) as seen:
            np.testing.assert_array_equal(array[selection], VALUES[selection])
        offset = int(offsets[row, column])
        data = [("a/c/0/0", in_main(offset))]
        if offset == 0:
            data.append(("a/c/0/0.header", (0, HEADER_NBYTES)))
        assert log_of(seen) == gets(*index, *data)
        assert store.stats.saved_by_index_cache == (0 if index else 1)
        index = []


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
    ps.create_array(store, "a", parts=[Part(".index", size=SHARD_INDEX), Part("")], **arguments)
    array = zarr.open_array(store, path="a")
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
    # What is known is known to be so still; and of a hole, that it is one.
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 16:20], VALUES[:5, 16:20])
    assert log_of(seen) == expected_log(head, ("get", "a/c/0/0", in_main(INNER_NBYTES)))
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 40:45], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(head)
    stranger = zarr.open_array(other := PartsStore(store.store), path="a")
    with counted(proxy, other) as seen:
        np.testing.assert_array_equal(stranger[:5, 40:45], np.zeros((5, 5), "uint8"))
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


# Values of a shard, all of them different from what they are in the others, and inner chunks that are elsewhere in it.
FIRST = VALUES[:64, :64]
SECOND = FIRST + 1
WITH_HOLE, WITH_OTHER_HOLE = FIRST + 2, FIRST + 3
WITH_HOLE[:16, :16] = WITH_OTHER_HOLE[:32, :32] = 0
CORNER = np.s_[50:53, 50:55]


def write_shard(place: Place, values: NDArray[Any], *, death: Death | None = None) -> None:
    """Write a shard of a main part and an index, not counted; to the end or not."""
    elsewhere = PartsStore(MemoryStore())
    arguments: dict[str, Any] = {**SHARDED, "parts": SHARD_PARTS[1:], "compressors": None}
    ps.create_array(elsewhere, "a", **arguments)[:64, :64] = values
    whole = elsewhere.get_sync(KEY)
    assert whole is not None
    store = PartsStore(place.uncounted)
    if store.parts_of("a") is None:
        ps.create_array(store, "a", **arguments)
    if death is None:
        store.set_sync(KEY, whole)
    else:
        abandon(store, KEY, whole.to_bytes(), death)


class Reader:
    """Reads a corner of the shard, and tells what it costs."""

    def __init__(self, place: Place) -> None:
        self.place, self.store = place, PartsStore(place.objects)
        self.array = zarr.open_array(self.store, path="a")

    def cost(self, expected: NDArray[Any]) -> Costs:
        read: list[Any] = []
        cost = self.place.cost(self.store, lambda: read.append(self.array[CORNER]))
        np.testing.assert_array_equal(read[0], expected[CORNER])
        return cost


@pytest.mark.usefixtures("large_parts")
def test_known_shard_is_one_get_until_it_is_overwritten(place: Place) -> None:
    write_shard(place, FIRST)
    reader = Reader(place)
    assert reader.cost(FIRST) == {"get": 2}
    assert reader.cost(FIRST) == {"get": 1}
    # The data, which is another write's; its index, and whether it is the anchor's; the data again.
    write_shard(place, SECOND)
    assert reader.cost(SECOND) == {"get": 3, "head": 1}
    assert reader.cost(SECOND) == {"get": 1}
    # The same, and the staged copy, where the index is.
    write_shard(place, FIRST, death=Death.ANCHOR)
    assert reader.cost(FIRST) == {"get": 4, "head": 1}
    assert reader.cost(FIRST) == {"get": 1}
    # A reader that does not know the shard finds the old index, and then does the same.
    stranger = Reader(place)
    assert stranger.cost(FIRST) == {"get": 5, "head": 1}
    assert stranger.cost(FIRST) == {"get": 1}


@pytest.mark.usefixtures("large_parts")
def test_a_known_shard_with_holes_costs_one_head_more(place: Place) -> None:
    write_shard(place, WITH_HOLE)
    reader = Reader(place)
    assert reader.cost(WITH_HOLE) == {"get": 2, "head": 1}
    assert reader.cost(WITH_HOLE) == {"get": 1, "head": 1}
    # The head tells that the index is old: another one, with its anchor, and the data.
    write_shard(place, WITH_OTHER_HOLE)
    assert reader.cost(WITH_OTHER_HOLE) == {"get": 2, "head": 2}
    assert reader.cost(WITH_OTHER_HOLE) == {"get": 1, "head": 1}
    write_shard(place, WITH_HOLE, death=Death.ANCHOR)
    assert reader.cost(WITH_HOLE) == {"get": 3, "head": 2}
    assert reader.cost(WITH_HOLE) == {"get": 1, "head": 1}
    # The old index is not the anchor's: it is read again, and the staged copy.
    stranger = Reader(place)
    assert stranger.cost(WITH_HOLE) == {"get": 4, "head": 2}
    # And from a hole to none, and to nothing.
    write_shard(place, FIRST)
    assert reader.cost(FIRST) == {"get": 2, "head": 2}
    assert reader.cost(FIRST) == {"get": 1}
    PartsStore(place.uncounted).delete_sync(KEY)
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 1}
    # The index has outlived its shard; that it has, the data tells.
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 2}


@pytest.mark.parametrize("level", LEVELS)
def test_writing_an_inner_chunk_costs_a_change_of_its_shard(place: Place, level: Concurrency) -> None:
    write_shard(place, FIRST)
    store = PartsStore(place.objects, concurrency=level)
    array = zarr.open_array(store, path="a")

    def write() -> None:
        array[20:25, 3:7] = 77

    # The shard was created at the default level.
    column = place.column(level).replace("full", "writers")
    assert place.cost(store, write) == table(2, embeds=True)["change"][COLUMNS.index(column)]
    expected = FIRST.copy()
    expected[20:25, 3:7] = 77
    np.testing.assert_array_equal(array[:64, :64], expected)
    assert stored_parts(place) == {KEY, f"{KEY}.index"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("k", [2, 3])
def test_a_part_of_a_chunk_that_is_written_costs_a_read_and_a_write(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    store = PartsStore(place.objects, concurrency=level)
    array = create_chunk(store, LAYOUTS[k])
    array[...] = FIRST

    def write() -> None:
        array[20:25, 3:7] = 77

    # zarr's batched pipeline reads all chunks, and writes all of them, in tasks that know nothing of each other.
    row = "overwrite" if pipeline == "batched" else "change"
    expected = table(k, embeds=True)[row][COLUMNS.index(place.column(level))]
    assert place.cost(store, write) == {**expected, "get": k}
    assert stored_parts(place) == {f"{KEY}{part.key_suffix}" for part in LAYOUTS[k]}


def test_the_first_write_of_shards_is_one_put_for_each_part(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    with counted(proxy, store) as seen:
        array[:64, :] = VALUES[:64, :]
    assert sorted(each.key for each in seen) == sorted(
        f"a/c/0/{column}{part.key_suffix}" for column in range(2) for part in SHARD_PARTS
    )
    assert {(each.method, each.if_none_match, each.status) for each in seen} == {("PUT", "*", 200)}
