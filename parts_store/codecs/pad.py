"""The `pad` codec, and what it shares with `offset`: padding of zeros, of fixed bytes, or made by a callable.

A callable is never stored. In its place `zarr.json` has a mark of the size of the padding. For other software the
mark is a valid fixed padding. For this package it means that no chunk may be written until a callable is bound again
with `bind_padding`. The mark of a header of this package says how to make it, so that it is bound when a chunk is
written.
"""

import asyncio
import re
from base64 import b64encode
from collections import abc
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, Self, cast, override

import zarr
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import ShardingCodec
from zarr.dtype import ZDType
from zarr.types import JSON

from parts_store._compat.zarr import (
    ArraySpec,
    ArrayV3Metadata,
    ChunkGridMetadata,
    RegularChunkGridMetadata,
    TBaseDType,
    TBaseScalar,
)
from parts_store.codecs.configuration import (
    bytes_of,
    read_configuration,
    require_bytes,
    require_choice,
    require_integer,
)
from parts_store.errors import CodecConfigError, CodecError, HeaderError, UnboundPaddingError, describe
from parts_store.headers import TiffHeader

type Location = Literal["start", "end"]

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


def _mark_for(function: object, nbytes: int) -> bytes:
    """Return the mark for a callable: with the recipe of a header, if it has one that is short enough."""
    if isinstance(function, TiffHeader):
        mark = f"\x10\x16{{made by parts_store.headers: {function.recipe}}}".encode().ljust(nbytes)
        if len(mark) == nbytes:
            return mark
    return dynamic_mark(nbytes)


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


class PaddingNames(NamedTuple):
    """The names of a codec and of its arguments, for error messages and `zarr.json`."""

    codec: str
    nbytes: str
    literal: str
    function: str
    # Further members of the configuration, which are required.
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Padding:
    """A padding of `nbytes` bytes for every chunk: fixed bytes, zeros if None, or the result of a callable."""

    names: PaddingNames
    nbytes: int
    # The fixed padding that is in `zarr.json`: None for zeros, a mark if a callable makes the padding.
    literal: bytes | None = None
    # The callable that is bound, if any. Not in the hash, because a callable may be unhashable; equality compares it.
    function: PaddingFunction | None = field(default=None, hash=False)
    # Whether a callable makes the padding, bound or not.
    is_dynamic: bool = False

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
            return cls(names, size, _mark_for(function, size), function, is_dynamic=True)
        if literal is None:
            return cls(names, size)
        content = require_bytes(names.codec, names.literal, literal, nbytes=size, counted_by=names.nbytes)
        is_mark = size >= MIN_DYNAMIC_NBYTES and content == dynamic_mark(size)
        return cls(names, size, content, is_dynamic=is_mark or _RECORDED.fullmatch(content) is not None)

    @property
    def _recipe(self) -> str | None:
        """The text in the mark by which the header can be made again."""
        recorded = _RECORDED.fullmatch(self.literal or b"")
        return None if recorded is None else recorded[1].decode()

    def to_json(self) -> dict[str, JSON]:
        """Return the members for `zarr.json`: the number of bytes, and the fixed bytes unless they are zeros."""
        members: dict[str, JSON] = {self.names.nbytes: self.nbytes}
        if self.literal is not None:
            text = b64encode(self.literal).decode("ascii")
            members[self.names.literal] = text if self.function is None else BoundText(text, self.function)
        return members

    def __str__(self) -> str:
        """Return the arguments of the codec, for its `repr`."""
        size = f"{self.names.nbytes}={self.nbytes}"
        if self.literal is None:
            return size
        if self.is_dynamic:
            unbound = f"<{self._recipe or 'not bound'}>"
            return f"{size}, {self.names.function}={unbound if self.function is None else self.function}"
        shown = repr(self.literal) if self.nbytes <= 32 else f"<{self.nbytes} bytes>"
        return f"{size}, {self.names.literal}={shown}"

    def around(self, chunk: Buffer, chunk_spec: ArraySpec) -> bytes:
        """Return the padding of this chunk, exactly `nbytes` bytes."""
        if self.is_dynamic:
            return self._make(chunk, chunk_spec)
        if self.literal is not None:
            return self.literal
        try:
            return bytes(self.nbytes)
        except (MemoryError, OverflowError) as error:
            expected = f"enough memory for {self.nbytes} bytes of padding"
            raise CodecError(self.names.codec, expected, "too little") from error

    def _make(self, chunk: Buffer, chunk_spec: ArraySpec) -> bytes:
        """Return what the callable makes for this chunk; raise `CodecError` unless it has the right size."""
        function, dtype = self.function, chunk_spec.dtype.to_native_dtype()
        if function is None and (recipe := self._recipe) is not None:
            function = _make_header(recipe, chunk_spec.shape, dtype.str)
        if function is None:
            raise UnboundPaddingError(self.names.codec, self.names.function)
        if isinstance(function, TiffHeader):
            function.require_chunk(chunk_spec.shape, dtype)
        made = function(_as_bytes(chunk))
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
    names: ClassVar[PaddingNames]
    content: Padding
    location: Location

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        names = cls.names
        required = (*names.others, names.nbytes)
        members = read_configuration(data, names.codec, required=required, optional=(names.literal,))
        if not isinstance(text := members.get(names.literal, ""), str):
            raise CodecConfigError(names.codec, names.literal, "base64 text", describe(text))
        return cls(**members)

    def bound(self, function: PaddingFunction) -> Self:
        """Return the same codec with `function` as the callable that makes the padding.

        Parameters
        ----------
        function
            A callable that makes the padding of each chunk from its encoded bytes.
        """
        codec = copy(self)
        object.__setattr__(codec, "content", Padding.parse(self.names, self.content.nbytes, None, function))
        return codec

    @override
    def validate(
        self, *, shape: tuple[int, ...], dtype: ZDType[TBaseDType, TBaseScalar], chunk_grid: ChunkGridMetadata
    ) -> None:
        # Codecs before this one may change the order of the axes, so the order is not compared.
        header = self.content.function
        if isinstance(header, TiffHeader) and isinstance(chunk_grid, RegularChunkGridMetadata):
            chunk_shape = tuple(chunk_grid.chunk_shape)
            if sorted(header.shape) != sorted(chunk_shape):
                raise HeaderError("TIFF", f"a header for chunks of {chunk_shape}", f"one for {header.shape}")

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        if self.content.nbytes == 0:
            return chunk_bytes
        buffer = chunk_spec.prototype.buffer
        padding = buffer.from_bytes(self.content.around(chunk_bytes, chunk_spec))
        if self.location == "start":
            return padding.combine([chunk_bytes])
        return buffer.from_buffer(chunk_bytes).combine([padding])

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:  # noqa: ARG002 - zarr's signature
        rest = len(chunk_bytes) - self.content.nbytes
        if rest < 0:
            expected = f"a stored chunk of at least {self.content.nbytes} bytes (the padding at its {self.location})"
            raise CodecError(self.names.codec, expected, f"{len(chunk_bytes)} bytes")
        return chunk_bytes[self.content.nbytes :] if self.location == "start" else chunk_bytes[:rest]

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


