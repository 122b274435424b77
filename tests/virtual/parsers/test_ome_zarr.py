"""Adopted images have metadata of OME-Zarr, valid by ome-zarr-models, and levels with the values of the files."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.virtual.adopt import adopt
from parts_store.virtual.ome_zarr import ImageLevel, OmeImage, find_unit, join_attributes, ome_attributes
from tests.virtual.adopting import adopted, repository, settle
from tests.virtual.parsers.n5.containers import numbers, read_z5py, write_java, write_root, write_z5py

TYPES = {"t": "time", "c": "channel", "s": "channel", "z": "space", "y": "space", "x": "space"}
# The units that the specification lists.
SPACE = (
    *("angstrom", "attometer", "centimeter", "decimeter", "exameter", "femtometer", "foot", "gigameter", "hectometer"),
    *("inch", "kilometer", "megameter", "meter", "micrometer", "mile", "millimeter", "nanometer", "parsec"),
    *("petameter", "picometer", "terameter", "yard", "yoctometer", "yottameter", "zeptometer", "zettameter"),
)
TIME = (
    *("attosecond", "centisecond", "day", "decisecond", "exasecond", "femtosecond", "gigasecond", "hectosecond"),
    *("hour", "kilosecond", "megasecond", "microsecond", "millisecond", "minute", "nanosecond", "petasecond"),
    *("picosecond", "second", "terasecond", "yoctosecond", "yottasecond", "zeptosecond", "zettasecond"),
)


def random(shape: Sequence[int], dtype: str = "u2") -> NDArray[Any]:
    return np.random.default_rng(5).integers(0, 250, shape).astype(dtype)


def write_pyramid(path: Path, values: NDArray[Any], levels: int, **metadata: Any) -> None:
    """Write an image, and smaller ones in SubIFDs."""
    options: dict[str, Any] = {"tile": (16, 16), "compression": "zlib"}
    with tifffile.TiffWriter(path, ome=path.name.endswith(".ome.tif")) as file:
        first: dict[str, Any] = {"subifds": levels - 1} if levels > 1 else {}
        file.write(values, metadata=metadata, **first, **options)
        for level in range(1, levels):
            step = 2**level
            file.write(values[..., ::step, ::step], subfiletype=1, metadata=None, **options)


def image_of(store: ps.PartsStore, path: str = "") -> dict[str, Any]:
    """The attribute of a group, which is valid, and agrees with the arrays that it names."""
    from ome_zarr_models.v05 import Image  # takes long

    group = zarr.open_group(store, path=path, mode="r")
    Image.from_zarr(group)
    ome: Any = group.attrs["ome"]
    assert ome["version"] == "0.5"
    (image,) = ome["multiscales"]
    for level in image["datasets"]:
        array: Any = group[level["path"]]
        assert array.metadata.dimension_names == tuple(axis["name"] for axis in image["axes"])
    return dict(ome)


def scales_of(ome: dict[str, Any]) -> list[list[float]]:
    (image,) = ome["multiscales"]
    return [level["coordinateTransformations"][0]["scale"] for level in image["datasets"]]


def translations_of(ome: dict[str, Any]) -> list[list[float]]:
    (image,) = ome["multiscales"]
    return [each["translation"] for level in image["datasets"] for each in level["coordinateTransformations"][1:]]


def values_of(store: ps.PartsStore, ome: dict[str, Any], path: str = "") -> list[NDArray[Any]]:
    """The values of all levels, read through the paths that the attribute has."""
    group = zarr.open_group(store, path=path, mode="r")
    members: list[Any] = [group[level["path"]] for level in ome["multiscales"][0]["datasets"]]
    return [np.asarray(member[...]) for member in members]


def require_no_image(store: ps.PartsStore, path: str = "") -> None:
    assert "ome" not in zarr.open_group(store, path=path, mode="r").attrs


# --- OME-TIFF ---------------------------------------------------------------------------------------------------------

SIZES = {"x": 0.325, "y": 0.5, "z": 2.0, "t": 1.5}
PHYSICAL: dict[str, Any] = {
    "PhysicalSizeX": 0.325,
    "PhysicalSizeXUnit": "\u00b5m",
    "PhysicalSizeY": 0.5,
    "PhysicalSizeYUnit": "nm",
    "PhysicalSizeZ": 2,
    "PhysicalSizeZUnit": "\u00c5",
    "TimeIncrement": 1.5,
    "TimeIncrementUnit": "min",
}
UNITS = {"x": "micrometer", "y": "nanometer", "z": "angstrom", "t": "minute"}


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("axes", ["YX", "ZYX", "TYX", "CYX", "CZYX", "TZYX", "TCYX", "TCZYX"])
def test_an_ome_tiff_is_an_image_with_its_axes_and_pixel_sizes(tmp_path: Path, axes: str, levels: int) -> None:
    path, values = tmp_path / "cells.ome.tif", random([*range(2, len(axes)), 40, 56])
    write_pyramid(path, values, levels, axes=axes, Name="cells", **PHYSICAL)
    report, store = adopted(path, strict=True)
    ome = image_of(store)
    (image,) = ome["multiscales"]
    assert image["name"] == "cells"
    expected = [{"name": name, "type": TYPES[name]} for name in axes.lower()]
    for axis in expected:
        if axis["name"] in UNITS:
            axis["unit"] = UNITS[axis["name"]]
    assert image["axes"] == expected
    steps = [SIZES.get(name, 1.0) for name in axes.lower()]
    factors = [[1] * (len(axes) - 2) + [2**level] * 2 for level in range(levels)]
    assert scales_of(ome) == [[a * b for a, b in zip(steps, each, strict=True)] for each in factors]
    assert translations_of(ome) == []
    with tifffile.TiffFile(path) as file:
        for found, level in zip(values_of(store, ome), file.series[0].levels, strict=True):
            np.testing.assert_array_equal(found, level.asarray())
    assert [each.path for each in report.arrays] == [each["path"] for each in image["datasets"]]


def test_levels_of_odd_lengths_cover_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    write_pyramid(path, random((45, 63)), 3, axes="YX", **PHYSICAL)
    _, store = adopted(path)
    lengths = [(45, 63), (23, 32), (12, 16)]
    for scale, (height, width) in zip(scales_of(image_of(store)), lengths, strict=True):
        assert scale[0] * height == pytest.approx(0.5 * 45, rel=1e-12)
        assert scale[1] * width == pytest.approx(0.325 * 63, rel=1e-12)


def test_an_ome_tiff_without_sizes_has_steps_of_one_without_units(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, random((3, 20, 24)), metadata={"axes": "ZYX"})
    _, store = adopted(path)
    ome = image_of(store)
    assert scales_of(ome) == [[1.0, 1.0, 1.0]]
    assert all("unit" not in axis for axis in ome["multiscales"][0]["axes"])
    assert "omero" not in ome


@pytest.mark.parametrize("unit", ["pixel", "reference frame", "li"])
def test_units_that_ome_zarr_does_not_have_are_left_out(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, random((20, 24)), metadata={"axes": "YX", **PHYSICAL, "PhysicalSizeXUnit": unit})
    _, store = adopted(path)
    ome = image_of(store)
    assert scales_of(ome) == [[0.5, 0.325]]
    assert [axis.get("unit") for axis in ome["multiscales"][0]["axes"]] == ["nanometer", None]


@pytest.mark.parametrize("size", ["0", "-1", "NaN", "INF", "1e999", "wide"])
def test_sizes_that_are_no_sizes_are_taken_as_unknown(tmp_path: Path, size: str) -> None:
    path = tmp_path / "a.ome.tif"
    xml = tifffile.OmeXml()
    xml.addimage("uint16", (20, 24), (1, 1, 1, 20, 24, 1), axes="YX", PhysicalSizeX=0.25)
    text = xml.tostring().replace('PhysicalSizeX="0.25"', f'PhysicalSizeX="{size}"')
    assert f'PhysicalSizeX="{size}"' in text
    tifffile.imwrite(path, random((20, 24)), description=text, metadata=None)
    _, store = adopted(path)
    assert scales_of(image_of(store)) == [[1.0, 1.0]]


CHANNELS: dict[str, Any] = {"Name": ["DAPI", "GFP"], "Color": [65535, -16776961]}


@pytest.mark.parametrize(
    ("dtype", "bits", "window"),
    [
        ("u1", None, (0, 255)),
        ("u2", None, (0, 65535)),
        ("u2", 12, (0, 4095)),
        ("i2", None, (-32768, 32767)),
        ("i2", 12, (-2048, 2047)),
        ("u4", None, None),
        ("u4", 10, (0, 1023)),
        ("f4", None, None),
    ],
)
def test_channels_have_names_colours_and_the_range_of_their_values(
    tmp_path: Path, dtype: str, bits: int | None, window: tuple[int, int] | None
) -> None:
    path, values = tmp_path / "a.ome.tif", random((2, 20, 24), dtype)
    significant = {} if bits is None else {"SignificantBits": bits}
    tifffile.imwrite(path, values, metadata={"axes": "CYX", "Channel": CHANNELS, **significant})
    _, store = adopted(path)
    ome = image_of(store)
    if window is None:
        assert "omero" not in ome
        return
    least, most = window
    shown = {"min": least, "max": most, "start": least, "end": most}
    found = [(each["label"], each["color"], each["window"]) for each in ome["omero"]["channels"]]
    assert found == [("DAPI", "0000FF", shown), ("GFP", "FF0000", shown)]


def test_an_image_of_one_channel_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, random((20, 24), "u1"), metadata={"axes": "YX", "Channel": {"Name": ["DAPI"]}})
    _, store = adopted(path)
    (channel,) = image_of(store)["omero"]["channels"]
    assert (channel["label"], channel["color"]) == ("DAPI", "FFFFFF")


def test_each_image_of_a_file_has_its_own_metadata(tmp_path: Path) -> None:
    path, small, large = tmp_path / "a.ome.tif", random((20, 24)), random((3, 40, 50))
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(small, metadata={"axes": "YX", "Name": "first", "PhysicalSizeX": 2.0, "PhysicalSizeY": 3.0})
        file.write(large, metadata={"axes": "ZYX", "Name": "second"}, tile=(16, 16), subifds=1)
        file.write(large[:, ::2, ::2], subfiletype=1, tile=(16, 16))
    _, store = adopted(path)
    require_no_image(store)
    first, second = image_of(store, "series_0"), image_of(store, "series_1")
    assert [each["multiscales"][0]["name"] for each in (first, second)] == ["first", "second"]
    assert [scales_of(first), scales_of(second)] == [[[3.0, 2.0]], [[1.0, 1.0, 1.0], [1.0, 2.0, 2.0]]]
    np.testing.assert_array_equal(values_of(store, first, "series_0")[0], small)
    np.testing.assert_array_equal(values_of(store, second, "series_1")[1], large[:, ::2, ::2])


def test_separate_planes_of_samples_are_channels(tmp_path: Path) -> None:
    path, values = tmp_path / "a.ome.tif", random((3, 20, 24), "u1")
    tifffile.imwrite(path, values, photometric="rgb", planarconfig="separate", metadata={"axes": "SYX"})
    _, store = adopted(path)
    assert image_of(store)["multiscales"][0]["axes"][0] == {"name": "s", "type": "channel"}


@pytest.mark.parametrize(
    ("axes", "shape"),
    [("ZCYX", (2, 3, 20, 24)), ("CTYX", (2, 3, 20, 24)), ("YXS", (20, 24, 3)), ("QYX", (4, 20, 24))],
)
def test_axes_in_another_order_have_no_metadata(tmp_path: Path, axes: str, shape: tuple[int, ...]) -> None:
    path, rgb = tmp_path / "a.ome.tif", "rgb" if "S" in axes else "minisblack"
    tifffile.imwrite(path, random(shape, "u1"), photometric=rgb, metadata={"axes": axes})
    report, store = adopted(path, strict=True)
    assert report.skipped == ()
    require_no_image(store)


def test_an_image_whose_document_has_another_size_has_no_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, random((20, 24)), metadata={"axes": "YX", "PhysicalSizeX": 0.5})
    data = path.read_bytes()
    assert data.count(b'SizeX="24"') == 1
    path.write_bytes(data.replace(b'SizeX="24"', b'SizeX="99"'))
    _, store = adopted(path)
    require_no_image(store)


def test_an_image_of_which_a_level_is_damaged_has_no_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    write_pyramid(path, random((64, 64)), 2, axes="YX")
    with tifffile.TiffFile(path) as file:
        page = file.series[0].levels[1].pages[0]
        assert page is not None
        place, nbytes = page.dataoffsets[0], page.databytecounts[0]
    data = bytearray(path.read_bytes())
    data[place : place + nbytes] = b"\xff" * nbytes
    path.write_bytes(data)
    report, store = adopted(path)
    assert [each.path for each in report.arrays] == ["level_0/data"]
    assert "level_1/data" in [each.name for each in report.skipped]
    require_no_image(store)


# --- slides and other TIFF files --------------------------------------------------------------------------------------


def write_slide(path: Path, values: NDArray[Any]) -> None:
    """Write an image, a thumbnail and two smaller images, as Aperio does it."""
    text = "Aperio Image Library v11.2.1 \r\n80x112 [0,0 80x112] (16x16) JPEG/RGB Q=70|AppMag = 20|MPP = 0.4990"
    options: dict[str, Any] = {"metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(path) as file:
        file.write(values, description=text, tile=(16, 16), **options)
        file.write(values[::8, ::8], description=text, **options)
        for step in (2, 4):
            file.write(values[::step, ::step], description=text, tile=(16, 16), **options)


def test_a_slide_is_an_image_with_the_pixel_size_of_its_description(tmp_path: Path) -> None:
    path, values = tmp_path / "slide.svs", random((80, 112), "u1")
    write_slide(path, values)
    _, store = adopted(path)
    ome = image_of(store, "series_0")
    assert [axis["unit"] for axis in ome["multiscales"][0]["axes"]] == ["micrometer", "micrometer"]
    np.testing.assert_allclose(scales_of(ome), [[0.499 * step] * 2 for step in (1, 2, 4)], rtol=1e-12)
    for found, step in zip(values_of(store, ome, "series_0"), (1, 2, 4), strict=True):
        np.testing.assert_array_equal(found, values[::step, ::step])
    # The thumbnail is no pyramid.
    require_no_image(store, "series_1")


@pytest.mark.parametrize("unit", ["CENTIMETER", "NONE"])
def test_reduced_pages_are_levels_with_the_resolution_of_the_file(tmp_path: Path, unit: str) -> None:
    path, values = tmp_path / "a.tif", random((64, 96))
    options: dict[str, Any] = {"metadata": None, "tile": (16, 16)}
    with tifffile.TiffWriter(path) as file:
        file.write(values, resolution=(20000, 10000), resolutionunit=unit, **options)
        file.write(values[::2, ::2], subfiletype=1, **options)
    _, store = adopted(path)
    ome = image_of(store)
    if unit == "CENTIMETER":
        np.testing.assert_allclose(scales_of(ome), [[1e-4, 0.5e-4], [2e-4, 1e-4]], rtol=1e-12)
        assert [axis["unit"] for axis in ome["multiscales"][0]["axes"]] == ["centimeter"] * 2
    else:
        assert scales_of(ome) == [[1.0, 1.0], [2.0, 2.0]]
    for found, step in zip(values_of(store, ome), (1, 2), strict=True):
        np.testing.assert_array_equal(found, values[::step, ::step])


def test_maps_and_colours_have_no_metadata(tmp_path: Path) -> None:
    values, geo = random((64, 96, 3), "u1"), (33550, "d", 3, (2.0, 2.0, 0.0), True)
    tie = (33922, "d", 6, (0.0, 0.0, 0.0, 5.0, 6.0, 0.0), True)
    keys = (34735, "H", 8, (1, 1, 0, 1, 1024, 0, 1, 1), True)
    for name, image, options in (
        ("map", values[..., 0], {"extratags": [geo, tie, keys]}),
        ("colours", values, {"photometric": "rgb"}),
    ):
        path = tmp_path / f"{name}.tif"
        with tifffile.TiffWriter(path) as file:
            file.write(image, metadata=None, tile=(16, 16), **options)
            file.write(image[::2, ::2], metadata=None, tile=(16, 16), subfiletype=1)
        with tifffile.TiffFile(path) as file:
            assert file.is_geotiff == (name == "map")
        report, store = adopted(path)
        assert [each.path for each in report.arrays] == ["level_0/data", "level_1/data"]
        require_no_image(store)


# --- N5 ---------------------------------------------------------------------------------------------------------------


def write_levels(folder: Path, values: NDArray[Any], attributes: Sequence[dict[str, Any]]) -> None:
    """Write levels `s0`, `s1` and so on, each with every second element of the one before it."""
    for number, own in enumerate(attributes):
        step = tuple(slice(None, None, 2**number) for _ in values.shape)
        write_java(folder / f"s{number}", values[step], (4,) * values.ndim, "gzip", **own)


def write_group(folder: Path, **attributes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attributes.json").write_text(json.dumps(attributes))
    settle(folder / "attributes.json")


def require_levels(store: ps.PartsStore, container: Path, path: str, names: Sequence[str]) -> dict[str, Any]:
    """The group is an image of these levels, with the values that z5py reads."""
    ome = image_of(store, path)
    assert [level["path"] for level in ome["multiscales"][0]["datasets"]] == list(names)
    for found, name in zip(values_of(store, ome, path), names, strict=True):
        np.testing.assert_array_equal(found, read_z5py(container, f"{path}/{name}"))
    return ome


def axes_of(ome: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(axis["name"], axis.get("unit")) for axis in ome["multiscales"][0]["axes"]]


def transform(scale: Sequence[float], translate: Sequence[float], order: str) -> dict[str, Any]:
    """A transform of COSEM, given in the order z, y, x."""
    step = 1 if order == "C" else -1
    lists = {"scale": scale, "translate": translate, "axes": ["z", "y", "x"], "units": ["nm", "um", "mm"]}
    return {name: list(each)[::step] for name, each in lists.items()} | {"ordering": order}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("place", ["in the group", "in the levels"])
def test_transforms_of_cosem_are_those_of_the_levels(tmp_path: Path, place: str, order: str) -> None:
    container, values = tmp_path / "cell.n5", numbers((8, 12, 16), "uint16")
    transforms = [transform((3.0, 4.0, 5.0), (0, 0, 0), order), transform((6.0, 8.0, 10.0), (1.5, 2.0, 2.5), order)]
    in_group = place == "in the group"
    write_levels(container / "em", values, [{} if in_group else {"transform": each} for each in transforms])
    listed = [
        {"path": f"s{number}", **({"transform": each} if in_group else {})} for number, each in enumerate(transforms)
    ]
    write_group(container / "em", multiscales=[{"name": "em", "datasets": listed}])
    write_root(container)
    _, store = adopted(container)
    ome = require_levels(store, container, "em", ["s0", "s1"])
    assert axes_of(ome) == [("z", "nanometer"), ("y", "micrometer"), ("x", "millimeter")]
    assert scales_of(ome) == [[3.0, 4.0, 5.0], [6.0, 8.0, 10.0]]
    assert translations_of(ome) == [[1.5, 2.0, 2.5]]


FACTORS = [[1, 1, 1], [2, 2, 2], [4, 4, 4]]
# What each program writes: the attributes of the root, the group above the levels, the group, and the levels.
CONVENTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "n5-viewer": (
        {},
        {},
        {},
        [{"downsamplingFactors": each, "pixelResolution": {"unit": "nm", "dimensions": [5, 4, 3]}} for each in FACTORS],
    ),
    "n5-viewer with scales": (
        {"pixelResolution": {"unit": "nm", "dimensions": [5, 4, 3]}},
        {},
        {"scales": FACTORS},
        [{}] * 3,
    ),
    "bigdataviewer": (
        {},
        {"downsamplingFactors": FACTORS, "dataType": "uint16"},
        {"multiScale": True, "resolution": [5, 4, 3], "units": ["nm"] * 3},
        [{}] * 3,
    ),
    "neuroglancer": (
        {"axes": ["x", "y", "z"], "resolution": [5, 4, 3], "units": ["nm"] * 3},
        {},
        {"downsamplingFactors": FACTORS},
        [{}] * 3,
    ),
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_downsampling_factors_are_scales_and_places_of_levels(tmp_path: Path, convention: str) -> None:
    container, values = tmp_path / "cell.n5", numbers((8, 12, 16), "uint16")
    root, above, group, levels = CONVENTIONS[convention]
    write_levels(container / "setup0/timepoint0", values, levels)
    write_group(container / "setup0", **above)
    write_group(container / "setup0/timepoint0", **group)
    write_root(container, **root)
    _, store = adopted(container, path="a")
    ome = image_of(store, "a/setup0/timepoint0")
    assert axes_of(ome) == [("z", "nanometer"), ("y", "nanometer"), ("x", "nanometer")]
    assert scales_of(ome) == [[3.0, 4.0, 5.0], [6.0, 8.0, 10.0], [12.0, 16.0, 20.0]]
    # The middle of the pixels that are averaged.
    assert translations_of(ome) == [[1.5, 2.0, 2.5], [4.5, 6.0, 7.5]]
    for number, found in enumerate(values_of(store, ome, "a/setup0/timepoint0")):
        np.testing.assert_array_equal(found, values[:: 2**number, :: 2**number, :: 2**number])


def test_levels_of_z5py_are_an_image_at_the_offset_of_their_group(tmp_path: Path) -> None:
    container, values = tmp_path / "cell.n5", numbers((20, 24), "uint8")
    for number in range(2):
        write_z5py(container, f"raw/s{number}", values[:: 2**number, :: 2**number], (8, 8), "gzip")
    attributes = {"multiScale": True, "offset": [100, 200], "resolution": [2, 3], "scales": [[1, 1], [2, 2]]}
    write_group(container / "raw", **attributes)
    write_root(container)
    _, store = adopted(container)
    ome = require_levels(store, container, "raw", ["s0", "s1"])
    assert axes_of(ome) == [("y", None), ("x", None)]
    assert (scales_of(ome), translations_of(ome)) == ([[3.0, 2.0], [6.0, 4.0]], [[200.0, 100.0], [201.5, 101.0]])


@pytest.mark.parametrize(
    ("group", "levels"),
    [
        ({}, [{}, {}]),
        ({}, [{}]),
        ({"resolution": [1, 1, 1]}, [{}, {}]),
        ({"affineTransform": [1] * 12}, [{"downsamplingFactors": each} for each in FACTORS]),
        ({"resolution": [1, 1, 0]}, [{"downsamplingFactors": each} for each in FACTORS]),
        ({}, [{"downsamplingFactors": each} for each in FACTORS[::-1]]),
        ({}, [{"downsamplingFactors": each, "axes": ["c", "y", "x"]} for each in FACTORS]),
        ({}, [{"transform": transform((1, 1, 1), (0, 0, 0), "C")}, {"downsamplingFactors": [2, 2, 2]}]),
        ({"multiscales": [{"datasets": [{"path": "s0"}, {"path": "s7"}]}]}, [{"downsamplingFactors": [1, 1, 1]}]),
    ],
)
def test_groups_that_are_not_described_completely_have_no_metadata(
    tmp_path: Path, group: dict[str, Any], levels: list[dict[str, Any]]
) -> None:
    container = tmp_path / "cell.n5"
    write_levels(container / "em", numbers((8, 8, 8), "uint8"), levels)
    write_group(container / "em", **group)
    write_root(container)
    _, store = adopted(container)
    require_no_image(store, "em")
    expected = tuple(levels[0].get("axes", []))[::-1]
    names: Any = zarr.open_array(store, path="em/s0", mode="r").metadata
    assert names.dimension_names[0] == (expected or ("z" if "transform" in levels[0] else "phony_dim_0",))[0]


STRANGE: list[Any] = [None, True, 3, 10**400, 1e308, "x", [], [None] * 3, [10**400] * 3, [1e308] * 3, {}, {"path": []}]


@pytest.mark.sampled(16, usual=4)
@pytest.mark.parametrize("value", STRANGE, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("name", ["multiscales", "downsamplingFactors", "scales", "resolution", "units", "offset"])
def test_strange_attributes_never_prevent_an_adoption(tmp_path: Path, name: str, value: Any) -> None:
    values, container = numbers((8, 8, 8), "uint8"), tmp_path / "cell.n5"
    write_levels(container / "em", values, [{"downsamplingFactors": each} for each in FACTORS])
    nested = [{"datasets": [{"path": "s0", "transform": value}, {"path": "s1", "transform": {"scale": value}}]}]
    for attributes in ({name: value}, {name: nested}, {name: {"dimensions": value, "datasets": value}}):
        write_group(container / "em", **attributes)
        write_root(container)
        _, store = adopted(container)
        if "ome" in zarr.open_group(store, path="em", mode="r").attrs:
            image_of(store, "em")
        np.testing.assert_array_equal(zarr.open_array(store, path="em/s1", mode="r")[...], values[::2, ::2, ::2])


def test_a_missing_level_leaves_no_metadata(tmp_path: Path) -> None:
    container = tmp_path / "cell.n5"
    write_levels(container / "em", numbers((8, 8, 8), "uint8"), [{"downsamplingFactors": each} for each in FACTORS])
    (container / "em/s1").rename(container / "em/other")
    write_root(container)
    _, store = adopted(container)
    require_no_image(store, "em")


# --- files that are joined --------------------------------------------------------------------------------------------


def write_files(folder: Path, axes: str, shape: Sequence[int], **metadata: Any) -> list[Path]:
    paths = []
    for number in range(3):
        paths.append(folder / f"{number}.ome.tif")
        own = {"axes": axes, "Channel": {"Name": [f"{number}{each}" for each in range(2)][: 2 if "C" in axes else 1]}}
        tifffile.imwrite(paths[-1], random(shape, "u1") + np.uint8(number), metadata={**own, **PHYSICAL, **metadata})
        settle(paths[-1])
    return paths


@pytest.mark.parametrize("dim", ["t", "time", "z", "c"])
def test_files_that_are_steps_of_an_axis_are_one_image(tmp_path: Path, dim: str) -> None:
    paths = write_files(tmp_path, "YX", (20, 24))
    session = repository(tmp_path).writable_session("main")
    adopt(paths, into=session, concat_dim=dim)
    store = ps.PartsStore.from_session(session)
    ome = image_of(store)
    kind = {"time": "time"}.get(dim) or TYPES[dim]
    assert ome["multiscales"][0]["axes"][0] == {"name": dim, "type": kind}
    assert scales_of(ome) == [[1.0, 0.5, 0.325]]
    labels = [each["label"] for each in ome["omero"]["channels"]]
    assert labels == (["00", "10", "20"] if dim == "c" else ["00"])
    expected = np.stack([random((20, 24), "u1") + np.uint8(number) for number in range(3)])
    np.testing.assert_array_equal(values_of(store, ome)[0], expected)


@pytest.mark.parametrize(("axes", "dim"), [("YX", "well"), ("TYX", "c"), ("CZYX", "z2"), ("TCYX", "z")])
def test_files_that_are_steps_of_another_dimension_are_no_image(tmp_path: Path, axes: str, dim: str) -> None:
    paths = write_files(tmp_path, axes, (2, 2, 20, 24)[4 - len(axes) :])
    session = repository(tmp_path).writable_session("main")
    adopt(paths, into=session, concat_dim=dim)
    require_no_image(ps.PartsStore.from_session(session))


@pytest.mark.parametrize("at_once", [3, 1])
@pytest.mark.parametrize(("axes", "dim"), [("TCYX", "t"), ("TCYX", "c")])
def test_files_joined_along_an_axis_keep_the_image_and_join_channels(
    tmp_path: Path, axes: str, dim: str, at_once: int
) -> None:
    paths = write_files(tmp_path, axes, (2, 2, 20, 24))
    session = repository(tmp_path).writable_session("main")
    adopt(paths[:at_once], into=session, concat_dim=dim, path="a")
    for path in paths[at_once:]:
        adopt(path, into=session, append_dim=dim, path="a")
    store = ps.PartsStore.from_session(session)
    ome = image_of(store, "a")
    assert scales_of(ome) == [[1.5, 1.0, 0.5, 0.325]]
    labels = [each["label"] for each in ome["omero"]["channels"]]
    assert labels == (["00", "01"] if dim == "t" else ["00", "01", "10", "11", "20", "21"])
    values = [random((2, 2, 20, 24), "u1") + np.uint8(number) for number in range(3)]
    np.testing.assert_array_equal(values_of(store, ome, "a")[0], np.concatenate(values, axes.lower().index(dim)))


def test_pyramids_that_are_steps_of_time_are_one_image(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.ome.tif" for number in range(2)]
    for path in paths:
        write_pyramid(path, random((40, 56)), 2, axes="YX", **PHYSICAL)
        settle(path)
    session = repository(tmp_path).writable_session("main")
    adopt(paths, into=session, concat_dim="t")
    store = ps.PartsStore.from_session(session)
    ome = image_of(store)
    assert scales_of(ome) == [[1.0, 0.5, 0.325], [1.0, 1.0, 0.65]]
    assert [each.shape for each in values_of(store, ome)] == [(2, 40, 56), (2, 20, 28)]


def test_levels_that_are_chosen_alone_are_no_image(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    write_pyramid(path, random((40, 56)), 2, axes="YX")
    _, store = adopted(path, variables=["level_1/data"])
    require_no_image(store)
    _, store = adopted(path, variables=["level_0/data", "level_1/data"])
    image_of(store)


@pytest.mark.parametrize("value", [3, "text", [1], {}, {"multiscales": 3}, {"multiscales": [{}]}, {"omero": None}])
def test_another_attribute_called_ome_stays_as_it_is(value: Any) -> None:
    for dim, is_new in itertools.product(("t", "c", "well"), (True, False)):
        found = join_attributes([{"ome": value, "a": 1}, {}], dim, is_new=is_new)
        assert found == {"ome": value, "a": 1}
        found = join_attributes([{"ome": value, "a": 1}] * 2, dim, is_new=is_new)
        assert found["a"] == 1
        assert found["ome"] == value


# --- what is allowed --------------------------------------------------------------------------------------------------

RANK = {"time": 0, "channel": 1, "space": 2}


def test_every_order_of_axes_is_valid_or_left_out() -> None:
    from ome_zarr_models.v05.multiscales import Multiscale

    count = 0
    for length in range(1, 7):
        for axes in itertools.permutations("tcszyxq", length):
            image = OmeImage(
                "a", axes, [""] * length, [ImageLevel("0", [1.0] * length), ImageLevel("1", [2.0] * length)]
            )
            made = ome_attributes(image)
            ranks = [RANK[TYPES[axis]] for axis in axes if axis in TYPES]
            is_valid = (
                "q" not in axes
                and ranks == sorted(ranks)
                and axes[-2:] == ("y", "x")
                and not {"c", "s"} <= set(axes)
                and length >= 2
            )
            assert bool(made) == is_valid, axes
            if made:
                Multiscale.model_validate(made["ome"]["multiscales"][0])
                count += 1
    # Time, channel or samples or neither, and z may be there.
    assert count == 2 * 3 * 2


def test_units_are_those_of_the_specification() -> None:
    symbols = {
        "\u00b5m": "micrometer",
        "\u03bcm": "micrometer",
        "um": "micrometer",
        "nm": "nanometer",
        "pm": "picometer",
    }
    symbols |= {
        "mm": "millimeter",
        "Mm": "megameter",
        "cm": "centimeter",
        "dm": "decimeter",
        "m": "meter",
        "km": "kilometer",
    }
    symbols |= {"\u00c5": "angstrom", "\u212b": "angstrom", "in": "inch", "ft": "foot", "yd": "yard", "mi": "mile"}
    symbols |= {"micron": "micrometer", "Microns": "micrometer", "Micrometers": "micrometer", " nm ": "nanometer"}
    assert {text: find_unit(text, "space") for text in symbols} == symbols
    times = {
        "s": "second",
        "ms": "millisecond",
        "\u00b5s": "microsecond",
        "ns": "nanosecond",
        "min": "minute",
        "h": "hour",
    }
    times |= {"d": "day", "sec": "second", "seconds": "second", "Hours": "hour"}
    assert {text: find_unit(text, "time") for text in times} == times
    for names, kind in ((SPACE, "space"), (TIME, "time")):
        assert {find_unit(name, kind) for name in names} == set(names)
    for text in ("", "pixel", "reference frame", "thou", "li", "s", "um/px", "damn"):
        assert find_unit(text, "space") is None
    assert find_unit("nm", "time") is None
    assert find_unit("nm", "channel") is None


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cells(tmp_path: Path) -> tuple[ps.PartsStore, NDArray[Any]]:
    """An image of two levels and two channels at `cells`, and its values."""
    path, values = tmp_path / "cells.ome.tif", random((2, 2, 40, 56), "u1")
    write_pyramid(path, values, 2, axes="TCYX", Channel={"Name": ["DAPI", "GFP"]}, **PHYSICAL)
    settle(path)
    session = repository(tmp_path).writable_session("main")
    adopt(path, into=session, path="cells")
    return ps.PartsStore.from_session(session), values


# napari warns of its own use of pydantic, also in its plugins for pytest: run this with `-p no:napari -p no:npe2`.
@pytest.mark.filterwarnings("ignore")
def test_the_reader_of_napari_opens_the_group_of_a_session(cells: tuple[ps.PartsStore, NDArray[Any]]) -> None:
    store, values = cells
    napari = pytest.importorskip("napari_ome_zarr.ome_zarr_reader")
    layers = napari.read_ome_zarr(zarr.open_group(store, path="cells", mode="r"))()
    # A layer for each channel, since napari-ome-zarr 0.11.
    assert [metadata["name"].rpartition(" ")[2] for _, metadata, _ in layers] == ["DAPI", "GFP"]
    for channel, (data, metadata, kind) in enumerate(layers):
        assert (kind, metadata["axis_labels"], metadata["scale"]) == ("image", ("t", "y", "x"), [1.5, 0.5, 0.325])
        assert metadata["units"] == ("minute", "nanometer", "micrometer")
        for level, step in zip(data, (1, 2), strict=True):
            np.testing.assert_array_equal(level.compute(), values[:, channel, ::step, ::step])


@pytest.mark.filterwarnings("ignore")
def test_the_reader_of_ome_zarr_opens_a_copy_in_a_folder(
    tmp_path: Path, cells: tuple[ps.PartsStore, NDArray[Any]]
) -> None:
    store, values = cells
    reader = pytest.importorskip("ome_zarr.reader")
    ps.copy(store, ps.PartsStore.from_url(tmp_path / "plain.zarr"))
    location = pytest.importorskip("ome_zarr.io").parse_url(str(tmp_path / "plain.zarr/cells"))
    (node,) = reader.Reader(location)()
    assert node.metadata["channel_names"] == ["DAPI", "GFP"]
    for level, step in zip(node.data, (1, 2), strict=True):
        np.testing.assert_array_equal(level.compute(), values[..., ::step, ::step])
