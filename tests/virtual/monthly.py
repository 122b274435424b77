"""Monthly netCDF4 files for tests: packed values, coordinates, an unlimited time axis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

from tests.virtual.adopting import settle

REGISTRY = ObjectStoreRegistry({"file://": LocalStore()})
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}


def month(first: int, days: int) -> xr.Dataset:
    """Return the values of some days from a first day, which is counted from the beginning of 2001."""
    random = np.random.default_rng(first)
    values = random.normal(280, 5, (days, 4, 40)).round(2)
    values[random.random(values.shape) < 0.1] = np.nan
    time = np.datetime64("2001-01-01", "ns") + np.arange(first, first + days) * np.timedelta64(1, "D")
    return xr.Dataset(
        {"t": (("time", "y", "x"), values, {"units": "K"}), "depth": ("x", np.random.default_rng(0).random(40))},
        coords={"time": time, "y": np.arange(4.0), "label": ("x", np.arange(40))},
        attrs={"title": "days"},
    )


def write_months(folder: Path, lengths: Sequence[int], *, chunks: tuple[int, int, int] = (1, 2, 10)) -> list[Path]:
    """Write one file for each of these numbers of days."""
    files, first = [], 0
    for number, days in enumerate(lengths):
        file = folder / f"month-{number:03}.nc"
        encoding: dict[str, Any] = {"t": {"chunksizes": chunks, "zlib": True, "shuffle": True, **PACKED}}
        encoding["time"] = {"units": "days since 1990-01-01", "dtype": "int32"}
        month(first, days).to_netcdf(file, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
        settle(file)
        files.append(file)
        first += days
    return files


def open_virtual(file: Path, loaded: Sequence[str] = ("time", "y")) -> xr.Dataset:
    """Return a file as a virtual dataset of VirtualiZarr."""
    return open_virtual_dataset(str(file), REGISTRY, HDFParser(), loadable_variables=list(loaded))


def join(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return virtual datasets, or datasets of values, one after the other."""
    return xr.concat(
        datasets,
        dim="time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
