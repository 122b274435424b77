"""Describe HDF5 and netCDF4 files: walk through their groups, follow links, and describe each dataset.

The file is read through a file object: the HDF5 library would look for the target of a link into another file in this
file. Each step of a path is looked up here instead.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.virtual.description import (
    MISSING,
    THIS_FILE,
    Array,
    ArrayValues,
    CannotBeReadError,
    Chunked,
    Contiguous,
    Description,
    Header,
    NoReferenceError,
    NothingLostError,
    OpenOther,
    open_no_other,
)
from parts_store.virtual.parsers.hdf5 import attributes as names
from parts_store.virtual.parsers.hdf5.attributes import Address, ObjectPaths, address_of, shown
from parts_store.virtual.parsers.hdf5.chunks import (
    chunks_of,
    codecs_of,
    edges,
    filters_of,
    is_without_filters,
    require_bounded_chunks,
    require_filters,
    short_edges,
    unfiltered_edges,
)
from parts_store.virtual.parsers.hdf5.dimensions import GroupDimensions, Scales, lengths_of
from parts_store.virtual.parsers.hdf5.values import (
    Loader,
    StoredType,
    fill_value_of,
    has_no_fill_value,
    require_fill_value,
    stored_type,
)
from parts_store.virtual.parsers.hdf5.virtual import describe_virtual
from parts_store.virtual.store_access import join

# The largest number of links that are followed to one object.
_MOST_LINKS: Final = 32


def follow(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return a member of a group, or what a link with this name leads to; raise `CannotBeReadError` without one."""
    found = _look_up(group, name, _MOST_LINKS)
    if not isinstance(found, h5py.Group | h5py.Dataset):
        raise NothingLostError("a named type")
    return found


def _look_up(group: h5py.Group, name: str, left: int) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    encoded = name.encode(errors="surrogateescape")
    if group.id.links.get_info(encoded).type == h5py.h5l.TYPE_HARD:
        identifier = h5py.h5o.open(group.id, encoded)
        # `group[name]` would open the file once more, to ask whether it can be written.
        return h5py.Dataset(identifier, readonly=True) if isinstance(identifier, h5py.h5d.DatasetID) else group[name]
    match group.get(name, getlink=True):
        case h5py.ExternalLink(filename=filename, path=path):
            raise CannotBeReadError(shown(f"a link into another file: {filename}:{path}"))
        case h5py.SoftLink(path=path):
            return follow_path(group, path, left)
    return group[name]


def follow_path(group: h5py.Group, path: str, left: int = _MOST_LINKS) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    """Return the object at a path, from a group or from the root; raise `CannotBeReadError` without one."""
    if not left:
        raise NothingLostError(shown(f"a link to {path}, which leads to more than {_MOST_LINKS} links"))
    found: h5py.Group | h5py.Dataset | h5py.Datatype = group.file["/"] if path.startswith("/") else group
    for step in filter(lambda each: each not in ("", "."), path.split("/")):
        if not isinstance(found, h5py.Group) or found.get(step, getlink=True) is None:
            raise NothingLostError(shown(f"a link to {path}, where nothing is"))
        found = _look_up(found, step, left - 1)
    return found


_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable"
# netCDF writes this prefix before the name of a variable that has the name of a dimension without being its coordinate.
_NOT_ALONG: Final = "_nc4_non_coord_"
_SHORTER: Final = "bytes that end before its unlimited dimension"
# Groups can be members of so many groups that they have a million names. Behind this number of groups and arrays, each
# group is described under one name.
_MOST_NODES: Final = 1 << 15


def recognise(file: BinaryIO, nbytes: int) -> bool:
    """Return whether a file begins with the signature of HDF5, or has it after a user block."""
    offset = 0
    while offset < nbytes:
        file.seek(offset)
        if file.read(len(_SIGNATURE)) == _SIGNATURE:
            return True
        offset = 2 * offset or 512
    return False


def describe(file: BinaryIO, nbytes: int, open_other: OpenOther = open_no_other) -> Description:
    """Return what is in an HDF5 file of `nbytes` bytes; `open_other` opens files that it refers to."""
    description = Description()
    with h5py.File(file, "r") as root:
        _GroupWalk.of(file, nbytes, root, description, open_other).describe_group(root, "", {})
    return description


