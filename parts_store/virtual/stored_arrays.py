"""The arrays of a session that a source is appended to, or written to a region of: what fits, and how it is added.

A stored array keeps its form. New chunks of plain references, also on a rectilinear grid, come behind its chunks. Those
of an array in shards come in its last shards: the parts of a stored shard that are ranges of files stay as they are,
with their checksums; a part that is not used yet becomes the range of the new chunks, and the index is replaced. If no
part is left, the array is cut into shards again, from the references that are stored and the new ones: only references
and indexes are written, no data. Nothing is written here.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from icechunk import ChunkType
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store._compat.zarr import ArrayV3Metadata, RectilinearChunkGridMetadata, normalize_path, sync
from parts_store.errors import (
    IncompleteChunkError,
    ManifestError,
    NoAccessError,
    PartsStoreError,
    StoreConfigError,
    describe,
)
from parts_store.redaction import hide_in_url
from parts_store.text import did_you_mean
from parts_store.virtual.combine import SMALL_CHUNK, FileGroup, decode_times
from parts_store.virtual.existing_files import wait_for_next_second
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import Columns, FileRange
from parts_store.virtual.manifests.from_store import referred_array
from parts_store.virtual.manifests.meaning import find_difference, require_same_meaning
from parts_store.virtual.manifests.operations import can_cut_rows, concatenate, cut_rows, merge_checksums
from parts_store.virtual.manifests.references import (
    References,
    chunk_lengths_of,
    chunk_shape_of,
    document_of,
    edges_of,
    grid_of,
    is_rectilinear,
    parse_metadata,
    storage_order,
)
from parts_store.virtual.manifests.shards import (
    DEFAULT_SHARD_CHUNKS,
    MAX_PLAIN_CHUNKS,
    ChunkTable,
    ReferenceShards,
    counts_of,
    cut,
    cut_shards,
    decode_index,
    is_cut,
    shard_columns,
    uncut,
    uncut_metadata,
)
from parts_store.virtual.manifests.to_icechunk import PlannedArray, plan_array
from parts_store.virtual.options import AdoptOptions
from parts_store.virtual.registries import FileRegistry
from parts_store.virtual.store_access import (
    DOCUMENT,
    NO_CHUNK,
    Chunk,
    ConcatParts,
    PartPlacement,
    PartsStore,
    Span,
    destination,
    encode_table,
    join,
    parse,
    run_for_each,
)
from parts_store.virtual.virtual_dataset import SourceGroup, first_difference, is_loaded, load_arrays, load_variables

# The schemes of containers whose files can be read with the options of obstore.
_READABLE: Final = ("file://", "s3://")
_FILL: Final = "_FillValue"
_LOAD: Final = "if it is small, load it (`loadable_variables`)"
_LEAVE_OUT: Final = "leave the variable out to keep what is stored (`variables`, `drop_vars`)"
# What Icechunk uses if a repository does not say how large a chunk in a manifest may be.
_DEFAULT_INLINE: Final = 512
# How many stored shards are read at the same time.
_AT_ONCE: Final = 32


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


def place(path: str, group: str) -> str:
    """Return the path of a group of a source that is written to a path. Both may be empty."""
    return join(path, group) if group else path


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
        names = [join(group, name) for group in groups for name in names_in(store, place(path, group))]
        stored = read_stored(store, [join(path, name) for name in names])
        found |= {name: stored[join(path, name)] for name in names if join(path, name) in stored}
        groups = [name for name in names if name not in found]
    return found


def stored_chunk_lengths(store: PartsStore, path: str, dim: str) -> dict[str, tuple[int, int]]:
    """Return the lengths of the chunks of all stored arrays along a dimension, and of the arrays, by their paths.

    The paths are those below a path. Only arrays that are not compressed are among them: chunks of files, and their
    own ones, can be cut to the same length. Raises `StoreConfigError` if no stored array has the dimension.
    """
    found = read_all_stored(store, path, [""])
    require_append_dim(path, list(found.values()), dim)
    return {
        name: (chunk_shape_of(array.chunk_metadata)[_axis(array, dim)], length)
        for name, array in found.items()
        if (length := array.length(dim)) is not None
        and not is_rectilinear(array.chunk_metadata)
        and all(isinstance(codec, BytesCodec | TransposeCodec) for codec in array.chunk_metadata.codecs)
    }


def require_append_dim(path: str, arrays: Sequence[StoredArray], dim: str) -> None:
    """Raise `StoreConfigError` if there are stored arrays at a path, and none of them has a dimension."""
    known = sorted({name for array in arrays for name in array.metadata.dimension_names or () if name})
    if arrays and dim not in known:
        shown = ", ".join(map(repr, known)) or "none"
        expected = f"a dimension of the arrays that are stored at {path!r}, which have {shown}"
        raise StoreConfigError("append_dim", expected, f"{dim!r}{did_you_mean(dim, known)}")


# --- a group ----------------------------------------------------------------------------------------------------------


def require_stored(store: PartsStore, path: str, group: SourceGroup) -> tuple[dict[str, StoredArray], list[str]]:
    """Return the arrays of a stored group by their names, and the names of its other members.

    Raises an error unless the arrays of the source are among them.
    """
    (documents,) = destination.read_nodes(store, [path]).values()
    if not documents or destination.is_array(documents):
        raise StoreConfigError("path", "a group that is stored, to add to its arrays", f"none at {path!r}")
    names = names_in(store, path)
    found = read_stored(store, [join(path, name) for name in names])
    stored = {array.path.rpartition("/")[2]: array for array in found.values()}
    for name in group.arrays:
        if name not in stored:
            raise ManifestError(f"array {join(path, name)!r}", "an array that is stored", "none")
    return stored, [name for name in names if name not in stored]


def require_complete(
    path: str, stored: Mapping[str, StoredArray], group: SourceGroup, dim: str, *, is_complete: bool
) -> set[int]:
    """Return the length of stored arrays along a dimension; raise `ManifestError` unless the source continues them.

    With `is_complete`, the source must have the other arrays, too.
    """
    lengths = {name: length for name, array in stored.items() if (length := array.length(dim)) is not None}
    for name in [name for name in stored if name not in group.names]:
        subject = f"array {join(path, name)!r}"
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


def require_alike(stored: StoredArray, new: PartsArray, free: Sequence[str], *, any_length: Sequence[str] = ()) -> None:
    """Raise `ManifestError` unless new chunks fit in a stored array, whose length may differ along some dimensions.

    Along the dimensions in `any_length`, the lengths of the chunks may differ, too.
    """
    require_same_form(stored, new, free)
    old, added = stored.chunk_metadata, new.metadata
    mine, theirs = document_of(old), document_of(added)
    for what, expected, found in (
        ("fill value", mine["fill_value"], theirs["fill_value"]),
        ("codecs", mine["codecs"], theirs["codecs"]),
        ("chunk shape", _chunk_lengths(old, any_length), _chunk_lengths(added, any_length)),
        ("parts", None if stored.is_cut else stored.parts, new.declared_parts),
    ):
        if expected != found:
            advice = f"; {_advice(stored)}" if what in ("codecs", "chunk shape") else ""
            raise ManifestError(f"array {stored.path!r}", f"the {what} {expected}", f"{found}{advice}")


def _chunk_lengths(metadata: ArrayV3Metadata, left_out: Sequence[str] = ()) -> tuple[int | tuple[int, ...], ...]:
    """Return the lengths of the chunks along the axes that are not left out."""
    names = metadata.dimension_names or (None,) * len(metadata.shape)
    lengths = chunk_lengths_of(metadata)
    return tuple(each for name, each in zip(names, lengths, strict=True) if name not in left_out)


def _advice(stored: StoredArray) -> str:
    """Return what works for chunks that do not fit in a stored array."""
    if stored.parts is not None:
        return "adopt all files again, together (`overwrite`): nothing else can be added to an array in shards"
    return f"{_LOAD}, or adopt all files again, together (`overwrite`)"


def require_whole_chunks(stored: StoredArray, dim: str) -> None:
    """Raise `ManifestError` unless a stored array ends with a whole chunk along a dimension."""
    if not _ends_with_whole_chunk(stored, dim):
        chunk = edges_of(stored.chunk_metadata)[_axis(stored, dim)][-1]
        expected = f"a stored length along {dim!r} that is a multiple of the chunk length {chunk}, to append chunks"
        raise ManifestError(f"array {stored.path!r}", expected, f"{stored.length(dim)}; {_advice(stored)}")


def _ends_with_whole_chunk(stored: StoredArray, dim: str) -> bool:
    return sum(edges_of(stored.chunk_metadata)[_axis(stored, dim)]) == stored.length(dim)


def _axis(stored: StoredArray, dim: str) -> int:
    return list(stored.metadata.dimension_names or ()).index(dim)


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
    # The byte order is in the codecs: the type of a stored array has none, that of a file may have one.
    if old.data_type.to_json(zarr_format=3) != added.data_type.to_json(zarr_format=3):
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
        return load_arrays([new], [(location, stored.path)])[0]
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
    """Return a group in which variables are loaded that cannot be appended to their stored arrays as references.

    Variables that are too large are not loaded. They are refused when they are appended. Raises `ManifestError` for a
    variable of another meaning than the stored one: values that are loaded would be encoded.
    """
    prefix = place(normalize_path(options.path), group.path)
    along = {name: variable for name, variable in group.dataset.variables.items() if dim in variable.dims}
    found = read_stored(store, [join(prefix, str(name)) for name in along])
    stored = {name: found[path] for name in along if (path := join(prefix, str(name))) in found}
    if times := [name for name, array in stored.items() if _counts_from_another_day(along[name], array)]:
        (group,) = decode_times([group], times)
        along = {name: group.dataset.variables[name] for name in along}
    for name, array in stored.items():
        # Times are decoded. All others have the attributes of the file.
        if along[name].dtype.kind not in "MO":
            given = along[name].attrs
            require_same_meaning(array.path, _without_default(array.metadata.attributes, given), given)
    why = {name: _why_loaded(along[name], array, store, options, dim) for name, array in stored.items()}
    unlike: dict[Hashable, xr.Variable] = {name: along[name] for name, reason in why.items() if reason is not None}
    origins = [
        (next(iter(variable.data.references.locations()), "no file"), stored[name].path)
        for name, variable in unlike.items()
    ]
    loaded = dict(zip(unlike, load_variables(list(unlike.values()), origins), strict=True))
    if not loaded:
        return group
    notes = {group.path_of(name): f"loaded, because {why[name]}" for name in loaded}
    return dataclasses.replace(group, dataset=group.dataset.assign(loaded), notes={**group.notes, **notes})


def _counts_from_another_day(variable: xr.Variable, stored: StoredArray) -> bool:
    units, expected = (str(each.get("units")) for each in (variable.attrs, stored.metadata.attributes))
    return variable.dtype.kind in "iuf" and units != expected and all(" since " in each for each in (units, expected))


def _why_loaded(
    variable: xr.Variable, stored: StoredArray, store: PartsStore, options: AdoptOptions, dim: str
) -> str | None:
    """Return why a variable is loaded to be appended to a stored array; None if its chunks are appended, or refused.

    It is loaded if the stored array has values and other chunks or codecs; and if only its chunks do not continue those
    of a stored array of references, and the caller has not forbidden it.
    """
    if is_loaded(variable) or variable.nbytes > options.max_loaded_nbytes or stored.parts is not None:
        return None
    old, new = stored.chunk_metadata, variable.data.metadata
    is_same_codec = old.codecs == new.codecs
    if is_same_codec and _has_finer_chunks(variable.data, stored, dim) and _is_in_files(store, stored):
        return None
    is_on_grid = _chunk_lengths(old) == _chunk_lengths(new)
    if not (is_same_codec and is_on_grid) and not _has_chunks(store, stored, are_in_files=True):
        return "the values of the stored array are not in files"
    is_alike = _chunk_lengths(old, [dim]) == _chunk_lengths(new, [dim])
    # Values that are not compressed are cut as the lengths in a file allow, also along other dimensions.
    if not is_same_codec or not (is_alike or storage_order(old)):
        return None
    is_large = is_rectilinear(new) or variable.data.references.nbytes_of_plain_chunk >= SMALL_CHUNK
    may_be_uneven = is_rectilinear(old) or (options.uneven == "rectilinear" and is_large)
    if is_alike and (is_on_grid or may_be_uneven) and _ends_with_whole_chunk(stored, dim):
        return None
    if options.uneven != "load" and is_large:
        return None
    return f"its chunks do not continue the stored ones along {dim!r}"


def _is_in_files(store: PartsStore, stored: StoredArray) -> bool:
    """Return whether all chunks of a stored array without parts are references to files."""
    return not _has_chunks(store, stored, are_in_files=False)


def _has_chunks(store: PartsStore, stored: StoredArray, *, are_in_files: bool) -> bool:
    """Return whether any chunk of a stored array is in a file, or any is not."""

    async def found() -> bool:
        async for batch in store.session.store.array_chunk_iterator(f"/{stored.path}"):
            if any((kind == ChunkType.virtual) is are_in_files for kind in batch[1]):
                return True
        return False

    return sync(found())


def _has_finer_chunks(new: PartsArray, stored: StoredArray, dim: str) -> bool:
    """Return whether stored chunks that are not compressed could be cut along a dimension to the shape of new ones."""
    old, added = stored.chunk_metadata, new.metadata
    names = list(old.dimension_names or ())
    if dim not in names or len(old.shape) != len(added.shape) or not storage_order(old):
        return False
    if is_rectilinear(old) or is_rectilinear(added):
        return False
    chunks = zip(names, chunk_shape_of(old), chunk_shape_of(added), strict=True)
    is_alike = all(length % chunk == 0 if name == dim else length == chunk for name, length, chunk in chunks)
    axis = names.index(dim)
    is_alike = is_alike and old.shape[axis] % chunk_shape_of(added)[axis] == 0
    return is_alike and chunk_shape_of(old) != chunk_shape_of(added)


def _without_default(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored attributes without the fill value NaN that xarray adds to floating-point numbers without one."""
    is_added = _FILL not in given and find_difference({_FILL: stored.get(_FILL)}, {_FILL: "NaN"}) is None
    return {key: value for key, value in stored.items() if key != _FILL or not is_added}


