"""The bytes put around an encoded chunk: where they come from, and how they go on and come off.

Decides what padding a chunk gets (zeros, a literal, or what a callable makes of the chunk) and what `zarr.json` says
of it. Does not know how a codec spells its configuration: `pad` and `offset` are two spellings of this.

A callable is never stored. `zarr.json` then holds `DYNAMIC_MARK`, cut to size, as the padding: a valid static padding
to other software, and to us the sign that a chunk must not be written until a callable is bound again.
"""

from abc import abstractmethod
from base64 import b64encode
from collections import abc
from dataclasses import dataclass, field
from typing import Self, override

from zarr.abc.codec import BytesBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.core.common import JSON

from parts_store.codecs.configuration import require_bytes, require_integer
from parts_store.errors import CodecConfigError, CodecError, UnboundPaddingError, describe

type PaddingFunction = abc.Callable[[bytes], abc.Buffer]
"""Makes a chunk's padding, bytes of any kind, from its encoded bytes."""

DYNAMIC_MARK = b"{made by a callable: parts_store.codecs.bind_padding(array, callable) before writing} "


def dynamic_mark(nbytes: int) -> bytes:
    """The static padding of `nbytes` bytes that stands in `zarr.json` for padding made by a callable."""
    return (DYNAMIC_MARK * -(-nbytes // len(DYNAMIC_MARK)))[:nbytes]


@dataclass(frozen=True, slots=True)
class PaddingNames:
    """What a codec calls itself and the three arguments its padding is made of, for messages."""

    codec: str
    nbytes: str
    literal: str
    function: str


@dataclass(frozen=True, slots=True)
class Padding:
    """`nbytes` bytes for every chunk: a literal, zeros where that is None, or a callable's where `is_dynamic`."""

    names: PaddingNames
    nbytes: int
    literal: bytes | None
    # An unhashable callable must not make the codec unhashable, and equality still tells callables apart.
    function: PaddingFunction | None = field(hash=False)

    @classmethod
    def parse(cls, names: PaddingNames, nbytes: object, literal: object, function: object) -> Self:
        """The padding that a codec's arguments describe, or a `CodecConfigError` naming the wrong one."""
        size = require_integer(names.codec, names.nbytes, nbytes)
        if function is None:
            if literal is not None:
                literal = require_bytes(names.codec, names.literal, literal, nbytes=size, counted_by=names.nbytes)
            return cls(names, size, literal, None)
        if not callable(function):
            raise CodecConfigError(names.codec, names.function, "a callable or None", describe(function))
        if literal is not None:
            raise CodecConfigError(names.codec, names.literal, f"None beside {names.function!r}", describe(literal))
        return cls(names, size, dynamic_mark(size), function)

    @property
    def is_dynamic(self) -> bool:
        """Whether a callable makes the padding, bound or not."""
        return self.nbytes > 0 and self.literal == dynamic_mark(self.nbytes)

    def to_json(self) -> dict[str, JSON]:
        """The configuration members that `zarr.json` holds: the number of bytes, and the literal unless it is zeros."""
        members: dict[str, JSON] = {self.names.nbytes: self.nbytes}
        if self.literal is not None:
            members[self.names.literal] = b64encode(self.literal).decode("ascii")
        return members

    def __str__(self) -> str:
        """The arguments of the codec, as its `repr` shows them."""
        size = f"{self.names.nbytes}={self.nbytes}"
        if self.is_dynamic:
            return f"{size}, {self.names.function}={self.function or '<not bound>'}"
        return size if self.literal is None else f"{size}, {self.names.literal}={describe(self.literal)}"

    def around(self, chunk: Buffer) -> bytes:
        """The padding of this chunk, exactly `nbytes` bytes."""
        if not self.is_dynamic:
            return bytes(self.nbytes) if self.literal is None else self.literal
        if self.function is None:
            raise UnboundPaddingError(self.names.codec, self.names.function)
        made: object = self.function(_as_bytes(chunk))
        expected = f"{self.nbytes} bytes from {self.names.function!r}, as {self.names.nbytes!r} says"
        if not isinstance(made, abc.Buffer):
            raise CodecError(self.names.codec, expected, describe(made))
        padding = bytes(made)
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
        padding = chunk_spec.prototype.buffer.from_bytes(self.content.around(chunk_bytes))
        return padding.combine([chunk_bytes]) if self.at_start else chunk_bytes.combine([padding])

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:  # noqa: ARG002 - zarr's signature
        rest = len(chunk_bytes) - self.content.nbytes
        if rest < 0:
            where = "start" if self.at_start else "end"
            expected = f"a stored chunk of at least {self.content.nbytes} bytes (the padding at its {where})"
            raise CodecError(self.content.names.codec, expected, f"{len(chunk_bytes)} bytes")
        return chunk_bytes[self.content.nbytes :] if self.at_start else chunk_bytes[:rest]

    @override
    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._encode_sync(chunk_data, chunk_spec)

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_data, chunk_spec)

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length + self.content.nbytes
