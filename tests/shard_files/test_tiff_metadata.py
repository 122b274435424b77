"""What the attributes of an array and its group say, in the TIFF files of its shards."""

import itertools
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import rasterio
import tifffile
import zarr
from hypothesis import given
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning

import parts_store as ps
from parts_store.format.files.tiff_metadata import ArrayDescription, image_metadata
from tests.shard_files import forms, readers

LAYOUT: dict[str, Any] = {"shape": (90, 100), "chunks": (16, 32), "shards": (32, 64), "dtype": "uint16"}
TRANSFORM = [10.0, 0.5, 500_000.0, 0.25, -20.0, 5_000_000.0]
SPATIAL: dict[str, Any] = {"spatial:transform": TRANSFORM, "spatial:dimensions": ["y", "x"]}
WKT = CRS.from_epsg(32633).to_wkt()
# What a group, an array of the group and the array `spatial_ref` say; the EPSG code and the origin of the files.
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int | None]] = {
    "array": ({}, {"proj:code": "EPSG:32633", **SPATIAL}, {}, 32633),
    "group": ({"proj:code": "EPSG:32633", **SPATIAL, "spatial:shape": [90, 100]}, {}, {}, 32633),
    "code of the group": ({"proj:code": "EPSG:4326"}, SPATIAL, {}, 4326),
    "array before group": ({"proj:code": "EPSG:4326"}, {"proj:code": "EPSG:32633", **SPATIAL}, {}, 32633),
    "text": ({"proj:wkt2": CRS.from_epsg(25832).to_wkt(version="WKT2_2019")}, SPATIAL, {}, 25832),
    "level": (
        {
            "proj:code": "EPSG:32633",
            "multiscales": {
                "layout": [
                    {"asset": "b", "spatial:transform": [0, 0, 0, 0, 0, 0]},
                    {"asset": "a", "spatial:transform": TRANSFORM, "spatial:shape": [90, 100]},
                ]
            },
        },
        {},
        {},
        32633,
    ),
    "rioxarray": (
        {},
        {"grid_mapping": "spatial_ref"},
        {"crs_wkt": WKT, "GeoTransform": "500000.0 10.0 0.5 5000000.0 0.25 -20.0"},
        32633,
    ),
    "no system": ({}, SPATIAL, {}, None),
    "system of another authority": ({}, {"proj:code": "IAU_2015:49900", **SPATIAL}, {}, None),
}
# What has no tags.
NO_PLACE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "only a system": {"proj:code": "EPSG:32633"},
    "other shape": {**SPATIAL, "spatial:shape": [45, 50]},
    "other axes": {**SPATIAL, "spatial:dimensions": ["x", "y"]},
    "other transform": {**SPATIAL, "spatial:transform_type": "rpc"},
    "axes from east to west first": {"dimension_names": ["x", "y"], "spatial:transform": TRANSFORM},
    "short": {**SPATIAL, "spatial:transform": [1, 2, 3]},
    "text": {**SPATIAL, "spatial:transform": ["a"] * 6},
    "infinity": {**SPATIAL, "spatial:transform": [float("inf")] * 6},
    "missing grid mapping": {"grid_mapping": "spatial_ref"},
    "odd grid mapping": {"grid_mapping": "../spatial_ref"},
}


def create(folder: Path, group: dict[str, Any], attributes: dict[str, Any], form: str = "object", **other: Any) -> Any:
    """Return a new array `a` in a group with these attributes."""
    store = ps.PartsStore.from_url(str(folder))
    zarr.create_group(store, attributes=group)
    names = other.pop("dimension_names", ["y", "x"])
    return forms.create(store, "a", form, "tiff", attributes=attributes, dimension_names=names, **{**LAYOUT, **other})


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_each_shard_says_where_it_is(tmp_path: Path, place: str, form: str) -> None:
    group, attributes, spatial_ref, epsg = PLACES[place]
    array = create(tmp_path, group, attributes, form)
    zarr.create_array(array.store, name="spatial_ref", shape=(), dtype="int8", attributes=spatial_ref)
    values = np.random.default_rng(0).integers(1, 60000, (90, 100)).astype("uint16")
    array[...] = values
    for row, column in itertools.product(range(3), range(2)):
        path = tmp_path / "a" / "c" / str(row) / f"{column}{forms.extension(form, 'tiff')}"
        part = values[row * 32 : row * 32 + 32, column * 64 : column * 64 + 64]
        with rasterio.open(path) as file:
            assert file.crs == (None if epsg is None else CRS.from_epsg(epsg))
            # The corner of the array is at (500000, 5000000).
            expected = rasterio.Affine(*TRANSFORM) @ rasterio.Affine.translation(column * 64, row * 32)
            assert file.transform.almost_equals(expected, precision=1e-6)
            np.testing.assert_array_equal(file.read(1), part)
        np.testing.assert_array_equal(readers.read_tifffile(path)[0], part)
    again = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a")
    np.testing.assert_array_equal(again[...], values)
    if form == "object":
        np.testing.assert_array_equal(readers.read_tensorstore(tmp_path / "a"), values)


