"""TIFF headers: what tifffile and Pillow read is what was written."""

import base64
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from zarr.codecs import BytesCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import Zlib
from zarr.storage import LocalStore

from parts_store.codecs import offset_codec, pad_codec
from parts_store.errors import CodecError, HeaderError
from parts_store.headers import TiffHeader, tiff
from tests.effort import examples

# The header of the specifications' first example: 256 x 256, uint16, little endian, in 110 bytes.
SPECIFIED = (
    "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYB"
    "AwABAAAAAAEAABcBBAABAAAAAAACAAAAAAA="
)
DTYPES = [f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in ("int", "uint")]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]
# What Pillow has an image mode for, by byte order.
PILLOW_GRAY = {"uint8", "uint16", "int16", "int32", "float32"}


def random_values(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    generator = np.random.default_rng(11)
    values = generator.integers(0, 2, shape) if dtype == "bool" else generator.integers(0, 100, shape) * 1.5
    return values.astype(dtype)


def by_tifffile(file: bytes) -> NDArray[Any]:
    return np.asarray(tifffile.imread(io.BytesIO(file)))


def by_pillow(file: bytes) -> NDArray[Any]:
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image)


def test_header_equals_the_example_of_the_specification() -> None:
    assert tiff(shape=(256, 256), dtype="uint16") == base64.b64decode(SPECIFIED)
    assert tiff((256, 256), dtype=np.uint16) == TiffHeader((256, 256), dtype="uint16")(bytes(131072))


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("samples", [3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_a_chunk_of_colours_is_a_tiff_file(dtype: str, samples: int, endian: Any) -> None:
    values = random_values((13, 29, samples), dtype)
    file = (
        tiff(values.shape, dtype=dtype, byteorder=endian) + values.astype(values.dtype.newbyteorder(endian)).tobytes()
    )
    with tifffile.TiffFile(io.BytesIO(file)) as opened:
        page = opened.pages.first
        assert page.photometric == tifffile.PHOTOMETRIC.RGB
        assert page.axes == "YXS"
        # One value for each sample, as TIFF asks for; readers that are strict refuse less.
        assert page.tags["BitsPerSample"].count == samples
        assert page.tags["PlanarConfiguration"].value == tifffile.PLANARCONFIG.CONTIG
        if values.dtype.kind != "u":
            assert page.tags["SampleFormat"].count == samples
        assert tuple(page.extrasamples) == ((tifffile.EXTRASAMPLE.UNASSALPHA,) if samples == 4 else ())
        np.testing.assert_array_equal(page.asarray(), values)
    if dtype == "uint8":
        np.testing.assert_array_equal(by_pillow(file), values)


@settings(max_examples=examples(50))
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    dtype=st.sampled_from([*DTYPES, "bool"]),
    leading=st.integers(0, 3),
    colours=st.sampled_from([None, 3, 4]),
    endian=st.sampled_from(["little", "big"]),
)
def test_headers_of_random_shapes_give_valid_files(
    height: int, width: int, dtype: str, leading: int, colours: int | None, endian: Any
) -> None:
    image = (height, width) if colours is None else (height, width, colours)
    values = random_values(image, dtype)
    header = tiff((1,) * leading + image, dtype=dtype, byteorder=endian, rgb=colours is not None)
    assert len(header) == TiffHeader(image, dtype=dtype, rgb=colours is not None).nbytes
    assert len(header) % 2 == 0
    file = header + values.astype(values.dtype.newbyteorder(endian)).tobytes()
    np.testing.assert_array_equal(by_tifffile(file), values)
    if dtype in PILLOW_GRAY and colours is None:
        np.testing.assert_array_equal(by_pillow(file), values)


def test_sides_beyond_a_short_are_stored_as_longs() -> None:
    values = random_values((2, 70_000), "uint8")
    np.testing.assert_array_equal(by_tifffile(tiff((2, 70_000), dtype="uint8") + values.tobytes()), values)
    tall = random_values((70_000, 2), "uint16")
    np.testing.assert_array_equal(by_tifffile(tiff((70_000, 2), dtype="uint16") + tall.tobytes()), tall)


COMPRESSED: dict[str, Any] = {"none": (), "deflate": (Zlib(level=5),), "zstd": (ZstdCodec(level=3),)}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("spelling", ["pad", "offset"])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(("chunks", "dtype"), [((64, 48), "uint16"), ((64, 48, 3), "uint8"), ((1, 64, 48), "float32")])
def test_compressed_chunks_are_tiff_files_of_the_right_byte_count(
    tmp_path: Path, compression: Any, spelling: str, endian: Any, chunks: tuple[int, ...], dtype: str, pipeline: str
) -> None:
    header = TiffHeader(chunks, dtype=dtype, byteorder=endian, compression=compression)
    codec: Any = (
        pad_codec(header.nbytes, padding_func=header)
        if spelling == "pad"
        else offset_codec(header.nbytes, prefix_func=header)
    )
    shape = tuple(2 * length if length > 10 else length for length in chunks)
    array = zarr.create_array(
        LocalStore(tmp_path),
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        serializer=BytesCodec(endian=endian),
        compressors=(*COMPRESSED[compression], codec),
    )
    values = random_values(shape, dtype)
    array[...] = values
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], values)
    files = sorted(path for path in (tmp_path / "c").rglob("*") if path.is_file())
    assert len(files) == 4
    for path in files:
        # The key's numbers are the chunk's place.
        place = tuple(int(number) for number in path.relative_to(tmp_path / "c").parts)
        expected = values[tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, chunks, strict=True))]
        file = path.read_bytes()
        with tifffile.TiffFile(io.BytesIO(file)) as opened:
            page = opened.pages.first
            assert page.dataoffsets == (header.nbytes,)
            assert page.databytecounts == (len(file) - header.nbytes,)
            np.testing.assert_array_equal(page.asarray(), expected.squeeze())
        # Pillow swaps the bytes of compressed big-endian numbers of 32 bits twice, tifffile's own files included.
        if (dtype, endian, compression == "none") != ("float32", "big", False):
            np.testing.assert_array_equal(by_pillow(file), expected.squeeze())


