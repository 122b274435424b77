"""Concatenate, stack, broadcast, index, join and cut arrays of references. Nothing is read.

VirtualiZarr combines the manifests of each part. This module decides which arrays may be combined, and on which axis.
"""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from virtualizarr.manifests import ManifestArray, array_api
from zarr.codecs import BytesCodec

from parts_store._compat.virtualizarr import copy_and_replace_metadata
from parts_store._compat.zarr import ArrayV3Metadata, RectilinearChunkGridMetadata, unstable_types
from parts_store.errors import ManifestError, describe
from parts_store.redaction import hide_in_url
from parts_store.virtual.manifests.entries import (
    Checksum,
    Checksums,
    Columns,
    FileRange,
    Piece,
    key_of,
    nbytes_of,
)
from parts_store.virtual.manifests.meaning import find_difference
from parts_store.virtual.manifests.references import (
    References,
    as_manifest_errors,
    edges_of,
    storage_order,
)
from parts_store.virtual.store_access import ConcatParts, Span, parse_integer


def require_alike(arrays: Sequence[References], subject: str, names: Sequence[str] = ()) -> None:
    """Raise unless arrays have the same data type, codecs, chunk shape, number of parts and meaning.

    If a chunk is missing, their fill values have to be the same too.

    Parameters
    ----------
    arrays
        The arrays.
    subject
        What is done with them, in the message.
    names
        The names of the arrays in the message; empty for an array without a name.
    """
    first, *others = arrays
    for number, other in enumerate(others, start=1):
        name = names[number] if names else ""
        compared: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", first.dtype, other.dtype),
            ("codecs", _codecs(first), _codecs(other)),
            ("chunk shape", first.chunk_shape, other.chunk_shape),
            ("number of parts", len(first.columns), len(other.columns)),
        )
        for what, expected, found in compared:
            if expected != found:
                where = f"{subject}, array {number}{_described(other, name)}"
                raise ManifestError(where, f"the {what} {expected} of the first", str(found))
        difference = find_difference(first.metadata.attributes, other.metadata.attributes)
        if difference is not None:
            where = f"{subject}, array {number}{_described(other, name)}, attribute {difference.attribute!r}"
            raise ManifestError(where, f"{difference.expected} as in the first", difference.found)
    fill_values = [fill_value_of(array) for array in arrays]
    is_different = any(fill_value != fill_values[0] for fill_value in fill_values)
    if is_different and any(array.is_missing().any() for array in arrays):
        expected = "the same fill value, because chunks are missing"
        raise ManifestError(subject, expected, ", ".join(map(str, fill_values)))


def _codecs(array: References) -> list[Any]:
    # The whole metadata document takes much longer, and arrays of many files are compared.
    return [codec.to_dict() for codec in array.metadata.codecs]


def fill_value_of(array: References) -> Any:
    """Return the fill value as it is written in a metadata document, where NaN is equal to itself."""
    return array.metadata.data_type.to_json_scalar(array.metadata.fill_value, zarr_format=3)


def _described(array: References, name: str) -> str:
    """Return the name of an array, and the first file that it refers to."""
    file = next((location for column in array.columns for location in column.locations()), None)
    return f"{f' {name!r}' if name else ''}{'' if file is None else f' of {hide_in_url(file)!r}'}"


def refer_to_same_bytes(one: References, other: References) -> bool:
    """Return whether arrays decode the same bytes in the same way; if not, their values may still be the same.

    Their attributes and dimension names may differ.
    """
    first, second = one.metadata, other.metadata
    is_same_form = (
        (first.shape, one.chunk_shape, first.data_type) == (second.shape, other.chunk_shape, second.data_type)
        and first.codecs == second.codecs
        and len(one.columns) == len(other.columns)
    )
    if not is_same_form or any(
        other.checksums.get(file, checksum) != checksum for file, checksum in one.checksums.items()
    ):
        return False
    if one.is_missing().any() and fill_value_of(one) != fill_value_of(other):
        return False
    return all(mine.is_same(theirs) for mine, theirs in zip(one.columns, other.columns, strict=True))


