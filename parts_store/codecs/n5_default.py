"""The `n5_default` codec: chunks that are blocks of an N5 dataset, also those that are cut at the edge of the dataset.

The codec is specified in zarr-extensions. A block has a header with its shape. Programs such as z5py cut the blocks at
the edge of the dataset, and others fill them up. The codecs `pad` and `offset` skip the header without reading it, and
so cannot decode a block that is cut.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import BloscCodec
from zarr.dtype import ZDType
from zarr.registry import get_codec_class
from zarr.types import JSON

from parts_store._compat.zarr import (
    ArraySpec,
    ChunkGridMetadata,
    TBaseDType,
    TBaseScalar,
    ThreadedCodec,
    decode_sync,
    encode_sync,
)
from parts_store.codecs.configuration import read_configuration, require_integer
from parts_store.codecs.damaged_chunks import decompress, require_blosc_sizes
from parts_store.errors import CodecConfigError, CodecError, describe
from parts_store.headers import n5, n5_nbytes, read_n5

_NAME: Final = "n5_default"
_MAX_AXES: Final = 64
# The kinds and sizes of the data types of N5.
_TYPES: Final = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}


@dataclass(frozen=True, init=False)
class N5DefaultCodec(ThreadedCodec, ArrayBytesCodec):
    """A codec whose chunks are blocks of an N5 dataset, in N5's default mode.

    The axes of the array are in N5's order, and the first one varies fastest in a block. A block that is smaller than a
    chunk is read as the first elements of the chunk, and the others are the fill value. Whole chunks are written.

    Parameters
    ----------
    ndim
        The number of dimensions.
    compressor
        The codec that compresses the block behind its header; None if it is not compressed.

    Raises
    ------
    CodecConfigError
        If an argument is wrong, or the array cannot be an N5 dataset.

    Examples
    --------
    >>> codec = ps.codecs.N5DefaultCodec(ndim=2, compressor=zarr.codecs.GzipCodec())
    >>> array = zarr.create_array({}, shape=(4, 6), dtype="int16", serializer=codec, compressors=None)
    >>> array[:] = np.arange(24).reshape(4, 6)
    >>> array[1].tolist()
    [6, 7, 8, 9, 10, 11]
    """

    ndim: int
    compressor: BytesBytesCodec | None

    def __init__(self, *, ndim: int, compressor: BytesBytesCodec | None = None) -> None:
        object.__setattr__(self, "ndim", require_integer(_NAME, "ndim", ndim, minimum=1, maximum=_MAX_AXES))
        is_codec = isinstance(compressor, BytesBytesCodec) and hasattr(compressor, "_decode_sync")
        if compressor is not None and not is_codec:
            expected = "a codec from bytes to bytes that needs no event loop, or None"
            raise CodecConfigError(_NAME, "compressor", expected, describe(compressor))
        object.__setattr__(self, "compressor", compressor)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        codecs = read_configuration(data, _NAME, required=("codecs",))["codecs"]
        expected = "`transpose`, `bytes` and at most one codec from bytes to bytes"
        if not isinstance(codecs, list) or len(codecs) not in (2, 3):
            raise CodecConfigError(_NAME, "codecs", expected, describe(codecs))
        (first, transpose), (second, to_bytes), *rest = (_named(each) for each in codecs)
        order = transpose.get("order")
        if first != "transpose" or not isinstance(order, list) or order != list(range(len(order)))[::-1]:
            raise CodecConfigError(_NAME, "codecs", "first `transpose` with all axes reversed", describe(codecs[0]))
        if second != "bytes" or to_bytes.get("endian", "big") not in ("big", None):
            raise CodecConfigError(_NAME, "codecs", "second `bytes`, big-endian", describe(codecs[1]))
        compressor: Any = None
        if rest:
            (name, configuration) = rest[0]
            compressor = get_codec_class(name).from_dict({"name": name, "configuration": configuration})
        return cls(ndim=len(order), compressor=compressor)

    @override
    def to_dict(self) -> dict[str, JSON]:
        codecs: list[JSON] = [
            {"name": "transpose", "configuration": {"order": list(range(self.ndim))[::-1]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
        ]
        if self.compressor is not None:
            codecs.append(self.compressor.to_dict())
        return {"name": _NAME, "configuration": {"codecs": codecs}}

    @override
    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        self._require(array_spec.shape, array_spec.dtype)
        if self.compressor is None:
            return self
        return type(self)(ndim=self.ndim, compressor=self.compressor.evolve_from_array_spec(array_spec))

    @override
    def validate(
        self,
        *,
        shape: tuple[int, ...],
        dtype: ZDType[TBaseDType, TBaseScalar],
        chunk_grid: ChunkGridMetadata,
    ) -> None:
        self._require(shape, dtype)

    def _require(self, shape: tuple[int, ...], dtype: ZDType[TBaseDType, TBaseScalar]) -> None:
        """Raise `CodecConfigError` unless an array of this data type, and with as many axes, can be an N5 dataset."""
        if len(shape) != self.ndim:
            raise CodecConfigError(_NAME, "shape", f"{self.ndim} dimensions, as `transpose` says", f"{len(shape)}")
        native = dtype.to_native_dtype()
        if native.itemsize not in _TYPES.get(native.kind, ()):
            raise CodecConfigError(_NAME, "data_type", "an integer, or a float of 32 or 64 bits", str(native))

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        header_nbytes = n5_nbytes(self.ndim)
        shape, body = read_n5(chunk_bytes[:header_nbytes].to_bytes(), self.ndim), chunk_bytes[header_nbytes:]
        if any(length > most for length, most in zip(shape, chunk_spec.shape, strict=True)):
            raise CodecError(_NAME, f"a block of at most {chunk_spec.shape}, as the array says", f"{shape}")
        try:
            found = self._decompress(body, replace(chunk_spec, shape=shape))
        except Exception as error:
            name = type(self.compressor).__name__
            raise CodecError(_NAME, f"a block that {name} can decode", f"{type(error).__name__}: {error}") from error
        return _expand(found, shape, chunk_spec)

    def _decompress(self, body: Buffer, block_spec: ArraySpec) -> NDArray[Any]:
        """Return the decompressed bytes, of which there must be as many as the block has.

        A block can be anything, and compressors do not know how much memory they may use.
        """
        if self.compressor is None:
            return body.as_numpy_array()
        nbytes = _nbytes(block_spec.shape, block_spec)
        if isinstance(self.compressor, BloscCodec):
            require_blosc_sizes(memoryview(body.as_numpy_array()), nbytes)
        elif (found := decompress(self.compressor.to_dict(), body.to_bytes(), nbytes)) is not None:
            return np.frombuffer(found, np.uint8)
        decoded: NDArray[Any] = decode_sync(self.compressor, body, block_spec).as_numpy_array()
        return decoded

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        buffer = chunk_spec.prototype.buffer
        values = chunk_array.as_numpy_array().astype(_big_endian(chunk_spec), copy=False)
        body: Any = buffer.from_bytes(values.tobytes(order="F"))
        if self.compressor is not None:
            body = encode_sync(self.compressor, body, chunk_spec)
        return None if body is None else buffer.from_bytes(n5(chunk_spec.shape)).combine([body])

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        if self.compressor is not None:
            input_byte_length = self.compressor.compute_encoded_size(input_byte_length, chunk_spec)
        return n5_nbytes(self.ndim) + input_byte_length


def _named(codec: object) -> tuple[str, dict[str, Any]]:
    """Return the name and the configuration of a codec, which may be given as an object or by its name."""
    match codec:
        case str():
            return codec, {}
        case {"name": str(name), **rest} if isinstance(configuration := rest.get("configuration", {}), Mapping):
            return name, dict(configuration)
    raise CodecConfigError(_NAME, "codecs", "objects with a name", describe(codec))


def _big_endian(chunk_spec: ArraySpec) -> np.dtype[Any]:
    return chunk_spec.dtype.to_native_dtype().newbyteorder(">")


def _nbytes(shape: tuple[int, ...], chunk_spec: ArraySpec) -> int:
    return math.prod(shape) * chunk_spec.dtype.to_native_dtype().itemsize


def _expand(body: NDArray[Any], shape: tuple[int, ...], chunk_spec: ArraySpec) -> NDBuffer:
    """Return the chunk that begins with a block of this shape; the rest of the chunk is the fill value."""
    dtype = _big_endian(chunk_spec)
    expected = _nbytes(shape, chunk_spec)
    if body.nbytes != expected:
        raise CodecError(_NAME, f"{expected} bytes for a block of {shape}", f"{body.nbytes} bytes")
    values = np.ascontiguousarray(body).view(np.uint8).reshape(-1).view(dtype).reshape(shape[::-1]).T
    if shape != chunk_spec.shape:
        # In the same order in memory, so that the rest of the chunk is not copied element by element.
        whole = np.full(chunk_spec.shape, chunk_spec.fill_value, dtype.newbyteorder("="), order="F")
        whole[tuple(slice(length) for length in shape)] = values
        values = whole
    return chunk_spec.prototype.nd_buffer.from_ndarray_like(values)
