"""PartsCodecPipeline: the codec pipeline for arrays on a PartsStore.

zarr calls a pipeline once per selection, with all of its chunks. This one reads and writes the chunks in threads, each
thread one chunk at a time, from the request to the values. Whole shards are encoded and decoded by `shard`, and chunks
without filters by `chunk`; everything else is left to zarr's codecs, also where a chunk is not on a PartsStore (the
sharding codec calls a pipeline with the inner chunks of a shard).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Final, Self, cast, override

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.buffer import NDBuffer
from zarr.abc.codec import Codec, CodecPipeline, GetResult
from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.codecs import ShardingCodec
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from parts_store._compat.zarr import (
    ArraySpec,
    BatchedCodecPipeline,
    ChunkTransform,
    FusedCodecPipeline,
    codecs_from_list_unchecked,
    create_codec_pipeline,
    scatter_chunk,
    supports_sync_io,
)
from parts_store.codecs.damaged_chunks import with_checks
from parts_store.engine.concurrency import require_not_stopped, run_in_threads
from parts_store.engine.executor import retry
from parts_store.engine.steps import Steps
from parts_store.format.shard_index import NO_CHUNK, Table
from parts_store.pipeline.chunk import ChunkLayout, Layouts, plan_chunks
from parts_store.pipeline.compression import Bytes, NotDecodedError
from parts_store.pipeline.selections import Gather, Region, plan_selection
from parts_store.pipeline.shard import ShardLayout, plan_layout
from parts_store.store.store import PartsStore

type ChunkItem = tuple[Any, ArraySpec, Any, Any, bool]
"""What zarr says of a chunk: where it is, its shape and data type, the selection of the chunk, that of the whole
result, and whether all of the chunk is selected."""

type ChunkGetter = Callable[[str], Sequence[memoryview] | None]
"""A function that reads the chunk at a key, in pieces; it returns None if there is no such chunk."""

# The size of inner chunks that are decoded in less time than it takes to start a thread.
_MAX_AT_ONCE: Final = 1 << 17
# Chunks that take so little time to read or write spend it in Python or in the kernel, where several threads would
# only slow each other down. Larger chunks are encoded and decoded for longer than that.
_QUICK_READ, _QUICK_WRITE = 0.001, 0.003
_MAX_QUICK: Final = 1 << 17
# The size of chunks whose requests to a network take the same time as those of smaller chunks.
_MAX_SMALL: Final = 1 << 18
# Threads wait for the network most of the time, so there are more of them than cores, and still more for small chunks.
_WORKERS: Final = 32
_WORKERS_FOR_SMALL: Final = 128


class PartsCodecPipeline(FusedCodecPipeline):
    """A codec pipeline that reads and writes all chunks of a selection at once, for arrays on a `PartsStore`."""

    @classmethod
    @override
    def from_codecs(cls, codecs: Iterable[Codec], *, batch_size: int | None = None) -> Self:
        return super().from_codecs(with_checks(codecs), batch_size=batch_size)

    @override
    def __reduce__(self) -> Any:
        # zarr pickles the codecs in a shard by their names, which loses the checks.
        return type(self).replacing, (self.codecs,)

    @classmethod
    def replacing(cls, pipeline: CodecPipeline | Iterable[Codec]) -> Self:
        """Return a pipeline with the codecs of another one, which belongs to an array."""
        codecs = with_checks(cast("Iterable[Codec]", pipeline))
        array_array, array_bytes, bytes_bytes = codecs_from_list_unchecked(codecs)
        try:
            transform = ChunkTransform(codecs=codecs)
        except TypeError:
            # A codec that works on an event loop only.
            transform = None
        return cls(codecs, array_array, array_bytes, bytes_bytes, transform, 1)

    @override
    async def read(
        self, batch_info: Iterable[ChunkItem], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> tuple[GetResult, ...]:
        batch = list(batch_info)
        if self.sync_transform is None or not _is_on_parts_store(batch):
            return await super().read(batch, out, drop_axes)
        if len(batch) == 1 and (result := await self._read_at_once(batch[0], out, drop_axes)) is not None:
            return (result,)
        get = await batch[0][0].store.chunk_getter(batch[0][0].path)
        tasks = [partial(self._read_chunk, item, out, drop_axes, get) for item in batch]
        return tuple(await run_in_threads(tasks, worker_count(batch), finishes=False, quick=_quick(batch, _QUICK_READ)))

    @override
    async def write(self, batch_info: Iterable[ChunkItem], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        batch = list(batch_info)
        if self.sync_transform is None or not _is_on_parts_store(batch):
            await super().write(batch, value, drop_axes)
        else:
            store, key = batch[0][0].store, batch[0][0].path
            if len(batch) > 1:
                await store.carry_out_async(store.before_writes(key))
            with store.keep_lock(key):
                tasks = [partial(self._write_chunk, item, value, drop_axes) for item in batch]
                await run_in_threads(tasks, worker_count(batch), finishes=True, quick=_quick(batch, _QUICK_WRITE))

    async def _read_at_once(self, item: ChunkItem, out: NDBuffer, drop_axes: tuple[int, ...]) -> GetResult | None:
        """Read a few inner chunks of a shard on the event loop, which takes less time than to start a thread.

        Returns None if it may take longer, or if this cannot be done here.
        """
        path, spec, _, _, is_complete = item
        values, layout = out.as_ndarray_like(), self._layout(spec)
        if is_complete or layout is None or not isinstance(values, np.ndarray):
            return None
        read = _plan_inner(item, layout)
        if read is None or read.nbytes > _MAX_AT_ONCE:
            return None
        try:
            found = await path.store.carry_out_async(read.steps())
            return _result(item, out, is_found=read.finish(found, values, drop_axes))
        except NotDecodedError:
            return None

    def _read_chunk(
        self, item: ChunkItem, out: NDBuffer, drop_axes: tuple[int, ...], get: ChunkGetter | None
    ) -> GetResult:
        """Read one chunk into the result."""
        values, spec = out.as_ndarray_like(), item[1]
        is_found = None
        if isinstance(values, np.ndarray):
            # What cannot be decoded here is decoded by zarr's codec, which says what is wrong with it.
            with suppress(NotDecodedError):
                if (layout := self._layout(spec)) is not None:
                    is_found = self._read_from_shard(item, values, drop_axes, layout)
                elif get is not None and (chunks := self._chunk_layouts.of(spec)) is not None:
                    is_found = _read_whole(item, values, drop_axes, chunks, get)
        if is_found is None:
            (result,) = self.read_sync([item], out, drop_axes)
            return result
        return _result(item, out, is_found=is_found)

    def _read_from_shard(
        self, item: ChunkItem, values: NDArray[Any], drop_axes: tuple[int, ...], layout: ShardLayout
    ) -> bool | None:
        """Read what is selected of a shard; return whether there is such a shard, None for an unknown selection."""
        path, _, _, out_selection, is_complete = item
        if is_complete and _region(item, drop_axes) is not None:
            return _read_shard(path, layout, values[out_selection])
        read = _plan_inner(item, layout)
        if read is None:
            return None
        return read.finish(path.store.carry_out(read.steps()), values, drop_axes)

    def _write_chunk(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...]) -> None:
        """Write one chunk from the values, again if another client has changed it meanwhile."""
        retry(partial(self._write_once, item, value, drop_axes))

    def _write_once(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...]) -> None:
        """Write one chunk from the values: all of it, or read it, change it and write it if it has not changed."""
        # What cannot be decoded here is decoded by zarr's codec, which says what is wrong with it.
        with suppress(NotDecodedError):
            if self._write_shard(item, value, drop_axes) or self._write_whole(item, value, drop_axes):
                return
        self.write_sync([_with_exact_fill_value(item)], value, drop_axes)

    def _write_shard(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...]) -> bool:
        """Write all of a shard that is inside the array; return False if this is left to zarr's codec."""
        path, spec, _, out_selection, is_complete = item
        layout, values = self._layout(spec), value.as_ndarray_like()
        region = None if layout is None or not is_complete else _region(item, drop_axes)
        if layout is None or region is None or not isinstance(values, np.ndarray):
            return False
        if values.shape == ():
            values = np.broadcast_to(values, tuple(each.stop for each in region))
        else:
            values = values[out_selection]
            if values.shape != tuple(each.stop for each in region):
                # zarr repeats values along axes of length 1, or refuses them.
                return False
        # A shard at the end of the array may hold values from before the array was shrunk, which zarr keeps. The buffer
        # is kept until the shard is written, because the store compares the two.
        existing = None if values.shape == layout.shape else path.get_sync(prototype=spec.prototype)
        if existing is not None:
            values = layout.replace_start(existing.as_numpy_array(), values)
        _replace(path, spec, layout.encode(values))
        return True

    def _write_whole(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...]) -> bool:
        """Write all of a chunk without shards; return False if this is left to zarr's codecs."""
        path, spec, _, out_selection, is_complete = item
        layout, values = self._chunk_layouts.of(spec), value.as_ndarray_like()
        if layout is None or not is_complete or drop_axes or not isinstance(values, np.ndarray) or not values.shape:
            return False
        values = values[out_selection]
        if values.shape != layout.chunk_shape:
            return False
        _replace(path, spec, layout.encode_chunk(values))
        return True

    @cached_property
    def _chunk_layouts(self) -> Layouts[ChunkLayout]:
        """The layouts of the array's chunks, which are None if it has shards or filters."""
        return Layouts(partial(plan_chunks, self.codecs))

    @cached_property
    def _layouts(self) -> Layouts[ShardLayout] | None:
        """The layouts of the array's shards, None if it has no shards that are read in part."""
        codec = self.array_bytes_codec
        if not self.supports_partial_decode or not isinstance(codec, ShardingCodec):
            return None
        return Layouts(partial(plan_layout, codec))

    def _layout(self, spec: ArraySpec) -> ShardLayout | None:
        """Return the layout of a shard, None if it is not a shard, or one that `shard` does not know."""
        return None if self._layouts is None else self._layouts.of(spec)


