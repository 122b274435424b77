"""The contents of a file in terms of Zarr: its arrays, where their bytes are, and what cannot be adopted.

Every format module returns a `Description`. This module knows neither formats nor stores.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO, Final, Literal

import numpy as np
from numcodecs.vlen import VLenUTF8
from numpy.typing import NDArray

from parts_store._compat.zarr import get_data_type_from_native_dtype, unstable_types
from parts_store.adoption.report import Skipped
from parts_store.format.attribute_types import to_member
from parts_store.format.shard_index import NO_CHUNK
from parts_store.manifests.pieces import Checksum

MISSING: Final = NO_CHUNK
"""The offset of a missing chunk."""
THIS_FILE: Final = "."
"""What stands for the URL of the file that is described."""
TEXT: Final = np.dtypes.StringDType()
"""The data type of texts of any length."""

type Json = dict[str, Any]


class CannotBeReadError(Exception):
    """Something in a file cannot be adopted; the message is the reason in the report."""


class NothingLostError(CannotBeReadError):
    """Something in a file has no values, or they are adopted under another name."""


class NoReferenceError(CannotBeReadError):
    """The library of the format can read the values, but zarr cannot decode their bytes in the file."""


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
    # The types of attributes that JSON has no types for.
    attribute_types: Mapping[str, str] = field(default_factory=dict)
    # The attributes that are not in the file.
    added_attributes: tuple[str, ...] = ()

    def to_json(self, chunk_shape: tuple[int, ...], codecs: list[Json]) -> Json:
        """Return the metadata document of the array with these chunks and codecs."""
        kind = _data_type(self._native)
        with unstable_types():
            data_type = kind.to_json(zarr_format=3)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self._fill_value(kind.to_json_scalar(self.fill_value, zarr_format=3)),
            "codecs": codecs,
            "attributes": dict(self.attributes),
            "dimension_names": list(self.dimension_names),
            "storage_transformers": [],
            **to_member(self.attribute_types, self.added_attributes),
        }

    def _fill_value(self, json: Any) -> Any:
        """Return the fill value in JSON; a NaN as its bits, which zarr reads but does not write."""
        if self.dtype.kind not in "fc":
            return json
        value = np.asarray(self.fill_value, self.dtype.newbyteorder(">"))
        if self.dtype.kind == "c":
            parts = value.reshape(1).view(f">f{self.dtype.itemsize // 2}")
            return [_nan(part) if np.isnan(part) else each for part, each in zip(parts, json, strict=True)]
        return _nan(value) if np.isnan(value) else json

    @property
    def _native(self) -> np.dtype[Any]:
        return self.dtype if self.dtype == TEXT else self.dtype.newbyteorder("=")

    @property
    def keeps_fill_value(self) -> bool:
        """Return whether zarr reads exactly the same fill value; it changes the bits of some NaNs."""
        native = self._native
        kind = _data_type(native)
        json = self._fill_value(kind.to_json_scalar(self.fill_value, zarr_format=3))
        again: Any = kind.from_json_scalar(json, zarr_format=3)
        return np.asarray(again, native).tobytes() == np.asarray(self.fill_value, native).tobytes()

    @property
    def type_name(self) -> str:
        """Return the name of the data type."""
        return "string" if self.dtype == TEXT else str(self.dtype)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes_codec(self) -> Json:
        """Return the codec for values in the byte order of the file."""
        if self.dtype == TEXT:
            return {"name": "vlen-utf8"}
        if self.dtype.itemsize == 1 or (self.dtype.kind in "SV" and self.dtype.names is None):
            return {"name": "bytes"}
        order: Literal["big", "little"] = "big" if self._native != self.dtype else "little"
        return {"name": "bytes", "configuration": {"endian": order}}

    def encode(self, values: NDArray[Any]) -> bytes:
        """Return values as bytes, without compression."""
        if self.dtype == TEXT:
            return bytes(VLenUTF8().encode(np.asarray(values, object)))
        return np.ascontiguousarray(values, self.dtype).tobytes()


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
    # Chunks that are encoded again, because zarr cannot decode those of the file; and why.
    encoded: Mapping[tuple[int, ...], bytes] = field(default_factory=dict)
    note: str = ""
    # The URL of the file of each chunk, or `THIS_FILE`; None if all are in the file that is described.
    locations: NDArray[Any] | None = None

    @property
    def all_codecs(self) -> list[Json]:
        """Return all codecs of a chunk, in the order in which they encode."""
        return [*self.filters, self.serializer or self.header.bytes_codec, *self.codecs]


@dataclass(frozen=True, slots=True)
class Contiguous:
    """An uncompressed array in C order, at one offset in the file."""

    header: Header
    offset: int
    # The URL of another file that has the bytes.
    location: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """An array whose values are copied, because no reference to them is possible, or because they are few."""

    header: Header
    values: NDArray[Any]
    # Why no reference is possible; empty for a few values.
    note: str = ""


type Array = Chunked | Contiguous | Values


@dataclass(slots=True)
class Description:
    """Everything in a file."""

    # The attributes of the groups, by their names in the file; the name of the root group is "".
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    # The checksums of other files that arrays refer to, by their URLs.
    checksums: dict[str, Checksum] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file that another file refers to."""

    location: str
    file: BinaryIO
    nbytes: int
    checksum: Checksum
    # Returns the error of the first read of it that failed; None if none did.
    failure: Callable[[], Exception | None]


type OpenOther = Callable[[str], OtherFile]
"""Open a file by the name that another file has for it; raise `CannotBeReadError` if that is not possible."""


def open_no_other(name: str) -> OtherFile:
    """Raise `CannotBeReadError`: no other file is read."""
    raise CannotBeReadError(f"its values are in another file: {name}")
