"""PartsCodecPipeline: the codec pipeline for arrays on a PartsStore.

zarr calls a pipeline once per selection, with all of its chunks. This one reads and writes the chunks in threads, each
thread one chunk at a time, from the request to the values. Whole shards are encoded and decoded by `shard`; everything
else is left to zarr's codecs, also where a chunk is not on a PartsStore (the sharding codec calls a pipeline with the
inner chunks of a shard).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, cast, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import Codec, CodecPipeline, GetResult
from zarr.abc.store import RangeByteRequest
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
from parts_store.pipeline.selections import Numbers, plan_selection
from parts_store.pipeline.shard import ShardLayout, plan_layout
from parts_store.pipeline.threads import require_not_stopped, run
from parts_store.pipeline.together import ChunkItem, write_together
from parts_store.store import PartsStore

type Layouts = Mapping[tuple[int, ...], ShardLayout]


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
        _, spec, _, out_selection, _ = item
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
        if is_found:
            return GetResult(status="present")
        return scatter_chunk(None, out, chunk_spec=spec, out_selection=out_selection, drop_axes=())

    def _read_from_shard(
        self, item: ChunkItem, values: NDArray[Any], drop_axes: tuple[int, ...], layout: ShardLayout
    ) -> bool | None:
        """Read what is selected of a shard; return whether there is such a shard, None for an unknown selection."""
        path, spec, selection, out_selection, is_complete = item
        if is_complete and _region(item, drop_axes) is not None:
            return _read_shard(path, spec, layout, values[out_selection])
        touched = plan_selection(selection, layout.grid, layout.chunk_shape)
        if touched is None:
            return None
        chunks = _read_some(path, spec, layout, touched.numbers)
        if chunks is None:
            return False
        selected = touched.select(chunks)
        values[out_selection] = selected.squeeze(drop_axes) if drop_axes else selected
        return True

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


def _read_some(path: StorePath, spec: ArraySpec, layout: ShardLayout, numbers: Numbers) -> NDArray[Any] | None:
    """Read some inner chunks of a shard: the index, and then the data; return None if there is no such shard."""
    index = path.get_sync(prototype=spec.prototype, byte_range=layout.index.request)
    if index is None:
        return None
    require_not_stopped()
    places = layout.locate(index.as_numpy_array(), numbers)
    wanted = [place for place in places if place is not None]
    found = _get_ranges(path, spec, wanted) if wanted else {}
    if found is None:
        return None
    data = iter([found.get(number) for number in range(len(wanted))])
    stored: list[Bytes | None] = []
    for place in places:
        if place is None:
            stored.append(None)
            continue
        if (piece := next(data)) is None:
            raise NotDecodedError
        stored.append(piece.as_numpy_array())
    return layout.decode_some(stored)


def _get_ranges(path: StorePath, spec: ArraySpec, places: Sequence[Span]) -> dict[int, Buffer | None] | None:
    """Return ranges of a chunk by their numbers; None if the chunk was deleted after its index was read."""
    try:
        return dict(
            path.store.get_ranges_sync(
                path.path,
                [RangeByteRequest(place.start, place.stop) for place in places],
                prototype=spec.prototype,
                max_gap_bytes=spec.config.sharding_coalesce_max_gap_bytes,
                max_coalesced_bytes=spec.config.sharding_coalesce_max_bytes,
            )
        )
    except BaseExceptionGroup as group:
        # zarr's stores raise this for a key that does not exist.
        if group.split(FileNotFoundError)[1] is not None:
            raise
        return None


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
    return bool(batch) and all(
        isinstance(item[0], StorePath) and isinstance(item[0].store, PartsStore) and supports_sync_io(item[0].store)
        for item in batch
    )


register_pipeline(PartsCodecPipeline)
