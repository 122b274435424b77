"""Encode chunks with the codecs of an array, for chunks of a file that zarr cannot decode."""

import json
from collections.abc import Sequence
from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from parts_store._compat.zarr import sync
from parts_store.adoption.description import Header, Json
from parts_store.format.keys import DOCUMENT


def encode_chunk(header: Header, chunk_shape: tuple[int, ...], codecs: Sequence[Json], values: NDArray[Any]) -> bytes:
    """Return the bytes of a chunk with these values, as zarr writes it."""
    document = {**header.to_json(chunk_shape, [header.bytes_codec, *codecs]), "shape": list(chunk_shape)}
    document |= {"attributes": {}}
    store = MemoryStore()
    buffer = default_buffer_prototype().buffer
    sync(store.set(DOCUMENT, buffer.from_bytes(json.dumps(document).encode())))
    # By default zarr does not write a chunk of fill values.
    zarr.open_array(store, mode="r+", zarr_format=3, config={"write_empty_chunks": True})[...] = values
    key = "/".join(["c", *("0" for _ in chunk_shape)])
    stored = sync(store.get(key, default_buffer_prototype()))
    if stored is None:
        raise TypeError(f"expected a chunk at {key!r}, found none")
    return stored.to_bytes()
