"""Chunks in parts: what is stored for them, and how they are read, written and deleted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from icechunk import Repository, in_memory_storage
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ChunkSizeError, ConcurrentWriteError, PartsConfigError, ReservedKeyError
from tests.store.arrays import PROTOTYPE, VALUES, collect, content, create, create_sharded, get, keys_of, put


def test_parts_are_plain_objects_at_the_chunks_key_with_their_suffix(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, [ps.Part(".head", size=10), "", ps.Part(".tail", size=4)])[...] = VALUES
    whole = VALUES[:32, 32:].tobytes()
    assert content(objects, "a/c/0/1.head") == whole[:10]
    assert content(objects, "a/c/0/1") == whole[10:-4]
    assert content(objects, "a/c/0/1.tail") == whole[-4:]
    assert len(keys_of(objects)) == 4 * 3 + len({"a/zarr.json", "zarr.json"} & keys_of(objects))


def test_stored_document_has_the_transformer_and_zarr_sees_none(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_sharded(store)
    stored = json.loads(content(objects, "a/zarr.json"))
    parts = [{"key_suffix": ".header", "size": 64}, {"key_suffix": ""}, {"key_suffix": ".index", "size": 16 * 16 + 4}]
    assert stored["storage_transformers"] == [{"name": "concat-parts", "configuration": {"parts": parts}}]
    served = json.loads(get(store, "a/zarr.json") or b"")
    assert "storage_transformers" not in served
    assert stored["parts_store"] == {"name": "parts_store", "must_understand": True}
    lifted = {"storage_transformers": stored["storage_transformers"], "parts_store": stored["parts_store"]}
    assert {**served, **lifted} == stored
    assert "parts_store" not in served
    assert store.parts_of("a") == ps.ConcatParts([ps.Part(".header", 64), "", ps.Part(".index", 260)])


def test_all_parts_of_a_write_have_the_same_tag() -> None:
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


def test_every_write_has_a_new_tag() -> None:
    objects = MemoryStore()
    array = create(ps.PartsStore(objects), ["", ps.Part(".tail", size=4)])
    seen = set()
    for value in (1, 1, 2):
        array[:32, :32] = value
        tags = [str(obstore.get(objects, key).attributes["partsgen"]) for key in ("a/c/0/0", "a/c/0/0.tail")]
        generations = {tag.split(";")[1] for tag in tags}
        assert len(generations) == 1
        seen |= generations
    assert len(seen) == 3


@pytest.mark.sampled(5)
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
def test_any_range_of_a_chunk_reads_like_one_object(objects: Any, parts: Any) -> None:
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
    size: dict[str, Any] = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
    zarr.create_array(store.with_parts({"a": ["", ".more"]}), name="a", **size)
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


def test_read_of_a_single_part_copies_nothing() -> None:
    store = ps.PartsStore(MemoryStore())
    create(store, [ps.Part(".head", size=8), ""], shape=(64,), chunks=(64,), dtype="uint8")[...] = 1
    buffer = store.get_sync("a/c/0", prototype=PROTOTYPE, byte_range=RangeByteRequest(10, 20))
    assert buffer is not None
    # A view of what obstore returned, and not memory of NumPy's own.
    assert not buffer.as_numpy_array().flags.owndata
    assert buffer.as_numpy_array().base is not None


@pytest.mark.parametrize(
    ("parts", "nbytes", "message"),
    [
        ([ps.Part(".head", size=10), ""], 9, "expected at least 10 bytes for its parts, found 9"),
        ([ps.Part(".x", size=4), ps.Part(".y", size=4)], 7, "expected 8 bytes for its parts, found 7"),
        ([ps.Part(".x", size=4), ps.Part(".y", size=4)], 9, "expected 8 bytes for its parts, found 9"),
    ],
)
def test_value_of_a_wrong_size_is_refused_before_any_write(objects: Any, parts: Any, nbytes: int, message: str) -> None:
    store = ps.PartsStore(objects)
    create(store, parts)
    before = keys_of(objects)
    for write in (store.set_sync, lambda key, value: sync(store.set(key, value))):
        with pytest.raises(ChunkSizeError, match=f"chunk 'a/c/0/0': {message}"):
            write("a/c/0/0", cpu.Buffer.from_bytes(bytes(nbytes)))
    assert keys_of(objects) == before


@pytest.mark.parametrize("concurrency", ["exclusive", "writers", "full"])
def test_exists_getsize_and_delete_treat_the_chunk_as_a_whole(objects: Any, concurrency: Any) -> None:
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


@pytest.mark.sampled(5)
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
def test_parts_read_together_must_be_of_one_write(objects: Any, concurrency: Any) -> None:
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
        with pytest.raises(ConcurrentWriteError, match="it was changed after it was read for this write"):
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
        with pytest.raises(ReservedKeyError, match="cannot be written directly"):
            put(store, key, b"x")
        with pytest.raises(ReservedKeyError):
            sync(store.delete(key))


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_empty_key_is_absent_as_in_zarrs_local_store(kind: str, tmp_path: Path) -> None:
    if kind == "session":
        store = ps.PartsStore.from_session(Repository.create(in_memory_storage()).writable_session("main"))
    else:
        store = ps.PartsStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path / "ours", mkdir=True))
    like = zarr.storage.LocalStore(tmp_path / "like")
    for each in (store, like):
        zarr.create_array(each, name="a", data=np.arange(4), chunks=(2,))
        assert sync(each.exists("")) is False
        assert sync(each.get("", PROTOTYPE)) is None
        assert sync(each.get("", PROTOTYPE, RangeByteRequest(0, 4))) is None
        assert each.get_sync("") is None
    # zarr's store deletes everything. A PartsStore deletes folders by `delete_dir` only.
    before = sorted(sync(collect(store.list())))
    sync(store.delete(""))
    store.delete_sync("")
    assert sorted(sync(collect(store.list()))) == before
    with pytest.raises(FileNotFoundError):
        sync(store.getsize(""))


CALLS: dict[str, Callable[[ps.PartsStore], object]] = {
    "create": lambda store: ps.create_array(store, "a\tb", parts=[".d"], shape=(8,), dtype="int32"),
    "verify": lambda store: store.verify("../x"),
    "repair": lambda store: store.repair("../x", min_age=0),
    "explain": lambda store: store.explain("a\nb", ()),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_key_that_no_store_takes_is_our_error(call: str, kind: str, tmp_path: Path) -> None:
    store = ps.PartsStore(MemoryStore()) if kind == "memory" else ps.PartsStore.from_url(tmp_path)
    with pytest.raises(ps.errors.PartsStoreError):
        CALLS[call](store)