@pytest.mark.parametrize("case", NO_PLACE)
def test_what_cannot_be_expressed_is_left_out(tmp_path: Path, case: str) -> None:
    attributes = NO_PLACE[case]
    create(tmp_path, {}, attributes, dimension_names=attributes.get("dimension_names", ["y", "x"]))[...] = 1
    with pytest.warns(NotGeoreferencedWarning):
        file = rasterio.open(tmp_path / "a" / "c" / "0" / "0")
    with file:
        assert file.crs is None
        assert file.transform == rasterio.Affine.identity()
        np.testing.assert_array_equal(file.read(1), 1)


def test_images_with_colours_say_where_they_are(tmp_path: Path) -> None:
    layout: dict[str, Any] = {"shape": (40, 50, 3), "chunks": (16, 16, 3), "shards": (32, 32, 3), "dtype": "uint8"}
    attributes = {"proj:code": "EPSG:32633", **SPATIAL}
    create(tmp_path, {}, attributes, dimension_names=["y", "x", "band"], **layout)[...] = 1
    with rasterio.open(tmp_path / "a" / "c" / "1" / "0" / "0") as file:
        assert (file.count, file.crs, file.transform.f) == (3, CRS.from_epsg(32633), 5_000_000 - 32 * 20)


def test_registration_at_nodes_shifts_the_corner_by_half_a_pixel(tmp_path: Path) -> None:
    attributes = {"spatial:transform": [2, 0, 100, 0, -4, 200], "spatial:registration": "node"}
    create(tmp_path, {}, attributes)[...] = 1
    with rasterio.open(tmp_path / "a" / "c" / "0" / "0") as file:
        assert file.transform == rasterio.Affine(2, 0, 99, 0, -4, 202)


@pytest.mark.parametrize("dtype", [">u2", "<f4"])
@pytest.mark.parametrize("epsg", [4326, 4258, 7844, 3857, 32633, 2154, 4087, 27700, 6933])
def test_geographic_and_projected_systems_are_told_apart(tmp_path: Path, epsg: int, dtype: str) -> None:
    create(tmp_path, {}, {"proj:code": f"EPSG:{epsg}", **SPATIAL}, dtype=dtype)[...] = 1
    with rasterio.open(tmp_path / "a" / "c" / "0" / "0") as file:
        assert file.crs.to_epsg() == epsg
        assert file.crs.is_geographic == CRS.from_epsg(epsg).is_geographic


def test_files_follow_the_attributes_when_shards_are_written_again(tmp_path: Path) -> None:
    array = create(tmp_path, {"proj:code": "EPSG:32633"}, SPATIAL)
    array[...] = 1
    path = tmp_path / "a" / "c" / "0" / "0"
    before = path.read_bytes()
    array[:5, :5] = 1
    assert path.read_bytes() == before
    zarr.open_group(array.store).attrs["proj:code"] = "EPSG:4326"
    assert path.read_bytes() == before
    array[:5, :5] = 2
    with rasterio.open(path) as file:
        assert file.crs == CRS.from_epsg(4326)
    with rasterio.open(tmp_path / "a" / "c" / "1" / "0") as file:
        assert file.crs == CRS.from_epsg(32633)


def test_repair_makes_files_that_say_where_they_are(tmp_path: Path) -> None:
    array = create(tmp_path, {"proj:code": "EPSG:32633"}, SPATIAL)
    plain: Any = zarr.open_array(str(tmp_path), path="a", mode="r+")
    plain[...] = 3
    array.store.repair()
    with rasterio.open(tmp_path / "a" / "c" / "0" / "1") as file:
        assert (file.crs, file.transform.c) == (CRS.from_epsg(32633), 500_640.0)


