"""What an append does not change must be in the new file, and be the same as what is stored."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

import parts_store as ps
from parts_store.errors import ManifestError
from tests.virtual.adopting import joined, netcdf, repository, stored

AREA = np.random.default_rng(0).random((20, 30)).astype("f4")
AREA[3, 4] = np.nan
REGISTRY = ObjectStoreRegistry({"file://": LocalStore()})


def days(first: int, area: Any = AREA, name: str = "t") -> xr.Dataset:
    values = np.random.default_rng(first).random((2, 20, 30))
    return xr.Dataset({name: (("day", "y", "x"), values), "area": (("y", "x"), area)}, {"day": [first, first + 1]})


@pytest.fixture
def session(tmp_path: Path) -> icechunk.Session:
    """A session with the days 0 and 1, committed."""
    made = repository(tmp_path)
    session = made.writable_session("main")
    ps.adopt(netcdf(tmp_path / "0.nc", days(0)), into=session, path="a", concat_dim="day")
    session.commit("first days")
    return made.writable_session("main")


def test_a_file_with_the_same_values_is_appended(session: icechunk.Session, tmp_path: Path) -> None:
    report = ps.adopt(netcdf(tmp_path / "2.nc", days(2)), into=session, path="a", append_dim="day")
    assert {each.path: each.plan for each in report.arrays}["a/area"] == "not changed"
    expected = xr.concat([days(0), days(2)], "day", data_vars="minimal")
    xr.testing.assert_equal(stored(session, "a"), expected)
    # Compressed in other chunks, the values are the same, too.
    later = netcdf(tmp_path / "4.nc", days(4), area={"zlib": True, "chunksizes": (5, 30)})
    ps.adopt(later, into=session, path="a", append_dim="day")
    assert stored(session, "a").sizes["day"] == 6


def test_a_static_variable_that_differs_is_named(session: icechunk.Session, tmp_path: Path) -> None:
    changed = AREA.copy()
    changed[7, 3] = 5
    file = netcdf(tmp_path / "2.nc", days(2, changed))
    message = r"array 'a/area', at \[7, 3\]: expected 0\..*, as it is stored, found 5.0 in .*2\.nc.; leave the variable"
    with pytest.raises(ManifestError, match=message):
        ps.adopt(file, into=session, path="a", append_dim="day")
    assert not session.has_uncommitted_changes
    # What the message says is possible.
    ps.adopt(file, into=session, path="a", append_dim="day", variables=["t"])
    np.testing.assert_array_equal(stored(session, "a")["area"], AREA)
    assert stored(session, "a")["day"].values.tolist() == [0, 1, 2, 3]


def test_a_static_text_that_differs_is_named(tmp_path: Path) -> None:
    """The text was looked up like a number, which raised an AttributeError."""
    files = [
        netcdf(tmp_path / f"{first}.nc", days(first).assign(note=("k", np.array(["a", text], object))))
        for first, text in ((0, "b"), (2, "other"))
    ]
    session = joined(files[:1], "day")
    message = r"array 'note', at \[1\]: expected 'b', as it is stored, found 'other' in"
    with pytest.raises(ManifestError, match=message):
        ps.adopt(files[1], into=session, append_dim="day")


def test_a_static_variable_that_is_missing_is_named(session: icechunk.Session, tmp_path: Path) -> None:
    file = netcdf(tmp_path / "2.nc", days(2).drop_vars("area"))
    with pytest.raises(ManifestError, match=r"array 'a/area': expected the variable that is stored, found none in the"):
        ps.adopt(file, into=session, path="a", append_dim="day")
    assert not session.has_uncommitted_changes
    ps.adopt(file, into=session, path="a", append_dim="day", variables=["t"])
    assert stored(session, "a")["day"].values.tolist() == [0, 1, 2, 3]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", ["append", "region"])
def test_references_without_a_registry_are_read_from_the_containers(
    session: icechunk.Session, tmp_path: Path, change: str
) -> None:
    arguments: dict[str, Any] = {"append_dim": "day"} if change == "append" else {"region": {"day": slice(0, 2)}}
    for number, area in enumerate([AREA + 1, AREA]):
        file = netcdf(tmp_path / f"new-{number}.nc", days(2 if change == "append" else 0, area))
        virtual = open_virtual_dataset(str(file), REGISTRY, HDFParser(), loadable_variables=["day"])
        # Days in chunks of their own, as `adopt` stores them.
        rows = ps.open_virtual_mfdataset([file], combine="nested", concat_dim="day")
        source = virtual[["area", "day"]].assign(t=rows["t"])
        if number == 0:
            with pytest.raises(ManifestError, match=r"array 'a/area', at \[0, 0\]: expected 0\..*, found 1\."):
                ps.to_icechunk(source, session, path="a", **arguments)
            assert not session.has_uncommitted_changes
        else:
            ps.to_icechunk(source, session, path="a", **arguments)
    # Without the variable, what is stored stays.
    ps.to_icechunk(source.drop_vars("area").assign_coords(day=[4, 5]), session, path="a", append_dim="day")
    np.testing.assert_array_equal(stored(session, "a")["area"], AREA)


def test_values_that_cannot_be_read_are_named(session: icechunk.Session, tmp_path: Path) -> None:
    file = netcdf(tmp_path / "2.nc", days(2))
    source = ps.open_virtual_mfdataset([file], combine="nested", concat_dim="day")
    file.unlink()
    message = r"array 'a/area': expected values that can be read.*no such file.*leave the variable out.*or load it"
    with pytest.raises(ManifestError, match=message):
        ps.to_icechunk(source, session, path="a", append_dim="day")


def test_a_static_variable_that_is_too_large_is_not_compared_and_the_report_says_so(
    session: icechunk.Session, tmp_path: Path
) -> None:
    file = netcdf(tmp_path / "2.nc", days(2))
    report = ps.adopt(file, into=session, path="a", append_dim="day", max_loaded_nbytes=4000)
    plans = {each.path: each.plan for each in report.arrays}
    assert plans["a/area"] == "not changed, and not compared with what is stored: 4,800 bytes"


def tree(first: int, names: tuple[str, ...]) -> xr.DataTree:
    groups = {"/": days(first), "/g": days(first, name="u"), "/g/h": days(first, name="v")}
    return xr.DataTree.from_dict({name: groups[name] for name in names})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", [("/",), ("/", "/g")])
def test_a_group_that_is_missing_is_named(tmp_path: Path, names: tuple[str, ...]) -> None:
    session = repository(tmp_path).writable_session("main")
    ps.adopt(netcdf(tmp_path / "0.nc", tree(0, ("/", "/g", "/g/h"))), into=session, path="a", concat_dim="day")
    missing = {1: "g", 2: "g/h"}[len(names)]
    file = netcdf(tmp_path / "2.nc", tree(2, names))
    message = rf"array 'a/{missing}/.*': expected values along 'day', .* found none .* without a group 'a/{missing}'"
    with pytest.raises(ManifestError, match=message):
        ps.adopt(file, into=session, path="a", append_dim="day")
    ps.adopt(netcdf(tmp_path / "3.nc", tree(2, ("/", "/g", "/g/h"))), into=session, path="a", append_dim="day")
    assert {stored(session, f"a{path}").sizes["day"] for path in ("", "/g", "/g/h")} == {4}


@pytest.mark.slow
def test_a_group_that_was_stored_independently_does_not_matter(session: icechunk.Session, tmp_path: Path) -> None:
    three = xr.concat([days(0), days(2)], "day", data_vars="minimal").isel(day=slice(3))
    ps.adopt(netcdf(tmp_path / "other.nc", three), into=session, path="a/other", concat_dim="day")
    ps.adopt(netcdf(tmp_path / "2.nc", days(2)), into=session, path="a", append_dim="day")
    assert stored(session, "a")["day"].values.tolist() == [0, 1, 2, 3]