def _replace(path: Any, spec: ArraySpec, encoded: Bytes | None) -> None:
    """Store an encoded chunk; delete it if there is none, because all of it is the fill value."""
    if encoded is None:
        path.delete_sync()
    else:
        path.set_sync(spec.prototype.buffer.from_array_like(encoded))


def _read_shard(path: Any, layout: ShardLayout, target: NDArray[Any]) -> bool:
    """Read a whole shard into an array; return whether there is such a shard."""
    pieces = path.store.get_pieces_sync(path.path)
    if pieces is None:
        return False
    shard, index = layout.separate([np.frombuffer(each, np.uint8) for each in pieces])
    # If the pieces were copied, they are not kept in memory.
    del pieces
    layout.decode_into(target, shard, index)
    return True


def _read_whole(
    item: ChunkItem, values: NDArray[Any], drop_axes: tuple[int, ...], layout: ChunkLayout, get: ChunkGetter
) -> bool:
    """Read what is selected of a chunk without shards; return whether there is such a chunk."""
    path, _, selection, out_selection, _ = item
    pieces = get(path.path)
    if pieces is None:
        return False
    arrays = [np.frombuffer(piece, np.uint8) for piece in pieces]
    stored = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    # If the pieces were copied, they are not kept in memory.
    del pieces, arrays
    selected = np.asarray(layout.decode_chunk(stored)[selection])
    values[out_selection] = selected.squeeze(drop_axes) if drop_axes else selected
    return True


