"""Cut an array of references into shards: neighbouring chunks of files become one chunk with an index."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.virtualizarr import MISSING_CHUNK_PATH
from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import ManifestError
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.shard_index import CODEC, NO_CHUNK, ShardIndex
from parts_store.manifests.array_references import References, chunk_shape_of, document_of, grid_of
from parts_store.manifests.entries import Columns, key_of
from parts_store.manifests.shard_plan import (
    MAX_FILES,
    MAX_INDEX,
    ChunkTable,
    Cut,
    NotCut,
    Shards,
    plan_cut,
    shard_grid,
)

# The index of a shard with this number of chunks still fits in a manifest of Icechunk, where it is compressed.
DEFAULT_SHARD_CHUNKS: Final = 4095
INDEX_CODECS: Final[list[dict[str, Any]]] = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]
# The suffixes of the parts that are ranges of files.
_SUFFIXES: Final = ("", *(f".next{number if number > 1 else ''}" for number in range(1, MAX_FILES)))
_INDEX: Final = Part(".index", size=SHARD_INDEX)
# In place of a file, where a shard is in fewer files than others: a session stores no empty parts.
PLACEHOLDER: Final = b"\0"


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """An array of references after the decision whether it is cut into shards."""

    references: References
    # None if the chunks are as they were.
    parts: ConcatParts | None
    # Why it is cut in this way, or not at all, as a phrase for a report.
    reason: str


def cut(references: References, max_chunks: int = DEFAULT_SHARD_CHUNKS, *, max_index: int = MAX_INDEX) -> Sharded:
    """Return an array in shards of at most `max_chunks` chunks, or as it is if that gains nothing.

    An index of more than `max_index` bytes is an object of its own.
    """
    plan = plan_of(references, max_chunks, max_index=max_index)
    if isinstance(plan, NotCut):
        return Sharded(references, None, plan.reason)
    files = plan.shards.files
    parts = ConcatParts([*map(Part, _SUFFIXES[:files]), _INDEX])
    columns = shard_columns(_table(references), plan.counts, plan.shards, files)
    metadata = sharded_metadata(references.metadata, plan.counts)
    manifests = [each.manifest() for each in columns]
    return Sharded(References.checked(metadata, manifests, references.checksums), parts, plan.reason)


def plan_of(references: References, max_chunks: int, *, max_index: int = MAX_INDEX) -> Cut | NotCut:
    """Return how an array is cut into shards of at most `max_chunks` chunks, or why it is not."""
    reason = _why_not(references)
    return plan_cut(_table(references), max_chunks, max_index) if reason is None else NotCut(reason)


def _table(references: References) -> ChunkTable:
    (columns,) = references.columns()
    return ChunkTable.of(columns.paths, columns.offsets, columns.lengths)


def _why_not(references: References) -> str | None:
    """Return why an array cannot be cut into shards; None if it can."""
    if len(references.manifests) != 1:
        return "its chunks have several parts"
    if any(codec.to_dict().get("name") == CODEC for codec in references.metadata.codecs):
        return "it is in shards"
    if not references.metadata.shape:
        return "a single value"
    if references.columns()[0].inlined:
        return "some chunks are not in files"
    return None


def shard_columns(table: ChunkTable, counts: tuple[int, ...], shards: Shards, files: int) -> list[Columns]:
    """Return the columns of the parts of shards: the range of each of this number of files, and the index."""
    grid = shard_grid(table.grid, counts)
    places = [tuple(each) for each in shards.coordinates.tolist()]
    indexes = Columns.empty(grid)
    for shard, place in enumerate(places):
        indexes.put(place, shards.index(shard))
    return [*(_ranges(table.files, shards, which, grid, places) for which in range(files)), indexes]


def _ranges(
    files: tuple[str, ...], shards: Shards, which: int, grid: tuple[int, ...], places: list[tuple[int, ...]]
) -> Columns:
    """Return the ranges of the first, second, ... file of every shard."""
    columns = Columns.empty(grid)
    is_used = shards.numbers[:, which] >= 0 if which < shards.files else np.zeros(len(places), bool)
    if is_used.any():
        at = tuple(shards.coordinates[is_used].T)
        names = np.array(files, np.dtypes.StringDType())
        columns.paths[at] = names[shards.numbers[is_used, which]]
        columns.offsets[at] = shards.starts[is_used, which]
        columns.lengths[at] = shards.stops[is_used, which] - shards.starts[is_used, which]
    for shard in np.flatnonzero(~is_used).tolist():
        columns.put(places[shard], PLACEHOLDER)
    return columns


def sharded_metadata(metadata: ArrayV3Metadata, counts: tuple[int, ...]) -> ArrayV3Metadata:
    """Return the metadata of an array in shards with `counts` chunks along each axis."""
    document = document_of(metadata)
    chunk_shape = chunk_shape_of(metadata)
    shard_shape = [size * count for size, count in zip(chunk_shape, counts, strict=True)]
    document["codecs"] = [sharding_codec(chunk_shape, document["codecs"])]
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": shard_shape}}
    return ArrayV3Metadata.from_dict(document)


def sharding_codec(chunk_shape: Sequence[int], codecs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the codec of an array in shards, whose chunks have these codecs."""
    sharding = {
        "chunk_shape": list(chunk_shape),
        "codecs": list(codecs),
        "index_codecs": INDEX_CODECS,
        "index_location": "end",
    }
    return {"name": CODEC, "configuration": sharding}


