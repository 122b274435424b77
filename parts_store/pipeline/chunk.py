"""Encode and decode whole chunks: what chunks without shards and the inner chunks of shards have in common."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import BytesCodec

from parts_store._compat.zarr import ArraySpec, can_sync
from parts_store.pipeline.compression import Bytes, InnerCodecs, NotDecodedError, Uncompressed, choose_inner_codecs

# The offset of bytes that begin with a chunk.
AT_START: Final = np.zeros(1, np.uint64)
# How many layouts are kept of one array.
_MOST_SHAPES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLayout:
    """The layout of chunks, and how they are encoded."""

    chunk_shape: tuple[int, ...]
    # The data type as it is stored, with its byte order.
    dtype: np.dtype[Any]
    fill_value: Any
    stores_empty_chunks: bool
    codecs: InnerCodecs

    def decode_chunk(self, stored: Bytes) -> NDArray[Any]:
        """Decode one chunk.

        Raises
        ------
        NotDecodedError
            If this cannot be done here. Then zarr's codecs decode the chunk, or say what is wrong with it.
        """
        decoded = stored
        if not isinstance(self.codecs, Uncompressed):
            decoded = self.codecs.decode(stored, AT_START, np.array([len(stored)], np.uint64))
        elif len(stored) != self.codecs.chunk_nbytes:
            raise NotDecodedError
        return decoded.view(self.dtype).reshape(self.chunk_shape)

    def encode_chunk(self, values: NDArray[Any]) -> Bytes | None:
        """Encode one chunk; None if all of it is the fill value, and such chunks are not stored."""
        chunks = np.ascontiguousarray(values, self.dtype).reshape(1, -1)
        if not self.stores_empty_chunks and self.find_empty(chunks) is not None:
            return None
        (encoded,), _ = self.codecs.encode(chunks.view(np.uint8))
        return np.frombuffer(encoded, np.uint8)

    def find_empty(self, chunks: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return which inner chunks hold nothing but the fill value, None if there are none; by zarr's rule.

        By that rule, a negative zero is not zero, except in complex numbers, and every NaN is the same. There is one
        exception: zarr takes the complex number `1+nanj` for `nan+nanj`, and would lose the real part.
        """
        is_equal = self._is_fill_value(chunks[:, :1])[:, 0]
        candidates = np.flatnonzero(is_equal)
        if not len(candidates):
            return None
        is_equal[candidates] = self._is_fill_value(chunks[candidates]).all(axis=1)
        return is_equal if is_equal.any() else None

    def _is_fill_value(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        fill_value = np.asarray(self.fill_value, self.dtype)
        if self.dtype.kind == "f" and fill_value == 0:
            bits = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, self.dtype.itemsize)
            return np.asarray((bits == np.frombuffer(fill_value.tobytes(), np.uint8)).all(axis=-1))
        if self.dtype.kind == "c":
            return _equals(values.real, fill_value.real) & _equals(values.imag, fill_value.imag)
        return _equals(values, fill_value)


def _equals(values: NDArray[Any], fill_value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are equal to a fill value; a NaN or a NaT is equal to another one."""
    if fill_value.dtype.kind in "fmM" and fill_value != fill_value:  # noqa: PLR0124 - a NaN or a NaT
        return np.asarray(values != values)  # noqa: PLR0124
    return np.asarray(values == fill_value)


@dataclass(slots=True)
class Layouts[T: ChunkLayout]:
    """The layouts of the chunks or shards of one array, each planned once."""

    plan: Callable[[ArraySpec], T | None]
    # By the shape of a chunk; an array with a rectilinear grid has many.
    _planned: dict[tuple[int, ...], tuple[ArraySpec, T | None]] = field(default_factory=dict)

    def of(self, spec: ArraySpec) -> T | None:
        """Return the layout of a chunk, None if only zarr's codecs can encode and decode it."""
        before, layout = self._planned.get(spec.shape, (None, None))
        if before is None or not _is_same(before, spec):
            layout = self.plan(spec)
            if len(self._planned) >= _MOST_SHAPES:
                self._planned.clear()
            self._planned[spec.shape] = spec, layout
        return layout

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that receives the pipeline of an array plans the layouts again.
        return Layouts, (self.plan,)


def _is_same(before: ArraySpec, spec: ArraySpec) -> bool:
    """Return whether two specifications of one shape are those of the same array.

    The fill values must be the same object: 0.0 and -0.0 are equal, and are not stored in the same way.
    """
    return (
        before.fill_value is spec.fill_value
        and before.dtype is spec.dtype
        and before.config is spec.config
        and before.prototype == spec.prototype
    )


def plan_chunks(codecs: Iterable[Codec], spec: ArraySpec) -> ChunkLayout | None:
    """Return the layout of chunks with these codecs, None if only zarr's codecs can encode and decode them."""
    dtype = spec.dtype.to_native_dtype()
    if dtype.kind not in "biufcmM" or not spec.shape or not all(spec.shape):
        return None
    match tuple(codecs):
        case [BytesCodec(endian=endian), *compressors]:
            stored = dtype if endian is None else dtype.newbyteorder("<" if endian == "little" else ">")
        case _:
            return None
    if not all(map(can_sync, compressors)):
        return None
    chunk_nbytes = prod(spec.shape) * dtype.itemsize
    chain = choose_inner_codecs(cast("list[BytesBytesCodec]", compressors), spec, chunk_nbytes)
    return ChunkLayout(tuple(spec.shape), stored, spec.fill_value, spec.config.write_empty_chunks, chain)
