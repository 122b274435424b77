"""The codecs for N5: `n5_default` with every compressor, what it refuses, and the three forms of LZ4."""

import bz2
import copy
import gzip
import json
import lzma
import pickle
import struct
import tracemalloc
import zlib
from typing import Any

import imagecodecs
import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from numcodecs import LZ4, Blosc
from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec, ZstdCodec

from parts_store.codecs import N5DefaultCodec, N5Lz4Codec, schema
from parts_store.codecs.damaged_chunks import SizeError, decompress
from parts_store.codecs.n5_lz4 import decode
from parts_store.errors import CodecConfigError, CodecError
from tests.codecs.arrays import Stored
from tests.virtual.parsers.n5.containers import java_lz4

TRANSPOSE: dict[str, Any] = {"name": "transpose", "configuration": {"order": [1, 0]}}
BIG: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "big"}}
GZIP: dict[str, Any] = {"name": "gzip", "configuration": {"level": 5}}


def n5_default(*codecs: object) -> dict[str, Any]:
    return {"name": "n5_default", "configuration": {"codecs": list(codecs)}}


@pytest.mark.parametrize("compressor", [None, GzipCodec(), ZstdCodec(), BloscCodec(typesize=2)])
def test_arrays_round_trip_in_every_pipeline(pipeline: str, compressor: Any) -> None:
    codec = N5DefaultCodec(ndim=3, compressor=compressor)
    values = np.arange(7 * 5 * 3, dtype="int16").reshape(7, 5, 3)
    store: dict[str, Any] = {}
    array = zarr.create_array(
        store, shape=values.shape, chunks=(4, 2, 3), dtype="int16", serializer=codec, compressors=None
    )
    array[:] = values
    again: Any = zarr.open_array(store, mode="r")
    np.testing.assert_array_equal(again[:], values)
    np.testing.assert_array_equal(again[5, ::2], values[5, ::2])
    restored = pickle.loads(pickle.dumps(copy.deepcopy(again.metadata.codecs[0])))
    assert restored == again.metadata.codecs[0]
    header = store["c/0/0/0"].to_bytes()[:16]
    assert struct.unpack(">HH3I", header) == (0, 3, 4, 2, 3)


def test_blocks_can_be_in_shards() -> None:
    values = np.arange(64, dtype="float32").reshape(8, 8)
    codec = N5DefaultCodec(ndim=2, compressor=GzipCodec())
    array = zarr.create_array(
        {}, shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="float32", serializer=codec, compressors=None
    )
    array[:] = values
    np.testing.assert_array_equal(array[:], values)


def test_a_block_that_is_cut_is_completed_with_the_fill_value() -> None:
    stored = Stored((4, 4), "uint16", (4, 4), [n5_default(TRANSPOSE, BIG)])
    block = np.array([[1, 2, 3], [4, 5, 6]], ">u2")
    stored.objects["c/0/0"] = stored.objects["zarr.json"].from_bytes(struct.pack(">HHII", 0, 2, 3, 2) + block.tobytes())
    found: Any = stored.open()[:]
    assert found.tolist() == [[1, 4, 0, 0], [2, 5, 0, 0], [3, 6, 0, 0], [0, 0, 0, 0]]


def test_the_document_is_that_of_the_specification() -> None:
    codec = N5DefaultCodec.from_dict(n5_default(TRANSPOSE, BIG, GZIP))
    assert codec == N5DefaultCodec(ndim=2, compressor=GzipCodec(level=5))
    assert codec.to_dict() == n5_default(TRANSPOSE, BIG, GZIP)
    # The specification lets documents of single bytes leave out the byte order.
    for spelling in ("bytes", {"name": "bytes"}, {"name": "bytes", "configuration": {}}):
        assert N5DefaultCodec.from_dict(n5_default(TRANSPOSE, spelling)).to_dict() == n5_default(TRANSPOSE, BIG)


def bomb(compressor: Any) -> bytes:
    """64 MiB of zeros, compressed."""
    return b"".join(compressor.compress(bytes(1 << 20)) for _ in range(64)) + bytes(compressor.flush())