def merge_checksums(many: Iterable[Checksums], subject: str) -> Checksums:
    """Return the checksums of arrays that are combined; raise `ManifestError` if a file has two different ones.

    Of two times the earlier is kept: a file that was not modified after it is the file that both arrays refer to.
    """
    merged: dict[str, Checksum] = {}
    for checksums in many:
        for location, checksum in checksums.items():
            known = merged.setdefault(location, checksum)
            if isinstance(known, datetime) and isinstance(checksum, datetime):
                merged[location] = min(known, checksum)
            elif known != checksum:
                expected = f"one checksum of {hide_in_url(location)!r}, found {describe(str(known))} in another array"
                raise ManifestError(subject, expected, describe(str(checksum)))
    return merged


def _same_parts(arrays: Sequence[References], subject: str) -> ConcatParts | None:
    """Return the parts that arrays declare, None if no array does; raise `ManifestError` if they differ."""
    declared = [array.parts for array in arrays if array.parts is not None]
    for parts in declared[1:]:
        if parts != declared[0]:
            expected, found = ([(part.key_suffix, part.size) for part in both.parts] for both in (declared[0], parts))
            raise ManifestError(subject, f"the parts {expected}", str(found))
    return declared[0] if declared else None


def _combine(
    arrays: Sequence[References],
    combine_part: Callable[[Sequence[ManifestArray]], ManifestArray],
    dimension_names: Sequence[str | None] | None,
    subject: str,
    expected: str,
    *,
    parts: ConcatParts | None,
) -> References:
    """Return the array whose parts VirtualiZarr makes of the parts of arrays, one part after the other."""
    # VirtualiZarr does not adapt dimension names to new axes.
    nameless = [dataclasses.replace(array.metadata, dimension_names=None) for array in arrays]
    with as_manifest_errors(subject, expected):
        combined = [
            combine_part([ManifestArray(each, column.manifest()) for each, column in zip(nameless, part, strict=True)])
            for part in zip(*(array.columns for array in arrays), strict=True)
        ]
    names = tuple(dimension_names) if dimension_names is not None and any(dimension_names) else None
    metadata = dataclasses.replace(combined[0].metadata, dimension_names=names)
    checksums = merge_checksums([array.checksums for array in arrays], subject)
    return References.checked(metadata, [Columns.of(each.manifest) for each in combined], checksums, parts)


def concatenate(arrays: Sequence[References], axis: int, names: Sequence[str] = ()) -> References:
    """Return the arrays, one after the other along an axis. Only the last one may end within a chunk."""
    subject, expected = "concatenate", "arrays whose chunks make up one grid"
    parts = _same_parts(arrays, subject)
    require_alike(arrays, subject, names)
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape))
    join = partial(array_api.concatenate, axis=axis)
    return _combine(arrays, join, arrays[0].metadata.dimension_names, subject, expected, parts=parts)


def can_concatenate_uneven(arrays: Sequence[References], axis: int) -> bool:
    """Return whether the chunks of arrays, one after the other along an axis, make up a rectilinear grid.

    All arrays but the last must consist of whole chunks: the next chunk begins where one ends.
    """
    all_edges = [edges_of(array.metadata) for array in arrays]
    others = {(*edges[:axis], *edges[axis + 1 :]) for edges in all_edges}
    are_whole = all(
        sum(edges[axis]) == array.metadata.shape[axis] for edges, array in zip(all_edges[:-1], arrays[:-1], strict=True)
    )
    return len(others) == 1 and are_whole and all(len(array.columns) == 1 for array in arrays)


