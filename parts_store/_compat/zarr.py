"""Names of zarr that have no public address yet, each with the reason and with what to ask of zarr.

An issue to open at zarr-python is marked with "Ask".
"""

import asyncio
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CoroutineType, FrameType
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer
from zarr.abc.codec import Codec

# Whether a store can be read and written without an event loop: the rule by which zarr's pipeline decides it.
# Ask: a property of `zarr.abc.store.Store`.
from zarr.abc.store import Store
from zarr.abc.store import _store_supports_sync_io as supports_sync_io

# What zarr does with an array that is assigned to a Zarr array; see `is_converted_by_zarr`.
# It also makes the pipeline of an array with what zarr's configuration says.
# Ask: a store that names the pipeline of its arrays, so that no configuration has to be changed.
from zarr.core.array import _set_selection, create_codec_pipeline

# Codecs and metadata documents cannot be written without these classes, which zarr names in the signatures of its
# public codec classes. Ask: a public address, for example in `zarr.abc.codec` and `zarr.metadata`.
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding

# The pipeline that ours extends, and what it consists of. Ours needs its methods without an event loop, `read_sync` and
# `write_sync`, and `sync_transform`, which says whether there are any. An object that contains that pipeline would need
# the same private names, and ten methods that only pass on their arguments.
# Ask: methods without an event loop in `zarr.abc.codec.CodecPipeline`, and a public address of the fused pipeline.
from zarr.core.chunk_utils import ChunkTransform, scatter_chunk
from zarr.core.codec_pipeline import BatchedCodecPipeline, FusedCodecPipeline, codecs_from_list_unchecked

# `zarr.dtype.parse_dtype` guesses from strings; this function takes a NumPy data type as it is.
# Ask: a public address.
from zarr.core.dtype import get_data_type_from_native_dtype
from zarr.core.dtype.wrapper import TBaseDType, TBaseScalar
from zarr.core.group import GroupMetadata

# The orders in which the sharding codec writes inner chunks. Ask: a method of `ShardingCodec`.
from zarr.core.indexing import colexicographic_order_coords, lexicographic_order_coords, morton_order_coords
from zarr.core.metadata.v3 import (
    ArrayV3Metadata,
    ChunkGridMetadata,
    RectilinearChunkGridMetadata,
    RegularChunkGridMetadata,
)

# Why zarr warns when it reads a document.
try:
    from zarr.core.metadata.repair import repair_array_document
except ImportError:
    # A zarr without repairs does not warn of them.
    repair_array_document = None  # type: ignore[assignment]

# Runs a coroutine on zarr's event loop from a thread without one. Icechunk and xarray import it from here as well.
# The task on the loop runs `_runner`, and a thread that has left `sync` no longer waits for it.
# Ask: a public address of `sync`, and that it cancels its task when the thread leaves it.
from zarr.core.sync import _runner, sync

# The event loop whose tasks `end_tasks` cancels.
from zarr.core.sync import loop as zarr_loop
from zarr.errors import UnstableSpecificationWarning
from zarr.storage import WrapperStore

# The rules for the path of a node: a path must mean the same to us as to zarr. Ask: a public address.
from zarr.storage._utils import normalize_path

__all__ = [
    "ArrayConfig",
    "ArraySpec",
    "ArrayV3Metadata",
    "BatchedCodecPipeline",
    "ChunkGridMetadata",
    "ChunkTransform",
    "DefaultChunkKeyEncoding",
    "FusedCodecPipeline",
    "GroupMetadata",
    "RectilinearChunkGridMetadata",
    "RegularChunkGridMetadata",
    "TBaseDType",
    "TBaseScalar",
    "ThreadedCodec",
    "async_group_of",
    "can_sync",
    "codecs_from_list_unchecked",
    "create_codec_pipeline",
    "decode_sync",
    "encode_sync",
    "end_tasks",
    "get_data_type_from_native_dtype",
    "is_converted_by_zarr",
    "largest_chunk",
    "largest_shard",
    "normalize_path",
    "read_metadata",
    "repaired",
    "replace_async_array",
    "scatter_chunk",
    "subchunk_order",
    "supports_sync_io",
    "sync",
    "unstable_types",
    "unwrap",
    "watch_caller",
]

_WARNINGS_LOCK = threading.Lock()
# How many seconds tasks have to end after they were cancelled.
_PATIENCE = 10.0


@contextmanager
def unstable_types() -> Iterator[None]:
    """Write documents without zarr's warning of data types that have no specification.

    What is adopted has the data types of its file. Two threads must not change the filters of warnings at once.
    """
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        yield


def allows_rectilinear() -> bool:
    """Return whether zarr opens and writes arrays whose chunks have several lengths along an axis."""
    return bool(zarr.config.get("array.rectilinear_chunks", False))


