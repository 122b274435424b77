"""Step 4: twelve netCDF files as one Zarr dataset without a copy, and a thirteenth file that is appended."""

from pathlib import Path
from typing import Any

import h5netcdf
import icechunk
import numpy as np
import xarray as xr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.examples.demo.figures import line_chart, png
from parts_store.examples.demo.outcome import Figure, Outcome, Table
from parts_store.text import count, size

_MONTHS = np.arange("2025-01", "2026-02", dtype="M8[M]")
_MONTH = np.timedelta64(1, "M")
_LATITUDES, _LONGITUDES = np.linspace(-88, 88, 45), np.linspace(2, 358, 90)


def adopt_year(repository: icechunk.Repository, folder: Path) -> Any:
    """Make twelve files one dataset. Only references to the files are written."""
    session = repository.writable_session("main")
    report = ps.adopt(folder / "2025-*.nc", into=session, concat_dim="time")
    session.commit("the year 2025")
    return report


def append_month(repository: icechunk.Repository, folder: Path) -> Any:
    """Append the next month to the dataset."""
    session = repository.writable_session("main")
    report = ps.adopt(folder / "2026-01.nc", into=session, append_dim="time")
    session.commit("January 2026")
    return report


def open_with_xarray(repository: icechunk.Repository) -> xr.Dataset:
    """Open the newest version with xarray."""
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return dataset


def show_netcdf_archive(folder: Path) -> Outcome:
    """Adopt twelve monthly files, append one, and compare what xarray reads with the files."""
    place = folder / "archive"
    place.mkdir()
    files = [_write_month(place, month) for month in _MONTHS]
    nbytes = sum(file.stat().st_size for file in files)
    repository = ps.open_repository(place / "repository", virtual=[place])
    year = adopt_year(repository, place)
    days_of_year = open_with_xarray(repository).sizes["time"]
    january = append_month(repository, place)
    found = open_with_xarray(repository)["temperature"]
    expected = [_read_with_h5netcdf(file) for file in files]
    is_equal = np.array_equal(found.values, np.concatenate(expected))
    copied = year.nbytes_copied + january.nbytes_copied
    stored = sum(file.stat().st_size for file in (place / "repository").rglob("*") if file.is_file())
    rows = (
        ("files of 2025, adopted", f"{len(files) - 1}"),
        ("files of 2026, appended", "1"),
        ("chunks in the files", f"{sum(each.chunks for each in (*year.arrays, *january.arrays)):,}"),
        ("bytes in the files", size(nbytes)),
        ("bytes copied", f"{copied}"),
        ("references", f"{year.references + january.references:,}"),
        ("the repository: references, coordinates, two commits", size(stored)),
        ("days in the dataset, before and after", f"{days_of_year} and {found.sizes['time']}"),
    )
    return Outcome(
        result=f"{count(len(files), 'netCDF file')} of {size(nbytes)} adopted, bytes copied: {copied}; xarray reads "
        f"{found.sizes['time']} days, {'equal to the files' if is_equal else 'DIFFERENT FROM THE FILES'}",
        is_right=is_equal and copied == 0,
        text="Twelve monthly netCDF files become one Zarr dataset in an Icechunk repository, and the next month is "
        "appended to it. Only references to the chunks in the files, and coordinates, are stored. xarray reads the "
        "dataset, and the values are compared with those that h5netcdf reads from the files.",
        code=(adopt_year, append_month, open_with_xarray),
        figures=_figures(found, days_of_year),
        table=Table(("", "measured"), rows),
    )


def _figures(found: xr.DataArray, days_of_year: int) -> tuple[Figure, ...]:
    mean = found.mean(("lat", "lon")).values.tolist()
    labels = [(int(np.searchsorted(found["time"].values, month)), str(month)) for month in _MONTHS[::3]]
    first = found[0].values
    scaled = ((first - first.min()) / np.ptp(first) * 255).astype(np.uint8)[::-1]
    colours = np.stack([scaled, 255 - np.abs(2 * scaled.astype(int) - 255), 255 - scaled], axis=-1).astype(np.uint8)
    return (
        Figure(line_chart(mean, labels, days_of_year, "°C"), "daily mean; the appended month has another colour"),
        Figure(png(colours, "temperature of the first day", side=360), "temperature of the first day, blue to red"),
    )


def _read_with_h5netcdf(file: Path) -> NDArray[Any]:
    with xr.open_dataset(file, engine="h5netcdf") as dataset:
        return dataset["temperature"].values


def _write_month(folder: Path, month: np.datetime64) -> Path:
    """Write a netCDF file with a temperature for each day of a month, packed as 16-bit integers and compressed."""
    start, stop = (
        int((each.astype("M8[D]") - _MONTHS[0].astype("M8[D]")).astype(int)) for each in (month, month + _MONTH)
    )
    days = np.arange(start, stop)
    season = np.cos(2 * np.pi * (days - 200) / 365.25)[:, np.newaxis, np.newaxis]
    north = np.sin(np.radians(_LATITUDES))[:, np.newaxis]
    noise = np.random.default_rng(start).normal(0, 1.5, (len(days), len(_LATITUDES), len(_LONGITUDES)))
    waves = 3 * np.sin(np.radians(3 * _LONGITUDES))
    temperature = 28 - 45 * north**2 + (4 + 18 * north) * season + waves + noise
    file = folder / f"{month}.nc"
    with h5netcdf.File(file, "w") as dataset:
        dataset.dimensions = {"time": len(days), "lat": len(_LATITUDES), "lon": len(_LONGITUDES)}
        dataset.create_variable("lat", ("lat",), data=_LATITUDES)
        dataset.create_variable("lon", ("lon",), data=_LONGITUDES)
        dataset.create_variable("time", ("time",), data=days).attrs["units"] = "days since 2025-01-01"
        chunks = (1, len(_LATITUDES), len(_LONGITUDES))
        packed = np.round(temperature / 0.01).astype("i2")
        variable = dataset.create_variable(
            "temperature", ("time", "lat", "lon"), chunks=chunks, data=packed, compression="gzip", shuffle=True
        )
        variable.attrs["scale_factor"] = 0.01
        variable.attrs["units"] = "degree_Celsius"
    return file