def concatenate_uneven(arrays: Sequence[References], axis: int) -> References:
    """Return arrays one after the other along an axis, whose chunks may have other lengths along it.

    Only for arrays for which `can_concatenate_uneven` is true, and which are alike otherwise.
    """
    first = arrays[0].metadata
    all_edges = [edges_of(array.metadata) for array in arrays]
    edges = [
        tuple(itertools.chain(*each)) if at == axis else each[0] for at, each in enumerate(zip(*all_edges, strict=True))
    ]
    shape = list(first.shape)
    shape[axis] = sum(array.metadata.shape[axis] for array in arrays)
    grid = RectilinearChunkGridMetadata(chunk_shapes=tuple(edges))
    metadata = dataclasses.replace(first, shape=tuple(shape), chunk_grid=grid)
    columns = [array.columns[0] for array in arrays]
    inlined: dict[tuple[int, ...], bytes] = {}
    start = 0
    for column in columns:
        for index, data in column.inlined.items():
            inlined[(*index[:axis], index[axis] + start, *index[axis + 1 :])] = data
        start += column.paths.shape[axis]
    joined = Columns(
        np.concatenate([column.paths for column in columns], axis),
        np.concatenate([column.offsets for column in columns], axis),
        np.concatenate([column.lengths for column in columns], axis),
        inlined,
    )
    checksums = merge_checksums([array.checksums for array in arrays], "concatenate")
    return References.checked(metadata, [joined], checksums)


def stack(arrays: Sequence[References], axis: int, names: Sequence[str] = ()) -> References:
    """Return the arrays, one after the other along a new axis with chunks of length 1."""
    subject, expected = "stack", "arrays of one shape, with codecs that accept another axis"
    parts = _same_parts(arrays, subject)
    require_alike(arrays, subject, names)
    # A negative axis counts the axes of the result here, and the axes of the arrays in VirtualiZarr.
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape) + 1)
    axes = arrays[0].metadata.dimension_names
    result_axes = None if axes is None else [*axes[:axis], None, *axes[axis:]]
    return _combine(arrays, partial(array_api.stack, axis=axis), result_axes, subject, expected, parts=parts)


def expand_dims(array: References, axes: Sequence[int]) -> References:
    """Return the array with new axes of length 1 at these positions among the axes of the result."""
    ndim = len(array.metadata.shape) + len(axes)
    places = sorted(normalize_axis_index(axis, ndim) for axis in axes)
    if len(set(places)) < len(places):
        raise ManifestError("expand_dims", "a different position for every new axis", str(tuple(axes)))
    for place in places:
        array = stack([array], place)
    return array


def broadcast_to(array: References, shape: tuple[int, ...]) -> References:
    """Return the array broadcast to a shape, as NumPy does it. Repeated axes must have chunks of length 1."""
    old, chunks = array.metadata.shape, array.chunk_shape
    added = len(shape) - len(old)
    with as_manifest_errors("broadcast_to", f"a shape that {old} can be broadcast to"):
        if np.broadcast_shapes(old, shape) != tuple(shape):
            raise ValueError(f"{shape}")
    for axis, (length, chunk, wanted) in enumerate(zip(old, chunks, shape[added:], strict=True)):
        # VirtualiZarr would treat the unused rest of a longer chunk as values.
        if wanted != length and chunk != 1:
            raise ManifestError("broadcast_to", f"chunks of length 1 on axis {axis}, to repeat it", f"{chunk}")
    names = array.metadata.dimension_names
    return _combine(
        [array],
        lambda parts: array_api.broadcast_to(parts[0], tuple(shape)),
        None if names is None else [*[None] * added, *names],
        "broadcast_to",
        "an array whose codecs accept more axes",
        parts=array.parts,
    )


# --- indexing ------------------------------------------------------------------------------------------------------

_BASIC_INDEX: Final = (
    "integers on axes with chunks of length 1, slices on the boundaries of chunks, an ellipsis or new axes; load the "
    "values for anything else"
)

type Index = int | slice | None
"""The index of one axis; None for a new axis."""


