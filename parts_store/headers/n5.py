"""N5 block headers: with one before it, an encoded chunk is a block of an N5 dataset.

Decides the bytes of a block in N5's default mode; knows nothing of zarr. A dataset of N5 is an array of the same shape,
block size and order of axes, with the codecs `transpose` (N5 keeps the first axis together, so all axes reversed),
`bytes` (big endian), a compressor that N5 knows, and last `pad` or `offset` with this header.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from parts_store.headers.shape import require_shape

_DEFAULT_MODE = 0
# N5 is a Java format: lengths are signed integers of 32 bits.
_MAX_LENGTH = 2**31 - 1


def n5(shape: Iterable[SupportsIndex]) -> bytes:
    """The header of an N5 block of this shape, its axes in the order of the dataset's `blockSize`."""
    dimensions = require_shape("N5", shape, minimum_axes=1, maximum_length=_MAX_LENGTH)
    return struct.pack(f">HH{len(dimensions)}I", _DEFAULT_MODE, len(dimensions), *dimensions)


@dataclass(frozen=True, init=False, slots=True)
class N5Header:
    """A callable that gives every encoded chunk the header of a full N5 block, for `padding_func` and `prefix_func`."""

    shape: tuple[int, ...]

    def __init__(self, shape: Iterable[SupportsIndex]) -> None:
        dimensions = require_shape("N5", shape, minimum_axes=1, maximum_length=_MAX_LENGTH)
        object.__setattr__(self, "shape", dimensions)

    @property
    def nbytes(self) -> int:
        """The size of the header."""
        return 4 + 4 * len(self.shape)

    def __call__(self, encoded: bytes) -> bytes:  # noqa: ARG002 - N5 says nothing of the encoded bytes
        """The header of this encoded chunk."""
        return n5(self.shape)
