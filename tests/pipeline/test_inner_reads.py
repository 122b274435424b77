"""Inner chunks of a shard are read with one call of the store, and a few of them without a thread."""

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest

import parts_store as ps
from parts_store.engine.concurrency import _Threads
from parts_store.format.shard_index import ShardIndex

INDEX = ShardIndex(4 * 16 + 4, "end", 4, "<u8", has_checksum=True)
VALUES = np.arange(1, 17, dtype="uint8")
PARTS: dict[str, Any] = {"no parts": None, "two parts": [ps.Part(""), ps.Part(".index", size=4 * 16 + 4)]}


def create(objects: Any, parts: Any, **arguments: Any) -> zarr.Array[Any]:
    """Create an array of two shards of four inner chunks of two bytes each."""
    chosen = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "uint8", "compressors": None, "fill_value": 0}
    store = ps.PartsStore(objects)
    if parts is None:
        zarr.create_array(store, name="a", **(chosen | arguments))
    else:
        ps.create_array(store, "a", parts=parts, **(chosen | arguments))
    array = ps.open_array(store, path="a", mode="r+")
    array[...] = VALUES
    return array


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_few_inner_chunks_are_read_without_a_thread(
    objects: Any, parts: str, compressors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = create(objects, PARTS[parts], compressors=compressors)

    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(_Threads, "start", start)
    np.testing.assert_array_equal(array[3:7], VALUES[3:7])
    np.testing.assert_array_equal(array[12], VALUES[12])


@pytest.mark.parametrize("parts", PARTS)
def test_a_missing_shard_reads_as_the_fill_value_without_a_thread(objects: Any, parts: str) -> None:
    array = create(objects, PARTS[parts])
    array[8:] = 0
    np.testing.assert_array_equal(array[9:11], 0)


@pytest.mark.parametrize("parts", PARTS)
def test_a_shard_that_is_deleted_after_its_index_was_read_is_no_shard(objects: Any, parts: str) -> None:
    store = create(objects, PARTS[parts]).store
    assert isinstance(store, ps.PartsStore)

    def locate(table: Any) -> list[ByteRequest]:
        assert table.tolist() == [[0, 2], [2, 2], [4, 2], [6, 2]]
        ps.PartsStore(objects).delete_sync("a/c/0")
        return [RangeByteRequest(2, 4)]

    found = store.carry_out(store.get_inner("a/c/0", INDEX, locate, max_gap_bytes=0, max_coalesced_bytes=0))
    # A shard without parts that is this small was read together with its index.
    assert (None if found is None else [bytes(each or b"") for each in found]) == (
        [b"\3\4"] if PARTS[parts] is None else None
    )


@pytest.mark.parametrize("parts", PARTS)
def test_a_shard_that_is_overwritten_after_its_index_was_read_is_one_write(objects: Any, parts: str) -> None:
    array = create(objects, PARTS[parts])
    store = array.store
    assert isinstance(store, ps.PartsStore)

    def locate(table: Any) -> list[ByteRequest]:
        zarr.open_array(ps.PartsStore(objects), path="a")[:8] = VALUES[:8] + 100
        return [RangeByteRequest(0, 2), RangeByteRequest(6, 8)]

    found = store.carry_out(store.get_inner("a/c/0", INDEX, locate, max_gap_bytes=0, max_coalesced_bytes=0))
    assert found is not None
    assert [bytes(each or b"") for each in found] in (
        [bytes(VALUES[at : at + 2] + more) for at in (0, 6)] for more in (0, 100)
    )
