"""Divide dask arrays into tasks, so that no two tasks write the same chunk of a Zarr array."""

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zarr

from parts_store.errors import StoreConfigError, describe


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """A dask array, and the Zarr array it is written to; its first element goes to `start`."""

    source: Any
    target: zarr.Array[Any]
    start: tuple[int, ...]

    def tasks(self) -> "Iterator[WriteTask]":
        """Yield a task for each block of the source."""
        blocks = self.source.to_delayed()
        edges = [_edges(sizes, start) for sizes, start in zip(self.source.chunks, self.start, strict=True)]
        for block in itertools.product(*(range(len(each) - 1) for each in edges)):
            region = tuple(slice(edge[at], edge[at + 1]) for edge, at in zip(edges, block, strict=True))
            yield WriteTask(self.target.path, region, blocks[block])


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A block of a dask array, and the path and region it is written to."""

    path: str
    region: tuple[slice, ...]
    block: Any

    @property
    def name(self) -> str:
        """The path and the region, as they are shown in an error: `temperature[0:4, 0:5]`."""
        return f"{self.path or '/'}[" + ", ".join(f"{each.start}:{each.stop}" for each in self.region) + "]"


def plan_array_write(
    source: Any, target: zarr.Array[Any], region: Sequence[slice] | None, *, align_chunks: bool
) -> ArrayWrite:
    """Return how to write a dask array, with each chunk of the target in one task.

    Parameters
    ----------
    source
        The dask array.
    target
        The Zarr array.
    region
        Slices of the target without steps; the whole target if None.
    align_chunks
        Whether to rechunk a source whose chunks would share a chunk of the target.

    Raises
    ------
    StoreConfigError
        If the source is not a dask array, if its shape is not the shape of the region, if the region cuts chunks of
        the target, or if the chunks of the source do and `align_chunks` is False.
    """
    path = target.path or "/"
    _require_dask_array(source, path)
    start, stop = _bounds(target, region)
    shape = tuple(after - before for before, after in zip(start, stop, strict=True))
    # dask says NaN for a size that is not known yet, which equals nothing.
    if tuple(source.shape) != shape:
        raise StoreConfigError(f"source for {path!r}", f"the shape {shape}", f"{tuple(source.shape)}")
    grid = [_edges(sizes, 0) for sizes in target.write_chunk_sizes]
    _require_between_chunks(path, start, stop, grid)
    axes = list(zip(source.chunks, start, grid, strict=True))
    if all(set(_edges(sizes, first)) <= set(edges) for sizes, first, edges in axes):
        return ArrayWrite(source, target, start)
    if not align_chunks:
        expected = f"chunks that cover whole chunks of {describe(target.write_chunk_sizes)}, or align_chunks=True"
        raise StoreConfigError(f"source for {path!r}", expected, f"chunks {describe(source.chunks)}")
    return ArrayWrite(source.rechunk(tuple(_aligned(*axis) for axis in axes)), target, start)


def _require_dask_array(source: Any, path: str) -> None:
    if not hasattr(source, "to_delayed") or not hasattr(source, "chunks"):
        raise StoreConfigError(f"source for {path!r}", "a dask array", describe(source))
    # zarr would store the values below the mask.
    if hasattr(getattr(source, "_meta", None), "mask"):
        expected = "an array without a mask, such as dask.array.ma.filled returns"
        raise StoreConfigError(f"source for {path!r}", expected, "a masked array")


def _require_between_chunks(
    path: str, start: Sequence[int], stop: Sequence[int], grid: Sequence[Sequence[int]]
) -> None:
    for axis, edges in enumerate(grid):
        if not {start[axis], stop[axis]} <= set(edges):
            expected = f"bounds between chunks along axis {axis}"
            raise StoreConfigError(f"region of {path!r}", expected, f"{start[axis]}:{stop[axis]}")


def _bounds(target: zarr.Array[Any], region: Sequence[slice] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first index of a region along each axis, and the index after the last one."""
    if region is None:
        return (0,) * target.ndim, target.shape
    slices = tuple(region) if isinstance(region, Sequence) else ()
    if len(slices) != target.ndim or not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
        raise StoreConfigError("region", f"a tuple of {target.ndim} slices without steps", describe(region))
    bounds = [each.indices(size) for each, size in zip(slices, target.shape, strict=True)]
    return tuple(start for start, _, _ in bounds), tuple(max(start, stop) for start, stop, _ in bounds)


def _edges(sizes: Sequence[int], start: int) -> list[int]:
    """Return where chunks of these sizes begin, and where the last of them ends."""
    return list(itertools.accumulate(sizes, initial=start))


def _aligned(sizes: Sequence[int], start: int, edges: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks that end where chunks of the target end, at or after where they ended."""
    ends = sorted({edges[bisect_left(edges, end)] for end in _edges(sizes, start)})
    return tuple(after - before for before, after in itertools.pairwise(ends)) or (0,)