# --- how references are added -----------------------------------------------------------------------------------------

type AppendPlace = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """References for a block of chunks of a stored array, which gets this shape; `first` is the first chunk."""

    stored: StoredArray
    shape: tuple[int, ...]
    references: References
    first: AppendPlace
    # The chunks that do not exist any more.
    removed: tuple[AppendPlace, ...] = ()
    # The new grid, if it is a rectilinear one.
    chunk_grid: RectilinearChunkGridMetadata | None = None

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.stored.path


type Planned = tuple[Continuation | PlannedArray, str]
"""What is written, a continuation or an array that takes the place of the stored one; and why, for the report."""


def max_index_of(store: PartsStore) -> int:
    """Return the size of the largest index of a shard that the session of a store keeps in a manifest."""
    nbytes: int | None = store.session.config.inline_chunk_threshold_bytes
    return _DEFAULT_INLINE if nbytes is None else nbytes


# --- append -----------------------------------------------------------------------------------------------------------


def plan_append(store: PartsStore, stored: StoredArray, new: PartsArray, dim: str, options: AdoptOptions) -> Planned:
    """Return how an array is continued along a dimension; raise `ManifestError` if that is not possible."""
    is_finer = _has_finer_chunks(new, stored, dim) and (stored.is_cut or _is_in_files(store, stored))
    is_free = stored.parts is None and (is_rectilinear(stored.metadata) or options.uneven == "rectilinear")
    require_alike(stored, new, [dim], any_length=[dim] if is_free or is_finer else [])
    if not is_finer:
        require_whole_chunks(stored, dim)
    old, added = stored.chunk_metadata, new.references
    axis = _axis(stored, dim)

    def join(before: References) -> References:
        # The file has another length than those before it, so that all chunks have to be shorter.
        return concatenate([_cut_like(stored, before, added, axis) if is_finer else before, added], axis)

    if is_finer:
        return _cut_again(store, stored, added, join, options)
    if stored.is_cut and stored.parts is not None:
        continued = None
        if not added.columns[0].inlined:
            continued = _continue_shards(store.session, stored, stored.parts, added, axis)
        if continued is None:
            return _cut_again(store, stored, added, join, options)
        return continued
    shape = _longer(old.shape, axis, added.metadata.shape[axis])
    edges = [
        mine + theirs if at == axis else mine
        for at, (mine, theirs) in enumerate(zip(edges_of(old), edges_of(added.metadata), strict=True))
    ]
    grid = None
    if is_rectilinear(old) or _chunk_lengths(old) != _chunk_lengths(added.metadata):
        grid = RectilinearChunkGridMetadata(chunk_shapes=tuple(edges))
    first = _behind_rows(len(shape), axis, grid_of(old)[axis])
    return Continuation(stored, shape, added, first, chunk_grid=grid), _appended(math.prod(map(len, edges)))


