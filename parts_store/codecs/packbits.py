"""The `packbits` codec: elements of a fixed number of bits, packed without gaps.

The order of the bits is that of the specification in zarr-extensions: elements in C order, the two coefficients of a
complex number one after the other, and in each of them the least significant bit first. Byte `i` of the result holds
the bits from `8 * i` on, starting at its least significant bit.
"""

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

from parts_store._compat.zarr import ArraySpec, ChunkGridMetadata, TBaseDType, TBaseScalar, ThreadedCodec
from parts_store.codecs.configuration import read_configuration, require_choice, require_integer
from parts_store.errors import CodecConfigError, CodecError

type PaddingEncoding = Literal["first_byte", "last_byte", "none"]

# The widest component has 64 bits.
MAX_BIT = 63

# A chunk is processed in blocks of this many groups, so that a block stays in the processor's cache.
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class BitLayout:
    """A choice of the bits that are stored: `first <= i <= last` of each component of `width` bits."""

    element: np.dtype[Any]
    component: np.dtype[Any]
    components: int
    width: int
    first: int
    last: int

    @property
    def kept(self) -> int:
        """The number of bits of a component that are stored."""
        return self.last - self.first + 1

    @property
    def mask(self) -> int:
        """A mask of as many low bits as are stored."""
        return (1 << self.kept) - 1

    @property
    def group(self) -> int:
        """The smallest number of components whose stored bits fill whole bytes."""
        return 8 // math.gcd(self.kept, 8)

    @property
    def pattern(self) -> np.dtype[Any]:
        """The unsigned integer type with the size of a component."""
        return np.dtype(f"<u{self.component.itemsize}")

    @property
    def is_signed(self) -> bool:
        """Whether decoding extends the sign: it repeats the highest stored bit up to the component's width."""
        return self.component.kind == "i"

    def encoded_nbytes(self, elements: int) -> int:
        """Return the number of bytes for this many elements."""
        return -(-elements * self.components * self.kept // 8)

    def padding_bits(self, elements: int) -> int:
        """Return the number of unused bits in the last byte of this many elements."""
        return -elements * self.components * self.kept % 8


def pack(components: NDArray[Any], layout: BitLayout) -> NDArray[np.uint8]:
    """Return the packed bits of little-endian components."""
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
            # The elements that have bits in this byte, shifted to its start. The assignment drops higher bits.
            touching = range(byte * 8 // layout.kept, min(group, (byte * 8 + 7) // layout.kept + 1))
            shifted = [_shift(patterns[:, each], each * layout.kept - byte * 8) for each in touching]
            packed[start:stop, byte] = functools.reduce(np.bitwise_or, shifted)
    return packed.reshape(-1)[: -(-len(components) * layout.kept // 8)]


def unpack(packed: NDArray[np.uint8], count: int, layout: BitLayout) -> NDArray[Any]:
    """Return `count` little-endian components from packed bits; bits that were not stored are zero, or the sign."""
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
    """Return the values in rows of `length`, with zeros at the end of the last row."""
    if missing := -len(values) % length:
        values = np.concatenate([values, np.zeros(missing, values.dtype)])
    return values.reshape(-1, length)


def _shift(values: NDArray[Any], bits: int) -> NDArray[Any]:
    return values << bits if bits > 0 else values >> -bits


def _place(patterns: NDArray[Any], layout: BitLayout) -> None:
    """Move the stored bits from the lowest position to their own, in place, and extend the sign."""
    above = layout.width - layout.kept
    patterns <<= above
    # NumPy shifts signed integers arithmetically: the sign is repeated.
    extended = patterns.view(layout.component) if layout.is_signed else patterns
    extended >>= above
    patterns <<= layout.first


@dataclass(frozen=True, init=False)
class PackBitsCodec(ThreadedCodec, ArrayBytesCodec):
    """A codec that packs booleans into one bit each, and numbers into a chosen range of their bits.

    Parameters
    ----------
    padding_encoding
        Where one byte stores the number of unused bits at the end: `"first_byte"`, `"last_byte"` or `"none"`.
    first_bit, last_bit
        The lowest and the highest bit of each element that is stored, both inclusive, counted from the least
        significant bit. None is the lowest and the highest bit of the data type. For complex numbers they apply to
        each coefficient.

    Raises
    ------
    CodecConfigError
        If an argument is wrong, or does not fit the data type of the array.

    Examples
    --------
    >>> array = zarr.create_array({}, shape=(8,), dtype="bool", serializer=ps.codecs.PackBitsCodec(), compressors=None)
    >>> array[:] = [1, 1, 0, 0, 0, 0, 0, 1]
    >>> array[:3].tolist()
    [True, True, False]
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
        """Return which bits of this data type are stored; raise `CodecConfigError` if it cannot be packed.

        Parameters
        ----------
        dtype
            The data type of an array, as zarr describes it.
        """
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
        # Inside a shard, zarr calls this method and not `validate`.
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
        # The specification requires C order, also if the order in memory is another.
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

    @property
    def _padding_nbytes(self) -> int:
        return 0 if self.padding_encoding == "none" else 1

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        layout = self.layout(chunk_spec.dtype)
        return layout.encoded_nbytes(input_byte_length // layout.element.itemsize) + self._padding_nbytes
