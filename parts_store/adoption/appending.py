"""Plan how references are added to an array of a session: behind its chunks, or in a region of it.

New chunks continue an array if possible. Otherwise the array is cut again, from the references that are stored and the
new ones: only references and indexes are written, no data. Nothing is written here.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from parts_store import destination
from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.last_shards import continue_shards
from parts_store.adoption.source_tree import SourceArray
from parts_store.errors import LocationError, ManifestError, describe
from parts_store.format.keys import DOCUMENT, PartPlacement
from parts_store.format.metadata import parse
from parts_store.format.parts import ConcatParts
from parts_store.manifests.array_references import References, chunk_shape_of, document_of, grid_of, parse_metadata
from parts_store.manifests.combining import concatenate, merge_checksums
from parts_store.manifests.cutting import counts_of, cut, is_cut, plan_of, uncut, uncut_metadata
from parts_store.manifests.entries import Columns
from parts_store.manifests.from_store import referred_array
from parts_store.manifests.meaning import require_same_meaning
from parts_store.manifests.shard_plan import Cut
from parts_store.manifests.to_icechunk import PlannedArray, plan_array
from parts_store.store import PartsStore

# An array is cut again if the shards of the new chunks alone would be so many times larger than those that it has.
_MUCH_LARGER: Final = 4
# What Icechunk uses if a repository does not say how large a chunk in a manifest may be.
_DEFAULT_INLINE: Final = 512
_ADVICE: Final = "if it is small, load it (`loadable_variables`)"

type Place = tuple[int, ...]


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


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """References for a block of chunks of a stored array, which gets this shape; `first` is the first chunk."""

    stored: StoredArray
    shape: tuple[int, ...]
    references: References
    first: Place
    reason: str
    # The chunks that do not exist any more.
    removed: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CutAgain:
    """An array that takes the place of the stored one."""

    array: PlannedArray
    reason: str


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


def max_index_of(store: PartsStore) -> int:
    """Return the size of the largest index of a shard that the session of a store keeps in a manifest."""
    nbytes: int | None = store.session.config.inline_chunk_threshold_bytes
    return _DEFAULT_INLINE if nbytes is None else nbytes


# --- checks -----------------------------------------------------------------------------------------------------------


def require_alike(stored: StoredArray, new: SourceArray, free: Sequence[str]) -> None:
    """Raise `ManifestError` unless new chunks fit in a stored array, whose length may differ along some dimensions."""
    old, added = stored.chunk_metadata, new.references.metadata
    mine, theirs = document_of(old), document_of(added)
    require_same_form(stored, new, free)
    for what, expected, found in (
        ("fill value", mine["fill_value"], theirs["fill_value"]),
        ("codecs", mine["codecs"], theirs["codecs"]),
        ("chunk shape", chunk_shape_of(old), chunk_shape_of(added)),
        ("parts", None if stored.is_cut else stored.parts, new.parts),
    ):
        if expected != found:
            advice = f"; {_ADVICE}" if what in ("codecs", "chunk shape") else ""
            raise ManifestError(f"array {stored.path!r}", f"the {what} {expected}", f"{found}{advice}")


def require_same_form(stored: StoredArray, new: SourceArray, free: Sequence[str] = ()) -> None:
    """Raise `ManifestError` unless an array has the dimensions, the data type and the meaning of a stored one.

    Their lengths may differ along the dimensions that are free.
    """
    subject = f"array {stored.path!r}"
    old, added = stored.metadata, new.references.metadata
    names, others = tuple(old.dimension_names or ()), tuple(added.dimension_names or ())
    if names != others:
        raise ManifestError(subject, f"the dimensions {names}", str(others))
    if len(names) != len(old.shape):
        raise ManifestError(subject, "names of all dimensions", "none")
    if old.data_type != added.data_type:
        expected, found = (each.data_type.to_native_dtype() for each in (old, added))
        raise ManifestError(subject, f"the data type {expected}", str(found))
    for name, length, other in zip(names, old.shape, added.shape, strict=True):
        if name not in free and length != other:
            raise ManifestError(subject, f"the length {length} along the dimension {name!r}", str(other))
    require_same_meaning(stored.path, old.attributes, added.attributes)


# --- append -----------------------------------------------------------------------------------------------------------


def plan_append(
    store: PartsStore, stored: StoredArray, new: SourceArray, dim: str, shard_chunks: int
) -> Continuation | CutAgain:
    """Return how an array is continued along a dimension; raise `ManifestError` if that is not possible."""
    require_alike(stored, new, [dim])
    old, added = stored.chunk_metadata, new.references
    axis = list(old.dimension_names or ()).index(dim)
    chunk = chunk_shape_of(old)[axis]
    if old.shape[axis] % chunk:
        expected = f"a stored length along {dim!r} that is a multiple of the chunk length {chunk}, to append chunks"
        raise ManifestError(f"array {stored.path!r}", expected, f"{old.shape[axis]}; {_ADVICE}")
    shape = list(old.shape)
    shape[axis] += added.metadata.shape[axis]
    alone = plan_of(added, shard_chunks, max_index=max_index_of(store))

    def join(before: References) -> References:
        return concatenate([before, added], axis)

    if stored.is_cut and stored.parts is not None:
        counts = math.prod(counts_of(stored.metadata))
        is_larger = isinstance(alone, Cut) and math.prod(alone.counts) > _MUCH_LARGER * counts
        if not is_larger and not added.columns()[0].inlined:
            shards = continue_shards(store.session, stored.path, stored.metadata, stored.parts, added, axis)
            if shards is not None:
                reason = _continued(shards.added, shards.continued)
                return Continuation(stored, tuple(shape), shards.references, shards.first, reason)
        return _cut_again(store, stored, added, join, shard_chunks)
    if isinstance(alone, Cut) and stored.parts is None and math.prod(grid_of(old)) <= math.prod(added.grid):
        # Until now the array had too few chunks for shards.
        try:
            again = _cut_again(store, stored, added, join, shard_chunks)
        except (ManifestError, LocationError):
            # Some of its chunks are no references, or refer to a file that was changed. They stay as they are.
            again = None
        if again is not None and again.array.parts is not None:
            return again
    first = tuple(old.shape[each] // chunk if each == axis else 0 for each in range(len(shape)))
    return Continuation(stored, tuple(shape), added, first, "appended as references of their own")


def _continued(added: int, continued: int) -> str:
    counted = [(added, "new"), (continued, "continued")]
    shown = ", ".join(f"{count:,} shard{'s' * (count != 1)} {what}" for count, what in counted if count)
    return f"appended: {shown or 'no chunks'}"


def _cut_again(
    store: PartsStore,
    stored: StoredArray,
    added: References,
    join: Callable[[References], References],
    shard_chunks: int,
) -> CutAgain:
    """Return the array in new shards; `join` returns its chunks after the change, given those that are stored."""
    before = referred_array(store, stored.path).references
    # A file that is added has the checksum that comes with it.
    checksums = {each: checksum for each, checksum in before.checksums.items() if each not in added.checksums}
    before = dataclasses.replace(before, checksums=checksums)
    chunks = join(uncut(before) if stored.is_cut else before)
    sharded = cut(chunks, shard_chunks, max_index=max_index_of(store))
    array = plan_array(stored.path, sharded.references, sharded.parts)
    return CutAgain(array, f"cut again: {sharded.reason}")


# --- regions ----------------------------------------------------------------------------------------------------------


def plan_region(
    store: PartsStore, stored: StoredArray, new: SourceArray, region: Mapping[str, slice], shard_chunks: int
) -> Continuation | CutAgain:
    """Return how a region of an array is replaced; raise `ManifestError` unless the region has whole chunks."""
    require_alike(stored, new, list(region))
    old, added = stored.chunk_metadata, new.references
    names = list(old.dimension_names or ())
    first = tuple(
        _first_chunk(stored.path, name, region.get(str(name), slice(None)), length, chunk, given)
        for name, length, chunk, given in zip(names, old.shape, chunk_shape_of(old), added.metadata.shape, strict=True)
    )
    box = tuple(slice(start, start + count) for start, count in zip(first, added.grid, strict=True))
    if stored.is_cut:
        return _cut_again(store, stored, added, lambda before: _replaced(before, added, box), shard_chunks)
    if stored.parts is not None:
        expected = "an array without parts, or in shards that were made of files, to write a region of it"
        raise ManifestError(f"array {stored.path!r}", expected, f"{len(stored.parts.parts)} parts")
    missing = (np.argwhere(added.is_missing()) + first).tolist()
    removed = tuple(tuple(index) for index in missing)
    return Continuation(stored, old.shape, added, first, "written as references of their own", removed)


def _first_chunk(path: str, name: str | None, region: slice, length: int, chunk: int, given: int) -> int:
    """Return the number of the first chunk of a region along a dimension."""
    subject = f"region of {path!r}, dimension {name!r}"
    start, stop, step = region.indices(length)
    if step != 1 or stop - start != given:
        raise ManifestError(subject, f"a slice of the length {given}, as the source has", describe(region))
    if start % chunk or (stop % chunk and stop != length):
        raise ManifestError(subject, f"a slice on the boundaries of chunks of length {chunk}", f"{start}:{stop}")
    return start // chunk


def _replaced(before: References, added: References, box: tuple[slice, ...]) -> References:
    """Return an array in which the chunks of a block are replaced."""
    (old,), (new,) = before.columns(), added.columns()
    paths, offsets, lengths = old.paths.copy(), old.offsets.copy(), old.lengths.copy()
    paths[box], offsets[box], lengths[box] = new.paths, new.offsets, new.lengths
    start = [each.start for each in box]
    inlined = {tuple((np.array(index) + start).tolist()): data for index, data in new.inlined.items()}
    checksums = merge_checksums([before.checksums, added.checksums], "region")
    return References.checked(before.metadata, [Columns(paths, offsets, lengths, inlined).manifest()], checksums)
