"""Variables that several files have, and of which one is kept, are the same in all of them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.errors import AdoptionError
from parts_store.manifests import PartsArray
from tests.virtual.adopting import combined, netcdf, repository

SHAPE, GRID = (20, 30), ("y", "x")
AREA = np.random.default_rng(0).random(SHAPE)


def days(name: str, first: int = 0, **static: Any) -> xr.Dataset:
    """Three days of a variable that is named, and `area`, which has no days."""
    values = np.random.default_rng([first, *name.encode()]).random((3, *SHAPE))
    shared = {"area": (GRID, AREA)} | static
    return xr.Dataset({name: (("day", "y", "x"), values), **shared}, {"day": np.arange(first, first + 3)})


def merged(*datasets: xr.Dataset) -> xr.Dataset:
    found = xr.combine_by_coords(datasets, compat="no_conflicts", data_vars="minimal", combine_attrs="override")
    assert isinstance(found, xr.Dataset)
    return found


def refusal(files: list[Path], **options: Any) -> AdoptionError:
    """The error for files, of which nothing was written."""
    session = repository(files[0].parent).writable_session("main")
    with pytest.raises(AdoptionError) as caught:
        ps.adopt(files, into=session, **options)
    assert not session.has_uncommitted_changes
    with pytest.raises(AdoptionError, match=r"."):
        ps.open_virtual_mfdataset(files)
    return caught.value


def test_files_that_agree_about_a_shared_variable_are_merged(tmp_path: Path) -> None:
    datasets = [days("t"), days("p"), days("t", 3), days("p", 3)]
    files = [netcdf(tmp_path / f"{at}.nc", each) for at, each in enumerate(datasets)]
    assert isinstance(ps.open_virtual_mfdataset(files)["area"].data, PartsArray)
    xr.testing.assert_equal(combined(files), merged(*datasets))


PLACE = AREA[7, 3]
CHANGES: dict[str, tuple[Any, str]] = {
    "values": ((GRID, np.where(AREA == PLACE, 5.0, AREA)), r"variable 'area', at \[7, 3\]: expected 0.*, as in"),
    "NaN": ((GRID, np.where(AREA == PLACE, np.nan, AREA)), r"variable 'area', at \[7, 3\]: .* found nan"),
    "units": ((GRID, AREA, {"units": "m2"}), "variable 'area', attribute 'units': expected none, as in .* 'm2'"),
    "dimensions": ((("x", "y"), AREA.T), r"variable 'area': expected the dimensions \('y', 'x'\)"),
    "packing": ((GRID, AREA, {"scale_factor": 2.0}), "variable 'area', attribute 'scale_factor': expected none"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("first", [0, 3], ids=["the same days", "other days"])
def test_a_shared_variable_that_differs_is_named_with_both_files(tmp_path: Path, kind: str, first: int) -> None:
    """Whether files are merged, because they have other variables, or joined, because they have other days."""
    changed, problem = CHANGES[kind]
    name = "p" if first == 0 else "t"
    files = [netcdf(tmp_path / "a.nc", days("t")), netcdf(tmp_path / "b.nc", days(name, first, area=changed))]
    error = refusal(files)
    assert error.location == files[1].as_uri()
    assert re.search(problem, str(error)), str(error)
    assert f"as in {files[0].as_uri()!r}" in str(error)
    if kind in ("values", "NaN"):
        # Not compared, the values are those of the first file.
        found = ps.open_virtual_mfdataset(files, compat="override")
        assert np.array_equal(found["area"].load(), AREA)


def test_a_shared_variable_with_days_is_compared_too(tmp_path: Path) -> None:
    both = days("t").assign(p=days("p")["p"])
    other = days("q").assign(p=days("p")["p"])
    files = [netcdf(tmp_path / "a.nc", both), netcdf(tmp_path / "b.nc", other)]
    xr.testing.assert_equal(combined(files), merged(both, other))
    netcdf(files[1], other.assign(p=other["p"] + 1))
    assert refusal(files).problems[0][0] == "variable 'p', at [0, 0, 0]"


def test_equal_numbers_of_another_type_are_equal(tmp_path: Path) -> None:
    whole = np.arange(600.0).reshape(SHAPE)
    datasets = [days("t", area=(GRID, whole)), days("p", area=(GRID, whole.astype("f4")))]
    files = [netcdf(tmp_path / f"{at}.nc", each) for at, each in enumerate(datasets)]
    xr.testing.assert_equal(combined(files), merged(*datasets))


def test_a_shared_variable_that_is_too_large_to_compare_is_refused(tmp_path: Path) -> None:
    files = [netcdf(tmp_path / "a.nc", days("t")), netcdf(tmp_path / "b.nc", days("p"))]
    session = repository(tmp_path).writable_session("main")
    message = r"b\.nc.*variable 'area': '.*a\.nc' has it too, and 9,600 bytes are too many.*max_loaded_nbytes=9,000"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, max_loaded_nbytes=9000)
    # What the message says is possible.
    ps.adopt(files, into=session, path="a", max_loaded_nbytes=9600)
    ps.adopt(files, into=session, path="b", max_loaded_nbytes=9000, variables=["t", "p"])
    # Nothing is compared that refers to the same bytes, or if the caller says so.
    ps.open_virtual_mfdataset(files, compat="override", max_loaded_nbytes=0)


def test_dimensions_without_coordinates_have_one_length(tmp_path: Path) -> None:
    files = [netcdf(tmp_path / "a.nc", days("t")), netcdf(tmp_path / "b.nc", days("p")[["p"]].isel(x=slice(9)))]
    error = refusal(files)
    assert error.problems[0] == ("dimension 'x'", f"expected the length 30, as in {files[0].as_uri()!r}, found 9")


def test_variables_in_groups_are_named_with_their_paths(tmp_path: Path) -> None:
    files = []
    for at, area in enumerate([AREA, AREA + 1]):
        groups = {"/": days("t", 3 * at), "/deep/er": days("u", 3 * at, area=(GRID, area))}
        files.append(netcdf(tmp_path / f"{at}.nc", xr.DataTree.from_dict(groups)))
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match=r"1\.nc.*variable 'deep/er/area', at \[0, 0\]"):
        ps.adopt(files, into=session, concat_dim="day")


def test_variables_are_chosen_from_files_that_do_not_all_have_them(tmp_path: Path) -> None:
    datasets = [days("t"), days("p"), days("t", 3), days("p", 3)]
    files = [netcdf(tmp_path / f"{at}.nc", each) for at, each in enumerate(datasets)]
    xr.testing.assert_equal(combined(files, variables=["t", "p"]), merged(*datasets)[["t", "p"]])
    loaded = combined(files, variables=["p", "t"], loadable_variables=["p"])
    xr.testing.assert_equal(loaded, merged(*datasets)[["t", "p"]])
