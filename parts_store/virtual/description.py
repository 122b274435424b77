"""The contents of a file in terms of Zarr: its arrays, where their bytes are, and what cannot be adopted.

Every format module returns a `Description`, of which arrays of references are made.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import zarr
from numcodecs.vlen import VLenUTF8
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from parts_store._compat.zarr import ArrayV3Metadata, get_data_type_from_native_dtype, unstable_types
from parts_store.virtual.attribute_types import to_member
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import Checksum, Checksums, Columns
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.report import Skipped
from parts_store.virtual.store_access import DOCUMENT, NO_CHUNK, NODES_FOLDER, PROTOCOL_FOLDER

MISSING: Final = NO_CHUNK
"""The offset of a missing chunk."""
THIS_FILE: Final = "."
"""What stands for the URL of the file that is described."""
TEXT: Final = np.dtypes.StringDType()
"""The data type of texts of any length."""
# What stands for a backslash in the name of a Zarr node.
_BACKSLASH: Final = "%5C"
# Names that a Zarr node cannot have, besides those of periods alone.
_INVALID_NAMES: Final = (NODES_FOLDER, PROTOCOL_FOLDER, DOCUMENT)
# What is below a leading axis and has at least so many bytes, such as a page of a stack, is not joined to a chunk with
# others.
_PAGE_NBYTES: Final = 1 << 18
# The largest number of bytes in a chunk of uncompressed values, if the lengths allow it, and the smallest one.
_MAX_NBYTES: Final = 1 << 22
_MIN_NBYTES: Final = 1 << 12
# A table of more chunks would not fit into memory.
_MAX_CHUNKS: Final = 1 << 24


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
class ChunkCodec:
    """The codecs of an array, with which zarr decodes and encodes one chunk of it."""

    document: Json
    key: str

    @classmethod
    def of(cls, array: Chunked) -> "ChunkCodec":
        """Return the codecs of an array."""
        document = array.header.to_json(array.chunk_shape, array.all_codecs)
        document |= {"shape": list(array.chunk_shape), "attributes": {}}
        return cls(document, "/".join(["c", *("0" for _ in array.chunk_shape)]))

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the values of a chunk as zarr reads them; raise `NoReferenceError` if it cannot read them."""
        store = MemoryStore({**self._documents(), self.key: cpu.Buffer.from_bytes(data)})
        try:
            return np.asarray(zarr.open_array(store, mode="r")[...])
        # Codecs raise any error for data that they cannot decode.
        except Exception as error:
            raise NoReferenceError(f"a tile or strip that Zarr cannot decode: {error}") from error

    def encode(self, values: NDArray[Any]) -> bytes:
        """Return the bytes of a chunk as zarr writes them; raise `NoReferenceError` if it cannot write them."""
        stored = self._documents()
        try:
            # By default zarr does not write a chunk of fill values.
            zarr.open_array(MemoryStore(stored), mode="r+", config={"write_empty_chunks": True})[...] = values
        # Codecs raise any error for values that they cannot encode.
        except Exception as error:
            raise NoReferenceError(f"a chunk that cannot be encoded again: {type(error).__name__}") from error
        return stored[self.key].to_bytes()

    def _documents(self) -> dict[str, Buffer]:
        return {"zarr.json": cpu.Buffer.from_bytes(json.dumps(self.document).encode())}


