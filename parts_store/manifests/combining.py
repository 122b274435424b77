"""Arrays of references made of others: concatenated, stacked, broadcast. Nothing is read.

VirtualiZarr combines the manifests, part by part; here is decided what may be combined, and on which axis.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from virtualizarr.manifests import array_api

from parts_store.errors import ManifestError, describe
from parts_store.manifests.array_references import References, as_refusals, combined, document_of
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.entries import Checksum
from parts_store.manifests.fetching import shown


def require_alike(arrays: Sequence[References], subject: str) -> None:
    """Raise unless arrays can be one: their type, codecs, chunks, number of parts, and the value of missing chunks."""
    first, *others = arrays
    for number, other in enumerate(others, start=1):
        for name, expected, found in (
            ("dtype", first.dtype, other.dtype),
            ("codecs", document_of(first.metadata)["codecs"], document_of(other.metadata)["codecs"]),
            ("chunk shape", first.chunk_shape, other.chunk_shape),
            ("number of parts", len(first.manifests), len(other.manifests)),
        ):
            if expected != found:
                raise ManifestError(f"{subject}, array {number}", f"the {name} {expected} of the first", str(found))
    fill_values = [document_of(each.metadata)["fill_value"] for each in arrays]
    if any(each != fill_values[0] for each in fill_values) and any(each.is_missing().any() for each in arrays):
        expected = "one fill value, since chunks are missing"
        raise ManifestError(subject, expected, ", ".join(map(str, fill_values)))


def merge_checksums(many: Iterable[Checksums], subject: str) -> Checksums:
    """Return the checksums of arrays that become one; raise `ManifestError` if a file has two that differ.

    Of two times the earlier one counts: a file that was not modified after it is as both arrays know it.
    """
    merged: dict[str, Checksum] = {}
    for checksums in many:
        for location, checksum in checksums.items():
            known = merged.setdefault(location, checksum)
            if isinstance(known, datetime) and isinstance(checksum, datetime):
                merged[location] = min(known, checksum)
            elif known != checksum:
                expected = f"one checksum of {shown(location)!r}, found {describe(str(known))} in another array"
                raise ManifestError(subject, expected, describe(str(checksum)))
    return merged


def concatenate(arrays: Sequence[References], axis: int) -> References:
    """The arrays, one after the other along an axis. Only the last may end within a chunk."""
    subject = "concatenate"
    require_alike(arrays, subject)
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape))
    with as_refusals(subject, "arrays whose chunks make up one grid"):
        parts = [
            array_api.concatenate([each.manifest_array(part) for each in arrays], axis=axis)
            for part in range(len(arrays[0].manifests))
        ]
    return combined(
        parts, arrays[0].metadata.dimension_names, merge_checksums([each.checksums for each in arrays], subject)
    )


def stack(arrays: Sequence[References], axis: int) -> References:
    """The arrays, one after the other along a new axis, on which chunks have the length 1."""
    subject = "stack"
    require_alike(arrays, subject)
    # Counted among the axes of the result: VirtualiZarr counts a negative one among those of the arrays.
    axis = normalize_axis_index(axis, len(arrays[0].metadata.shape) + 1)
    with as_refusals(subject, "arrays of one shape, with codecs that take another axis"):
        parts = [
            array_api.stack([each.manifest_array(part) for each in arrays], axis=axis)
            for part in range(len(arrays[0].manifests))
        ]
    names = arrays[0].metadata.dimension_names
    checksums = merge_checksums([each.checksums for each in arrays], subject)
    return combined(parts, None if names is None else [*names[:axis], None, *names[axis:]], checksums)


def expand_dims(array: References, axes: Sequence[int]) -> References:
    """The array with new axes of length 1 at these places among the axes of the result."""
    ndim = len(array.metadata.shape) + len(axes)
    places = sorted(normalize_axis_index(axis, ndim) for axis in axes)
    if len(set(places)) < len(places):
        raise ManifestError("expand_dims", "a different place for every new axis", str(tuple(axes)))
    for place in places:
        array = stack([array], place)
    return array


def broadcast_to(array: References, shape: tuple[int, ...]) -> References:
    """The array repeated to a shape, as numpy does it. An axis is repeated only where its chunks have the length 1."""
    old, chunks = array.metadata.shape, array.chunk_shape
    added = len(shape) - len(old)
    with as_refusals("broadcast_to", f"a shape that {old} can be broadcast to"):
        if np.broadcast_shapes(old, shape) != tuple(shape):
            raise ValueError(f"{shape}")
    for axis, (length, chunk, wanted) in enumerate(zip(old, chunks, shape[added:], strict=True)):
        # VirtualiZarr would take what fills up a longer chunk for values.
        if wanted != length and chunk != 1:
            raise ManifestError("broadcast_to", f"chunks of length 1 on axis {axis}, to repeat it", f"{chunk}")
    with as_refusals("broadcast_to", "an array whose codecs take more axes"):
        parts = [
            array_api.broadcast_to(array.manifest_array(part), tuple(shape)) for part in range(len(array.manifests))
        ]
    names = array.metadata.dimension_names
    return combined(parts, None if names is None else [*[None] * added, *names], array.checksums)
