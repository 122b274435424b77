"""Headers of other file formats: with one before it, an encoded chunk is a TIFF file or an N5 block.

A TIFF file has one image in one strip. Its header has to match the codecs of the array:

| compression | codecs, in this order                       | header                                     |
|-------------|---------------------------------------------|--------------------------------------------|
| `"none"`    | `bytes`, then `pad` or `offset`             | `tiff(...)`, the same for every chunk      |
| `"deflate"` | `bytes`, `numcodecs.zlib`, `pad`/`offset`   | `TiffHeader(...)`, called for every chunk  |
| `"zstd"`    | `bytes`, `zstd`, then `pad` or `offset`     | `TiffHeader(...)`, called for every chunk  |

zarr's `gzip` cannot be used for deflate: it adds a gzip header, for which TIFF has no compression scheme. The `bytes`
codec must have the byte order of the header, and no codec may follow `pad` or `offset`.

An N5 dataset corresponds to an array with the same shape, block size and order of axes, and with these codecs:
`transpose` with all axes reversed (in N5 the first axis varies fastest), `bytes` (big endian), a compressor that N5
has, and last `pad` or `offset` with the header of a block in N5's default mode.
"""

import math
import operator
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from parts_store.errors import HeaderError, describe
from parts_store.format.tiff_directory import (
    COMPRESSION,
    GRAY,
    LONG,
    RGB,
    RGBA,
    ROWS_PER_STRIP,
    SAMPLE_FORMAT,
    STRIP_BYTE_COUNTS,
    STRIP_OFFSETS,
    ByteOrder,
    Compression,
    DirectoryTag,
    TiffForm,
    image_tags,
)

__all__ = ["N5Header", "TiffHeader", "n5", "tiff"]

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


_CODEC: dict[str, str] = {"none": "", "deflate": "zarr's codec `numcodecs.zlib`", "zstd": "zarr's codec `zstd`"}
# How a compressed chunk begins: RFC 1950 (zlib), RFC 8878 (zstd).
_HAS_MAGIC: dict[str, Callable[[bytes], bool]] = {
    "none": lambda _: True,
    "deflate": lambda chunk: len(chunk) > 1 and chunk[0] & 15 == 8 and int.from_bytes(chunk[:2]) % 31 == 0,
    "zstd": lambda chunk: chunk[:4] == b"\x28\xb5\x2f\xfd",
}
_MAX_NBYTES = 2**32 - 1
# Whether the last axis contains the colours, as it is recorded.
_KINDS = ("gray", "rgb")


def tiff(
    shape: Iterable[SupportsIndex],
    *,
    dtype: DTypeLike,
    byteorder: ByteOrder | None = None,
    rgb: bool | None = None,
) -> bytes:
    """Return the header that makes an uncompressed chunk a TIFF file.

    Parameters
    ----------
    shape
        The shape of a chunk: `(height, width)`, or `(height, width, 3)` and `(height, width, 4)` for RGB and RGBA. Axes
        of length 1 may come before.
    dtype
        The data type of the chunk.
    byteorder
        `"little"` or `"big"`, the same as in the `bytes` codec; if None, that of `dtype`, and little if it has none.
    rgb
        Whether the last axis contains the colours. If None, the shape decides; a shape that allows both, such as
        `(1, 512, 3)`, is refused.

    Returns
    -------
    bytes
        The header, which is the same for every chunk.

    Raises
    ------
    HeaderError
        If TIFF cannot describe such a chunk.

    Examples
    --------
    >>> header = ps.headers.tiff(shape=(64, 64), dtype="uint16")
    >>> header[:2], len(header)
    (b'II', 110)
    """
    header = TiffHeader(shape, dtype=dtype, byteorder=byteorder, rgb=rgb)
    return header.for_encoded(header.chunk_nbytes)


