"""Adopted netCDF4 files: xarray opens the same dataset as from the file."""

from pathlib import Path
from typing import Any

import h5netcdf.legacyapi
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from tests.virtual.adopting import adopted, array, repository, settle

DAYS = np.datetime64("2000-01-01", "ns") + np.arange(12) * np.timedelta64(30, "D")
KINDS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


def weather() -> xr.Dataset:
    """Several variables on two axes and time, some of them packed."""
    random = np.random.default_rng(3)
    temperature = random.normal(280, 10, (12, 5, 7)).astype("f4")
    temperature[2, 3] = np.nan
    packed = random.normal(0, 50, (12, 5, 7))
    packed[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "temperature": (("time", "y", "x"), temperature, {"units": "K", "valid_range": np.array([0, 400], "f4")}),
            "packed": (("time", "y", "x"), packed, {"long_name": "packed in 16 bits"}),
            "count": (("time",), np.arange(12)),
            "time_bounds": (
                ("time", "edge"),
                DAYS[:, None] + np.array([0, 30], "m8[D]"),
            ),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0}),
        },
        {
            "time": ("time", DAYS, {"bounds": "time_bounds"}),
            "y": ("y", np.linspace(-10, 10, 5)),
            "x": ("x", np.arange(7, dtype="f4")),
            "area": (("y", "x"), random.random((5, 7))),
        },
        {"title": "weather", "version": 3, "missing": np.float64(1.5)},
    )


ENCODING: dict[str, Any] = {
    "temperature": {"zlib": True, "shuffle": True, "chunksizes": (5, 2, 4), "_FillValue": np.float32(-999)},
    "packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -32768, "chunksizes": (4, 5, 7)},
    "time": {"units": "days since 1999-12-31"},
    "area": {"fletcher32": True, "chunksizes": (2, 3)},
}


