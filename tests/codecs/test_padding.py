"""pad and offset: what is stored around a chunk, and that it comes off again."""

import base64
import itertools
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.dtype import UInt8

from parts_store.codecs import OffsetCodec, PadCodec, offset_codec, pad_codec
from parts_store.codecs.pad import PaddingCodec
from parts_store.errors import CodecError
from tests.codecs.arrays import Stored

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {"typesize": 2, "cname": "lz4", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0},
}
CRC32C = {"name": "crc32c"}


def pad(location: str, content: bytes) -> dict[str, object]:
    padding = base64.b64encode(content).decode()
    return {"name": "pad", "configuration": {"location": location, "nbytes": len(content), "padding": padding}}


def offset(content: bytes) -> dict[str, object]:
    prefix = base64.b64encode(content).decode()
    return {"name": "offset", "configuration": {"offset": len(content), "prefix": prefix}}


def spec_of(nbytes: int) -> ArraySpec:
    return ArraySpec(
        shape=(nbytes,),
        dtype=UInt8(),
        fill_value=np.uint8(0),
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )


VALUES = np.arange(24, dtype="<u2").reshape(4, 6) + 1000


@pytest.mark.parametrize(
    ("codec", "before", "after"),
    [
        (pad("start", b"head"), b"head", b""),
        (pad("end", b"tail!"), b"", b"tail!"),
        (offset(b"header"), b"header", b""),
        ({"name": "pad", "configuration": {"location": "start", "nbytes": 3}}, b"\0\0\0", b""),
        ({"name": "pad", "configuration": {"location": "end", "nbytes": 3}}, b"", b"\0\0\0"),
        ({"name": "offset", "configuration": {"offset": 3}}, b"\0\0\0", b""),
        ({"name": "pad", "configuration": {"location": "start", "nbytes": 0}}, b"", b""),
        ({"name": "pad", "configuration": {"location": "end", "nbytes": 0, "padding": ""}}, b"", b""),
        ({"name": "offset", "configuration": {"offset": 0}}, b"", b""),
    ],
)
def test_the_stored_chunk_is_the_encoded_chunk_between_its_padding(
    codec: dict[str, object], before: bytes, after: bytes, pipeline: str
) -> None:
    array = Stored((4, 6), "uint16", (4, 6), [LITTLE, codec])
    array.write(VALUES)
    assert array.chunk("c/0/0") == before + VALUES.tobytes() + after
    np.testing.assert_array_equal(array.read(), VALUES)


