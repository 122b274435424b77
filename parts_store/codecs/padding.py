"""The bytes put around an encoded chunk: where they come from, and how they go on and come off.

Decides what padding a chunk gets (zeros, a literal, or what a callable makes of the chunk) and what `zarr.json` says
of it. Does not know how a codec spells its configuration: `pad` and `offset` are two spellings of this.

A callable is never stored. `zarr.json` then holds a mark, cut to size, as the padding: a valid static padding to other
software, and to us the sign that no chunk must be written until a callable is bound again.
"""

import asyncio
from abc import abstractmethod
from base64 import b64encode
from collections import abc
from dataclasses import dataclass, field
from typing import Self, cast, override

from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec
from parts_store.codecs.configuration import bytes_of, require_bytes, require_integer
from parts_store.errors import CodecConfigError, CodecError, UnboundPaddingError, describe

type PaddingFunction = abc.Callable[[bytes], abc.Buffer]
"""Makes a chunk's padding, bytes of any kind, from its encoded bytes."""

# Part of the format: arrays hold it. It begins with control characters, so that no header that anybody would want
# begins like it, and then says what it is to whoever decodes the base64 in `zarr.json`.
DYNAMIC_MARK = b"\x10\x16{made by a callable: parts_store.codecs.bind_padding(array, callable) before writing} "
# One byte of it could be anybody's padding; two can be taken for it only by those who mean it.
MIN_DYNAMIC_NBYTES, MAX_DYNAMIC_NBYTES = 2, 2**26


def dynamic_mark(nbytes: int) -> bytes:
    """The static padding of `nbytes` bytes that stands in `zarr.json` for padding made by a callable."""
    return (DYNAMIC_MARK * -(-nbytes // len(DYNAMIC_MARK)))[:nbytes]


class BoundText(str):
    """The mark's base64 text, with the callable behind it: text to JSON, and both to pickle.

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
    """Padding made by a callable, which is None where it is not bound."""

    function: PaddingFunction | None


@dataclass(frozen=True, slots=True)
class PaddingNames:
    """What a codec calls itself and the three arguments its padding is made of, for messages."""

    codec: str
    nbytes: str
    literal: str
    function: str


@dataclass(frozen=True, slots=True)
class Padding:
    """`nbytes` bytes for every chunk: a literal, zeros where it is None, or what a callable makes."""

    names: PaddingNames
    nbytes: int
    # An unhashable callable must not make the codec unhashable, and equality still tells callables apart.
    source: bytes | Dynamic | None = field(hash=False)

    @classmethod
    def parse(cls, names: PaddingNames, nbytes: object, literal: object, function: object) -> Self:
        """The padding that a codec's arguments describe, or a `CodecConfigError` naming the wrong one."""
        size = require_integer(names.codec, names.nbytes, nbytes)
        if function is None and isinstance(literal, BoundText):
            function = literal.function
        elif function is not None and literal is not None:
            raise CodecConfigError(names.codec, names.literal, f"None beside {names.function!r}", describe(literal))
        if function is not None:
            if not callable(function):
                raise CodecConfigError(names.codec, names.function, "a callable or None", describe(function))
            require_integer(names.codec, names.nbytes, nbytes, minimum=MIN_DYNAMIC_NBYTES, maximum=MAX_DYNAMIC_NBYTES)
            return cls(names, size, Dynamic(function))
        if literal is None:
            return cls(names, size, None)
        content = require_bytes(names.codec, names.literal, literal, nbytes=size, counted_by=names.nbytes)
        is_mark = size >= MIN_DYNAMIC_NBYTES and content == dynamic_mark(size)
        return cls(names, size, Dynamic(None) if is_mark else content)

    @property
    def literal(self) -> bytes | None:
        """The static padding that `zarr.json` holds; None for zeros."""
        return dynamic_mark(self.nbytes) if isinstance(self.source, Dynamic) else self.source

    @property
    def function(self) -> PaddingFunction | None:
        """The callable that makes the padding, if one is bound."""
        return self.source.function if isinstance(self.source, Dynamic) else None

    @property
    def is_dynamic(self) -> bool:
        """Whether a callable makes the padding, bound or not."""
        return isinstance(self.source, Dynamic)

    def to_json(self) -> dict[str, JSON]:
        """The configuration members that `zarr.json` holds: the number of bytes, and the literal unless it is zeros."""
        members: dict[str, JSON] = {self.names.nbytes: self.nbytes}
        if (literal := self.literal) is not None:
            text = b64encode(literal).decode("ascii")
            members[self.names.literal] = text if self.function is None else BoundText(text, self.function)
        return members

    def __str__(self) -> str:
        """The arguments of the codec, as its `repr` shows them."""
        size = f"{self.names.nbytes}={self.nbytes}"
        match self.source:
            case None:
                return size
            case Dynamic(function):
                return f"{size}, {self.names.function}={'<not bound>' if function is None else function}"
            case literal:
                shown = repr(literal) if len(literal) <= 32 else f"<{len(literal)} bytes>"
                return f"{size}, {self.names.literal}={shown}"

    def around(self, chunk: Buffer) -> bytes:
        """The padding of this chunk, exactly `nbytes` bytes."""
        match self.source:
            case None:
                try:
                    return bytes(self.nbytes)
                except (MemoryError, OverflowError) as error:
                    expected = f"room in memory for {self.nbytes} bytes of padding"
                    raise CodecError(self.names.codec, expected, "none") from error
            case Dynamic(None):
                raise UnboundPaddingError(self.names.codec, self.names.function)
            case Dynamic(function):
                return self._require_made(cast("PaddingFunction", function)(_as_bytes(chunk)))
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
    """The chunk as a bytes object, without a copy where it already is one: compressors return such."""
    array = chunk.as_numpy_array()
    if isinstance(array.base, bytes) and len(array.base) == array.nbytes and array.strides == (1,):
        return array.base
    return array.tobytes()


class PaddingCodec(BytesBytesCodec):
    """Puts its padding before or after the encoded chunk, with one copy; takes it off again with none."""

    is_fixed_size = True
    content: Padding

    @property
    @abstractmethod
    def at_start(self) -> bool:
        """Whether the padding comes before the chunk, rather than after it."""

    @abstractmethod
    def bound(self, function: PaddingFunction) -> Self:
        """The same codec, with `function` making the padding of the chunks written through it."""

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        if self.content.nbytes == 0:
            return chunk_bytes
        buffer = chunk_spec.prototype.buffer
        padding = buffer.from_bytes(self.content.around(chunk_bytes))
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
        # A user's callable may take its time, or use zarr itself, which its event loop does not allow.
        if self.content.is_dynamic:
            return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)
        return self._encode_sync(chunk_data, chunk_spec)

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_data, chunk_spec)

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length + self.content.nbytes