def open_both(path: Path, group: str | None = None, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
    """What xarray reads of the file, and of the arrays that refer to it."""
    _, store = adopted(path)
    found = xr.open_zarr(store, group=group, consolidated=False, chunks=None, **options)
    with xr.open_dataset(path, engine="h5netcdf", group=group, **options) as file:
        return file.load(), found.load()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("decode", [True, False])
def test_xarray_sees_the_same_dataset(tmp_path: Path, decode: bool, pipeline: str) -> None:
    path = tmp_path / "a.nc"
    weather().to_netcdf(path, engine="h5netcdf", encoding=ENCODING, unlimited_dims=["time"])
    report, _ = adopted(path)
    # A dimension without a variable is no loss.
    assert [(each.name, each.has_values) for each in report.skipped] == [("edge", False)]
    adopted(path, strict=True)
    file, found = open_both(path, decode_cf=decode)
    if decode:
        xr.testing.assert_identical(found, file)
        assert np.issubdtype(found["time"].dtype, np.datetime64)
        for name in file.variables:
            assert found[name].dtype == file[name].dtype
    else:
        for name in file.variables:
            assert np.array_equal(found[name].values, file[name].values)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
def test_fill_values_of_every_type_are_masked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.nc"
    fills = (
        [np.iinfo(kind).max, np.iinfo(kind).min] if kind[0] in "iu" else [np.nan, -1e30, np.inf, 9.969209968386869e36]
    )
    with h5netcdf.legacyapi.Dataset(path, "w") as file:
        file.createDimension("x", 10)
        for number, fill in enumerate(fills):
            made = file.createVariable(f"v{number}", kind, ("x",), chunksizes=(3,), fill_value=np.array(fill, kind)[()])
            made[1:5] = np.arange(1, 5)
            made[2] = np.array(fill, kind)
    for options in ({"mask_and_scale": True}, {"mask_and_scale": False}):
        file_side, found = open_both(path, None, **options)
        for name in file_side.variables:
            # What is beyond a double's precision has become one in the file's reader too.
            assert found[name].dtype == file_side[name].dtype
            assert np.array_equal(found[name].values, file_side[name].values, equal_nan=True)


@pytest.mark.slow
def test_groups_are_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    weather().to_netcdf(path, engine="h5netcdf", encoding=ENCODING)
    weather().isel(time=slice(3)).to_netcdf(
        path, engine="h5netcdf", group="deep/inside", mode="a", encoding={"time": ENCODING["time"]}
    )
    for group in (None, "deep/inside"):
        file, found = open_both(path, group)
        xr.testing.assert_identical(found, file)
    _, store = adopted(path)
    assert sorted(name for name, _ in zarr.open_group(store, path="deep", mode="r").groups()) == ["inside"]


def test_a_missing_value_of_nan_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with h5netcdf.legacyapi.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        file.createVariable("v", "f4", ("x",), chunksizes=(3,))[:] = [1, np.nan, 3, 4]
        file["v"].setncattr("missing_value", np.float32(np.nan))
    expected, found = open_both(path)
    assert np.array_equal(found["v"].values, expected["v"].values, equal_nan=True)


@pytest.mark.slow
def test_texts_and_characters_are_as_xarray_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    dataset = weather()
    dataset["names"] = ("x", np.array(list("abcdefg"), object))
    dataset["characters"] = ("x", np.array([b"ab"] * 7, "S2"))
    dataset.to_netcdf(path, engine="h5netcdf", encoding=ENCODING)
    report, _ = adopted(path, strict=True)
    # Characters have one byte each. Texts of any length are in a part of the file that zarr cannot read.
    assert [each.path for each in report.loaded] == ["names"]
    file, found = open_both(path)
    xr.testing.assert_identical(found, file)


def test_dimensions_without_names_get_some(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(12.0).reshape(3, 4)
        file["b"] = np.arange(4)
        file["c"] = np.arange(16).reshape(4, 4)
    _, store = adopted(path)
    found = xr.open_zarr(store, consolidated=False, chunks=None)
    with xr.open_dataset(path, engine="h5netcdf", phony_dims="access") as expected:
        assert {name: each.shape for name, each in expected.items()} == {
            name: each.shape for name, each in found.items()
        }
        for name in expected:
            assert len(set(found[name].dims)) == found[name].ndim
            assert np.array_equal(found[name].values, expected[name].values)


def test_variable_with_the_name_of_a_dimension_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with h5netcdf.legacyapi.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        file.createDimension("y", 2)
        file.createVariable("x", "i4", ("y",))[:] = [1, 2]
        file.createVariable("y", "f8", ("y", "x"))[:] = np.arange(6).reshape(2, 3)
    report, store = adopted(path)
    assert sorted(each.path for each in report.arrays) == ["x", "y"]
    group: Any = zarr.open_group(store, mode="r")
    with h5netcdf.legacyapi.Dataset(path) as file:
        for name in ("x", "y"):
            assert group[name].metadata.dimension_names == file[name].dimensions
            assert np.array_equal(group[name][...], file[name][...])


def test_append_to_adopted_array_leaves_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    weather().to_netcdf(path, engine="h5netcdf", encoding=ENCODING)
    before = path.read_bytes()
    _, store = adopted(path)
    array = zarr.open_array(store, path="temperature", mode="r+")
    array[3, 2] = 7
    assert np.all(zarr.open_array(ps.PartsStore.from_session(store.session), path="temperature")[3, 2] == 7)
    assert path.read_bytes() == before


def test_variables_have_the_length_of_their_unlimited_dimension(tmp_path: Path) -> None:
    """Xarray refused variables of different lengths; readers of netCDF fill the shorter ones."""
    path = tmp_path / "a.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": None, "x": 3}
        # Without filters, compressed, with a chunk that ends beyond the variable, as text, and without any values.
        long = file.create_variable("long", ("time", "x"), "f8", chunks=(2, 3), fillvalue=-1.0)
        short = file.create_variable("short", ("time", "x"), "i4", chunks=(4, 2), compression="gzip", fillvalue=-5)
        names = file.create_variable("names", ("time",), h5py.string_dtype(), chunks=(2,))
        file.create_variable("none", ("time",), "f4", chunks=(2,), fillvalue=7.0)
        file.resize_dimension("time", 7)
        long[...] = np.arange(21.0).reshape(7, 3)
        short[...] = np.arange(21).reshape(7, 3)
        names[...] = np.array(list("abcdefg"), object)
    with h5py.File(path, "a") as plain:
        plain["short"].resize((5, 3))
        plain["names"].resize((3,))
        plain["none"].resize((0,))
    report, _ = adopted(path, strict=True)
    assert {each.path: each.shape for each in report.arrays} == {
        "long": (7, 3),
        "short": (7, 3),
        "names": (7,),
        "none": (7,),
    }
    # xarray cannot open texts of another length with h5netcdf.
    file_dataset, found = open_both(path, drop_variables=["names"])
    assert file_dataset["short"].isnull().sum() == 6
    xr.testing.assert_identical(found, file_dataset)
    _, store = adopted(path)
    assert array(store, "names")[:].tolist() == ["a", "b", "c", "", "", "", ""]


@pytest.mark.parametrize("axis", [0, 1])
def test_bytes_behind_a_contiguous_variable_are_not_its_values(tmp_path: Path, axis: int) -> None:
    """A contiguous variable that is shorter than its unlimited dimension was read on beyond its end."""
    path = tmp_path / "a.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": None, "x": 2}
        file.create_variable("time", ("time",), "f8", chunks=(4,))
        file.resize_dimension("time", 8)
        file.variables["time"][...] = np.arange(8.0)
    values = np.arange(10.0).reshape((5, 2) if axis == 0 else (2, 5))
    with h5py.File(path, "a") as plain:
        short = plain.create_dataset("short", data=values, fillvalue=-1.0)
        short.dims[axis].attach_scale(plain["time"])
        short.dims[1 - axis].attach_scale(plain["x"])
        plain["behind"] = np.full(100, 99.0)
    report, store = adopted(path, strict=True)
    shape = (8, 2) if axis == 0 else (2, 8)
    expected = np.full(shape, -1.0)
    expected[: values.shape[0], : values.shape[1]] = values
    assert np.array_equal(array(store, "short")[:], expected)
    assert next(each.loaded for each in report.arrays if each.path == "short") is not None