@dataclass(frozen=True, init=False, slots=True)
class TiffHeader:
    """A callable that makes the TIFF header of an encoded chunk, for `padding_func` and `prefix_func`.

    Parameters
    ----------
    shape
        The shape of a chunk: `(height, width)`, or `(height, width, 3)` and `(height, width, 4)` for RGB and RGBA. Axes
        of length 1 may come before.
    dtype
        The data type of the chunk.
    byteorder
        `"little"` or `"big"`, the same as in the `bytes` codec; if None, that of `dtype`, and little if it has none.
    compression
        The compression of the codecs before it: `"none"`, `"deflate"` or `"zstd"`.
    rgb
        Whether the last axis contains the colours. If None, the shape decides; a shape that allows both, such as
        `(1, 512, 3)`, is refused.

    Raises
    ------
    HeaderError
        If TIFF cannot describe such a chunk.

    Examples
    --------
    >>> header = ps.headers.TiffHeader((64, 64), dtype="uint16", compression="zstd")
    >>> codecs = [zarr.codecs.ZstdCodec(), ps.codecs.pad_codec(header.nbytes, padding_func=header)]
    >>> image = zarr.create_array({}, shape=(128, 128), chunks=(64, 64), dtype="uint16", compressors=codecs)
    >>> image[:] = 1
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    byteorder: ByteOrder
    compression: Compression
    rgb: bool

    def __init__(
        self,
        shape: Iterable[SupportsIndex],
        *,
        dtype: DTypeLike,
        byteorder: ByteOrder | None = None,
        compression: Compression = "none",
        rgb: bool | None = None,
    ) -> None:
        parsed = _parse_dtype(dtype)
        dimensions = require_shape("TIFF", shape, minimum_axes=2, maximum_length=_MAX_NBYTES)
        if byteorder is None:
            byteorder = "big" if parsed.str[0] == ">" else "little"
        if not isinstance(byteorder, str) or byteorder not in ("little", "big"):
            raise HeaderError("TIFF", "a byte order of 'little' or 'big'", describe(byteorder))
        if not isinstance(compression, str) or compression not in COMPRESSION:
            raise HeaderError("TIFF", f"a compression of {', '.join(COMPRESSION)}", describe(compression))
        object.__setattr__(self, "shape", dimensions)
        object.__setattr__(self, "dtype", parsed)
        object.__setattr__(self, "byteorder", byteorder)
        object.__setattr__(self, "compression", compression)
        object.__setattr__(self, "rgb", _is_rgb(dimensions) if rgb is None else _require_image(dimensions, rgb))

    @classmethod
    def from_recipe(cls, recipe: str, shape: Iterable[SupportsIndex], dtype: DTypeLike) -> "TiffHeader | None":
        """Return the header that was recorded as `recipe`, for chunks of this shape and data type.

        Returns None if the recipe is not known.

        Parameters
        ----------
        recipe
            The property `recipe` of a header.
        shape
            The shape of a chunk.
        dtype
            The data type of the chunk.

        Examples
        --------
        >>> header = ps.headers.TiffHeader((64, 64), dtype="uint16", compression="zstd")
        >>> ps.headers.TiffHeader.from_recipe(header.recipe, (64, 64), "uint16") == header
        True
        """
        match recipe.split(" "):
            case ["tiff", ("none" | "deflate" | "zstd") as compression, ("little" | "big") as order, kind]:
                if kind in _KINDS:
                    return cls(shape, dtype=dtype, byteorder=order, compression=compression, rgb=kind == _KINDS[1])
        return None

    @property
    def recipe(self) -> str:
        """The text from which the header can be made again, given the shape and the data type of the chunk."""
        return f"tiff {self.compression} {self.byteorder} {_KINDS[self.rgb]}"

    def require_chunk(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise `HeaderError` unless the header is one for chunks of this shape and data type.

        Parameters
        ----------
        shape
            The shape of a chunk.
        dtype
            The data type of the chunk, in any byte order.
        """
        if shape != self.shape or dtype.newbyteorder("=") != self.dtype.newbyteorder("="):
            raise HeaderError("TIFF", f"a header for chunks of {dtype.name}{shape}", f"{self.dtype.name}{self.shape}")

    @property
    def nbytes(self) -> int:
        """The size of the header in bytes, the same for every chunk."""
        return len(self._build(0))

    @property
    def chunk_nbytes(self) -> int:
        """The size of the chunk before compression."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __call__(self, encoded: bytes) -> bytes:
        """Return the header of this encoded chunk."""
        if self.compression == "none" and len(encoded) != self.chunk_nbytes:
            expected = f"{self.chunk_nbytes} bytes of an uncompressed {self.dtype.name} chunk of shape {self.shape}"
            raise HeaderError("TIFF", expected, f"{len(encoded)} bytes")
        if not _HAS_MAGIC[self.compression](encoded):
            expected = f"a chunk compressed by {self.compression} ({_CODEC[self.compression]})"
            raise HeaderError("TIFF", expected, f"a chunk that begins with {encoded[:4].hex(' ')!r}")
        return self.for_encoded(len(encoded))

    def for_encoded(self, nbytes: int) -> bytes:
        """Return the header of a chunk of `nbytes` encoded bytes.

        Parameters
        ----------
        nbytes
            The size of the encoded chunk.
        """
        # Offsets and sizes in TIFF have 32 bits.
        if not 0 <= nbytes <= _MAX_NBYTES - self.nbytes:
            raise HeaderError("TIFF", f"a file of at most {_MAX_NBYTES} bytes", f"{self.nbytes + nbytes} bytes")
        return self._build(nbytes)

    def _build(self, strip_nbytes: int) -> bytes:
        form = TiffForm(self.byteorder)
        height, width = self.shape[-3:-1] if self.rgb else self.shape[-2:]
        samples = self.shape[-1] if self.rgb else GRAY
        tags = [
            *image_tags(height, width, samples, self.dtype, self.compression, is_rgb=self.rgb),
            DirectoryTag.number_of(ROWS_PER_STRIP, height),
            DirectoryTag(STRIP_BYTE_COUNTS, LONG, (strip_nbytes,)),
        ]
        offset = DirectoryTag(STRIP_OFFSETS, LONG, (0,))
        strip_at = len(form.magic()) + form.directory_nbytes([*tags, offset])
        return form.magic() + form.pack([*tags, replace(offset, values=(strip_at,))], at=len(form.magic()))


def _parse_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        # NumPy takes None for float64, which is not meant here.
        parsed = np.dtype(dtype if dtype is not None else "none")
    except (TypeError, ValueError, SyntaxError) as error:
        raise HeaderError("TIFF", "a NumPy data type", describe(dtype)) from error
    if parsed.kind not in SAMPLE_FORMAT or parsed.itemsize > (16 if parsed.kind == "c" else 8):
        raise HeaderError("TIFF", "a boolean, or a number of at most 64 bits, as data type", str(parsed))
    return parsed


def _is_rgb(shape: tuple[int, ...]) -> bool:
    """Return whether the last axis contains the colours, if the caller did not say it."""
    may_be_rgb = len(shape) > 2 and shape[-1] in (RGB, RGBA) and all(n == 1 for n in shape[:-3])
    may_be_gray = all(length == 1 for length in shape[:-2])
    if may_be_rgb and may_be_gray:
        raise HeaderError(
            "TIFF", "`rgb` to be given, because the last axis may be the width or the colours", f"{shape}"
        )
    return _require_image(shape, may_be_rgb)


def _require_image(shape: tuple[int, ...], rgb: object) -> bool:
    if not isinstance(rgb, bool | np.bool):
        raise HeaderError("TIFF", "True, False or None as `rgb`", describe(rgb))
    if rgb and (len(shape) < 3 or shape[-1] not in (RGB, RGBA)):
        raise HeaderError("TIFF", "(..., height, width, 3 or 4) as the shape of an RGB image", f"{shape}")
    if any(length != 1 for length in shape[: -3 if rgb else -2]):
        expected = "one image: (height, width) or (height, width, 3 or 4), with only axes of length 1 before them"
        raise HeaderError("TIFF", expected, f"{shape}")
    return bool(rgb)
