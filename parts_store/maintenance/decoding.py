"""Decode the chunks of an array, and say which of them, or which inner chunks of a shard, cannot be decoded."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import zarr

from parts_store._compat.zarr import largest_chunk, largest_shard
from parts_store.errors import StorageError
from parts_store.format.keys import ChunkKeyEncoding

type Box = tuple[range, ...]
"""The positions of values along each axis of an array."""

# How many bytes of values are decoded at once, except if a chunk, or an inner chunk of a shard, has more.
_MAX_NBYTES: Final = 2**24
# How many inner chunks of a shard are named.
_MAX_NAMED: Final = 3


def encoding_of(array: zarr.Array[Any]) -> ChunkKeyEncoding:
    """Return how the coordinates of an array's chunks become keys."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        configuration = {"separator": metadata.dimension_separator}
        return ChunkKeyEncoding.from_json({"name": "v2", "configuration": configuration}, array.ndim)
    return ChunkKeyEncoding.from_json(metadata.chunk_key_encoding.to_dict(), array.ndim)


def why_not_decoded(array: zarr.Array[Any], coordinates: Sequence[int]) -> str | None:
    """Decode the chunk at these coordinates, and return what fails; None if nothing does.

    Raises `StorageError` if the store does not answer.
    """
    box = _box_of(array, coordinates)
    if box is None:
        return None
    lengths = largest_chunk(array) if largest_shard(array) else tuple(max(len(axis), 1) for axis in box)
    failures = list(islice(_failures(array, box, lengths), _MAX_NAMED + 1))
    if not failures:
        return None
    error = failures[0][1]
    message = f"{type(error).__name__}: {error}"
    if all(len(axis) <= length for axis, length in zip(box, lengths, strict=True)):
        return message
    named = ", ".join(str([axis.start for axis in each]) for each, _ in failures[:_MAX_NAMED])
    more = ", and more" if len(failures) > _MAX_NAMED else ""
    chunks = "inner chunk" if len(failures) == 1 else "inner chunks"
    return f"{chunks} at {named}{more}: {message}"


def _box_of(array: zarr.Array[Any], coordinates: Sequence[int]) -> Box | None:
    """Return where the values of a chunk are in the array, None if they are outside, as after a resize."""
    try:
        lengths = array.shards or array.chunks
        spans = [(at * length, (at + 1) * length) for at, length in zip(coordinates, lengths, strict=True)]
    except NotImplementedError:
        # A rectilinear grid: zarr has a list of lengths for each axis.
        edges = [[0, *accumulate(sizes)] for sizes in array.write_chunk_sizes]
        if any(at + 1 >= len(axis) for at, axis in zip(coordinates, edges, strict=True)):
            return None
        spans = [(axis[at], axis[at + 1]) for at, axis in zip(coordinates, edges, strict=True)]
    box = tuple(range(start, min(stop, length)) for (start, stop), length in zip(spans, array.shape, strict=True))
    return box if all(box) else None


def _failures(array: zarr.Array[Any], box: Box, lengths: Sequence[int]) -> Iterator[tuple[Box, Exception]]:
    """Yield the chunks of these lengths in a box that cannot be decoded: all at once, and by halves after an error."""
    counts = [-(-len(axis) // length) for axis, length in zip(box, lengths, strict=True)]
    is_one = math.prod(counts) == 1
    if is_one or math.prod(map(len, box)) * array.dtype.itemsize <= _MAX_NBYTES:
        try:
            array[tuple(slice(axis.start, axis.stop) for axis in box)]
        except StorageError:
            raise
        # Every codec has errors of its own.
        except Exception as error:
            if is_one:
                yield box, error
                return
        else:
            return
    axis = counts.index(max(counts))
    middle = counts[axis] // 2 * lengths[axis]
    for half in (box[axis][:middle], box[axis][middle:]):
        yield from _failures(array, (*box[:axis], half, *box[axis + 1 :]), lengths)
