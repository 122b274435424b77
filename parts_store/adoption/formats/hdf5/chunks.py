"""Find the chunks of an HDF5 dataset, and correct positions that the HDF5 library lists wrongly."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, CannotBeReadError

# A table of more chunks would not fit into memory.
_MAX_CHUNKS: Final = 1 << 24

type Place = tuple[int, ...]
type Table = dict[Place, tuple[int, int]]
"""The offset and size of each chunk, by its position in the grid."""


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """All chunks as the HDF5 library lists them: their first elements in the array, and their places in the file."""

    starts: NDArray[np.int64]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    masks: NDArray[np.uint32]

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> "_Listed":
        """Return the chunks of a dataset."""
        listed: list[Any] = []
        if dataset.id.get_num_chunks():
            dataset.id.chunk_iter(listed.append)
        listed = [chunk for chunk in listed if chunk.byte_offset is not None]
        starts = np.array([chunk.chunk_offset for chunk in listed], np.int64).reshape(len(listed), len(dataset.shape))
        return cls(
            starts,
            np.array([chunk.byte_offset for chunk in listed], np.uint64),
            np.array([chunk.size for chunk in listed], np.uint64),
            np.array([chunk.filter_mask for chunk in listed], np.uint32),
        )


type Grids = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]
"""The offset, the size and the filter mask of each chunk, in the shape of the grid."""


def chunks_of(dataset: h5py.Dataset, file: BinaryIO, shape: Place) -> Grids:
    """Return where the chunks of a dataset are, and which filters were left out of them.

    The grid is that of an array of this shape, which is at least that of the dataset.
    """
    grid = tuple(-(-size // chunk) for size, chunk in zip(shape, dataset.chunks, strict=True))
    if math.prod(grid) > _MAX_CHUNKS:
        raise CannotBeReadError(f"{math.prod(grid):,} chunks, and at most {_MAX_CHUNKS:,} can be listed")
    if 0 in grid:
        return np.empty(grid, np.uint64), np.empty(grid, np.uint64), np.empty(grid, np.uint32)
    listed = _Listed.of(dataset)
    _require_order(listed.starts, dataset.chunks)
    places = _right_places(dataset, file, listed)
    # HDF5 keeps chunks beyond the shape if the dataset was larger before.
    is_inside = np.all(places * np.array(dataset.chunks) < np.array(dataset.shape), axis=1)
    numbers = np.ravel_multi_index(tuple(places[is_inside].T), grid)
    seen, counts = np.unique(numbers, return_counts=True)
    if len(twice := seen[counts > 1]):
        place = tuple(int(at) for at in np.unravel_index(int(twice[0]), grid))
        raise CannotBeReadError(f"its chunk {place} is in the file twice")
    offsets, lengths = (np.full(grid, MISSING, np.uint64) for _ in range(2))
    offsets.ravel()[numbers] = listed.offsets[is_inside]
    lengths.ravel()[numbers] = listed.lengths[is_inside]
    masks = np.zeros(grid, np.uint32)
    masks.ravel()[numbers] = listed.masks[is_inside]
    return offsets, lengths, masks


def _require_order(starts: NDArray[np.int64], chunk_shape: Place) -> None:
    """Raise if the index is damaged such that HDF5 would read fill values for a chunk that it lists."""
    steps = np.diff(starts, axis=0)
    # Compare each chunk with the previous one on the first axis on which they differ.
    first = np.argmax(steps != 0, axis=1, keepdims=True) if len(steps) else np.zeros((0, 1), np.int64)
    if np.any(np.take_along_axis(steps, first, axis=1) <= 0):
        raise CannotBeReadError("the index of its chunks is not in order: it is damaged")
    if np.any(starts % np.array(chunk_shape)):
        raise CannotBeReadError("the index of its chunks names one that is not in the grid: it is damaged")


def _unlimited(dataset: h5py.Dataset) -> list[int]:
    return [axis for axis, size in enumerate(dataset.maxshape) if size is None]


def is_listed_right(dataset: h5py.Dataset) -> bool:
    """Return whether the HDF5 library certainly lists the chunks of a dataset where they are."""
    unlimited = _unlimited(dataset)
    return len(unlimited) != 1 or unlimited[0] == 0


def _right_places(dataset: h5py.Dataset, file: BinaryIO, listed: _Listed) -> NDArray[np.int64]:
    """Return the positions of the chunks in the grid: as they are listed, or as they are numbered.

    If one axis is unlimited and is not the first, HDF5 may store chunks by number, with that axis slowest. It reads
    them in this way, but lists them as if the first axis were slowest. Some chunks are read to find out which of the
    two applies.
    """
    places: NDArray[np.int64] = listed.starts // np.array(dataset.chunks)
    if is_listed_right(dataset):
        return places
    unlimited = _unlimited(dataset)
    most = tuple(
        1 if size is None else -(-size // chunk) for size, chunk in zip(dataset.maxshape, dataset.chunks, strict=True)
    )
    said: list[Place] = [tuple(place) for place in places.tolist()]
    numbered = [_by_number(place, unlimited[0], most) for place in said]
    where = list(zip(listed.offsets.tolist(), listed.lengths.tolist(), strict=True))
    one, other = dict(zip(said, where, strict=True)), dict(zip(numbered, where, strict=True))
    return np.array(numbered, np.int64).reshape(places.shape) if _matches_better(dataset, file, other, one) else places


def _by_number(place: Place, slowest: int, most: Place) -> Place:
    """Return the position of a chunk, given the position that was computed with a wrong slowest axis."""
    number = 0
    for axis in range(slowest, len(place)):
        number = number * most[axis] + place[axis]
    right = [0] * len(place)
    for axis in [axis for axis in range(len(place) - 1, -1, -1) if axis != slowest]:
        number, right[axis] = divmod(number, most[axis])
    right[slowest] = number
    return tuple(right)


def _matches_better(dataset: h5py.Dataset, file: BinaryIO, table: Table, other: Table) -> bool:
    """Return whether the chunks are where `table` says and not where `other` says; False if the bytes are equal."""
    for place in table.keys() | other.keys():
        if table.get(place) == other.get(place) or not _is_within(place, dataset):
            continue
        start = tuple(at * size for at, size in zip(place, dataset.chunks, strict=True))
        try:
            stored: bytes | None = bytes(dataset.id.read_direct_chunk(start)[1])
        except (OSError, RuntimeError):
            stored = None
        found = [_read(file, each.get(place)) == stored for each in (table, other)]
        if found[0] != found[1]:
            return found[0]
    return False


def edges(dataset: h5py.Dataset, candidates: NDArray[np.bool_], shape: Place) -> Iterator[Place]:
    """Yield the positions of candidates that extend beyond the dataset, along the axes on which the shape does so."""
    for axis, (size, chunk, length) in enumerate(zip(dataset.shape, dataset.chunks, shape, strict=False)):
        if size % chunk and size < length:
            at = size // chunk
            for place in np.argwhere(np.take(candidates, [at], axis)).tolist():
                yield (*place[:axis], at, *place[axis + 1 :])


def _is_within(place: Iterable[int], dataset: h5py.Dataset) -> bool:
    return all(at * chunk < size for at, chunk, size in zip(place, dataset.chunks, dataset.shape, strict=True))


def _read(file: BinaryIO, where: tuple[int, int] | None) -> bytes | None:
    if where is None:
        return None
    file.seek(where[0])
    return file.read(where[1])
