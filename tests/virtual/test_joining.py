"""Which files can be joined along a dimension, how, and which are refused by name."""

import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.errors import AdoptionError, ManifestError, StoreConfigError
from parts_store.manifests import PartsArray
from tests.virtual.adopting import combined, joined, netcdf, repository, settle, stored
from tests.virtual.months import Layout, month, read, write

JANUARY, FEBRUARY = np.datetime64("2003-01"), np.datetime64("2003-02")


def plans(files: Any, folder: Path, **options: Any) -> dict[str, str]:
    report = ps.adopt(files, into=repository(folder).writable_session("main"), dry_run=True, **options)
    return {each.path: each.plan for each in report.arrays}


# --- files that do not belong together --------------------------------------------------------------------------------

type Change = Callable[[xr.Dataset], xr.Dataset]

STRANGERS: dict[str, tuple[Change, dict[str, Any], str]] = {
    "data type": (lambda ds: ds.assign(p=ds.p.astype("f8")), {}, "variable 'p': expected the data type float32"),
    "codec": (lambda ds: ds, {"p": {"zlib": False}}, "variable 'p': expected the codecs"),
    "missing variable": (lambda ds: ds.drop_vars("p"), {}, "variable 'p': expected the variable"),
    "another variable": (lambda ds: ds.assign(q=ds.p), {}, "variable 'q': expected none"),
    "dimensions": (lambda ds: ds.assign(p=ds.p.transpose("time", "x", "y")), {"p": {"chunksizes": None}}, "the dimen"),
    "length": (lambda ds: ds.isel(x=slice(0, 29)), {"p": {"chunksizes": None}, "t": {"chunksizes": None}}, "length 30"),
    "grid": (lambda ds: ds.assign_coords(x=ds.x + np.float32(0.5)), {}, r"variable 'x', at \[0\]: expected 0.0"),
    "static values": (lambda ds: ds.assign(area=ds.area + 1), {}, r"variable 'area', at \[0, 0\]: expected 0.0"),
    "packing": (lambda ds: ds, {"t": {"scale_factor": 0.1}}, "variable 't', attribute 'scale_factor': expected 0.01"),
    "fill value": (lambda ds: ds, {"t": {"_FillValue": -1}}, "variable 't', attribute '_FillValue': expected -32768"),
    "units": (lambda ds: ds.assign(p=ds.p.assign_attrs(units="hPa")), {}, "variable 'p', attribute 'units': expected"),
    "overlap": (lambda ds: ds.assign_coords(time=ds.time - np.timedelta64(1, "D")), {}, "found 2003-01-31.*overlap"),
    "order": (lambda ds: ds.isel(time=slice(None, None, -1)), {}, "variable 'time': expected ordered values"),
    "earlier": (lambda ds: ds.assign_coords(time=ds.time - np.timedelta64(90, "D")), {}, "found 2002-11-03"),
}


@pytest.fixture(scope="module")
def january(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(month(JANUARY), tmp_path_factory.mktemp("month") / "01.nc", "day")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_file_that_does_not_belong_to_the_others_is_named(tmp_path: Path, january: Path, kind: str) -> None:
    change, encoding, problem = STRANGERS[kind]
    first = tmp_path / "01.nc"
    first.write_bytes(january.read_bytes())
    settle(first)
    changed = change(month(FEBRUARY))
    other = write(changed, tmp_path / "02.nc", "day", **encoding)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match=problem) as caught:
        ps.adopt([first, other], into=session, concat_dim="time")
    assert caught.value.location == other.as_uri()
    assert str(caught.value).count("\n") == 0
    assert not session.has_uncommitted_changes


def test_a_stray_format_in_the_first_file_is_the_one_that_is_named(tmp_path: Path) -> None:
    stray = tmp_path / "00.nc"
    xr.Dataset({"v": ("time", np.arange(3))}).to_netcdf(stray, engine="scipy")
    files = [netcdf(tmp_path / f"{at}.nc", xr.Dataset({"v": ("time", np.arange(9.0) + at)})) for at in (1, 2)]
    settle(stray)
    with pytest.raises(
        AdoptionError, match=r"expected .*netCDF4, as 2 of 3 files have it, .*1\.nc', found netCDF3; adopt"
    ) as caught:
        plans([stray, *files], tmp_path, concat_dim="time")
    assert caught.value.location == stray.as_uri()
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt([stray, *files], into=session, concat_dim="time", on_error="skip")
    assert [each.name for each in report.failed] == [stray.as_uri()]
    assert {each.path: each.shape for each in report.arrays} == {"v": (18,)}


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compressed_months_are_loaded_below_the_limit_and_refused_above_it(tmp_path: Path) -> None:
    files = [write(month(each), tmp_path / f"{each}.nc", "month") for each in (JANUARY, FEBRUARY)]
    found = plans(files, tmp_path, concat_dim="time")
    assert "loaded, because its compressed chunks are not on one grid" in found["t"]
    with pytest.raises(
        AdoptionError, match=r"variable 't': its compressed.*max_loaded_nbytes=1,000.*length divides .* such as 1"
    ):
        plans(files, tmp_path, concat_dim="time", max_loaded_nbytes=1000)
    # What the message says is possible.
    chosen = plans(files, tmp_path, concat_dim="time", max_loaded_nbytes=1000, loadable_variables=["t", "p", "area"])
    assert chosen["t"] == chosen["p"] == "the values are stored"
    assert "t" not in plans(files, tmp_path, concat_dim="time", variables=["steps"])


