"""A proxy that counts requests, and a store behind it."""

from collections.abc import Iterator

import pytest
from obstore.store import MemoryStore, S3Store

from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import objects_below
from integration.request_counts.places import Place
from integration.server import Server
from parts_store import PartsStore


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


@pytest.fixture(params=[False, True], ids=["in a thread", "in the event loop"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Return whether the store is called in the event loop, as by zarr's batched pipeline, or in a thread."""
    is_async: bool = request.param
    return is_async
