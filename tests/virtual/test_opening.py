"""Files as virtual datasets, with the arguments of VirtualiZarr, and in its pipelines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtualizarr
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import AdoptionError, LocationError, StoreConfigError
from parts_store.manifests import PartsArray
from tests.virtual.adopting import settle
from tests.virtual.months import month, read, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months whose lengths differ, chunked by day."""
    made = tmp_path_factory.mktemp("months")
    for each in ("2003-02", "2003-03"):
        write(month(np.datetime64(each)), made / f"{each}.nc", "day")
    return made.resolve()


def is_virtual(dataset: xr.Dataset) -> set[str]:
    return {str(name) for name, each in dataset.variables.items() if isinstance(each.data, PartsArray)}


def test_coordinates_are_loaded_and_data_is_virtual(folder: Path) -> None:
    with xr.open_dataset(folder / "2003-02.nc", engine="h5netcdf") as file:
        expected = file.load()
    found = ps.open_virtual_dataset(folder / "2003-02.nc")
    assert is_virtual(found) == {"t", "p", "steps", "area", "height"}
    for name in ("time", "time_bnds", "x", "y"):
        xr.testing.assert_identical(found[name].variable, expected[name].variable)
    assert set(found.coords) == set(expected.coords)
    assert found.encoding["source"] == (folder / "2003-02.nc").as_uri()
    xr.testing.assert_identical(xr.decode_cf(found.load()), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "virtual"),
    [
        ({"loadable_variables": []}, {"t", "p", "steps", "area", "height", "time", "x", "y", "time_bnds"}),
        ({"loadable_variables": ["t", "time"]}, {"p", "steps", "area", "height", "x", "y", "time_bnds"}),
        ({"drop_variables": ["t", "time"]}, {"p", "steps", "area", "height", "time_bnds"}),
        ({"parser": ps.parsers.HDF5()}, {"t", "p", "steps", "area", "height"}),
    ],
)
def test_arguments_are_those_of_virtualizarr(folder: Path, arguments: dict[str, Any], virtual: set[str]) -> None:
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    url = (folder / "2003-02.nc").as_uri()
    found = ps.open_virtual_dataset(url, registry, **arguments)
    assert is_virtual(found) == virtual
    theirs = virtualizarr.open_virtual_dataset(url, registry, **{"parser": ps.parsers.HDF5(), **arguments})
    assert set(theirs.variables) == set(found.variables)


def test_times_are_not_decoded_if_not_wanted(folder: Path) -> None:
    found = ps.open_virtual_dataset(folder / "2003-02.nc", decode_times=False)
    assert found["time"].values.tolist() == list(range(28))
    assert found["time"].attrs["units"].startswith("days since 2003-02-01")


def test_a_group_is_opened_by_its_path(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/a/b": xr.Dataset({"v": ("x", np.arange(5))})})
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    assert ps.open_virtual_dataset(tmp_path / "tree.nc", group="a/b")["v"].shape == (5,)
    with pytest.raises(StoreConfigError, match="group: expected one of the groups: a, a/b"):
        ps.open_virtual_dataset(tmp_path / "tree.nc", group="c")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", [{}, {"combine": "nested", "concat_dim": "time"}, {"compat": "override"}])
def test_many_files_are_joined_as_xarray_joins_them(folder: Path, arguments: dict[str, Any]) -> None:
    files = sorted(folder.glob("*.nc"))
    found = ps.open_virtual_mfdataset(files, **arguments)
    assert is_virtual(found) >= {"t", "p", "area"}
    xr.testing.assert_identical(xr.decode_cf(found.load()), read(files))


@pytest.mark.slow
def test_datasets_are_changed_before_they_are_joined(folder: Path) -> None:
    files = sorted(folder.glob("*.nc"))

    def preprocess(dataset: xr.Dataset) -> xr.Dataset:
        return dataset[["p"]].rename(p="pressure").drop_vars("height")

    found = ps.open_virtual_mfdataset(folder / "*.nc", preprocess=preprocess, attrs_file=files[1])
    assert list(found.data_vars) == ["pressure"]
    assert found.attrs["history"] == "written in 2003-03"
    assert np.array_equal(found["pressure"].load(), read(files)["p"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"concat_dim": "time"}, "concat_dim: expected None for 'by_coords'"),
        ({"combine": "nested"}, "concat_dim: expected the name of one dimension"),
        ({"combine": "nested", "concat_dim": ["time", "x"]}, "concat_dim"),
        ({"combine": "magic"}, "combine"),
        ({"data_vars": "all"}, "data_vars: expected 'minimal'"),
        ({"coords": "different"}, "coords"),
        ({"join": "outer"}, "join"),
        ({"attrs_file": "other.nc"}, "attrs_file"),
        ({"parallel": "threads"}, "executor"),
        ({"registry": {}, "region": "x"}, "options"),
    ],
)
def test_arguments_that_are_not_supported_are_refused(folder: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(StoreConfigError, match=problem):
        ps.open_virtual_mfdataset(folder / "*.nc", **arguments)


def test_only_registered_files_are_read(folder: Path, tmp_path: Path) -> None:
    url = (folder / "2003-02.nc").as_uri()
    with pytest.raises(LocationError, match="no registered store covers this URL"):
        ps.open_virtual_dataset(url, {"s3://bucket": LocalStore()})
    # References of a kerchunk file to another folder.
    virtual = ps.open_virtual_dataset(url)[["p"]].drop_vars(["time", "x", "y", "height"])
    outside = tmp_path / "references.json"
    references = virtual["p"].data.to_manifest_array()
    xr.Dataset({"p": (("time", "y", "x"), references)}).vz.to_kerchunk(str(outside), format="json")
    settle(outside)
    with pytest.raises(LocationError, match="no registered store covers this URL"):
        ps.open_virtual_dataset(outside)
    both = ObjectStoreRegistry({"file://": LocalStore()})
    found = ps.open_virtual_dataset(outside, both)
    with xr.open_dataset(folder / "2003-02.nc", engine="h5netcdf", mask_and_scale=False) as expected:
        assert np.array_equal(found["p"].load(), expected["p"])


def test_one_dataset_is_of_one_file(folder: Path) -> None:
    with pytest.raises(StoreConfigError, match="one file"):
        ps.open_virtual_dataset(folder / "*.nc")
    with pytest.raises(StoreConfigError, match="expected a file that exists"):
        ps.open_virtual_dataset(folder / "none.nc")
    with pytest.raises(AdoptionError, match="found a folder"):
        ps.open_virtual_dataset(folder)


def test_opening_many_files_reports_progress(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    ps.open_virtual_mfdataset(folder / "*.nc", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    with pytest.raises(StoreConfigError, match="progress: expected True"):
        ps.open_virtual_mfdataset(folder / "*.nc", progress=1)  # type: ignore[arg-type] # that is what the test is about
