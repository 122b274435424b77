"""Pages, stacks, pyramids and SubIFDs become arrays and groups, with the axes that tifffile finds."""

import json
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tifffile
import xarray as xr
from numpy.typing import NDArray
from PIL import Image

import parts_store as ps
from parts_store.errors import AdoptionError
from parts_store.virtual.adopt import adopt
from tests.effort import some
from tests.virtual.adopting import adopted, array, repository, settle
from tests.virtual.parsers.tiff.files import cases, read, reason, require_all_equal, require_equal


def random(shape: tuple[int, ...], dtype: str = "u2") -> NDArray[Any]:
    return np.random.default_rng(7).integers(0, 200, shape).astype(dtype)


def test_one_image_is_the_array_data_with_the_names_of_its_axes(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((40, 50, 3), "u1")
    tifffile.imwrite(path, values, photometric="rgb", tile=(16, 16), compression="zlib", description="a flower")
    report, store = adopted(path, strict=True)
    found = array(store, "data")
    assert (found.metadata.dimension_names, found.chunks) == (("y", "x", "s"), (16, 16, 3))
    assert (found.attrs["ImageDescription"], found.attrs["PhotometricInterpretation"]) == ("a flower", "RGB")
    require_equal(store, "data", values)
    (only,) = report.arrays
    assert (only.chunks, only.references, only.chunks_written, report.needs) == (12, 12, 0, ())
    with Image.open(path) as image:
        assert np.array_equal(read(store, "data"), np.asarray(image))


def test_contiguous_strips_are_one_piece(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((1000, 30))
    tifffile.imwrite(path, values, rowsperstrip=7)
    report, store = adopted(path, strict=True)
    assert (report.references, report.nbytes_written, report.arrays[0].chunks) == (1, 0, 1)
    require_equal(store, "data", values)


def test_a_short_last_strip_is_written_and_counted(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((100, 30))
    tifffile.imwrite(path, values, rowsperstrip=32, compression="lzw")
    report, store = adopted(path, strict=True)
    (only,) = report.arrays
    assert (only.chunks, only.references, only.chunks_written) == (4, 3, 1)
    assert 0 < report.nbytes_written < 32 * 30 * 2
    assert report.needs == ("imagecodecs-zarr",)
    assert "1 chunk written" in str(report)
    assert "to read it: pip install imagecodecs-zarr" in str(report)
    assert report.to_json()["arrays"][0]["chunks_written"] == 1
    require_equal(store, "data", values)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("rows", [10, 32])
def test_pages_of_one_shape_are_one_array(tmp_path: Path, rows: int, compression: str | None) -> None:
    path, values = tmp_path / "a.tif", random((5, 32, 40))
    with tifffile.TiffWriter(path) as file:
        for page in values:
            file.write(page, metadata=None, contiguous=False, rowsperstrip=rows, compression=compression)
    report, store = adopted(path, strict=True)
    found = array(store, "data")
    assert found.metadata.dimension_names == ("i", "y", "x")
    short = 5 if compression and rows == 10 else 0
    assert report.arrays[0].chunks_written == short
    require_equal(store, "data", values)


def test_the_axes_of_ome_tiff_are_the_names_of_the_dimensions(tmp_path: Path) -> None:
    path, values = tmp_path / "a.ome.tif", random((2, 3, 4, 20, 24))
    tifffile.imwrite(path, values, metadata={"axes": "TCZYX", "Name": "cells"}, tile=(16, 16), compression="lzw")
    _, store = adopted(path, strict=True)
    found = array(store, "data")
    assert (found.metadata.dimension_names, found.chunks) == (("t", "c", "z", "y", "x"), (1, 1, 1, 16, 16))
    assert found.attrs["ImageDescription"].endswith("</OME>")
    assert found.attrs["name"] == "cells"
    require_equal(store, "data", values)


OME = tifffile.OmeXml()
OME.addimage("uint16", (3, 64, 64), (3, 1, 1, 64, 64, 1), axes="ZYX")
STACKS = {
    "ome": OME.tostring(),
    "imagej": "ImageJ=1.11a\nimages=3\nslices=3\n",
    "shaped": '{"shape": [3, 64, 64]}',
    "none": "",
}


def write_stack(path: Path, kind: str, values: NDArray[Any], options: Sequence[dict[str, Any]]) -> None:
    """Write pages with a description of a stack of three, each with options of its own."""
    with tifffile.TiffWriter(path) as file:
        for number, each in enumerate(options):
            text = STACKS[kind] if number == 0 else None
            file.write(values[number], description=text, metadata=None, contiguous=False, **each)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"compression": "zlib"}),
        ({"compression": "zlib"}, {}),
        ({"compression": "zlib"}, {"compression": "zlib", "predictor": 2}),
        ({"tile": (16, 32)}, {"tile": (32, 16)}),
        ({"compression": "zlib", "tile": (16, 32)}, {"compression": "zlib", "tile": (32, 16)}),
    ],
)
def test_pages_of_a_stack_that_are_stored_in_different_ways_have_their_values(
    tmp_path: Path, kind: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    path, values = tmp_path / "a.tif", random((3, 64, 64))
    write_stack(path, kind, values, [first, second, first])
    report, store = adopted(path, strict=True)
    if "series_0/data" in [each.path for each in report.arrays]:
        # tifffile compares all tags of pages that are no stack, or not the one that was described.
        assert kind == "none" or (kind, first) == ("imagej", {})
        require_equal(store, "series_0/data", values[::2])
        require_equal(store, "series_1/data", values[1])
        return
    assert "stored in different ways: tag" in reason(report, "data")
    for number in range(3):
        require_equal(store, f"page_{number}/data", values[number])


@pytest.mark.parametrize("kind", STACKS)
def test_missing_tiles_of_each_page_have_the_value_of_its_own_nodata(tmp_path: Path, kind: str) -> None:
    path, values = tmp_path / "a.tif", random((3, 64, 64))
    tiles = [[each[:16], None, each[32:48], each[48:]] for each in values]
    with tifffile.TiffWriter(path) as file:
        for number, each in enumerate(tiles):
            text = STACKS[kind] if number == 0 else None
            options: dict[str, Any] = {
                "shape": (64, 64),
                "dtype": "u2",
                "tile": (16, 64),
                "metadata": None,
                "description": text,
            }
            nodata = (42113, "s", 0, str(number + 5), True)
            file.write(iter(each), contiguous=False, compression="zlib", extratags=[nodata], **options)
    report, store = adopted(path, strict=True)
    assert re.search(r"tag 42113 of the page at \d+ is '6', and at \d+ '5'", reason(report, "data"))
    for number in range(3):
        values[number, 16:32] = number + 5
        require_equal(store, f"page_{number}/data", values[number])


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}])
def test_pages_of_an_ome_tiff_image_that_are_missing_are_named(tmp_path: Path, options: dict[str, Any]) -> None:
    path, values = tmp_path / "a.ome.tif", random((3, 64, 64))
    write_stack(path, "ome", values, [options, options])
    report, store = adopted(path)
    assert not report.is_complete
    assert reason(report, "data, missing pages") == "1 of 3 pages are not in the file, and have the fill value"
    values[2] = 0
    require_equal(store, "data", values)