@dataclass(slots=True)
class _InnerRead:
    """A read of some inner chunks of a shard."""

    item: ChunkItem
    layout: ShardLayout
    touched: Region | Gather
    # Which of the inner chunks are stored.
    _is_stored: list[bool] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The size of all these inner chunks, decoded."""
        return len(self.touched.numbers) * prod(self.layout.chunk_shape) * self.layout.dtype.itemsize

    def steps(self) -> Steps[Sequence[memoryview | None] | None]:
        """Return the steps of the store that read the inner chunks."""
        path, config = self.item[0], self.item[1].config
        steps: Steps[Sequence[memoryview | None] | None] = path.store.get_inner(
            path.path,
            self.layout.index,
            self._locate,
            max_gap_bytes=config.sharding_coalesce_max_gap_bytes,
            max_coalesced_bytes=config.sharding_coalesce_max_bytes,
        )
        return steps

    def _locate(self, table: Table | None) -> list[ByteRequest]:
        """Return the byte ranges of the inner chunks that are stored."""
        require_not_stopped()
        if table is None:
            raise NotDecodedError
        places = table[self.touched.numbers].tolist()
        if any((start == NO_CHUNK) != (nbytes == NO_CHUNK) for start, nbytes in places):
            # An inner chunk with an offset and no size, or a size and no offset, is not an absent one.
            raise NotDecodedError
        self._is_stored = [start != NO_CHUNK for start, _ in places]
        return [RangeByteRequest(start, start + nbytes) for start, nbytes in places if start != NO_CHUNK]

    def finish(
        self, found: Sequence[memoryview | None] | None, values: NDArray[Any], drop_axes: tuple[int, ...]
    ) -> bool:
        """Copy what is selected of the inner chunks into the result; return whether there is such a shard."""
        if found is None:
            return False
        pieces = iter(found)
        stored = [_array(next(pieces)) if is_stored else None for is_stored in self._is_stored]
        selected = self.touched.select(self.layout.decode_some(stored))
        values[self.item[3]] = selected.squeeze(drop_axes) if drop_axes else selected
        return True


def _array(found: memoryview | None) -> Bytes:
    if found is None:
        # The inner chunk was removed since the index was read.
        raise NotDecodedError
    return np.frombuffer(found, np.uint8)


def _plan_inner(item: ChunkItem, layout: ShardLayout) -> _InnerRead | None:
    """Return how to read what is selected of a shard, None for a selection of an unknown kind."""
    touched = plan_selection(item[2], layout.grid, layout.chunk_shape)
    return None if touched is None else _InnerRead(item, layout, touched)


def _result(item: ChunkItem, out: NDBuffer, *, is_found: bool) -> GetResult:
    """Return the result of a read; of a chunk that does not exist, it is the fill value."""
    if is_found:
        return GetResult(status="present")
    return scatter_chunk(None, out, chunk_spec=item[1], out_selection=item[3], drop_axes=())


def _region(item: ChunkItem, drop_axes: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Return the selection of a chunk as slices without steps, None if it is anything else."""
    _, spec, selection, out_selection, _ = item
    if drop_axes or not isinstance(selection, tuple) or not isinstance(out_selection, tuple):
        return None
    if not len(selection) == len(out_selection) == len(spec.shape):
        return None
    if not all(isinstance(each, slice) and each.step in (None, 1) for each in (*selection, *out_selection)):
        return None
    return tuple(slice(*each.indices(size)[:2]) for each, size in zip(selection, spec.shape, strict=True))


