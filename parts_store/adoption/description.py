"""The contents of a file in terms of Zarr: its arrays, where their bytes are, and what cannot be adopted.

Every format module returns a `Description`. This module knows neither formats nor stores.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.zarr import get_data_type_from_native_dtype
from parts_store.adoption.report import Skipped
from parts_store.format.shard_index import NO_CHUNK

MISSING: Final = NO_CHUNK
"""The offset of a missing chunk."""

type Json = dict[str, Any]


class CannotBeReadError(Exception):
    """Something in a file cannot be adopted; the message is the reason in the report."""


@cache
def _data_type(dtype: np.dtype[Any]) -> Any:
    """Return the data type of zarr for one of NumPy. zarr compares it with all types that are registered."""
    return get_data_type_from_native_dtype(dtype)


@dataclass(frozen=True, slots=True)
class Header:
    """The name of an array in the file, and its metadata except for the chunks."""

    name: str
    shape: tuple[int, ...]
    # In the byte order of the file.
    dtype: np.dtype[Any]
    fill_value: Any
    attributes: Mapping[str, Any]
    dimension_names: tuple[str, ...]

    def to_json(self, chunk_shape: tuple[int, ...], codecs: list[Json]) -> Json:
        """Return the metadata document of the array with these chunks and codecs."""
        kind = _data_type(self.dtype.newbyteorder("="))
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": kind.to_json(zarr_format=3),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self._fill_value(kind.to_json_scalar(self.fill_value, zarr_format=3)),
            "codecs": codecs,
            "attributes": dict(self.attributes),
            "dimension_names": list(self.dimension_names),
            "storage_transformers": [],
        }

    def _fill_value(self, json: Any) -> Any:
        """Return the fill value in JSON; a NaN as its bits, which zarr reads but does not write."""
        value = np.asarray(self.fill_value, self.dtype.newbyteorder(">"))
        if self.dtype.kind == "c":
            parts = value.reshape(1).view(f">f{self.dtype.itemsize // 2}")
            return [_nan(part) if np.isnan(part) else each for part, each in zip(parts, json, strict=True)]
        return _nan(value) if self.dtype.kind == "f" and np.isnan(value) else json

    @property
    def keeps_fill_value(self) -> bool:
        """Return whether zarr reads exactly the same fill value; it changes the bits of some NaNs."""
        native = self.dtype.newbyteorder("=")
        kind = _data_type(native)
        json = self._fill_value(kind.to_json_scalar(self.fill_value, zarr_format=3))
        again: Any = kind.from_json_scalar(json, zarr_format=3)
        return np.asarray(again, native).tobytes() == np.asarray(self.fill_value, native).tobytes()

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes_codec(self) -> Json:
        """Return the codec for numbers in the byte order of the file."""
        if self.dtype.itemsize == 1:
            return {"name": "bytes"}
        order: Literal["big", "little"] = "big" if self.dtype.newbyteorder("=") != self.dtype else "little"
        return {"name": "bytes", "configuration": {"endian": order}}


def _nan(value: Any) -> str:
    return f"0x{np.asarray(value).tobytes().hex()}"


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """An array in chunks at any offsets in the file."""

    header: Header
    chunk_shape: tuple[int, ...]
    # The codecs that encoded the bytes of a chunk, in order.
    codecs: tuple[Json, ...]
    # For every chunk of the grid; the offset of a missing chunk is `MISSING`.
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    # The codecs before those: filters of values, and what makes bytes of values if it is not the codec `bytes`.
    filters: tuple[Json, ...] = ()
    serializer: Json | None = None
    # The encoded bytes of chunks that are copied, by their positions in the grid. There they are missing.
    copied: Mapping[tuple[int, ...], bytes] = field(default_factory=dict)

    @property
    def all_codecs(self) -> list[Json]:
        """Return all codecs of a chunk, in the order in which they encode."""
        return [*self.filters, self.serializer or self.header.bytes_codec, *self.codecs]


@dataclass(frozen=True, slots=True)
class Contiguous:
    """An uncompressed array in C order, at one offset in the file."""

    header: Header
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A small array whose values are copied, because no reference to them is possible."""

    header: Header
    values: NDArray[Any]


type Array = Chunked | Contiguous | Values


@dataclass(slots=True)
class Description:
    """Everything in a file."""

    # The attributes of the groups, by their names in the file; the name of the root group is "".
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
