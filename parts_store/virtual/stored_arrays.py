"""The arrays of a session that a source is appended to, or written to a region of: read them, and check what fits.

Nothing is written here.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store._compat.zarr import ArrayV3Metadata, normalize_path, sync
from parts_store.errors import ManifestError, NoAccessError, PartsStoreError, StoreConfigError, describe
from parts_store.redaction import hide_in_url
from parts_store.virtual.combine_checks import FileGroup
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.meaning import find_difference, require_same_meaning
from parts_store.virtual.manifests.references import chunk_shape_of, document_of, parse_metadata
from parts_store.virtual.manifests.shards import is_cut, uncut_metadata
from parts_store.virtual.options import AdoptOptions
from parts_store.virtual.registered_files import FileRegistry
from parts_store.virtual.source_tree import SourceGroup
from parts_store.virtual.store_access import DOCUMENT, ConcatParts, PartPlacement, PartsStore, destination, parse
from parts_store.virtual.virtual_dataset import Origin, first_difference, is_loaded, load_arrays, load_variables

# The schemes of containers whose files can be read with the options of obstore.
_READABLE: Final = ("file://", "s3://")
_FILL: Final = "_FillValue"
_LOAD: Final = "if it is small, load it (`loadable_variables`)"
_LEAVE_OUT: Final = "leave the variable out to keep what is stored (`variables`, `drop_vars`)"


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array of a session."""

    path: str
    metadata: ArrayV3Metadata
    parts: ConcatParts | None
    # Whether its chunks are in shards as `cut` makes them.
    is_cut: bool

    @property
    def chunk_metadata(self) -> ArrayV3Metadata:
        """The metadata of the array of its chunks, without the shards that `cut` has made."""
        return uncut_metadata(self.metadata) if self.is_cut else self.metadata

    def length(self, dim: str) -> int | None:
        """Return the length along a dimension, None if the array does not have the dimension."""
        names = list(self.metadata.dimension_names or ())
        return self.metadata.shape[names.index(dim)] if dim in names else None


def place(*names: str) -> str:
    """Return the path of a node, given the names above it, some of which may be empty."""
    return "/".join(name for name in names if name)


def names_in(store: PartsStore, path: str) -> list[str]:
    """Return the names of the members of a group."""

    async def names() -> list[str]:
        return [name.strip("/") async for name in store.list_dir(path)]

    return sync(names())


def read_stored(store: PartsStore, paths: Sequence[str]) -> dict[str, StoredArray]:
    """Return the arrays at some paths; paths without an array are left out."""
    found: dict[str, StoredArray] = {}
    for path, documents in destination.read_nodes(store, paths).items():
        document = parse(documents[DOCUMENT]) if destination.is_array(documents) else None
        if document is not None:
            record = store.protocol.read_array(document, path)
            parts = None if record is None else record.parts
            is_split = record is not None and record.placement is PartPlacement.SPLIT
            metadata, _ = parse_metadata(document)
            found[path] = StoredArray(path, metadata, parts, is_split and is_cut(metadata, parts))
    return found


def read_all_stored(store: PartsStore, path: str, groups: Sequence[str]) -> dict[str, StoredArray]:
    """Return all arrays in groups, and in the groups below them, by their paths below a path."""
    found: dict[str, StoredArray] = {}
    while groups:
        names = [place(group, name) for group in groups for name in names_in(store, place(path, group))]
        stored = read_stored(store, [place(path, name) for name in names])
        found |= {name: stored[place(path, name)] for name in names if place(path, name) in stored}
        groups = [name for name in names if name not in found]
    return found


def stored_chunk_lengths(store: PartsStore, path: str, dim: str) -> dict[str, int]:
    """Return the lengths of the chunks of all stored arrays along a dimension, by their paths below a path.

    Only arrays that are not compressed are among them: chunks of files can be cut to the same length.
    """
    return {
        name: chunk_shape_of(array.chunk_metadata)[list(array.metadata.dimension_names or ()).index(dim)]
        for name, array in read_all_stored(store, path, [""]).items()
        if array.length(dim) is not None
        and all(isinstance(codec, BytesCodec | TransposeCodec) for codec in array.chunk_metadata.codecs)
    }


# --- a group ----------------------------------------------------------------------------------------------------------


