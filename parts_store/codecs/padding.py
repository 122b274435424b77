"""The padding around an encoded chunk, which the codecs `pad` and `offset` share: zeros, fixed bytes, or a callable.

Decides what padding a chunk gets, and what `zarr.json` says about it. Does not know the names of a codec's members.

A callable is never stored. In its place `zarr.json` has a mark of the size of the padding. For other software the
mark is a valid fixed padding. For this package it means that no chunk may be written until a callable is bound again.
The mark of a header of this package says how to make it, so that it is bound when a chunk is written.
"""

import asyncio
import re
from abc import abstractmethod
from base64 import b64encode
from collections import abc
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self, override

from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.dtype import ZDType
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec, ChunkGridMetadata, RegularChunkGridMetadata, TBaseDType, TBaseScalar
from parts_store.codecs.configuration import bytes_of, require_bytes, require_integer
from parts_store.errors import CodecConfigError, CodecError, HeaderError, UnboundPaddingError, describe
from parts_store.headers.tiff import TiffHeader

type PaddingFunction = abc.Callable[[bytes], abc.Buffer]
"""A callable that makes the padding of a chunk from its encoded bytes."""

# Part of the stored format. It begins with control characters, with which no header of a file format begins, and
# explains itself to a reader who decodes the base64 text in `zarr.json`.
DYNAMIC_MARK = b"\x10\x16{made by a callable: parts_store.codecs.bind_padding(array, callable) before writing} "
# The mark of a header that can be made again from its recipe, and from the shape and the data type of the chunk.
_RECORDED = re.compile(rb"\x10\x16\{made by parts_store\.headers: ([a-z0-9 ]{1,60})\} *")
# One byte of the mark could be an ordinary padding; two bytes are specific enough.
MIN_DYNAMIC_NBYTES, MAX_DYNAMIC_NBYTES = 2, 2**26


