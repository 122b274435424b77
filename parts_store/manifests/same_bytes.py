"""Decide whether two arrays of references have the same values because they refer to the same bytes. Pure."""

import numpy as np

from parts_store.manifests.array_references import References
from parts_store.manifests.combining import fill_value_of
from parts_store.manifests.entries import Columns


def refer_to_same_bytes(one: References, other: References) -> bool:
    """Return whether arrays decode the same bytes in the same way; if not, their values may still be the same.

    Their attributes and dimension names may differ.
    """
    first, second = one.metadata, other.metadata
    is_same_form = (
        (first.shape, one.chunk_shape, first.data_type) == (second.shape, other.chunk_shape, second.data_type)
        and first.codecs == second.codecs
        and len(one.manifests) == len(other.manifests)
    )
    if not is_same_form or any(other.checksums.get(file, each) != each for file, each in one.checksums.items()):
        return False
    if one.is_missing().any() and fill_value_of(one) != fill_value_of(other):
        return False
    return all(map(_is_same, one.columns(), other.columns()))


def _is_same(one: Columns, other: Columns) -> bool:
    pairs = ((one.paths, other.paths), (one.offsets, other.offsets), (one.lengths, other.lengths))
    return one.inlined == other.inlined and all(np.array_equal(mine, theirs) for mine, theirs in pairs)
