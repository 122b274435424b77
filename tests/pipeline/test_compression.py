"""Inner chunks of blosc, gzip, zlib and lz4 are those of zarr's codecs; damaged ones are never decoded differently."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, GzipCodec
from zarr.codecs.numcodecs import LZ4, Zlib
from zarr.dtype import parse_dtype

import parts_store as ps
from parts_store._compat.zarr import ArrayConfig, ArraySpec
from parts_store.codecs.damaged_chunks import with_checks
from parts_store.pipeline.blosc_chunks import join_chunks
from parts_store.pipeline.compression import AnyCodecs, InnerCodecs, NotDecodedError, OneByOne, choose_inner_codecs

# From this number on, inner chunks of blosc are decompressed in one call.
MANY = 16
COUNT = MANY + 3


@st.composite
def codecs(draw: st.DrawFn) -> Any:
    """Draw a codec of zarr."""
    return draw(
        st.one_of(
            st.builds(
                BloscCodec,
                cname=st.sampled_from(["lz4", "lz4hc", "blosclz", "zstd", "zlib"]),
                clevel=st.integers(0, 9),
                shuffle=st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
                typesize=st.sampled_from([1, 2, 3, 8, 16, 17]),
                blocksize=st.sampled_from([0, 256]),
            ),
            st.builds(GzipCodec, level=st.integers(0, 9)),
            st.builds(Zlib, level=st.integers(0, 9)),
            st.builds(Zlib),
            st.builds(LZ4, acceleration=st.integers(1, 9)),
        )
    )


@st.composite
def chunks(draw: st.DrawFn) -> NDArray[np.uint8]:
    """Draw inner chunks, one per row: constant, compressible or random."""
    nbytes = draw(st.sampled_from([1, 7, 100, 127, 128, 1000, 2048, 4096, 6000]))
    largest = draw(st.sampled_from([1, 8, 255]))
    seed = draw(st.integers(0, 99))
    return np.random.default_rng(seed).integers(0, largest, (COUNT, nbytes), np.uint8)


def choose(codec: Any, nbytes: int) -> tuple[InnerCodecs, AnyCodecs]:
    """Return what the pipeline encodes and decodes inner chunks with, and zarr's codecs in its place."""
    config = ArrayConfig(order="C", write_empty_chunks=True)
    spec = ArraySpec((nbytes,), parse_dtype(np.dtype("u1"), zarr_format=3), 0, config, default_buffer_prototype())
    checked = with_checks([codec])
    return choose_inner_codecs(cast("list[BytesBytesCodec]", checked), spec, nbytes), AnyCodecs(checked, spec, nbytes)


def stored(encoded: tuple[Sequence[Any], NDArray[np.uint64]]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the inner chunks one after another, and their offsets."""
    pieces, lengths = encoded
    return np.frombuffer(b"".join(pieces), np.uint8), (np.cumsum(lengths) - lengths).astype(np.uint64)


def found(decode: Callable[[], NDArray[np.uint8]]) -> bytes | None:
    """Return the values, None if they cannot be decoded."""
    try:
        return decode().tobytes()
    except (NotDecodedError, RuntimeError, ValueError, EOFError, OSError, zlib.error):
        return None


@pytest.mark.parametrize("count", [1, COUNT])
@given(codec=codecs(), values=chunks())
def test_inner_chunks_are_those_of_zarrs_codecs(codec: Any, values: NDArray[np.uint8], count: int) -> None:
    values = values[:count]
    ours, theirs = choose(codec, values.shape[1])
    assert isinstance(ours, OneByOne)
    encoded = ours.encode(values), theirs.encode(values)
    for pieces, lengths in encoded:
        data, offsets = stored((pieces, lengths))
        for chain in (ours, theirs):
            np.testing.assert_array_equal(chain.decode(data, offsets, lengths), values)
    if not isinstance(codec, GzipCodec):
        # zarr's codec stores the time in the header of gzip.
        assert b"".join(encoded[0][0]) == b"".join(encoded[1][0])


@given(codec=codecs(), values=chunks(), data=st.data())
def test_damage_is_decoded_as_by_zarrs_codec_or_not_at_all(
    codec: Any, values: NDArray[np.uint8], data: st.DataObject
) -> None:
    ours, theirs = choose(codec, values.shape[1])
    pieces, lengths = theirs.encode(values)
    shard, offsets = stored((pieces, lengths))
    shard = shard.copy()
    number = data.draw(st.integers(0, COUNT - 1))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, 40) | st.integers(0, int(lengths[number]) - 1))
        shard[int(offsets[number]) + at % int(lengths[number])] ^= data.draw(st.integers(1, 255))
    else:
        # One inner chunk has more or fewer bytes than it was stored with.
        lengths[number] = data.draw(st.integers(1, int(lengths[number]) + 30))
        shard = np.concatenate([shard, np.zeros(30, np.uint8)])
    decoded = found(lambda: ours.decode(shard, offsets, lengths))
    assert decoded is None or decoded == found(lambda: theirs.decode(shard, offsets, lengths))


@pytest.mark.parametrize("typesize", [1, 4])
def test_chunks_of_one_block_are_joined(typesize: int) -> None:
    values = np.random.default_rng(0).integers(0, 8, (COUNT, 4096), np.uint8)
    ours, _ = choose(BloscCodec(cname="lz4", typesize=typesize, shuffle="bitshuffle"), 4096)
    pieces, lengths = ours.encode(values)
    shard, offsets = stored((pieces, lengths))
    joined = join_chunks(shard, offsets, lengths, 4096)
    assert joined is not None
    assert numcodecs.blosc.decompress(joined) == values.tobytes()
    # The first stream of the second chunk is said to be longer by one byte, which would be the next chunk's.
    shard = shard.copy()
    shard[int(offsets[1]) + 20] += 1
    assert join_chunks(shard, offsets, lengths, 4096) is None


@pytest.mark.parametrize("codec", [BloscCodec(cname="lz4"), GzipCodec(), Zlib(), LZ4()])
def test_damaged_inner_chunk_is_refused(tmp_path: Path, codec: Any) -> None:
    values = np.random.default_rng(0).integers(0, 8, (COUNT, 512), np.uint8)
    store = ps.PartsStore.from_url(tmp_path)
    options: dict[str, Any] = {"chunks": (1, 512), "shards": values.shape, "compressors": codec}
    array = zarr.create_array(store, name="a", shape=values.shape, dtype="u1", **options)
    array[...] = values
    path = tmp_path / "a/c/0/0"
    shard = bytearray(path.read_bytes())
    start, nbytes = np.frombuffer(shard[-16 * COUNT - 4 :][:16], "<u8").tolist()
    # The first inner chunk is as long as before, and its last bytes are lost.
    shard[start + nbytes // 2 : start + nbytes] = bytes(nbytes - nbytes // 2)
    path.write_bytes(shard)
    opened = ps.open_array(ps.PartsStore.from_url(tmp_path), "a")
    for selection in (np.s_[0, 0], np.s_[...]):
        with pytest.raises((ValueError, RuntimeError, EOFError, OSError, zlib.error)):
            opened[selection]
    np.testing.assert_array_equal(opened[1:], values[1:])
