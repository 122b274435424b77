"""packbits: bit for bit what zarr-extensions says, checked against whole numbers and against zarrs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.dtype import parse_dtype

from parts_store.codecs import PackBitsCodec, packbits
from parts_store.errors import CodecConfigError, CodecError
from tests.codecs.arrays import Stored

DTYPES = [
    "bool",
    *(f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in ("int", "uint")),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
PLACES = ["none", "first_byte", "last_byte"]


def component_bits(dtype: str) -> int:
    parsed = np.dtype(dtype)
    return 1 if parsed.kind == "b" else parsed.itemsize * (4 if parsed.kind == "c" else 8)


def components_as_integers(values: NDArray[Any]) -> list[int]:
    """Every component's bit pattern as a whole number, in C order."""
    flat = values.ravel(order="C")
    if flat.dtype.kind == "c":
        flat = flat.view(f"f{flat.dtype.itemsize // 2}")
    return [int(each) for each in flat.view(f"u{flat.dtype.itemsize}")]


def expected_packing(values: NDArray[Any], first: int, last: int, place: str) -> bytes:
    """Pack values as the specification says, by arithmetic on one integer with all bits."""
    kept = last - first + 1
    number = count = 0
    for pattern in components_as_integers(values):
        number |= ((pattern >> first) & ((1 << kept) - 1)) << count
        count += kept
    padding = -count % 8
    packed = number.to_bytes((count + padding) // 8, "little")
    return {"none": packed, "first_byte": bytes([padding]) + packed, "last_byte": packed + bytes([padding])}[place]


def expected_values(values: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """Return the values after packing: the stored bits in their place, and above them zeros or the sign."""
    width = values.dtype.itemsize * 8 // (2 if values.dtype.kind == "c" else 1)
    patterns = []
    for pattern in components_as_integers(values):
        kept = pattern & ((1 << (last + 1)) - 1) & ~((1 << first) - 1)
        if values.dtype.kind == "i" and kept >> last:
            kept |= (1 << width) - (1 << (last + 1))
        patterns.append(kept)
    return np.array(patterns, f"u{width // 8}").view(values.dtype).reshape(values.shape)


def assert_same_bits(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert components_as_integers(found) == components_as_integers(expected)


def spec_of(values: NDArray[Any]) -> ArraySpec:
    return ArraySpec(
        shape=values.shape,
        dtype=parse_dtype(values.dtype, zarr_format=3),
        fill_value=values.dtype.type(0),
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )


def roundtrip(codec: PackBitsCodec, values: NDArray[Any]) -> tuple[bytes, NDArray[Any]]:
    spec = spec_of(values)
    encoded = codec._encode_sync(spec.prototype.nd_buffer.from_ndarray_like(values), spec)
    assert codec.compute_encoded_size(values.nbytes, spec) == len(encoded)
    return encoded.to_bytes(), codec._decode_sync(encoded, spec).as_numpy_array()


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[Any], int | None, int | None, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=7))
    # Any bit pattern at all, the odd NaN included.
    raw = draw(hnp.arrays(np.uint8, (int(np.prod(shape)) * np.dtype(dtype).itemsize,)))
    values = (raw & 1).astype(bool) if dtype == "bool" else raw.view(dtype)
    last = draw(st.none() | st.integers(0, component_bits(dtype) - 1))
    first = draw(st.none() | st.integers(0, component_bits(dtype) - 1 if last is None else last))
    return values.reshape(shape), first, last, draw(st.sampled_from(PLACES))


@given(case=cases())
def test_every_dtype_bit_range_and_padding_encoding_packs_as_specified(case: Any) -> None:
    values, first, last, place = case
    codec = PackBitsCodec(padding_encoding=place, first_bit=first, last_bit=last)
    low, high = first or 0, component_bits(values.dtype.name) - 1 if last is None else last
    encoded, decoded = roundtrip(codec, values)
    assert encoded == expected_packing(values, low, high, place)
    assert_same_bits(decoded, expected_values(values, low, high))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_range_of_every_dtype_packs_as_specified(dtype: str) -> None:
    generator = np.random.default_rng(7)
    raw = generator.integers(0, 256, 5 * np.dtype(dtype).itemsize, np.uint8)
    values = (raw & 1).astype(bool) if dtype == "bool" else raw.view(dtype)
    width = component_bits(dtype)
    for first in range(width):
        for last in range(first, width):
            encoded, decoded = roundtrip(PackBitsCodec(first_bit=first, last_bit=last), values)
            assert encoded == expected_packing(values, first, last, "none")
            assert_same_bits(decoded, expected_values(values, first, last))


@pytest.mark.parametrize("extra", [-8, -1, 0, 1, 7, 8])
@pytest.mark.parametrize("last", [12, 9, 3], ids=["eleven bits", "a whole byte", "two bits"])
def test_blocks_join_without_a_seam(extra: int, last: int) -> None:
    layout = PackBitsCodec(first_bit=2, last_bit=last).layout(parse_dtype("int16", zarr_format=3))
    values = np.random.default_rng(1).integers(-(2**15), 2**15, layout.group * packbits.BLOCK + extra, np.int16)
    encoded, decoded = roundtrip(PackBitsCodec(first_bit=2, last_bit=last), values)
    # Here the bits are spread out, one a byte, and gathered again.
    bits = np.unpackbits(values.view(np.uint8).reshape(-1, 2), axis=1, bitorder="little")
    assert encoded == np.packbits(bits[:, 2 : last + 1], bitorder="little").tobytes()
    above = 15 - last
    np.testing.assert_array_equal(decoded, (values << above) >> (above + 2) << 2)


# Where all bits are kept, zarrs 0.2.3 leaves out the byte that `padding_encoding` asks for, against the specification:
# those cases are not here.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dtype", "first", "last", "place"),
    [("uint16", None, None, "none"), ("float64", None, None, "none")]
    + [
        (*case, place)
        for place in PLACES
        for case in [
            ("bool", None, None),
            ("uint8", 0, 2),
            ("int8", 0, 4),
            ("int16", 3, 9),
            ("uint32", 4, None),
            ("int64", None, 40),
            ("uint64", 63, 63),
            ("float32", 12, 31),
            ("complex64", 20, 31),
            ("complex128", 30, 63),
        ]
    ],
)
def test_zarrs_reads_what_we_write_and_writes_what_we_write(
    tmp_path: Path, dtype: str, first: int | None, last: int | None, place: Any
) -> None:
    values = np.random.default_rng(3).integers(0, 127, (5, 7)).astype(dtype)
    codec = PackBitsCodec(padding_encoding=place, first_bit=first, last_bit=last)
    written = {}
    for name in ("zarr.core.codec_pipeline.BatchedCodecPipeline", "zarrs.ZarrsCodecPipeline"):
        with zarr.config.set({"codec_pipeline.path": name}):
            arguments: Any = {"shape": (5, 7), "chunks": (5, 7), "dtype": dtype, "config": {"write_empty_chunks": True}}
            array = zarr.create_array(tmp_path / name, serializer=codec, compressors=None, filters=None, **arguments)
            array[...] = values
        written[name] = (tmp_path / name / "c/0/0").read_bytes()
    ours, theirs = written
    assert written[ours] == written[theirs]
    with zarr.config.set({"codec_pipeline.path": theirs}):
        by_zarrs = np.asarray(zarr.open_array(tmp_path / ours)[...])
    assert_same_bits(by_zarrs, np.asarray(zarr.open_array(tmp_path / theirs)[...]))
    assert_same_bits(by_zarrs, expected_values(values, first or 0, component_bits(dtype) - 1 if last is None else last))


