"""Continue an array in shards behind its last chunk: new shards, and more files for the last ones.

The parts of a stored shard that are ranges of files stay as they are, with their checksums. A part that is not used yet
becomes the range of the new chunks, and the index is replaced. Nothing is written here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from icechunk import ChunkType
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import ArrayV3Metadata, sync
from parts_store.engine.concurrency import run_for_each
from parts_store.errors import IncompleteChunkError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.format.ranges import Span
from parts_store.format.shard_index import NO_CHUNK, encode_table
from parts_store.manifests.array_references import References, chunk_shape_of
from parts_store.manifests.cutting import counts_of, decode_index, shard_columns
from parts_store.manifests.entries import Columns
from parts_store.manifests.pieces import FileRange
from parts_store.manifests.shard_plan import ChunkTable, Shards, cut_shards

_AT_ONCE: Final = 32

type Place = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class NextShards:
    """References for a block of shards, and the index of the first one.

    A shard that is continued has only its new parts here.
    """

    references: References
    first: Place
    added: int
    continued: int


@dataclass(frozen=True, slots=True)
class LastShard:
    """A stored shard that has room for more chunks."""

    # The numbers of bytes of the parts that are ranges of files.
    sizes: tuple[int, ...]
    index: bytes


def continue_shards(
    session: Any, path: str, metadata: ArrayV3Metadata, parts: ConcatParts, new: References, axis: int
) -> NextShards | None:
    """Return what is written to append chunks to an array in shards; None if the array has to be cut again.

    The array at the path has the metadata and the parts that are given, and ends with a whole chunk.
    """
    counts, files = counts_of(metadata), len(parts.parts) - 1
    rows = metadata.shape[axis] // metadata.chunks[axis]
    first = tuple(rows // counts[each] if each == axis else 0 for each in range(len(counts)))
    table = _behind(new, axis, rows % counts[axis])
    shards = cut_shards(table, counts, files)
    if shards is None:
        return None
    at_start = [place for place in _places(shards) if not place[axis]] if rows % counts[axis] else []
    stored = sync(_read_shards(session, path, parts, {place: _moved(place, first) for place in at_start}))
    columns = _columns(table, counts, shards, stored, files)
    if columns is None:
        return None
    lengths = list(metadata.shape)
    lengths[axis] += new.metadata.shape[axis]
    shape = tuple(
        length - at * chunk for length, at, chunk in zip(lengths, first, chunk_shape_of(metadata), strict=True)
    )
    block = dataclasses.replace(metadata, shape=shape)
    references = References(block, tuple(each.manifest() for each in columns), new.checksums)
    return NextShards(references, first, len(shards.nbytes) - len(stored), len(stored))


def _behind(new: References, axis: int, filled: int) -> ChunkTable:
    """Return the table of new chunks, behind as many missing rows as the last shard has already."""
    (columns,) = new.columns()
    if not filled:
        return ChunkTable.of(columns.paths, columns.offsets, columns.lengths)
    before = tuple(filled if each == axis else length for each, length in enumerate(columns.paths.shape))

    def behind(values: Any) -> Any:
        return np.concatenate([np.zeros(before, values.dtype), values], axis=axis)

    return ChunkTable.of(behind(columns.paths), behind(columns.offsets), behind(columns.lengths))


def _places(shards: Shards) -> list[Place]:
    return [tuple(each) for each in shards.coordinates.tolist()]


def _moved(place: Place, first: Place) -> Place:
    return tuple(at + start for at, start in zip(place, first, strict=True))


async def _read_shards(
    session: Any, path: str, parts: ConcatParts, places: Mapping[Place, Place]
) -> dict[Place, LastShard]:
    """Return the stored shards at some places, by their places in the block; those that do not exist are left out."""
    icechunk = session.store

    async def read(place: Place) -> LastShard | None:
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
    table: ChunkTable, counts: tuple[int, ...], shards: Shards, stored: Mapping[Place, LastShard], files: int
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


def _merged_index(shard: LastShard, added: Any, counts: tuple[int, ...], place: Place) -> bytes:
    """Return the index of a stored shard with more chunks, which follow the ranges of files that it has."""
    is_added = added[:, 1] != NO_CHUNK
    merged = decode_index(shard.index, counts, place).copy()
    merged[is_added, 0] = added[is_added, 0] + np.uint64(sum(shard.sizes))
    merged[is_added, 1] = added[is_added, 1]
    return encode_table(merged, has_checksum=True)
