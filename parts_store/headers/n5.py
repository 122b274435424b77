"""N5 block headers: with one before it, an encoded chunk is a block of an N5 dataset.

Makes and reads the header of a block in N5's default mode. Knows nothing about zarr. An N5 dataset corresponds to an
array with the same shape, block size and order of axes, and with these codecs: `transpose` with all axes reversed (in
N5 the first axis varies fastest), `bytes` (big endian), a compressor that N5 has, and last `pad` or `offset` with this
header.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from parts_store.errors import HeaderError
from parts_store.headers.shape import require_shape

_DEFAULT_MODE = 0
_MODES = {1: "varlength", 2: "object"}
# N5 is a Java format: lengths are signed integers of 32 bits.
_MAX_LENGTH = 2**31 - 1


def n5(shape: Iterable[SupportsIndex]) -> bytes:
    """Return the header of an N5 block.

    Parameters
    ----------
    shape
        The shape of the block, with the axes in the order of the dataset's `blockSize`.

    Returns
    -------
    bytes
        The header, which is the same for all blocks of this shape.

    Raises
    ------
    HeaderError
        If N5 cannot describe such a block.

    Examples
    --------
    >>> ps.headers.n5((64, 32)).hex(" ", 4)
    '00000002 00000040 00000020'
    """
    dimensions = require_shape("N5", shape, minimum_axes=1, maximum_length=_MAX_LENGTH)
    return struct.pack(f">HH{len(dimensions)}I", _DEFAULT_MODE, len(dimensions), *dimensions)


def n5_nbytes(ndim: int) -> int:
    """Return the number of bytes of the header of a block with `ndim` dimensions, in the default mode."""
    return 4 + 4 * ndim


def read_n5(data: bytes, ndim: int) -> tuple[int, ...]:
    """Return the shape of the block that begins with `data`, in the order of the dataset's `blockSize`.

    Raises `HeaderError` if the header is cut off or has another number of dimensions, if the block is empty, or if it
    is in the mode varlength or object.
    """
    if len(data) < n5_nbytes(ndim):
        raise HeaderError("N5", f"{n5_nbytes(ndim)} bytes for {ndim} dimensions", f"a block of {len(data)} bytes")
    mode, found = struct.unpack_from(">HH", data)
    if mode != _DEFAULT_MODE:
        raise HeaderError("N5", "a block in the default mode (0)", f"mode {mode} ({_MODES.get(mode, 'not known')})")
    if found != ndim:
        raise HeaderError("N5", f"{ndim} dimensions", f"{found}")
    shape: tuple[int, ...] = struct.unpack_from(f">{ndim}I", data, 4)
    if not all(shape):
        raise HeaderError("N5", "lengths from 1", f"{shape}")
    return shape


@dataclass(frozen=True, init=False, slots=True)
class N5Header:
    """A callable that returns the header of an N5 block, for `padding_func` and `prefix_func`.

    Parameters
    ----------
    shape
        The shape of the block, with the axes in the order of the dataset's `blockSize`.

    Raises
    ------
    HeaderError
        If N5 cannot describe such a block.

    Examples
    --------
    >>> header = ps.headers.N5Header((64, 32))
    >>> header(b"an encoded chunk") == ps.headers.n5((64, 32))
    True
    """

    shape: tuple[int, ...]

    def __init__(self, shape: Iterable[SupportsIndex]) -> None:
        dimensions = require_shape("N5", shape, minimum_axes=1, maximum_length=_MAX_LENGTH)
        object.__setattr__(self, "shape", dimensions)

    @property
    def nbytes(self) -> int:
        """The size of the header in bytes."""
        return n5_nbytes(len(self.shape))

    def __call__(self, encoded: bytes) -> bytes:  # noqa: ARG002 - the header does not depend on the chunk
        """Return the header of this encoded chunk."""
        return n5(self.shape)