def test_compressed_chunks_that_divide_the_files_stay_references(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((3, 20, 30, 40))
    files = [
        netcdf(
            tmp_path / f"{at}.nc",
            xr.Dataset({"v": (("time", "y", "x"), values[at])}, {"time": np.arange(20) + 20 * at}),
            v={"chunksizes": (5, 30, 40), "zlib": True},
        )
        for at in range(3)
    ]
    dataset = ps.open_virtual_mfdataset(files)
    assert isinstance(dataset["v"].data, PartsArray)
    assert dataset["v"].data.references.grid == (12, 1, 1)
    assert np.array_equal(combined(files)["v"], values.reshape(60, 30, 40))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dims", "shape"), [(("time", "y", "x"), (-1, 40, 50)), (("z", "time", "x"), (1, -1, 500))], ids=["first", "second"]
)
def test_contiguous_arrays_are_cut_into_rows_of_one_step(
    tmp_path: Path, dims: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    axis, starts = dims.index("time"), [0, 7, 10, 15]
    row = np.prod(shape) * -1
    values = np.random.default_rng(1).random(15 * row, "f4").reshape(shape)
    files = [
        netcdf(
            tmp_path / f"{start}.nc",
            xr.Dataset({"v": (dims, values.take(range(start, stop), axis))}, {"time": np.arange(start, stop)}),
        )
        for start, stop in pairwise(starts)
    ]
    dataset = ps.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
    assert dataset["v"].data.references.grid == tuple(15 if each == "time" else 1 for each in dims)
    assert np.array_equal(dataset["v"].load(), values)
    assert np.array_equal(combined(files, concat_dim="time")["v"], values)


def test_rows_that_are_not_ranges_of_bytes_are_loaded(tmp_path: Path) -> None:
    # The second axis is not the slowest one of a contiguous array.
    values = [np.random.default_rng(each).random((40, each, 50), "f4") for each in (3, 2)]
    files = [
        netcdf(tmp_path / f"{at}.nc", xr.Dataset({"v": (("z", "t", "x"), each)})) for at, each in enumerate(values)
    ]
    assert "loaded" in plans(files, tmp_path, concat_dim="t")["v"]
    assert np.array_equal(combined(files, concat_dim="t")["v"], np.concatenate(values, axis=1))


def test_files_without_the_dimension_are_steps_of_it(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((4, 30, 40))
    files = [
        netcdf(
            tmp_path / f"{at}.nc",
            xr.Dataset({"v": (("y", "x"), values[at])}, {"run": 10 * at, "y": np.arange(30)}),
        )
        for at in range(4)
    ]
    found = combined(files, concat_dim="run")
    assert found["v"].dims == ("run", "y", "x")
    assert np.array_equal(found["v"], values)
    assert found["run"].values.tolist() == [0, 10, 20, 30]


# --- meaning ----------------------------------------------------------------------------------------------------------


def test_times_that_files_count_from_different_days_are_equal_afterwards(tmp_path: Path) -> None:
    """Also for a variable that is not a coordinate, and in units that the first file cannot express."""
    files = []
    for at, units in enumerate(["days since 2001-01-01", "hours since 2003-05-01"]):
        times = np.datetime64("2003-05-01T00", "ns") + (np.arange(4) + 4 * at) * np.timedelta64(6, "h")
        taken = times - np.timedelta64(90, "m")
        dataset = xr.Dataset({"taken": ("time", taken), "v": ("time", np.arange(4.0))}, {"time": times})
        stored = {"units": units, "dtype": "f8"}
        files.append(netcdf(tmp_path / f"{at}.nc", dataset, time=stored, taken=stored))
    xr.testing.assert_equal(combined(files, concat_dim="time"), read(files))


@pytest.mark.parametrize("batches", [(3,), (1, 1, 1), (2, 1)])
@pytest.mark.parametrize("is_step", [True, False])
def test_times_and_their_bounds_are_equal_whatever_day_each_file_counts_from(
    tmp_path: Path, is_step: bool, batches: tuple[int, ...]
) -> None:
    """Times that are no coordinate of a dimension, or one value in each file; their bounds have no units."""
    files = []
    for at in range(3):
        times = np.datetime64("2003-05-01", "ns") + (np.arange(4) + 4 * at) * np.timedelta64(1, "D")
        taken = xr.Variable("time", times + np.timedelta64(3, "h"), {"bounds": "span"})
        span = np.stack([times, times + np.timedelta64(1, "D")], 1)
        dataset = xr.Dataset({"taken": taken, "span": (("time", "nv"), span)}, {"time": times})
        if is_step:
            dataset = dataset.isel(time=0, drop=True).rename(taken="time").set_coords("time")
        name = "time" if is_step else "taken"
        encoding = {name: {"units": f"hours since {str(times[0])[:10]}", "dtype": "i8"}}
        files.append(netcdf(tmp_path / f"{at}.nc", dataset, **encoding))
    session = repository(tmp_path).writable_session("main")
    for at, count in enumerate(batches):
        dim: dict[str, Any] = {"append_dim" if at else "concat_dim": "time"}
        ps.adopt(files[sum(batches[:at]) : sum(batches[:at]) + count], into=session, **dim)
    xr.testing.assert_equal(stored(session), read(files))


@pytest.mark.slow
def test_static_variables_are_compared_or_said_not_to_be(tmp_path: Path) -> None:
    layout: Layout = "day"
    files = [write(month(each), tmp_path / f"{each}.nc", layout) for each in (JANUARY, FEBRUARY)]
    assert "compared" not in plans(files, tmp_path, concat_dim="time")["area"]
    limited = plans(files, tmp_path, concat_dim="time", max_loaded_nbytes=4000)
    assert "taken from the first file, and not compared with the others: 5,760 bytes" in limited["area"]


# --- by coordinates ---------------------------------------------------------------------------------------------------


def tile(row: int, column: int, day: int) -> xr.Dataset:
    values = np.random.default_rng([row, column, day]).random((1, 20, 30))
    return xr.Dataset(
        {"v": (("day", "y", "x"), values)},
        {"day": [day], "y": 60.0 - np.arange(20) - 20 * row, "x": np.arange(30) + 30 * column},
    )


@pytest.mark.slow
def test_tiles_are_put_together_by_their_coordinates_in_any_order(tmp_path: Path) -> None:
    places = [(row, column, day) for row in range(2) for column in range(2) for day in range(3)]
    files = [
        netcdf(tmp_path / f"{at}.nc", tile(*place), v={"chunksizes": (1, 10, 30), "zlib": True})
        for at, place in enumerate(reversed(places))
    ]
    expected = xr.combine_by_coords([tile(*place) for place in places])
    assert isinstance(expected, xr.Dataset)
    found = combined(files)
    xr.testing.assert_equal(found, expected)
    # y decreases in the files, and is kept so.
    assert found["y"].values.tolist() == list(range(60, 20, -1))


@pytest.mark.slow
def test_files_with_different_variables_are_merged(tmp_path: Path) -> None:
    whole = [month(each)[["t", "p"]] for each in (JANUARY, FEBRUARY)]
    files = [
        netcdf(tmp_path / f"{name}{at}.nc", each[[name]], **{name: {"chunksizes": (1, 24, 30)}})
        for at, each in enumerate(whole)
        for name in ("t", "p")
    ]
    xr.testing.assert_equal(combined(files), xr.concat(whole, "time"))
    shifted = whole[0][["p"]].assign_coords(x=whole[0].x + 1)
    strangers = [files[0], netcdf(tmp_path / "shifted.nc", shifted)]
    with pytest.raises(AdoptionError, match=r"shifted.nc.*variable 'x', at \[0\]"):
        combined(strangers)


def test_files_that_do_not_differ_need_a_dimension(tmp_path: Path) -> None:
    files = [netcdf(tmp_path / f"{at}.nc", tile(0, 0, 0)) for at in range(2)]
    with pytest.raises(StoreConfigError, match="concat_dim: expected `concat_dim`, because the files do not differ"):
        combined(files)
    with pytest.raises(StoreConfigError, match="combine"):
        combined(files, combine="nested")


def model_days(path: Path, first: int, calendar: str) -> Path:
    """A file of three days after 27 February 2004, in a calendar that may have no leap years."""
    dataset = xr.Dataset({"v": (("time", "x"), np.full((3, 400), first, "f4"))}, {"time": np.arange(first, first + 3)})
    dataset["time"].attrs = {"units": "days since 2004-02-27", "calendar": calendar}
    return netcdf(path, dataset)


def test_times_in_the_calendars_of_models_are_joined(tmp_path: Path) -> None:
    files = [model_days(tmp_path / f"{first}.nc", first, "noleap") for first in (0, 3, 6)]
    found = stored(joined(files, "time", at_once=2))
    xr.testing.assert_identical(found, read(files))
    assert [str(each)[5:10] for each in found["time"].values[:3]] == ["02-27", "02-28", "03-01"]
    other = model_days(tmp_path / "other.nc", 9, "360_day")
    with pytest.raises(AdoptionError, match="variable 'time': expected the data type DatetimeNoLeap, noleap"):
        combined([*files, other], concat_dim="time")


@pytest.mark.parametrize(
    ("before", "added", "text"),
    [
        ("standard", "noleap", "expected the data type datetime64, as it is stored, found DatetimeNoLeap, noleap"),
        ("noleap", "360_day", "expected the data type DatetimeNoLeap, noleap, as it is stored, found Datetime360Day"),
        ("noleap", "standard", "expected the data type DatetimeNoLeap, noleap, as it is stored, found datetime64"),
    ],
)
def test_times_of_another_calendar_are_not_appended(tmp_path: Path, before: str, added: str, text: str) -> None:
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    ps.adopt(model_days(tmp_path / "stored.nc", 0, before), into=session)
    session.commit("stored")
    session = repo.writable_session("main")
    with pytest.raises(ManifestError, match=f"coordinate 'time': {text}"):
        ps.adopt(model_days(tmp_path / "added.nc", 3, added), into=session, append_dim="time")
    assert not session.has_uncommitted_changes


def test_a_package_for_a_calendar_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [model_days(tmp_path / f"{first}.nc", first, "noleap") for first in (0, 3)]
    monkeypatch.setitem(sys.modules, "cftime", None)
    with pytest.raises(ImportError, match="times in the calendar 'noleap' need cftime: pip install cftime"):
        combined(files, concat_dim="time")


def test_bounds_that_are_numbers_name_no_variable(tmp_path: Path) -> None:
    """An attribute `bounds` with several numbers was looked up like a name, which raised a TypeError."""
    files = [tmp_path / f"{at}.nc" for at in range(2)]
    for at, path in enumerate(files):
        with h5py.File(path, "w") as file:
            days = file.create_dataset("day", data=[2.0 * at, 2.0 * at + 1])
            days.make_scale("day")
            days.attrs.update(bounds=[0.0, 9.0], units="days since 2000-01-01")
            file.create_dataset("v", data=np.full((2, 500), at, "f4")).dims[0].attach_scale(days)
        settle(path)
    session = joined(files, "day")
    found = zarr.open_array(ps.PartsStore.from_session(session), path="v", mode="r")
    assert np.array_equal(np.asarray(found[:, 0]), [0, 0, 1, 1])


def test_files_whose_missing_chunks_are_nan_are_joined(tmp_path: Path) -> None:
    files = []
    for day in range(2):
        files.append(tmp_path / f"{day}.nc")
        with h5py.File(files[-1], "w") as file:
            days = file.create_dataset("day", data=[float(day)])
            days.make_scale("day")
            values = file.create_dataset("t", (1, 40), "f4", chunks=(1, 10), fillvalue=np.nan)
            values[0, :10] = day
            values.dims[0].attach_scale(days)
        settle(files[-1])
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files, into=session, concat_dim="day")
    found = stored(session)["t"].values
    expected = np.full((2, 40), np.nan, "f4")
    expected[:, :10] = [[0], [1]]
    np.testing.assert_array_equal(found, expected)


def test_files_that_filters_were_left_out_of_are_refused_with_advice(tmp_path: Path) -> None:
    values = [np.arange(2000, dtype="i4").reshape(2, 1000) + 7 * number for number in range(2)]
    for number, each in enumerate(values):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=2 * number + np.arange(2)).make_scale("x")
            made = file.create_dataset("v", (2, 1000), "i4", chunks=(1, 1000), compression="gzip")
            made.dims[0].attach_scale(file["x"])
            for at, row in enumerate(each):
                data = row.tobytes() if number else zlib.compress(row.tobytes())
                made.id.write_direct_chunk((at, 0), data, filter_mask=number)
        settle(tmp_path / f"{number}.h5")
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match=r"filters may be left out of its chunks .*`loadable_variables` with 'v'"):
        ps.adopt(tmp_path / "?.h5", into=session, concat_dim="x")
    ps.adopt(tmp_path / "?.h5", into=session, concat_dim="x", loadable_variables=["v"])
    found = zarr.open_array(ps.PartsStore.from_session(session), path="v")[...]
    assert np.array_equal(found, np.concatenate(values))
