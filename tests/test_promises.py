"""The promises of PartsStore, one by one, on memory and on a local disk."""

import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import (
    ChunkSizeError,
    ConcurrentWriteError,
    IncompleteChunkError,
    PartsConfigError,
    PartSizeError,
    ReservedKeyError,
    StoreConfigError,
    UnknownTransformerError,
)

PROTOTYPE = default_buffer_prototype()
HEADER_DATA_INDEX = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
VALUES: NDArray[Any] = np.arange(1, 64 * 64 + 1, dtype="uint16").reshape(64, 64)


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty obstore store."""
    return (
        MemoryStore()
        if request.param == "memory"
        else LocalStore(tmp_path / "objects", mkdir=True, automatic_cleanup=True)
    )


def keys_of(objects: Any) -> set[str]:
    return {each["path"] for each in obstore.list(objects).collect()}


def content(objects: Any, key: str) -> bytes:
    return bytes(obstore.get(objects, key).bytes())


async def collect(items: AsyncIterator[str]) -> list[str]:
    return [item async for item in items]


def get(store: ps.PartsStore, key: str, byte_range: Any = None) -> bytes | None:
    """The value, by both interfaces, which must agree."""
    found = sync(store.get(key, PROTOTYPE, byte_range))
    found_sync = store.get_sync(key, prototype=PROTOTYPE, byte_range=byte_range)
    assert (found is None) == (found_sync is None)
    if found is None or found_sync is None:
        return None
    assert found.to_bytes() == found_sync.to_bytes()
    return found.to_bytes()


def put(store: ps.PartsStore, key: str, value: bytes) -> None:
    sync(store.set(key, cpu.Buffer.from_bytes(value)))


def create(store: ps.PartsStore, parts: Any, name: str = "a", **arguments: Any) -> zarr.Array[Any]:
    """An array of 64 x 64 in four chunks, uncompressed."""
    chosen: dict[str, Any] = {"shape": (64, 64), "chunks": (32, 32), "dtype": "uint16", "compressors": None}
    return ps.create_array(store, name, parts=parts, **(chosen | arguments))


def create_sharded(store: ps.PartsStore, parts: Any = HEADER_DATA_INDEX, name: str = "a") -> zarr.Array[Any]:
    return create(store, parts, name, chunks=(8, 8), shards=(32, 32))


# --- what is stored --------------------------------------------------------------------------------------------------


def test_parts_are_plain_objects_at_the_chunks_key_with_their_suffix(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, [ps.Part(".head", size=10), "", ps.Part(".tail", size=4)])[...] = VALUES
    whole = VALUES[:32, 32:].tobytes()
    assert content(objects, "a/c/0/1.head") == whole[:10]
    assert content(objects, "a/c/0/1") == whole[10:-4]
    assert content(objects, "a/c/0/1.tail") == whole[-4:]
    assert len(keys_of(objects)) == 4 * 3 + len({"a/zarr.json", "zarr.json"} & keys_of(objects))


def test_the_stored_document_has_the_transformer_and_zarr_is_served_one_without(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_sharded(store)
    stored = json.loads(content(objects, "a/zarr.json"))
    parts = [{"key_suffix": ".header", "size": 64}, {"key_suffix": ""}, {"key_suffix": ".index", "size": 16 * 16 + 4}]
    assert stored["storage_transformers"] == [{"name": "concat-parts", "configuration": {"parts": parts}}]
    served = json.loads(get(store, "a/zarr.json") or b"")
    assert "storage_transformers" not in served
    assert stored["parts_store"] == {"must_understand": True}
    lifted = {"storage_transformers": stored["storage_transformers"], "parts_store": stored["parts_store"]}
    assert {**served, **lifted} == stored
    assert "parts_store" not in served
    assert store.parts_of("a") == ps.ConcatParts([ps.Part(".header", 64), "", ps.Part(".index", 260)])


def test_on_a_store_with_user_metadata_every_part_of_a_write_carries_the_same_tag() -> None:
    objects = MemoryStore()
    create(ps.PartsStore(objects), [ps.Part(".head", size=10), ""])[...] = VALUES
    tags = {key: obstore.get(objects, key).attributes.get("partsgen") for key in keys_of(objects) if "/c/" in key}
    for key in ("a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"):
        assert tags[key] == tags[f"{key}.head"]
        version, generation, mode, sizes, _ = str(tags[key]).split(";")
        assert (version, mode, sizes) == ("1", "c", "10,2038")
        assert len(generation) == 32
        int(generation, 16)
    assert len(set(tags.values())) == 4


def test_every_write_has_a_tag_of_its_own() -> None:
    objects = MemoryStore()
    array = create(ps.PartsStore(objects), ["", ps.Part(".tail", size=4)])
    seen = set()
    for value in (1, 1, 2):
        array[:32, :32] = value
        tags = {str(obstore.get(objects, key).attributes["partsgen"]) for key in ("a/c/0/0", "a/c/0/0.tail")}
        assert len(tags) == 1
        seen |= tags
    assert len(seen) == 3


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        [""],
        ["", ps.Part(".tail", size=4)],
        [ps.Part(".head", size=3), ""],
        [ps.Part(".head", size=3), "", ps.Part(".tail", size=5)],
        [ps.Part(".empty", size=0), "", ps.Part(".also", size=0)],
        [ps.Part(".x", size=8), ps.Part(".y", size=24)],
    ],
)
def test_any_range_of_a_chunk_reads_as_if_it_were_one_object(objects: Any, parts: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, parts, shape=(8,), chunks=(8,), dtype="uint32")[...] = np.arange(8) + 1000
    whole = (np.arange(8, dtype="<u4") + 1000).tobytes()
    assert get(store, "a/c/0") == whole
    for start in (0, 1, 3, 4, 27, 28, 31, 32, 40):
        for stop in (start, start + 1, 27, 28, 29, 32, 33, 50):
            if start <= stop:
                assert get(store, "a/c/0", RangeByteRequest(start, stop)) == whole[start:stop]
        assert get(store, "a/c/0", OffsetByteRequest(start)) == whole[start:]
        assert get(store, "a/c/0", SuffixByteRequest(start)) == (whole[-start:] if start else b"")
    ranges: Any = [RangeByteRequest(2, 9), SuffixByteRequest(5), None, OffsetByteRequest(30), RangeByteRequest(0, 1)]
    expected = [whole[2:9], whole[-5:], whole, whole[30:], whole[:1]]
    partial = sync(store.get_partial_values(PROTOTYPE, [("a/c/0", each) for each in ranges] + [("a/c/1", None)]))
    assert [each.to_bytes() if each else None for each in partial] == [*expected, None]
    merged = store.get_ranges_sync("a/c/0", ranges, prototype=PROTOTYPE)
    assert [value.to_bytes() for _, value in merged if value is not None] == expected
    assert store.get_ranges_sync("a/c/0", [], prototype=PROTOTYPE) == []


def test_an_array_with_two_unsized_parts_can_be_read_but_not_written(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, ["", ".more"], shape=(8,), chunks=(8,), dtype="uint8")
    with pytest.raises(PartsConfigError, match=r"at most one part without 'size' for writing, found '', '.more'"):
        zarr.open_array(store, path="a")[...] = 1
    assert {key for key in keys_of(objects) if "/c" in key} == set()
    obstore.put(objects, "a/c/0", b"abc")
    obstore.put(objects, "a/c/0.more", b"defgh")
    for byte_range, expected in [
        (None, b"abcdefgh"),
        (RangeByteRequest(2, 5), b"cde"),
        (RangeByteRequest(4, 6), b"ef"),
        (OffsetByteRequest(5), b"fgh"),
        (SuffixByteRequest(6), b"cdefgh"),
    ]:
        assert get(store, "a/c/0", byte_range) == expected
    assert sync(store.getsize("a/c/0")) == 8


def test_one_part_that_serves_a_read_is_not_copied() -> None:
    store = ps.PartsStore(MemoryStore())
    create(store, [ps.Part(".head", size=8), ""], shape=(64,), chunks=(64,), dtype="uint8")[...] = 1
    buffer = store.get_sync("a/c/0", prototype=PROTOTYPE, byte_range=RangeByteRequest(10, 20))
    assert buffer is not None
    # A view of what obstore returned, and not memory of NumPy's own.
    assert not buffer.as_numpy_array().flags.owndata
    assert buffer.as_numpy_array().base is not None


# --- what is missing, damaged or mixed -------------------------------------------------------------------------------


def test_a_chunk_of_which_no_part_exists_does_not_exist(objects: Any, pipeline: str) -> None:
    store = ps.PartsStore(objects)
    array = create_sharded(store)
    assert get(store, "a/c/0/0") is None
    assert not sync(store.exists("a/c/0/0"))
    assert (np.asarray(array[...]) == 0).all()
    assert array[3, 3] == 0
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0/0"))


def test_without_its_anchor_a_chunk_does_not_exist_whatever_orphans_lie_about(objects: Any, pipeline: str) -> None:
    store = ps.PartsStore(objects)
    array = create_sharded(store)
    array[...] = VALUES
    obstore.delete(objects, "a/c/0/0")
    assert get(store, "a/c/0/0") is None
    assert not sync(store.exists("a/c/0/0"))
    assert "a/c/0/0" not in sync(collect(store.list()))
    np.testing.assert_array_equal(array[:32, :32], 0)
    assert array[3, 3] == 0
    np.testing.assert_array_equal(array[32:], VALUES[32:])
    array[:32, :32] = VALUES[:32, :32]
    np.testing.assert_array_equal(array[...], VALUES)


SELECTIONS: list[Any] = [np.s_[:, :], np.s_[0:32, 0:32], np.s_[3, 3], np.s_[0:9, 30:40]]


@pytest.mark.parametrize("suffix", [".header", ".index"])
def test_a_missing_part_is_an_error_and_never_fill_values(objects: Any, suffix: str, pipeline: str) -> None:
    store = ps.PartsStore(objects)
    array = create_sharded(store)
    array[...] = VALUES
    obstore.delete(objects, f"a/c/0/0{suffix}")
    for selection in SELECTIONS:
        # The header holds the first inner chunk's first bytes: only reads of those miss it.
        touches = suffix == ".index" or selection != np.s_[0:9, 30:40]
        if touches:
            with pytest.raises(IncompleteChunkError, match=rf"no object at 'a/c/0/0{suffix}'"):
                array[selection]
    np.testing.assert_array_equal(array[32:], VALUES[32:])


@pytest.mark.parametrize("suffix", ["", ".header", ".index"])
def test_a_part_of_another_write_is_an_error_and_never_a_mixture(suffix: str, pipeline: str) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create_sharded(store)
    array[...] = VALUES
    old = obstore.get(objects, f"a/c/0/0{suffix}")
    data, attributes = bytes(old.bytes()), old.attributes
    array[:32, :32] = VALUES[:32, :32] + 7
    obstore.put(objects, f"a/c/0/0{suffix}", data, attributes=attributes)
    with pytest.raises(IncompleteChunkError, match="another write's object at"):
        array[:32, :32]
    with pytest.raises((IncompleteChunkError, ConcurrentWriteError)):
        array[0:9, 0:9]
    # A write of the whole chunk mends it.
    array[:32, :32] = VALUES[:32, :32]
    np.testing.assert_array_equal(array[...], VALUES)


def test_a_tagged_and_an_untagged_part_are_of_different_writes() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store, ["", ps.Part(".tail", size=4)])
    array[...] = VALUES
    obstore.put(objects, "a/c/0/0.tail", content(objects, "a/c/0/0.tail"))
    with pytest.raises(IncompleteChunkError, match=r"another write's object at 'a/c/0/0.tail'"):
        array[:32, :32]
    obstore.put(objects, "a/c/0/0", content(objects, "a/c/0/0"))
    # All untagged: another program wrote them.
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("change", [-1, 1, -64, 100])
@pytest.mark.parametrize(("suffix", "size"), [(".header", 64), (".index", 260)])
def test_a_part_of_another_size_is_an_error_that_names_key_expected_and_found(
    objects: Any, suffix: str, size: int, change: int, pipeline: str
) -> None:
    store = ps.PartsStore(objects)
    array = create_sharded(store)
    array[...] = VALUES
    found = obstore.get(objects, f"a/c/0/0{suffix}")
    data = bytes(found.bytes())
    damaged = data[:change] if change < 0 else data + bytes(change)
    options: Any = {} if isinstance(objects, LocalStore) else {"attributes": found.attributes}
    obstore.put(objects, f"a/c/0/0{suffix}", damaged, **options)
    message = rf"part 'a/c/0/0{suffix}': expected {size} bytes, found {len(damaged)}"
    with pytest.raises(PartSizeError, match=message):
        array[:32, :32]
    with pytest.raises(PartSizeError, match=message):
        array[0, 0]


def test_a_main_part_of_another_size_than_its_write_says_is_an_error() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store, ["", ps.Part(".tail", size=4)])
    array[...] = VALUES
    found = obstore.get(objects, "a/c/0/0")
    obstore.put(objects, "a/c/0/0", bytes(found.bytes())[:-2], attributes=found.attributes)
    with pytest.raises(PartSizeError, match="part 'a/c/0/0': expected 2044 bytes, found 2042"):
        array[:32, :32]


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "nbytes", "message"),
    [
        ([ps.Part(".head", size=10), ""], 9, "expected at least 10 bytes for its parts, found 9"),
        ([ps.Part(".x", size=4), ps.Part(".y", size=4)], 7, "expected 8 bytes for its parts, found 7"),
        ([ps.Part(".x", size=4), ps.Part(".y", size=4)], 9, "expected 8 bytes for its parts, found 9"),
    ],
)
def test_a_value_that_does_not_fit_the_parts_is_refused_and_nothing_written(
    objects: Any, parts: Any, nbytes: int, message: str
) -> None:
    store = ps.PartsStore(objects)
    create(store, parts)
    before = keys_of(objects)
    for write in (store.set_sync, lambda key, value: sync(store.set(key, value))):
        with pytest.raises(ChunkSizeError, match=f"chunk 'a/c/0/0': {message}"):
            write("a/c/0/0", cpu.Buffer.from_bytes(bytes(nbytes)))
    assert keys_of(objects) == before


@pytest.mark.parametrize("concurrency", ["exclusive", "writers", "full"])
def test_exists_getsize_and_delete_speak_of_the_whole_chunk(objects: Any, concurrency: Any) -> None:
    store = ps.PartsStore(objects, concurrency=concurrency)
    array = create_sharded(store)
    array[...] = VALUES
    whole = get(store, "a/c/0/0")
    assert whole is not None
    assert sync(store.exists("a/c/0/0"))
    assert sync(store.getsize("a/c/0/0")) == len(whole)
    sync(store.delete("a/c/0/0"))
    store.delete_sync("a/c/0/1")
    # Where others may write, their parts are not ours to remove: they stay, and are hidden.
    keeps_orphans = concurrency == "writers" and isinstance(objects, MemoryStore)
    orphans = {f"a/c/0/{column}{suffix}" for column in (0, 1) for suffix in (".header", ".index")}
    assert {key for key in keys_of(objects) if key.startswith("a/c/0/")} == (orphans if keeps_orphans else set())
    assert not any(".parts-txn" in key for key in keys_of(objects))
    assert not sync(store.exists("a/c/0/0"))
    assert get(store, "a/c/0/0") is None
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0/0"))
    assert not any(key.startswith("a/c/0/") for key in sync(collect(store.list())))
    assert set(sync(collect(store.list_dir("a/c/0")))) == set()
    # What is gone may go again, as often as one likes.
    sync(store.delete("a/c/0/0"))
    sync(store.delete("a/c/0/0"))
    # And come back.
    array[...] = VALUES
    assert get(store, "a/c/0/0") == whole
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], VALUES)


@pytest.mark.parametrize("concurrency", ["exclusive", "writers", "full"])
def test_when_writes_have_ended_there_are_parts_and_nothing_beside_them(
    objects: Any, concurrency: Any, pipeline: str
) -> None:
    store = ps.PartsStore(objects, concurrency=concurrency)
    array = create_sharded(store)
    documents = keys_of(objects)
    parts = {
        f"a/c/{row}/{column}{suffix}" for row in (0, 1) for column in (0, 1) for suffix in ("", ".header", ".index")
    }
    array[...] = VALUES
    for region in (np.s_[:, :], np.s_[3:40, 3:40], np.s_[5, 5]):
        array[region] = VALUES[region] + 1
        assert keys_of(objects) == documents | parts
        if isinstance(objects, LocalStore):
            # Not even an empty folder.
            assert {each.name for each in Path(str(objects.prefix), "a").iterdir()} == {"c", "zarr.json"}
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[3:40, 3:40], VALUES[3:40, 3:40] + 1)


@pytest.mark.parametrize("concurrency", ["exclusive", "writers", "full"])
def test_what_is_read_in_one_place_is_held_to_one_write_only(objects: Any, concurrency: Any) -> None:
    store = ps.PartsStore(objects, concurrency=concurrency)
    create_sharded(store)[...] = VALUES
    key, shard = "a/c/0/0", cpu.Buffer.from_bytes(get(store, "a/c/0/1") or b"")
    writes: list[Callable[[], None]] = [lambda: store.set_sync(key, shard), lambda: sync(store.set(key, shard))]
    for write in writes:
        assert store.get_sync(key) is not None
        for _ in range(3):
            # The first is a change of what was read, the others are blind.
            write()
            ps.PartsStore(objects, concurrency=concurrency).set_sync(key, shard)
        store.get_sync(key)
        ps.PartsStore(objects, concurrency=concurrency).set_sync(key, shard)
        with pytest.raises(ConcurrentWriteError, match="not what it was when it was read to be changed"):
            write()
        write()


def test_set_if_not_exists_writes_all_parts_or_none(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, [ps.Part(".x", size=2), ""], shape=(4,), chunks=(4,), dtype="uint8")
    for value in (b"abcd", b"efgh"):
        sync(store.set_if_not_exists("a/c/0", cpu.Buffer.from_bytes(value)))
        assert get(store, "a/c/0") == b"abcd"
    # Orphans of a chunk are no chunk.
    obstore.delete(objects, "a/c/0")
    sync(store.set_if_not_exists("a/c/0", cpu.Buffer.from_bytes(b"ijkl")))
    assert get(store, "a/c/0") == b"ijkl"


def test_parts_and_the_protocols_folder_cannot_be_used_by_themselves(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_sharded(store)[...] = VALUES
    for key in ("a/c/0/0.index", "a/.parts-txn/0123/4567"):
        assert get(store, key) is None
        assert not sync(store.exists(key))
        with pytest.raises(ReservedKeyError, match="cannot be written by itself"):
            put(store, key, b"x")
        with pytest.raises(ReservedKeyError):
            sync(store.delete(key))


# --- listing ---------------------------------------------------------------------------------------------------------


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


# --- metadata --------------------------------------------------------------------------------------------------------


def test_attributes_resize_and_append_keep_the_transformer(objects: Any) -> None:
    array = create_sharded(ps.PartsStore(objects))
    before = json.loads(content(objects, "a/zarr.json"))["storage_transformers"]
    array[...] = VALUES
    array.attrs["title"] = "picture"
    array.resize((96, 64))
    array.append(VALUES[:32])
    stored = json.loads(content(objects, "a/zarr.json"))
    assert stored["storage_transformers"] == before
    assert stored["attributes"] == {"title": "picture"}
    assert stored["shape"] == [128, 64]
    fresh = zarr.open_array(ps.PartsStore(objects), path="a")
    np.testing.assert_array_equal(fresh[:64], VALUES)
    np.testing.assert_array_equal(fresh[96:], VALUES[:32])


def test_consolidated_metadata_keeps_the_transformer_and_is_served_without(objects: Any) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create_sharded(store, name="g/a")[...] = VALUES
    with pytest.warns(match="onsolidated metadata"):
        zarr.consolidate_metadata(store)
    stored = json.loads(content(objects, "zarr.json"))["consolidated_metadata"]["metadata"]
    assert stored["g/a"]["storage_transformers"][0]["name"] == "concat-parts"
    fresh = ps.PartsStore(objects)
    group = zarr.open_consolidated(fresh)
    fresh.stats.reset()
    np.testing.assert_array_equal(group["g/a"][...], VALUES)  # type: ignore[index]
    # The tags of the chunks confirm what it says, so that the document of the array itself is not needed. A disk has no
    # tags: there it is read before the first chunk, and a journal is looked for before and after each.
    if isinstance(objects, LocalStore):
        assert 4 * 5 < fresh.stats.get <= 4 * 6
    else:
        assert fresh.stats.get == 4 * 3


def test_an_array_made_anew_does_not_inherit_the_parts_of_the_old_one(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_sharded(store)[...] = VALUES
    plain = zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None, overwrite=True)
    plain[...] = 3
    assert store.parts_of("a") is None
    assert keys_of(objects) - {"zarr.json"} == {"a/zarr.json", "a/c/0"}
    create(store, ["", ps.Part(".t", size=1)], shape=(4,), chunks=(4,), dtype="uint8", overwrite=True)[...] = 5
    assert keys_of(objects) - {"zarr.json"} == {"a/zarr.json", "a/c/0", "a/c/0.t"}


def test_arrays_that_zarr_creates_get_the_parts_of_the_first_pattern_that_matches(objects: Any) -> None:
    patterns: Any = {"images/*": HEADER_DATA_INDEX, "*": ["", ps.Part(".tail", size=4)]}
    store = ps.PartsStore(objects, parts=patterns)
    arguments: dict[str, Any] = {"shape": (64, 64), "chunks": (8, 8), "dtype": "uint16", "compressors": None}
    zarr.create_array(store, name="images/a", shards=(32, 32), **arguments)[...] = VALUES
    zarr.create_array(store, name="other", **arguments)[...] = VALUES
    assert [part.key_suffix for part in getattr(store.parts_of("images/a"), "parts", ())] == [".header", "", ".index"]
    assert [part.key_suffix for part in getattr(store.parts_of("other"), "parts", ())] == ["", ".tail"]
    plain = ps.PartsStore(objects)
    np.testing.assert_array_equal(zarr.open_array(plain, path="images/a")[...], VALUES)
    np.testing.assert_array_equal(zarr.open_array(plain, path="other")[...], VALUES)
    with pytest.raises(PartsConfigError, match=r"array 'images/b', concat-parts, 'size'.*SHARD_INDEX"):
        zarr.create_array(store, name="images/b", **arguments)
    assert not any(key.startswith("images/b") for key in keys_of(objects))


# The documents of the specification of concat-parts, as they stand there.
CHECKSUM_APART: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1000, 1000],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [500, 500]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "zstd"}, {"name": "crc32c"}],
    "storage_transformers": [
        {
            "name": "concat-parts",
            "configuration": {"parts": [{"key_suffix": ""}, {"key_suffix": ".crc32c", "size": 4}]},
        }
    ],
}
HEADER_AND_INDEX_APART: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10000, 10000],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5000, 5000]}},
    "chunk_key_encoding": {"name": "default"},
    "storage_transformers": [
        {
            "name": "concat-parts",
            "configuration": {
                "parts": [
                    {"key_suffix": ".header", "size": 64},
                    {"key_suffix": ""},
                    {"key_suffix": ".index", "size": 1604},
                ]
            },
        }
    ],
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [500, 500],
                "index_location": "end",
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
                "codecs": [{"name": "packbits"}],
            },
        }
    ],
}


def test_the_specifications_first_document_keeps_the_checksum_in_an_object_of_its_own(
    objects: Any, pipeline: str
) -> None:
    obstore.put(objects, "a/zarr.json", json.dumps(CHECKSUM_APART).encode())
    store = ps.PartsStore(objects)
    values = np.random.default_rng(0).integers(0, 9, (1000, 1000)).astype("uint8")
    array: Any = zarr.open(store, path="a")
    array[...] = values
    for key in ("a/c/0/0", "a/c/1/1"):
        compressed = content(objects, key)
        assert int.from_bytes(content(objects, f"{key}.crc32c"), "little") == google_crc32c.value(compressed)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], values)
    array.attrs["title"] = "changed"
    assert json.loads(content(objects, "a/zarr.json")) == {**CHECKSUM_APART, "attributes": {"title": "changed"}}
    # A checksum that does not fit is found.
    obstore.put(objects, "a/c/0/0.crc32c", b"\0\0\0\0")
    with pytest.raises((ValueError, IncompleteChunkError)):
        array[0, 0]


def test_the_specifications_second_document_keeps_header_and_index_in_objects_of_their_own(
    objects: Any, pipeline: str
) -> None:
    obstore.put(objects, "a/zarr.json", json.dumps(HEADER_AND_INDEX_APART).encode())
    store = ps.PartsStore(objects)
    values = np.random.default_rng(0).integers(1, 9, (1000, 1000)).astype("uint8")
    array: Any = zarr.open(store, path="a")
    array[4500:5500, 4500:5500] = values
    assert len(content(objects, "a/c/0/0.header")) == 64
    assert len(content(objects, "a/c/0/0")) == 250_000 - 64
    index = np.frombuffer(content(objects, "a/c/0/0.index")[:-4], "<u8").reshape(10, 10, 2)
    # Offsets count from the beginning of the assembled shard, the header included.
    assert index[9, 9].tolist() == [0, 250_000]
    assert (index[:9] == 2**64 - 1).all()
    fresh = zarr.open_array(ps.PartsStore(objects), path="a")
    np.testing.assert_array_equal(fresh[4500:5500, 4500:5500], values)
    assert not np.asarray(fresh[4000:4500, 4000:4500]).any()
    assert json.loads(content(objects, "a/zarr.json")) == HEADER_AND_INDEX_APART


@pytest.mark.parametrize(
    ("transformers", "error"),
    [
        ([{"name": "other"}], UnknownTransformerError),
        ([{"name": "concat-parts"}, {"name": "other"}], UnknownTransformerError),
        ([{"name": "concat-parts", "configuration": {"parts": [{"key_suffix": ""}]}}] * 2, UnknownTransformerError),
        ("concat-parts", UnknownTransformerError),
        ({"name": "concat-parts"}, UnknownTransformerError),
        ([{"name": "concat-parts"}], PartsConfigError),
        ([{"name": "concat-parts", "configuration": {"parts": []}}], PartsConfigError),
        ([{"name": "concat-parts", "configuration": {"parts": [{"key_suffix": "/../b"}]}}], PartsConfigError),
        ([{"name": "concat-parts", "configuration": {"parts": [{"key_suffix": "1"}]}}], PartsConfigError),
        ([{"name": "concat-parts", "configuration": {"parts": [{"key_suffix": "", "size": -1}]}}], PartsConfigError),
    ],
)
def test_a_transformer_that_we_do_not_understand_is_refused_by_name(
    objects: Any, transformers: Any, error: Any
) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create_sharded(store)
    document = json.loads(content(objects, "a/zarr.json")) | {"storage_transformers": transformers}
    obstore.put(objects, "a/zarr.json", json.dumps(document).encode())
    fresh = ps.PartsStore(objects)
    for open_it in (
        lambda: zarr.open(fresh, path="a"),
        lambda: zarr.open_array(fresh, path="a"),
        lambda: zarr.open_group(fresh)["a"],
        lambda: "a" in zarr.open_group(fresh),
        lambda: fresh.get_sync("a/c/0/0"),
    ):
        with pytest.raises(error, match="array 'a'"):
            open_it()


@pytest.mark.parametrize("parts", [[], [""] * 2, ["/"], [ps.Part("")] * 65, "abc", {"a": 1}, 3, [{"size": 3}]])
def test_wrong_parts_are_refused_at_creation_and_nothing_written(objects: Any, parts: Any) -> None:
    store = ps.PartsStore(objects)
    with pytest.raises(PartsConfigError):
        create(store, parts)
    assert keys_of(objects) == set()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"a": ' * 2000])
def test_a_document_that_is_no_document_is_passed_on_as_it_is(objects: Any, text: bytes) -> None:
    obstore.put(objects, "a/zarr.json", text)
    store = ps.PartsStore(objects)
    assert get(store, "a/zarr.json") == text
    with pytest.raises((ValueError, TypeError, RecursionError, AttributeError)):
        zarr.open_array(store, path="a")


# --- the store itself ------------------------------------------------------------------------------------------------


def test_a_pickled_store_carries_what_it_has_learnt(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path), parts={"*": ["", ps.Part(".t", size=1)]})
    create_sharded(store)[...] = VALUES
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    chosen: dict[str, Any] = {"concurrency": "full", "retries": 5, "coalesce_gap": 7, "index_cache_bytes": 9}
    other = pickle.loads(pickle.dumps(ps.PartsStore(LocalStore(tmp_path), **chosen)))
    assert other == ps.PartsStore(LocalStore(tmp_path), **chosen) != store
    operations = other._operations
    found = (operations.rules.level.value, operations.retries, operations.coalesce_gap, operations.indexes.max_nbytes)
    assert found == tuple(chosen.values())
    assert copy.parts_of("a") == store.parts_of("a")
    assert copy.stats.get == 0
    program = "import pickle, sys; array = pickle.load(sys.stdin.buffer); print(int(array[40, 3]))"
    array = zarr.open_array(store, path="a")
    ran = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(array), capture_output=True, check=True)
    assert int(ran.stdout) == VALUES[40, 3]


def test_stores_are_equal_by_what_they_hold_and_do(tmp_path: Path) -> None:
    place = LocalStore(tmp_path)
    assert ps.PartsStore(place) == ps.PartsStore(LocalStore(tmp_path))
    assert ps.PartsStore(place) != ps.PartsStore(place, read_only=True)
    assert ps.PartsStore(place) != ps.PartsStore(place, parts={"*": [""]})
    assert ps.PartsStore(place) != ps.PartsStore(place, concurrency="full")
    assert ps.PartsStore(place) != ps.PartsStore(MemoryStore())
    assert ps.PartsStore(place) != place


def test_from_url_opens_paths_and_urls(tmp_path: Path) -> None:
    for url in (tmp_path / "p", str(tmp_path / "p"), f"file://{tmp_path}/p", "memory://", "memory:///"):
        store = ps.PartsStore.from_url(url)
        create_sharded(store, name="x")[...] = VALUES
        sync(store.clear())
    assert "bucket" in repr(ps.PartsStore.from_url("s3://bucket/data", region="us-east-1", read_only=True))
    assert "read_only=True" in repr(ps.PartsStore.from_url("s3://bucket/data", region="us-east-1", read_only=True))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/x", {}),
        ("foo://user:hunter2@host/x", {}),
        ("s3://bucket", {"nonsense": "hunter2"}),
        ("s3://bucket", {"secret_access_key": "hunter2", "nonsense": 1}),
        ("memory://", {"secret_access_key": "hunter2"}),
        ("/tmp", {"secret_access_key": "hunter2"}),
    ],
)
def test_an_unknown_scheme_or_option_is_refused_without_telling_secrets(url: str, options: Any) -> None:
    with pytest.raises(StoreConfigError) as caught:
        ps.PartsStore.from_url(url, **options)
    told = str(caught.value) + repr(caught.value) + str(caught.value.__cause__)
    assert "hunter2" not in told


def test_secrets_are_in_no_representation() -> None:
    options: Any = {"access_key_id": "key", "secret_access_key": "hunter2", "session_token": "hunter2"}
    store = ps.PartsStore.from_url("s3://bucket/data", region="us-east-1", **options)
    web = ps.PartsStore.from_url("https://user:hunter2@host/path")
    for each in (store, web):
        assert "hunter2" not in repr(each) + str(each) + each._repr_html_() + repr(vars(each).values())


def test_something_that_is_no_obstore_store_is_refused() -> None:
    with pytest.raises(StoreConfigError, match="expected a store of obstore"):
        ps.PartsStore({})


def test_stats_count_and_reset_and_explain_tells_the_requests_before_they_are_made(pipeline: str) -> None:
    store = ps.PartsStore(MemoryStore())
    array = create_sharded(store)
    store.stats.reset()
    array[...] = VALUES
    assert (store.stats.put, store.stats.get, store.stats.head) == (12, 0, 0)
    for selection in SELECTIONS:
        store.stats.reset()
        told = store.explain("a", selection)
        assert store.stats.calls == dict.fromkeys(store.stats.calls, 0)
        np.testing.assert_array_equal(array[selection], VALUES[selection])
        assert store.stats.get == len(told)
        assert all(each.kind == "get" and each.key.startswith("a/c/") for each in told)
    # One inner chunk of a dense shard: the index, and one range.
    (index, data) = store.explain("a", np.s_[40, 40])
    assert (index.key, index.start, index.stop) == ("a/c/1/1.index", 0, 260)
    assert (data.key, data.stop and data.start is not None and data.stop - data.start) == ("a/c/1/1", 128)
    assert "get=" in repr(store.stats)
    with pytest.raises(AttributeError):
        store.stats.nonsense  # noqa: B018 - that it raises is the point


def test_a_context_never_carries_an_index_into_another_read(pipeline: str) -> None:
    store = ps.PartsStore(MemoryStore())
    array = create_sharded(store)
    array[...] = VALUES
    index = SuffixByteRequest(260)
    assert store.get_sync("a/c/0/0", byte_range=index) is not None
    other = ps.PartsStore(store.store)
    zarr.open_array(other, path="a")[:32, :32] = VALUES[:32, :32] + 1
    # The data is of another write than the index that this context has seen.
    with pytest.raises(ConcurrentWriteError, match="its data is not of the write that its index is of"):
        store.get_ranges_sync("a/c/0/0", [RangeByteRequest(100, 110)], prototype=PROTOTYPE)
    # And once it was told, it is forgotten.
    assert store.get_ranges_sync("a/c/0/0", [RangeByteRequest(100, 110)], prototype=PROTOTYPE)
    np.testing.assert_array_equal(array[:9, :9], VALUES[:9, :9] + 1)


def test_a_folder_with_nothing_but_parts_that_outlived_their_chunks_is_not_listed() -> None:
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


def test_neither_is_such_a_folder_among_the_chunks() -> None:
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
