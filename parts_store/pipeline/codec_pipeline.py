"""PartsCodecPipeline: the codec pipeline for arrays on a PartsStore.

zarr calls a pipeline once per selection, with all of its chunks. This one reads and writes the chunks in threads, each
thread one chunk at a time, from the request to the values. Whole shards are encoded and decoded by `shard`; everything
else is left to zarr's codecs, also where a chunk is not on a PartsStore (the sharding codec calls a pipeline with the
inner chunks of a shard).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Final, Self, cast, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.buffer import NDBuffer
from zarr.abc.codec import Codec, CodecPipeline, GetResult
from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.codecs import ShardingCodec
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from parts_store._compat.zarr import (
    ArraySpec,
    ChunkTransform,
    FusedCodecPipeline,
    codecs_from_list_unchecked,
    scatter_chunk,
    supports_sync_io,
)
from parts_store.format.ranges import Span
from parts_store.pipeline.compression import Bytes, NotDecodedError
from parts_store.pipeline.retries import retry
from parts_store.pipeline.selections import Gather, Region, plan_selection
from parts_store.pipeline.shard import ShardLayout, plan_layout
from parts_store.pipeline.threads import require_not_stopped, run
from parts_store.pipeline.together import ChunkItem, write_together
from parts_store.store import PartsStore

type Pieces = Sequence[memoryview]
"""Pieces of bytes that make up a value, in order."""
type Layouts = Mapping[tuple[int, ...], ShardLayout]
# The size of inner chunks that are decoded in less time than it takes to start a thread.
_MAX_AT_ONCE: Final = 1 << 17


class PartsCodecPipeline(FusedCodecPipeline):
    """A codec pipeline that reads and writes all chunks of a selection at once, for arrays on a `PartsStore`."""

    @classmethod
    def replacing(cls, pipeline: CodecPipeline) -> Self:
        """Return a pipeline with the codecs of another one, which belongs to an array."""
        codecs: tuple[Codec, ...] = tuple(cast("Iterable[Codec]", pipeline))
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
        layouts = self._layouts(batch)
        if len(batch) == 1 and (result := await _read_at_once(batch[0], out, drop_axes, layouts)) is not None:
            return (result,)
        tasks = [partial(self._read_chunk, item, out, drop_axes, layouts) for item in batch]
        return tuple(await run(tasks, finishes=False))

    @override
    async def write(self, batch_info: Iterable[ChunkItem], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        batch = list(batch_info)
        if self.sync_transform is None or not _is_on_parts_store(batch):
            await super().write(batch, value, drop_axes)
        else:
            layouts = self._layouts(batch)
            write = partial(self._write_chunk, value=value, drop_axes=drop_axes, layouts=layouts)
            # zarr's sharding codec writes a shard by itself.
            if layouts or not self.supports_partial_encode:
                batch = await write_together(batch, write)
            await run([partial(write, item) for item in batch], finishes=True)

    def _read_chunk(self, item: ChunkItem, out: NDBuffer, drop_axes: tuple[int, ...], layouts: Layouts) -> GetResult:
        """Read one chunk into the result."""
        _, spec, _, _, _ = item
        values = out.as_ndarray_like()
        layout = layouts.get(spec.shape)
        is_found = None
        if layout is not None and isinstance(values, np.ndarray):
            # What cannot be decoded here is decoded by zarr's codec, which says what is wrong with it.
            with suppress(NotDecodedError):
                is_found = self._read_from_shard(item, values, drop_axes, layout)
        if is_found is None:
            (result,) = self.read_sync([item], out, drop_axes)
            return result
        return _result(item, out, is_found=is_found)

    def _read_from_shard(
        self, item: ChunkItem, values: NDArray[Any], drop_axes: tuple[int, ...], layout: ShardLayout
    ) -> bool | None:
        """Read what is selected of a shard; return whether there is such a shard, None for an unknown selection."""
        path, spec, _, out_selection, is_complete = item
        if is_complete and _region(item, drop_axes) is not None:
            return _read_shard(path, spec, layout, values[out_selection])
        read = _plan_inner(item, layout)
        if read is None:
            return None
        return read.finish(path.store.get_inner_sync(*read.arguments, **read.options), values, drop_axes)

    def _write_chunk(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...], layouts: Layouts) -> None:
        """Write one chunk from the values, again if another client has changed it meanwhile."""
        retry(partial(self._write_once, item, value, drop_axes, layouts))

    def _write_once(self, item: ChunkItem, value: NDBuffer, drop_axes: tuple[int, ...], layouts: Layouts) -> None:
        """Write one chunk from the values: all of it, or read it, change it and write it if it has not changed."""
        path, spec, _, out_selection, is_complete = item
        layout, region = layouts.get(spec.shape), _region(item, drop_axes)
        values = value.as_ndarray_like()
        if layout is None or region is None or not is_complete or not isinstance(values, np.ndarray):
            self.write_sync([item], value, drop_axes)
            return
        if values.shape == ():
            values = np.broadcast_to(values, tuple(each.stop for each in region))
        else:
            values = values[out_selection]
        encoded = layout.encode(values)
        if encoded is None:
            path.delete_sync()
        else:
            path.set_sync(spec.prototype.buffer.from_array_like(encoded))

    def _layouts(self, batch: Sequence[ChunkItem]) -> Layouts:
        """Return the layouts of the shards of a selection by their shapes, without those that `shard` does not know."""
        codec = self.array_bytes_codec
        if not self.supports_partial_decode or not isinstance(codec, ShardingCodec):
            return {}
        specs = {item[1].shape: item[1] for item in batch}
        planned = {shape: plan_layout(codec, spec) for shape, spec in specs.items()}
        return {shape: layout for shape, layout in planned.items() if layout is not None}


def _read_shard(path: StorePath, spec: ArraySpec, layout: ShardLayout, target: NDArray[Any]) -> bool:
    """Read a whole shard into an array; return whether there is such a shard."""
    stored = path.get_sync(prototype=spec.prototype)
    if stored is not None:
        layout.decode_into(target, stored.as_numpy_array())
    return stored is not None


@dataclass(slots=True)
class _InnerRead:
    """A read of some inner chunks of a shard."""

    item: ChunkItem
    layout: ShardLayout
    touched: Region | Gather
    _places: list[Span | None] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The size of all these inner chunks, decoded."""
        return len(self.touched.numbers) * prod(self.layout.chunk_shape) * self.layout.dtype.itemsize

    @property
    def arguments(self) -> tuple[str, ByteRequest, Callable[[memoryview], Sequence[ByteRequest]]]:
        """What the store is asked for."""
        return self.item[0].path, self.layout.index.request, self._locate

    @property
    def options(self) -> dict[str, int]:
        """How the store coalesces byte ranges."""
        config = self.item[1].config
        return {
            "max_gap_bytes": config.sharding_coalesce_max_gap_bytes,
            "max_coalesced_bytes": config.sharding_coalesce_max_bytes,
        }

    def _locate(self, index: memoryview) -> list[ByteRequest]:
        """Return the byte ranges of the inner chunks that are stored."""
        require_not_stopped()
        self._places = self.layout.locate(index.tobytes(), self.touched.numbers)
        return [RangeByteRequest(place.start, place.stop) for place in self._places if place is not None]

    def finish(self, found: Sequence[Pieces | None] | None, values: NDArray[Any], drop_axes: tuple[int, ...]) -> bool:
        """Copy what is selected of the inner chunks into the result; return whether there is such a shard."""
        if found is None:
            return False
        pieces = iter(found)
        stored = [None if place is None else _joined(next(pieces)) for place in self._places]
        selected = self.touched.select(self.layout.decode_some(stored))
        values[self.item[3]] = selected.squeeze(drop_axes) if drop_axes else selected
        return True