def select(array: References, key: Any) -> References:
    """Return what a basic index selects: one of integers, slices, an ellipsis and new axes.

    A slice begins and ends at boundaries of chunks, or at the end of the array. An integer needs chunks of length 1. A
    slice within one chunk is possible if the array is uncompressed and its chunks have one part.
    """
    indices = _spread(key, array.metadata.shape)
    checked = tuple(index for index in indices if index is not None)
    is_within_chunks = False
    for axis, (index, length, chunk) in enumerate(zip(checked, array.metadata.shape, array.chunk_shape, strict=True)):
        if isinstance(index, int):
            # Also in a last chunk with one element: it is stored as a whole chunk.
            is_possible = chunk == 1
        else:
            is_aligned = index.start % chunk == 0 and (index.stop % chunk == 0 or index.stop == length)
            is_possible = is_aligned or can_cut_rows(array, axis)
            is_within_chunks |= not is_aligned
        if not is_possible:
            raise ManifestError(f"index, axis {axis}", _BASIC_INDEX, f"{describe(index)} and chunks of length {chunk}")
    names = array.metadata.dimension_names or [None] * len(checked)
    kept = [name for name, index in zip(names, checked, strict=True) if isinstance(index, slice)]
    # A piece of a chunk has fewer bytes than are declared.
    declared = None if is_within_chunks else array.parts
    selected = _combine([array], lambda parts: parts[0][checked], kept, "index", _BASIC_INDEX, parts=declared)
    # Positions count the axes of the result, which has no axes that were indexed by an integer.
    layout = [index for index in indices if not isinstance(index, int)]
    places = [place for place, index in enumerate(layout) if index is None]
    return expand_dims(selected, places) if places else selected


def _spread(key: Any, shape: tuple[int, ...]) -> list[Index]:
    """Return an index for each axis, and None for each new axis; an ellipsis stands for the axes left out."""
    items = key if isinstance(key, tuple) else (key,)
    used = sum(item is not None and item is not ... for item in items)
    if used > len(shape) or sum(item is ... for item in items) > 1:
        raise IndexError(f"too many indices for an array with {len(shape)} axes: {describe(key)}")
    at = next((number for number, item in enumerate(items) if item is ...), len(items))
    spread = [*items[:at], *[slice(None)] * (len(shape) - used), *items[at + 1 :]]
    lengths = iter(shape)
    return [None if item is None else _index(item, next(lengths)) for item in spread]


def _index(item: Any, length: int) -> int | slice:
    """Return an index of an axis that VirtualiZarr accepts; raise `ManifestError` for any other."""
    if not isinstance(item, slice):
        if not hasattr(item, "__index__") or isinstance(item, bool | np.bool_ | np.ndarray):
            raise ManifestError("index", _BASIC_INDEX, describe(item))
        number = operator.index(item)
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of bounds for an axis of length {length}")
        return number % length
    try:
        elements = range(*item.indices(length))
    except (TypeError, ValueError) as error:
        raise ManifestError("index", _BASIC_INDEX, describe(item)) from error
    if len(elements) > 1 and elements.step != 1:
        raise ManifestError("index", _BASIC_INDEX, describe(item))
    return slice(elements[0], elements[-1] + 1) if elements else slice(0, 0)


# --- joining and cutting chunks -------------------------------------------------------------------------------------


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
    fill = np.full(array.chunk_shape, array.metadata.fill_value, array.stored_dtype).tobytes()
    joined = ((index, _join_one(array, index, count, axis, fill)) for index in np.ndindex(*grid))
    present = ((index, pieces) for index, pieces in joined if pieces)
    return References.from_pieces(metadata, count * len(array.columns), present, array.checksums)


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
    expected = array.nbytes_of_plain_chunk
    nbytes: Any = sum(column.lengths for column in array.columns)
    for index in map(tuple, np.argwhere(~array.is_missing() & (nbytes != expected))[:1].tolist()):
        raise ManifestError(f"{subject}, chunk {key_of(index)!r}", f"{expected} bytes", str(nbytes[index]))


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
    # The fill values are in pieces of the same sizes, because no piece may be empty.
    ends = itertools.accumulate(map(nbytes_of, found[0] or ()), initial=0)
    filled: list[Piece] = [fill[start:stop] for start, stop in itertools.pairwise(ends)]
    return joined + filled * (count - len(members))


