"""Chunks of blosc that were cut off are refused, whatever decodes them, and documents name codecs that all know."""

import json
import pickle
import struct
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numcodecs import Blosc
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec

import parts_store as ps
from parts_store._compat.zarr import sync
from parts_store.errors import CodecError
from parts_store.format.cut_chunks import check_of, require_blosc_sizes
from tests.codecs.arrays import document

VALUES = (np.arange(96) * 7 % 31).astype("<i4")
COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
CUT = "with a header .*: the chunk is cut off"
PROTOTYPE = default_buffer_prototype()


def encoded(cname: str) -> bytes:
    return bytes(Blosc(cname, 5, Blosc.SHUFFLE).encode(VALUES))


def sharding(chunk_length: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    index = {"codecs": codecs, "index_codecs": [BYTES], "index_location": "end", "chunk_shape": [chunk_length]}
    return {"name": "sharding_indexed", "configuration": index}


def stored(name: str, layers: int = 0) -> tuple[MemoryStore, dict[str, Any]]:
    """A store with the metadata of an array of one chunk in so many layers of shards, and this metadata."""
    configuration: dict[str, Any] = BLOSC
    if name == "numcodecs.blosc":
        configuration = {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
    codecs: list[dict[str, Any]] = [BYTES, {"name": name, "configuration": configuration}]
    for _ in range(layers):
        codecs = [sharding(96, codecs)]
    memory, text = MemoryStore(), document((96,), "int32", (96,), codecs)
    obstore.put(memory, "zarr.json", json.dumps(text).encode())
    return memory, text


CASES = pytest.mark.parametrize(
    ("name", "layers"), [("blosc", 0), ("blosc", 1), ("blosc", 2), ("numcodecs.blosc", 0), ("numcodecs.blosc", 1)]
)
UNKNOWN = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")


@CASES
@UNKNOWN
def test_every_prefix_of_a_chunk_of_blosc_is_refused(name: str, layers: int, pipeline: str) -> None:
    memory, _ = stored(name, layers)
    array: Any = zarr.open_array(ps.PartsStore(memory), mode="r")
    data = encoded("lz4")
    for nbytes in range(1, len(data) + 1):
        shard = data[:nbytes]
        for _ in range(layers):
            shard += struct.pack("<QQ", 0, len(shard))
        obstore.put(memory, "c/0", shard)
        # The whole chunk or shard, and a part of it.
        for selection in (slice(None), slice(3, 5)):
            if nbytes == len(data):
                np.testing.assert_array_equal(array[selection], VALUES[selection])
                continue
            with pytest.raises(CodecError, match=f"found {nbytes} bytes {CUT}"):
                array[selection]


@pytest.mark.parametrize("cname", COMPRESSORS)
def test_every_prefix_is_refused_with_every_compressor_of_blosc(cname: str) -> None:
    data = encoded(cname)
    for nbytes in range(len(data)):
        with pytest.raises(CodecError, match=f"found {nbytes} bytes"):
            require_blosc_sizes(data[:nbytes])
    require_blosc_sizes(data)


@pytest.mark.parametrize(
    ("parts", "shards"),
    [(None, None), (["", ps.Part(".end", size=8)], None), (["", ps.Part(".index", size=ps.SHARD_INDEX)], (96,))],
)
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("reopened", ["created", "opened", "pickled", "consolidated"])
def test_cut_chunks_are_refused_however_an_array_was_opened(
    parts: Any, shards: Any, reopened: str, pipeline: str, tmp_path: Any
) -> None:
    store = ps.PartsStore.from_url(tmp_path, parts=None if parts is None else {"*": parts})
    zarr.create_group(store)
    array: Any = zarr.create_array(
        store, name="a", shape=(192,), chunks=(48,), shards=shards, dtype="<i4", compressors=BloscCodec(cname="lz4")
    )
    array[:] = np.tile(VALUES, 2)
    match reopened:
        case "opened":
            array = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a")
        case "pickled":
            array = pickle.loads(pickle.dumps(array))
        case "consolidated":
            zarr.consolidate_metadata(store)
            array = zarr.open_group(ps.PartsStore.from_url(tmp_path), use_consolidated=True)["a"]
    np.testing.assert_array_equal(array[:], np.tile(VALUES, 2))
    # The header of the first chunk says more bytes than the chunk has.
    path = tmp_path / "a" / "c" / "0"
    data = path.read_bytes()
    path.write_bytes(data[:12] + struct.pack("<I", len(data) + 100) + data[16:])
    for selection in (slice(0, 96), slice(3, 5)):
        with pytest.raises(CodecError, match="the chunk is cut off"):
            array[selection]


def test_bytes_of_other_codecs_around_blosc_are_left_out() -> None:
    header = {"name": "pad", "configuration": {"location": "start", "nbytes": 10}}
    trailer = {"name": "pad", "configuration": {"location": "end", "nbytes": 3}}
    offset = {"name": "offset", "configuration": {"offset": 5}}
    codecs = [BYTES, {"name": "blosc", "configuration": BLOSC}, header, trailer, offset]
    check = check_of(document((96,), "int32", (96,), codecs))
    assert check is not None
    whole = bytes(15) + encoded("lz4") + bytes(3)
    check.require_whole((memoryview(whole[:20]), memoryview(whole[20:])))
    with pytest.raises(CodecError, match="cut off"):
        check.require_whole((memoryview(whole[:-1]),))


def test_a_checksum_behind_blosc_says_what_is_wrong() -> None:
    memory = MemoryStore()
    codecs = (BloscCodec(cname="lz4"), Crc32cCodec())
    array: Any = zarr.create_array(ps.PartsStore(memory), shape=96, dtype="<i4", compressors=codecs)
    array[:] = VALUES
    obstore.put(memory, "c/0", bytes(obstore.get(memory, "c/0").bytes())[:-5])
    with pytest.raises(ValueError, match="checksum"):
        array[:]


@pytest.mark.parametrize("in_parts", [False, True])
def test_ranges_that_are_not_chunks_are_read_as_they_are(in_parts: bool) -> None:
    parts: Any = {"*": ["", ps.Part(".index", size=ps.SHARD_INDEX)]} if in_parts else None
    store = ps.PartsStore.from_url("memory://", parts=parts)
    array = zarr.create_array(store, shape=96, chunks=48, shards=96, dtype="<i4", compressors=BloscCodec(cname="lz4"))
    array[:] = VALUES
    whole = store.get_sync("c/0")
    assert whole is not None
    index = store.get_sync("c/0", byte_range=SuffixByteRequest(36))
    assert index is not None
    ((_, found),) = store.get_ranges_sync("c/0", [RangeByteRequest(2, 30)], prototype=PROTOTYPE)
    assert found is not None
    assert found.to_bytes() == whole.to_bytes()[2:30]
    assert len(store.explain("", slice(3, 5))) > 0


@CASES
@pytest.mark.parametrize("consolidated", [False, True])
@UNKNOWN
def test_documents_are_served_and_stored_with_the_codecs_of_zarr(name: str, layers: int, consolidated: bool) -> None:
    memory, text = stored(name, layers)
    written = dict(text)
    if consolidated:
        members = {"kind": "inline", "must_understand": False, "metadata": {"a": text}}
        written = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": members}
        obstore.put(memory, "zarr.json", json.dumps(written).encode())
    store = ps.PartsStore(memory)
    served = sync(store.get("zarr.json", PROTOTYPE))
    assert served is not None
    assert json.loads(served.to_bytes()) == written
    node: Any = zarr.open(store, mode="r+")
    if not consolidated:
        node[:] = VALUES
    node.attrs["a"] = 1
    # A copy by hand, key by key, into a store of another kind.
    copied = zarr.storage.MemoryStore()
    for key in ("zarr.json", *(() if consolidated else ("c/0",))):
        value = sync(store.get(key, PROTOTYPE))
        assert value is not None
        sync(copied.set(key, value))
    found: Any = zarr.open(copied, mode="r")
    assert found.attrs["a"] == 1
    if not consolidated:
        np.testing.assert_array_equal(found[:], VALUES)
        assert json.loads(bytes(obstore.get(memory, "zarr.json").bytes()))["codecs"] == text["codecs"]