def _joined(pieces: Pieces | None) -> Bytes:
    if pieces is None:
        raise NotDecodedError
    arrays = [np.frombuffer(each, np.uint8) for each in pieces]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [np.empty(0, np.uint8)])


def _plan_inner(item: ChunkItem, layout: ShardLayout) -> _InnerRead | None:
    """Return how to read what is selected of a shard, None for a selection of an unknown kind."""
    touched = plan_selection(item[2], layout.grid, layout.chunk_shape)
    return None if touched is None else _InnerRead(item, layout, touched)


async def _read_at_once(
    item: ChunkItem, out: NDBuffer, drop_axes: tuple[int, ...], layouts: Layouts
) -> GetResult | None:
    """Read a few inner chunks of a shard on the event loop, which takes less time than to start a thread.

    Returns None if it may take longer, or if this cannot be done here.
    """
    path, spec, _, _, is_complete = item
    values, layout = out.as_ndarray_like(), layouts.get(spec.shape)
    if is_complete or layout is None or not isinstance(values, np.ndarray):
        return None
    read = _plan_inner(item, layout)
    if read is None or read.nbytes > _MAX_AT_ONCE:
        return None
    try:
        found = await path.store.get_inner(*read.arguments, **read.options)
        return _result(item, out, is_found=read.finish(found, values, drop_axes))
    except NotDecodedError:
        return None


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


def _is_on_parts_store(batch: Sequence[ChunkItem]) -> bool:
    # `isinstance` would accept an object that stands in for a store, and whose own methods must be called.
    return bool(batch) and all(
        isinstance(item[0], StorePath)
        and issubclass(type(item[0].store), PartsStore)
        and supports_sync_io(item[0].store)
        for item in batch
    )


register_pipeline(PartsCodecPipeline)