def _appended(chunks: int) -> str:
    """Return what the report says about an array of references that has so many chunks after an append."""
    if chunks <= MAX_PLAIN_CHUNKS:
        return "appended as references of their own"
    shards = -(-chunks // DEFAULT_SHARD_CHUNKS)
    return (
        f"appended as references of their own, which are {chunks:,} now; adopted again in shards (`overwrite`, "
        f"`shard_chunks={DEFAULT_SHARD_CHUNKS}`), for parts_store only, the array would have about {shards:,}"
    )


def _cut_like(stored: StoredArray, before: References, added: References, axis: int) -> References:
    """Return stored references in the chunks of added ones; raise `ManifestError` if they cannot be cut to them."""
    if not can_cut_rows(before, axis):
        expected = f"chunks of the length {before.chunk_shape[axis]}, as those that are stored and cannot all be cut"
        raise ManifestError(f"array {stored.path!r}", expected, f"{added.chunk_shape[axis]}; {_advice(stored)}")
    return cut_rows(before, axis, added.chunk_shape[axis])


def _longer(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] + length, *shape[axis + 1 :])


def _behind_rows(ndim: int, axis: int, rows: int) -> AppendPlace:
    """Return the index of the first chunk behind this number of rows of chunks."""
    return tuple(rows if each == axis else 0 for each in range(ndim))


