"""Describe HDF5 and netCDF4 files: their groups and datasets, and where the chunks are.

Chunks can be adopted if zarr has codecs for their filters. Everything else is skipped, with the reason.
"""

import math
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import h5py
import numpy as np

from parts_store.adoption.description import (
    MISSING,
    Array,
    CannotBeReadError,
    Chunked,
    Contiguous,
    Description,
    Header,
    Values,
)
from parts_store.adoption.formats.hdf5 import attributes as names
from parts_store.adoption.formats.hdf5.chunks import chunks_of
from parts_store.adoption.formats.hdf5.filters import codecs_of, require_filtered_edges
from parts_store.adoption.report import Skipped

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable"
# netCDF writes this prefix before the name of a variable that has the name of a dimension without being its coordinate.
_NOT_ALONG: Final = "_nc4_non_coord_"
# Values without a place in the file are copied up to this number of bytes.
_MAX_COPIED: Final = 1 << 20


def recognise(file: BinaryIO, nbytes: int) -> bool:
    """Return whether a file begins with the signature of HDF5, or has it after a user block."""
    offset = 0
    while offset < nbytes:
        file.seek(offset)
        if file.read(len(_SIGNATURE)) == _SIGNATURE:
            return True
        offset = 2 * offset or 512
    return False


def describe(file: BinaryIO, nbytes: int) -> Description:
    """Return what is in an HDF5 file of `nbytes` bytes."""
    description = Description()
    with h5py.File(file, "r") as root:
        _Walk(file, nbytes, root.userblock_size > 0, description).describe_group(root, "")
    return description