def test_an_imagej_stack_without_directories_of_its_pages_is_one_array(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((2, 3, 4, 20, 24))
    tifffile.imwrite(path, values, imagej=True, metadata={"axes": "TZCYX"}, byteorder=">", truncate=True)
    report, store = adopted(path, strict=True)
    assert report.references == 1
    found = array(store, "data")
    assert found.metadata.dimension_names == ("t", "z", "c", "y", "x")
    require_equal(store, "data", values)


def write_pyramid(path: Path, values: NDArray[Any], **options: Any) -> None:
    with tifffile.TiffWriter(path) as file:
        file.write(values, subifds=2, tile=(16, 16), compression="zlib", **options)
        for step in (2, 4):
            level = np.ascontiguousarray(values[..., ::step, ::step])
            file.write(level, subfiletype=1, tile=(16, 16), compression="zlib", **options)


def test_levels_of_a_pyramid_in_subifds_are_groups(tmp_path: Path) -> None:
    path, values = tmp_path / "a.ome.tif", random((3, 64, 80))
    write_pyramid(path, values, metadata={"axes": "CYX"})
    report, store = adopted(path, strict=True)
    assert [each.path for each in report.arrays] == [f"level_{level}/data" for level in range(3)]
    for level in range(3):
        require_equal(store, f"level_{level}/data", values[..., :: 2**level, :: 2**level])
    # Each level has lengths of its own, and xarray opens all of them.
    tree = xr.open_datatree(store, engine="zarr", consolidated=False)  # type: ignore[arg-type]
    assert tree["level_1/data"].sizes == {"c": 3, "y": 32, "x": 40}
    virtual = ps.open_virtual_dataset(path, group="level_2")
    assert np.array_equal(virtual["data"].load(), values[:, ::4, ::4])


def test_levels_of_a_cog_in_following_pages_are_groups(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((128, 160))
    with tifffile.TiffWriter(path) as file:
        for step in (1, 2, 4):
            level = np.ascontiguousarray(values[::step, ::step])
            file.write(level, subfiletype=int(step > 1), tile=(16, 16), compression="zstd", metadata=None)
    report, store = adopted(path, strict=True)
    assert [each.path for each in report.arrays] == [f"level_{level}/data" for level in range(3)]
    assert require_all_equal(report, store, path) == 3
    assert [each.references for each in report.arrays] == [80, 20, 6]


def test_images_of_different_shapes_are_groups_and_all_pages_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    images = [random((20, 30)), random((8, 8), "u1"), random((4, 20, 40), "f4")]
    with tifffile.TiffWriter(path) as file:
        for image in images:
            file.write(image, contiguous=False, metadata=None, photometric="minisblack")
    report, store = adopted(path, strict=True)
    for number, image in enumerate(images):
        require_equal(store, f"series_{number}/data", image)
    assert len(report.arrays) == 3


def test_subifds_that_belong_to_no_image_are_groups(tmp_path: Path) -> None:
    path, values, small = tmp_path / "a.tif", random((40, 50)), random((10, 11), "u1")
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(values, subifds=1, metadata={"axes": "YX"})
        file.write(small, subfiletype=0, photometric="minisblack", compression="zlib")
    report, store = adopted(path, strict=True)
    found = {each.path: read(store, each.path) for each in report.arrays}
    assert sorted(each.shape for each in found.values()) == [(10, 11), (40, 50)]
    assert any(np.array_equal(each, small) for each in found.values())


def test_missing_tiles_have_the_value_of_nodata(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tiles = (random((16, 16), "i2") if number != 1 else None for number in range(4))
    nodata = [(42113, "s", 0, "-7", True)]
    tifffile.imwrite(path, tiles, shape=(32, 32), dtype="i2", tile=(16, 16), compression="zlib", extratags=nodata)
    report, store = adopted(path, strict=True)
    assert report.references == 3
    require_equal(store, "data", tifffile.imread(path))
    assert read(store, "data")[0, 20] == -7


@pytest.mark.parametrize("samples", ["gray", "rgb", "ycbcr", "separate"])
def test_jpeg_is_read_as_tifffile_reads_it(tmp_path: Path, samples: str) -> None:
    path = tmp_path / "a.tif"
    smooth = np.add.outer(np.arange(64), np.arange(80)).astype("u1")
    values = (
        smooth
        if samples == "gray"
        else np.stack([smooth, smooth // 2, 255 - smooth], 0 if samples == "separate" else 2)
    )
    options: dict[str, Any] = {} if samples == "gray" else {"photometric": "ycbcr" if samples == "ycbcr" else "rgb"}
    if samples == "separate":
        options["planarconfig"] = "separate"
    tifffile.imwrite(path, values, tile=(32, 32), compression="jpeg", **options)
    report, store = adopted(path, strict=True)
    assert report.references == report.arrays[0].chunks
    require_equal(store, "data", tifffile.imread(path))


@pytest.mark.parametrize("compression", ["webp", "png", "lerc"])
@pytest.mark.parametrize("samples", [3, 4])
def test_tiles_that_are_images_are_read_as_tifffile_reads_them(tmp_path: Path, compression: str, samples: int) -> None:
    path, values = tmp_path / "a.tif", random((50, 70, samples), "u1")
    # tifffile writes lossless images.
    tifffile.imwrite(path, values, tile=(32, 32), compression=compression, photometric="rgb")
    report, store = adopted(path, strict=True)
    assert report.references == 6
    require_equal(store, "data", tifffile.imread(path))


def test_jpeg_with_a_short_last_strip_is_stored_with_its_values(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((50, 40), "u1")
    tifffile.imwrite(path, values, rowsperstrip=16, compression="jpeg")
    report, store = adopted(path, strict=True)
    (only,) = report.arrays
    assert (only.references, only.chunks_written) == (0, 1)
    assert report.arrays[0].loaded.startswith("last strips with fewer rows")
    assert report.is_complete
    require_equal(store, "data", tifffile.imread(path))


def test_reversed_bits_are_read_with_packbits_or_stored(tmp_path: Path) -> None:
    reverse = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
    for width in (40, 37):
        path, values = tmp_path / f"{width}.tif", random((24, width), "u1") > 100
        tifffile.imwrite(path, values, rowsperstrip=8, byteorder="<", software="any")
        with tifffile.TiffFile(path) as file:
            page = file.pages.first
            start, stop = page.dataoffsets[0], page.dataoffsets[0] + sum(page.databytecounts)
            place = page.tags["Software"].offset
        data = path.read_bytes()
        data = data[:start] + data[start:stop].translate(reverse) + data[stop:]
        # The tag FillOrder, a number of 16 bits, in place of another tag.
        path.write_bytes(data[:place] + struct.pack("<HHII", 266, 3, 1, 2) + data[place + 12 :])
        assert np.array_equal(tifffile.imread(path), values)
        report, store = adopted(path, strict=True)
        assert bool(report.references) == (width % 8 == 0)
        require_equal(store, "data", values)


def test_an_unsupported_page_is_named_and_the_others_are_adopted(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((32, 32), "u1")
    with tifffile.TiffWriter(path) as file:
        file.write(values, metadata=None)
        file.write(values[:16], metadata=None, compression="jpegxl")
    report, store = adopted(path)
    assert [each.path for each in report.arrays] == ["series_0/data"]
    assert reason(report, "series_1/data") == "the compression JPEGXL: it is not supported"
    require_equal(store, "series_0/data", values)
    with pytest.raises(AdoptionError, match="series_1/data: the compression JPEGXL"):
        adopted(path, strict=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options", [{}, {"compression": "lzw", "tile": (16, 16)}, {"compression": "zlib", "rowsperstrip": 9}]
)
def test_many_files_are_joined_along_a_new_dimension(tmp_path: Path, options: dict[str, Any]) -> None:
    values = random((4, 40, 50))
    for number, each in enumerate(values[:3]):
        tifffile.imwrite(tmp_path / f"{number}.tif", each, **options)
        settle(tmp_path / f"{number}.tif")
    session = repository(tmp_path).writable_session("main")
    adopt(tmp_path / "*.tif", into=session, concat_dim="time")
    store = ps.PartsStore.from_session(session)
    found = array(store, "data")
    assert found.metadata.dimension_names == ("time", "y", "x")
    require_equal(store, "data", values[:3])
    tifffile.imwrite(tmp_path / "3.tif", values[3], **options)
    settle(tmp_path / "3.tif")
    adopt(tmp_path / "3.tif", into=session, concat_dim="time", append_dim="time")
    require_equal(store, "data", values)


def test_stacks_are_joined_along_their_own_dimension(tmp_path: Path) -> None:
    values = random((6, 40, 50))
    for number in range(2):
        path = tmp_path / f"{number}.ome.tif"
        tifffile.imwrite(path, values[3 * number :][:3], metadata={"axes": "TYX"}, compression="zlib", tile=(16, 16))
        settle(path)
    virtual = ps.open_virtual_mfdataset(str(tmp_path / "*.tif"), concat_dim="t", combine="nested")
    assert np.array_equal(virtual["data"].load(), values)


def test_a_tiled_file_is_copied_as_the_main_part_of_an_array(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", random((64, 80))
    tifffile.imwrite(path, values, tile=(16, 16), compression="zlib")
    store = ps.PartsStore.from_url(tmp_path / "copies.zarr")
    ps.adopt(path, into=store, copy=True)
    require_equal(store, "data", values)
    assert np.array_equal(tifffile.imread(tmp_path / "copies.zarr/data/c/0/0.tif"), values)
    tifffile.imwrite(tmp_path / "b.tif", values, rowsperstrip=15, compression="zlib")
    with pytest.raises(AdoptionError, match="expected one chunked dataset"):
        ps.adopt(tmp_path / "b.tif", into=store, path="b", copy=True)


def test_large_and_binary_tags_are_kept_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tags = [(65000, "B", 4, b"\0\1\2\3", True), (65001, "B", 1 << 15, bytes(1 << 15), True)]
    tifffile.imwrite(path, random((8, 8)), extratags=tags, metadata=None)
    report, store = adopted(path)
    attributes = dict(array(store, "data").attrs)
    assert attributes["65000"] == {"base64": "AAECAw=="}
    assert reason(report, "data, tag 65001") == "32,768 bytes, and at most 16,384 are attributes"
    assert not report.is_complete
    json.dumps(attributes, allow_nan=False)


def test_a_missing_package_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, random((8, 8)))
    for name in [each for each in sys.modules if each.startswith("parts_store.virtual.parsers.tiff.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ImportError, match=r"TIFF files need tifffile: pip install 'parts_store\[tiff\]'"):
        ps.open_virtual_dataset(path)


KINDS: list[tuple[Literal["<", ">"], bool]] = [("<", False), (">", False), ("<", True), (">", True)]


def test_every_way_to_write_an_image_is_read_bit_for_bit(tmp_path: Path) -> None:
    """The cases are written alternately to files of each byte order and kind."""
    path, ways = tmp_path / "a.tif", some(cases())
    for number, (byteorder, bigtiff) in enumerate(KINDS):
        chosen = ways[number :: len(KINDS)]
        expected = [case.values(seed) for seed, case in enumerate(chosen)]
        with tifffile.TiffWriter(path, byteorder=byteorder, bigtiff=bigtiff) as file:
            for case, values in zip(chosen, expected, strict=True):
                case.write(file, values)
        report, store = adopted(path, strict=True)
        assert len(report.arrays) == len(chosen)
        for which, values in enumerate(expected):
            require_equal(store, f"series_{which}/data", values)
        path.unlink()


def test_there_are_many_ways_to_write_an_image() -> None:
    assert len(cases()) > 1500


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", [{}, {"tile": (16, 16)}, {"rowsperstrip": 5}], ids=str)
@pytest.mark.parametrize("bits", [1, 2, 4, 10, 12, 14])
def test_packed_bits_are_read(tmp_path: Path, bits: int, layout: dict[str, Any]) -> None:
    path = tmp_path / "a.tif"
    values = np.random.default_rng(bits).integers(0, 1 << bits, (23, 37)).astype("u1" if bits <= 8 else "u2")
    tifffile.imwrite(path, values.astype(bool) if bits == 1 else values, bitspersample=bits, **layout)
    _, store = adopted(path, strict=True)
    require_equal(store, "data", tifffile.imread(path))
    assert np.array_equal(tifffile.imread(path), values)