def _cut_again(
    store: PartsStore,
    stored: StoredArray,
    added: References,
    join: Callable[[References], References],
    options: AdoptOptions,
) -> tuple[PlannedArray, str]:
    """Return an array in new chunks, in shards if it was in shards; `join` returns its chunks, given those stored."""
    # A file that is changed after it was found unchanged must have a later time.
    wait_for_next_second(options.begun)
    before = referred_array(store, stored.path, options.begun).references
    # A file that is added has the checksum that comes with it.
    checksums = {each: checksum for each, checksum in before.checksums.items() if each not in added.checksums}
    before = dataclasses.replace(before, checksums=checksums, parts=None)
    if not stored.is_cut:
        return plan_array(stored.path, join(before)), "cut again, into shorter chunks that fit all files"
    joined = join(uncut(before))
    # The array stays in shards: if need be, in larger ones than are asked for, or in such as it has.
    most = min(DEFAULT_SHARD_CHUNKS, int((~joined.is_missing()).sum()))
    for shard_chunks in (options.shard_chunks or DEFAULT_SHARD_CHUNKS, most, math.prod(counts_of(stored.metadata))):
        sharded = cut(joined, shard_chunks, max_index=max_index_of(store))
        if sharded.is_cut:
            break
    if not sharded.is_cut and added.columns[0].inlined:
        expected = "chunks that can be added to an array in shards"
        raise ManifestError(f"array {stored.path!r}", expected, f"others ({sharded.reason}); {_advice(stored)}")
    return plan_array(stored.path, sharded.references), f"cut again: {sharded.reason}"