def test_a_header_for_uncompressed_chunks_refuses_compressed_ones() -> None:
    header = TiffHeader((4, 4), dtype="uint8")
    with pytest.raises(
        HeaderError, match=r"expected 16 bytes of an uncompressed uint8 chunk of shape \(4, 4\), found 9"
    ):
        header(bytes(9))


def test_a_header_of_another_size_than_declared_is_refused(tmp_path: Path) -> None:
    header = TiffHeader((4, 4), dtype="uint8")
    array = zarr.create_array(
        LocalStore(tmp_path), shape=(4, 4), dtype="uint8", compressors=[pad_codec(100, padding_func=header)]
    )
    with pytest.raises(CodecError, match="expected 100 bytes from 'padding_func', as 'nbytes' says, found 110 bytes"):
        array[...] = 1


def test_headers_are_values_that_can_be_pickled() -> None:
    header = TiffHeader((1, 64, 64, 3), dtype="uint8", compression="zstd", rgb=True)
    assert pickle.loads(pickle.dumps(header)) == header
    assert hash(pickle.loads(pickle.dumps(header))) == hash(header)
    assert repr(header) == (
        "TiffHeader(shape=(1, 64, 64, 3), dtype=dtype('uint8'), byteorder='little', compression='zstd', rgb=True)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (4,)}, "expected a shape of 2 to 64 lengths"),
        ({"shape": ()}, "expected a shape of 2 to 64 lengths"),
        ({"shape": (4, 0)}, "lengths from 1"),
        ({"shape": (4, -1)}, "lengths from 1"),
        ({"shape": (4, 2.5)}, "expected a shape of integers"),
        ({"shape": 4}, "expected a shape of integers"),
        ({"shape": (2, 5, 6)}, "expected one image"),
        ({"shape": (2, 4, 4, 3)}, "expected one image"),
        ({"shape": (4, 4, 5)}, "expected one image"),
        ({"shape": (1, 512, 3)}, "expected `rgb` to be given"),
        ({"shape": (4, 4), "rgb": True}, "as the shape of an RGB image"),
        ({"shape": (4, 4, 2), "rgb": True}, "as the shape of an RGB image"),
        ({"shape": (4, 4, 3), "rgb": False}, "expected one image"),
        ({"shape": (4, 4, 3), "rgb": 3}, "True, False or None"),
        ({"shape": (4, 4), "dtype": "S3"}, "expected a boolean, or a number of at most 64 bits, as data type"),
        ({"shape": (4, 4), "dtype": "M8[s]"}, "expected a boolean, or a number of at most 64 bits, as data type"),
        ({"shape": (4, 4), "dtype": "longdouble"}, "expected a boolean, or a number of at most 64 bits"),
        ({"shape": (4, 4), "dtype": "clongdouble"}, "expected a boolean, or a number of at most 64 bits"),
        ({"shape": (4, 4), "dtype": ","}, "expected a NumPy data type"),
        ({"shape": (4, 4), "dtype": None}, "expected a NumPy data type, found None"),
        ({"shape": (True, 4)}, "expected a shape of integers"),
        ({"shape": (10**5000, 4)}, "lengths from 1"),
        ({"shape": (4, 4), "byteorder": np.array(["a", "b"])}, "a byte order of 'little' or 'big'"),
        ({"shape": (4, 4), "dtype": "nonsense"}, "expected a NumPy data type, found 'nonsense'"),
        ({"shape": (4, 4), "byteorder": ">"}, "a byte order of 'little' or 'big'"),
        ({"shape": (65536, 65536)}, "expected a file of at most 4294967295 bytes"),
    ],
)
def test_what_tiff_cannot_hold_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeaderError, match=message):
        tiff(**{"dtype": "uint8", **arguments})


