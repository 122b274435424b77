"""Datasets, and how xarray writes them."""

from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import xarray
import zarr
from icechunk import Repository

import parts_store as ps


def dataset(days: int = 6, start: str = "2026-01-01") -> xarray.Dataset:
    """Return a dataset with packed numbers, times, missing values and text, in memory and as dask arrays."""
    random = np.random.default_rng(days)
    times = np.datetime64(start, "ns") + np.arange(days) * np.timedelta64(1, "D")
    packed = np.round(random.uniform(250, 300, (days, 10)), 1)
    packed[0, 0] = np.nan
    variables = {
        "packed": (("time", "x"), packed, {"units": "K"}),
        "seen": (("time",), times + np.timedelta64(90, "m")),
        "flag": (("x",), np.arange(10) % 3 == 0),
        "total": ((), 7.5),
    }
    coords = {"time": times, "x": np.arange(10), "place": ("x", np.array(list("abcdefghij")))}
    return xarray.Dataset(variables, coords, {"title": "a dataset"}).chunk(time=3, x=5)


ENCODING: dict[str, dict[str, Any]] = {
    "packed": {"dtype": "int16", "scale_factor": 0.1, "add_offset": 250.0, "_FillValue": -32768, "chunks": (3, 5)},
    "seen": {"units": "minutes since 2026-01-01", "dtype": "int64", "chunks": (3,)},
    "time": {"units": "hours since 2025-12-31", "dtype": "int32", "chunks": (3,)},
}


def reference(*steps: Callable[[Any], Any]) -> Any:
    """Return the memory store that xarray alone writes in these steps."""
    store = zarr.storage.MemoryStore()
    with dask.config.set(scheduler="synchronous"):
        for step in steps:
            step(store)
    return store


def assert_same(repo: Repository, expected: Any, group: str | None = None) -> None:
    """Assert that the commit equals what xarray alone writes, both decoded and as stored."""
    store = ps.PartsStore.from_session(repo.readonly_session("main"))
    for options in ({}, {"decode_cf": False}):
        arguments: dict[str, Any] = {"group": group, "consolidated": False, "chunks": None, **options}
        with xarray.open_zarr(store, **arguments) as found, xarray.open_zarr(expected, **arguments) as wanted:
            xarray.testing.assert_identical(found.load(), wanted.load())
            for name in wanted.variables:
                assert found[name].dtype == wanted[name].dtype
