"""The `parts_store.szip` codec: reads chunks with the filter szip of HDF5, and refuses those that end too early.

Adopted files have the codec `imagecodecs_szip` instead, which other software knows. A store checks their chunks
(`parts_store.format.cut_chunks`).
"""

import asyncio
import math
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Final, Self, override

from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec
from parts_store.codecs.configuration import read_configuration, require_integer
from parts_store.errors import CodecConfigError, describe
from parts_store.format.cut_chunks import SZIP_LIMITS, Szip, most_decoded

NAME: Final = "parts_store.szip"


@dataclass(frozen=True)
class SzipCodec(BytesBytesCodec):
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
        for member, (minimum, maximum) in SZIP_LIMITS.items():
            number = require_integer(NAME, member, getattr(self, member), minimum=minimum, maximum=maximum)
            object.__setattr__(self, member, number)
        try:
            import_module("imagecodecs")
        except ImportError as error:
            raise CodecConfigError(NAME, "codec", "imagecodecs: pip install imagecodecs-zarr", str(error)) from error

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        members = read_configuration(data, NAME, required=tuple(SZIP_LIMITS), optional=("header",))
        header = members.pop("header", True)
        if header is not True:
            raise CodecConfigError(NAME, "header", "true", describe(header))
        return cls(**members)

    @override
    def to_dict(self) -> dict[str, JSON]:
        settings: dict[str, JSON] = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"name": NAME, "configuration": {**settings, "header": True}}

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        nbytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        szip = Szip(self.options_mask, self.pixels_per_block, self.bits_per_pixel, self.pixels_per_scanline)
        decoded = szip.decode(chunk_bytes.as_numpy_array(), most_decoded(nbytes))
        return chunk_spec.prototype.buffer.from_array_like(decoded)

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        imagecodecs: Any = import_module("imagecodecs")
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        encoded = imagecodecs.szip_encode(chunk_bytes.as_numpy_array(), **settings, header=True)
        return chunk_spec.prototype.buffer.from_bytes(bytes(encoded))

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    @override
    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError
