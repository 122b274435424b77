"""N5 containers on a real S3 server: adopted into a session and in place, and read with one request for each block."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    containers_credentials,
    s3_credentials,
    s3_storage,
    s3_store,
)

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import counted, objects_below
from integration.server import Server
from tests.virtual.parsers.n5.containers import numbers, read_z5py, write_java, write_z5py

BLOCKS = (8, 8, 8)


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def container(bucket: Bucket, tmp_path: Path) -> Any:
    """The values of a dataset in a container in the bucket."""
    folder = tmp_path / "volume.n5"
    write_z5py(folder, "raw/s0", numbers((20, 20, 20), "uint16"), BLOCKS, "gzip")
    write_java(folder / "raw/s1", numbers((10, 10, 10), "float32"), BLOCKS, "zstd", axes=["x", "y", "z"])
    for file in folder.rglob("*"):
        if file.is_file():
            bucket.client.fput_object(bucket.name, f"files/volume.n5/{file.relative_to(folder)}", str(file))
    return read_z5py(folder, "raw/s0")


def repository(bucket: Bucket, endpoint: str) -> Repository:
    """A repository in the bucket that reads the files there through another endpoint."""
    server = bucket.server
    keys: dict[str, Any] = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    remote: dict[str, Any] = {"region": "us-east-1", "allow_http": True, "force_path_style": True}
    prefix = f"s3://{bucket.name}/files/"
    files = s3_store(**remote, endpoint_url=endpoint, s3_compatible=True)
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, files))
    return Repository.create(
        s3_storage(bucket=bucket.name, prefix="repo", endpoint_url=server.endpoint, **remote, **keys),
        config=config,
        authorize_virtual_chunk_access=containers_credentials({prefix: s3_credentials(**keys)}),
    )


def random_blocks(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    choice = random.Random(1)
    starts = [tuple(choice.randrange(0, size, 8) for size in shape) for _ in range(12)]
    return [tuple(slice(at, at + 8) for at in start) for start in starts]


def test_a_random_block_of_a_session_is_one_request(bucket: Bucket, container: Any, proxy: CountingProxy) -> None:
    session = repository(bucket, proxy.endpoint).writable_session("main")
    report = ps.adopt(f"s3://{bucket.name}/files/volume.n5", into=session, **bucket.server.options)
    assert report.is_complete
    assert report.references == 27 + 8
    array: Any = zarr.open_array(ps.PartsStore.from_session(session), path="raw/s0", mode="r")
    for block in random_blocks(array.shape):
        proxy.requests.clear()
        np.testing.assert_array_equal(array[block], container[block])
        assert [each.kind for each in proxy.requests] == ["get"]


def test_a_random_block_in_place_is_one_request(bucket: Bucket, container: Any, proxy: CountingProxy) -> None:
    url = f"s3://{bucket.name}/files/volume.n5"
    report = ps.adopt_in_place(url, **bucket.server.options)
    assert [each.path for each in report.arrays] == ["raw/s0", "raw/s1"]
    store = ps.PartsStore(objects_below(bucket, proxy, "files/volume.n5"), read_only=True)
    array: Any = ps.open_array(store, "raw/s0")
    for block in random_blocks(array.shape):
        with counted(proxy, store) as seen:
            found = array[block]
        np.testing.assert_array_equal(found.T, container[block[::-1]])
        assert [each.kind for each in seen] == ["get"]
