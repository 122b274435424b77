"""Check the shape of a chunk before a header is made for it."""

import operator
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from parts_store.errors import HeaderError, describe

# The limit of NumPy.
_MAX_AXES = 64


def require_shape(
    file_format: str, shape: Iterable[SupportsIndex], *, minimum_axes: int, maximum_length: int
) -> tuple[int, ...]:
    """Return `shape` as integers; raise `HeaderError` unless a header can describe it."""
    try:
        axes = tuple(shape)
        lengths = tuple(operator.index(length) for length in axes)
    except TypeError as error:
        raise HeaderError(file_format, "a shape of integers", describe(shape)) from error
    if any(isinstance(length, bool | np.bool) for length in axes):
        raise HeaderError(file_format, "a shape of integers", describe(axes))
    if not minimum_axes <= len(lengths) <= _MAX_AXES or any(not 0 < length <= maximum_length for length in lengths):
        expected = f"a shape of {minimum_axes} to {_MAX_AXES} lengths from 1 to {maximum_length}"
        raise HeaderError(file_format, expected, describe(lengths))
    return lengths