def can_cut_rows(array: References, axis: int) -> bool:
    """Return whether every row along an axis is one range of bytes of a chunk."""
    order = storage_order(array.metadata)
    if axis not in order or len(array.columns) != 1:
        return False
    if math.prod(array.chunk_shape[slower] for slower in order[: order.index(axis)]) != 1:
        return False
    (columns,) = array.columns
    is_whole = columns.is_missing | (columns.lengths == array.nbytes_of_plain_chunk)
    return not columns.inlined and bool(is_whole.all())


def cut_rows(array: References, axis: int, rows: int = 1) -> References:
    """Return an array in chunks of `rows` rows along an axis, a number that divides its chunks and its length.

    Only for arrays for which `can_cut_rows` is true.
    """
    (columns,) = array.columns
    per_chunk, length = array.chunk_shape[axis] // rows, array.metadata.shape[axis] // rows
    nbytes = np.uint64(array.nbytes_of_plain_chunk // per_chunk)
    # The number of the new chunk in its old one, shaped to be broadcast along the axis. The last chunk may have rows
    # beyond the end of the array.
    numbers = np.arange(length, dtype=np.uint64) % np.uint64(per_chunk)
    steps = np.expand_dims(numbers, tuple(other for other in range(len(array.grid)) if other != axis))
    chunks = np.arange(length) // per_chunk
    paths = np.take(columns.paths, chunks, axis)
    is_there = ~np.take(columns.is_missing, chunks, axis)
    offsets = np.where(is_there, np.take(columns.offsets, chunks, axis) + steps * nbytes, np.uint64(0))
    cut = Columns(paths, offsets, np.where(is_there, nbytes, np.uint64(0)), {})
    shape = list(array.chunk_shape)
    shape[axis] = rows
    return References.checked(_with_chunks(array.metadata, shape), [cut], array.checksums)


def contiguous_range(array: References) -> FileRange | None:
    """Return the range of a file that is exactly the values of an array, in storage order; None if there is none."""
    order, shape, chunk_shape = storage_order(array.metadata), array.metadata.shape, array.chunk_shape
    if len(array.columns) != 1 or not order or 0 in shape:
        return None
    (columns,) = array.columns
    locations = columns.locations()
    if len(locations) != 1 or not columns.is_in_file.all() or (columns.lengths != array.nbytes_of_plain_chunk).any():
        return None
    # The first axis whose chunks are longer than 1: those after it must be one chunk, as long as the array.
    first = next((position for position, axis in enumerate(order) if chunk_shape[axis] != 1), len(order))
    if any(shape[axis] % chunk_shape[axis] for axis in order):
        return None
    if any(chunk_shape[axis] != shape[axis] for axis in order[first + 1 :]):
        return None
    offsets = columns.offsets.transpose(order).reshape(-1)
    if (np.diff(offsets) != array.nbytes_of_plain_chunk).any():
        return None
    start = int(offsets[0])
    return FileRange(locations[0], Span(start, start + len(offsets) * array.nbytes_of_plain_chunk))


def cut_range(array: References, found: FileRange, chunk_shape: tuple[int, ...]) -> References:
    """Return an array in other chunks, given its `contiguous_range`.

    Every chunk must be one range of bytes, and the chunk shape must divide the shape.
    """
    order, shape = storage_order(array.metadata), array.metadata.shape
    grid = tuple(shape[axis] // chunk_shape[axis] for axis in order)
    nbytes = math.prod(chunk_shape) * array.dtype.itemsize
    stored = Columns.of_range(found.location, found.span.start, grid, nbytes)
    back = np.argsort(order)
    paths, offsets, lengths = (each.transpose(back) for each in (stored.paths, stored.offsets, stored.lengths))
    columns = Columns(paths, offsets, lengths, {})
    return References.checked(_with_chunks(array.metadata, chunk_shape), [columns], array.checksums)


def _with_chunks(metadata: ArrayV3Metadata, chunk_shape: Sequence[int]) -> ArrayV3Metadata:
    # The metadata was accepted before, with a data type that zarr may warn of.
    with unstable_types():
        return copy_and_replace_metadata(metadata, new_chunks=list(chunk_shape))
