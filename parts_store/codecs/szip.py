"""The `parts_store.szip` codec: reads chunks with the filter szip of HDF5, and refuses those that end too early.

Adopted files have the codec `imagecodecs_szip`, which other software knows. It returns as many bytes as the header of a
chunk says, whatever was decoded of them. Where this package decodes chunks, this codec takes its place
(`damaged_chunks.py`).
"""

import math
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Final, Self, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec, ThreadedCodec
from parts_store.codecs.configuration import read_configuration, require_integer
from parts_store.errors import CodecConfigError, CodecError, describe

NAME: Final = "parts_store.szip"
# The number of bytes when they are decoded.
_HEADER_NBYTES: Final = 4
# The bytes of such pixels are separated, and compressed as pixels of 8 bits.
_SEPARATED: Final = (32, 64)
# The largest number of each: of options in HDF5, and of pixels and bits in szip.
_LIMITS: Final = {
    "options_mask": (0, 2**32 - 1),
    "pixels_per_block": (2, 32),
    "bits_per_pixel": (1, 64),
    "pixels_per_scanline": (1, 4096),
}


@dataclass(frozen=True)
class SzipCodec(ThreadedCodec, BytesBytesCodec):
    """A codec for chunks with the filter szip of HDF5. It needs the package imagecodecs.

    Parameters
    ----------
    options_mask, pixels_per_block, bits_per_pixel, pixels_per_scanline
        The four parameters of the filter, in the order of HDF5.

    Raises
    ------
    CodecConfigError
        If a parameter is out of range, or imagecodecs is not installed.

    Examples
    --------
    >>> ps.codecs.SzipCodec(141, 16, 16, 64).to_dict()["name"]
    'parts_store.szip'
    """

    is_fixed_size = False

    options_mask: int
    pixels_per_block: int
    bits_per_pixel: int
    pixels_per_scanline: int

    def __post_init__(self) -> None:
        for member, (minimum, maximum) in _LIMITS.items():
            number = require_integer(NAME, member, getattr(self, member), minimum=minimum, maximum=maximum)
            object.__setattr__(self, member, number)
        try:
            import_module("imagecodecs")
        except ImportError as error:
            raise CodecConfigError(NAME, "codec", "imagecodecs: pip install imagecodecs-zarr", str(error)) from error

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        members = read_configuration(data, NAME, required=tuple(_LIMITS), optional=("header",))
        header = members.pop("header", True)
        if header is not True:
            raise CodecConfigError(NAME, "header", "true", describe(header))
        return cls(**members)

    @override
    def to_dict(self) -> dict[str, JSON]:
        settings: dict[str, JSON] = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"name": NAME, "configuration": {**settings, "header": True}}

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        # Filters before szip may add checksums, and may compress a chunk that becomes larger.
        nbytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        decoded = decode(self, chunk_bytes.as_numpy_array(), most=2 * nbytes + 64)
        return chunk_spec.prototype.buffer.from_array_like(decoded)

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        imagecodecs: Any = import_module("imagecodecs")
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        encoded = imagecodecs.szip_encode(chunk_bytes.as_numpy_array(), **settings, header=True)
        return chunk_spec.prototype.buffer.from_bytes(bytes(encoded))

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError


def decode(codec: SzipCodec, data: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """Return the bytes of a chunk; raise `CodecError` if it ends too early or has more than `most` bytes."""
    nbytes = int.from_bytes(data[:_HEADER_NBYTES].tobytes(), "little")
    is_separated = codec.bits_per_pixel in _SEPARATED
    is_odd = is_separated and nbytes % (codec.bits_per_pixel // 8)
    if len(data) <= _HEADER_NBYTES or is_odd or not 0 < nbytes <= most:
        found = f"{len(data)} bytes, with a header that says {nbytes} bytes"
        raise CodecError(NAME, f"a chunk of whole pixels, and of up to {most} bytes when it is decoded", found)
    bits = 8 if is_separated else codec.bits_per_pixel
    pixel_nbytes = 4 if bits > 16 else 2 if bits > 8 else 1
    # All scanlines are padded to whole blocks, the last one also to its whole length.
    line_nbytes = codec.pixels_per_scanline * pixel_nbytes
    blocks = -(-codec.pixels_per_scanline // codec.pixels_per_block)
    padded_nbytes = blocks * codec.pixels_per_block * pixel_nbytes
    lines, rest = divmod(nbytes, line_nbytes)
    needed = lines * padded_nbytes + rest if rest else (lines - 1) * padded_nbytes + line_nbytes
    decoded = _decode_lines(codec, data[_HEADER_NBYTES:], bits, -(-nbytes // line_nbytes) * padded_nbytes)
    if len(decoded) < needed:
        found = f"{len(decoded)} bytes: the chunk is cut off or damaged"
        raise CodecError(NAME, f"{needed} bytes of {nbytes}, with padding, when a chunk is decoded", found)
    if padded_nbytes != line_nbytes:
        decoded = np.pad(decoded, (0, -len(decoded) % padded_nbytes))
        decoded = decoded.reshape(-1, padded_nbytes)[:, :line_nbytes].ravel()
    decoded = decoded[:nbytes]
    if is_separated:
        decoded = np.ascontiguousarray(decoded.reshape(codec.bits_per_pixel // 8, -1).T).ravel()
    return decoded


def _decode_lines(codec: SzipCodec, data: NDArray[np.uint8], bits: int, nbytes: int) -> NDArray[np.uint8]:
    """Return up to `nbytes` bytes, as many as the data has; raise `CodecError` if it cannot be decoded.

    The library tells how many bytes it has decoded only for whole blocks that it need not put in order afterwards.
    """
    imagecodecs: Any = import_module("imagecodecs")
    pixels = -(-codec.pixels_per_scanline // codec.pixels_per_block) * codec.pixels_per_block
    try:
        found = imagecodecs.szip_decode(data, codec.options_mask, codec.pixels_per_block, bits, pixels, out=nbytes)
    except (RuntimeError, ValueError) as error:
        raise CodecError(NAME, "a chunk that szip can decode", str(error)) from error
    return np.frombuffer(found, np.uint8)
