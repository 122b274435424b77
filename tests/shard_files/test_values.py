"""Unusual attributes, fill values, names, keys and sizes of arrays whose shards are files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import parts_store as ps
from parts_store.errors import CodecError
from parts_store.format.files.conversion import file_of
from parts_store.format.files.description import describe_shards
from parts_store.format.files.seal import build_tail, is_sealed, sealed_ends
from parts_store.format.files.tiff_metadata import ArrayDescription
from tests.shard_files import readers

FORMATS = ("tiff", "hdf5")
LAYOUT: dict[str, Any] = {"shape": (40, 50), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint16"}
# What JSON can have, and whether HDF5 has a type for it; otherwise it is stored as JSON text.
ATTRIBUTES: dict[str, tuple[Any, bool]] = {
    "integer": (2**62, True),
    "negative": (-5, True),
    "float": (1.5, True),
    "infinity": (float("inf"), True),
    "flag": (True, True),
    "text": ("Grüße, 日本", True),
    "long text": ("x" * 100_000, True),
    "floats": ([1.0, 2.5], True),
    "long list": (list(range(20_000)), True),
    "texts": (["a", "bé"], True),
    "name/with slash": (1, True),
    "none": (None, False),
    "large integer": (2**70, False),
    "large integers": ([1, 2**70], False),
    "nested": ({"a": [1, {"b": None}]}, False),
    "empty list": ([], False),
    "empty object": ({}, False),
    "mixed": ([1, "a"], False),
    "rows": ([[1, 2], [3, 4]], False),
    "text with a zero": ("a\0b", False),
    "half of a pair": ("\ud800", False),
}
# HDF5 cannot have these names.
NAMES = ["", "zero\0", "x" * 70_000]


def test_every_attribute_is_in_the_hdf5_file(tmp_path: Path) -> None:
    attributes = {key: value for key, (value, _) in ATTRIBUTES.items()} | dict.fromkeys(NAMES, 1)
    store = ps.PartsStore.from_url(str(tmp_path))
    ps.create_array(store, "a", shard_file="hdf5", attributes=attributes, **LAYOUT)[...] = 1
    found = readers.read_h5py(tmp_path / "a" / "c" / "0" / "0")[2]
    assert set(found) == set(ATTRIBUTES)
    for key, (value, has_type) in ATTRIBUTES.items():
        if has_type:
            assert np.asarray(found[key]).tolist() == value
        else:
            assert json.loads(found[key]) == value
    assert dict(zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a").attrs) == attributes


@pytest.mark.slow
def test_many_attributes_are_in_the_hdf5_file(tmp_path: Path) -> None:
    attributes = {f"key {number}": "value" * 10 for number in range(2000)}
    store = ps.PartsStore.from_url(str(tmp_path))
    ps.create_array(store, "a", shard_file="hdf5", attributes=attributes, **LAYOUT)[...] = 1
    assert readers.read_h5py(tmp_path / "a" / "c" / "0" / "0")[2] == attributes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shard_file", FORMATS)
@pytest.mark.parametrize("compressors", ["auto", None])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("float32", np.nan),
        ("float64", np.inf),
        ("float32", -0.0),
        ("float16", -1.5),
        ("int16", -5),
        ("int64", -(2**63)),
        ("uint64", 2**64 - 1),
        ("bool", True),
        ("complex64", complex(1, np.nan)),
        ("complex128", complex(-0.0, 1)),
    ],
)
def test_missing_inner_chunks_have_the_fill_value_in_the_file(
    tmp_path: Path, shard_file: Any, compressors: Any, dtype: str, fill: Any
) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    layout = {**LAYOUT, "dtype": dtype, "fill_value": fill, "compressors": compressors}
    array = ps.create_array(store, "a", shard_file=shard_file, **layout)
    array[20:30, 20:30] = 0
    expected = np.full((32, 32), fill, dtype)
    expected[20:30, 20:30] = 0
    assert np.asarray(array[0:32, 0:32]).tobytes() == expected.tobytes()
    assert readers.read_file(tmp_path / "a" / "c" / "0" / "0").tobytes() == expected.tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shard_file", FORMATS)
@pytest.mark.parametrize("name", [None, "with space", "ünï/日本", "a.b", "x/y/z", "a%20b", "0"])
def test_arrays_of_any_name_have_files(tmp_path: Path, shard_file: Any, name: str | None) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    ps.create_array(store, name, shard_file=shard_file, **LAYOUT)[...] = 5
    reopened = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path=name or "", mode="r+")
    reopened[3, 3] = 7
    path = tmp_path / (name or "") / "c" / "0" / "0"
    expected = np.full((32, 32), 5)
    expected[3, 3] = 7
    np.testing.assert_array_equal(readers.read_file(path), expected)
    if shard_file == "hdf5":
        assert readers.read_h5py(path)[0] == ("data" if name is None else name.rpartition("/")[2])


@pytest.mark.parametrize("shard_file", FORMATS)
@pytest.mark.parametrize(
    ("encoding", "separator", "key"),
    [("v2", ".", "1.1"), ("v2", "/", "1/1"), ("default", ".", "c.1.1"), ("default", "/", "c/1/1")],
)
def test_files_of_edge_shards_end_where_the_array_ends_with_any_keys(
    tmp_path: Path, shard_file: Any, encoding: Any, separator: Any, key: str
) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    keys = {"name": encoding, "separator": separator}
    array = ps.create_array(store, "a", shard_file=shard_file, chunk_key_encoding=keys, **LAYOUT)
    values = np.arange(2000).reshape(40, 50)
    array[...] = values
    np.testing.assert_array_equal(readers.read_file(tmp_path / "a" / key), values[32:, 32:])


@pytest.mark.parametrize("shard_file", FORMATS)
def test_empty_inner_chunks_and_fortran_order_are_written(tmp_path: Path, shard_file: Any) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    config: Any = {"write_empty_chunks": True, "order": "F"}
    array = ps.create_array(store, "a", shard_file=shard_file, config=config, **LAYOUT)
    path = tmp_path / "a" / "c" / "0" / "0"
    array[...] = 0
    np.testing.assert_array_equal(readers.read_file(path), np.zeros((32, 32)))
    values = np.asfortranarray(np.arange(2000).reshape(40, 50))
    array[...] = values
    np.testing.assert_array_equal(readers.read_file(path), values[:32, :32])


@pytest.mark.parametrize("compressors", ["auto", None])
def test_strips_are_written_after_the_array_was_resized(tmp_path: Path, compressors: Any) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    layout = {"shape": (30, 37), "chunks": (10, 37), "shards": (20, 37), "dtype": "uint16", "compressors": compressors}
    array = ps.create_array(store, "a", shard_file="tiff", **layout)
    values = np.arange(30 * 37).reshape(30, 37)
    array[...] = values
    for shape in ((35, 37), (35, 40), (24, 36)):
        array.resize(shape)
        array[:, :] = values = np.random.default_rng(0).integers(0, 60000, shape)
        np.testing.assert_array_equal(array[...], values)
        part = values[20:, :37]
        # Strips are not cut off: the image may be larger than the array.
        image = readers.read_file(tmp_path / "a" / "c" / "1" / "0")[: part.shape[0], : part.shape[1]]
        np.testing.assert_array_equal(image, part)


@pytest.mark.parametrize("shard_file", FORMATS)
def test_conversion_of_a_file_changes_nothing(tmp_path: Path, shard_file: str) -> None:
    store: dict[str, Any] = {}
    compressors = zarr.codecs.numcodecs.Zlib(level=1)
    zarr.create_array(store, compressors=compressors, **LAYOUT)[:20, :20] = 3
    file = describe_shards(shard_file, json.loads(store["zarr.json"].to_bytes()))
    shard = memoryview(store["c/0/0"].to_bytes())
    once = file_of(file, shard, (0, 0), (40, 50), ArrayDescription("a", {}))
    assert bytes(file_of(file, memoryview(once), (0, 0), (40, 50), ArrayDescription("a", {}))) == bytes(once)
    assert bytes(file_of(file, shard, (0, 0), (40, 50), ArrayDescription("a", {}))) == bytes(once)


@pytest.mark.parametrize("shard_file", FORMATS)
@pytest.mark.parametrize(("codec", "nbytes"), [(None, 511), (None, 513), (None, 0), ("zlib", 0)])
def test_shards_with_inner_chunks_of_a_wrong_size_are_refused(shard_file: str, codec: str | None, nbytes: int) -> None:
    store: dict[str, Any] = {}
    compressors = None if codec is None else zarr.codecs.numcodecs.Zlib(level=1)
    zarr.create_array(store, compressors=compressors, **LAYOUT)[...] = 3
    file = describe_shards(shard_file, json.loads(store["zarr.json"].to_bytes()))
    data = store["c/0/0"].to_bytes()
    index = np.frombuffer(data[:-4], "<u8", 8, len(data) - 68).reshape(4, 2).tolist()
    index[1][1] = nbytes
    # With more bytes before the index, all inner chunks are inside the shard.
    shard = memoryview(data[:-68] + bytes(2000) + file.index.encode([(at, size) for at, size in index]))
    with pytest.raises(CodecError, match=f"an inner chunk of {nbytes} bytes"):
        file_of(file, shard, (0, 0), (40, 50), ArrayDescription("a", {}))


@given(st.binary(), st.binary(), st.binary(), st.binary(), st.data())
def test_seal_fits_only_what_it_was_made_for(
    index: bytes, head: bytes, data: bytes, fill: bytes, draw: st.DataObject
) -> None:
    file = head + data + build_tail(index, fill, head)
    ends = sealed_ends(file)
    assert ends is not None
    assert is_sealed(file, file, index)
    assert is_sealed(file[: ends.head], file[-ends.tail :], index)
    assert not is_sealed(file, file, index + b"x")
    # Any other byte in what the seal is about, and any other length of the file.
    covered = [*range(ends.head), *range(len(file) - ends.tail, len(file))]
    at = draw.draw(st.sampled_from(covered))
    changed = file[:at] + bytes([file[at] ^ draw.draw(st.integers(1, 255))]) + file[at + 1 :]
    assert not is_sealed(changed, changed, index)
    shorter = file[: draw.draw(st.integers(0, len(file) - 1))]
    assert not is_sealed(shorter, shorter, index)
    longer = file + draw.draw(st.binary(min_size=1))
    assert not is_sealed(longer, longer, index)
