"""Arrays in parts, and what is stored for them."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import obstore
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps

PROTOTYPE = default_buffer_prototype()
HEADER_DATA_INDEX = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
VALUES: NDArray[Any] = np.arange(1, 64 * 64 + 1, dtype="uint16").reshape(64, 64)


def keys_of(objects: Any) -> set[str]:
    return {each["path"] for each in obstore.list(objects).collect()}


def content(objects: Any, key: str) -> bytes:
    return bytes(obstore.get(objects, key).bytes())


async def collect(items: AsyncIterator[str]) -> list[str]:
    return [item async for item in items]


def get(store: ps.PartsStore, key: str, byte_range: Any = None) -> bytes | None:
    """Return the value, after checking that both interfaces agree."""
    found = sync(store.get(key, PROTOTYPE, byte_range))
    found_sync = store.get_sync(key, prototype=PROTOTYPE, byte_range=byte_range)
    assert (found is None) == (found_sync is None)
    if found is None or found_sync is None:
        return None
    assert found.to_bytes() == found_sync.to_bytes()
    return found.to_bytes()


def put(store: ps.PartsStore, key: str, value: bytes) -> None:
    sync(store.set(key, cpu.Buffer.from_bytes(value)))


def create(store: ps.PartsStore, parts: Any, name: str = "a", **arguments: Any) -> zarr.Array[Any]:
    """Create an uncompressed array of 64 x 64 in four chunks."""
    chosen: dict[str, Any] = {"shape": (64, 64), "chunks": (32, 32), "dtype": "uint16", "compressors": None}
    return ps.create_array(store, name, parts=parts, **(chosen | arguments))


def create_sharded(store: ps.PartsStore, parts: Any = HEADER_DATA_INDEX, name: str = "a") -> zarr.Array[Any]:
    return create(store, parts, name, chunks=(8, 8), shards=(32, 32))


SELECTIONS: list[Any] = [np.s_[:, :], np.s_[0:32, 0:32], np.s_[3, 3], np.s_[0:9, 30:40]]
