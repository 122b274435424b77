"""What an HDF5 view says besides values: attributes, dimensions and coordinates, as xarray reads them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps

LAYOUT: dict[str, Any] = {
    "shape": (4, 20, 30),
    "chunks": (1, 10, 10),
    "shards": (2, 20, 20),
    "dtype": "float32",
    "fill_value": float("nan"),
}


def make(tmp_path: Path, **arguments: Any) -> tuple[ps.PartsStore, zarr.Array[Any]]:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "group/cube", **{"shard_file": "hdf5", **LAYOUT, **arguments})
    return store, array


def test_xarray_finds_dimensions_coordinates_and_attributes(tmp_path: Path) -> None:
    attributes = {"units": "K", "nested": {"a": [1]}, "flags": [1, 2]}
    store, array = make(tmp_path, dimension_names=["time", "y", "x"], attributes=attributes)
    values = np.random.default_rng(1).random(array.shape).astype("float32")
    array[:2] = values[:2]
    values[2:] = np.nan
    days: dict[str, Any] = {"units": "days since 2000-01-01", "calendar": "standard"}
    time = zarr.create_array(
        store, name="group/time", shape=(4,), dtype="int32", dimension_names=["time"], attributes=days
    )
    time[:] = [0, 31, 60, 91]
    zarr.create_array(store, name="group/x", data=np.linspace(0, 1, 30), dimension_names=["x"])
    # It is no coordinate: its length is another.
    zarr.create_array(store, name="group/y", data=np.arange(7), dimension_names=["y"])
    ps.write_view(store, "group/cube", format="hdf5")
    moved = tmp_path / "moved"
    (tmp_path / "group").rename(moved)
    with xr.open_dataset(moved / "cube.h5", engine="h5netcdf") as dataset:
        assert dict(dataset.sizes) == {"time": 4, "y": 20, "x": 30}
        np.testing.assert_array_equal(dataset["cube"], values)
        assert dataset["cube"].attrs["units"] == "K"
        assert dataset["cube"].attrs["nested"] == '{"a": [1]}'
        assert dataset["cube"].attrs["flags"].tolist() == [1, 2]
        assert set(dataset.coords) == {"time", "x"}
        assert dataset["time"].values.astype("datetime64[D]").astype(str).tolist() == [
            *("2000-01-01", "2000-02-01", "2000-03-01", "2000-04-01")
        ]
        np.testing.assert_array_equal(dataset["x"], np.linspace(0, 1, 30))
        assert dataset.attrs == {}
        selected = dataset["cube"].sel(time="2000-02-01").isel(y=19, x=29)
        assert selected == values[1, 19, 29]


def test_the_dataset_is_virtual_and_small(tmp_path: Path) -> None:
    store, array = make(tmp_path)
    array[...] = 1
    ps.write_view(store, "group/cube", format="hdf5")
    with h5py.File(tmp_path / "group/cube.h5") as file:
        assert list(file) == ["cube"]
        sources = file["cube"].virtual_sources()
        assert sorted(each.file_name for each in sources) == [
            f"cube/c/{time}/0/{x}" for time in range(2) for x in range(2)
        ]
        assert {each.dset_name for each in sources} == {"cube"}
    # It has no values.
    assert (tmp_path / "group/cube.h5").stat().st_size < array.nbytes


def test_a_coordinate_array_is_its_own_dimension(tmp_path: Path) -> None:
    store, array = make(
        tmp_path, shape=(20,), chunks=(5,), shards=(10,), dtype="int16", fill_value=-1, dimension_names=["cube"]
    )
    array[:10] = np.arange(10)
    ps.write_view(store, "group/cube", format="hdf5")
    with xr.open_dataset(tmp_path / "group/cube.h5", engine="h5netcdf") as dataset:
        assert list(dataset.coords) == ["cube"]
        assert dataset["cube"].values.tolist() == [*range(10), *[-1] * 10]


@pytest.mark.parametrize("names", [["", "a/b", "."], ["cube", None, "z\0\n"], ["x", "x", "x"], [None, None, None]])
def test_names_that_netcdf_cannot_have_are_left_out(names: list[str | None], tmp_path: Path) -> None:
    store, array = make(tmp_path, shape=(20, 20, 20), shards=(20, 20, 20), dimension_names=names)
    array[...] = 1
    ps.write_view(store, "group/cube", format="hdf5")
    with h5py.File(tmp_path / "group/cube.h5") as file:
        assert set(file) == ({"cube", "x"} if names[0] == "x" else {"cube"})
        np.testing.assert_array_equal(file["cube"][...], np.ones((20, 20, 20)))


def test_coordinates_may_be_texts(tmp_path: Path) -> None:
    store, array = make(tmp_path, dimension_names=["band", "y", "x"])
    array[...] = 1
    bands = zarr.create_array(store, name="group/band", shape=(4,), dtype="str", dimension_names=["band"])
    bands[:] = np.array(["rot", "grün", "blau", ""], dtype=object)
    ps.write_view(store, "group/cube", format="hdf5")
    with xr.open_dataset(tmp_path / "group/cube.h5", engine="h5netcdf") as dataset:
        assert dataset["band"].values.tolist() == ["rot", "grün", "blau", ""]


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        ("float32", "AAAAAAAA+H8=", np.nan),
        ("float32", "AAAAAABAj0A=", 1000.0),
        ("float32", 1000.0, 1000.0),
        ("int16", -999, -999),
        ("int16", 70000, None),
        ("int16", "text", None),
        ("float32", "no base64", None),
        ("float32", [1.0], None),
    ],
)
def test_fill_values_of_netcdf_have_the_type_of_the_data(
    dtype: str, given: Any, expected: float | None, tmp_path: Path
) -> None:
    store, array = make(tmp_path, dtype=dtype, fill_value=0, attributes={"_FillValue": given})
    array[...] = 1
    array[0, 0, 0] = 0 if expected is None else expected
    ps.write_view(store, "group/cube", format="hdf5")
    with h5py.File(tmp_path / "group/cube.h5") as file:
        found = file["cube"].attrs.get("_FillValue")
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == dtype
            np.testing.assert_equal(float(found), float(expected or 0))
    with xr.open_dataset(tmp_path / "group/cube.h5", engine="h5netcdf", phony_dims="sort") as dataset:
        assert np.isnan(dataset["cube"][0, 0, 0]) == (expected is not None)


def test_a_renamed_array_is_found_by_the_name_in_its_files(tmp_path: Path) -> None:
    store, array = make(tmp_path)
    array[...] = 1
    (tmp_path / "group/cube").rename(tmp_path / "group/other")
    store = ps.PartsStore.from_url(tmp_path)
    ps.write_view(store, "group/other", format="hdf5")
    with h5py.File(tmp_path / "group/other.h5") as file:
        np.testing.assert_array_equal(file["other"][...], np.ones(array.shape))


def test_large_attributes_do_not_hide_a_dataset(tmp_path: Path) -> None:
    store, array = make(tmp_path, attributes={"text": "x" * 50_000, **{f"key {n}": "value" * 50 for n in range(200)}})
    array[...] = 1
    ps.write_view(store, "group/cube", format="hdf5")
    with h5py.File(tmp_path / "group/cube.h5") as file:
        np.testing.assert_array_equal(file["cube"][...], np.ones(array.shape))
        assert len(file["cube"].attrs) == 201
    assert ps.write_view(store, "group/cube", format="hdf5") == "group/cube.h5", "it is still known as a view"


def test_coordinates_in_shards_are_no_data_and_cost_no_requests(tmp_path: Path) -> None:
    counts = []
    for length in (None, 60_000):
        store = ps.PartsStore.from_url(tmp_path / str(length))
        shape: dict[str, Any] = {
            "shape": (60_000,),
            "chunks": (1000,),
            "shards": (60_000,),
            "dtype": "int16",
            "fill_value": 0,
        }
        array: Any = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["x"], **shape)
        if length is not None:
            # They are larger than what is read of the start of a file.
            zarr.create_array(store, name="x", data=np.arange(length))
        array[:] = np.arange(60_000) % 1000
        store.stats.reset()
        ps.write_view(store, "cube", format="hdf5")
        counts.append(store.stats.calls["get"])
        with xr.open_dataset(tmp_path / str(length) / "cube.h5", engine="h5netcdf") as dataset:
            np.testing.assert_array_equal(dataset["cube"], np.arange(60_000) % 1000)
            assert list(dataset.coords) == ([] if length is None else ["x"])
    # zarr looks for the document of the coordinates, also for those of Zarr v2, and reads their two chunks.
    assert counts[1] == counts[0] + 5