@dataclass(frozen=True, slots=True)
class _Walk:
    """The traversal of a file, beginning at its root group."""

    file: BinaryIO
    nbytes: int
    has_user_block: bool
    description: Description
    # The names of the groups that were visited, by their addresses in the file.
    visited: dict[int, str] = field(default_factory=dict)

    def describe_group(self, group: h5py.Group, name: str) -> None:
        """Add a group and everything below it to the description."""
        self.visited[_address(group)] = name or "/"
        self.description.groups[name] = names.attributes_of(group, self.description, name or "/")
        dimensions = names.Dimensions()
        for each_name in group:
            # h5py returns bytes for a name that is not text.
            member = each_name if isinstance(each_name, str) else each_name.decode(errors="surrogateescape")
            path = f"{name}/{member}" if name else member
            try:
                names.require_utf8(member)
                each = self._member(group, member)
                if isinstance(each, h5py.Group):
                    self.describe_group(each, path)
                elif _is_no_variable(each):
                    self.description.skipped.append(Skipped(path, "a dimension, and no variable", has_values=False))
                else:
                    array = self._describe_dataset(each, _variable_name(group, path), dimensions)
                    _require_fill_value(array)
                    self.description.arrays.append(array)
            # h5py raises any error for a damaged file. The other members may be intact.
            except Exception as error:
                self.description.skipped.append(Skipped(names.shown(path), names.reason_of(error)))

    def _member(self, group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
        match group.get(name, getlink=True):
            case h5py.ExternalLink(filename=filename, path=path):
                raise CannotBeReadError(names.shown(f"a link into another file: {filename}:{path}"))
            case h5py.SoftLink(path=path):
                raise CannotBeReadError(names.shown(f"a link to {path}"))
        each = group[name]
        if not isinstance(each, h5py.Group | h5py.Dataset):
            raise CannotBeReadError("a named type")
        # Groups can contain each other, or be members of so many groups that they have a million names.
        if isinstance(each, h5py.Group) and (known := self.visited.get(_address(each))) is not None:
            raise CannotBeReadError(f"another name of the group {known!r}")
        return each

    def _describe_dataset(self, dataset: h5py.Dataset, path: str, dimensions: names.Dimensions) -> Array:
        _require_own_values(dataset)
        header = Header(
            path,
            dataset.shape,
            _dtype(dataset),
            _fill_value(dataset),
            names.attributes_of(dataset, self.description, path),
            tuple(names.dimension_names(dataset, dimensions)),
        )
        match dataset.id.get_create_plist().get_layout():
            case layout if 0 in dataset.shape and layout != h5py.h5d.CHUNKED:
                return _without_values(header)
            case h5py.h5d.CHUNKED if dataset.shape:
                return self._chunked(dataset, header)
            case h5py.h5d.CONTIGUOUS if dataset.shape:
                return self._contiguous(dataset, header)
        if dataset.nbytes > _MAX_COPIED:
            raise CannotBeReadError(f"{dataset.nbytes:,} bytes that are in no place to refer to")
        return Values(header, np.asarray(dataset[()], header.dtype))

    def _contiguous(self, dataset: h5py.Dataset, header: Header) -> Contiguous | Chunked:
        # With a user block, HDF5 returns a wrong offset for a dataset that was never written.
        offset = dataset.id.get_offset() if dataset.id.get_storage_size() else None
        if offset is not None:
            if offset + dataset.nbytes > self.nbytes:
                raise CannotBeReadError(f"its bytes end at {offset + dataset.nbytes}, and the file at {self.nbytes}")
            return Contiguous(header, offset)
        # A dataset that was never written has the fill value everywhere.
        if _has_no_fill_value(dataset):
            raise CannotBeReadError("it was never written, and has no fill value")
        nowhere = np.full((1,) * len(dataset.shape), MISSING, np.uint64)
        return Chunked(header, dataset.shape, (), nowhere, nowhere)

    def _chunked(self, dataset: h5py.Dataset, header: Header) -> Chunked:
        offsets, lengths, masks = chunks_of(dataset, self.file)
        if len(masks) > 1:
            raise CannotBeReadError("chunks that some filters were left out of, and others not (a filter mask)")
        array = Chunked(header, dataset.chunks, tuple(codecs_of(dataset, *masks or {0})), offsets, lengths)
        self._require_chunks_in_file(dataset, array)
        if not masks - {0}:
            require_filtered_edges(dataset, offsets, lengths)
        return array

    def _require_chunks_in_file(self, dataset: h5py.Dataset, array: Chunked) -> None:
        is_there = array.offsets != MISSING
        if not is_there.any():
            return
        offsets, lengths = array.offsets[is_there], array.lengths[is_there]
        if ((lengths > self.nbytes) | (offsets > self.nbytes - np.minimum(lengths, self.nbytes))).any():
            end = max(map(sum, zip(offsets.tolist(), lengths.tolist(), strict=True)))
            raise CannotBeReadError(f"its chunks end at {end}, and the file at {self.nbytes}")
        raw_nbytes = math.prod(array.chunk_shape) * array.header.dtype.itemsize
        if not lengths.all() or (not array.codecs and (lengths != raw_nbytes).any()):
            raise CannotBeReadError(f"a chunk of {lengths[lengths != raw_nbytes][0]} bytes, expected {raw_nbytes}")
        if self.has_user_block:
            # Some versions of HDF5 return offsets from the end of the user block.
            first = np.argwhere(is_there)[0].tolist()
            start = tuple(at * size for at, size in zip(first, array.chunk_shape, strict=True))
            self.file.seek(int(offsets[0]))
            if self.file.read(int(lengths[0])) != bytes(dataset.id.read_direct_chunk(start)[1]):
                raise CannotBeReadError("its chunks are not where the HDF5 library says (the file has a user block)")


def _without_values(header: Header) -> Chunked:
    """Return an array that has no values, because it has no length along an axis."""
    nowhere = np.empty(tuple(min(1, length) for length in header.shape), np.uint64)
    return Chunked(header, tuple(max(1, length) for length in header.shape), (), nowhere, nowhere)


def _address(group: h5py.Group) -> int:
    return int(h5py.h5o.get_info(group.id).addr)


def _is_no_variable(each: h5py.Dataset) -> bool:
    return names.text(each.attrs.get("NAME")).startswith(_NO_VARIABLE)


def _variable_name(group: h5py.Group, path: str) -> str:
    """Return the path of a variable with its name in netCDF, unless another member has that name."""
    above, _, own = path.rpartition("/")
    name = own.removeprefix(_NOT_ALONG)
    if not name or name == own or (name in group and not _is_no_variable(group[name])):
        return path
    return f"{above}/{name}" if above else name


def _require_own_values(dataset: h5py.Dataset) -> None:
    """Raise unless the dataset has values, and they are in this file."""
    if dataset.shape is None:
        raise CannotBeReadError("no values: its dataspace is null")
    if dataset.is_virtual:
        raise CannotBeReadError("a virtual dataset: its values are in other datasets")
    if dataset.external:
        raise CannotBeReadError(names.shown(f"its values are in another file: {dataset.external[0][0]}"))


def _dtype(dataset: h5py.Dataset) -> np.dtype[Any]:
    """Return the data type of the numbers as they are stored in the file."""
    dtype: np.dtype[Any] = dataset.dtype
    if dtype.kind not in "biufc" or (dtype.metadata and "vlen" in dtype.metadata):
        raise CannotBeReadError(f"values of type {_name_of(dataset)}: only numbers are read")
    if dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise CannotBeReadError(f"numbers of {dtype.itemsize} bytes, which Zarr has no type for")
    stored = dataset.id.get_type()
    # Without the names of an enumeration.
    plain = np.dtype(dtype.str)
    if isinstance(stored, h5py.h5t.TypeEnumID):
        expected, stored = h5py.h5t.py_create(np.dtype("i1") if dtype.kind == "b" else plain), stored.get_super()
    elif dtype.kind == "c" and stored.get_class() != h5py.h5t.COMPOUND:
        part = h5py.h5t.py_create(np.dtype(f"{plain.byteorder}f{plain.itemsize // 2}"))
        expected, stored = part, stored.get_super()
    else:
        expected = h5py.h5t.py_create(plain)
    if not expected.equal(stored):
        raise CannotBeReadError(f"numbers of a size or form of their own: {dtype} is not how they lie in the file")
    return plain


def _name_of(dataset: h5py.Dataset) -> str:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return "string"
    return "compound" if dataset.dtype.names else str(dataset.dtype)


def _has_no_fill_value(dataset: h5py.Dataset) -> bool:
    return bool(dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED)


def _fill_value(dataset: h5py.Dataset) -> Any:
    is_never = dataset.id.get_create_plist().get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    # HDF5 returns zeros for values that it does not fill in.
    if is_never or _has_no_fill_value(dataset) or dataset.fillvalue is None:
        return dataset.dtype.type(0)
    return dataset.fillvalue


def _require_fill_value(array: Array) -> None:
    """Raise if chunks are missing, and zarr would fill in other values than HDF5."""
    if isinstance(array, Chunked) and (array.offsets == MISSING).any() and not array.header.keeps_fill_value:
        raise CannotBeReadError("chunks that are missing, and a fill value that zarr does not keep: a NaN of its own")