@pytest.mark.parametrize("order", ["C", "F"])
def test_elements_are_packed_in_c_order_whatever_the_memory_order(order: Any) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    encoded, decoded = roundtrip(PackBitsCodec(last_bit=3), np.asarray(values, order=order))
    assert encoded == bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA])
    np.testing.assert_array_equal(decoded, values)


def test_arrays_of_other_byte_orders_pack_alike() -> None:
    values = np.array([0x0102, 0x0304], ">u2")
    encoded, decoded = roundtrip(PackBitsCodec(), values)
    assert encoded == bytes([0x02, 0x01, 0x04, 0x03])
    np.testing.assert_array_equal(decoded, values)


def test_packbits_may_encode_a_shards_index(pipeline: str) -> None:
    inner = {"chunk_shape": [2, 2], "codecs": [{"name": "packbits"}], "index_codecs": [{"name": "packbits"}]}
    array = Stored((4, 4), "uint8", (4, 4), [{"name": "sharding_indexed", "configuration": inner}])
    values = np.arange(16, dtype=np.uint8).reshape(4, 4)
    array.write(values)
    assert len(array.chunk("c/0/0")) == 16 + 4 * 16
    np.testing.assert_array_equal(array.open()[1:3, 1:3], values[1:3, 1:3])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_a_stored_chunk_of_another_length_is_a_codec_error(place: Any, change: int, pipeline: str) -> None:
    codec = PackBitsCodec(padding_encoding=place, last_bit=2)
    array = Stored((10,), "uint8", (10,), [codec.to_dict()])
    array.write(np.arange(10, dtype=np.uint8))
    chunk = array.chunk("c/0")
    array.put("c/0", chunk[:change] if change < 0 else chunk + bytes(change))
    with pytest.raises(CodecError, match=rf"expected {len(chunk)} bytes for 10 elements, found {len(chunk) + change}"):
        array.read()


