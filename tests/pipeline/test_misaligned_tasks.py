"""Tasks of dask that are not aligned with the shards of an array write the same values as one task after the other."""

from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps

SHAPE = (60, 44)


def expected() -> Any:
    return np.random.default_rng(3).integers(1, 1000, SHAPE).astype("i4")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", ["memory", "local"])
@pytest.mark.parametrize("shards", [None, (20, 22)], ids=["chunks", "shards"])
def test_region_writes_of_misaligned_tasks_equal_the_sequential_result(tmp_path: Path, place: str, shards: Any) -> None:
    store = ps.PartsStore(MemoryStore() if place == "memory" else LocalStore(tmp_path))
    values = expected()
    # Seven rows and nine columns: neither divides the shards nor the inner chunks.
    tasks = xr.Dataset({"t": (("y", "x"), dask.array.from_array(values, chunks=(7, 9)))})
    encoding: dict[str, Any] = {"t": {"chunks": (5, 11) if shards else (20, 22), "shards": shards}}
    with ps.fast():
        tasks.to_zarr(store, compute=False, encoding=encoding, consolidated=False, safe_chunks=False)
        with dask.config.set(scheduler="threads", num_workers=8):
            for rows in (slice(0, 33), slice(33, 60)):
                region: Any = {"y": rows, "x": slice(0, SHAPE[1])}
                tasks.isel(y=rows).to_zarr(store, region=region, consolidated=False, safe_chunks=False)
        found = xr.open_zarr(store, consolidated=False)["t"].to_numpy()
    np.testing.assert_array_equal(found, values)
