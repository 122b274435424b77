"""Concatenate, stack and broadcast arrays of references. Nothing is read.

VirtualiZarr combines the manifests of each part. This module decides which arrays may be combined, and on which axis.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from virtualizarr.manifests import array_api

from parts_store.errors import ManifestError, describe
from parts_store.manifests.array_references import References, as_manifest_errors, combined
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.meaning import find_difference
from parts_store.manifests.pieces import Checksum
from parts_store.redaction import hide_in_url


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
        where = f"{subject}, array {number}{_described(other, names[number] if names else '')}"
        compared: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", first.dtype, other.dtype),
            ("codecs", _codecs(first), _codecs(other)),
            ("chunk shape", first.chunk_shape, other.chunk_shape),
            ("number of parts", len(first.manifests), len(other.manifests)),
        )
        for name, expected, found in compared:
            if expected != found:
                raise ManifestError(where, f"the {name} {expected} of the first", str(found))
        difference = find_difference(first.metadata.attributes, other.metadata.attributes)
        if difference is not None:
            where = f"{where}, attribute {difference.attribute!r}"
            raise ManifestError(where, f"{difference.expected} as in the first", difference.found)
    fill_values = [fill_value_of(each) for each in arrays]
    if any(each != fill_values[0] for each in fill_values) and any(each.is_missing().any() for each in arrays):
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
    file = next((path for manifest in array.manifests for path in manifest.iter_nonempty_paths()), None)
    return f"{f' {name!r}' if name else ''}{'' if file is None else f' of {hide_in_url(file)!r}'}"


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


def concatenate(arrays: Sequence[References], axis: int, names: Sequence[str] = ()) -> References:
    """Return the arrays, one after the other along an axis. Only the last one may end within a chunk."""
    subject = "concatenate"
    require_alike(arrays, subject, names)
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape))
    with as_manifest_errors(subject, "arrays whose chunks make up one grid"):
        parts = [
            array_api.concatenate([each.manifest_array(part) for each in arrays], axis=axis)
            for part in range(len(arrays[0].manifests))
        ]
    return combined(
        parts, arrays[0].metadata.dimension_names, merge_checksums([each.checksums for each in arrays], subject)
    )


def stack(arrays: Sequence[References], axis: int, names: Sequence[str] = ()) -> References:
    """Return the arrays, one after the other along a new axis with chunks of length 1."""
    subject = "stack"
    require_alike(arrays, subject, names)
    # A negative axis counts the axes of the result here, and the axes of the arrays in VirtualiZarr.
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape) + 1)
    with as_manifest_errors(subject, "arrays of one shape, with codecs that accept another axis"):
        parts = [
            array_api.stack([each.manifest_array(part) for each in arrays], axis=axis)
            for part in range(len(arrays[0].manifests))
        ]
    axes = arrays[0].metadata.dimension_names
    checksums = merge_checksums([each.checksums for each in arrays], subject)
    return combined(parts, None if axes is None else [*axes[:axis], None, *axes[axis:]], checksums)


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
    with as_manifest_errors("broadcast_to", "an array whose codecs accept more axes"):
        parts = [
            array_api.broadcast_to(array.manifest_array(part), tuple(shape)) for part in range(len(array.manifests))
        ]
    names = array.metadata.dimension_names
    return combined(parts, None if names is None else [*[None] * added, *names], array.checksums)
