"""The response to a write is lost on its way: the write is repeated only if it was not carried out."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zarr
from obstore.store import S3Store

import parts_store as ps
from integration.chaos.plan import Plan
from integration.conftest import Bucket
from integration.proxy import CountingProxy, Seen
from parts_store.errors import AmbiguousWriteError
from tests.histories import PARTS

ARRAY: dict[str, Any] = {"shape": (4,), "chunks": (2,), "dtype": "i4", "fill_value": 0, "compressors": None}
LAYOUTS: dict[str, Any] = {
    "no parts": (None, {"shards": (4,)}),
    "two parts": (PARTS["two parts"], {"shards": (4,)}),
    "parts that are staged": (["", ps.Part(".rest", size=8)], {"shards": (4,)}),
}


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(bucket.server.endpoint) as running:
        yield running


def create(bucket: Bucket, layout: str) -> None:
    parts, sharding = LAYOUTS[layout]
    store = ps.PartsStore(bucket.store())
    if parts is None:
        zarr.create_array(store, name="a", **ARRAY, **sharding)
    else:
        ps.create_array(store, "a", parts=parts, **ARRAY, **sharding)
    open_directly(bucket)[...] = 1


def open_directly(bucket: Bucket) -> Any:
    return zarr.open_array(ps.PartsStore(bucket.store()), path="a", mode="r+")


def open_through(bucket: Bucket, proxy: CountingProxy) -> Any:
    """Return the array as seen through the proxy, after a write that the server has answered."""
    options = Plan.options_of(bucket.server) | {"endpoint": proxy.endpoint}
    array: Any = zarr.open_array(ps.PartsStore(S3Store(bucket.name, **options)), path="a", mode="r+")
    array[0:1] = 2
    proxy.requests.clear()
    return array


def is_commit(seen: Seen) -> bool:
    return seen.method == "PUT" and seen.key.endswith("a/c/0")


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_write_that_another_client_has_read_and_replaced_is_not_repeated(
    bucket: Bucket, proxy: CountingProxy, layout: str
) -> None:
    create(bucket, layout)
    array = open_through(bucket, proxy)
    found: list[list[int]] = []

    def replace() -> None:
        other = open_directly(bucket)
        found.append(other[...].tolist())
        other[0:1] = 99

    with ThreadPoolExecutor(1) as pool:

        def loses(seen: Seen) -> bool:
            if is_commit(seen) and not found:
                pool.submit(replace).result(300)
                return True
            return False

        proxy.lose(loses)
        with pytest.raises(AmbiguousWriteError):
            array[0:1] = 3
    assert found == [[3, 1, 1, 1]]
    assert open_directly(bucket)[...].tolist() == [99, 1, 1, 1]
    assert [seen.status for seen in proxy.requests if is_commit(seen)] == [200]


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_write_whose_response_is_lost_is_made_once(bucket: Bucket, proxy: CountingProxy, layout: str) -> None:
    create(bucket, layout)
    array = open_through(bucket, proxy)
    proxy.lose(is_commit)
    array[0:1] = 3
    assert [seen.status for seen in proxy.requests if is_commit(seen)] == [200]
    assert open_directly(bucket)[...].tolist() == [3, 1, 1, 1]