@pytest.mark.parametrize("between", ["disk", "session"])
def test_copies_say_where_they_are(tmp_path: Path, between: str) -> None:
    create(tmp_path / "first", {"proj:code": "EPSG:32633"}, SPATIAL)[...] = 3
    first, last = (ps.PartsStore.from_url(str(tmp_path / each)) for each in ("first", "last"))
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    if between == "session":
        middle = ps.PartsStore.from_session(repository.writable_session("main"))
        ps.copy(first, middle)
        first = middle
    ps.copy(first, last)
    with rasterio.open(tmp_path / "last" / "a" / "c" / "0" / "1") as file:
        assert (file.crs, file.transform.c) == (CRS.from_epsg(32633), 500_640.0)
    # The group above is not copied.
    ps.copy(first, last, path="a", to="b")
    with rasterio.open(tmp_path / "last" / "b" / "c" / "0" / "1") as file:
        assert (file.crs, file.transform.c) == (CRS.from_epsg(32633), 500_640.0), "it is in a group that says the same"
    ps.copy(first, last, path="a", to="other/a")
    with rasterio.open(tmp_path / "last" / "other" / "a" / "c" / "0" / "1") as file:
        assert file.crs is None


def test_what_the_group_says_costs_one_request_when_the_array_is_opened(tmp_path: Path) -> None:
    counts = []
    for shard_file in ("hdf5", "tiff"):
        root = ps.PartsStore.from_url(str(tmp_path / shard_file))
        zarr.create_group(root, attributes={"proj:code": "EPSG:32633"})
        forms.create(root, "a", "object", shard_file, attributes=SPATIAL, **LAYOUT)
        direct, through_group = (ps.PartsStore.from_url(str(tmp_path / shard_file)) for _ in range(2))
        arrays: list[Any] = [ps.open_array(direct, "a", mode="r+"), ps.open_group(through_group, mode="r+")["a"]]
        counts.append([each.stats.calls["get"] for each in (direct, through_group)])
        for each in arrays:
            each.store.stats.reset()
            each[:32, :64] = 4
            assert each.store.stats.calls["get"] == 0
    # HDF5 files do not depend on the group.
    (direct_hdf5, group_hdf5), (direct_tiff, group_tiff) = counts
    assert direct_tiff == direct_hdf5 + 1
    assert group_tiff == group_hdf5


@pytest.mark.parametrize("compressors", ["auto", None])
def test_first_read_of_a_shard_with_all_tags_asks_once_for_its_index(tmp_path: Path, compressors: Any) -> None:
    attributes = {"proj:code": "EPSG:32633", **SPATIAL, "pixel_size": 0.325, "pixel_unit": "micrometer"}
    layout: dict[str, Any] = {"shape": (3, 512, 512), "chunks": (1, 32, 32), "shards": (3, 512, 512)}
    names = ["z", "y", "x"]
    array = create(tmp_path, {}, attributes, dimension_names=names, compressors=compressors, **layout)
    values = np.random.default_rng(0).integers(1, 60000, layout["shape"]).astype("uint16")
    array[...] = values
    opened: Any = ps.open_array(ps.PartsStore.from_url(str(tmp_path)), "a")
    opened.store.stats.reset()
    assert opened[1, 0, 0] == values[1, 0, 0]
    assert opened.store.stats.calls["get"] == 2


def ome(axes: str, scale: list[float]) -> dict[str, Any]:
    """Return the attributes of a group of OME-Zarr with one level, whose array is `a`."""
    units = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}
    return {
        "ome": {
            "multiscales": [
                {
                    "axes": [{"name": name} | ({"unit": units[name]} if name in units else {}) for name in axes],
                    "datasets": [
                        {"path": "b", "coordinateTransformations": [{"type": "scale", "scale": [9.0] * len(axes)}]},
                        {"path": "a", "coordinateTransformations": [{"type": "scale", "scale": scale}]},
                    ],
                }
            ]
        }
    }