BOMBS: dict[str, Any] = {
    "gzip": lambda: bomb(zlib.compressobj(1, wbits=31)),
    "numcodecs.zlib": lambda: bomb(zlib.compressobj(1)),
    "numcodecs.bz2": lambda: bomb(bz2.BZ2Compressor(1)),
    "numcodecs.lzma": lambda: bomb(lzma.LZMACompressor(preset=0)),
    "zstd": lambda: bomb(zstandard.ZstdCompressor(level=1).compressobj()),
    "blosc": lambda: Blosc("zstd", 1).encode(bytes(1 << 26)),
    "parts_store.n5_lz4": lambda: LZ4().encode(bytes(1 << 26)),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", BOMBS)
def test_a_block_that_decompresses_to_much_more_is_refused_in_bounded_memory(name: str) -> None:
    compressor: Any = {"name": name, "configuration": {}}
    if name == "blosc":
        compressor["configuration"] = {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}
    stored = Stored((8, 8), "uint16", (8, 8), [n5_default(TRANSPOSE, BIG, compressor)])
    body = bytes(BOMBS[name]())
    stored.objects["c/0/0"] = stored.objects["zarr.json"].from_bytes(struct.pack(">HHII", 0, 2, 8, 8) + body)
    array: Any = stored.open()
    tracemalloc.start()
    with pytest.raises(CodecError, match=r"expected a block that \w+ can decode, found .*128 bytes"):
        array[:]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (1 << 22) + 4 * len(body)


SEVERAL: dict[str, Any] = {
    "gzip": gzip.compress,
    "numcodecs.bz2": bz2.compress,
    "numcodecs.lzma": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_streams_one_after_another_are_decompressed(name: str) -> None:
    data = np.arange(900, dtype=">u2").tobytes()
    encoded = SEVERAL[name](data[:700]) + SEVERAL[name](data[700:])
    assert decompress({"name": name}, encoded, len(data)) == data
    for nbytes in (len(data) - 1, len(data) + 1):
        with pytest.raises(SizeError, match=f"expected {nbytes} bytes"):
            decompress({"name": name}, encoded, nbytes)


def test_codecs_and_formats_that_are_not_known_are_left_to_zarr() -> None:
    raw = {"name": "numcodecs.lzma", "configuration": {"format": lzma.FORMAT_RAW, "filters": [{"id": 33}]}}
    assert decompress(raw, b"", 1) is None
    assert decompress({"name": "numcodecs.lz4"}, b"", 1) is None


WRONG: list[Any] = [
    n5_default(),
    n5_default(TRANSPOSE),
    n5_default(BIG, TRANSPOSE),
    n5_default(TRANSPOSE, BIG, GZIP, GZIP),
    n5_default({"name": "transpose", "configuration": {"order": [0, 1]}}, BIG),
    n5_default({"name": "transpose", "configuration": {"order": []}}, BIG),
    n5_default({"name": "transpose"}, BIG),
    n5_default(TRANSPOSE, {"name": "bytes", "configuration": {"endian": "little"}}),
    n5_default(TRANSPOSE, BIG, TRANSPOSE),
    n5_default(TRANSPOSE, BIG, 7),
    n5_default(TRANSPOSE, BIG, {"configuration": {}}),
    {"name": "n5_default", "configuration": {"codecs": {}}},
    {"name": "n5_default", "configuration": {}},
    {"name": "n5_default"},
    {"name": "n5_default", "configuration": {"codecs": [TRANSPOSE, BIG], "other": 1}},
]


@pytest.mark.parametrize("data", WRONG)
def test_wrong_configurations_are_refused(data: Any) -> None:
    with pytest.raises(CodecConfigError, match="codec 'n5_default'"):
        N5DefaultCodec.from_dict(data)


scalars = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["big", "little", "bytes", "gzip", ""])
configurations = st.dictionaries(st.sampled_from(["order", "endian", "level"]), scalars | st.lists(scalars, max_size=3))
codecs = st.fixed_dictionaries(
    {"name": st.sampled_from(["transpose", "bytes", "gzip", "crc32c"])}, optional={"configuration": configurations}
)


@given(st.lists(codecs | st.sampled_from([TRANSPOSE, BIG, GZIP]) | scalars, max_size=4))
def test_what_is_accepted_satisfies_the_schema_and_round_trips(chain: list[Any]) -> None:
    document = n5_default(*chain)
    try:
        codec = N5DefaultCodec.from_dict(document)
    # Codecs of zarr raise their own errors.
    except (ValueError, TypeError, KeyError):
        return
    validator = Draft202012Validator(schema("n5_default"))
    validator.validate(document)
    written = json.loads(json.dumps(codec.to_dict()))
    validator.validate(written)
    assert N5DefaultCodec.from_dict(written) == codec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (4, 4, 4), "dtype": "uint8"}, "expected 2 dimensions, as `transpose` says, found 3"),
        ({"shape": (4, 4), "dtype": "bool"}, "expected an integer, or a float"),
        ({"shape": (4, 4), "dtype": "float16"}, "expected an integer, or a float"),
        ({"shape": (4, 4), "dtype": "complex64"}, "expected an integer, or a float"),
    ],
)
def test_arrays_that_n5_does_not_have_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecConfigError, match=message):
        zarr.create_array({}, serializer=N5DefaultCodec(ndim=2), compressors=None, **arguments)


