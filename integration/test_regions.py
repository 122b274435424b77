"""Region writes of xarray by tasks of a dask cluster that are not aligned with the shards lose nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster
from obstore.store import LocalStore

import parts_store as ps
from integration.conftest import Bucket

SHAPE = (60, 44)
VALUES = np.random.default_rng(3).integers(1, 1000, SHAPE).astype("i4")
# Neither divides the shards, the chunks or the inner chunks.
TASKS = (11, 13)
ENCODINGS: dict[str, Any] = {
    "shards": {"chunks": (5, 11), "shards": (20, 22)},
    "chunks": {"chunks": (20, 22)},
}
PARTS: dict[str, Any] = {"*": [ps.Part(".head", size=4), ""]}


@pytest.fixture(scope="module", params=["processes", "threads"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Start two worker processes with two threads each, or four threads of this process."""
    arguments = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": ":0"}
    with LocalCluster(processes=request.param == "processes", **arguments) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(params=["s3", "disk"])
def objects(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Any:
    return bucket.store("regions") if request.param == "s3" else LocalStore(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "parts"),
    [("shards", None), ("shards", PARTS), ("chunks", None)],
    ids=["shards", "shards in two parts", "chunks"],
)
def test_regions_of_misaligned_dask_chunks_equal_the_sequential_result(
    client: Any, objects: Any, encoding: str, parts: Any
) -> None:
    store = ps.PartsStore(objects, parts=parts)
    dataset = xr.Dataset({"t": (("y", "x"), dask.array.from_array(VALUES, chunks=TASKS))})
    with ps.fast():
        _create(dataset, store, encoding)
        for rows in (slice(0, 33), slice(33, SHAPE[0])):
            region: Any = {"y": rows, "x": slice(0, SHAPE[1])}
            dataset.isel(y=rows).to_zarr(store, region=region, consolidated=False, safe_chunks=False)
    np.testing.assert_array_equal(_found(objects), VALUES)


def test_tasks_that_write_a_region_each_equal_the_sequential_result(client: Any, objects: Any) -> None:
    dataset = xr.Dataset({"t": (("y", "x"), VALUES)})
    _create(dataset.chunk(), ps.PartsStore(objects), "shards")
    starts = [(row, column) for row in range(0, SHAPE[0], TASKS[0]) for column in range(0, SHAPE[1], TASKS[1])]
    # What a task sets in a thread of this process is set back at the end of the block.
    with ps.fast():
        client.gather(client.map(_write_region, starts, objects=objects, dataset=dataset, pure=False))
    np.testing.assert_array_equal(_found(objects), VALUES)


def _create(dataset: Any, store: ps.PartsStore, encoding: str) -> None:
    dataset.to_zarr(store, compute=False, encoding={"t": ENCODINGS[encoding]}, consolidated=False, safe_chunks=False)


def _write_region(start: tuple[int, int], *, objects: Any, dataset: Any) -> None:
    region = {axis: slice(first, first + size) for axis, first, size in zip("yx", start, TASKS, strict=True)}
    ps.fast()
    dataset.isel(region).to_zarr(ps.PartsStore(objects), region=region, consolidated=False, safe_chunks=False)


def _found(objects: Any) -> Any:
    return xr.open_zarr(ps.PartsStore(objects), consolidated=False)["t"].to_numpy()
