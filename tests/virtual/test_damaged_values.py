"""One file of many has a coordinate that cannot be read or decoded: it is named, or skipped and listed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.errors import AdoptionError
from tests.virtual.adopting import netcdf, repository, settle, stored

UNITS = "days since 2000-01-01"


def write(path: Path, first: int, units: str = UNITS, bounds: str = "bounds") -> Path:
    """Two days of a variable, with bounds of the days in compressed chunks."""
    days = np.arange(first, first + 2)
    dataset = xr.Dataset(
        {"v": (("day", "x"), np.full((2, 500), first, "f4")), bounds: (("day", "side"), np.stack([days, days + 1], 1))},
        {"day": ("day", days, {"units": units, "bounds": bounds})},
    )
    chunks = {name: {"zlib": True, "chunksizes": dataset[name].shape} for name in ("day", bounds)}
    return netcdf(path, dataset, **chunks)


def damage(path: Path, name: str) -> None:
    """Overwrite the first chunk of a dataset."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(0)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\x55" * chunk.size)
    settle(path)


def forget(path: Path) -> None:
    write(path, 2, units="days since forever")


def far(path: Path) -> None:
    write(path, 2**62, units="days since 2000-01-01")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "coordinate": (lambda path: damage(path, "day"), "variable 'day': its values cannot be read: error: Error -3"),
    "bounds": (lambda path: damage(path, "bounds"), "variable 'bounds': its values cannot be read: error: Error -3"),
    "units": (forget, "variable 'day': expected values that xarray can decode, found unable to decode time units"),
    "times": (far, "variable '(day|bounds)': expected values that xarray can decode, found"),
}


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Path], str]:
    """Three files, of which the second one is damaged, and the problem."""
    files = [write(tmp_path / f"{at}.nc", 2 * at) for at in range(3)]
    change, problem = DAMAGES[request.param]
    change(files[1])
    return files, problem


@pytest.mark.sampled(8)
@pytest.mark.parametrize("options", [{"concat_dim": "day"}, {}], ids=["nested", "by coordinates"])
def test_the_damaged_file_is_named_or_skipped_and_listed(
    damaged: tuple[list[Path], str], options: dict[str, Any]
) -> None:
    files, problem = damaged
    session = repository(files[0].parent).writable_session("main")
    with pytest.raises(AdoptionError, match=problem) as caught:
        ps.adopt(files, into=session, **options)
    assert caught.value.location == files[1].as_uri()
    assert not session.has_uncommitted_changes
    with pytest.raises(AdoptionError, match=problem) as caught:
        ps.open_virtual_mfdataset(files)
    assert caught.value.location == files[1].as_uri()
    strange = files[0].with_name("4.nc")
    strange.write_text("no netCDF file")
    report = ps.adopt([strange, *files], into=session, on_error="skip", **options)
    assert [each.name for each in report.failed] == [strange.as_uri(), files[1].as_uri()]
    assert re.match(problem, report.failed[1].reason), report.failed[1].reason
    with xr.open_mfdataset([files[0], files[2]], engine="h5netcdf", data_vars="minimal", join="exact") as expected:
        xr.testing.assert_equal(stored(session), expected.load())


def test_a_damaged_variable_that_has_to_be_loaded_is_named_with_its_file(tmp_path: Path) -> None:
    """Compressed chunks that are not on one grid have to be loaded."""
    session = repository(tmp_path).writable_session("main")
    files = []
    for at, length in enumerate([3, 2]):
        values = np.random.default_rng(at).random((length, 400))
        dataset = xr.Dataset({"v": (("day", "x"), values)}, {"day": np.arange(length) + 3 * at})
        files.append(netcdf(tmp_path / f"{at}.nc", dataset, v={"zlib": True, "chunksizes": values.shape}))
    damage(files[1], "v")
    with pytest.raises(AdoptionError, match="variable 'v': its values cannot be read: error: Error -3") as caught:
        ps.adopt(files, into=session, concat_dim="day")
    assert caught.value.location == files[1].as_uri()
