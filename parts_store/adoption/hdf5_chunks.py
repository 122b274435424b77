"""Where the chunks of an HDF5 dataset are, as its library lists them, and put right where it lists them wrongly."""

import math
from collections.abc import Iterable
from typing import Any, BinaryIO, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, CannotBeReadError

# A table of where more chunks are does not fit into memory.
_MAX_CHUNKS: Final = 1 << 24

type Place = tuple[int, ...]
type Table = dict[Place, tuple[int, int]]
"""The offset and size of each chunk, by its place in the grid."""


def chunks_of(dataset: h5py.Dataset, file: BinaryIO) -> tuple[NDArray[np.uint64], NDArray[np.uint64], set[int]]:
    """The offsets and the sizes of all chunks, in the shape of the grid, and which filter masks they have."""
    grid = tuple(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if math.prod(grid) > _MAX_CHUNKS:
        raise CannotBeReadError(f"{math.prod(grid):,} chunks, and at most {_MAX_CHUNKS:,} can be listed")
    listed: list[Any] = []
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(listed.append)
    listed = [chunk for chunk in listed if chunk.byte_offset is not None]
    places = _right_places(dataset, file, listed)
    offsets, lengths = (np.full(grid, MISSING, np.uint64) for _ in range(2))
    masks: set[int] = set()
    for place, chunk in zip(places, listed, strict=True):
        # HDF5 keeps chunks beyond the shape, if it was larger once.
        if any(at >= size for at, size in zip(place, grid, strict=True)):
            continue
        if offsets[place] != MISSING:
            raise CannotBeReadError(f"its chunk {place} is in the file twice")
        offsets[place], lengths[place] = chunk.byte_offset, chunk.size
        masks.add(chunk.filter_mask)
    return offsets, lengths, masks


def _right_places(dataset: h5py.Dataset, file: BinaryIO, listed: list[Any]) -> list[Place]:
    """The places of the chunks: as they are listed, or as they are numbered.

    Where one axis is unlimited and not the first, chunks may be kept by number, with that axis slowest. HDF5 finds them
    so when it reads, and forgets that it did when it lists them. Which
    of both it is, is told by reading some.
    """
    said = [tuple(at // size for at, size in zip(each.chunk_offset, dataset.chunks, strict=True)) for each in listed]
    unlimited = [axis for axis, size in enumerate(dataset.maxshape) if size is None]
    if len(unlimited) != 1 or unlimited[0] == 0:
        return said
    most = tuple(
        1 if size is None else -(-size // chunk) for size, chunk in zip(dataset.maxshape, dataset.chunks, strict=True)
    )
    numbered = [_by_number(place, unlimited[0], most) for place in said]
    where = [(each.byte_offset, each.size) for each in listed]
    one, other = dict(zip(said, where, strict=True)), dict(zip(numbered, where, strict=True))
    return numbered if _is_rather(dataset, file, other, one) else said


def _by_number(place: Place, slowest: int, most: Place) -> Place:
    """The place of a chunk whose number was taken apart with the axes in order, and not with one of them first."""
    number = 0
    for axis in range(slowest, len(place)):
        number = number * most[axis] + place[axis]
    right = [0] * len(place)
    for axis in [axis for axis in range(len(place) - 1, -1, -1) if axis != slowest]:
        number, right[axis] = divmod(number, most[axis])
    right[slowest] = number
    return tuple(right)


def _is_rather(dataset: h5py.Dataset, file: BinaryIO, table: Table, other: Table) -> bool:
    """Whether the chunks are where the one table says; if nothing tells them apart, they have the same bytes."""
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


def _is_within(place: Iterable[int], dataset: h5py.Dataset) -> bool:
    return all(at * chunk < size for at, chunk, size in zip(place, dataset.chunks, dataset.shape, strict=True))


def _read(file: BinaryIO, where: tuple[int, int] | None) -> bytes | None:
    if where is None:
        return None
    file.seek(where[0])
    return file.read(where[1])
