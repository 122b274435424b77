"""Chunks of blosc that were cut off are refused, wherever they are decoded, and arrays look as in any other store."""

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
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec

import parts_store as ps
from parts_store._compat.zarr import sync
from parts_store.errors import CodecError
from parts_store.format.blosc import require_blosc_sizes
from tests.codecs.arrays import document

VALUES = (np.arange(96) * 7 % 31).astype("<i4")
COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}


def encoded(cname: str) -> bytes:
    return bytes(Blosc(cname, 5, Blosc.SHUFFLE).encode(VALUES))


def stored(name: str, cname: str, *, sharded: bool = False) -> tuple[MemoryStore, dict[str, Any]]:
    """A store with the metadata of an array of one chunk, and this metadata."""
    configuration: dict[str, Any] = {**BLOSC, "cname": cname}
    if name == "numcodecs.blosc":
        configuration = {"cname": cname, "clevel": 5, "shuffle": 1, "blocksize": 0}
    codecs: list[dict[str, Any]] = [BYTES, {"name": name, "configuration": configuration}]
    if sharded:
        index = {"codecs": codecs, "index_codecs": [BYTES], "index_location": "end", "chunk_shape": [96]}
        codecs = [{"name": "sharding_indexed", "configuration": index}]
    memory, text = MemoryStore(), document((96,), "int32", (96,), codecs)
    obstore.put(memory, "zarr.json", json.dumps(text).encode())
    return memory, text


@pytest.mark.parametrize(("name", "sharded"), [("blosc", False), ("blosc", True), ("numcodecs.blosc", False)])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_every_prefix_of_a_chunk_of_blosc_is_refused(name: str, sharded: bool, pipeline: str) -> None:
    memory, _ = stored(name, "lz4", sharded=sharded)
    array: Any = zarr.open_array(ps.PartsStore(memory), mode="r")
    data = encoded("lz4")
    for nbytes in range(1, len(data) + 1):
        index = struct.pack("<QQ", 0, nbytes) if sharded else b""
        obstore.put(memory, "c/0", data[:nbytes] + index)
        if nbytes == len(data):
            np.testing.assert_array_equal(array[:], VALUES)
            continue
        with pytest.raises(CodecError, match=f"found {nbytes} bytes with a header .*: the chunk is cut off"):
            array[:]


@pytest.mark.parametrize("cname", COMPRESSORS)
def test_every_prefix_is_refused_with_every_compressor_of_blosc(cname: str) -> None:
    data = encoded(cname)
    for nbytes in range(len(data)):
        with pytest.raises(CodecError, match=f"found {nbytes} bytes"):
            require_blosc_sizes(data[:nbytes])
    require_blosc_sizes(data)


def test_what_zarr_writes_again_names_its_own_codec() -> None:
    memory, text = stored("blosc", "lz4", sharded=True)
    store = ps.PartsStore(memory)
    array: Any = zarr.open_array(store, mode="r+")
    array.attrs["a"] = 1
    array[:] = VALUES
    assert json.loads(bytes(obstore.get(memory, "zarr.json").bytes()))["codecs"] == text["codecs"]
    np.testing.assert_array_equal(zarr.open_array(zarr.storage.ObjectStore(memory))[:], VALUES)


@pytest.mark.parametrize(("name", "sharded"), [("blosc", False), ("blosc", True), ("numcodecs.blosc", False)])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_documents_that_are_copied_by_hand_name_codecs_of_zarr(name: str, sharded: bool, consolidated: bool) -> None:
    memory, text = stored(name, "lz4", sharded=sharded)
    key = "zarr.json"
    if consolidated:
        members = {"kind": "inline", "must_understand": False, "metadata": {"a": text}}
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": members}
        obstore.put(memory, "zarr.json", json.dumps(group).encode())
    for target in (memory, MemoryStore()):
        read = sync(ps.PartsStore(memory).get(key, default_buffer_prototype()))
        assert read is not None
        served = json.loads(read.to_bytes())
        changed = default_buffer_prototype().buffer.from_bytes(json.dumps(served | {"attributes": {"b": 1}}).encode())
        sync(ps.PartsStore(target).set(key, changed))
        found = json.loads(bytes(obstore.get(target, key).bytes()))
        assert found["attributes"] == {"b": 1}
        array = found["consolidated_metadata"]["metadata"]["a"] if consolidated else found
        assert array["codecs"] == text["codecs"]


def test_codec_of_an_opened_array_is_equal_to_that_of_zarr() -> None:
    store = ps.PartsStore.from_url("memory://")
    made = zarr.create_array(store, shape=8, dtype="i4", compressors=BloscCodec(cname="lz4"))
    opened = zarr.open_array(store)
    assert opened.compressors == made.compressors
    assert made.compressors == opened.compressors
    assert opened.metadata == made.metadata
    assert isinstance(opened.compressors[0], BloscCodec)
    assert pickle.loads(pickle.dumps(opened.compressors)) == made.compressors
    assert opened.compressors != (BloscCodec(cname="zstd"),)