def test_arguments_are_checked() -> None:
    with pytest.raises(CodecConfigError, match="ndim"):
        N5DefaultCodec(ndim=0)
    with pytest.raises(CodecConfigError, match="compressor"):
        N5DefaultCodec(ndim=1, compressor=TransposeCodec(order=(0,)))  # type: ignore[arg-type]


@given(st.binary(min_size=1, max_size=300_000) | st.binary(min_size=1, max_size=9).map(lambda each: each * 9999))
def test_all_forms_of_lz4_are_decoded(data: bytes) -> None:
    assert decode(java_lz4(data), len(data)) == data
    assert decode(java_lz4(data, 1000), len(data)) == data
    assert decode(bytes(imagecodecs.lz4_encode(data, header=False)), len(data)) == data
    assert decode(LZ4().encode(data), len(data)) == data


@given(data=st.binary(min_size=1, max_size=2000), cut=st.integers(1, 40), more=st.sampled_from([-1, 1, 2**40]))
def test_lz4_of_another_size_is_refused(data: bytes, cut: int, more: int) -> None:
    for encoded in (java_lz4(data), LZ4().encode(data)):
        with pytest.raises(CodecError, match=r"parts_store\.n5_lz4"):
            decode(encoded, len(data) + more)
    with pytest.raises(CodecError, match=r"parts_store\.n5_lz4"):
        decode(java_lz4(data)[: -21 - min(cut, len(data))], len(data))


def test_java_blocks_with_wrong_headers_are_refused() -> None:
    block = java_lz4(b"abcd" * 20)
    for at, value in ((8, 0x36), (9, 255), (13, 255), (13, 1)):
        damaged = block[:at] + bytes([value]) + block[at + 1 :]
        with pytest.raises(CodecError, match=r"parts_store\.n5_lz4"):
            decode(damaged, 80)


def test_changed_bytes_of_java_blocks_are_noticed_with_xxhash() -> None:
    pytest.importorskip("xxhash")
    data = np.random.default_rng(1).integers(0, 256, 500, np.uint8).tobytes()
    encoded = java_lz4(data, 200)
    assert decode(encoded, 500) == data
    for at in (30, 200, 300, len(encoded) - 30):
        damaged = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        with pytest.raises(CodecError, match=r"parts_store\.n5_lz4"):
            decode(damaged, 500)


def test_java_blocks_are_those_of_the_java_library() -> None:
    # What LZ4BlockOutputStream of lz4-java 1.8 writes for "parts_store" nine times, in blocks of 64 bytes.
    encoded = bytes.fromhex(
        "4c5a34426c6f636b2015000000400000001afe0e03bf70617274735f73746f72650b001d50735f73746f4c5a34426c6f63"
        "6b201500000023000000f5d1d003bf726570617274735f73746f0b00005073746f72654c5a34426c6f636b10000000000000000000000000"
    )
    assert decode(encoded, 99) == b"parts_store" * 9


def test_lz4_with_and_without_the_size_in_front_are_told_apart() -> None:
    # The four bytes of a size can be the beginning of another block of this size.
    rng = np.random.default_rng(1)
    for nbytes in range(1, 20_000, 3):
        data = np.repeat(rng.integers(0, 5, nbytes // 7 + 1, np.uint8), 7)[:nbytes].tobytes()
        encoded = bytes(LZ4().encode(data))
        assert decode(encoded, nbytes) == data
        assert decode(encoded[4:], nbytes) == data


@pytest.mark.parametrize("value", [0, 7, 255])
def test_lz4_that_begins_with_its_size_by_chance_is_decoded(value: int) -> None:
    data = bytes([value]) * int.from_bytes([0x1F, value, 1, 0], "little")
    encoded = bytes(LZ4().encode(data))[4:]
    assert encoded.startswith(len(data).to_bytes(4, "little"))
    assert decode(encoded, len(data)) == data


def test_lz4_is_not_written() -> None:
    codec = N5DefaultCodec(ndim=1, compressor=N5Lz4Codec())
    array = zarr.create_array({}, shape=(4,), dtype="uint8", serializer=codec, compressors=None)
    with pytest.raises(CodecError, match="reads only"):
        array[:] = 1
