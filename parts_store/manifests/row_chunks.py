"""Cut chunks into chunks of one or several rows along an axis, which are ranges of the larger chunks. Nothing is read.

This is possible if the values are not compressed, and the rows are one after the other in the bytes of a chunk.
"""

import math

import numpy as np
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store._compat.virtualizarr import copy_and_replace_metadata
from parts_store.manifests.array_references import References, nbytes_of_chunk
from parts_store.manifests.entries import Columns


def can_cut_rows(array: References, axis: int) -> bool:
    """Return whether every row along an axis is one range of bytes of a chunk."""
    match tuple(array.metadata.codecs):
        case (BytesCodec(),):
            order: tuple[int, ...] = tuple(range(len(array.chunk_shape)))
        case (TransposeCodec(order=order), BytesCodec()):
            pass
        case _:
            return False
    if math.prod(array.chunk_shape[each] for each in order[: order.index(axis)]) != 1 or len(array.manifests) != 1:
        return False
    (columns,) = array.columns()
    is_whole = columns.is_missing | (columns.lengths == nbytes_of_chunk(array))
    return not columns.inlined and bool(is_whole.all())


def cut_rows(array: References, axis: int, rows: int = 1) -> References:
    """Return an array in chunks of `rows` rows along an axis, a number that divides its chunks and its length.

    Only for arrays for which `can_cut_rows` is true.
    """
    (columns,) = array.columns()
    per_chunk, length = array.chunk_shape[axis] // rows, array.metadata.shape[axis] // rows
    nbytes = np.uint64(nbytes_of_chunk(array) // per_chunk)
    # The number of the new chunk in its old one, shaped to be broadcast along the axis. The last chunk may have rows
    # beyond the end of the array.
    numbers = np.arange(length, dtype=np.uint64) % np.uint64(per_chunk)
    steps = numbers.reshape([-1 if each == axis else 1 for each in range(len(array.grid))])
    chunks = np.arange(length) // per_chunk
    paths = np.take(columns.paths, chunks, axis)
    is_there = ~np.take(columns.is_missing, chunks, axis)
    offsets = np.where(is_there, np.take(columns.offsets, chunks, axis) + steps * nbytes, np.uint64(0))
    cut = Columns(paths, offsets, np.where(is_there, nbytes, np.uint64(0)), {})
    shape = [rows if each == axis else size for each, size in enumerate(array.chunk_shape)]
    metadata = copy_and_replace_metadata(array.metadata, new_chunks=shape)
    return References.checked(metadata, [cut.manifest()], array.checksums)