@pytest.mark.parametrize(("place", "at"), [("first_byte", 0), ("last_byte", -1)])
def test_a_padding_byte_that_lies_is_a_codec_error(place: Any, at: int, pipeline: str) -> None:
    array = Stored((10,), "uint8", (10,), [PackBitsCodec(padding_encoding=place, last_bit=2).to_dict()])
    array.write(np.arange(10, dtype=np.uint8))
    chunk = bytearray(array.chunk("c/0"))
    assert chunk[at] == 2
    chunk[at] = 3
    array.put("c/0", bytes(chunk))
    with pytest.raises(CodecError, match="expected 2 padding bits for 10 elements, found 3"):
        array.read()


@pytest.mark.parametrize(
    ("dtype", "codec", "message"),
    [
        ("uint8", PackBitsCodec(last_bit=8), "member 'last_bit': expected at most 7 for uint8, found 8"),
        ("bool", PackBitsCodec(last_bit=1), "member 'last_bit': expected at most 0 for bool, found 1"),
        ("bool", PackBitsCodec(first_bit=1), "member 'first_bit': expected at most 0 for bool, found 1"),
        ("uint16", PackBitsCodec(first_bit=16), "member 'first_bit': expected at most 15 for uint16, found 16"),
        ("complex64", PackBitsCodec(last_bit=32), "expected at most 31 for complex64, found 32"),
        ("M8[s]", PackBitsCodec(), "member 'data_type': expected a boolean or a number, found datetime64"),
        ("S4", PackBitsCodec(), "member 'data_type': expected a boolean or a number"),
        ("string", PackBitsCodec(), "member 'data_type': expected a boolean or a number"),
    ],
)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
def test_bits_beyond_the_data_type_are_refused_at_creation(
    dtype: str, codec: PackBitsCodec, message: str, *, sharded: bool
) -> None:
    shards: Any = {"shards": (8,)} if sharded else {}
    with pytest.raises(CodecConfigError, match=message):
        zarr.create_array({}, shape=(8,), chunks=(4,), dtype=dtype, serializer=codec, compressors=None, **shards)


def test_bits_beyond_the_data_type_are_refused_for_shards() -> None:
    inner = {
        "chunk_shape": [2],
        "codecs": [PackBitsCodec(last_bit=8).to_dict()],
        "index_codecs": [{"name": "packbits"}],
    }
    array = Stored((4,), "uint8", (4,), [{"name": "sharding_indexed", "configuration": inner}])
    with pytest.raises(CodecConfigError, match="expected at most 7 for uint8, found 8"):
        array.open()
