"""Read what the `attributes.json` of an N5 dataset says: its shape, blocks, data type, compression and axes.

The axes of N5 are in the order in which they vary in a block, the fastest first: x, y, z. z5py, and zarr 2 before it,
show a dataset with the axes reversed: z, y, x.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from parts_store.errors import describe
from parts_store.virtual.description import CannotBeReadError, Header, Json
from parts_store.virtual.store_access import n5_nbytes, parse_integer

_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")


def _compressor_of(attributes: Mapping[str, Any]) -> Json | None:
    """Return the codec for the compression in the attributes of a dataset; None if it is not compressed.

    Levels and the like matter only for writing, so a value out of range is replaced. Raises `CannotBeReadError` if
    there is no codec.
    """
    # The first version of N5 had the name only.
    given = attributes.get("compression", attributes.get("compressionType"))
    compression = {"type": given} if isinstance(given, str) else given
    if not isinstance(compression, dict) or not isinstance(compression.get("type"), str):
        raise CannotBeReadError(f"expected a `compression` with a `type`, found {str(given)[:100]!r}")
    match compression["type"]:
        case "raw":
            return None
        case "gzip":
            level = _number(compression, "level", 0, 9, 5)
            name = "numcodecs.zlib" if compression.get("useZlib") is True else "gzip"
            return {"name": name, "configuration": {"level": level}}
        case "zstd":
            level = _number(compression, "level", -131072, 22, 3)
            return {"name": "zstd", "configuration": {"level": level, "checksum": False}}
        case "bzip2":
            return {"name": "numcodecs.bz2", "configuration": {"level": _number(compression, "blockSize", 1, 9, 9)}}
        case "xz":
            return {"name": "numcodecs.lzma", "configuration": {"preset": _number(compression, "preset", 0, 9, 6)}}
        case "lz4":
            return {"name": "parts_store.n5_lz4", "configuration": {}}
        case "blosc":
            return {"name": "blosc", "configuration": _blosc(compression)}
        case other:
            raise CannotBeReadError(f"a compression that Zarr has no codec for: {other[:100]}")


def _blosc(compression: Mapping[str, Any]) -> Json:
    """Return the configuration of blosc. It matters only for writing: each block contains its own."""
    name = compression.get("cname", "blosclz")
    if name not in _BLOSC_COMPRESSORS:
        raise CannotBeReadError(f"a compression that Zarr has no codec for: blosc with {str(name)[:100]}")
    return {
        "cname": name,
        "clevel": _number(compression, "clevel", 0, 9, 5),
        "shuffle": _BLOSC_SHUFFLES[_number(compression, "shuffle", 0, 2, 1)],
        "typesize": _number(compression, "typesize", 1, 255, 1),
        "blocksize": _number(compression, "blocksize", 0, 2**31 - 1, 0),
    }


def _number(compression: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    """Return a member that is an integer in a range; the default if it is anything else."""
    value = compression.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else default


ATTRIBUTES: Final = "attributes.json"
VERSION: Final = "n5"
# The attributes that describe the dataset. All others are the attributes of the Zarr array.
_DESCRIBING: Final = ("dimensions", "blockSize", "dataType", "compression", "compressionType", VERSION)
_TYPES: Final = (*("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64"),)
# NumPy has up to 64 axes, but some of its functions crash with more than 32.
_MAX_AXES: Final = 32
_MAX_LENGTH: Final = 2**63 - 1
# A block is an array of Java, whose length has 31 bits.
_MAX_ELEMENTS: Final = 2**31 - 1


def parse_attributes(data: bytes) -> dict[str, Any]:
    """Return the attributes in a file; raise `CannotBeReadError` unless it contains a JSON object."""
    try:
        # JSON has no NaN and no infinity, but some programs write them.
        found = json.loads(data, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise CannotBeReadError(f"its {ATTRIBUTES} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CannotBeReadError(f"its {ATTRIBUTES} is not a JSON object, but a {type(found).__name__}")
    return found


def is_dataset(attributes: Mapping[str, Any]) -> bool:
    """Return whether these are the attributes of a dataset, and not of a group."""
    return "dimensions" in attributes and "dataType" in attributes


def is_n5(attributes: Mapping[str, Any]) -> bool:
    """Return whether these are the attributes of a dataset or of the root of a container."""
    return VERSION in attributes or (is_dataset(attributes) and "blockSize" in attributes)


def own_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes without those that describe the container or the dataset."""
    hidden = _DESCRIBING if is_dataset(attributes) else (VERSION,)
    return {name: value for name, value in attributes.items() if name not in hidden}


