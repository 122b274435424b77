"""A proxy that counts requests, a store behind it, and each of the codec pipelines."""

from collections.abc import Iterator

import pytest
import zarr
from obstore.store import MemoryStore, S3Store

from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import objects_below
from integration.request_counts.places import Place
from integration.server import Server
from parts_store import PartsStore
from tests.conftest import PIPELINES


@pytest.fixture(params=sorted(PIPELINES), autouse=True)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def objects(bucket: Bucket, proxy: CountingProxy) -> S3Store:
    """Return the bucket, with requests through the proxy."""
    return objects_below(bucket, proxy, None)


@pytest.fixture
def store(objects: S3Store) -> PartsStore:
    return PartsStore(objects)


@pytest.fixture(params=["S3", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    """MinIO, whose ETags are digests; or memory, where no ETag comes back."""
    if request.param == "memory":
        memory = MemoryStore()
        return Place(memory, memory, None)
    bucket: Bucket = request.getfixturevalue("bucket")
    return Place(request.getfixturevalue("objects"), bucket.store(), request.getfixturevalue("proxy"))
