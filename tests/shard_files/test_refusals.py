"""Arrays whose shards cannot be files are refused when they are created or resized, with what would work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import Delta, Fletcher32, Shuffle, Zlib

import parts_store as ps
from tests.shard_files import forms

PLAIN: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint16"}
WITHOUT_CHECKSUM = ShardingCodec(chunk_shape=(16, 16), index_codecs=[BytesCodec()])
BOTH: dict[str, tuple[dict[str, Any], str]] = {
    "dates": ({"dtype": "datetime64[s]"}, "a boolean or a number as data type"),
    "strings": ({"dtype": "str"}, "`bytes` as the first codec"),
    "records": ({"dtype": np.dtype([("a", "u1")])}, "a boolean or a number as data type"),
    "gzip": ({"compressors": GzipCodec()}, "`zarr.codecs.numcodecs.Zlib` for deflate"),
    "blosc": ({"compressors": BloscCodec()}, "`zarr.codecs.numcodecs.Zlib` for deflate"),
    "crc32c": ({"compressors": Crc32cCodec()}, "`zarr.codecs.numcodecs.Zlib` for deflate"),
    "transpose": ({"filters": TransposeCodec(order=(1, 0))}, "`bytes` as the first codec, without filters"),
    "delta": ({"filters": Delta(dtype="u2")}, "`bytes` as the first codec, without filters"),
    "nested shards": ({"serializer": ShardingCodec(chunk_shape=(16, 16))}, "`bytes` as the first codec"),
    "index at the start": ({"shards": {"shape": (32, 32), "index_location": "start"}}, "an index at the end"),
    "no shards": ({"shards": None}, "the shape of a shard"),
    "Zarr v2": ({"zarr_format": 2}, "Zarr v2 has no storage transformers"),
    "large chunks": ({"shape": (2**17,) * 2, "chunks": (2**16,) * 2, "shards": (2**17,) * 2}, "chunks of at most"),
    "0-D": ({"shape": (), "chunks": (), "shards": ()}, "expected "),
    "unknown format": ({"shard_file": "png"}, "one of 'tiff', 'hdf5'"),
    "no name of a format": ({"shard_file": ["tiff"]}, "one of 'tiff', 'hdf5'"),
    "other parts": ({"parts": ["", ".x"]}, "the file, and behind it the index of 68 bytes"),
    "an index of another size": ({"parts": ["", ps.Part(".x", size=64)]}, "the file, and behind it the index"),
    "other index codecs": ({"shards": None, "serializer": WITHOUT_CHECKSUM}, "the shape of a shard"),
    "chunks without shards": ({"shards": None, "chunks": (32, 32)}, "the shape of a shard"),
    "with chunk_file": ({"chunk_file": "tiff"}, "one of `parts`, `chunk_file` and `shard_file`"),
}
TIFF: dict[str, tuple[dict[str, Any], str]] = {
    "1-D": ({"shape": (64,), "chunks": (16,), "shards": (32,)}, "height, width"),
    "height of tiles": ({"chunks": (8, 16)}, "multiples of 16"),
    "width of tiles": ({"chunks": (16, 8)}, "multiples of 16"),
    "strips that are cut": ({"shape": (64, 60), "chunks": (4, 40), "shards": (32, 40)}, "as wide as the array"),
    "compressed rows that are cut": ({"shape": (63, 40), "chunks": (4, 40), "shards": (32, 40)}, "divides that of"),
    "thick pages": ({"shape": (4, 16, 16), "chunks": (2, 16, 16), "shards": (4, 16, 16)}, "chunks of length 1"),
    "many pages": ({"shape": (70000, 16, 16), "chunks": (1, 16, 16), "shards": (70000, 16, 16)}, "at most 65535"),
    "shuffle": ({"compressors": [Shuffle(elementsize=2), Zlib()]}, "no compressor"),
    "checksum": ({"compressors": [Zlib(), Fletcher32()]}, "no compressor"),
    "two compressors": ({"compressors": [Zlib(), ZstdCodec()]}, "no compressor"),
}
HDF5: dict[str, tuple[dict[str, Any], str]] = {
    "shuffle of another size": ({"compressors": [Shuffle(elementsize=4), Zlib()]}, r"`Shuffle\(elementsize=2\)`"),
    "33 dimensions": ({"shape": (1,) * 33, "chunks": (1,) * 33, "shards": (1,) * 33}, "1 to 32 dimensions"),
}
CASES = [
    pytest.param(shard_file, arguments, expected, id=f"{shard_file}-{name}")
    for shard_file, cases in (("tiff", BOTH | TIFF), ("hdf5", BOTH | HDF5))
    for name, (arguments, expected) in cases.items()
]


@pytest.mark.parametrize(("shard_file", "arguments", "expected"), CASES)
def test_shards_that_cannot_be_files_are_refused_before_anything_is_written(
    tmp_path: Path, shard_file: str, arguments: dict[str, Any], expected: str
) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    with pytest.raises((ps.errors.StoreConfigError, ps.errors.PartsConfigError), match=expected):
        ps.create_array(store, "group/a", **{**PLAIN, "shard_file": shard_file, **arguments})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shard_file", ["tiff", "hdf5"])
def test_index_without_a_checksum_is_refused_behind_a_file(tmp_path: Path, shard_file: Any) -> None:
    store = ps.PartsStore.from_url(str(tmp_path)).with_parts({"a": [""]}, shard_file=shard_file)
    layout: dict[str, Any] = {"shape": (64, 64), "chunks": (32, 32), "dtype": "uint16", "compressors": None}
    with pytest.raises(ps.errors.StoreConfigError, match="an index with the codec `crc32c`"):
        zarr.create_array(store, name="a", serializer=WITHOUT_CHECKSUM, **layout)


def test_store_of_zarr_is_refused() -> None:
    with pytest.raises(ps.errors.StoreConfigError, match="a PartsStore"):
        ps.create_array(zarr.storage.MemoryStore(), "a", shard_file="tiff", **PLAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize("shard_file", ["tiff", "hdf5"])
def test_argument_data_decides_shape_and_data_type(tmp_path: Path, shard_file: Any) -> None:
    data = np.arange(4096, dtype="uint16").reshape(64, 64)
    store = ps.PartsStore.from_url(str(tmp_path))
    array = ps.create_array(store, "a", shard_file=shard_file, data=data, chunks=(16, 16), shards=(32, 32))
    np.testing.assert_array_equal(array[...], data)


def test_number_of_colours_cannot_be_changed(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    colours: dict[str, Any] = {"shape": (64, 64, 3), "chunks": (16, 16, 3), "shards": (64, 64, 3), "dtype": "uint8"}
    array = ps.create_array(store, "a", shard_file="tiff", **colours)
    array[...] = 1
    before = (tmp_path / "a" / "zarr.json").read_bytes()
    for length in (1, 2, 4, 6):
        with pytest.raises(ps.errors.StoreConfigError, match="a last axis of length 3"):
            array.resize((64, 64, length))
    assert (tmp_path / "a" / "zarr.json").read_bytes() == before
    narrow: dict[str, Any] = {"shape": (2, 20, 6), "chunks": (1, 20, 3), "shards": (1, 20, 3), "dtype": "uint8"}
    array = ps.create_array(store, "b", shard_file="tiff", **narrow)
    with pytest.raises(ps.errors.StoreConfigError, match="a last axis of length 6"):
        array.resize((2, 20, 3))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("member", [{"name": "jxl", "must_understand": False}, {"name": 5}, 7, "tiff", [], {}, True])
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", ["tiff", "hdf5"])
def test_files_of_a_newer_version_are_read_and_not_written(
    tmp_path: Path, form: str, shard_file: Any, member: Any
) -> None:
    array = forms.create(ps.PartsStore.from_url(str(tmp_path)), "a", form, shard_file, **PLAIN)
    values = np.arange(4096).reshape(64, 64)
    array[...] = values
    document = tmp_path / "a" / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "shard_file": member}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    reopened = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a", mode="r+")
    np.testing.assert_array_equal(reopened[...], values)
    assert reopened[40, 40] == values[40, 40]
    for region in (np.s_[0:32, 0:32], np.s_[0:3, 0:3]):
        with pytest.raises(ps.errors.StoreConfigError, match="newer version of parts_store"):
            reopened[region] = 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_files_that_the_document_cannot_have_are_not_written(tmp_path: Path) -> None:
    array = ps.create_array(
        ps.PartsStore.from_url(str(tmp_path)),
        "a",
        shard_file="hdf5",
        chunks=(4, 4),
        **{key: value for key, value in PLAIN.items() if key != "chunks"},
    )
    array[...] = 1
    document = tmp_path / "a" / "zarr.json"
    document.write_text(document.read_text().replace('"hdf5"', '"tiff"'))
    reopened = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a", mode="r+")
    np.testing.assert_array_equal(reopened[...], np.ones((64, 64)))
    with pytest.raises(ps.errors.StoreConfigError, match="multiples of 16"):
        reopened[0:32, 0:32] = 2
    np.testing.assert_array_equal(reopened[...], np.ones((64, 64)))