@dataclass(frozen=True, slots=True)
class N5Dataset:
    """An N5 dataset, with its axes in the order of N5."""

    dimensions: tuple[int, ...]
    block_size: tuple[int, ...]
    dtype: np.dtype[Any]
    # The codec for the compression, None if blocks are not compressed.
    compressor: Json | None
    axes: tuple[str, ...] | None
    attributes: Mapping[str, Any]

    @classmethod
    def from_json(cls, attributes: Mapping[str, Any]) -> "N5Dataset":
        """Return the dataset with these attributes; raise `CannotBeReadError` if it cannot be read as Zarr."""
        dimensions = _lengths(attributes, "dimensions", 0, _MAX_LENGTH)
        block_size = _lengths(attributes, "blockSize", 1, _MAX_ELEMENTS)
        if len(block_size) != len(dimensions):
            raise CannotBeReadError(f"{len(dimensions)} `dimensions`, and a `blockSize` of {len(block_size)}")
        if math.prod(block_size) > _MAX_ELEMENTS:
            raise CannotBeReadError(f"blocks of {math.prod(block_size):,} elements, and at most {_MAX_ELEMENTS:,}")
        data_type = attributes["dataType"]
        if data_type not in _TYPES:
            raise CannotBeReadError(f"values of type {describe(data_type)}: only numbers are read")
        compressor = _compressor_of(attributes)
        own, ndim = own_attributes(attributes), len(dimensions)
        return cls(dimensions, block_size, np.dtype(data_type), compressor, axes_of(own, ndim), own)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.dimensions)

    @property
    def grid(self) -> tuple[int, ...]:
        """Return the number of blocks along each axis."""
        return tuple(-(-size // block) for size, block in zip(self.dimensions, self.block_size, strict=True))

    def lengths_of_block(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a block that is cut at the edge of the dataset."""
        return tuple(
            min(block, size - at * block)
            for at, size, block in zip(place, self.dimensions, self.block_size, strict=True)
        )

    @property
    def codec(self) -> Json:
        """Return the codec that reads a block."""
        return {"name": "n5_default", "configuration": {"codecs": [_reversed(self.ndim), *self._codecs]}}

    @property
    def _codecs(self) -> list[Json]:
        """Return the codecs of the values of a block."""
        codecs: list[Json] = [{"name": "bytes", "configuration": {"endian": "big"}}]
        return codecs if self.compressor is None else [*codecs, self.compressor]

    def document(self) -> Json:
        """Return the `zarr.json` for the folder of the dataset, with the axes in N5's order, as in the keys of blocks.

        The specification of `n5_default` requires this order, and the keys.
        """
        document = self._document(self.dimensions, self.block_size, self.axes, [self.codec])
        return {**document, "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}

    def reversed_document(self, *, has_headers: bool) -> Json:
        """Return the document of an array with the axes reversed, as z5py shows the dataset.

        Without their headers, blocks that are not cut are ordinary chunks: the first axis of N5 varies fastest.
        """
        axes = None if self.axes is None else self.axes[::-1]
        codecs = [_reversed(self.ndim), self.codec] if has_headers else self._codecs
        return self._document(self.dimensions[::-1], self.block_size[::-1], axes, codecs)

    def _document(
        self, shape: tuple[int, ...], chunk_shape: tuple[int, ...], axes: tuple[str, ...] | None, codecs: list[Json]
    ) -> Json:
        # N5 has no fill value. All programs return 0 for a block that does not exist.
        header = Header("", shape, self.dtype, self.dtype.type(0), self.attributes, axes or ())
        document = header.to_json(chunk_shape, codecs)
        if axes is None:
            del document["dimension_names"]
        return document

    def nbytes_of(self, shape: tuple[int, ...]) -> int | None:
        """Return the size of the file of a block of this shape; None if the blocks are compressed."""
        return None if self.compressor is not None else n5_nbytes(self.ndim) + math.prod(shape) * self.dtype.itemsize


def _reversed(ndim: int) -> Json:
    return {"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}}


def _lengths(attributes: Mapping[str, Any], name: str, least: int, most: int) -> tuple[int, ...]:
    value = attributes.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_AXES:
        raise CannotBeReadError(f"expected `{name}` with 1 to {_MAX_AXES} lengths, found {describe(value)}")
    lengths = [parse_integer(each, least, most) for each in value]
    if None in lengths:
        raise CannotBeReadError(f"expected `{name}` with lengths from {least} to {most}, found {describe(value)}")
    return tuple(length for length in lengths if length is not None)


def axes_of(attributes: Mapping[str, Any], ndim: int) -> tuple[str, ...] | None:
    """Return the names of the axes in N5's order; None unless the attributes name all of them.

    `axes` is in N5's order, and what xarray writes is not. A `transform` says in which order its axes are.
    """
    if (names := _names(attributes.get("axes"), ndim)) is not None:
        return names
    transform = attributes.get("transform")
    if isinstance(transform, dict) and (names := _names(transform.get("axes"), ndim)) is not None:
        return names if is_in_n5_order(transform) else names[::-1]
    names = _names(attributes.get("_ARRAY_DIMENSIONS"), ndim)
    return None if names is None else names[::-1]


def is_in_n5_order(transform: Mapping[str, Any]) -> bool:
    """Return whether the lists of a `transform` are in N5's order; by default they are in that of NumPy."""
    return transform.get("ordering") == "F"


def _names(value: object, ndim: int) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) != ndim or not all(isinstance(each, str) and each for each in value):
        return None
    # JSON can have halves of characters, which UTF-8 cannot.
    is_text = not any("\ud800" <= letter <= "\udfff" for each in value for letter in each)
    return tuple(value) if is_text and len(set(value)) == ndim else None