def test_attributes_are_the_numbers_that_xarray_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    not_finite = {"missing_value": np.float32(np.nan), "valid_range": np.array([-np.inf, np.nan]), "top": np.inf}
    dataset = xr.Dataset({"v": (("x",), np.arange(4, dtype="f4"), not_finite)}, attrs={"limits": [np.nan, 1.0]})
    dataset["texts"] = ("x", np.array(["a", "-", "", "d"], object))
    dataset.to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        file["texts"].attrs["_FillValue"] = "-"
    file_dataset, found = open_both(path)
    assert file_dataset["texts"].isnull().sum() == 1
    xr.testing.assert_identical(found, file_dataset)
    assert found["v"].attrs["top"] == np.inf


def test_attributes_that_are_not_finite_can_be_changed_later(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    xr.Dataset({"v": (("x",), np.arange(4.0), {"top": np.inf})}).to_netcdf(path, engine="h5netcdf")
    _, store = adopted(path)
    stored: Any = zarr.open_array(store, path="v", mode="r+")
    stored.attrs["bottom"] = -np.inf
    assert dict(zarr.open_array(store, path="v", mode="r").attrs)["top"] == np.inf
    assert dict(zarr.open_array(store, path="v", mode="r").attrs)["bottom"] == -np.inf


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("i2", {"scale_factor": "f4"}),
        ("i2", {"scale_factor": "f4", "add_offset": "f4"}),
        ("i4", {"scale_factor": "f4", "add_offset": "f4"}),
        ("i2", {"add_offset": "f4"}),
        ("i2", {"scale_factor": "f4", "add_offset": "f8"}),
        ("u1", {"scale_factor": "f8", "add_offset": "f8"}),
    ],
)
def test_values_that_xarray_decodes_with_another_type_are_listed(
    tmp_path: Path, dtype: str, attributes: dict[str, str]
) -> None:
    path = tmp_path / "a.nc"
    given = {name: np.array(0.5, kind)[()] for name, kind in attributes.items()}
    xr.Dataset({"v": (("x",), np.arange(4, dtype=dtype), given)}).to_netcdf(path, engine="h5netcdf")
    report, _ = adopted(path, strict=True)
    file, found = open_both(path)
    xr.testing.assert_equal(found, file.astype("f8"))
    listed = [each.name for each in report.skipped if "float32" in each.reason]
    assert listed == (["v@scale_factor"] if found["v"].dtype != file["v"].dtype else [])


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_a_missing_value_of_bytes_is_listed(tmp_path: Path, name: str) -> None:
    """JSON has no bytes, so that xarray masks the value in the file, and not in the adopted array."""
    path = tmp_path / "a.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 2}
        file.create_variable("x", ("x",), "i4", data=[0, 1])
        made = file.create_variable("codes", ("x",), "S2", data=np.array([b"ab", b"-"]))
        made.attrs[name] = np.bytes_(b"-")
    file_dataset, found = open_both(path)
    assert [int(each["codes"].isnull().sum()) for each in (file_dataset, found)] == [1, 0]
    report, _ = adopted(path)
    assert [(each.name, each.reason[:6]) for each in report.skipped] == [(f"codes@{name}", "bytes,")]


def test_texts_of_many_files_are_joined(tmp_path: Path) -> None:
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.nc")
        names = np.array([f"{number} {letter}" * (number + 1) for letter in "abü"], object)
        dataset = xr.Dataset(
            {"name": (("x",), names), "t": (("x",), np.arange(3.0) + number)}, {"x": np.arange(3) + 3 * number}
        )
        dataset.to_netcdf(files[-1], engine="h5netcdf")
        settle(files[-1])
    session = repository(tmp_path).writable_session("main")
    assert ps.adopt(files, into=session, concat_dim="x").is_complete
    found = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False, chunks=None)
    expected = xr.open_mfdataset(files, engine="h5netcdf", combine="nested", concat_dim="x")
    xr.testing.assert_identical(found.load(), expected.load())
    expected.close()
