"""What is stored for a chunk; missing, damaged and foreign parts are errors, never values."""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import obstore
import pytest
import zarr
from minio.commonconfig import CopySource
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync

from integration.conftest import Bucket
from integration.store.arrays import VALUES, create_chunks, create_shards, metadata_of
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import IncompleteChunkError, PartSizeError

# Overwrites with staged copies, as for large parts; `tests/transactions/test_embedding.py` has those without.
pytestmark = pytest.mark.usefixtures("large_parts")

TAG = re.compile(r"1;([0-9a-f]{32});([cs]);([0-9,]+);[0-9a-f]{8}")


def test_parts_are_plain_bytes_and_tagged_with_their_write(bucket: Bucket) -> None:
    array = create_chunks(PartsStore(bucket.store("data")))
    assert bucket.list_keys() == {
        "data/zarr.json",
        "data/chunks/zarr.json",
        *(f"data/chunks/c/{row}/0{suffix}" for row in range(2) for suffix in (".head", "", ".tail")),
    }
    seen: list[str] = []
    for mode, values in (("c", VALUES), ("s", VALUES[::-1])):
        array[...] = values
        for row in range(2):
            keys = [f"data/chunks/c/{row}/0{suffix}" for suffix in (".head", "", ".tail")]
            parts = [bucket.read(key) for key in keys]
            assert [len(part) for part in parts] == [10, 32 * 64 - 14, 4]
            assert b"".join(parts) == values[32 * row : 32 * row + 32].tobytes()
            metadata = [metadata_of(bucket, key) for key in keys]
            assert metadata == [metadata[0]] * 3
            assert list(metadata[0]) == ["partsgen"]
            found = TAG.fullmatch(metadata[0]["partsgen"])
            assert found is not None
            generation, written, sizes = found.groups()
            # The first write of all is a create; the same values, written again, are written over it.
            assert written == "s" or mode == "c"
            assert sizes == f"10,{32 * 64 - 14},4"
            seen.append(generation)
    assert len(set(seen)) == len(seen)
    for key in ("data/zarr.json", "data/chunks/zarr.json"):
        assert metadata_of(bucket, key) == {}


def test_tags_name_created_and_overwritten_chunks(bucket: Bucket) -> None:
    array = create_chunks(PartsStore(bucket.store()))
    modes = []
    for _ in range(2):
        modes.append(
            {metadata_of(bucket, f"chunks/c/0/0{suffix}")["partsgen"][35] for suffix in (".head", "", ".tail")}
        )
        array[...] = 3
    assert modes == [{"c"}, {"s"}]