@dataclass(frozen=True, init=False, repr=False)
class PadCodec(PaddingCodec):
    """A codec that adds `nbytes` bytes at the start or the end of every encoded chunk, and skips them when reading.

    Parameters
    ----------
    location
        Where the padding is: `"start"` or `"end"`.
    nbytes
        The number of bytes.
    padding
        The bytes, or their base64 text; zeros if None. Their number must be `nbytes`.
    padding_func
        A callable that makes the padding of each chunk from its encoded bytes. It must return exactly `nbytes` bytes.
        It is pickled with the array, and never stored: see `bind_padding`.

    Raises
    ------
    CodecConfigError
        If an argument is wrong.

    Examples
    --------
    >>> codec = ps.codecs.PadCodec("end", nbytes=2, padding=b"ab")
    >>> array = zarr.create_array({}, shape=(4,), dtype="uint8", compressors=[codec])
    >>> array[:] = 7
    >>> array[:].tolist()
    [7, 7, 7, 7]
    """

    location: Location
    content: Padding

    names = PaddingNames("pad", "nbytes", "padding", "padding_func", ("location",))

    def __init__(
        self,
        location: Location,
        *,
        nbytes: int,
        padding: abc.Buffer | str | None = None,
        padding_func: PaddingFunction | None = None,
    ) -> None:
        object.__setattr__(self, "location", require_choice("pad", "location", location, ("start", "end")))
        object.__setattr__(self, "content", Padding.parse(self.names, nbytes, padding, padding_func))

    @property
    def nbytes(self) -> int:
        """The number of bytes that every chunk is padded with."""
        return self.content.nbytes

    @property
    def padding(self) -> bytes | None:
        """The padding that is in `zarr.json`; None if it is zeros; with a callable, a mark that stands for it."""
        return self.content.literal

    @property
    def padding_func(self) -> PaddingFunction | None:
        """The callable that makes the padding, None if no callable is bound."""
        return self.content.function

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": "pad", "configuration": {"location": self.location, **self.content.to_json()}}

    def __repr__(self) -> str:
        return f"PadCodec({self.location!r}, {self.content})"


