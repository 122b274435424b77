"""Monthly netCDF4 files as archives have them: of 28 to 31 days, packed, with coordinates, bounds and static values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from tests.virtual.adopting import settle

type Layout = Literal["day", "month", "contiguous"]
LAYOUTS: tuple[Layout, ...] = ("day", "month", "contiguous")
PACKED: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
SHAPE = (24, 30)


def month(first: np.datetime64, shape: tuple[int, int] = SHAPE) -> xr.Dataset:
    """The values of a month, which depend on the days only."""
    month = first.astype("M8[M]")
    days = np.arange(month.astype("M8[D]"), (month + np.timedelta64(1, "M")).astype("M8[D]"))
    height, width = shape
    random = np.random.default_rng(int(month.astype(int)))
    temperature = random.normal(280, 10, (len(days), height, width)).round(2)
    temperature[3, 1, :5] = np.nan
    day = np.timedelta64(1, "D")
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), temperature, {"units": "K", "long_name": "temperature"}),
            "p": (("time", "y", "x"), random.random((len(days), height, width), "f4"), {"units": "Pa"}),
            "steps": ("time", np.arange(len(days), dtype="i4")),
            "area": (("y", "x"), np.arange(height * width, dtype="f4").reshape(height, width)),
            "time_bnds": (("time", "nv"), np.stack([days, days + day], axis=1).astype("M8[ns]")),
        },
        {
            "time": ("time", days.astype("M8[ns]"), {"bounds": "time_bnds", "standard_name": "time"}),
            "y": ("y", np.linspace(-60, 60, height), {"units": "degrees_north"}),
            "x": ("x", np.arange(width, dtype="f4"), {"units": "degrees_east"}),
            "height": ((), 2.0, {"units": "m"}),
        },
        {"title": "days", "history": f"written in {month}"},
    )


def write(dataset: xr.Dataset, path: Path, layout: Layout, **others: Any) -> Path:
    """Write a month: chunked by day with an unlimited time axis, as one compressed chunk, or contiguous."""
    length, height, width = dataset["t"].shape
    chunks = {"day": (1, height, width), "month": (length, height, width)}.get(layout)
    stored = {} if chunks is None else {"chunksizes": chunks, "zlib": True, "shuffle": True}
    encoding: dict[str, Any] = {"t": {**PACKED, **stored}, "p": dict(stored)}
    # Every month counts its days from its own first one.
    units = f"days since {str(dataset['time'].values[0])[:10]}"
    encoding |= {"time": {"units": units, "dtype": "i4"}, "time_bnds": {"units": units, "dtype": "f8"}}
    for name, each in others.items():
        encoding[name] = {**encoding.get(name, {}), **each}
    encoding = {name: each for name, each in encoding.items() if name in dataset}
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"] if layout == "day" else [])
    settle(path)
    return path


def write_months(folder: Path, layout: Layout, first: str, count: int, shape: tuple[int, int] = SHAPE) -> list[Path]:
    """Write the files of some months."""
    folder.mkdir(parents=True, exist_ok=True)
    months = np.datetime64(first, "M") + np.arange(count).astype("m8[M]")
    return [write(month(each, shape), folder / f"{each}.nc", layout) for each in months]


def read(paths: Sequence[Path], dim: str = "time") -> xr.Dataset:
    """The files as xarray joins them, in memory."""
    with xr.open_mfdataset(
        paths,
        engine="h5netcdf",
        combine="nested",
        concat_dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="exact",
        combine_attrs="override",
    ) as dataset:
        return dataset.load()
