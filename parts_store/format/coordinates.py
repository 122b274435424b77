"""Coordinates: one-dimensional arrays with the names of dimensions, which HDF5 files have as dimension scales. Pure.

They are small. An array that is large, has parts, or cannot be decoded, and values for which netCDF has no type, are
left out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray
from zarr.buffer import cpu, default_buffer_prototype

from parts_store._compat.zarr import (
    ArrayConfig,
    ArraySpec,
    ArrayV3Metadata,
    ChunkTransform,
    FusedCodecPipeline,
    RegularChunkGridMetadata,
    read_metadata,
)
from parts_store.format.keys import join

# The size of all chunks of a coordinate array before they are compressed, and their number.
_MAX_NBYTES: Final = 1 << 20
_MAX_CHUNKS: Final = 100
# The longest name of a file and of a folder.
_MAX_NAME_NBYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The values and the attributes of a coordinate array, or of a part of it.

    Two of them are equal if files that contain them differ in nothing but the bytes of numbers.
    """

    values: NDArray[Any] = field(compare=False)
    # As JSON text.
    attributes: str
    dtype: str
    # The values, if they are texts.
    texts: tuple[str, ...] | None = None

    @classmethod
    def of(cls, values: NDArray[Any], attributes: Mapping[str, Any]) -> Self | None:
        """Return coordinates with these values; None if netCDF has no type for them."""
        found = json.dumps(attributes)
        if values.dtype.kind in "biufc":
            # netCDF has no half precision.
            numbers = values.astype("f4") if values.dtype.kind == "f" and values.itemsize == 2 else values
            return cls(numbers, found, numbers.dtype.str)
        if values.dtype.kind not in "OTU":
            return None
        texts = tuple(values.tolist())
        # HDF5 ends texts with a zero byte.
        if not all(isinstance(each, str) and "\0" not in each for each in texts):
            return None
        with suppress(UnicodeEncodeError):
            "".join(texts).encode()
            return cls(np.array(texts, object), found, "text", texts)
        return None

    def cut(self, start: int, length: int) -> Self | None:
        """Return the coordinates from `start` on; None if there are fewer than this length."""
        values, texts = self.values[start : start + length], self.texts
        texts = None if texts is None else texts[start : start + length]
        return replace(self, values=values, texts=texts) if len(values) == length else None


type Dimensions = tuple[tuple[str | None, Coordinates | None], ...]
"""The name and the coordinates of each dimension, as far as it has them."""


def numbers_of(dimensions: Dimensions) -> list[bytes]:
    """Return the bytes of the coordinates that are numbers."""
    coordinates = [each for _, each in dimensions if each is not None]
    return [each.values.tobytes() for each in coordinates if each.texts is None]


def is_node_name(name: object) -> TypeGuard[str]:
    """Return whether a node of a group, and a dataset at the root of an HDF5 file, can have this name."""
    if not isinstance(name, str) or not name.isprintable() or "/" in name or name.strip(".") == "":
        return False
    return len(name.encode()) <= _MAX_NAME_NBYTES


def coordinate_paths(path: str, dimension_names: Sequence[str | None]) -> dict[str, str]:
    """Return where the coordinates of an array may be, by the names of its dimensions; not of one with the same name.

    A shard is in several places of a dimension that an array has twice, so this has no coordinates.
    """
    parent, _, own = path.rpartition("/")
    names = [
        name for name in dimension_names if is_node_name(name) and name != own and dimension_names.count(name) == 1
    ]
    return {name: join(parent, name) for name in names} if path else {}


@dataclass(frozen=True, slots=True)
class CoordinateArray:
    """A stored array that may be coordinates, the length of its chunks, and their keys."""

    metadata: ArrayV3Metadata
    step: int
    keys: tuple[str, ...]

    @classmethod
    def at(cls, path: str, served: Mapping[str, Any]) -> Self | None:
        """Return the array with this document, as zarr reads it; None if it cannot be coordinates, or is too large."""
        try:
            metadata = read_metadata(dict(served))
        # zarr raises many kinds of errors for a document that it cannot read.
        except Exception:
            return None
        if len(metadata.shape) != 1 or not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
            return None
        (length,), (step,) = metadata.shape, metadata.chunk_grid.chunk_shape
        count = math.ceil(length / step)
        if count > _MAX_CHUNKS or count * step * metadata.data_type.to_native_dtype().itemsize > _MAX_NBYTES:
            return None
        names = (metadata.chunk_key_encoding.encode_chunk_key((number,)) for number in range(count))
        return cls(metadata, step, tuple(join(path, name) for name in names))

    def decode(self, chunks: Sequence[bytes | None]) -> Coordinates | None:
        """Return the coordinates in these chunks, of which some may not be stored; None if they cannot be decoded."""
        try:
            values = self._values(chunks)
        # Each codec raises its own errors.
        except Exception:
            return None
        return Coordinates.of(values, self.metadata.attributes)

    def _values(self, chunks: Sequence[bytes | None]) -> NDArray[Any]:
        dtype, fill, prototype = self.metadata.data_type, self.metadata.fill_value, default_buffer_prototype()
        spec = ArraySpec((self.step,), dtype, fill, ArrayConfig.from_dict({}), prototype)
        codecs = FusedCodecPipeline.from_codecs(self.metadata.codecs).evolve_from_array_spec(spec).codecs
        transform = ChunkTransform(codecs=codecs)
        values = np.full(self.metadata.shape, fill, dtype.to_native_dtype())
        for number, stored in enumerate(chunks):
            if stored is not None:
                part = values[number * self.step :][: self.step]
                decoded = transform.decode_chunk(cpu.Buffer.from_bytes(stored), spec)
                part[...] = decoded.as_numpy_array()[: len(part)]
        return values