@dataclass(frozen=True, slots=True)
class _GroupWalk:
    """The traversal of a file, beginning at its root group."""

    file: BinaryIO
    nbytes: int
    has_user_block: bool
    description: Description
    loader: Loader
    open_other: OpenOther
    scales: Scales
    # The names of the groups that were visited, by their addresses in the file.
    visited: dict[Address, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, file: BinaryIO, nbytes: int, root: h5py.File, description: Description, open_other: OpenOther
    ) -> "_GroupWalk":
        """Return the traversal of an open file."""
        paths = ObjectPaths(root)
        loader, scales = Loader(nbytes, paths), Scales(root, paths)
        return cls(file, nbytes, root.userblock_size > 0, description, loader, open_other, scales)

    def describe_group(self, group: h5py.Group, name: str, above: dict[Address, str]) -> None:
        """Add a group and everything below it to the description; `above` are the groups that contain it."""
        address = address_of(group.id)
        above = {**above, address: name or "/"}
        self.visited.setdefault(address, name or "/")
        stored = names.StoredAttributes(group)
        self.description.groups[name] = names.attributes_of(
            stored, self.description, name or "/", self.loader.paths
        ).values
        dimensions = GroupDimensions(self.scales)
        for each_name in group:
            member = names.decoded(each_name)
            path = join(name, member)
            try:
                names.require_utf8(member)
                self._describe_member(follow(group, member), group, path, dimensions, above)
            # h5py raises any error for a damaged file. The other members may be intact.
            except Exception as error:
                has_values = not isinstance(error, NothingLostError)
                self.description.skip(names.shown(path), names.reason_of(error), has_values=has_values)

    def _describe_member(
        self,
        each: h5py.Group | h5py.Dataset,
        group: h5py.Group,
        path: str,
        dimensions: GroupDimensions,
        above: dict[Address, str],
    ) -> None:
        if isinstance(each, h5py.Group):
            address = address_of(each.id)
            if (known := above.get(address)) is not None:
                raise NothingLostError(f"another name of the group {known!r}, which contains it")
            known = self.visited.get(address)
            count = len(self.description.groups) + len(self.description.arrays)
            if known is not None and count >= _MOST_NODES:
                raise NothingLostError(f"another name of the group {known!r}; the file has too many of them")
            self.describe_group(each, path, above)
            return
        attributes = names.StoredAttributes(each)
        if _is_no_variable(attributes):
            raise NothingLostError("a dimension, and no variable")
        name = _variable_name(group, path)
        self.description.arrays.append(self._describe_dataset(each, attributes, name, dimensions))

    def _describe_dataset(
        self, dataset: h5py.Dataset, stored_attributes: names.StoredAttributes, path: str, dimensions: GroupDimensions
    ) -> Array:
        stored = stored_type(dataset)
        scales = [] if dataset.shape is None else dimensions.scales_of(dataset, stored_attributes)
        # A dataset of HDF5 can have a type and attributes, and no values.
        lengths = (0,) if dataset.shape is None else lengths_of(scales, dataset.shape)
        shape = (*lengths, *stored.shape)
        attributes = names.attributes_of(stored_attributes, self.description, path, self.loader.paths)
        flags = names.flags_of(dataset, attributes.values)
        if any(h5py.check_enum_dtype(dataset.dtype[each]) for each in dataset.dtype.names or ()):
            reason = "the names of an enumeration, in a field of a compound type"
            self.description.skip(names.shown(path), reason, has_values=False)
        header = Header(
            path,
            shape,
            stored.dtype,
            fill_value_of(dataset, stored),
            {**attributes.values, **flags},
            tuple(dimensions.names_of(scales, shape)),
            attributes.types,
            tuple(flags),
        )
        # The chunks of an array without values matter for the files that it is joined with. A virtual dataset without
        # an end seems to be empty, because the HDF5 library does not find its sources here.
        is_empty = not math.prod(shape) and (dataset.chunks is None or stored.conversion is not None)
        if dataset.size is None or (is_empty and not (dataset.is_virtual and dataset.virtual_sources())):
            return _without_chunks(header)
        if dataset.is_virtual or dataset.external:
            if stored.conversion is not None or stored.shape:
                raise CannotBeReadError(f"{stored.conversion or 'arrays'}, in other files or datasets")
            return self._virtual(dataset, header) if dataset.is_virtual else self._external(dataset, header)
        try:
            return self._placed(dataset, header, stored)
        except NoReferenceError as error:
            return self._loaded(dataset, header, str(error))

    def _virtual(self, dataset: h5py.Dataset, header: Header) -> Chunked:
        def source(file_name: str, path: str) -> tuple[Array, str]:
            if file_name == ".":
                return self.describe_source(dataset.file, path), THIS_FILE
            other = self.open_other(file_name)
            self.description.checksums[other.location] = other.checksum
            with h5py.File(other.file, "r") as root:
                walk = _GroupWalk.of(other.file, other.nbytes, root, Description(), open_no_other)
                return walk.describe_source(root, path), other.location

        array = describe_virtual(dataset, header, source)
        require_fill_value(array, dataset)
        return array

    def describe_source(self, file: h5py.File, path: str) -> Array:
        """Return a dataset that is a source of a virtual one, and no virtual dataset itself."""
        found = follow_path(file["/"], f"/{path}")
        if not isinstance(found, h5py.Dataset) or found.shape is None or found.is_virtual or found.external:
            raise CannotBeReadError(names.shown(f"a virtual dataset with a source that has no values: {path}"))
        stored = stored_type(found)
        if stored.conversion is not None or stored.shape:
            raise CannotBeReadError(f"a virtual dataset of {stored.conversion or 'arrays'}")
        header = Header(path, found.shape, stored.dtype, fill_value_of(found, stored), {}, ())
        return self._placed(found, header, stored)

    def _external(self, dataset: h5py.Dataset, header: Header) -> Contiguous:
        if len(dataset.external) > 1:
            raise CannotBeReadError(f"its values are in {len(dataset.external)} other files")
        if _is_shorter(dataset, header):
            raise CannotBeReadError(f"{_SHORTER}, with its values in another file")
        name, offset, _ = dataset.external[0]
        other = self.open_other(name)
        if offset + header.nbytes > other.nbytes:
            problem = f"its bytes end at {offset + header.nbytes}, and the file {name} at {other.nbytes}"
            raise CannotBeReadError(names.shown(problem))
        self.description.checksums[other.location] = other.checksum
        return Contiguous(header, offset, other.location)

    def _placed(self, dataset: h5py.Dataset, header: Header, stored: StoredType) -> Array:
        """Return an array that refers to the file, or a few values; raise `NoReferenceError` if zarr cannot read it."""
        if stored.conversion is not None:
            raise NoReferenceError(stored.conversion)
        match dataset.id.get_create_plist().get_layout():
            case h5py.h5d.CHUNKED if dataset.shape:
                array = self._chunked(dataset, header)
                require_fill_value(array, dataset)
                return array
            case h5py.h5d.CONTIGUOUS if dataset.shape:
                return self._contiguous(dataset, header)
        return self._loaded(dataset, header, "")

    def _loaded(self, dataset: h5py.Dataset, header: Header, note: str) -> ArrayValues:
        """Return the values of a dataset; the note says why they are loaded, and is empty for a few values."""
        if has_no_fill_value(dataset) and not dataset.id.get_storage_size():
            raise CannotBeReadError("it was never written, and has no fill value")
        require_filters(dataset, note)
        reason = note or "values without a place in the file"
        self.loader.require_small(dataset, reason)
        require_bounded_chunks(dataset)
        values, filled = self.loader.load(dataset, reason)
        if values.shape != header.shape:
            values = self.loader.extended(values, header.shape, filled, note)
        fill_value = filled if np.ndim(filled) == 0 else header.fill_value
        return ArrayValues(replace(header, dtype=values.dtype, fill_value=fill_value), values, note)

    def _contiguous(self, dataset: h5py.Dataset, header: Header) -> Contiguous | Chunked:
        # With a user block, HDF5 returns a wrong offset for a dataset that was never written.
        offset = dataset.id.get_offset() if dataset.id.get_storage_size() else None
        if offset is not None:
            if _is_shorter(dataset, header):
                raise NoReferenceError(_SHORTER)
            if offset + header.nbytes > self.nbytes:
                raise CannotBeReadError(f"its bytes end at {offset + header.nbytes}, and the file at {self.nbytes}")
            return Contiguous(header, offset)
        # A dataset that was never written has the fill value everywhere.
        if has_no_fill_value(dataset):
            raise CannotBeReadError("it was never written, and has no fill value")
        array = _without_chunks(header)
        require_fill_value(array, dataset)
        return array

    def _chunked(self, dataset: h5py.Dataset, header: Header) -> Chunked:
        offsets, lengths, masks = chunks_of(dataset, self.file, header.shape[: len(dataset.shape)])
        is_there = offsets != MISSING
        # The filters that were left out of most chunks. The other chunks are encoded again.
        mask = Counter(masks[is_there].tolist()).most_common(1)[0][0] if is_there.any() else 0
        filters = filters_of(dataset)
        codecs = tuple(codecs_of(dataset, filters, mask))
        axes = len(header.shape) - offsets.ndim
        chunk_shape = (*dataset.chunks, *header.shape[offsets.ndim :])
        array = Chunked(header, chunk_shape, codecs, _with_axes(offsets, axes), _with_axes(lengths, axes))
        _require_lengths(array, _with_axes(is_there & is_without_filters(filters, masks), axes))
        self._require_chunks_in_file(dataset, array)
        places = {tuple(place) for place in np.argwhere(is_there & (masks != mask)).tolist()}
        if not mask and not places:
            places = set(unfiltered_edges(dataset, filters, offsets, lengths))
            places = places or set(short_edges(dataset, filters, is_there, self.nbytes))
        # Beyond the shape, there may be anything in a chunk.
        places |= set(edges(dataset, is_there, header.shape))
        require_bounded_chunks(dataset, places)
        return self.loader.with_encoded(dataset, array, sorted(places)) if places else array

    def _require_chunks_in_file(self, dataset: h5py.Dataset, array: Chunked) -> None:
        is_there = array.offsets != MISSING
        if not is_there.any():
            return
        offsets, lengths = array.offsets[is_there], array.lengths[is_there]
        if ((lengths > self.nbytes) | (offsets > self.nbytes - np.minimum(lengths, self.nbytes))).any():
            end = max(map(sum, zip(offsets.tolist(), lengths.tolist(), strict=True)))
            raise CannotBeReadError(f"its chunks end at {end}, and the file at {self.nbytes}")
        if self.has_user_block:
            # Some versions of HDF5 return offsets from the end of the user block.
            first = np.argwhere(is_there)[0].tolist()[: len(dataset.chunks)]
            start = tuple(at * size for at, size in zip(first, dataset.chunks, strict=True))
            self.file.seek(int(offsets[0]))
            if self.file.read(int(lengths[0])) != bytes(dataset.id.read_direct_chunk(start)[1]):
                raise NoReferenceError("its chunks are not where the HDF5 library says (the file has a user block)")


