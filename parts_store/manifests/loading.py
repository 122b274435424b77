"""The values of an array of references: the chunks are fetched and put together here, and decoded by zarr."""

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr import AsyncArray
from zarr.abc.buffer import Buffer
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, StorePath

from parts_store._compat.zarr import sync
from parts_store.manifests.array_references import References
from parts_store.manifests.fetching import ReadSettings, Registries, read_pieces


def assemble(pieces: list[memoryview]) -> memoryview:
    """The bytes of a value: as they are if they are in one piece, copied once if they are not."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return memoryview(b"")
    return memoryview(np.concatenate([np.frombuffer(each, "B") for each in pieces]))


def load(array: References, registries: Registries, settings: ReadSettings) -> NDArray[Any]:
    """The values of an array: all of its chunks are read at once."""
    places = list(array.all_pieces())
    read = sync(read_pieces([pieces for _, pieces in places], registries, settings))
    buffer = default_buffer_prototype().buffer
    chunks: dict[str, Buffer] = {
        array.metadata.encode_chunk_key(index): buffer.from_bytes(assemble(pieces))
        for (index, _), pieces in zip(places, read, strict=True)
    }
    store = StorePath(MemoryStore(chunks, read_only=True))
    opened: zarr.Array[Any] = zarr.Array(AsyncArray(metadata=array.metadata, store_path=store))
    return np.asarray(opened[...])