@pytest.mark.parametrize("compressor", [GZIP, ZSTD, BLOSC, CRC32C], ids=lambda codec: codec["name"])
@pytest.mark.parametrize(
    "around", [pad("start", b"abc"), pad("end", b"abc"), offset(b"abc")], ids=["start", "end", "o"]
)
def test_padding_after_a_compressor_holds_what_the_compressor_wrote(
    compressor: dict[str, object], around: dict[str, object], pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gzip stores the second in which it compresses.
    monkeypatch.setattr("gzip.time", SimpleNamespace(time=lambda: 0))
    padded = Stored((4, 6), "uint16", (4, 6), [LITTLE, compressor, around])
    plain = Stored((4, 6), "uint16", (4, 6), [LITTLE, compressor])
    padded.write(VALUES)
    plain.write(VALUES)
    at_end = around["name"] == "pad" and around["configuration"]["location"] == "end"  # type: ignore[index]
    expected = plain.chunk("c/0/0") + b"abc" if at_end else b"abc" + plain.chunk("c/0/0")
    assert padded.chunk("c/0/0") == expected
    np.testing.assert_array_equal(padded.read(), VALUES)


def test_padding_inside_a_shard_is_around_every_inner_chunk(pipeline: str) -> None:
    inner = {"chunk_shape": [2, 3], "codecs": [LITTLE, pad("start", b"in:")], "index_codecs": [LITTLE, CRC32C]}
    array = Stored((4, 6), "uint16", (4, 6), [{"name": "sharding_indexed", "configuration": inner}])
    array.write(VALUES)
    shard = array.chunk("c/0/0")
    # The index is the last 4 * 16 bytes and their checksum, and says where each inner chunk is.
    index = np.frombuffer(shard[-68:-4], "<u8").reshape(2, 2, 2)
    for row, column in itertools.product(range(2), range(2)):
        start, nbytes = (int(number) for number in index[row, column])
        block = VALUES[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        assert shard[start : start + nbytes] == b"in:" + block.tobytes()
    np.testing.assert_array_equal(array.read(), VALUES)
    np.testing.assert_array_equal(array.open()[1:3, 2:4], VALUES[1:3, 2:4])


@pytest.mark.parametrize("found", range(4))
@pytest.mark.parametrize(
    "codec", [PadCodec("start", nbytes=4), PadCodec("end", nbytes=4), OffsetCodec(4)], ids=["start", "end", "offset"]
)
def test_a_stored_chunk_shorter_than_its_padding_is_a_codec_error(
    codec: PaddingCodec, found: int, pipeline: str
) -> None:
    array = Stored((4,), "uint8", (4,), [{"name": "bytes"}, codec.to_dict()])
    array.put("c/0", b"x" * found)
    with pytest.raises(CodecError, match=rf"at least 4 bytes .*found {found} bytes"):
        array.read()


@pytest.mark.parametrize("codec", [PadCodec("start", nbytes=110), PadCodec("end", nbytes=110), OffsetCodec(110)])
def test_encoding_copies_once_and_decoding_not_at_all(codec: PaddingCodec) -> None:
    nbytes = 10_000_000
    chunk = cpu.Buffer.from_array_like(np.ones(nbytes, np.uint8))
    tracemalloc.start()
    try:
        encoded = codec._encode_sync(chunk, spec_of(nbytes))
        peak = tracemalloc.get_traced_memory()[1]
        assert nbytes + 110 <= peak < nbytes * 1.01
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        decoded = codec._decode_sync(encoded, spec_of(nbytes))
        assert tracemalloc.get_traced_memory()[1] - before < 10_000
    finally:
        tracemalloc.stop()
    assert np.shares_memory(decoded.as_numpy_array(), encoded.as_numpy_array())
    assert decoded == chunk


@pytest.mark.parametrize("nbytes", [2**62, 2**63 - 1])
def test_padding_larger_than_memory_is_shown_and_refused_by_name(nbytes: int) -> None:
    codec = PadCodec("start", nbytes=nbytes)
    assert repr(codec) == f"PadCodec('start', nbytes={nbytes})"
    array = Stored((4,), "uint8", (4,), [{"name": "bytes"}, codec.to_dict()])
    assert str(nbytes) in str(array.open().info)
    with pytest.raises(CodecError, match=f"enough memory for {nbytes} bytes"):
        array.write(np.ones(4, np.uint8))
    array.put("c/0", b"1234")
    with pytest.raises(CodecError, match=f"at least {nbytes} bytes"):
        array.read()


@given(nbytes=st.integers(0, 1000), length=st.integers(0, 1000), location=st.sampled_from(["start", "end"]))
def test_the_encoded_size_is_known_exactly_in_advance(nbytes: int, length: int, location: Any) -> None:
    chunk = cpu.Buffer.from_array_like(np.zeros(length, np.uint8))
    for codec in (PadCodec(location, nbytes=nbytes), OffsetCodec(nbytes)):
        assert codec.is_fixed_size
        encoded = codec._encode_sync(chunk, spec_of(length))
        assert codec.compute_encoded_size(length, spec_of(length)) == len(encoded) == length + nbytes


def test_codecs_are_values_that_show_and_compare_their_arguments() -> None:
    assert PadCodec("start", nbytes=2, padding=b"ab") == PadCodec("start", nbytes=2, padding="YWI=")
    assert PadCodec("start", nbytes=2) != PadCodec("end", nbytes=2)
    assert len({PadCodec("start", nbytes=2), OffsetCodec(2)}) == 2
    assert len({OffsetCodec(2, prefix=b"ab"), OffsetCodec(2, prefix="YWI="), OffsetCodec(2)}) == 2
    assert repr(PadCodec("start", nbytes=2, padding=b"ab")) == "PadCodec('start', nbytes=2, padding=b'ab')"
    assert repr(OffsetCodec(2)) == "OffsetCodec(offset=2)"
    assert repr(OffsetCodec(200, prefix=bytes(200))) == "OffsetCodec(offset=200, prefix=<200 bytes>)"
    assert pad_codec(nbytes=2, padding=b"ab") == PadCodec("start", nbytes=2, padding=b"ab")
    assert offset_codec(offset=2, prefix=b"ab") == OffsetCodec(2, prefix=b"ab")
    codec = PadCodec(location="end", nbytes=2, padding=bytearray(b"ab"))
    assert (codec.location, codec.nbytes, codec.padding, codec.padding_func) == ("end", 2, b"ab", None)
    header = OffsetCodec(offset=2, prefix=memoryview(b"ab"))
    assert (header.offset, header.prefix, header.prefix_func) == (2, b"ab", None)
    with pytest.raises(AttributeError):
        codec.location = "start"  # type: ignore[misc]


@pytest.mark.parametrize("order", ["C", "F"])
def test_codec_objects_can_be_given_to_create_array_as_compressors(order: Any, pipeline: str) -> None:
    array = zarr.create_array(
        {},
        shape=(4, 6),
        chunks=(2, 6),
        dtype="uint16",
        config={"order": order},
        compressors=[PadCodec("start", nbytes=5)],
    )
    array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)
