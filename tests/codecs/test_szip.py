"""The codec parts_store.szip: whole chunks are decoded as by HDF5, and chunks that end too early are refused."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np
import pytest
import zarr
from jsonschema import Draft202012Validator
from numpy.typing import NDArray
from zarr.storage import MemoryStore

import parts_store as ps
from parts_store.codecs import SzipCodec, schema
from parts_store.codecs.szip import decode
from parts_store.errors import CodecConfigError, CodecError
from tests.virtual.adopting import adopted, array

DTYPES = ["u1", "<i2", ">u2", ">i4", "<f4", "<f8"]
OPTIONS = [("nn", 8), ("ec", 16), ("nn", 32), ("ec", 4), ("nn", 2)]
# Scanlines that are whole blocks, are padded to whole blocks, and are longer than the chunk's last.
SHAPES = [(4, 32), (8, 7), (41,), (5, 20)]
MOST = 1 << 16


def contents(shape: tuple[int, ...], dtype: str) -> Iterator[NDArray[Any]]:
    yield (np.arange(np.prod(shape)) // 7).astype(dtype).reshape(shape)
    yield np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    yield np.zeros(shape, dtype)


def dataset(file: h5py.File, values: NDArray[Any], options: tuple[str, int]) -> h5py.Dataset:
    return file.create_dataset("a", data=values, chunks=values.shape, compression="szip", compression_opts=options)


def codec_of(data: h5py.Dataset) -> SzipCodec:
    return SzipCodec(*map(int, data.id.get_create_plist().get_filter(0)[2]))


def decoded(codec: SzipCodec, chunk: bytes) -> bytes | None:
    try:
        return decode(codec, np.frombuffer(chunk, np.uint8), MOST).tobytes()
    except CodecError:
        return None


def read(data: h5py.Dataset, chunk: bytes) -> bytes | None:
    """What h5py reads if this is the first chunk."""
    data.id.write_direct_chunk((0,) * data.ndim, chunk, 0)
    try:
        return bytes(data[...].tobytes())
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("dtype", "options"), list(itertools.product(DTYPES, OPTIONS)), ids=str)
def test_every_prefix_is_refused_or_right_and_zeros_are_read_as_by_h5py(dtype: str, options: tuple[str, int]) -> None:
    refused = checked = 0
    for shape in SHAPES:
        for values in contents(shape, dtype):
            expected = values.tobytes()
            with h5py.File(io.BytesIO(), "w", rdcc_nbytes=0) as file:
                data = dataset(file, values, options)
                mask, chunk = data.id.read_direct_chunk((0,) * values.ndim)
                if mask:
                    # HDF5 leaves out the filter if it would make the chunk larger.
                    continue
                codec = codec_of(data)
                assert decoded(codec, chunk) == expected
                # HDF5 reads beyond the end of a chunk that is shorter than its header.
                assert all(decoded(codec, chunk[:at]) is None for at in range(5))
                for at in range(5, len(chunk)):
                    found = decoded(codec, chunk[:at])
                    # Where h5py returns values of a cut chunk, most are what was in its memory before.
                    assert found is None or found == expected == read(data, chunk[:at])
                    refused, checked = refused + (found is None), checked + 1
                    zeros = chunk[:at] + bytes(len(chunk) - at)
                    found, by_h5py = decoded(codec, zeros), read(data, zeros)
                    assert found is None or found == (expected if by_h5py is None else by_h5py)
    # A few chunks end with bytes that are padding only.
    assert refused > 0.9 * checked > 100


def test_a_chunk_that_claims_to_be_larger_is_refused() -> None:
    codec = SzipCodec(141, 8, 16, 40)
    chunk = bytes(imagecodecs.szip_encode(np.arange(40, dtype="<i2"), 141, 8, 16, 40, header=True))
    assert decoded(codec, chunk) == np.arange(40, dtype="<i2").tobytes()
    with pytest.raises(CodecError, match=r"expected .* up to 79 bytes .* found .* says 80 bytes"):
        decode(codec, np.frombuffer(chunk, np.uint8), 79)
    with pytest.raises(CodecError, match="the chunk is cut off or damaged"):
        decode(codec, np.frombuffer((4000).to_bytes(4, "little") + chunk[4:], np.uint8), MOST)
    with pytest.raises(CodecError, match="says 78 bytes"):
        decode(SzipCodec(141, 8, 32, 40), np.frombuffer((78).to_bytes(4, "little") + chunk[4:], np.uint8), MOST)


def test_configurations_are_checked_and_round_trip() -> None:
    codec = SzipCodec(*np.array([141, 8, 16, 40]))
    written = codec.to_dict()
    Draft202012Validator(schema("parts_store.szip")).validate(written)
    assert SzipCodec.from_dict(written) == codec
    settings: Any = written["configuration"]
    for wrong in ({"pixels_per_block": 34}, {"bits_per_pixel": 0}, {"header": False}, {"header": 1}, {"other": 1}):
        document: Any = {**written, "configuration": {**settings, **wrong}}
        assert not Draft202012Validator(schema("parts_store.szip")).is_valid(document)
        with pytest.raises(CodecConfigError):
            SzipCodec.from_dict(document)


def test_values_are_written_and_read_as_by_imagecodecs() -> None:
    values = np.arange(600, dtype="<i4").reshape(20, 30) // 4
    store = MemoryStore()
    created = zarr.create_array(
        store, shape=(20, 30), chunks=(10, 30), dtype="<i4", compressors=[SzipCodec(141, 8, 32, 30)], fill_value=1
    )
    created[:] = values
    stored: Any = next(value for key, value in store._store_dict.items() if key.endswith("c/1/0"))
    found = imagecodecs.szip_decode(stored.to_bytes(), 141, 8, 32, 30, header=True)
    assert bytes(found) == values[10:].tobytes()
    np.testing.assert_array_equal(created[:], values)


def test_adopted_chunks_are_checked_and_stored_with_the_name_of_imagecodecs(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 50, (6, 200)).astype("<i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("a", data=values, chunks=(1, 200), compression="szip")
        _, chunk = data.id.read_direct_chunk((3, 0))
        data.id.write_direct_chunk((3, 0), chunk[: len(chunk) // 2], 0)
    report, store = adopted(tmp_path / "a.h5", strict=True)
    assert report.needs == ("imagecodecs-zarr",)
    found = array(store, "a")
    np.testing.assert_array_equal(found[:3], values[:3])
    with pytest.raises(CodecError, match="the chunk is cut off or damaged"):
        found[3]
    zarr.open_array(store, path="a").attrs["changed"] = True
    session: Any = store.session
    stored: Any = zarr.open_array(session.store, path="a", mode="r").metadata.to_dict()
    assert [codec["name"] for codec in stored["codecs"]] == ["bytes", "imagecodecs_szip"]
    assert stored["attributes"]["changed"] is True
    virtual = ps.open_virtual_dataset(tmp_path / "a.h5")
    with pytest.raises(CodecError, match="the chunk is cut off or damaged"):
        virtual["a"].load()
