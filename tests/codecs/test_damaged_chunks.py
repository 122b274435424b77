"""Chunks of blosc that were cut off are refused where they are decoded, and documents name codecs that all know."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from numcodecs import Blosc
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore, MemoryStore
from virtualizarr.manifests import ChunkManifest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.codecs.numcodecs import Shuffle

import parts_store as ps
from parts_store._compat.zarr import ArrayV3Metadata, sync
from parts_store.codecs.damaged_chunks import require_blosc_sizes
from parts_store.errors import CodecError
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
def test_every_prefix_of_a_chunk_of_blosc_is_refused(name: str, layers: int) -> None:
    memory, _ = stored(name, layers)
    array: Any = ps.open_array(ps.PartsStore(memory))
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


SHARDED: Any = (["", ps.Part(".index", size=ps.SHARD_INDEX)], (96,))


def damage_first_chunk(path: Path) -> None:
    """Let the header of the first chunk of blosc say more bytes than the chunk has."""
    data = path.read_bytes()
    path.write_bytes(data[:12] + struct.pack("<I", len(data) + 100) + data[16:])


@pytest.mark.parametrize(("parts", "shards"), [(None, None), (["", ps.Part(".end", size=8)], None), SHARDED])
@pytest.mark.parametrize("reopened", ["created", "fast", "opened", "pickled", "group", "engine"])
def test_cut_chunks_are_refused_however_an_array_was_opened(
    parts: Any, shards: Any, reopened: str, tmp_path: Path
) -> None:
    store = ps.PartsStore.from_url(tmp_path, parts=None if parts is None else {"*": parts})
    array: Any = ps.open_group(store, mode="w").create_array(
        "a",
        shape=192,
        chunks=48,
        shards=shards,
        dtype="<i4",
        dimension_names=["x"],
        compressors=BloscCodec(cname="lz4"),
    )
    array[:] = np.tile(VALUES, 2)
    match reopened:
        case "fast":
            with ps.fast():
                array = zarr.open_array(store, path="a")
        case "opened":
            array = ps.open_array(ps.PartsStore.from_url(tmp_path), "a")
        case "pickled":
            array = pickle.loads(pickle.dumps(array))
        case "group":
            array = ps.open_group(store)["a"]
        case "engine":
            opened: Any = store
            array = xr.open_dataset(opened, engine="parts_store", cache=False, consolidated=False)["a"]
    np.testing.assert_array_equal(array[:], np.tile(VALUES, 2))
    damage_first_chunk(tmp_path / "a" / "c" / "0")
    for selection in (slice(0, 96), slice(3, 5)):
        with pytest.raises(CodecError, match="the chunk is cut off"):
            np.asarray(array[selection])


def test_one_cut_inner_chunk_hinders_neither_writes_of_others_nor_copies(tmp_path: Path) -> None:
    parts, shards = SHARDED
    store = ps.PartsStore.from_url(tmp_path / "a")
    array: Any = ps.create_array(
        store, "a", parts=parts, shape=96, chunks=48, shards=shards, dtype="<i4", compressors=BloscCodec(cname="lz4")
    )
    array[:] = VALUES
    damage_first_chunk(tmp_path / "a" / "a" / "c" / "0")
    array[60:70] = 7
    copy = ps.PartsStore.from_url(tmp_path / "b")
    ps.copy(store, copy)
    for found in (array, ps.open_array(copy, "a")):
        np.testing.assert_array_equal(found[48:], [*VALUES[48:60], *[7] * 10, *VALUES[70:]])
        with pytest.raises(CodecError, match="the chunk is cut off"):
            found[:48]


@UNKNOWN
@pytest.mark.parametrize("behind", ["shuffle", "pad"])
def test_blosc_is_checked_whatever_codec_is_behind_it(behind: str) -> None:
    memory = MemoryStore()
    last: Any = Shuffle(elementsize=2) if behind == "shuffle" else ps.codecs.PadCodec("end", nbytes=3)
    codecs = (BloscCodec(cname="lz4"), last)
    group = ps.open_group(ps.PartsStore(memory), mode="w")
    array: Any = group.create_array("a", shape=96, dtype="<i4", compressors=codecs)
    array[:] = VALUES
    data = bytes(obstore.get(memory, "a/c/0").bytes())
    for nbytes in range(1, len(data)):
        obstore.put(memory, "a/c/0", data[:nbytes])
        with pytest.raises((CodecError, ValueError)):
            array[:]


def test_references_to_a_cut_chunk_are_refused(tmp_path: Path) -> None:
    data = encoded("lz4")
    codecs = [BYTES, {"name": "blosc", "configuration": BLOSC}]
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    text: Any = document((96,), "int32", (96,), codecs)
    metadata = ArrayV3Metadata.from_dict(text)
    for nbytes in (len(data), len(data) - 3):
        path = tmp_path / f"{nbytes}"
        path.write_bytes(data)
        manifest = ChunkManifest({"0": {"path": path.as_uri(), "offset": 0, "length": nbytes}})
        array = ps.manifests.PartsArray(metadata, [manifest]).with_registry(registry)
        if nbytes == len(data):
            np.testing.assert_array_equal(np.asarray(array), VALUES)
            continue
        with pytest.raises(CodecError, match="the chunk is cut off"):
            np.asarray(array)


def test_a_checksum_behind_blosc_says_what_is_wrong() -> None:
    memory = MemoryStore()
    codecs = (BloscCodec(cname="lz4"), Crc32cCodec())
    array: Any = zarr.create_array(ps.PartsStore(memory), shape=96, dtype="<i4", compressors=codecs)
    array[:] = VALUES
    obstore.put(memory, "c/0", bytes(obstore.get(memory, "c/0").bytes())[:-5])
    with pytest.raises(ValueError, match="checksum"):
        array[:]


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
