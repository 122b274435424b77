"""Appended values are stored as the numbers of the files, and refused if they stand for other values there."""

import warnings
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.errors import UnstableSpecificationWarning

import parts_store as ps
from parts_store.errors import ManifestError
from tests.virtual.adopting import joined, repository, settle, stored


def write(
    path: Path, values: Any, first: float, attributes: dict[str, Any], time: dict[str, str] | None = None
) -> Path:
    """Write a small variable along the time, which is loaded and stored when it is adopted."""
    with h5py.File(path, "w") as file:
        scale = file.create_dataset("time", data=first + np.arange(len(values), dtype="f8"))
        scale.make_scale("time")
        scale.attrs.update(time or {})
        dataset = file.create_dataset("v", data=values)
        dataset.dims[0].attach_scale(scale)
        dataset.attrs.update(attributes)
    settle(path)
    return path


def numbers(session: icechunk.Session) -> Any:
    return zarr.open_array(ps.PartsStore.from_session(session), path="v", mode="r")[...]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("values", "attributes"),
    [
        (np.array([2**60 + 1, -1, 2**60 + 3]), {"_FillValue": np.int64(-1)}),
        (np.array([2**63 + 1, 5, 2**60 + 3], "u8"), {"_FillValue": np.uint64(5)}),
        (np.array([-1, -2, 7], "i2"), {"_FillValue": np.int16(-1), "missing_value": np.int16(-2)}),
        (np.array([-1, -2, 7], "i1"), {"_Unsigned": "true", "_FillValue": np.int8(-1)}),
        (np.array([1, 2, 7], ">i4"), {"scale_factor": 0.1, "add_offset": 3.0}),
        (np.array([1.5, np.nan, -9], "f4"), {"_FillValue": np.float32(-9)}),
    ],
    ids=["int64", "uint64", "two fill values", "unsigned", "packed", "float"],
)
def test_appended_numbers_are_those_of_the_file(tmp_path: Path, values: Any, attributes: dict[str, Any]) -> None:
    files = [write(tmp_path / f"{at}.nc", values, 3 * at, attributes) for at in range(3)]
    session = joined(files, "time", at_once=1)
    assert numbers(session).tobytes() == np.tile(values.astype(values.dtype.newbyteorder("=")), 3).tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("missing", [{}, {"_FillValue": np.bytes_("x")}], ids=["", "fill value"])
@pytest.mark.parametrize("loaded", [False, True], ids=["references", "loaded"])
def test_characters_are_appended_with_their_axis(tmp_path: Path, missing: dict[str, Any], loaded: bool) -> None:
    texts = [np.array([f"ab{at}", "xb", "", "é"], object) for at in range(3)]
    letters = [np.array([each.encode() for each in part], "S3").view("S1").reshape(4, 3) for part in texts]
    files = [write(tmp_path / f"{at}.nc", each, 4 * at, missing) for at, each in enumerate(letters)]
    session = repository(tmp_path).writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        ps.adopt(files[0], into=session, concat_dim="time" if loaded else None)
        for file in files[1:]:
            ps.adopt(file, into=session, append_dim="time")
    assert numbers(session).tolist() == np.concatenate(letters).tolist()
    found = stored(session)
    assert found["v"].values.tolist() == [each.encode() for part in texts for each in part]


@pytest.mark.parametrize(
    ("stored", "given"),
    [({"scale_factor": 1.0}, {"scale_factor": 0.1}), ({"scale_factor": 1.0}, {}), ({}, {"_FillValue": np.int16(2)})],
    ids=["other", "missing", "added"],
)
def test_loaded_values_with_another_packing_are_not_appended(
    tmp_path: Path, stored: dict[str, Any], given: dict[str, Any]
) -> None:
    values = np.array([1, 2, 4], "i2")
    files = [write(tmp_path / f"{at}.nc", values, 3 * at, each) for at, each in enumerate((stored, given))]
    session = joined(files[:1], "time")
    with pytest.raises(ManifestError, match=r"array 'v', attribute '(scale_factor|_FillValue)'"):
        ps.adopt(files[1], into=session, append_dim="time")
    assert np.array_equal(numbers(session), values)


def test_decoded_values_with_another_packing_are_not_rounded(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    given = xr.Dataset({"v": ("time", [0.1, 0.4])}, {"time": [2, 3]})
    given["v"].encoding = {"scale_factor": 0.1, "dtype": "int16"}
    stored = xr.Dataset({"v": ("time", [1.0, 2.0])}, {"time": [0, 1]})
    stored["v"].encoding = {"scale_factor": 1.0, "dtype": "int16"}
    ps.to_icechunk(stored, session)
    with pytest.raises(ManifestError, match=r"array 'v', attribute 'scale_factor': expected 1.0, found 0.1"):
        ps.to_icechunk(given, session, append_dim="time")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian", "standard"])
def test_times_that_are_floating_point_numbers_are_appended_in_every_calendar(tmp_path: Path, calendar: str) -> None:
    time = {"units": "days since 1850-01-01", "calendar": calendar}
    files = [write(tmp_path / f"{at}.nc", np.arange(3.0), 3 * at + 0.25, {}, time) for at in range(3)]
    found = stored(joined(files, "time", at_once=2))
    expected = xr.open_mfdataset(files, engine="h5netcdf", combine="nested", concat_dim="time")
    xr.testing.assert_equal(found, expected.load())