# --- back to chunks -------------------------------------------------------------------------------------------------


def is_cut(metadata: ArrayV3Metadata, parts: ConcatParts | None) -> bool:
    """Return whether an array with these parts is in shards as `cut` makes them."""
    suffixes = [] if parts is None else [part.key_suffix for part in parts.parts]
    if len(suffixes) < 2 or suffixes != [*_SUFFIXES[: len(suffixes) - 1], _INDEX.key_suffix]:
        return False
    codecs = document_of(metadata)["codecs"]
    if [each["name"] for each in codecs] != [CODEC]:
        return False
    sharding = codecs[0]["configuration"]
    return bool(sharding["index_codecs"] == INDEX_CODECS and sharding["index_location"] == "end")


def uncut_metadata(metadata: ArrayV3Metadata) -> ArrayV3Metadata:
    """Return the metadata of an array in shards as that of an array of the chunks in them."""
    document = document_of(metadata)
    sharding = document["codecs"][0]["configuration"]
    document["codecs"] = sharding["codecs"]
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": sharding["chunk_shape"]}}
    return ArrayV3Metadata.from_dict(document)


def counts_of(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """Return the number of chunks in a shard along each axis."""
    return tuple(shard // chunk for shard, chunk in zip(chunk_shape_of(metadata), metadata.chunks, strict=True))


def uncut(references: References) -> References:
    """Return an array in shards, as `cut` makes them, as an array of the chunks in them."""
    metadata = uncut_metadata(references.metadata)
    counts, grid = counts_of(references.metadata), grid_of(metadata)
    *ranges, indexes = references.columns()
    places = np.argwhere(~indexes.is_missing)
    decoded = [decode_index(indexes.inlined[tuple(place)], counts, place) for place in places.tolist()]
    tables = np.array(decoded, np.uint64).reshape(len(places), math.prod(counts), 2)
    is_left = tables[..., 1] != NO_CHUNK
    rows = Columns.empty(tables.shape[:2])
    # Where the range of a file begins in each shard.
    begins = np.zeros((len(places), 1), np.uint64)
    for each in ranges:
        paths, offsets, nbytes = (
            column[tuple(places.T)][:, None] for column in (each.paths, each.offsets, each.lengths)
        )
        positions = tables[..., 0] - begins
        # A position before the range wraps around, to a large number.
        is_here = is_left & (positions < nbytes) & (tables[..., 1] <= nbytes - np.minimum(positions, nbytes))
        np.copyto(rows.paths, np.where(is_here, paths, rows.paths))
        np.copyto(rows.offsets, np.where(is_here, positions + offsets, rows.offsets))
        np.copyto(rows.lengths, np.where(is_here, tables[..., 1], rows.lengths))
        is_left &= ~is_here
        begins = begins + nbytes
    if is_left.any():
        raise ManifestError("index", "chunks that are in one of the files of their shard", "bytes beyond its range")
    columns = Columns(
        _in_grid(rows.paths, places, counts, grid, MISSING_CHUNK_PATH),
        _in_grid(rows.offsets, places, counts, grid, 0),
        _in_grid(rows.lengths, places, counts, grid, 0),
        {},
    )
    return References.checked(metadata, [columns.manifest()], references.checksums)


def decode_index(index: bytes, counts: tuple[int, ...], place: Sequence[int]) -> NDArray[np.uint64]:
    """Return the offset and the length of each chunk of a shard, given its index."""
    slots = math.prod(counts)
    table = ShardIndex(len(index), "end", slots, "<u8", has_checksum=True).decode(index)
    if table is None:
        expected = f"an index of {slots} chunks that fits its checksum"
        raise ManifestError(f"shard {key_of(place)!r}", expected, f"{len(index)} other bytes")
    return table


def _in_grid(
    values: NDArray[Any], places: NDArray[np.intp], counts: tuple[int, ...], grid: tuple[int, ...], fill: Any
) -> NDArray[Any]:
    """Return the values of the chunks of shards on the grid of the chunks, given a row for each shard at its place."""
    shards = shard_grid(grid, counts)
    rows = np.full((math.prod(shards), math.prod(counts)), fill, values.dtype)
    rows[np.ravel_multi_index(tuple(places.T), shards)] = values
    ndim = len(grid)
    split = rows.reshape(*shards, *counts).transpose([axis + half for axis in range(ndim) for half in (0, ndim)])
    padded = split.reshape([shard * count for shard, count in zip(shards, counts, strict=True)])
    return padded[tuple(slice(0, length) for length in grid)]
