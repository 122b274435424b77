"""What a VRT says besides values: where the pixels are on the Earth, bands, units and colours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import zarr
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.transform import Affine

import parts_store as ps
from tests.views import readers

LAYOUT: dict[str, Any] = {
    "shape": (40, 50),
    "chunks": (16, 16),
    "shards": (32, 32),
    "dtype": "uint8",
    "dimension_names": ["y", "x"],
}
UTM, UTM_AFFINE = CRS.from_epsg(32633), [10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0]
CODE = {"proj:code": "EPSG:32633"}
TRANSFORM = {"spatial:transform": UTM_AFFINE}


def georeference_of(tmp_path: Path, array: dict[str, Any], group: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Return the coordinate reference system and the transformation that GDAL finds in the VRT of an array."""
    store = ps.PartsStore.from_url(tmp_path)
    zarr.create_group(store, path="group", attributes=group)
    ps.create_array(store, "group/a", shard_file="tiff", attributes=array, **LAYOUT)[...] = 1
    return georeference_in(store, tmp_path)


def georeference_in(store: ps.PartsStore, tmp_path: Path) -> tuple[Any, Any]:
    key = ps.write_view(store, "group/a", format="vrt")
    with rasterio.open(tmp_path / key) as file:
        return file.crs, file.transform


@pytest.mark.parametrize(
    ("array", "group"),
    [
        (CODE | TRANSFORM, None),
        ({}, CODE | TRANSFORM),
        (TRANSFORM, CODE),
        (TRANSFORM | {"proj:code": None, "proj:wkt2": UTM.to_wkt(version="WKT2_2019")}, None),
        (TRANSFORM | {"proj:projjson": UTM.to_dict(projjson=True)}, None),
        (CODE | TRANSFORM, {"proj:code": "EPSG:4326", "spatial:transform": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]}),
        (CODE | TRANSFORM | {"spatial:dimensions": ["y", "x"], "spatial:transform_type": "affine"}, None),
        # The transformation is for the centers of pixels.
        (CODE | {"spatial:transform": [10, 0, 500005, 0, -10, 4999995], "spatial:registration": "node"}, None),
    ],
)
def test_gdal_finds_the_georeference_of_the_array_or_its_group(
    array: dict[str, Any], group: dict[str, Any] | None, tmp_path: Path
) -> None:
    crs, transform = georeference_of(tmp_path, array, group)
    assert crs == UTM
    assert transform == Affine(*UTM_AFFINE)


@pytest.mark.parametrize(
    "array",
    [
        {"spatial:transform": UTM_AFFINE, "spatial:dimensions": ["lat", "lon"]},
        {"spatial:transform": UTM_AFFINE, "spatial:transform_type": "rpc"},
        {"spatial:transform": [1, 2, 3]},
        {"spatial:transform": "10 0 5 0 10 5"},
        {"grid_mapping": "a/b"},
        {"grid_mapping": "nothing"},
        {"grid_mapping": 5},
        {},
    ],
)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_what_is_not_a_georeference_is_left_out(array: dict[str, Any], tmp_path: Path) -> None:
    assert georeference_of(tmp_path, array) == (None, Affine.identity())


def test_gdal_finds_the_georeference_of_rioxarray(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "group/a", shard_file="tiff", attributes={"grid_mapping": "spatial_ref"}, **LAYOUT)[...] = 1
    attributes = {"crs_wkt": UTM.to_wkt(), "GeoTransform": "500000.0 10.0 0.0 5000000.0 0.0 -10.0"}
    zarr.create_array(store, name="group/spatial_ref", shape=(), dtype="int64", attributes=attributes)
    assert georeference_in(store, tmp_path) == (UTM, Affine(*UTM_AFFINE))


def test_positions_before_the_height_and_colours_are_bands(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(
        store,
        "a",
        shard_file="tiff",
        shape=(2, 3, 32, 48, 4),
        chunks=(1, 1, 16, 16, 4),
        shards=(1, 2, 32, 32, 4),
        dtype="uint8",
        dimension_names=["time", None, "y", "x", "colour"],
        attributes={**CODE, **TRANSFORM, "units": "counts <&>", "scale_factor": 0.5, "add_offset": -3},
    )
    values = np.random.default_rng(1).integers(1, 255, array.shape).astype("uint8")
    array[...] = values
    ps.write_view(store, "a", format="vrt")
    np.testing.assert_array_equal(readers.read_gdal(tmp_path / "a.vrt", 4).reshape(array.shape), values)
    with rasterio.open(tmp_path / "a.vrt") as file:
        assert file.descriptions[:5] == (
            *(f"time=0, axis 1=0, {colour}" for colour in ("red", "green", "blue", "alpha")),
            "time=0, axis 1=1, red",
        )
        assert file.descriptions[-1] == "time=1, axis 1=2, alpha"
        colours = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha)
        assert file.colorinterp == colours * 6
        assert set(file.units) == {"counts <&>"}
        assert (set(file.scales), set(file.offsets)) == ({0.5}, {-3.0})
        assert set(file.nodatavals) == {0.0}


def test_a_part_of_an_image_opens_only_the_files_that_it_needs(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", shard_file="tiff", attributes={**CODE, **TRANSFORM}, **LAYOUT)
    array[...] = 5
    ps.write_view(store, "a", format="vrt")
    (tmp_path / "a/c/0/1").unlink()
    (tmp_path / "a/c/1/1").unlink()
    with rasterio.open(tmp_path / "a.vrt") as file:
        assert (file.read(1, window=((0, 32), (0, 32))) == 5).all()


def test_control_characters_are_replaced(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(
        store,
        "a",
        shard_file="tiff",
        shape=(1, 16, 16),
        chunks=(1, 16, 16),
        shards=(1, 16, 16),
        dtype="uint8",
        dimension_names=["a\0\x1b\ud800b", "y", "x"],
        attributes={**CODE, **TRANSFORM, "units": "\x01"},
    )
    array[...] = 1
    ps.write_view(store, "a", format="vrt")
    with rasterio.open(tmp_path / "a.vrt") as file:
        assert (file.descriptions, file.units) == (("a???b=0",), ("?",))
