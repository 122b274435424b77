"""A cluster of processes that adopts many files on a real MinIO: one commit, also if a worker dies."""

import io
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from integration.conftest import Bucket
from integration.test_cluster import pids, within, workers
from tests.effort import examples

FILES = examples(1000)
# It takes a tenth of this on a machine with nothing else to do.
AT_MOST_SECONDS = 600.0


def upload(bucket: Bucket, at: int) -> None:
    """Write a file with one step of an array."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        scale = file.create_dataset("at", data=np.array([at]))
        scale.make_scale("at")
        values = file.create_dataset("v", data=np.full((1, 20, 30), at, "f4"), chunks=(1, 20, 30))
        values.dims[0].attach_scale(scale)
    data = stream.getvalue()
    bucket.client.put_object(bucket.name, f"files/{at}.h5", io.BytesIO(data), len(data))


@pytest.mark.slow
def test_three_workers_adopt_many_files_and_one_is_killed(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: upload(bucket, at), range(FILES)))
    place, known = f"s3://{bucket.name}", bucket.server.options
    repository = ps.open_repository(f"{place}/repository", virtual=[f"{place}/files"], **known)
    session = repository.writable_session("main")
    killed: list[int] = []
    with workers() as client:
        victims = sorted(pids(client))

        def kill(done: int, total: int) -> None:
            if total == FILES and done >= FILES // 3 and not killed:
                killed.append(victims[0])
                os.kill(victims[0], signal.SIGKILL)

        arguments: dict[str, Any] = {"concat_dim": "at", "executor": client, "progress": kill, **known}
        within(AT_MOST_SECONDS, lambda: ps.adopt(f"{place}/files/*.h5", into=session, **arguments))
        assert killed
    session.commit("many files")
    assert len(list(repository.ancestry(branch="main"))) == 2
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    found = xr.open_zarr(store, consolidated=False, chunks=None)
    assert found["at"].values.tolist() == list(range(FILES))
    assert np.array_equal(found["v"].values, np.repeat(np.arange(FILES), 600).reshape(FILES, 20, 30))