@dataclass(frozen=True, slots=True)
class Contiguous:
    """An uncompressed array in C order, at one offset in the file."""

    header: Header
    offset: int
    # The URL of another file that has the bytes.
    location: str | None = None

    def __post_init__(self) -> None:
        chunk_shape = plain_chunk_shape(self.header.shape, self.header.dtype.itemsize)
        if (count := math.prod(self.header.shape) // math.prod(chunk_shape)) > _MAX_CHUNKS:
            raise CannotBeReadError(f"{count:,} chunks, and at most {_MAX_CHUNKS:,} can be listed")


@dataclass(frozen=True, slots=True, eq=False)
class ArrayValues:
    """An array whose values are copied, because no reference to them is possible, or because they are few."""

    header: Header
    values: NDArray[Any]
    # Why no reference is possible; empty for a few values.
    note: str = ""


type Array = Chunked | Contiguous | ArrayValues


@dataclass(slots=True)
class PhonyDimensions:
    """Generated names for dimensions without one: axes of the same length have the same name in several arrays."""

    # The names, by the length, and the position among axes of that length in an array.
    known: dict[tuple[int, int], str] = field(default_factory=dict)

    def names_of(self, shape: Sequence[int], names: Sequence[str | None] = ()) -> Iterator[str]:
        """Yield the names of the axes of an array, generated ones for axes that have none in `names`."""
        met: Counter[int] = Counter()
        for axis, length in enumerate(shape):
            if axis < len(names) and (name := names[axis]) is not None:
                yield name
                continue
            yield self.known.setdefault((length, met[length]), f"phony_dim_{len(self.known)}")
            met[length] += 1


@dataclass(slots=True)
class Description:
    """Everything in a file."""

    # The attributes of the groups, by their names in the file; the name of the root group is "".
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    # The checksums of other files that arrays refer to, by their URLs.
    checksums: dict[str, Checksum] = field(default_factory=dict)

    def skip(self, name: str, reason: str, *, has_values: bool = True) -> None:
        """Add something to what is skipped; `has_values` says whether values are lost with it."""
        self.skipped.append(Skipped(name, reason, has_values=has_values))


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file that another file refers to."""

    location: str
    file: BinaryIO
    nbytes: int
    checksum: Checksum


type OpenOther = Callable[[str], OtherFile]
"""Open a file by the name that another file has for it; raise `CannotBeReadError` if that is not possible."""


def open_no_other(name: str) -> OtherFile:
    """Raise `CannotBeReadError`: no other file is read."""
    raise CannotBeReadError(f"its values are in another file: {name}")


# --- names ------------------------------------------------------------------------------------------------------------


def skip_invalid_names(description: Description) -> None:
    """Move groups and arrays whose names are not valid in Zarr to those that are skipped.

    A name with a backslash, which zarr takes for a slash, is valid with `%5C` in its place.
    """
    _replace_backslashes(description)
    names = [*filter(None, description.groups), *(array.header.name for array in description.arrays)]
    reasons = {name: reason for name in names if (reason := why_invalid(name)) is not None}
    for name, reason in reasons.items():
        description.groups.pop(name, None)
        description.skip(name, reason)
    description.arrays[:] = [array for array in description.arrays if array.header.name not in reasons]


def _replace_backslashes(description: Description) -> None:
    known = {*description.groups, *(array.header.name for array in description.arrays)}
    new = {name: name.replace("\\", _BACKSLASH) for name in known if "\\" in name}
    if known & set(new.values()):
        return
    reason = "zarr takes the backslash in its name for a slash; adopted as {}"
    for name, new_name in sorted(new.items()):
        description.skip(name, reason.format(repr(new_name)), has_values=False)
    groups = {new.get(name, name): attributes for name, attributes in description.groups.items()}
    description.groups.clear()
    description.groups.update(groups)
    description.arrays[:] = [
        replace(array, header=replace(array.header, name=new.get(array.header.name, array.header.name)))
        for array in description.arrays
    ]


def why_invalid(name: str) -> str | None:
    """Return why a path of the file cannot be that of a Zarr node; None if it can."""
    for each in name.split("/"):
        if not each.strip(".") or each in _INVALID_NAMES or "\\" in each:
            return f"no node of Zarr can be called {each!r}"
    return None


# --- references -------------------------------------------------------------------------------------------------------


def group_of(description: Description, location: str, checksums: Checksums) -> PartsGroup:
    """Return what a file contains as a group of arrays of references to it. All names must be valid in Zarr."""
    known: dict[str, ArrayV3Metadata] = {}
    arrays = {
        each.header.name: PartsArray.of(_references(each, location, checksums, known), ())
        for each in description.arrays
    }
    return nest(description.groups, arrays)


def loaded_of(description: Description) -> dict[str, str]:
    """Return why values were loaded, or chunks encoded again, for each array of a file to which this applies."""
    noted = (each for each in description.arrays if not isinstance(each, Contiguous) and each.note)
    return {each.header.name: each.note for each in noted}


def nest(groups: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, PartsArray]) -> PartsGroup:
    """Return the root group, with all groups and arrays in it, given by their paths."""
    members: dict[str, tuple[dict[str, PartsArray], dict[str, PartsGroup]]] = {path: ({}, {}) for path in groups}
    for path, array in arrays.items():
        above, _, name = path.rpartition("/")
        members[above][0][name] = array
    # The deepest groups first.
    for path in sorted(filter(None, groups), key=lambda each: each.count("/"), reverse=True):
        above, _, name = path.rpartition("/")
        members[above][1][name] = PartsGroup(*members[path], groups[path])
    return PartsGroup(*members[""], groups[""])


def _references(array: Array, location: str, checksums: Checksums, known: dict[str, ArrayV3Metadata]) -> References:
    """Return the references of an array, with one part."""
    header = array.header
    codecs = [header.bytes_codec]
    match array:
        case Chunked(chunk_shape=chunk_shape):
            codecs = array.all_codecs
            is_there = array.offsets != MISSING
            columns = Columns(
                _paths(array, location),
                np.where(is_there, array.offsets, np.uint64(0)),
                np.where(is_there, array.lengths, np.uint64(0)),
                {},
            )
            for place, data in array.encoded.items():
                columns.put(place, data)
        case Contiguous(offset=offset):
            source = array.location or location
            chunk_shape, columns = rows_of_file(source, offset, header.shape, header.dtype.itemsize)
        case ArrayValues(values=values):
            chunk_shape = tuple(max(1, length) for length in header.shape)
            columns = Columns.empty(tuple(min(1, length) for length in header.shape))
            if values.size:
                columns.put((0,) * len(header.shape), header.encode(values))
    metadata = _metadata(header.to_json(chunk_shape, codecs), known)
    return References.checked(metadata, [columns], checksums)


def _metadata(document: Json, known: dict[str, ArrayV3Metadata]) -> ArrayV3Metadata:
    """Return the metadata of an array, which zarr parses once for all arrays that differ in these members alone.

    A file with thousands of datasets has few kinds of them, and zarr takes as long for each as the HDF5 library.
    """
    own = {"attributes": document.pop("attributes"), "dimension_names": document.pop("dimension_names")}
    key = json.dumps(document)
    if key not in known:
        known[key] = ArrayV3Metadata.from_dict(document)
    metadata = copy(known[key])
    object.__setattr__(metadata, "attributes", own["attributes"])
    object.__setattr__(metadata, "dimension_names", tuple(own["dimension_names"]))
    return metadata


def _paths(array: Chunked, location: str) -> NDArray[Any]:
    """Return the URL of the file of each chunk, an empty text for a missing chunk."""
    if array.locations is not None:
        return np.where(array.locations == THIS_FILE, location, array.locations).astype(np.dtypes.StringDType())
    paths = np.full(array.offsets.shape, location, np.dtypes.StringDType())
    paths[array.offsets == MISSING] = ""
    return paths


def rows_of_file(location: str, offset: int, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], Columns]:
    """Return the shape of a chunk, and the chunks of an array that is at one offset of a file, in C order."""
    chunk_shape = plain_chunk_shape(shape, itemsize)
    grid = tuple(length // chunk for length, chunk in zip(shape, chunk_shape, strict=True))
    return chunk_shape, Columns.of_range(location, offset, grid, math.prod(chunk_shape) * itemsize)


def plain_chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks that uncompressed values in C order are cut into; it divides the shape.

    A chunk is a page: what is below the leading axes, the fewest last axes with 256 KiB together. If that has more than
    4 MiB, a chunk is as many of its rows as divide their number and have up to 4 MiB. For an array that is joined with
    others, pass the greatest common divisor of all their lengths.
    """
    row_nbytes = itemsize
    for axis in reversed(range(len(shape))):
        if row_nbytes * shape[axis] >= _PAGE_NBYTES or axis == 0:
            return (*[1] * axis, _rows_of_chunk(shape[axis], row_nbytes), *shape[axis + 1 :])
        row_nbytes *= shape[axis]
    return ()


def _rows_of_chunk(length: int, row_nbytes: int) -> int:
    """Return the largest divisor of a length with up to 4 MiB of rows; the next one if these have less than 4 KiB.

    The rows of a very long prime length would be very many chunks.
    """
    divisors = _divisors(length)
    fitting = max((rows for rows in divisors if rows * row_nbytes <= _MAX_NBYTES), default=1)
    if fitting * row_nbytes >= _MIN_NBYTES:
        return fitting
    return min((rows for rows in divisors if rows > fitting), default=fitting)


@cache
def _divisors(number: int) -> frozenset[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return frozenset([*small, *(number // divisor for divisor in small)])
