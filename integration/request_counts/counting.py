"""Count the requests of a store, and create what the tests read and write."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from obstore.store import S3Store

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy, Seen
from integration.server import Server
from parts_store import SHARD_INDEX, Part, PartsStore

SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
# Four by four inner chunks of 256 bytes in each of two by two shards.
SHARDED: dict[str, Any] = {"shape": (128, 128), "chunks": (16, 16), "shards": (64, 64), "dtype": "uint8"}
INNER_NBYTES = 16 * 16
INDEX_NBYTES = 16 * 16 + 4
HEADER_NBYTES = 64
# No value is the fill value, so that no inner chunk is left out.
VALUES: NDArray[Any] = (np.arange(128 * 128) % 251 + 1).astype("uint8").reshape(128, 128)
type Log = list[tuple[str, str, tuple[int | None, int | None]]]


def objects_below(bucket: Bucket, proxy: CountingProxy, prefix: str | None) -> S3Store:
    user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
    return bucket.store(prefix, user=user)


@contextmanager
def counted(proxy: CountingProxy, store: PartsStore) -> Iterator[list[Seen]]:
    """Record the requests of the block, and check that the store counts the same."""
    seen: list[Seen] = []
    proxy.requests.clear()
    store.stats.reset()
    yield seen
    seen += proxy.requests
    ours = {kind: count for kind, count in store.stats.calls.items() if count}
    assert Counter(each.kind for each in seen) == ours


def log_of(seen: list[Seen], prefix: str = "") -> Log:
    """Kind, key and byte range of each request, in an order that does not depend on chance."""
    log = [(each.kind, (each.key or each.listed or "").removeprefix(prefix).strip("/"), each.bounds) for each in seen]
    return sorted(log, key=repr)


def as_log(requests: list[ps.Request]) -> Log:
    return sorted([(each.kind, each.key, (each.start, each.stop)) for each in requests], key=repr)


def gets(*wanted: tuple[str, tuple[int | None, int | None]]) -> Log:
    return sorted([("get", key, bounds) for key, bounds in wanted], key=repr)


def expected_log(*requests: tuple[str, str, tuple[int | None, int | None]]) -> Log:
    return sorted(requests, key=repr)


WHOLE = (None, None)
LAYOUTS: dict[int, list[Part]] = {
    1: [Part("")],
    2: [Part(""), Part(".tail", size=4)],
    3: [Part(".head", size=10), Part(""), Part(".tail", size=4)],
    4: [Part(".head", size=10), Part(".more", size=0), Part(""), Part(".tail", size=4)],
}


def create_chunk(store: PartsStore, parts: list[Part]) -> zarr.Array[Any]:
    ps.create_array(store, "a", parts=parts, shape=(64, 64), chunks=(64, 64), dtype="uint8", compressors=None)
    return zarr.open_array(store, path="a")


def create_shards(store: PartsStore) -> zarr.Array[Any]:
    ps.create_array(store, "a", parts=SHARD_PARTS, compressors=None, **SHARDED)
    return zarr.open_array(store, path="a")


def in_main(offset: int) -> tuple[int, int]:
    """Return the byte range of the inner chunk at an offset, within the main part."""
    return max(0, offset - HEADER_NBYTES), offset + INNER_NBYTES - HEADER_NBYTES
