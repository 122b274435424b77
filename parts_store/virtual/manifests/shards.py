"""Cut an array of references into shards: neighbouring chunks of files become one chunk with an index. Pure.

A shard is one range of a file, or one range of each of a few files, and an index. Chunks that gain nothing by that
stay references of their own.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.virtualizarr import MISSING_CHUNK_PATH
from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import ManifestError
from parts_store.virtual.manifests.entries import Columns, key_of, number_paths
from parts_store.virtual.manifests.references import (
    References,
    chunk_shape_of,
    document_of,
    grid_of,
    is_rectilinear,
)
from parts_store.virtual.store_access import CODEC, NO_CHUNK, SHARD_INDEX, ConcatParts, Part, ShardIndex, encode_table

# The largest number of files that a shard may be in. For each of them every shard of the array has one more part.
MAX_FILES: Final = 4
# An array with fewer chunks stays as it is: its indexes would be one more object, which is read before any chunk.
_FEW_CHUNKS: Final = 64
# The smallest number of chunks in a shard, and in a shard whose index is an object of its own.
_LEAST_CHUNKS: Final = 16
_LEAST_WITH_OBJECT: Final = 256
# Shards in fewer files are preferred if they have so many chunks, or this part of the chunks of other shards.
_ENOUGH_CHUNKS: Final = 512
_ENOUGH_PART: Final = 4
# An index has 16 bytes for every chunk, also for a missing one, and a reference takes about four times as many.
_LEAST_PRESENT: Final = 0.25
# The largest gap between two chunks that one request reads.
MAX_GAP: Final = 1 << 14
# With the recommended settings of a repository, chunks of up to this number of bytes are stored in manifests.
MAX_INDEX: Final = 65535
# How many bytes of gaps may be read with a shard: as many as its chunks have, and always so many that they take less
# time than a request.
_FREE_GAPS: Final = 1 << 16
_NO_FILE: Final = -1

# The index of a shard with this number of chunks still fits in a manifest of Icechunk, where it is compressed.
DEFAULT_SHARD_CHUNKS: Final = 4095
# An array with more chunks is cut into shards, unless the caller says otherwise: below, the manifests of plain
# references have at most about 2 MB, and every reader of Zarr and Icechunk understands them.
MAX_PLAIN_CHUNKS: Final = 100_000
INDEX_CODECS: Final[list[dict[str, Any]]] = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]
# The suffixes of the parts that are ranges of files.
_SUFFIXES: Final = ("", *(f".next{number if number > 1 else ''}" for number in range(1, MAX_FILES)))
_INDEX: Final = Part(".index", size=SHARD_INDEX)
# In place of a file, where a shard is in fewer files than others: a session stores no empty parts.
PLACEHOLDER: Final = b"\0"

type ChunkNumbers = NDArray[np.int64]
type ShardPlaces = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """Where the chunks of an array are: arrays in the shape of the chunk grid."""

    # The files in the order in which they first occur.
    files: tuple[str, ...]
    # The number of the file of each chunk, -1 if the chunk is missing.
    numbers: ChunkNumbers
    offsets: ShardPlaces
    lengths: ShardPlaces

    @classmethod
    def of(cls, paths: NDArray[Any], offsets: ShardPlaces, lengths: ShardPlaces) -> "ChunkTable":
        """Return the table for the columns of a manifest, in which a missing chunk has an empty path."""
        known, numbers = number_paths(paths)
        is_file = np.array([path != "" for path in known], bool)
        ranks = np.where(is_file, np.cumsum(is_file) - 1, _NO_FILE)
        return cls(tuple(filter(None, known)), ranks[numbers], offsets, lengths)

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return self.numbers.shape

    @property
    def is_present(self) -> NDArray[np.bool_]:
        """Whether each chunk exists."""
        return np.asarray(self.numbers != _NO_FILE)


@dataclass(frozen=True, slots=True)
class NotCut:
    """An array whose chunks stay references of their own."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceShards:
    """The shards of an array that have chunks; the first axis of every array is that of the shards."""

    coordinates: ChunkNumbers
    # For each of the files that a shard may draw on: the number of the file, -1 if there is none, and the range of it.
    # A shard has its files in the order of their numbers, and none after the last.
    numbers: ChunkNumbers
    starts: ShardPlaces
    stops: ShardPlaces
    # The bytes of the chunks, without the gaps between them.
    nbytes: ShardPlaces
    # For each inner chunk its offset and its length.
    tables: ShardPlaces

    @property
    def files(self) -> int:
        """The largest number of files that a shard is in."""
        return int(self.numbers.shape[1])

    def only(self, chosen: NDArray[np.bool_]) -> "ReferenceShards":
        """Return some of the shards."""
        return ReferenceShards(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def index(self, shard: int) -> bytes:
        """Return the index of a shard as it is stored."""
        return encode_table(self.tables[shard], has_checksum=True)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How an array is cut into shards: the number of chunks in a shard along each axis, and the shards."""

    counts: tuple[int, ...]
    shards: ReferenceShards
    reason: str


def plan_cut(table: ChunkTable, max_chunks: int, max_index: int = MAX_INDEX) -> Cut | NotCut:
    """Return how an array is cut into shards with at most `max_chunks` chunks, or why it is not.

    An index of more than `max_index` bytes is an object of its own. Smaller ones are in manifests.
    """
    least = min(_LEAST_CHUNKS, max_chunks)
    present = int(table.is_present.sum())
    if max_chunks == 1:
        return NotCut("a shard may have one chunk only")
    if present < min(_FEW_CHUNKS, max_chunks):
        return NotCut(f"too few chunks for shards: {present:,}")
    if bool((table.lengths[table.is_present] == 0).any()):
        return NotCut("some chunks have no bytes")
    segments = [_segments(table.numbers, axis) for axis in range(len(table.grid))]
    reason = f"a shard would have fewer than {least} chunks"
    for counts in _choices(table.grid, segments, max_chunks, least):
        shards = cut_shards(table, counts)
        if shards is None:
            reason = f"the chunks of a shard would be in more than {MAX_FILES} files"
        elif (problem := _problem_of(table, counts, shards, least, max_index)) is not None:
            reason = problem
        else:
            return Cut(counts, shards, _description(len(shards.nbytes), present, shards.files))
    return NotCut(reason)


def _description(shards: int, chunks: int, files: int) -> str:
    """Return what the shards of an array are, as a phrase for a report."""
    if shards == 1:
        return f"1 shard of {chunks:,} chunks, in {'one file' if files == 1 else f'{files} files'}"
    place = "one file" if files == 1 else f"at most {files} files"
    return f"{shards:,} shards of about {chunks / shards:,.0f} chunks, each in {place}"


def _problem_of(
    table: ChunkTable, counts: tuple[int, ...], shards: ReferenceShards, least: int, max_index: int
) -> str | None:
    """Return why shards would cost more than they save; None if they do not."""
    number, present = len(shards.nbytes), int(table.is_present.sum())
    if present < least * number:
        return f"a shard would have about {present / number:,.0f} chunks"
    if present < _LEAST_PRESENT * number * math.prod(counts):
        return "most chunks of a shard would be missing"
    if math.prod(counts) < _LEAST_WITH_OBJECT and len(shards.index(0)) > max_index:
        return f"an index of {math.prod(counts)} chunks would be an object of its own (more than {max_index:,} bytes)"
    fetched, needed = _fetched(table, counts), int(shards.nbytes.sum())
    if fetched > 2 * needed and fetched - needed > _FREE_GAPS * number:
        return f"a shard would read {fetched / needed:,.1f} times the bytes of its chunks"
    return None


def _segments(numbers: ChunkNumbers, axis: int) -> tuple[int, ...]:
    """Return the lengths, in chunks, of the pieces between which the file changes along an axis."""
    lines = _without_gaps(np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1))
    changes = (lines[1:] != lines[:-1]).any(axis=1)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(lines)]
    return tuple(stop - start for start, stop in itertools.pairwise(edges))


def _without_gaps(lines: ChunkNumbers) -> ChunkNumbers:
    """Return lines of file numbers in which a missing chunk has the file of the chunk before it, or of the first."""
    is_present = lines != _NO_FILE
    if is_present.all():
        return lines
    rows = np.arange(len(lines))[:, None]
    before = np.maximum.accumulate(np.where(is_present, rows, 0), axis=0)
    # Before the first chunk of a line there is none. Its file is that of the first one.
    sources = np.maximum(before, is_present.argmax(axis=0))
    return np.take_along_axis(lines, sources, axis=0)


def _choices(
    grid: tuple[int, ...], segments: list[tuple[int, ...]], max_chunks: int, least: int
) -> list[tuple[int, ...]]:
    """Return numbers of chunks in a shard along each axis, at least `least` in all, the best ones first.

    The fewer files a shard is in, the better, unless it would be much smaller.
    """
    by_files = [_counts(grid, segments, max_chunks, files) for files in range(1, MAX_FILES + 1)]
    enough = max(least, min(_ENOUGH_CHUNKS, math.prod(by_files[-1]) // _ENOUGH_PART))
    best = next((files for files, counts in enumerate(by_files) if math.prod(counts) >= enough), MAX_FILES)
    return [counts for counts in dict.fromkeys(reversed(by_files[: best + 1])) if math.prod(counts) >= least]


def _counts(grid: tuple[int, ...], segments: list[tuple[int, ...]], max_chunks: int, max_files: int) -> tuple[int, ...]:
    """Return the number of chunks in a shard along each axis, such that a shard is in at most so many files.

    A shard has whole rows of a file along the last axes, because most files are written in this order. It may be in
    several files along one axis.
    """
    counts = [1] * len(grid)
    left = max_chunks
    for axis in range(len(grid) - 1, -1, -1):
        length, pieces = grid[axis], segments[axis]
        most = min(left, length)
        if len(pieces) == 1:
            counts[axis] = _balanced(length, most)
        else:
            within = _largest_divisor(reduce(math.gcd, pieces[:-1]), most)
            across = _balanced(length, min(most, _longest(pieces, max_files))) if max_files > 1 else 0
            if across > within:
                max_files = 1
            counts[axis] = max(within, across)
        if counts[axis] < max(pieces):
            break
        left //= counts[axis]
    return tuple(counts)


def _longest(pieces: tuple[int, ...], files: int) -> int:
    """Return a length such that every stretch of it is in at most so many of the pieces.

    It is not longer than any `files - 1` neighbouring pieces, of which the first and the last do not count.
    """
    if len(pieces) <= files:
        return sum(pieces)
    ends = [0, *itertools.accumulate(pieces[1:-1])]
    return min(stop - start for start, stop in zip(ends, ends[files - 1 :], strict=False))


def _balanced(length: int, most: int) -> int:
    """Return a size of at most `most`, so that all pieces of a length have about the same size."""
    return -(-length // -(-length // most))


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)


def cut_shards(table: ChunkTable, counts: tuple[int, ...], max_files: int = MAX_FILES) -> ReferenceShards | None:
    """Return the shards of an array; None if the chunks of a shard are in more than `max_files` files."""
    numbers = _blocks(table.numbers, counts, _NO_FILE)
    has_chunks = (numbers != _NO_FILE).any(axis=1)
    coordinates = np.stack(np.unravel_index(np.flatnonzero(has_chunks), shard_grid(table.grid, counts)), axis=1)
    numbers = numbers[has_chunks]
    offsets, lengths = (_blocks(values, counts, 0)[has_chunks] for values in (table.offsets, table.lengths))
    files = _files_of(numbers, max_files)
    if files is None:
        return None
    starts, stops = np.zeros(files.shape, np.uint64), np.zeros(files.shape, np.uint64)
    positions = np.full(numbers.shape, NO_CHUNK, np.uint64)
    # Where the range of a file begins in the shard.
    begins = np.zeros(len(files), np.uint64)
    for which in range(files.shape[1]):
        is_used = files[:, which] != _NO_FILE
        is_here = (numbers == files[:, which, None]) & is_used[:, None]
        starts[:, which] = np.where(is_here, offsets, NO_CHUNK).min(axis=1)
        stops[:, which] = np.where(is_here, offsets + lengths, 0).max(axis=1)
        starts[~is_used, which] = 0
        positions = np.where(is_here, begins[:, None] + (offsets - starts[:, which, None]), positions)
        begins += stops[:, which] - starts[:, which]
    is_present = numbers != _NO_FILE
    tables = np.stack([positions, np.where(is_present, lengths, NO_CHUNK)], axis=2).astype("<u8")
    nbytes = np.where(is_present, lengths, 0).sum(axis=1, dtype=np.uint64)
    return ReferenceShards(coordinates, files, starts, stops, nbytes, tables)


def _files_of(numbers: ChunkNumbers, max_files: int) -> ChunkNumbers | None:
    """Return the numbers of the files of each shard in order, then -1; None if there are more than `max_files`."""
    none = np.iinfo(np.int64).max
    found = []
    last = np.full(len(numbers), _NO_FILE, np.int64)
    for _ in range(max_files):
        last = np.where(numbers > last[:, None], numbers, none).min(axis=1, initial=none)
        found.append(np.where(last == none, _NO_FILE, last))
        if not (numbers > last[:, None]).any():
            return np.stack(found, axis=1)
    return None


def shard_grid(grid: tuple[int, ...], counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of shards along each axis."""
    return tuple(-(-length // count) for length, count in zip(grid, counts, strict=True))


def _blocks(values: NDArray[Any], counts: tuple[int, ...], fill: int) -> NDArray[Any]:
    """Return the values of each shard in a row, in C order; `fill` beyond the end of the grid."""
    shards = shard_grid(values.shape, counts)
    padding = [(0, size * count - length) for size, count, length in zip(shards, counts, values.shape, strict=True)]
    padded = np.pad(values, padding, constant_values=fill)
    ndim = values.ndim
    split = padded.reshape([size for pair in zip(shards, counts, strict=True) for size in pair])
    return split.transpose(*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)).reshape(math.prod(shards), math.prod(counts))


def _fetched(table: ChunkTable, counts: tuple[int, ...]) -> int:
    """Return how many bytes are read of all shards: the chunks, and the gaps between them that requests read, too."""
    numbers = _blocks(table.numbers, counts, _NO_FILE)
    offsets, lengths = (_blocks(values, counts, 0) for values in (table.offsets, table.lengths))
    order = np.lexsort((offsets, numbers), axis=1)
    numbers, offsets, lengths = (np.take_along_axis(values, order, axis=1) for values in (numbers, offsets, lengths))
    is_next = (numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] != _NO_FILE)
    ends = (offsets + lengths)[:, :-1]
    # Chunks that share bytes have no gap.
    gaps = np.where(is_next & (offsets[:, 1:] > ends), offsets[:, 1:] - ends, 0)
    return int(lengths.sum(dtype=np.uint64)) + int(gaps[gaps <= MAX_GAP].sum(dtype=np.uint64))


# --- to shards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """An array of references after the decision whether it is cut into shards."""

    references: References
    # Why it is cut in this way, or not at all, as a phrase for a report; empty if no shards were asked for.
    reason: str
    is_cut: bool = False


def cut(
    references: References, max_chunks: int | None = DEFAULT_SHARD_CHUNKS, *, max_index: int = MAX_INDEX
) -> Sharded:
    """Return an array in shards of at most `max_chunks` chunks, or as it is if that gains nothing.

    With None, an array of up to 100,000 chunks stays as it is. An index of more than `max_index` bytes is an object of
    its own.
    """
    if max_chunks is None and int((~references.is_missing()).sum()) <= MAX_PLAIN_CHUNKS:
        return Sharded(references, "")
    plan = plan_of(references, max_chunks or DEFAULT_SHARD_CHUNKS, max_index=max_index)
    if isinstance(plan, NotCut):
        return Sharded(references, plan.reason)
    files = plan.shards.files
    parts = ConcatParts([*map(Part, _SUFFIXES[:files]), _INDEX])
    columns = shard_columns(_table(references), plan.counts, plan.shards, files)
    metadata = sharded_metadata(references.metadata, plan.counts)
    sharded = References.checked(metadata, columns, references.checksums)
    return Sharded(replace(sharded, parts=parts), plan.reason, is_cut=True)


def plan_of(references: References, max_chunks: int, *, max_index: int = MAX_INDEX) -> Cut | NotCut:
    """Return how an array is cut into shards of at most `max_chunks` chunks, or why it is not."""
    reason = _why_not(references)
    return plan_cut(_table(references), max_chunks, max_index) if reason is None else NotCut(reason)


def _table(references: References) -> ChunkTable:
    (columns,) = references.columns
    return ChunkTable.of(columns.paths, columns.offsets, columns.lengths)


def _why_not(references: References) -> str | None:
    """Return why an array cannot be cut into shards; None if it can."""
    if len(references.columns) != 1:
        return "its chunks have several parts"
    if any(codec.to_dict().get("name") == CODEC for codec in references.metadata.codecs):
        return "it is in shards"
    if not references.metadata.shape:
        return "a single value"
    if is_rectilinear(references.metadata):
        return "its chunks have several lengths"
    if references.columns[0].inlined:
        return "some chunks are not in files"
    return None


def shard_columns(table: ChunkTable, counts: tuple[int, ...], shards: ReferenceShards, files: int) -> list[Columns]:
    """Return the columns of the parts of shards: the range of each of this number of files, and the index."""
    grid = shard_grid(table.grid, counts)
    places = [tuple(place) for place in shards.coordinates.tolist()]
    indexes = Columns.empty(grid)
    for shard, place in enumerate(places):
        indexes.put(place, shards.index(shard))
    return [*(_ranges(table.files, shards, which, grid, places) for which in range(files)), indexes]


def _ranges(
    files: tuple[str, ...], shards: ReferenceShards, which: int, grid: tuple[int, ...], places: list[tuple[int, ...]]
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
    if [codec["name"] for codec in codecs] != [CODEC]:
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
    *ranges, indexes = references.columns
    places = np.argwhere(~indexes.is_missing)
    decoded = [decode_index(indexes.inlined[tuple(place)], counts, place) for place in places.tolist()]
    tables = np.array(decoded, np.uint64).reshape(len(places), math.prod(counts), 2)
    is_left = tables[..., 1] != NO_CHUNK
    rows = Columns.empty(tables.shape[:2])
    # Where the range of a file begins in each shard.
    begins = np.zeros((len(places), 1), np.uint64)
    for column in ranges:
        paths, offsets, nbytes = (
            values[tuple(places.T)][:, None] for values in (column.paths, column.offsets, column.lengths)
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
    return References.checked(metadata, [columns], references.checksums)


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
