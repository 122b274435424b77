"""Arrays whose chunks are TIFF files: created in one call, opened by tifffile and Pillow, and written again."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray
from PIL import Image
from zarr.codecs import BloscCodec, BytesCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import Zlib

import parts_store as ps
from parts_store.errors import HeaderError, StoreConfigError
from parts_store.headers import TiffHeader
from tests.virtual.adopting import repository

VALUES = np.random.default_rng(1).integers(1, 255, (50, 70)).astype("uint16")
IMAGE: dict[str, Any] = {"chunk_file": "tiff", "shape": (50, 70), "chunks": (32, 32), "dtype": "uint16"}
# The numbers of the compressions in TIFF files.
SCHEMES = {"none": 1, "deflate": 8, "zstd": 50000}
COMPRESSORS = {"deflate": Zlib(level=1), "zstd": ZstdCodec(level=3), "none": None}


def require_file(file: Path, expected: NDArray[Any], compression: str) -> None:
    """The file is one image, with these values and this compression, for tifffile and for Pillow."""
    with tifffile.TiffFile(file) as opened:
        (page,) = opened.pages
        assert isinstance(page, tifffile.TiffPage)
        assert page.compression == SCHEMES[compression]
        np.testing.assert_array_equal(page.asarray(), expected)
    with Image.open(file) as image:
        np.testing.assert_array_equal(np.asarray(image), expected)


def whole(values: NDArray[Any]) -> NDArray[Any]:
    """A chunk at the edge, with zeros where the array ends."""
    chunk = np.zeros((32, 32), values.dtype)
    chunk[: values.shape[0], : values.shape[1]] = values
    return chunk


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compression", sorted(COMPRESSORS))
def test_every_chunk_is_a_file_with_the_extension_tif(tmp_path: Path, compression: str, pipeline: str) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", compressors=COMPRESSORS[compression], **IMAGE)
    array: Any = zarr.open_array(store, path="a")
    array[:] = VALUES
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:], VALUES)
    files = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert files == {"zarr.json", "a/zarr.json", *(f"a/c/{y}/{x}.tif" for y in range(2) for x in range(3))}
    for y in range(2):
        for x in range(3):
            part = VALUES[y * 32 : (y + 1) * 32, x * 32 : (x + 1) * 32]
            require_file(tmp_path / f"a/c/{y}/{x}.tif", whole(part), compression)


def test_the_default_compression_is_one_that_every_program_reads(tmp_path: Path) -> None:
    array = ps.create_array(ps.PartsStore.from_url(tmp_path), **IMAGE)
    array[:] = VALUES
    require_file(tmp_path / "c/0/0.tif", VALUES[:32, :32], "deflate")


OPENINGS: dict[str, Callable[[ps.PartsStore], Any]] = {
    "zarr.open_array": lambda store: zarr.open_array(store, path="g/a", mode="r+"),
    "zarr.open": lambda store: zarr.open(store, path="g/a", mode="r+"),
    "zarr.open_group": lambda store: zarr.open_group(store, mode="r+")["g/a"],
    "members": lambda store: dict(zarr.open_group(store, path="g", mode="r+").members())["a"],
    "ps.open_array": lambda store: ps.open_array(store, "g/a", mode="r+"),
    "ps.open_group": lambda store: ps.open_group(store, "g", mode="r+")["a"],
    "async": lambda store: zarr.Array(
        asyncio.run(zarr.api.asynchronous.open_array(store=store, path="g/a", mode="r+"))
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("opening", sorted(OPENINGS))
@pytest.mark.parametrize("compression", ["deflate", "zstd"])
def test_an_array_is_written_after_it_was_opened_again(tmp_path: Path, opening: str, compression: str) -> None:
    ps.create_array(ps.PartsStore.from_url(tmp_path), "g/a", compressors=COMPRESSORS[compression], **IMAGE)
    array = OPENINGS[opening](ps.PartsStore.from_url(tmp_path))
    array[:] = VALUES
    array[5:40, 3:60] = 9
    expected = VALUES.copy()
    expected[5:40, 3:60] = 9
    np.testing.assert_array_equal(array[:], expected)
    require_file(tmp_path / "g/a/c/1/1.tif", whole(expected[32:, 32:64]), compression)
    array.attrs["title"] = "an image"
    array.resize((80, 70))
    array[64:] = 3
    require_file(tmp_path / "g/a/c/2/0.tif", whole(np.full((16, 32), 3, "uint16")), compression)


def test_consolidated_metadata_and_copies_keep_the_header(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "one")
    ps.create_array(store, "g/a", **IMAGE)
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(store)
    group: Any = zarr.open_consolidated(ps.PartsStore.from_url(tmp_path / "one"), mode="r+")
    group["g/a"][:] = VALUES
    require_file(tmp_path / "one/g/a/c/0/0.tif", VALUES[:32, :32], "deflate")
    other = ps.PartsStore.from_url(tmp_path / "other")
    ps.copy(store, other)
    array: Any = zarr.open_array(other, path="g/a", mode="r+")
    array[:32, :32] = 5
    require_file(tmp_path / "other/g/a/c/0/0.tif", np.full((32, 32), 5, "uint16"), "deflate")


@pytest.mark.parametrize("rgb", [True, False])
def test_colours_are_decided_by_the_header(tmp_path: Path, rgb: bool) -> None:
    values = np.random.default_rng(1).integers(1, 255, (1, 12, 3)).astype("uint8")
    store = ps.PartsStore.from_url(tmp_path)
    arguments: dict[str, Any] = {"shape": values.shape, "chunks": values.shape, "dtype": "uint8"}
    with pytest.raises(HeaderError, match="`rgb` to be given"):
        ps.create_array(store, "a", chunk_file="tiff", **arguments)
    assert not list(tmp_path.rglob("*"))
    header = TiffHeader(values.shape, dtype="uint8", compression="zstd", rgb=rgb)
    ps.create_array(store, "a", chunk_file=header, **arguments)
    array: Any = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a", mode="r+")
    array[:] = values
    found = tifffile.imread(tmp_path / "a/c/0/0/0.tif")
    np.testing.assert_array_equal(found, values if rgb else values[0])


def test_big_endian_files_have_big_endian_pixels(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", serializer=BytesCodec(endian="big"), **IMAGE)
    array: Any = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a", mode="r+")
    array[:] = VALUES
    assert (tmp_path / "a/c/0/0.tif").read_bytes()[:2] == b"MM"
    require_file(tmp_path / "a/c/0/0.tif", VALUES[:32, :32], "deflate")


def test_data_gives_the_data_type(tmp_path: Path) -> None:
    values = VALUES[:32, :32].astype(">f4")
    array = ps.create_array(ps.PartsStore.from_url(tmp_path), chunk_file="tiff", data=values, chunks=[32, 32])
    np.testing.assert_array_equal(array[:], values)
    require_file(tmp_path / "c/0/0.tif", values, "deflate")


def test_chunks_of_fill_values_have_no_file_unless_the_setting_says_so(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", **IMAGE)
    array[:] = 0
    assert not list(tmp_path.rglob("*.tif"))
    array = ps.create_array(store, "b", config={"write_empty_chunks": True}, **IMAGE)
    array[:] = 0
    assert len(list(tmp_path.rglob("*.tif"))) == 6
    with zarr.config.set({"array.write_empty_chunks": True}):
        ps.open_array(store, "a", mode="r+")[:] = 0
    assert len(list(tmp_path.rglob("*.tif"))) == 12


HEADER = TiffHeader((32, 32), dtype="uint16", compression="deflate")
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"chunk_file": "png"}, StoreConfigError, "expected 'tiff' or a `ps.headers.TiffHeader`, found 'png'"),
    ({"chunk_file": ["tiff"]}, StoreConfigError, "expected 'tiff'"),
    ({"chunk_file": None}, StoreConfigError, "`shard_file` with `parts`, found none of them"),
    ({"parts": [""]}, StoreConfigError, "`shard_file` with `parts`, found parts and chunk_file"),
    ({"chunks": "auto"}, StoreConfigError, "the shape of an image, such as"),
    ({"chunks": None}, StoreConfigError, "the shape of an image, such as"),
    ({"chunks": (32, 0)}, StoreConfigError, "the shape of an image, such as"),
    ({"chunks": (32, -1)}, StoreConfigError, "the shape of an image, such as"),
    ({"shards": (64, 64)}, StoreConfigError, "files inside the objects of shards"),
    ({"filters": [TransposeCodec(order=(1, 0))]}, StoreConfigError, "filters.*expected none"),
    ({"serializer": ps.codecs.PackBitsCodec()}, StoreConfigError, "expected `bytes`"),
    ({"compressors": [BloscCodec()]}, StoreConfigError, "compressors.*expected None, `zarr.codecs.ZstdCodec`"),
    ({"compressors": [ZstdCodec(), Zlib()]}, StoreConfigError, "compressors.*expected None"),
    ({"compressors": numcodecs.Zlib()}, StoreConfigError, "compressors.*expected None"),
    ({"compressors": 5}, StoreConfigError, "compressors.*expected None.*found 5"),
    ({"filters": TransposeCodec(order=(1, 0))}, StoreConfigError, "filters.*expected none"),
    ({"dtype": "<U4"}, HeaderError, "a boolean, or a number"),
    ({"chunks": (4, 32, 32), "shape": (4, 50, 70)}, HeaderError, "one image"),
    ({"chunk_file": HEADER, "chunks": (32, 64)}, HeaderError, r"chunks of uint16\(32, 64\), found uint16\(32, 32\)"),
    ({"chunk_file": HEADER, "dtype": "int16"}, HeaderError, r"chunks of int16\(32, 32\), found uint16"),
    ({"chunk_file": HEADER, "compressors": None}, StoreConfigError, "the compression of the array, 'none'"),
    ({"chunk_file": HEADER, "serializer": BytesCodec(endian="big")}, StoreConfigError, "the byteorder of the array"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), WRONG)
def test_chunks_that_cannot_be_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ps.create_array(ps.PartsStore.from_url(tmp_path), "a", **{**IMAGE, **changes})
    assert not list(tmp_path.rglob("*"))


def test_a_header_gives_the_shape_of_the_chunks(tmp_path: Path) -> None:
    arguments = {name: value for name, value in IMAGE.items() if name not in ("chunk_file", "chunks")}
    array = ps.create_array(ps.PartsStore.from_url(tmp_path), chunk_file=HEADER, **arguments)
    assert array.chunks == (32, 32)


def test_compressors_may_be_given_as_json(tmp_path: Path) -> None:
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
    array = ps.create_array(ps.PartsStore.from_url(tmp_path), compressors=zstd, **IMAGE)
    array[:] = VALUES
    require_file(tmp_path / "c/0/0.tif", VALUES[:32, :32], "zstd")


def test_chunks_in_a_session_can_be_written_after_opening(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    ps.create_array(ps.PartsStore.from_session(session), "a", **IMAGE)
    array: Any = zarr.open_array(ps.PartsStore.from_session(session), path="a", mode="r+")
    array[:] = VALUES
    np.testing.assert_array_equal(array[:], VALUES)


def test_plain_zarr_refuses_the_array_and_the_file_says_how_it_is_made(tmp_path: Path) -> None:
    ps.create_array(ps.PartsStore.from_url(tmp_path), **IMAGE)
    document = json.loads((tmp_path / "zarr.json").read_text())
    assert document["parts_store"] == {"name": "parts_store", "must_understand": True}
    assert document["storage_transformers"][0]["configuration"]["parts"] == [{"key_suffix": ".tif"}]
    with pytest.raises(ValueError, match=r"storage_transformers|must_understand"):
        zarr.open_array(tmp_path, mode="r")


def test_a_header_of_another_shape_is_refused_when_plain_zarr_creates_the_array(tmp_path: Path) -> None:
    codecs = [Zlib(), ps.codecs.pad_codec(HEADER.nbytes, padding_func=HEADER)]
    with pytest.raises(HeaderError, match=r"chunks of \(64, 32\), found one for \(32, 32\)"):
        zarr.create_array(tmp_path / "a", shape=(64, 64), chunks=(64, 32), dtype="uint16", compressors=codecs)
    assert not (tmp_path / "a/zarr.json").exists()
    array = zarr.create_array(tmp_path / "b", shape=(64, 64), chunks=(32, 32), dtype="int16", compressors=codecs)
    with pytest.raises(HeaderError, match=r"chunks of int16\(32, 32\), found uint16\(32, 32\)"):
        array[:] = 1
    array = zarr.create_array(tmp_path / "c", shape=(64, 64), chunks=(32, 32), dtype="uint16", compressors=codecs)
    zarr.open_array(tmp_path / "c", mode="r+")[:] = 7
    require_file(tmp_path / "c/c/0/0", np.full((32, 32), 7, "uint16"), "deflate")


@pytest.mark.parametrize("recipe", ["tiff lzw little gray", "tiff zstd little", "png", "tiff zstd middle gray"])
def test_an_unknown_recipe_can_be_read_but_not_written(tmp_path: Path, recipe: str) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, **IMAGE)[:] = VALUES
    document = json.loads((tmp_path / "zarr.json").read_text())
    mark = f"\x10\x16{{made by parts_store.headers: {recipe}}}".encode().ljust(HEADER.nbytes)
    document["codecs"][-1] = ps.codecs.PadCodec("start", nbytes=len(mark), padding=mark).to_dict()
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    array: Any = zarr.open_array(ps.PartsStore.from_url(tmp_path), mode="r+")
    np.testing.assert_array_equal(array[:], VALUES)
    with pytest.raises(ps.errors.UnboundPaddingError):
        array[:] = 1
    np.testing.assert_array_equal(array[:], VALUES)