def require_stored(store: PartsStore, path: str, group: SourceGroup) -> tuple[dict[str, StoredArray], list[str]]:
    """Return the arrays of a stored group by their names, and the names of its other members.

    Raises an error unless the arrays of the source are among them.
    """
    (documents,) = destination.read_nodes(store, [path]).values()
    if not documents or destination.is_array(documents):
        raise StoreConfigError("path", "a group that is stored, to add to its arrays", f"none at {path!r}")
    names = names_in(store, path)
    found = read_stored(store, [place(path, name) for name in names])
    stored = {array.path.rpartition("/")[2]: array for array in found.values()}
    for name in group.arrays:
        if name not in stored:
            raise ManifestError(f"array {place(path, name)!r}", "an array that is stored", "none")
    return stored, [name for name in names if name not in stored]


def require_complete(
    path: str, stored: Mapping[str, StoredArray], group: SourceGroup, dim: str, *, is_complete: bool
) -> set[int]:
    """Return the length of stored arrays along a dimension; raise `ManifestError` unless the source continues them.

    With `is_complete`, the source must have the other arrays, too.
    """
    lengths = {name: length for name, array in stored.items() if (length := array.length(dim)) is not None}
    for name in [name for name in stored if name not in group.names]:
        subject = f"array {place(path, name)!r}"
        if name in lengths:
            raise ManifestError(subject, f"values along {dim!r}, as for the others", "none")
        if is_complete:
            found = "none in the files; if it may be missing, name the variables to append (`variables`)"
            raise ManifestError(subject, "the variable that is stored", found)
    if len(set(lengths.values())) > 1:
        raise ManifestError(f"group {path!r}", f"stored arrays of one length along {dim!r}", str(lengths))
    return set(lengths.values())


def require_no_other_groups(store: PartsStore, groups: Sequence[str], dim: str, lengths: set[int]) -> None:
    """Raise `ManifestError` if a stored group that the source does not have belongs to those that are continued.

    Its arrays then have the same length along the dimension. Groups with other lengths were stored independently.
    """
    for array in read_all_stored(store, "", groups).values():
        if array.length(dim) in lengths:
            group = array.path.rpartition("/")[0]
            found = f"none in the source, without a group {group!r}; if it is independent, append to it first (`path`)"
            raise ManifestError(f"array {array.path!r}", f"values along {dim!r}, as for the other groups", found)


# --- an array ---------------------------------------------------------------------------------------------------------


def require_alike(stored: StoredArray, new: PartsArray, free: Sequence[str]) -> None:
    """Raise `ManifestError` unless new chunks fit in a stored array, whose length may differ along some dimensions."""
    require_same_form(stored, new, free)
    old, added = stored.chunk_metadata, new.metadata
    mine, theirs = document_of(old), document_of(added)
    for what, expected, found in (
        ("fill value", mine["fill_value"], theirs["fill_value"]),
        ("codecs", mine["codecs"], theirs["codecs"]),
        ("chunk shape", chunk_shape_of(old), chunk_shape_of(added)),
        ("parts", None if stored.is_cut else stored.parts, new.declared_parts),
    ):
        if expected != found:
            advice = f"; {_LOAD}" if what in ("codecs", "chunk shape") else ""
            raise ManifestError(f"array {stored.path!r}", f"the {what} {expected}", f"{found}{advice}")


def require_whole_chunks(stored: StoredArray, dim: str) -> None:
    """Raise `ManifestError` unless a stored array ends with a whole chunk along a dimension."""
    length = stored.length(dim) or 0
    chunk = chunk_shape_of(stored.chunk_metadata)[list(stored.metadata.dimension_names or ()).index(dim)]
    if length % chunk:
        expected = f"a stored length along {dim!r} that is a multiple of the chunk length {chunk}, to append chunks"
        raise ManifestError(f"array {stored.path!r}", expected, f"{length}; {_LOAD}")


def require_same_form(stored: StoredArray, new: PartsArray, free: Sequence[str] = ()) -> None:
    """Raise `ManifestError` unless an array has the dimensions, the data type and the meaning of a stored one.

    Their lengths may differ along the dimensions that are free.
    """
    subject = f"array {stored.path!r}"
    old, added = stored.metadata, new.metadata
    names, others = tuple(old.dimension_names or ()), tuple(added.dimension_names or ())
    if names != others:
        raise ManifestError(subject, f"the dimensions {names}", str(others))
    if len(names) != len(old.shape):
        raise ManifestError(subject, "names of all dimensions", "none")
    if old.data_type != added.data_type:
        expected, found = (metadata.data_type.to_native_dtype() for metadata in (old, added))
        raise ManifestError(subject, f"the data type {expected}", str(found))
    for name, length, other in zip(names, old.shape, added.shape, strict=True):
        if name not in free and length != other:
            raise ManifestError(subject, f"the length {length} along the dimension {name!r}", str(other))
    require_same_meaning(stored.path, old.attributes, added.attributes)