@pytest.mark.parametrize("compression", ["gzip", "lzw", None, 8, []])
def test_other_compressions_are_refused_by_name(compression: Any) -> None:
    with pytest.raises(HeaderError, match="expected a compression of none, deflate, zstd"):
        TiffHeader((4, 4), dtype="uint8", compression=compression)


def test_the_largest_file_is_four_gigabytes_and_not_a_byte_more() -> None:
    header = TiffHeader((4, 4), dtype="uint8", compression="zstd")
    largest = 2**32 - 1 - header.nbytes
    assert largest.to_bytes(4, "little") in header.for_encoded(largest)
    for nbytes in (largest + 1, -1):
        with pytest.raises(HeaderError, match="expected a file of at most 4294967295 bytes"):
            header.for_encoded(nbytes)


@pytest.mark.parametrize(
    ("compression", "codecs"),
    [
        ("deflate", [GzipCodec(level=1)]),
        ("deflate", [ZstdCodec()]),
        ("deflate", []),
        ("zstd", [Zlib(level=1)]),
        ("zstd", []),
        ("none", [ZstdCodec()]),
    ],
)
def test_a_header_for_another_compression_than_the_chunks_is_refused(
    tmp_path: Path, compression: Any, codecs: list[Any]
) -> None:
    header = TiffHeader((32, 32), dtype="uint8", compression=compression)
    array = zarr.create_array(
        LocalStore(tmp_path),
        shape=(32, 32),
        dtype="uint8",
        compressors=[*codecs, pad_codec(header.nbytes, padding_func=header)],
    )
    with pytest.raises(HeaderError, match="TIFF header: expected"):
        array[...] = 1
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("rgb", [True, False])
def test_caller_decides_about_an_ambiguous_shape(*, rgb: bool) -> None:
    values = random_values((1, 512, 3), "uint8")
    file = tiff(values.shape, dtype="uint8", rgb=rgb) + values.tobytes()
    np.testing.assert_array_equal(by_tifffile(file), values if rgb else values[0])