def _is_no_variable(attributes: names.StoredAttributes) -> bool:
    return names.text(attributes.get("NAME")).startswith(_NO_VARIABLE)


def _variable_name(group: h5py.Group, path: str) -> str:
    """Return the path of a variable with its name in netCDF, unless another member has that name."""
    above, _, own = path.rpartition("/")
    name = own.removeprefix(_NOT_ALONG)
    if not name or name == own or _is_taken(group, name):
        return path
    return join(above, name)


def _is_taken(group: h5py.Group, name: str) -> bool:
    """Return whether a group has a member with a name, except for a netCDF dimension without a variable."""
    link = group.get(name, getlink=True)
    # A link into another file is not followed.
    return link is not None and not (
        isinstance(link, h5py.HardLink) and _is_no_variable(names.StoredAttributes(group[name]))
    )


def _is_shorter(dataset: h5py.Dataset, header: Header) -> bool:
    """Return whether a dataset has fewer values than its array, because a dimension is longer in netCDF."""
    return bool(dataset.shape != header.shape[: len(dataset.shape)])


def _without_chunks(header: Header) -> Chunked:
    """Return an array that has the fill value everywhere, or no values."""
    nowhere = np.full([min(1, length) for length in header.shape], MISSING, np.uint64)
    return Chunked(header, tuple(max(1, length) for length in header.shape), (), nowhere, nowhere)


def _require_lengths(array: Chunked, is_plain: NDArray[np.bool_]) -> None:
    """Raise if a chunk is empty, or if one that no filter was applied to has another length than its values."""
    raw_nbytes = math.prod(array.chunk_shape) * array.header.dtype.itemsize
    is_wrong = (array.lengths == 0) | (is_plain & (array.lengths != raw_nbytes))
    if is_wrong.any():
        raise CannotBeReadError(f"a chunk of {array.lengths[is_wrong][0]} bytes, expected {raw_nbytes}")


def _with_axes[T: np.generic](numbers: NDArray[T], count: int) -> NDArray[T]:
    """Return numbers on the grid of chunks with more axes, of one chunk each."""
    return numbers.reshape(*numbers.shape, *[1] * count)
