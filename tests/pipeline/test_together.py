"""Many small chunks that exist are written together, and every other write is as without this."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from parts_store import Part, PartsStore
from parts_store.transactions.tagged import TaggedProtocol

# Sixteen chunks of 16 bytes.
SHAPE, CHUNKS = (16, 16), (4, 4)
PARTS = [Part(""), Part(".tail", size=4)]
MANY = 16


def store_like_s3() -> PartsStore:
    """A store whose writers expect that ETags recur, as on S3."""
    store = PartsStore(MemoryStore())
    reader = store._operations.reader
    reader.protocol = TaggedProtocol(replace(reader.protocol.rules, has_unique_etags=False))
    return store


def create(store: PartsStore, parts: Any = PARTS) -> Any:
    return ps.create_array(
        store, "a", parts=parts, shape=SHAPE, chunks=CHUNKS, dtype="uint8", compressors=None, fill_value=0
    )


def cost(store: PartsStore, array: Any, region: Any, values: Any) -> dict[str, int]:
    store.stats.reset()
    array[region] = values
    return {kind: count for kind, count in store.stats.calls.items() if count}


VALUES = np.arange(1, 257, dtype="uint16").clip(1, 255).astype("uint8").reshape(SHAPE)
ALL = np.s_[:, :]


def test_first_write_of_many_chunks_is_one_put_for_each_part() -> None:
    store = store_like_s3()
    array = create(store)
    assert cost(store, array, ALL, VALUES) == {"put": 2 * MANY}
    np.testing.assert_array_equal(array[...], VALUES)


def test_overwrites_of_many_chunks_share_requests() -> None:
    store = store_like_s3()
    array = create(store)
    array[...] = VALUES
    for values in (VALUES[::-1], VALUES):
        # Each of the four folders has fewer chunks than are worth a listing. The batch has a mark.
        assert cost(store, array, ALL, values) == {"put": 2 * MANY + 1, "head": 2 * MANY, "list": 2, "delete": 1}
        np.testing.assert_array_equal(array[...], values)


def test_store_that_has_not_written_the_chunks_finds_out_with_the_first() -> None:
    store = store_like_s3()
    create(store)[...] = VALUES
    other = store_like_s3()
    other._backend = store._backend
    array = ps.open_array(other, path="a", mode="r+")
    found = cost(other, array, ALL, VALUES[::-1])
    # The first chunk is tried to be created.
    assert found["put"] == 2 * MANY + 2
    assert (found["list"], found["delete"]) == (2, 1)
    np.testing.assert_array_equal(array[...], VALUES[::-1])


@pytest.mark.parametrize("region", [np.s_[1:, :], np.s_[:, :15], np.s_[2:15, 3:13]])
def test_chunks_that_are_written_partly_keep_the_rest(region: Any) -> None:
    store = store_like_s3()
    array = create(store)
    array[...] = VALUES
    array[...] = VALUES
    array[region] = 200
    expected = VALUES.copy()
    expected[region] = 200
    np.testing.assert_array_equal(array[...], expected)


def test_chunks_of_fill_values_are_deleted_among_others() -> None:
    store = store_like_s3()
    array = create(store)
    array[...] = VALUES
    values = VALUES.copy()
    values[4:8, 8:12] = 0
    for _ in range(2):
        array[...] = values
    assert store.get_sync("a/c/1/2") is None
    np.testing.assert_array_equal(array[...], values)


@pytest.mark.parametrize("columns", [40, 42, 43])
def test_shards_at_the_end_of_an_array_are_written_beside_the_others(columns: int) -> None:
    store = store_like_s3()
    array = ps.create_array(
        store,
        "a",
        parts=[Part(""), Part(".index", size=ps.SHARD_INDEX)],
        shape=(1, columns),
        chunks=(1, 2),
        shards=(1, 4),
        dtype="int32",
    )
    for start in (1, 2, 3):
        # A row, not a region: zarr's sharding codec writes these shards, and reads the last one before.
        values = np.arange(start, start + columns)
        array[0, :] = values
        np.testing.assert_array_equal(array[0, :], values)


@pytest.mark.parametrize("parts", [PARTS, [Part("")]], ids=["parts", "one part"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_other_stores_write_chunk_by_chunk(tmp_path: Any, kind: str, parts: Any) -> None:
    store = PartsStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path))
    array = create(store, parts)
    for values in (VALUES, VALUES[::-1], VALUES):
        array[...] = values
        np.testing.assert_array_equal(array[...], values)


@pytest.mark.parametrize("kind", ["like S3", "memory", "disk"])
def test_store_writes_values_of_any_kind_together(tmp_path: Any, kind: str) -> None:
    if kind == "like S3":
        store = store_like_s3()
    else:
        store = PartsStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path))
    create(store)
    new = default_buffer_prototype().buffer.from_bytes
    for fill in (b"1", b"2"):
        values = {f"a/c/{row}/{column}": fill * 16 for row in range(4) for column in range(4)} | {"plain": fill}
        # The last value of a key is the one that stays.
        earlier = [(key, new(b"0" * 16)) for key in list(values)[:3]]
        store.set_many_sync([*earlier, *((key, new(value)) for key, value in values.items())])
        for key, value in values.items():
            found = store.get_sync(key)
            assert found is not None
            assert found.to_bytes() == value
