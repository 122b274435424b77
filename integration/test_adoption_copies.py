"""Files on S3 copied by S3 itself to where they are the main part of an array; and the command on S3."""

import json
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from parts_store.cli import main

VALUES = np.random.default_rng(1).integers(0, 1 << 30, (400, 500))


@pytest.fixture
def uploaded(bucket: Bucket, tmp_path: Path) -> bytes:
    """Write an HDF5 file into a folder of the bucket."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=VALUES, chunks=(20, 100), shuffle=True, fletcher32=True)
    data = (tmp_path / "a.h5").read_bytes()
    bucket.store().put("old files/a.h5", data)
    return data


def test_s3_copies_the_file_by_itself(bucket: Bucket, uploaded: bytes) -> None:
    with CountingProxy(bucket.server.endpoint) as proxy:
        server = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
        store = ps.PartsStore(bucket.store("new", user=server))
        report = ps.adopt(f"s3://{bucket.name}/old files/a.h5", into=store, copy=True, **server.options)
        copies = [each for each in proxy.requests if each.method == "PUT" and each.key.endswith(".h5")]
    assert [each.key for each in copies] == ["new/a/c/0/0.h5"]
    assert report.nbytes_copied == len(uploaded)
    assert bucket.read("new/a/c/0/0.h5") == uploaded
    # What was written through us is the index, and the documents.
    assert store.stats.bytes_written < 20_000
    store = ps.PartsStore(bucket.store("new"))
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:], VALUES)
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[33:47, 90:210], VALUES[33:47, 90:210])


def test_the_command_adopts_a_file_on_s3_into_a_repository_there(
    bucket: Bucket, uploaded: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--option={name}={value}" for name, value in bucket.server.options.items()]
    place = f"s3://{bucket.name}/old files/a.h5"
    assert main(["adopt", place, f"s3://{bucket.name}/repository", "--shard-chunks=4095", "--json", *given]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["references"], report["bytes_copied"]) == (1, 0)
    keys: dict[str, Any] = {"access_key_id": bucket.server.access_key, "secret_access_key": bucket.server.secret_key}
    storage = icechunk.s3_storage(
        bucket=bucket.name,
        prefix="repository",
        endpoint_url=bucket.server.endpoint,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
        **keys,
    )
    allowed = icechunk.containers_credentials({f"s3://{bucket.name}/old files/": icechunk.s3_credentials(**keys)})
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:], VALUES)
