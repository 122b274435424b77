"""The `packbits` codec: elements of a fixed number of bits, packed without gaps.

Decides the order of bits as zarr-extensions has it: elements in C order, the two coefficients of a complex number one
after the other, and within each the least significant bit first; byte `i` of the result holds bits `8 * i` and up,
again from its least significant bit.
"""

import asyncio
import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, Self, assert_never, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import ArrayBytesCodec
from zarr.dtype import ZDType
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec, ChunkGridMetadata, TBaseDType, TBaseScalar
from parts_store.codecs.configuration import read_configuration, require_choice, require_integer
from parts_store.errors import CodecConfigError, CodecError

type PaddingEncoding = Literal["first_byte", "last_byte", "none"]

# The widest component, that of a 64-bit number, has bits 0 to 63.
MAX_BIT = 63

# A chunk is worked on in blocks of this many groups, so that what is in work stays in the processor's cache.
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class BitLayout:
    """Which bits of an element are kept: `first <= i <= last` of each of its components of `width` bits."""

    element: np.dtype[Any]
    component: np.dtype[Any]
    components: int
    width: int
    first: int
    last: int

    @property
    def kept(self) -> int:
        """The number of bits kept of a component."""
        return self.last - self.first + 1

    @property
    def mask(self) -> int:
        """The kept bits, moved to the bottom, all set."""
        return (1 << self.kept) - 1

    @property
    def group(self) -> int:
        """The smallest number of components whose kept bits fill whole bytes."""
        return 8 // math.gcd(self.kept, 8)

    @property
    def pattern(self) -> np.dtype[Any]:
        """The unsigned integer that holds a component's bits."""
        return np.dtype(f"<u{self.component.itemsize}")

    @property
    def is_signed(self) -> bool:
        """Whether decoding repeats the highest kept bit up to the component's width."""
        return self.component.kind == "i"

    def encoded_nbytes(self, elements: int) -> int:
        """The bytes that so many elements need."""
        return -(-elements * self.components * self.kept // 8)

    def padding_bits(self, elements: int) -> int:
        """The unused bits at the end of them."""
        return -elements * self.components * self.kept % 8


def pack(components: NDArray[Any], layout: BitLayout) -> NDArray[np.uint8]:
    """The kept bits of little-endian components, packed."""
    if layout.width == 1:
        return np.packbits(components.view(np.uint8), bitorder="little")
    if layout.kept == layout.width:
        return components.view(np.uint8)
    group, nbytes = layout.group, layout.group * layout.kept // 8
    groups = -(-len(components) // group)
    packed = np.empty((groups, nbytes), np.uint8)
    for start in range(0, groups, BLOCK):
        stop = min(start + BLOCK, groups)
        patterns = _whole_groups(components[start * group : stop * group].view(layout.pattern), group)
        patterns = (patterns >> layout.first) & layout.mask
        for byte in range(nbytes):
            # The elements that have bits in this byte, shifted to where it begins; what lies above it falls away.
            touching = range(byte * 8 // layout.kept, min(group, (byte * 8 + 7) // layout.kept + 1))
            shifted = [_shift(patterns[:, each], each * layout.kept - byte * 8) for each in touching]
            packed[start:stop, byte] = functools.reduce(np.bitwise_or, shifted)
    return packed.reshape(-1)[: -(-len(components) * layout.kept // 8)]


def unpack(packed: NDArray[np.uint8], count: int, layout: BitLayout) -> NDArray[Any]:
    """`count` little-endian components from their packed bits; the bits not kept are zero, or the sign."""
    if layout.width == 1:
        return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
    if layout.kept == layout.width:
        return packed.view(layout.component)
    group, nbytes = layout.group, layout.group * layout.kept // 8
    groups = -(-count // group)
    patterns = np.empty((groups, group), layout.pattern)
    for start in range(0, groups, BLOCK):
        stop = min(start + BLOCK, groups)
        block = _whole_groups(packed[start * nbytes : stop * nbytes], nbytes).astype(layout.pattern)
        for each in range(group):
            holding = range(each * layout.kept // 8, ((each + 1) * layout.kept - 1) // 8 + 1)
            shifted = [_shift(block[:, byte], byte * 8 - each * layout.kept) for byte in holding]
            patterns[start:stop, each] = functools.reduce(np.bitwise_or, shifted)
        _place(patterns[start:stop], layout)
    return patterns.reshape(-1)[:count].view(layout.component)


def _whole_groups(values: NDArray[Any], length: int) -> NDArray[Any]:
    """The values in rows of `length`, the last row filled up with zeros."""
    if missing := -len(values) % length:
        values = np.concatenate([values, np.zeros(missing, values.dtype)])
    return values.reshape(-1, length)


def _shift(values: NDArray[Any], bits: int) -> NDArray[Any]:
    return values << bits if bits > 0 else values >> -bits


def _place(patterns: NDArray[Any], layout: BitLayout) -> None:
    """Moves kept bits from the bottom to where they belong, in place, and extends the sign of signed integers."""
    above = layout.width - layout.kept
    patterns <<= above
    # NumPy shifts signed integers arithmetically: the sign is repeated.
    extended = patterns.view(layout.component) if layout.is_signed else patterns
    extended >>= above
    patterns <<= layout.first


@dataclass(frozen=True, init=False)
class PackBitsCodec(ArrayBytesCodec):
    """Packs booleans to one bit each, and other numbers to the bits that are kept of them.

    Parameters
    ----------
    padding_encoding
        Whether, and where, one byte tells the number of unused bits at the end: `"first_byte"`, `"last_byte"`, or
        `"none"`.
    first_bit, last_bit
        The lowest and the highest bit kept of each element, both inclusive, counted from the least significant; None
        is the lowest and the highest there is. For complex numbers they apply to each coefficient.
    """

    is_fixed_size = True

    padding_encoding: PaddingEncoding
    first_bit: int | None
    last_bit: int | None

    def __init__(
        self,
        *,
        padding_encoding: PaddingEncoding = "none",
        first_bit: int | None = None,
        last_bit: int | None = None,
    ) -> None:
        places: tuple[PaddingEncoding, ...] = ("first_byte", "last_byte", "none")
        place = require_choice("packbits", "padding_encoding", padding_encoding, places)
        first = None if first_bit is None else require_integer("packbits", "first_bit", first_bit, maximum=MAX_BIT)
        last = None if last_bit is None else require_integer("packbits", "last_bit", last_bit, maximum=MAX_BIT)
        if last is not None and first is not None and last < first:
            raise CodecConfigError("packbits", "last_bit", f"at least 'first_bit', which is {first}", str(last))
        object.__setattr__(self, "padding_encoding", place)
        object.__setattr__(self, "first_bit", first)
        object.__setattr__(self, "last_bit", last)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        optional = ("padding_encoding", "first_bit", "last_bit")
        return cls(**read_configuration(data, "packbits", optional=optional))

    @override
    def to_dict(self) -> dict[str, JSON]:
        bits = {"first_bit": self.first_bit, "last_bit": self.last_bit}
        chosen: dict[str, JSON] = {name: bit for name, bit in bits.items() if bit is not None}
        return {"name": "packbits", "configuration": {"padding_encoding": self.padding_encoding, **chosen}}

    def layout(self, dtype: ZDType[TBaseDType, TBaseScalar]) -> BitLayout:
        """Which bits are kept of this data type, or a `CodecConfigError` if it has none to pack."""
        native = dtype.to_native_dtype()
        if native.kind not in "biufc":
            raise CodecConfigError("packbits", "data_type", "a boolean or a number", str(native))
        element = native.newbyteorder("<")
        match element.kind:
            case "b":
                component, components, width = element, 1, 1
            case "c":
                component, components, width = np.dtype(f"<f{element.itemsize // 2}"), 2, element.itemsize * 4
            case _:
                component, components, width = element, 1, element.itemsize * 8
        first = self.first_bit or 0
        last = width - 1 if self.last_bit is None else self.last_bit
        for member, bit in (("first_bit", first), ("last_bit", last)):
            if bit >= width:
                raise CodecConfigError("packbits", member, f"at most {width - 1} for {element.name}", str(bit))
        return BitLayout(element, component, components, width, first, last)

    @override
    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        # Inside a shard zarr calls this and not `validate`.
        self.layout(array_spec.dtype)
        return self

    @override
    def validate(
        self,
        *,
        shape: tuple[int, ...],
        dtype: ZDType[TBaseDType, TBaseScalar],
        chunk_grid: ChunkGridMetadata,
    ) -> None:
        self.layout(dtype)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        layout = self.layout(chunk_spec.dtype)
        # zarr: elements in C order, whatever the order in memory.
        elements = np.ascontiguousarray(chunk_array.as_numpy_array(), dtype=layout.element).reshape(-1)
        packed = pack(elements.view(layout.component), layout)
        padding_bits = np.array([layout.padding_bits(len(elements))], np.uint8)
        match self.padding_encoding:
            case "first_byte":
                packed = np.concatenate([padding_bits, packed])
            case "last_byte":
                packed = np.concatenate([packed, padding_bits])
            case "none":
                pass
            case never:
                assert_never(never)
        return chunk_spec.prototype.buffer.from_bytes(packed.data)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        layout = self.layout(chunk_spec.dtype)
        count = math.prod(chunk_spec.shape)
        data = chunk_bytes.as_numpy_array()
        expected = layout.encoded_nbytes(count) + self._padding_nbytes
        if len(data) != expected:
            raise CodecError("packbits", f"{expected} bytes for {count} elements", f"{len(data)} bytes")
        match self.padding_encoding:
            case "first_byte":
                padding_bits, packed = int(data[0]), data[1:]
            case "last_byte":
                padding_bits, packed = int(data[-1]), data[:-1]
            case "none":
                padding_bits, packed = layout.padding_bits(count), data
            case never:
                assert_never(never)
        if padding_bits != layout.padding_bits(count):
            raise CodecError(
                "packbits", f"{layout.padding_bits(count)} padding bits for {count} elements", f"{padding_bits}"
            )
        array = unpack(packed, count * layout.components, layout).view(layout.element).reshape(chunk_spec.shape)
        native = array.astype(chunk_spec.dtype.to_native_dtype(), copy=False)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(native)

    @override
    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    @property
    def _padding_nbytes(self) -> int:
        return 0 if self.padding_encoding == "none" else 1

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        layout = self.layout(chunk_spec.dtype)
        return layout.encoded_nbytes(input_byte_length // layout.element.itemsize) + self._padding_nbytes