def compare_with_stored(store: PartsStore, stored: StoredArray, new: PartsArray, max_loaded: int) -> str:
    """Raise `ManifestError` unless an array has the values that are stored; return what the report says about it.

    Arrays of more than `max_loaded` bytes, and arrays that refer to files without access, are not compared, and the
    report says so.
    """
    require_same_form(stored, new)
    nbytes = 2 * new.nbytes
    if nbytes > max_loaded:
        return f"not changed, and not compared with what is stored: {nbytes:,} bytes"
    location = hide_in_url(next(iter(new.references.locations()), "the manifest"))
    found = _values_of(store, stored, new, location)
    try:
        expected = np.asarray(zarr.open_array(store, path=stored.path, mode="r")[...])
    except NoAccessError as error:
        return f"not changed, and not compared with what is stored: {error.problem}"
    if (at := first_difference(expected, found)) is not None:
        where = f"array {stored.path!r}, at {list(at)}" if at else f"array {stored.path!r}"
        # An element of an array of texts is a text, and has no `item`.
        old_value, new_value = (describe(np.asarray(values[at]).item()) for values in (expected, found))
        raise ManifestError(where, f"{old_value}, as it is stored", f"{new_value} in {location!r}; {_LEAVE_OUT}")
    return "not changed"


def _values_of(store: PartsStore, stored: StoredArray, new: PartsArray, location: str) -> NDArray[Any]:
    """Return the values of an array; raise `ManifestError` if they cannot be read."""
    try:
        if not new.registries:
            new = new.with_registry(FileRegistry.of_folders(containers_of(store), {}))
        return load_arrays([new], [Origin(location, stored.path)])[0]
    except PartsStoreError as error:
        expected = "values that can be read, to compare them with those that are stored"
        advice = f"{_LEAVE_OUT}, or load it (`loadable_variables`)"
        raise ManifestError(f"array {stored.path!r}", expected, f"{error}; {advice}") from error


def containers_of(store: PartsStore) -> list[str]:
    """Return the URLs of the folders that a session may refer to, as far as they can be read here."""
    known = store.session.config.virtual_chunk_containers or {}
    return [url for url in known if url.startswith(_READABLE)]


# --- variables whose stored array is not in files ---------------------------------------------------------------------


def load_unlike(group: FileGroup, store: PartsStore, options: AdoptOptions, dim: str) -> FileGroup:
    """Return a group in which variables are loaded that are appended to arrays whose values are stored.

    Variables that are too large are not loaded. They are refused when they are appended. Raises `ManifestError` for a
    variable of another meaning than the stored one: values that are loaded would be encoded.
    """
    prefix = place(normalize_path(options.path), group.path)
    along = {name: variable for name, variable in group.dataset.variables.items() if dim in variable.dims}
    found = read_stored(store, [place(prefix, str(name)) for name in along])
    stored = {name: found[path] for name in along if (path := place(prefix, str(name))) in found}
    for name, array in stored.items():
        # Times are decoded. All others have the attributes of the file.
        if along[name].dtype.kind not in "MO":
            given = along[name].attrs
            require_same_meaning(array.path, _without_default(array.metadata.attributes, given), given)
    unlike: dict[Hashable, xr.Variable] = {
        name: along[name] for name, array in stored.items() if _has_to_be_loaded(along[name], array, options)
    }
    origins = [
        Origin(next(iter(variable.data.references.locations()), "no file"), stored[name].path)
        for name, variable in unlike.items()
    ]
    loaded = dict(zip(unlike, load_variables(list(unlike.values()), origins), strict=True))
    if not loaded:
        return group
    notes = {group.path_of(name): "loaded, because the values of the stored array are not in files" for name in loaded}
    return dataclasses.replace(group, dataset=group.dataset.assign(loaded), notes={**group.notes, **notes})


def _has_to_be_loaded(variable: xr.Variable, stored: StoredArray, options: AdoptOptions) -> bool:
    """Return whether a stored array is not in parts, and has other chunks or codecs than a variable to append to it."""
    if is_loaded(variable) or variable.nbytes > options.max_loaded_nbytes or stored.parts is not None:
        return False
    old, new = stored.chunk_metadata, variable.data.metadata
    return bool(chunk_shape_of(old) != chunk_shape_of(new) or old.codecs != new.codecs)


def _without_default(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored attributes without the fill value NaN that xarray adds to floating-point numbers without one."""
    is_added = _FILL not in given and find_difference({_FILL: stored.get(_FILL)}, {_FILL: "NaN"}) is None
    return {key: value for key, value in stored.items() if key != _FILL or not is_added}