def repaired(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of an array as zarr reads it, which repairs chunk grids that older software has stored."""
    return document if repair_array_document is None else dict(repair_array_document(document, 3)[0])


def read_metadata(document: dict[str, Any]) -> ArrayV3Metadata:
    """Return the metadata that zarr reads from a document, without zarr's warning of a document that it has to repair.

    zarr gives this warning by itself when it opens the array.
    """
    valid = repaired(document)
    grid = valid.get("chunk_grid")
    # zarr reads some regular grids as rectilinear ones, which it would refuse as a document without a setting.
    is_regular = isinstance(grid, dict) and grid.get("name") == "regular"
    return ArrayV3Metadata.from_dict(valid if is_regular else document)


_ORDERS = {"morton": morton_order_coords, "colexicographic": colexicographic_order_coords}


def subchunk_order(name: str, grid: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the numbers of the inner chunks of a shard, counted in C order, in the order in which zarr writes them."""
    coordinates = np.array(_ORDERS.get(name, lexicographic_order_coords)(grid), np.intp).reshape(-1, len(grid))
    return np.asarray(np.ravel_multi_index(tuple(coordinates.T), grid), np.intp)


def is_converted_by_zarr() -> bool:
    """Return whether zarr asks for an attribute of an array because it was assigned to a Zarr array.

    zarr converts what has no attribute `shape` to NumPy. Of everything else it takes pieces, one for each chunk, and
    there is no method that zarr would call to convert all of it before. Ask: that zarr calls `__array__`.
    """
    frame = inspect.currentframe()
    attribute = None if frame is None else frame.f_back
    caller = None if attribute is None else attribute.f_back
    return caller is not None and caller.f_code is _set_selection.__code__


def largest_chunk(array: Any) -> tuple[int, ...]:
    """Return the shape of the chunks of an array; of a rectilinear grid, the largest length along each axis."""
    try:
        chunks: tuple[int, ...] = array.chunks
    except NotImplementedError:
        chunks = tuple(max(sizes, default=1) for sizes in array.read_chunk_sizes)
    return chunks


def largest_shard(array: Any) -> tuple[int, ...] | None:
    """Return the shape of the shards of an array, None if it has none; as `largest_chunk` for a rectilinear grid."""
    try:
        shards: tuple[int, ...] | None = array.shards
    except NotImplementedError:
        shards = tuple(max(sizes, default=1) for sizes in array.write_chunk_sizes)
    return shards


def decode_sync(codec: Any, data: Buffer, spec: ArraySpec) -> Any:
    """Decode with a codec, without an event loop. Ask: a public name of the method."""
    return codec._decode_sync(data, spec)  # noqa: SLF001


def encode_sync(codec: Any, data: Any, spec: ArraySpec) -> Any:
    """Encode with a codec, without an event loop. Ask: a public name of the method."""
    return codec._encode_sync(data, spec)  # noqa: SLF001


def can_sync(codec: Codec) -> bool:
    """Return whether a codec can be used without an event loop."""
    return hasattr(codec, "_decode_sync") and hasattr(codec, "_encode_sync")


class ThreadedCodec:
    """The asynchronous methods of a codec, which run its methods without an event loop in a thread.

    zarr calls only these private methods. Ask: that `BaseCodec` has them, or public names of all four.
    """

    async def _decode_single(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        return await asyncio.to_thread(decode_sync, self, chunk_data, chunk_spec)

    async def _encode_single(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        return await asyncio.to_thread(encode_sync, self, chunk_data, chunk_spec)


def async_group_of(group: zarr.Group) -> zarr.AsyncGroup:
    """Return the asynchronous group in a group. Ask: a property as `zarr.Array.async_array` is."""
    return group._async_group  # noqa: SLF001


def replace_async_array(array: zarr.Array[Any], inner: zarr.AsyncArray[Any]) -> None:
    """Replace the asynchronous array in an array. Ask: an argument for the codec pipeline of an array."""
    array._async_array = inner  # noqa: SLF001


def unwrap(store: Store) -> Store:
    """Return the store inside the wrappers of zarr, such as a cache or a log. Ask: a property that shows it."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001
    return store


def end_tasks() -> None:
    """Cancel the tasks of zarr's event loop, and wait until they have ended, after Ctrl-C.

    They would go on, and write behind a caller that removes what it has written. At the end of the process zarr closes
    the loop, and Python prints a traceback for every task that has not ended. Ask: that `sync` cancels its task.
    """
    loop = zarr_loop[0]
    if loop is None or not loop.is_running():
        return

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(2 * _PATIENCE)


def watch_caller() -> Callable[[], bool]:
    """Return a function that tells whether the thread that called zarr still waits for the running task.

    After Ctrl-C or a timeout it does not wait any more, and zarr neither cancels the task nor tells it. The function
    returns True for a task that no thread waits for in zarr's `sync`, such as that of an event loop of the user.
    """
    task = asyncio.current_task()
    runner = None if task is None else task.get_coro()
    if not isinstance(runner, CoroutineType) or runner.cr_code is not _runner.__code__ or runner.cr_frame is None:
        return lambda: True
    awaited = runner.cr_frame.f_locals["coro"]

    def is_in_stack(frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code is sync.__code__ and frame.f_locals["coro"] is awaited:
                return True
            frame = frame.f_back
        return False

    caller = next((thread for thread, frame in sys._current_frames().items() if is_in_stack(frame)), None)  # noqa: SLF001
    if caller is None:
        # Another function than zarr's waits, or a greenlet that does not run now. A write must not stop for that.
        return lambda: True
    return lambda: is_in_stack(sys._current_frames().get(caller))  # noqa: SLF001
