"""Files of unusual lengths: without steps along the dimension, with large variables, or contiguous."""

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.errors import AdoptionError, ManifestError
from parts_store.manifests import PartsArray
from parts_store.virtual.description import rows_of_file
from tests.virtual.adopting import joined, netcdf, repository, settle, stored
from tests.virtual.months import read

LAYOUTS: dict[str, dict[str, Any]] = {"contiguous": {}, "chunked": {"chunksizes": (1, 20, 30), "zlib": True}}


# --- files without steps ----------------------------------------------------------------------------------------------


def write(path: Path, first: int, days: int, layout: str, dtype: str = "f8") -> Path:
    values = np.random.default_rng(first).random((days, 20, 30)).astype(dtype)
    dataset = xr.Dataset(
        {"t": (("day", "y", "x"), values, {"units": "K"}), "area": (("y", "x"), np.arange(600.0).reshape(20, 30))},
        {"day": np.datetime64("2020-01-01", "ns") + np.arange(first, first + days) * np.timedelta64(1, "D")},
    )
    units = {"units": "days since 2000-01-01", "dtype": "i4"}
    unlimited = ["day"] if layout == "chunked" else []
    dataset.to_netcdf(path, engine="h5netcdf", encoding={"t": LAYOUTS[layout], "day": units}, unlimited_dims=unlimited)
    settle(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_file_without_steps_adds_nothing(tmp_path: Path, layout: str, empty: int) -> None:
    days = [0 if at == empty else 2 for at in range(3)]
    files = [write(tmp_path / f"{at}.nc", 2 * at, each, layout) for at, each in enumerate(days)]
    expected = read([file for at, file in enumerate(files) if at != empty], "day")
    ordered = repository(tmp_path).writable_session("main")
    ps.adopt(files, into=ordered)
    for session in (joined(files, "day"), ordered, joined(files, "day", at_once=1)):
        xr.testing.assert_identical(stored(session), expected)


def test_files_that_are_all_without_steps_are_an_array_without_steps(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{at}.nc", 0, 0, "chunked") for at in range(2)]
    assert stored(joined(files, "day"))["t"].shape == (0, 20, 30)


def test_what_a_file_without_steps_contradicts_is_named(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{at}.nc", 2 * at, 2 * at, "contiguous", kind) for at, kind in enumerate(["f4", "f8"])]
    # The data type of no values does not matter.
    session = joined(files, "day")
    assert stored(session)["t"].dtype == np.float64
    with h5py.File(files[0], "r+") as file:
        file["t"].attrs["units"] = "degC"
    settle(files[0])
    message = r"0\.nc.*variable 't', attribute 'units': expected 'K', .*1\.nc', found 'degC'"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, path="b", concat_dim="day")


def test_arrays_without_values_are_copied_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=np.arange(6), chunks=(2,))
        file.create_dataset("none", (0, 3), "f4", chunks=(2, 3), maxshape=(None, 3), compression="gzip")
        file.create_dataset("nothing", (3, 0), "i2")
    store = ps.PartsStore.from_url(tmp_path / "copy.zarr")
    report = ps.adopt(tmp_path / "a.h5", into=store, copy=True)
    assert report.is_complete
    found = {name: zarr.open_array(store, path=name, mode="r") for name in ("v", "none", "nothing")}
    assert {name: each.shape for name, each in found.items()} == {"v": (6,), "none": (0, 3), "nothing": (3, 0)}
    assert found["none"].chunks == (2, 3)
    assert np.array_equal(np.asarray(found["v"][...]), np.arange(6))


# --- large variables of one dimension ---------------------------------------------------------------------------------


def series(path: Path, length: int) -> Path:
    """A file with one contiguous variable of one dimension, which has no coordinate."""
    values = np.random.default_rng(length).random(length)
    return netcdf(path, xr.Dataset({"v": ("n", values)}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lengths", [(600, 600, 600), (900, 300, 600), (1300, 650, 1950)])
def test_a_series_that_is_too_large_to_load_is_cut_into_blocks(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    files = [series(tmp_path / f"{at}.nc", length) for at, length in enumerate(lengths)]
    virtual = ps.open_virtual_mfdataset(files, combine="nested", concat_dim="n", max_loaded_nbytes=1000)
    assert isinstance(virtual["v"].data, PartsArray)
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files[:2], into=session, concat_dim="n", max_loaded_nbytes=1000)
    assert report.arrays[0].references > 0
    # The next file is cut in the same way, though it could be loaded.
    report = ps.adopt(files[2], into=session, append_dim="n")
    assert report.arrays[0].references > 0
    for found in (virtual.load(), stored(session)):
        xr.testing.assert_equal(found, read(files, "n"))
    other = series(tmp_path / "other.nc", 601)
    with pytest.raises(ManifestError, match=r"array 'v': expected the chunk shape"):
        ps.adopt(other, into=session, append_dim="n", max_loaded_nbytes=1000)


def test_a_series_without_a_common_length_is_loaded_or_refused(tmp_path: Path) -> None:
    files = [series(tmp_path / f"{length}.nc", length) for length in (600, 601)]
    session = repository(tmp_path).writable_session("main")
    message = "variable 'v': its rows are small, the lengths of the files have no common divisor above 1, and its 9,608"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, concat_dim="n", max_loaded_nbytes=9607)
    ps.adopt(files, into=session, concat_dim="n", max_loaded_nbytes=9608)
    xr.testing.assert_equal(stored(session), read(files, "n"))


URL = "s3://bucket/file"


@pytest.mark.parametrize("rows", [1, 2, 12, 97, 4096, 4097, 2**20, 2**20 + 7, 10**7 + 19, 2**25 + 1])
@pytest.mark.parametrize("columns", [1, 3, 2**20, 2**26])
def test_contiguous_array_is_cut_into_equal_chunks(rows: int, columns: int) -> None:
    chunk_shape, columns_of_manifest = rows_of_file(URL, 100, (rows, columns), 1)
    found = chunk_shape[0]
    assert rows % found == 0
    assert rows // found <= 4096
    small = [count for count in range(1, 4097) if rows % count == 0 and rows // count * columns <= 2**25]
    # The largest that are not too large, if there are any; few enough in any case.
    assert rows // found == (small[0] if small else rows // found)
    if not small:
        assert rows // found in (1, rows)
    # One after the other, from the offset to the end.
    ranges = list(zip(columns_of_manifest.offsets.flat, columns_of_manifest.lengths.flat, strict=True))
    assert [int(offset) for offset, _ in ranges] == [100 + at * found * columns for at in range(len(ranges))]
    assert sum(int(length) for _, length in ranges) == rows * columns


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4)])
def test_arrays_of_any_number_of_axes_are_described(shape: tuple[int, ...]) -> None:
    chunk_shape, found = rows_of_file(URL, 5, shape, 8)
    assert len(chunk_shape) == found.paths.ndim == len(shape)
    assert int(found.lengths.sum()) == 8 * math.prod(shape)
    assert set(found.paths.flat) == {URL}
