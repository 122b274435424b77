"""Index arrays of references on the boundaries of chunks. Nothing is read."""

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from parts_store.errors import ManifestError, describe
from parts_store.manifests.array_references import (
    References,
    as_manifest_errors,
    combined,
    nbytes_of_chunk,
    uncompressed_axis,
)
from parts_store.manifests.combining import expand_dims

type Index = int | slice | None
"""The index of one axis; None for a new axis."""


def select(array: References, key: Any) -> tuple[References, bool]:
    """Return what a basic index selects, and whether that contains parts of chunks, which have fewer bytes.

    A basic index has integers, slices, an ellipsis and new axes.

    A slice begins and ends at boundaries of chunks, or at the end of the array. An integer needs chunks of length 1. A
    slice within one chunk is possible if the array is uncompressed and its chunks have one part.
    """
    indices = _spread(key, len(array.metadata.shape))
    checked, is_within_chunks = _checked(array, [each for each in indices if each is not None])
    with as_manifest_errors("index", "an array whose codecs accept fewer axes"):
        parts = [array.manifest_array(part)[checked] for part in range(len(array.manifests))]
    names = array.metadata.dimension_names or [None] * len(checked)
    kept = [name for name, each in zip(names, checked, strict=True) if isinstance(each, slice)]
    selected = combined(parts, kept, array.checksums)
    # Positions count the axes of the result, which has no axes that were indexed by an integer.
    layout = [each for each in indices if not isinstance(each, int)]
    places = [place for place, each in enumerate(layout) if each is None]
    return expand_dims(selected, places) if places else selected, is_within_chunks


def _spread(key: Any, ndim: int) -> list[Index]:
    """Return an index for each axis, and None for each new axis; an ellipsis stands for the axes left out."""
    items = key if isinstance(key, tuple) else (key,)
    given = [_index(item) for item in items]
    if sum(each is ... for each in given) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(each is not None and each is not ... for each in given)
    if used > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {used} were indexed")
    at = next((number for number, each in enumerate(given) if each is ...), len(given))
    spread = [*given[:at], *[slice(None)] * (ndim - used), *given[at + 1 :]]
    return [each for each in spread if not isinstance(each, EllipsisType)]


def _index(item: Any) -> Index | EllipsisType:
    if item is None or item is ... or isinstance(item, slice):
        return item
    if not isinstance(item, bool | np.bool_ | np.ndarray):
        try:
            return operator.index(item)
        except TypeError:
            pass
    expected = "integers, slices, an ellipsis or new axes; load the values for anything else"
    raise ManifestError("index", expected, describe(item))


def _checked(array: References, indices: Sequence[Index]) -> tuple[tuple[int | slice, ...], bool]:
    """Return indices that VirtualiZarr accepts, and whether one of them is within a chunk."""
    checked: list[int | slice] = []
    is_within_chunks = False
    shape, chunks = array.metadata.shape, array.chunk_shape
    for axis, (index, length, chunk) in enumerate(zip(indices, shape, chunks, strict=True)):
        if isinstance(index, int):
            checked.append(_number(index, axis, length, chunk))
            continue
        found = _whole_slice(index, axis, length)
        if not is_aligned(found, length, chunk):
            _require_plain(array, axis, found)
            is_within_chunks = True
        checked.append(found)
    return tuple(checked), is_within_chunks


def _number(index: int, axis: int, length: int, chunk: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
    # Also in a last chunk with one element: it is stored as a whole chunk.
    if chunk != 1:
        expected = (
            f"a slice, such as {_nearest(index % length, index % length + 1, length, chunk)}, or chunks of length 1"
        )
        raise ManifestError(f"index, axis {axis}", expected, f"the integer {index} and chunks of length {chunk}")
    return index % length


def _whole_slice(index: Any, axis: int, length: int) -> slice:
    """Return a slice with step 1; an empty slice becomes `slice(0, 0)`."""
    try:
        elements = range(*index.indices(length))
    except (TypeError, ValueError) as error:
        raise ManifestError(f"index, axis {axis}", "a slice of integers", describe(index)) from error
    if not elements:
        return slice(0, 0)
    if len(elements) > 1 and elements.step != 1:
        raise ManifestError(f"index, axis {axis}", "a slice with the step 1", describe(index))
    return slice(elements[0], elements[-1] + 1)


def is_aligned(index: slice, length: int, chunk: int) -> bool:
    """Return whether a slice begins and ends at boundaries of chunks, or at the end of the array."""
    return bool(index.start % chunk == 0 and (index.stop % chunk == 0 or index.stop == length))


def _nearest(start: int, stop: int, length: int, chunk: int) -> str:
    return f"{start // chunk * chunk}:{min(-(-stop // chunk) * chunk, length)}"


def _require_plain(array: References, axis: int, index: slice) -> None:
    """Raise unless a slice within a chunk is a range of the bytes of the chunk."""
    length, chunk = array.metadata.shape[axis], array.chunk_shape[axis]
    subject, found = f"index, axis {axis}", f"{index.start}:{index.stop} and chunks of length {chunk}"
    expected = f"a slice on the boundaries of chunks, such as {_nearest(index.start, index.stop, length, chunk)}"
    if uncompressed_axis(array.metadata) != axis or index.start // chunk != (index.stop - 1) // chunk:
        raise ManifestError(subject, expected, found)
    (columns, *others) = array.columns()
    if others:
        # The bytes of the slice may be in any of the parts.
        raise ManifestError(subject, expected, f"{found}, in {len(others) + 1} parts")
    if columns.inlined:
        raise ManifestError(subject, expected, f"{found}, inlined in the manifest")
    lengths = set(columns.lengths[~columns.is_missing].tolist())
    if lengths - {nbytes_of_chunk(array)}:
        raise ManifestError(
            subject, f"chunks of {nbytes_of_chunk(array)} bytes, to select a part of a chunk", f"{lengths}"
        )