def dynamic_mark(nbytes: int) -> bytes:
    """Return the mark of `nbytes` bytes that is in `zarr.json` if a callable makes the padding."""
    return (DYNAMIC_MARK * -(-nbytes // len(DYNAMIC_MARK)))[:nbytes]


def recorded_mark(recipe: str, nbytes: int) -> bytes | None:
    """Return the mark of `nbytes` bytes for a header with a recipe; None if the recipe is too long."""
    mark = f"\x10\x16{{made by parts_store.headers: {recipe}}}".encode().ljust(nbytes)
    return mark if len(mark) == nbytes else None


@lru_cache(maxsize=256)
def _make_header(recipe: str, shape: tuple[int, ...], dtype: str) -> PaddingFunction | None:
    """Return the header with this recipe; None if it is not known, or there is none for such chunks."""
    try:
        return TiffHeader.from_recipe(recipe, shape, dtype)
    except HeaderError:
        return None


class BoundText(str):
    """A base64 text of the mark that also holds the callable: JSON stores the text, pickle stores both.

    zarr's sharding codec pickles and copies its inner codecs by `to_dict` and `from_dict`.
    """

    __slots__ = ("function",)
    function: PaddingFunction

    def __new__(cls, text: str, function: PaddingFunction) -> Self:  # noqa: D102 - the class says it
        bound = super().__new__(cls, text)
        bound.function = function
        return bound

    def __getnewargs__(self) -> tuple[str, PaddingFunction]:  # type: ignore[override] # str has no second argument
        return str(self), self.function


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A source of padding: a callable, None if it is not bound, and how it can be made again."""

    function: PaddingFunction | None
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class PaddingNames:
    """The names of a codec and of its three arguments for the padding, for error messages."""

    codec: str
    nbytes: str
    literal: str
    function: str


@dataclass(frozen=True, slots=True)
class Padding:
    """A padding of `nbytes` bytes for every chunk: fixed bytes, zeros if None, or the result of a callable."""

    names: PaddingNames
    nbytes: int
    # Not in the hash, because a callable may be unhashable; equality still compares the callables.
    source: bytes | Dynamic | None = field(hash=False)

    @classmethod
    def parse(cls, names: PaddingNames, nbytes: object, literal: object, function: object) -> Self:
        """Return the padding for the arguments of a codec; raise `CodecConfigError` if one of them is wrong."""
        size = require_integer(names.codec, names.nbytes, nbytes)
        if function is None and isinstance(literal, BoundText):
            function = literal.function
        elif function is not None and literal is not None:
            raise CodecConfigError(names.codec, names.literal, f"None beside {names.function!r}", describe(literal))
        if function is not None:
            if not callable(function):
                raise CodecConfigError(names.codec, names.function, "a callable or None", describe(function))
            require_integer(names.codec, names.nbytes, nbytes, minimum=MIN_DYNAMIC_NBYTES, maximum=MAX_DYNAMIC_NBYTES)
            return cls(names, size, Dynamic(function, function.recipe if isinstance(function, TiffHeader) else None))
        if literal is None:
            return cls(names, size, None)
        content = require_bytes(names.codec, names.literal, literal, nbytes=size, counted_by=names.nbytes)
        if (recorded := _RECORDED.fullmatch(content)) is not None:
            return cls(names, size, Dynamic(None, recorded[1].decode()))
        is_mark = size >= MIN_DYNAMIC_NBYTES and content == dynamic_mark(size)
        return cls(names, size, Dynamic(None) if is_mark else content)

    @property
    def literal(self) -> bytes | None:
        """The fixed padding that is in `zarr.json`; None for zeros."""
        if not isinstance(self.source, Dynamic):
            return self.source
        recipe = self.source.recipe
        return (None if recipe is None else recorded_mark(recipe, self.nbytes)) or dynamic_mark(self.nbytes)

    @property
    def function(self) -> PaddingFunction | None:
        """The callable that makes the padding, None if no callable is bound."""
        return self.source.function if isinstance(self.source, Dynamic) else None

    @property
    def is_dynamic(self) -> bool:
        """Whether a callable makes the padding, bound or not."""
        return isinstance(self.source, Dynamic)

    def to_json(self) -> dict[str, JSON]:
        """Return the members for `zarr.json`: the number of bytes, and the fixed bytes unless they are zeros."""
        members: dict[str, JSON] = {self.names.nbytes: self.nbytes}
        if (literal := self.literal) is not None:
            text = b64encode(literal).decode("ascii")
            members[self.names.literal] = text if self.function is None else BoundText(text, self.function)
        return members

    def __str__(self) -> str:
        """Return the arguments of the codec, for its `repr`."""
        size = f"{self.names.nbytes}={self.nbytes}"
        match self.source:
            case None:
                return size
            case Dynamic(None, str(recipe)):
                return f"{size}, {self.names.function}=<{recipe}>"
            case Dynamic(function):
                return f"{size}, {self.names.function}={'<not bound>' if function is None else function}"
            case literal:
                shown = repr(literal) if len(literal) <= 32 else f"<{len(literal)} bytes>"
                return f"{size}, {self.names.literal}={shown}"

    def require_chunk_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `HeaderError` if the callable is a header for chunks of another shape.

        Codecs before this one may change the order of the axes, so the order is not compared.
        """
        header = self.function
        if isinstance(header, TiffHeader) and sorted(header.shape) != sorted(shape):
            raise HeaderError("TIFF", f"a header for chunks of {shape}", f"one for {header.shape}")

    def around(self, chunk: Buffer, chunk_spec: ArraySpec) -> bytes:
        """Return the padding of this chunk, exactly `nbytes` bytes."""
        match self.source:
            case None:
                try:
                    return bytes(self.nbytes)
                except (MemoryError, OverflowError) as error:
                    expected = f"enough memory for {self.nbytes} bytes of padding"
                    raise CodecError(self.names.codec, expected, "too little") from error
            case Dynamic(function, recipe):
                dtype = chunk_spec.dtype.to_native_dtype()
                if function is None and recipe is not None:
                    function = _make_header(recipe, chunk_spec.shape, dtype.str)
                if function is None:
                    raise UnboundPaddingError(self.names.codec, self.names.function)
                if isinstance(function, TiffHeader):
                    function.require_chunk(chunk_spec.shape, dtype)
                return self._require_made(function(_as_bytes(chunk)))
            case literal:
                return literal

    def _require_made(self, made: object) -> bytes:
        expected = f"{self.nbytes} bytes from {self.names.function!r}, as {self.names.nbytes!r} says"
        try:
            padding = bytes_of(made)
        except (TypeError, ValueError, BufferError) as error:
            raise CodecError(self.names.codec, expected, describe(made)) from error
        if len(padding) != self.nbytes:
            raise CodecError(self.names.codec, expected, f"{len(padding)} bytes")
        return padding


def _as_bytes(chunk: Buffer) -> bytes:
    """Return the chunk as a bytes object, without a copy if it is one, as the results of compressors are."""
    array = chunk.as_numpy_array()
    if isinstance(array.base, bytes) and len(array.base) == array.nbytes and array.strides == (1,):
        return array.base
    return array.tobytes()


class PaddingCodec(BytesBytesCodec):
    """A codec that adds padding before or after the encoded chunk with one copy, and removes it without a copy."""

    is_fixed_size = True
    content: Padding

    @property
    @abstractmethod
    def at_start(self) -> bool:
        """Whether the padding is before the chunk."""

    @abstractmethod
    def bound(self, function: PaddingFunction) -> Self:
        """Return the same codec with `function` as the callable that makes the padding.

        Parameters
        ----------
        function
            A callable that makes the padding of each chunk from its encoded bytes.
        """

    @override
    def validate(
        self, *, shape: tuple[int, ...], dtype: ZDType[TBaseDType, TBaseScalar], chunk_grid: ChunkGridMetadata
    ) -> None:
        if isinstance(chunk_grid, RegularChunkGridMetadata):
            self.content.require_chunk_shape(tuple(chunk_grid.chunk_shape))

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        if self.content.nbytes == 0:
            return chunk_bytes
        buffer = chunk_spec.prototype.buffer
        padding = buffer.from_bytes(self.content.around(chunk_bytes, chunk_spec))
        if self.at_start:
            return padding.combine([chunk_bytes])
        return buffer.from_buffer(chunk_bytes).combine([padding])

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:  # noqa: ARG002 - zarr's signature
        rest = len(chunk_bytes) - self.content.nbytes
        if rest < 0:
            where = "start" if self.at_start else "end"
            expected = f"a stored chunk of at least {self.content.nbytes} bytes (the padding at its {where})"
            raise CodecError(self.content.names.codec, expected, f"{len(chunk_bytes)} bytes")
        return chunk_bytes[self.content.nbytes :] if self.at_start else chunk_bytes[:rest]

    @override
    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        # In a thread: a callable may be slow, or may call zarr, which is not possible on zarr's event loop.
        if self.content.is_dynamic:
            return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)
        return self._encode_sync(chunk_data, chunk_spec)

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_data, chunk_spec)

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length + self.content.nbytes