@pytest.mark.parametrize("compressors", ["auto", None])
@pytest.mark.parametrize("tile", [(16, 32), (32, 64)])
def test_ome_zarr_becomes_the_description_of_imagej(tmp_path: Path, compressors: Any, tile: tuple[int, int]) -> None:
    layout: dict[str, Any] = {
        "shape": (2, 3, 2, 90, 100),
        "chunks": (1, 1, 1, *tile),
        "shards": (2, 3, 2, 32, 64),
        "dtype": "uint16",
        "compressors": compressors,
    }
    names = list("tzcyx")
    array = create(tmp_path, ome("tzcyx", [0.5, 2.0, 1.0, 0.4, 0.325]), {}, dimension_names=names, **layout)
    values = np.random.default_rng(0).integers(1, 60000, layout["shape"]).astype("uint16")
    array[...] = values
    for row, column in itertools.product(range(3), range(2)):
        part = values[..., row * 32 : row * 32 + 32, column * 64 : column * 64 + 64]
        with tifffile.TiffFile(tmp_path / "a" / "c" / "0" / "0" / "0" / str(row) / str(column)) as file:
            page: Any = file.pages[0]
            found = file.imagej_metadata
            assert found is not None
            assert found | {"ImageJ": ""} == {
                "ImageJ": "",
                "frames": 2,
                "slices": 3,
                "channels": 2,
                "hyperstack": True,
                "spacing": 2.0,
                "finterval": 0.5,
                "unit": "micron",
            }
            assert (file.series[0].axes, file.series[0].shape) == ("TZCYX", part.shape)
            np.testing.assert_array_equal(file.asarray(), part)
            assert page.tags["XResolution"].value == (40, 13)
            assert page.tags["YResolution"].value == (5, 2)
            assert page.tags["ResolutionUnit"].value == 1
            images = np.stack([each.asarray() for each in file.pages])
            np.testing.assert_array_equal(images, part.reshape(-1, *part.shape[-2:]))


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_stacks_with_missing_strips_have_the_right_values_in_tifffile(tmp_path: Path, missing: int) -> None:
    layout: dict[str, Any] = {"shape": (3, 20, 30), "chunks": (1, 10, 30), "shards": (3, 20, 30), "compressors": None}
    array = create(tmp_path, {}, {"pixel_size": 2}, dimension_names=["z", "y", "x"], **layout)
    values = np.random.default_rng(0).integers(1, 60000, layout["shape"]).astype("uint16")
    values[missing : missing + 1, :10] = 0
    array[...] = values
    with tifffile.TiffFile(tmp_path / "a" / "c" / "0" / "0" / "0") as file:
        np.testing.assert_array_equal(file.asarray(), values)
        assert file.is_imagej == (missing == 3)
    np.testing.assert_array_equal(array[...], values)


@pytest.mark.parametrize("names", [["c", "z", "y", "x"], ["z", "t", "y", "x"], ["z", None, "y", "x"], None])
def test_stacks_in_another_order_than_that_of_imagej_are_not_named(tmp_path: Path, names: Any) -> None:
    layout: dict[str, Any] = {"shape": (2, 3, 32, 64), "chunks": (1, 1, 16, 32), "shards": (2, 3, 32, 64)}
    create(tmp_path, {}, {}, dimension_names=names, **layout)[...] = 1
    with tifffile.TiffFile(tmp_path / "a" / "c" / "0" / "0" / "0" / "0") as file:
        assert file.imagej_metadata is None
        assert len(file.pages) == 6


def test_pixel_size_of_colours_is_that_of_height_and_width(tmp_path: Path) -> None:
    layout: dict[str, Any] = {"shape": (40, 50, 3), "chunks": (16, 16, 3), "shards": (32, 32, 3), "dtype": "uint8"}
    attributes = {"pixel_size": [4, 0.5], "pixel_unit": "µm"}
    create(tmp_path, {}, attributes, dimension_names=["y", "x", "c"], **layout)[...] = 1
    with tifffile.TiffFile(tmp_path / "a" / "c" / "1" / "1" / "0") as file:
        page: Any = file.pages[0]
        assert (page.tags["XResolution"].value, page.tags["YResolution"].value) == ((2, 1), (1, 4))
        # ImageJ's description is ASCII.
        assert "ImageDescription" not in page.tags


KEYS = ["ome", "multiscales", "layout", "asset", "axes", "datasets", "path", "coordinateTransformations", "type"]
KEYS += ["scale", "name", "unit", "spatial:transform", "spatial:shape", "spatial:dimensions", "spatial:registration"]
KEYS += ["proj:code", "proj:wkt2", "pixel_size", "pixel_unit", "GeoTransform", "crs_wkt"]
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda each: st.lists(each, max_size=6) | st.dictionaries(st.sampled_from(KEYS), each, max_size=4),
    max_leaves=20,
)
NODE = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5)


@given(NODE, NODE, NODE)
def test_unusual_attributes_never_prevent_a_write(
    attributes: dict[str, Any], group: dict[str, Any], grid_mapping: dict[str, Any]
) -> None:
    array = ArrayDescription("a", attributes, ("z", "y", "x"), group, grid_mapping)
    found = image_metadata(array, (3,), (64, 128), (512, 512))
    assert len({each.number for each in found.of_all}) == len(found.of_all) <= 5


@given(st.floats(0, allow_nan=False, exclude_min=True))
def test_resolution_is_close_to_the_size_of_pixels(size: float) -> None:
    array = ArrayDescription("a", {"pixel_size": size})
    tags = {each.number: each.values for each in image_metadata(array, (), (0, 0), (1, 1)).of_all}
    if not 1e-9 < size < 1e9:
        assert not tags or all(0 < each < 2**32 for each in tags[282])
        return
    pixels, units = tags[282]
    assert pixels < 2**32
    assert units < 2**32
    np.testing.assert_allclose(units / pixels, size, rtol=1e-6)
