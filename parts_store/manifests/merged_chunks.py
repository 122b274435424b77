"""Join neighbouring chunks into larger chunks, made of the ranges of all of them. Nothing is read.

This is possible if the bytes of the larger chunk are the bytes of the smaller chunks, one after the other.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from zarr.codecs import BytesCodec

from parts_store._compat.virtualizarr import copy_and_replace_metadata
from parts_store.errors import ManifestError, describe
from parts_store.format.integers import parse_integer
from parts_store.manifests.array_references import References, as_manifest_errors, nbytes_of_chunk
from parts_store.manifests.entries import Columns, key_of
from parts_store.manifests.pieces import Piece, nbytes_of


def join_chunks(array: References, count: int, axis: int) -> References:
    """Return the same array in chunks that are `count` times as long on an axis.

    Every part of the smaller chunks becomes a part of the larger one. If the last chunk is joined from fewer than
    `count` chunks, fill values beyond the shape of the array replace the others. Raise `ManifestError` if some of the
    chunks that are joined are missing and others are not.
    """
    axis = normalize_axis_index(axis, len(array.metadata.shape))
    _require_joinable(array, count, axis)
    chunks = list(array.chunk_shape)
    chunks[axis] *= count
    with as_manifest_errors("join_chunks", "metadata that can have other chunks"):
        metadata = copy_and_replace_metadata(array.metadata, new_chunks=chunks)
    grid = list(array.grid)
    grid[axis] = -(-grid[axis] // count)
    joined = [Columns.empty(tuple(grid)) for _ in range(count * len(array.manifests))]
    fill = _fill_bytes(array)
    for index in np.ndindex(*grid):
        for column, piece in zip(joined, _join_one(array, index, count, axis, fill), strict=False):
            column.put(index, piece)
    return References.checked(metadata, [each.manifest() for each in joined], array.checksums)


def _require_joinable(array: References, count: int, axis: int) -> None:
    """Raise unless the bytes of neighbouring chunks, one after the other, are those of a larger chunk."""
    subject = "join_chunks"
    if parse_integer(count, 1) is None:
        raise ManifestError(subject, "a number of chunks of at least 1", describe(count))
    codecs = array.metadata.codecs
    if len(codecs) != 1 or not isinstance(codecs[0], BytesCodec):
        names = ", ".join(type(codec).__name__ for codec in codecs)
        raise ManifestError(subject, "only the codec 'bytes': uncompressed values in C order", names)
    before = array.chunk_shape[:axis]
    if math.prod(before) != 1:
        raise ManifestError(subject, f"chunks of length 1 on the axes before axis {axis}", str(before))
    expected = nbytes_of_chunk(array)
    nbytes = array.nbytes_of_chunks()
    wrong = np.argwhere(~array.is_missing() & (nbytes != expected))[:1].tolist()
    for index in map(tuple, wrong):
        raise ManifestError(f"{subject}, chunk {key_of(index)!r}", f"{expected} bytes", str(nbytes[index]))


def _fill_bytes(array: References) -> bytes:
    """Return the bytes of a chunk of fill values."""
    codec = array.metadata.codecs[0]
    endian = getattr(codec, "endian", None)
    is_big = str(getattr(endian, "value", endian)) == "big"
    stored = array.dtype.newbyteorder(">" if is_big else "<")
    values = np.full(array.chunk_shape, array.metadata.fill_value, stored)
    return values.tobytes()


def _join_one(array: References, index: tuple[int, ...], count: int, axis: int, fill: bytes) -> list[Piece]:
    """Return the pieces of a larger chunk, in order; none if all chunks in it are missing."""
    first = index[axis] * count
    last = min(first + count, array.grid[axis])
    members = [(*index[:axis], number, *index[axis + 1 :]) for number in range(first, last)]
    found = [array.pieces(member) for member in members]
    if not any(found):
        return []
    joined: list[Piece] = []
    for member, pieces in zip(members, found, strict=True):
        if pieces is None:
            expected = "all chunks that are joined, or none of them"
            raise ManifestError(f"join_chunks, chunk {key_of(member)!r}", expected, "a missing chunk")
        joined += pieces
    return joined + _cut_fill(fill, found[0] or ()) * (count - len(members))


def _cut_fill(fill: bytes, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the fill values in pieces of the same sizes as these, because no piece may be empty."""
    cut: list[Piece] = []
    start = 0
    for nbytes in map(nbytes_of, pieces):
        cut.append(fill[start : start + nbytes])
        start += nbytes
    return cut