# --- the last shards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastShard:
    """A stored shard that has room for more chunks."""

    # The numbers of bytes of the parts that are ranges of files.
    sizes: tuple[int, ...]
    index: bytes


def _continue_shards(
    session: Any, stored: StoredArray, parts: ConcatParts, new: References, axis: int
) -> Planned | None:
    """Return what is written to append chunks to an array in shards; None if the array has to be cut again.

    The array ends with a whole chunk. Of a shard that is continued, only the new parts are written.
    """
    metadata = stored.metadata
    counts, files = counts_of(metadata), len(parts.parts) - 1
    rows = metadata.shape[axis] // metadata.chunks[axis]
    first = _behind_rows(len(counts), axis, rows // counts[axis])
    table = _behind(new, axis, rows % counts[axis])
    shards = cut_shards(table, counts, files)
    if shards is None:
        return None
    at_start = [place for place in _places(shards) if not place[axis]] if rows % counts[axis] else []
    places = {place: tuple(at + start for at, start in zip(place, first, strict=True)) for place in at_start}
    last = sync(_read_shards(session, stored.path, parts, places))
    columns = _columns(table, counts, shards, last, files)
    if columns is None:
        return None
    shape = _longer(metadata.shape, axis, new.metadata.shape[axis])
    block = tuple(length - at * chunk for length, at, chunk in zip(shape, first, chunk_shape_of(metadata), strict=True))
    references = References(dataclasses.replace(metadata, shape=block), tuple(columns), new.checksums, parts)
    counted = [(len(shards.nbytes) - len(last), "new"), (len(last), "continued")]
    shown = ", ".join(f"{count:,} shard{'s' * (count != 1)} {what}" for count, what in counted if count)
    return Continuation(stored, shape, references, first), f"appended: {shown or 'no chunks'}"


def _behind(new: References, axis: int, filled: int) -> ChunkTable:
    """Return the table of new chunks, behind as many missing rows as the last shard has already."""
    (columns,) = new.columns
    if not filled:
        return ChunkTable.of(columns.paths, columns.offsets, columns.lengths)
    before = tuple(filled if each == axis else length for each, length in enumerate(columns.paths.shape))

    def behind(values: Any) -> Any:
        return np.concatenate([np.zeros(before, values.dtype), values], axis=axis)

    return ChunkTable.of(behind(columns.paths), behind(columns.offsets), behind(columns.lengths))


def _places(shards: ReferenceShards) -> list[AppendPlace]:
    return [tuple(each) for each in shards.coordinates.tolist()]


async def _read_shards(
    session: Any, path: str, parts: ConcatParts, places: Mapping[AppendPlace, AppendPlace]
) -> dict[AppendPlace, LastShard]:
    """Return the stored shards at some places, by their places in the block; those that do not exist are left out."""
    icechunk = session.store

    async def read(place: AppendPlace) -> LastShard | None:
        chunk = Chunk(f"{path}/c/{'/'.join(map(str, place))}".lstrip("/"), parts, path, is_split=True)
        if not await icechunk.exists(chunk.anchor_key):
            return None
        index = await icechunk.get(chunk.part_keys[-1], default_buffer_prototype())
        if index is None:
            raise IncompleteChunkError(chunk.chunk_key, (chunk.part_keys[-1],), ())
        sizes = []
        for key in chunk.part_keys[:-1]:
            kind = await session.chunk_type_async(f"/{key.rpartition('c/')[0].rstrip('/')}", list(place))
            if kind != ChunkType.virtual:
                break
            sizes.append(await icechunk.getsize(key))
        return LastShard(tuple(sizes), index.to_bytes())

    found = await run_for_each(list(places.values()), read, _AT_ONCE)
    return {place: shard for place, shard in zip(places, found, strict=True) if shard is not None}


def _columns(
    table: ChunkTable,
    counts: tuple[int, ...],
    shards: ReferenceShards,
    stored: Mapping[AppendPlace, LastShard],
    files: int,
) -> Sequence[Columns] | None:
    """Return the columns of all parts; None if a stored shard has not enough unused parts."""
    places = _places(shards)
    is_new = np.array([place not in stored for place in places], bool)
    columns = shard_columns(table, counts, shards.only(is_new), files)
    for number in np.flatnonzero(~is_new).tolist():
        place = places[number]
        shard = stored[place]
        added = [which for which in range(shards.files) if shards.numbers[number, which] >= 0]
        used = len(shard.sizes)
        # A shard that is not made of files has no part that is used.
        if not used or used + len(added) > files:
            return None
        for which in added:
            span = Span(int(shards.starts[number, which]), int(shards.stops[number, which]))
            columns[used + which].put(place, FileRange(table.files[shards.numbers[number, which]], span))
        columns[-1].put(place, _merged_index(shard, shards.tables[number], counts, place))
    return columns


def _merged_index(shard: LastShard, added: Any, counts: tuple[int, ...], place: AppendPlace) -> bytes:
    """Return the index of a stored shard with more chunks, which follow the ranges of files that it has."""
    is_added = added[:, 1] != NO_CHUNK
    merged = decode_index(shard.index, counts, place).copy()
    merged[is_added, 0] = added[is_added, 0] + np.uint64(sum(shard.sizes))
    merged[is_added, 1] = added[is_added, 1]
    return encode_table(merged, has_checksum=True)


# --- regions ----------------------------------------------------------------------------------------------------------


def plan_region(
    store: PartsStore, stored: StoredArray, new: PartsArray, region: Mapping[str, slice], options: AdoptOptions
) -> Planned:
    """Return how a region of an array is replaced; raise `ManifestError` unless the region has whole chunks."""
    if is_rectilinear(stored.metadata):
        expected = "a regular grid of chunks, to write a region"
        raise ManifestError(f"array {stored.path!r}", expected, "chunks of several lengths; adopt all files again")
    require_alike(stored, new, list(region))
    old, added = stored.chunk_metadata, new.references
    names = list(old.dimension_names or ())
    first = tuple(
        _first_chunk(stored.path, name, region.get(str(name), slice(None)), length, chunk, given)
        for name, length, chunk, given in zip(names, old.shape, chunk_shape_of(old), added.metadata.shape, strict=True)
    )
    box = tuple(slice(start, start + count) for start, count in zip(first, added.grid, strict=True))
    if stored.is_cut:
        return _cut_again(store, stored, added, lambda before: _replaced(before, added, box), options)
    if stored.parts is not None:
        expected = "an array without parts, or in shards that were made of files, to write a region of it"
        raise ManifestError(f"array {stored.path!r}", expected, f"{len(stored.parts.parts)} parts")
    missing = (np.argwhere(added.is_missing()) + first).tolist()
    removed = tuple(tuple(index) for index in missing)
    return Continuation(stored, old.shape, added, first, removed), "written as references of their own"


def _first_chunk(path: str, name: str | None, region: slice, length: int, chunk: int, given: int) -> int:
    """Return the number of the first chunk of a region along a dimension."""
    subject = f"region of {path!r}, dimension {name!r}"
    start, stop, _ = region.indices(length)
    if stop - start != given:
        raise ManifestError(subject, f"a slice of the length {given}, as the source has", describe(region))
    if start % chunk or (stop % chunk and stop != length):
        raise ManifestError(subject, f"a slice on the boundaries of chunks of length {chunk}", f"{start}:{stop}")
    return start // chunk


def _replaced(before: References, added: References, box: tuple[slice, ...]) -> References:
    """Return an array in which the chunks of a block are replaced."""
    (old,), (new,) = before.columns, added.columns
    paths, offsets, lengths = old.paths.copy(), old.offsets.copy(), old.lengths.copy()
    paths[box], offsets[box], lengths[box] = new.paths, new.offsets, new.lengths
    start = [each.start for each in box]
    inlined = {tuple((np.array(index) + start).tolist()): data for index, data in new.inlined.items()}
    checksums = merge_checksums([before.checksums, added.checksums], "region")
    return References.checked(before.metadata, [Columns(paths, offsets, lengths, inlined)], checksums)