def test_the_parts_of_a_shard_are_its_header_its_data_and_its_index(bucket: Bucket) -> None:
    create_shards(PartsStore(bucket.store()))
    index_nbytes = 4 * 16 + 4
    document = json.loads(bucket.read("shards/zarr.json"))
    assert document["storage_transformers"] == [
        {
            "name": "concat-parts",
            "configuration": {
                "parts": [
                    {"key_suffix": ".header", "size": 64},
                    {"key_suffix": ""},
                    {"key_suffix": ".index", "size": index_nbytes},
                ]
            },
        }
    ]
    for row, column in np.ndindex(2, 2):
        key = f"shards/c/{row}/{column}"
        header, data, index = (bucket.read(key + suffix) for suffix in (".header", "", ".index"))
        assert (len(header), len(data), len(index)) == (64, 4 * 256 - 64, index_nbytes)
        tags = {metadata_of(bucket, key + suffix)["partsgen"] for suffix in (".header", "", ".index")}
        assert len(tags) == 1
        assert f";c;64,{4 * 256 - 64},{index_nbytes};" in tags.pop()
        shard = header + data
        for place, (offset, nbytes) in enumerate(np.frombuffer(index[:-4], "<u8").reshape(4, 2).astype(int)):
            top, left = 32 * row + 16 * (place // 2), 32 * column + 16 * (place % 2)
            inner = np.frombuffer(shard[offset : offset + nbytes], "u1").reshape(16, 16)
            np.testing.assert_array_equal(inner, VALUES[top : top + 16, left : left + 16])


def replace_by_stranger(bucket: Bucket, key: str, data: bytes | None = None) -> None:
    """Another object in place of one, without its tag, as a program writes it that knows of no parts."""
    obstore.put(bucket.store(), key, bytes(len(bucket.read(key))) if data is None else data)


def replace_by_older(bucket: Bucket, array: zarr.Array[Any], key: str) -> None:
    """Restore the object of an older write with its tag, like a backup."""
    older = f"older/{key}"
    bucket.client.copy_object(bucket.name, older, CopySource(bucket.name, key))
    array[...] = 255 - VALUES
    bucket.client.copy_object(bucket.name, key, CopySource(bucket.name, older))
    bucket.client.remove_object(bucket.name, older)


def retag(bucket: Bucket, key: str, data: bytes) -> None:
    """Other bytes under the tag that an object has."""
    obstore.put(bucket.store(), key, data, attributes={"partsgen": metadata_of(bucket, key)["partsgen"]})


def assert_incomplete(act: Callable[[], Any], key: str, *, missing: bool) -> None:
    # Bare, not in a group; and the same the next time, for it is damage and no race.
    for _ in range(2):
        with pytest.raises(IncompleteChunkError) as caught:
            act()
        assert (key in caught.value.missing) is missing
        assert not missing or caught.value.mixed == ()


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
@pytest.mark.parametrize("how", ["stranger", "older"])
def test_a_mixture_is_never_read(bucket: Bucket, pipeline: str, suffix: str, how: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    if how == "stranger":
        replace_by_stranger(bucket, f"chunks/c/0/0{suffix}")
    else:
        replace_by_older(bucket, array, f"chunks/c/0/0{suffix}")
    for reader in (store, PartsStore(bucket.store())):
        opened = zarr.open_array(reader, path="chunks")
        for selection in (np.s_[...], np.s_[0, 0], np.s_[20:40, 5:6]):
            assert_incomplete(functools.partial(opened.__getitem__, selection), "chunks/c/0/0", missing=False)
        # The other chunk is whole.
        assert np.shape(opened[40:, :]) == (24, 64)


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
def test_a_mixture_is_never_read_by_range(bucket: Bucket, suffix: str) -> None:
    store = PartsStore(bucket.store())
    create_chunks(store)
    replace_by_stranger(bucket, f"chunks/c/0/0{suffix}")
    total = 32 * 64
    touching: dict[str, list[ByteRequest]] = {
        ".head": [RangeByteRequest(5, 20), RangeByteRequest(0, 11), OffsetByteRequest(0), SuffixByteRequest(total)],
        "": [RangeByteRequest(5, 20), RangeByteRequest(2000, total), OffsetByteRequest(9), SuffixByteRequest(5)],
        ".tail": [
            RangeByteRequest(2000, total),
            OffsetByteRequest(100),
            SuffixByteRequest(5),
            SuffixByteRequest(total),
        ],
    }
    prototype = default_buffer_prototype()
    key = "chunks/c/0/0"
    for wanted in touching[suffix]:
        acts: list[Callable[[], Any]] = [
            functools.partial(store.get_sync, key, byte_range=wanted),
            functools.partial(read_async, store, key, wanted),
            functools.partial(store.get_ranges_sync, key, [RangeByteRequest(30, 40), wanted], prototype=prototype),
            functools.partial(read_partial_values, store, key, wanted),
        ]
        for act in acts:
            assert_incomplete(act, key, missing=False)


def read_async(store: PartsStore, key: str, wanted: ByteRequest) -> Buffer | None:
    return sync(store.get(key, default_buffer_prototype(), wanted))


def read_partial_values(store: PartsStore, key: str, wanted: ByteRequest) -> list[Buffer | None]:
    return sync(store.get_partial_values(default_buffer_prototype(), [(key, wanted)]))


# Of a shard, each with the parts that reading it touches.
SHARD_SELECTIONS: dict[str, tuple[Any, set[str]]] = {
    "all shards": (np.s_[...], {".header", "", ".index"}),
    "a shard": (np.s_[:32, :32], {".header", "", ".index"}),
    "first inner chunk": (np.s_[:5, :5], {".header", "", ".index"}),
    "last inner chunk": (np.s_[20:25, 20:25], {"", ".index"}),
    "inner chunks": (np.s_[:25, 3:7], {".header", "", ".index"}),
}


def damage_shard(bucket: Bucket, key: str, how: str) -> NDArray[Any]:
    """Shards, of which one object is of another write; returns the values that the last write gave them."""
    array = create_shards(PartsStore(bucket.store()))
    if how == "older":
        replace_by_older(bucket, array, key)
        return 255 - VALUES
    replace_by_stranger(bucket, key, bucket.read(key))
    return VALUES


@pytest.mark.parametrize("suffix", [".header", "", ".index"])
@pytest.mark.parametrize("how", ["older", "copied without its tag"])
def test_a_mixture_is_never_read_from_a_shard(bucket: Bucket, pipeline: str, suffix: str, how: str) -> None:
    expected = damage_shard(bucket, f"shards/c/0/0{suffix}", how)
    for wanted, touched in SHARD_SELECTIONS.values():
        opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
        if suffix not in touched:
            np.testing.assert_array_equal(opened[wanted], expected[wanted])
            continue
        # At once, and every time: it is damage, and no race.
        assert_incomplete(functools.partial(opened.__getitem__, wanted), "shards/c/0/0", missing=False)


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_mixed_shard_is_distinguished_from_a_race_at_the_first_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    damage_shard(bucket, f"shards/c/0/0{suffix}", "older")
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    assert_incomplete(lambda: opened[20:25, 20:25], "shards/c/0/0", missing=False)


def test_foreign_index_is_never_read_as_empty(bucket: Bucket, pipeline: str) -> None:
    create_shards(PartsStore(bucket.store()))
    empty = b"\xff" * 64
    checksum = google_crc32c.value(empty).to_bytes(4, "little")
    replace_by_stranger(bucket, "shards/c/0/0.index", empty + checksum)
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, _ in SHARD_SELECTIONS.values():
        assert_incomplete(functools.partial(opened.__getitem__, wanted), "shards/c/0/0", missing=False)


def test_overwriting_never_fails(bucket: Bucket) -> None:
    # A server may answer a PUT that it refuses before it has read it, and hang up: then the answer is lost.
    array = create_chunks(PartsStore(bucket.store()))
    for number in range(100):
        array[...] = number
    assert np.all(array[...] == 99)


@pytest.mark.parametrize("suffix", [".head", ".tail"])
def test_a_chunk_without_one_of_its_parts_is_never_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    part_key = f"chunks/c/0/0{suffix}"
    bucket.client.remove_object(bucket.name, part_key)
    assert_incomplete(lambda: array[...], part_key, missing=True)
    assert_incomplete(lambda: array[3, 3], part_key, missing=True)
    wanted = RangeByteRequest(0, 5) if suffix == ".head" else SuffixByteRequest(3)
    assert_incomplete(lambda: store.get_sync("chunks/c/0/0", byte_range=wanted), part_key, missing=True)
    # Its existence is its anchor's, and what reads no more than that is served.
    assert sync(store.exists("chunks/c/0/0"))
    whole = store.get_sync("chunks/c/0/0", byte_range=RangeByteRequest(10, 20))
    assert whole is not None
    assert whole.to_bytes() == VALUES.tobytes()[10:20]


@pytest.mark.parametrize("suffix", [".header", ".index"])
def test_a_shard_without_one_of_its_parts_is_never_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    create_shards(PartsStore(bucket.store()))
    part_key = f"shards/c/0/0{suffix}"
    bucket.client.remove_object(bucket.name, part_key)
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, touched in SHARD_SELECTIONS.values():
        if suffix in touched:
            assert_incomplete(functools.partial(opened.__getitem__, wanted), part_key, missing=True)
        else:
            np.testing.assert_array_equal(opened[wanted], VALUES[wanted])


def test_without_its_anchor_there_is_no_chunk(bucket: Bucket, pipeline: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    bucket.client.remove_object(bucket.name, "chunks/c/0/0")
    expected = np.concatenate([np.zeros((32, 64), "u1"), VALUES[32:]])
    np.testing.assert_array_equal(array[...], expected)
    assert not sync(store.exists("chunks/c/0/0"))
    for wanted in (None, RangeByteRequest(5, 20), OffsetByteRequest(3), SuffixByteRequest(10)):
        assert store.get_sync("chunks/c/0/0", byte_range=wanted) is None
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("chunks/c/0/0"))

    # Orphans are no hindrance to a new one.
    array[:32] = 9
    assert np.all(array[:32] == 9)


@pytest.mark.parametrize("header", [64, 256, 700], ids=["of 64", "of an inner chunk", "of more than an inner chunk"])
def test_without_its_anchor_there_is_no_shard(bucket: Bucket, pipeline: str, header: int) -> None:
    store = PartsStore(bucket.store())
    create_shards(store, [Part(".header", size=header), Part(""), Part(".index", size=SHARD_INDEX)])
    bucket.client.remove_object(bucket.name, "shards/c/0/0")
    expected = VALUES.copy()
    expected[:32, :32] = 0
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for name, (wanted, _) in SHARD_SELECTIONS.items():
        np.testing.assert_array_equal(opened[wanted], expected[wanted], err_msg=name)


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"], ids=["shorter", "longer"])
def test_a_part_of_another_size_is_named(
    bucket: Bucket, pipeline: str, suffix: str, change: Callable[[bytes], bytes]
) -> None:
    array = create_chunks(PartsStore(bucket.store()))
    part_key = f"chunks/c/0/0{suffix}"
    data = bucket.read(part_key)
    retag(bucket, part_key, change(data))
    for _ in range(2):
        with pytest.raises(PartSizeError) as caught:
            array[...]
        assert caught.value.args == (part_key, len(data), len(change(data)))


@pytest.mark.parametrize("suffix", [".header", "", ".index"])
@pytest.mark.parametrize("kept", [0, 10], ids=["to nothing", "to ten bytes"])
def test_a_truncated_part_of_a_shard_is_named(bucket: Bucket, pipeline: str, suffix: str, kept: int) -> None:
    create_shards(PartsStore(bucket.store()))
    part_key = f"shards/c/0/0{suffix}"
    nbytes = len(bucket.read(part_key))
    retag(bucket, part_key, bucket.read(part_key)[:kept])
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, touched in SHARD_SELECTIONS.values():
        if suffix in touched:
            with pytest.raises(PartSizeError) as caught:
                opened[wanted]
            assert caught.value.args == (part_key, nbytes, kept)
        else:
            np.testing.assert_array_equal(opened[wanted], VALUES[wanted])
