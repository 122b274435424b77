"""Neighbouring chunks as one larger chunk, made of the ranges of all of them. Nothing is read.

That is possible where the bytes of the larger chunk are those of the smaller ones, one after the other.
"""

import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from zarr.codecs import BytesCodec

from parts_store._compat.virtualizarr import copy_and_replace_metadata
from parts_store.errors import ManifestError, describe
from parts_store.manifests.array_references import References, as_refusals, nbytes_of_chunk
from parts_store.manifests.entries import Columns, Piece, key_of


def join_chunks(array: References, count: int, axis: int) -> References:
    """The same array in chunks that are `count` times as long on an axis, each part of each a part of its own.

    Where the last chunk has fewer than `count`, fill values that nobody sees take their place. A chunk that is missing
    is refused, unless all that are joined with it are.
    """
    axis = normalize_axis_index(axis, len(array.metadata.shape))
    _require_joinable(array, count, axis)
    chunks = list(array.chunk_shape)
    chunks[axis] *= count
    with as_refusals("join_chunks", "metadata with other chunks"):
        metadata = copy_and_replace_metadata(array.metadata, new_chunks=chunks)
    grid = list(array.grid)
    grid[axis] = -(-grid[axis] // count)
    joined = [Columns.empty(tuple(grid)) for _ in range(count * len(array.manifests))]
    filling = _filling(array)
    for index in np.ndindex(*grid):
        for column, piece in zip(joined, _group(array, index, count, axis, filling), strict=False):
            column.put(index, piece)
    return References.checked(metadata, [each.manifest() for each in joined], array.checksums)


def _require_joinable(array: References, count: int, axis: int) -> None:
    """Raise unless the bytes of neighbouring chunks, one after the other, are those of a larger one."""
    subject = "join_chunks"
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ManifestError(subject, "a number of chunks from 1", describe(count))
    codecs = array.metadata.codecs
    if len(codecs) != 1 or not isinstance(codecs[0], BytesCodec):
        names = ", ".join(type(codec).__name__ for codec in codecs)
        raise ManifestError(subject, "the codec 'bytes' alone: plain values, in the order of C", names)
    before = array.chunk_shape[:axis]
    if math.prod(before) != 1:
        raise ManifestError(subject, f"chunks of length 1 on the axes before axis {axis}", str(before))
    expected = nbytes_of_chunk(array)
    nbytes = array.nbytes_of_chunks()
    wrong = np.argwhere(~array.is_missing() & (nbytes != expected))[:1].tolist()
    for index in map(tuple, wrong):
        raise ManifestError(f"{subject}, chunk {key_of(index)!r}", f"{expected} bytes", str(nbytes[index]))


def _filling(array: References) -> bytes:
    """The bytes of a chunk of fill values."""
    codec = array.metadata.codecs[0]
    endian = getattr(codec, "endian", None)
    is_big = str(getattr(endian, "value", endian)) == "big"
    stored = array.dtype.newbyteorder(">" if is_big else "<")
    values = np.full(array.chunk_shape, array.metadata.fill_value, stored)
    return values.tobytes()


def _group(array: References, index: tuple[int, ...], count: int, axis: int, filling: bytes) -> list[Piece]:
    """The pieces of a larger chunk, in order; none if all chunks in it are missing."""
    first = index[axis] * count
    members = [(*index[:axis], number, *index[axis + 1 :]) for number in range(first, first + count)]
    present = [member for member in members if member[axis] < array.grid[axis]]
    found = [array.pieces(member) for member in present]
    if not any(found):
        return []
    joined: list[Piece] = []
    for member, pieces in zip(present, found, strict=True):
        if pieces is None:
            expected = "all chunks that are joined, or none of them"
            raise ManifestError(f"join_chunks, chunk {key_of(member)!r}", expected, "a chunk that is missing")
        joined += pieces
    # In as many parts as a chunk has, each as long as there, since none may be empty.
    at = 0
    lengths = [len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in found[0] or ()]
    fill: list[Piece] = []
    for nbytes in lengths:
        fill.append(filling[at : at + nbytes])
        at += nbytes
    return joined + fill * (count - len(present))