def pad_codec(
    nbytes: int,
    *,
    location: Location = "start",
    padding: abc.Buffer | str | None = None,
    padding_func: PaddingFunction | None = None,
) -> PadCodec:
    """Return a `PadCodec`, with the padding at the start by default.

    Parameters
    ----------
    nbytes
        The number of bytes.
    location
        Where the padding is: `"start"` or `"end"`.
    padding
        The bytes, or their base64 text; zeros if None. Their number must be `nbytes`.
    padding_func
        A callable that makes the padding of each chunk from its encoded bytes. It must return exactly `nbytes` bytes.
        It is pickled with the array, and never stored: see `bind_padding`.

    Returns
    -------
    PadCodec
        The codec, to be used as the last of the `compressors` of an array.

    Examples
    --------
    >>> header = ps.headers.tiff(shape=(64, 64), dtype="uint16")
    >>> codec = ps.codecs.pad_codec(nbytes=len(header), padding=header)
    >>> image = zarr.create_array({}, shape=(128, 128), chunks=(64, 64), dtype="uint16", compressors=[codec])
    """
    return PadCodec(location, nbytes=nbytes, padding=padding, padding_func=padding_func)


def bind_padding(array: zarr.Array, *functions: PaddingFunction) -> zarr.Array:  # type: ignore[type-arg]
    """Return the same array with `functions` as the callables that make the padding of its chunks.

    The padding that a callable makes is stored with each chunk. The callable itself is not stored. An array that is
    opened again can be read immediately. Before it can be written, its callables have to be bound.

    Parameters
    ----------
    array
        An open array. It is not changed, and nothing is stored.
    *functions
        One callable for each codec whose padding is made by a callable, in the order of the codecs. For a sharded
        array, the inner codecs come first, then the codecs of the index.

    Returns
    -------
    zarr.Array
        An array that can be written.

    Raises
    ------
    TypeError
        If `array` is not a zarr array.
    ValueError
        If the number of callables is not the number of such codecs.

    Examples
    --------
    >>> header = ps.headers.TiffHeader((64, 64), dtype="uint8", compression="zstd")
    >>> codecs = [zarr.codecs.ZstdCodec(), ps.codecs.pad_codec(header.nbytes, padding_func=header)]
    >>> created = zarr.create_array("tiles.zarr", shape=(64, 64), chunks=(64, 64), dtype="uint8", compressors=codecs)
    >>> array = ps.codecs.bind_padding(zarr.open_array("tiles.zarr"), header)
    >>> array[:] = 1
    """
    if not isinstance(array, zarr.Array):
        raise TypeError(f"expected a zarr.Array, found {array!r}")
    metadata = array.metadata
    codecs = metadata.codecs if isinstance(metadata, ArrayV3Metadata) else ()
    count = sum(_count_dynamic(codec) for codec in codecs)
    if count == 0:
        raise ValueError(f"array {array.name!r} has no codec whose padding is made by a callable")
    if count != len(functions):
        raise ValueError(f"array {array.name!r}: expected {count} callables, found {len(functions)}")
    remaining = iter(functions)
    bound = replace(cast("ArrayV3Metadata", metadata), codecs=tuple(_bind(codec, remaining) for codec in codecs))
    return type(array)(replace(array.async_array, metadata=bound))


def _count_dynamic(codec: Codec) -> int:
    match codec:
        case PaddingCodec():
            return int(codec.content.is_dynamic)
        case ShardingCodec():
            return sum(_count_dynamic(inner) for inner in (*codec.codecs, *codec.index_codecs))
        case _:
            return 0


def _bind(codec: Codec, functions: Iterator[PaddingFunction]) -> Codec:
    match codec:
        case PaddingCodec() if codec.content.is_dynamic:
            return codec.bound(next(functions))
        case ShardingCodec():
            inner = tuple(_bind(each, functions) for each in codec.codecs)
            index = tuple(_bind(each, functions) for each in codec.index_codecs)
            return replace(codec, codecs=inner, index_codecs=index)
        case _:
            return codec
