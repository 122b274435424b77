"""Which inner chunks a selection of a shard touches, and how the selected values are taken from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

type Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A selection by slices without steps, and integers: a part of the array that adjacent inner chunks make up."""

    # The inner chunks that are touched, counted in C order.
    numbers: Numbers
    # How many inner chunks are touched along each axis.
    grid: tuple[int, ...]
    index: tuple[Any, ...]

    def select(self, chunks: NDArray[Any]) -> NDArray[Any]:
        """Return the selected values of the inner chunks, whose first axis is that of `numbers`."""
        if len(chunks) == 1:
            return np.asarray(chunks[0][self.index])
        ndim, chunk_shape = len(self.grid), chunks.shape[1:]
        axes = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        shape = [count * size for count, size in zip(self.grid, chunk_shape, strict=True)]
        joined = chunks.reshape(*self.grid, *chunk_shape).transpose(axes).reshape(shape)
        return np.asarray(joined[self.index])


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """A selection by arrays of indexes, or by slices with steps: single elements of some inner chunks."""

    # The inner chunks that are touched, counted in C order.
    numbers: Numbers
    # The touched inner chunks along each axis, or in a single axis, and for each element where it is among them.
    grid: tuple[int, ...]
    index: tuple[Numbers, ...]

    def select(self, chunks: NDArray[Any]) -> NDArray[Any]:
        """Return the selected values of the inner chunks, whose first axis is that of `numbers`."""
        return np.asarray(chunks.reshape(*self.grid, *chunks.shape[1:])[self.index])


def plan_selection(selection: Any, grid: Sequence[int], chunk_shape: Sequence[int]) -> Region | Gather | None:
    """Return which inner chunks of a shard are touched by a selection of zarr, None if it is of an unknown kind.

    Parameters
    ----------
    selection
        What NumPy would select of the shard: slices, integers and arrays of indexes.
    grid
        How many inner chunks a shard has along each axis.
    chunk_shape
        The shape of an inner chunk.
    """
    if not isinstance(selection, tuple) or not len(selection) == len(grid) > 0:
        return None
    entries = [_normalize(each, count * size) for each, count, size in zip(selection, grid, chunk_shape, strict=True)]
    arrays = [each for each in entries if isinstance(each, np.ndarray)]
    if not arrays and all(isinstance(each, int) or (isinstance(each, slice) and each.step == 1) for each in entries):
        return _plan_region(entries, grid, chunk_shape)
    if any(each is None for each in entries) or not all(each.size for each in arrays):
        return None
    if len(arrays) == len(entries):
        return _plan_gather(arrays, grid, chunk_shape, is_grid=_is_grid(arrays))
    # Several arrays, or arrays and integers, mean different things to NumPy in different orders.
    if len(arrays) > 1 or (arrays and any(isinstance(entry, int) for entry in entries)):
        return None
    return _plan_gather(_spread(entries), grid, chunk_shape, is_grid=True)


def _normalize(entry: Any, size: int) -> int | slice | Numbers | None:
    """Return an entry of a selection with positive bounds, None if it is of an unknown kind or selects nothing."""
    match entry:
        case slice():
            start, stop, step = entry.indices(size)
            return slice(start, stop, step) if step > 0 and stop > start else None
        case np.ndarray() if entry.dtype == bool:
            return np.flatnonzero(entry) if entry.ndim == 1 else None
        case np.ndarray() if entry.dtype.kind in "iu":
            return entry.astype(np.intp, copy=False)
        case bool():
            return None
        case int() | np.integer():
            return int(entry)
        case _:
            return None


def _plan_region(entries: Sequence[Any], grid: Sequence[int], chunk_shape: Sequence[int]) -> Region:
    """Return the inner chunks that slices without steps and integers touch."""
    # Mostly one inner chunk is touched, for which integers of Python take less time than arrays.
    numbers, counts, index = [0], [], []
    for entry, size, total in zip(entries, chunk_shape, grid, strict=True):
        start, stop = (entry, entry + 1) if isinstance(entry, int) else (entry.start, entry.stop)
        first, end = start // size, (stop - 1) // size + 1
        numbers = [number * total + at for number in numbers for at in range(first, end)]
        counts.append(end - first)
        offset = first * size
        index.append(start - offset if isinstance(entry, int) else slice(start - offset, stop - offset))
    return Region(np.array(numbers, np.intp), tuple(counts), tuple(index))


def _is_grid(arrays: Sequence[Numbers]) -> bool:
    """Return whether every array of indexes has an axis of its own, as those of `np.ix_`."""
    return all(each.ndim == len(arrays) and each.size == each.shape[axis] for axis, each in enumerate(arrays))


def _spread(entries: Sequence[Any]) -> list[Numbers]:
    """Return slices, integers and an array of indexes as arrays, each along an axis of its own; integers have none."""
    arrays = [
        np.arange(each.start, each.stop, each.step) if isinstance(each, slice) else np.asarray(each, np.intp)
        for each in entries
    ]
    kept = [axis for axis, each in enumerate(arrays) if each.ndim]
    return [
        each.reshape([-1 if axis == other else 1 for other in kept]) if each.ndim else each
        for axis, each in enumerate(arrays)
    ]


def _plan_gather(
    arrays: Sequence[Numbers], grid: Sequence[int], chunk_shape: Sequence[int], *, is_grid: bool
) -> Gather:
    """Return the inner chunks that arrays of indexes touch, of which each has an axis of its own if `is_grid`."""
    chunks, inner = zip(*(np.divmod(each, size) for each, size in zip(arrays, chunk_shape, strict=True)), strict=True)
    if not is_grid:
        numbers, rows = np.unique(_ravel(chunks, grid), return_inverse=True)
        return Gather(numbers, (len(numbers),), (rows, *inner))
    touched, positions = zip(*(np.unique(each, return_inverse=True) for each in chunks), strict=True)
    return Gather(_ravel(np.ix_(*touched), grid).reshape(-1), tuple(map(len, touched)), (*positions, *inner))


def _ravel(chunks: Sequence[Numbers], grid: Sequence[int]) -> Numbers:
    """Return the numbers of inner chunks, counted in C order, from their positions along each axis."""
    numbers: Any = 0
    for each, count in zip(chunks, grid, strict=True):
        numbers = numbers * count + each
    return np.asarray(numbers, np.intp)
