"""Plan how references are added to an array of a session: behind its chunks, or in a region of it.

New chunks continue an array if possible: behind its chunks, or in its last shards. The parts of a stored shard that are
ranges of files then stay as they are, with their checksums; a part that is not used yet becomes the range of the new
chunks, and the index is replaced. Otherwise the array is cut again, from the references that are stored and the new
ones: only references and indexes are written, no data. Nothing is written here.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from icechunk import ChunkType
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import sync
from parts_store.errors import IncompleteChunkError, LocationError, ManifestError, describe
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import Columns, FileRange
from parts_store.virtual.manifests.from_store import referred_array
from parts_store.virtual.manifests.operations import concatenate, merge_checksums
from parts_store.virtual.manifests.references import References, chunk_shape_of, grid_of
from parts_store.virtual.manifests.shards import (
    ChunkTable,
    Cut,
    ReferenceShards,
    counts_of,
    cut,
    cut_shards,
    decode_index,
    plan_of,
    shard_columns,
    uncut,
)
from parts_store.virtual.manifests.to_icechunk import PlannedArray, plan_array
from parts_store.virtual.store_access import NO_CHUNK, Chunk, ConcatParts, PartsStore, Span, encode_table, run_for_each
from parts_store.virtual.stored_arrays import StoredArray, require_alike, require_whole_chunks

# An array is cut again if the shards of the new chunks alone would be so many times larger than those that it has.
_MUCH_LARGER: Final = 4
# What Icechunk uses if a repository does not say how large a chunk in a manifest may be.
_DEFAULT_INLINE: Final = 512
# How many stored shards are read at the same time.
_AT_ONCE: Final = 32

type AppendPlace = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """References for a block of chunks of a stored array, which gets this shape; `first` is the first chunk."""

    stored: StoredArray
    shape: tuple[int, ...]
    references: References
    first: AppendPlace
    reason: str
    # The chunks that do not exist any more.
    removed: tuple[AppendPlace, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CutAgain:
    """An array that takes the place of the stored one."""

    array: PlannedArray
    reason: str


def max_index_of(store: PartsStore) -> int:
    """Return the size of the largest index of a shard that the session of a store keeps in a manifest."""
    nbytes: int | None = store.session.config.inline_chunk_threshold_bytes
    return _DEFAULT_INLINE if nbytes is None else nbytes


# --- append -----------------------------------------------------------------------------------------------------------


def plan_append(
    store: PartsStore, stored: StoredArray, new: PartsArray, dim: str, shard_chunks: int
) -> Continuation | CutAgain:
    """Return how an array is continued along a dimension; raise `ManifestError` if that is not possible."""
    require_alike(stored, new, [dim])
    require_whole_chunks(stored, dim)
    old, added = stored.chunk_metadata, new.references
    axis = list(old.dimension_names or ()).index(dim)
    shape = _longer(old.shape, axis, added.metadata.shape[axis])
    alone = plan_of(added, shard_chunks, max_index=max_index_of(store))

    def join(before: References) -> References:
        return concatenate([before, added], axis)

    if stored.is_cut and stored.parts is not None:
        counts = math.prod(counts_of(stored.metadata))
        is_larger = isinstance(alone, Cut) and math.prod(alone.counts) > _MUCH_LARGER * counts
        continued = None
        if not is_larger and not added.columns()[0].inlined:
            continued = _continue_shards(store.session, stored, stored.parts, added, axis)
        return _cut_again(store, stored, added, join, shard_chunks) if continued is None else continued
    if isinstance(alone, Cut) and stored.parts is None and math.prod(grid_of(old)) <= math.prod(added.grid):
        # Until now the array had too few chunks for shards.
        try:
            again = _cut_again(store, stored, added, join, shard_chunks)
        except (ManifestError, LocationError):
            # Some of its chunks are no references, or refer to a file that was changed. They stay as they are.
            again = None
        if again is not None and again.array.parts is not None:
            return again
    first = _behind_rows(len(shape), axis, old.shape[axis] // chunk_shape_of(old)[axis])
    return Continuation(stored, shape, added, first, "appended as references of their own")


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


# --- the last shards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastShard:
    """A stored shard that has room for more chunks."""

    # The numbers of bytes of the parts that are ranges of files.
    sizes: tuple[int, ...]
    index: bytes


def _continue_shards(
    session: Any, stored: StoredArray, parts: ConcatParts, new: References, axis: int
) -> Continuation | None:
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
    references = References(
        dataclasses.replace(metadata, shape=block), tuple(part.manifest() for part in columns), new.checksums
    )
    counted = [(len(shards.nbytes) - len(last), "new"), (len(last), "continued")]
    shown = ", ".join(f"{count:,} shard{'s' * (count != 1)} {what}" for count, what in counted if count)
    return Continuation(stored, shape, references, first, f"appended: {shown or 'no chunks'}")


def _behind(new: References, axis: int, filled: int) -> ChunkTable:
    """Return the table of new chunks, behind as many missing rows as the last shard has already."""
    (columns,) = new.columns()
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
    store: PartsStore, stored: StoredArray, new: PartsArray, region: Mapping[str, slice], shard_chunks: int
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