def _with_exact_fill_value(item: ChunkItem) -> ChunkItem:
    """Return a chunk that zarr's codecs store even if it seems to be empty, if the fill value is a complex NaN.

    zarr takes `1+nanj` for `nan+nanj`, and would not store it.
    """
    path, spec, *others = item
    if spec.fill_value is None or spec.dtype.to_native_dtype().kind != "c" or not np.isnan(spec.fill_value):
        return item
    return path, replace(spec, config=replace(spec.config, write_empty_chunks=True)), *others


def worker_count(batch: Sequence[ChunkItem]) -> int:
    """Return the most threads that read and write chunks: zarr's `codec_pipeline.max_workers`, if it is set."""
    configured = zarr.config.get("codec_pipeline.max_workers", None)
    if configured is not None:
        return max(1, int(configured))
    is_small = batch[0][0].store.has_latency and _largest(batch) <= _MAX_SMALL
    return _WORKERS_FOR_SMALL if is_small else _WORKERS


def _quick(batch: Sequence[ChunkItem], quick: float) -> float:
    """Return how fast one thread has to be to work alone: never on a network, and never with large chunks."""
    return 0.0 if batch[0][0].store.has_latency or _largest(batch) > _MAX_QUICK else quick


def _largest(batch: Sequence[ChunkItem]) -> int:
    specs = {item[1].shape: item[1] for item in batch}.values()
    return max(prod(spec.shape) * spec.dtype.to_native_dtype().itemsize for spec in specs)


def _is_on_parts_store(batch: Sequence[ChunkItem]) -> bool:
    if not batch or not all(isinstance(item[0], StorePath) for item in batch):
        return False
    # All chunks of an array are on one store. `isinstance` would accept an object that stands in for a store, and whose
    # own methods must be called.
    store = batch[0][0].store
    is_ours = issubclass(type(store), PartsStore) and supports_sync_io(store)
    return is_ours and all(item[0].store is store for item in batch)


class AutomaticPipeline(BatchedCodecPipeline):
    """The choice of a pipeline: ours for arrays on a `PartsStore`, and zarr's default for all others.

    A `PartsStore` puts it in place of zarr's default into zarr's configuration. It is never the pipeline of an array.
    """

    @classmethod
    @override
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Any:
        pipeline = create_codec_pipeline(array_metadata)
        is_ours = issubclass(type(store), PartsStore) and store.is_fast
        return PartsCodecPipeline.replacing(pipeline) if is_ours else pipeline

    @classmethod
    @override
    def from_codecs(cls, codecs: Iterable[Codec], *, batch_size: int | None = None) -> Any:
        return BatchedCodecPipeline.from_codecs(codecs, batch_size=batch_size)


register_pipeline(PartsCodecPipeline)
register_pipeline(AutomaticPipeline)
