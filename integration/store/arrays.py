"""Arrays in a bucket, and what is stored for them."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import parts_store as ps
from integration.conftest import Bucket
from parts_store import SHARD_INDEX, ConcatParts, Part, PartsStore


def document(ndim: int, encoding: str, separator: str, parts: list[Part]) -> bytes:
    """Return the stored document of an array with parts."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [10] * ndim,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * ndim}},
            "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "storage_transformers": [ConcatParts(parts).to_json()],
        }
    ).encode()


SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint8"}
VALUES: NDArray[Any] = (np.arange(64 * 64) % 251 + 1).astype("uint8").reshape(64, 64)


def create_shards(store: PartsStore, parts: Sequence[Part] = SHARD_PARTS) -> zarr.Array[Any]:
    ps.create_array(store, "shards", parts=parts, compressors=None, **SHARDED)
    array = zarr.open_array(store, path="shards")
    array[...] = VALUES
    return array


def create_chunks(store: PartsStore, *, head: int = 10) -> zarr.Array[Any]:
    parts = [Part(".head", size=head), Part(""), Part(".tail", size=4)]
    ps.create_array(store, "chunks", parts=parts, shape=(64, 64), chunks=(32, 64), dtype="u1", compressors=None)
    array = zarr.open_array(store, path="chunks")
    array[...] = VALUES
    return array


def stored(bucket: Bucket) -> dict[str, tuple[bytes, str | None, Any]]:
    """Return the bytes, the ETag and the user metadata of all objects."""
    found = {}
    for key in bucket.list_keys():
        stat = bucket.client.stat_object(bucket.name, key)
        found[key] = (bucket.read(key), stat.etag, metadata_of(bucket, key))
    return found


def metadata_of(bucket: Bucket, key: str) -> dict[str, str]:
    """Return the user metadata of an object, read with MinIO's own client."""
    headers: Any = bucket.client.stat_object(bucket.name, key).metadata or {}
    start = "x-amz-meta-"
    return {
        name.lower().removeprefix(start): value for name, value in headers.items() if name.lower().startswith(start)
    }
