"""A zstd frame ends where zstandard says that it ends; bytes behind it are never ignored."""

from pathlib import Path

import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec

import parts_store as ps
from parts_store.pipeline.compression import NotDecodedError, Zstd, are_single_frames


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    size = draw(st.sampled_from([0, 1, 100, 300, 70_000, 200_000, 300_000]))
    noise = draw(st.booleans())
    content = np.random.default_rng(size).bytes(size) if noise else bytes(size)
    compressor = zstandard.ZstdCompressor(
        level=draw(st.sampled_from([1, 3, 9])),
        write_checksum=draw(st.booleans()),
        write_content_size=draw(st.booleans()),
    )
    return compressor.compress(content)


@given(st.lists(frames(), min_size=1, max_size=4), st.binary(max_size=20), st.data())
def test_range_is_a_single_frame_only_with_exactly_its_bytes(
    found: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    stored = np.frombuffer(b"".join(found) + tail, np.uint8)
    lengths = np.array([len(each) for each in found], np.uint64)
    offsets = np.cumsum(lengths) - lengths
    assert are_single_frames(stored, offsets, lengths)
    if tail:
        longer = lengths.copy()
        longer[-1] += len(tail)
        assert not are_single_frames(stored, offsets, longer)
    shorter = lengths.copy()
    shorter[data.draw(st.integers(0, len(found) - 1))] -= 1
    assert not are_single_frames(stored, offsets, shorter)


# The second number of inner chunks is decompressed in one call.
@pytest.mark.parametrize("count", [1, 20])
@given(frame=frames())
def test_frames_are_decompressed_to_inner_chunks_of_the_expected_size(frame: bytes, count: int) -> None:
    content = zstandard.ZstdDecompressor().decompressobj().decompress(frame)
    assume(len(content) > 1)
    stored = np.frombuffer(frame * count, np.uint8)
    lengths = np.full(count, len(frame), np.uint64)
    offsets = (np.cumsum(lengths) - lengths).astype(np.uint64)
    found = Zstd(len(content), 0, has_checksum=False).decode(stored, offsets, lengths)
    assert [chunk.tobytes() for chunk in found] == [content] * count
    for nbytes in (len(content) - 1, len(content) + 1):
        with pytest.raises(NotDecodedError):
            Zstd(nbytes, 0, has_checksum=False).decode(stored, offsets, lengths)


@pytest.mark.parametrize("count", [4, 20])
@pytest.mark.parametrize("tail", [b"junk", zstandard.ZstdCompressor().compress(bytes(32))], ids=["junk", "frame"])
def test_bytes_behind_a_frame_are_never_ignored(tmp_path: Path, tail: bytes, count: int) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(
        store,
        "a",
        parts=["", ps.Part(".index", size=ps.SHARD_INDEX)],
        shape=(4 * count, 8),
        chunks=(4, 8),
        shards=(4 * count, 8),
        dtype="uint16",
        compressors=[ZstdCodec()],
    )
    values = np.random.default_rng(1).integers(1, 60000, (4 * count, 8)).astype("uint16")
    array[:] = values
    data, index = tmp_path / "a/c/0/0", (tmp_path / "a/c/0/0.index").read_bytes()
    start, nbytes = np.frombuffer(index[:16], "<u8").tolist()
    frame = zstandard.ZstdCompressor().compress(bytes(64)) + tail
    assert len(frame) <= nbytes
    stored = bytearray(data.read_bytes())
    stored[start : start + nbytes] = frame.ljust(nbytes, b"\0")
    data.write_bytes(stored)
    for opened in (ps.open_array(ps.PartsStore.from_url(tmp_path), "a"), zarr.open_array(store, path="a")):
        for selection in (np.s_[0, 0], np.s_[:]):
            with pytest.raises((RuntimeError, ValueError)):
                opened[selection]
        np.testing.assert_array_equal(opened[4:], values[4:])
