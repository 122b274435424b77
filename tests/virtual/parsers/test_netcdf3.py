"""netCDF3 files are read as xarray reads them with SciPy: types of attributes, missing characters, names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.io import netcdf_file

import parts_store as ps
from tests.virtual.adopting import adopted, repository, settle, stored


def both(path: Path, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
    """What xarray reads of a netCDF3 file, and of the arrays that refer to it."""
    _, adopted_store = adopted(path)
    store: Any = adopted_store
    with xr.open_dataset(path, engine="scipy") as file:
        return file.load(), xr.open_dataset(store, consolidated=False, **options).load()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", ["b", "h", "i"])
@pytest.mark.parametrize("attributes", [{"scale_factor": "f4"}, {"scale_factor": "f4", "add_offset": "f4"}, {}])
def test_packed_netcdf3_variables_are_decoded_as_from_the_file(
    tmp_path: Path, version: int, dtype: str, attributes: dict[str, str]
) -> None:
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w", version=version) as file:
        file.createDimension("t", None)
        file.createDimension("x", 4)
        file.title = b"title"
        # Attributes before and after those in question, in the file and in other variables.
        for name, kinds in (("first", {"scale_factor": "f8"}), ("v", attributes), ("last", {"scale_factor": "f4"})):
            made = file.createVariable(name, dtype, ("t", "x") if name == "v" else ("x",))
            made[:] = [[1, 2, 3, -9]] if name == "v" else [1, 2, 3, -9]
            made._FillValue = np.array(-9, dtype)
            for key, kind in kinds.items():
                setattr(made, key, np.array(0.1, kind)[()])
            made.units = b"odd"
    file_side, found = both(path, engine="parts_store")
    xr.testing.assert_identical(found, file_side)
    assert {name: each.dtype for name, each in found.variables.items()} == {
        name: each.dtype for name, each in file_side.variables.items()
    }


def test_report_and_dataset_of_netcdf3_have_the_byte_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x", 4)
        for name, dtype in (("h", "h"), ("i", "i"), ("f", "f"), ("d", "d")):
            file.createVariable(name, dtype, ("x",))[:] = [1, 2, 3, 4]
    report, _ = adopted(path)
    expected = {"h": ">i2", "i": ">i4", "f": ">f4", "d": ">f8"}
    assert {array.path: array.dtype for array in report.arrays} == expected
    virtual = ps.open_virtual_dataset(path)
    assert {name: variable.dtype.str for name, variable in virtual.variables.items()} == expected


def test_loaded_values_of_netcdf3_are_reported_without_a_byte_order(tmp_path: Path) -> None:
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for number, path in enumerate(paths):
        coordinates = {"t": np.arange(2, dtype="i4") + 2 * number, "x": np.arange(3.0)}
        xr.Dataset({"v": (("t", "x"), np.zeros((2, 3), "f4"))}, coordinates).to_netcdf(path, engine="scipy")
        settle(path)
    report = ps.adopt(paths, into=repository(tmp_path).writable_session("main"), concat_dim="t")
    assert {array.path: array.dtype for array in report.arrays} == {"v": "float32", "t": "int32", "x": "float64"}


def test_netcdf3_file_is_appended_to_references(tmp_path: Path) -> None:
    """The data type of references into the file has its byte order, that of stored arrays has none."""
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for number, path in enumerate(paths):
        variables = {"v": ("t", np.arange(2, dtype="f4")), "static": ("x", np.arange(3, dtype="f4"))}
        xr.Dataset(variables, {"t": np.arange(2, dtype="i4") + 2 * number}).to_netcdf(path, engine="scipy")
        settle(path)
    session = repository(tmp_path).writable_session("main")
    first = ps.adopt(paths[0], into=session)
    assert next(array for array in first.arrays if array.path == "static").references == 1
    ps.adopt(paths[1], into=session, append_dim="t")
    expected = {"v": [0, 1, 0, 1], "static": [0, 1, 2], "t": [0, 1, 2, 3]}
    found = stored(session)
    assert {name: found[name].values.tolist() for name in expected} == expected


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_netcdf3_characters_with_a_missing_value_can_be_opened(tmp_path: Path, name: str) -> None:
    """Xarray refuses to open characters of a Zarr array that have the attribute `_FillValue`."""
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x", 3)
        file.createDimension("n", 2)
        for each, shape in (("code", ("x",)), ("text", ("x", "n"))):
            made = file.createVariable(each, "c", shape)
            made[:] = (
                np.array(list("a-b"), "S1") if len(shape) == 1 else np.array([*map(list, ("ab", "--", "c-"))], "S1")
            )
            setattr(made, name, b"-")
    file_side, found = both(path, engine="parts_store")
    for each in ("code", "text"):
        assert found[each].dtype == file_side[each].dtype
        xr.testing.assert_equal(found[each], file_side[each])
    assert int(found["code"].isnull().sum()) == (name == "_FillValue")
    plain = both(path, engine="zarr")[1]
    assert plain["code"].values.tolist() == [b"a", b"-", b"b"]
    report, _ = adopted(path, strict=True)
    assert sorted(each.name for each in report.skipped) == (
        ["code@_FillValue", "text@_FillValue"] if name == "_FillValue" else []
    )


def test_netcdf3_names_end_before_nul_as_in_the_libraries(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x\0", 3)
        file.createVariable("v\0\0", "i", ("x\0",))[:] = [1, 2, 3]
        file.createVariable("w", "i", ("x\0",))[:] = [4, 5, 6]
        setattr(file.variables["w"], "a\0", b"b")
        setattr(file, "c\0", b"d")
    file_side, found = both(path, engine="parts_store")
    assert list(file_side["v"].dims) == ["x"]
    assert file_side["w"].attrs == {"a": "b"}
    xr.testing.assert_identical(found, file_side)
