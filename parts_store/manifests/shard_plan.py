"""Plan how the chunks of files are grouped into shards: which chunks, of which files, in which order. Pure.

A shard is one range of a file, or one range of each of a few files, and an index. Chunks that gain nothing by that
stay references of their own.
"""

import itertools
import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store.format.shard_index import NO_CHUNK, encode_table
from parts_store.manifests.path_numbers import number_paths

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

type Numbers = NDArray[np.int64]
type Places = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """Where the chunks of an array are: arrays in the shape of the chunk grid."""

    # The files in the order in which they first occur.
    files: tuple[str, ...]
    # The number of the file of each chunk, -1 if the chunk is missing.
    numbers: Numbers
    offsets: Places
    lengths: Places

    @classmethod
    def of(cls, paths: NDArray[Any], offsets: Places, lengths: Places) -> "ChunkTable":
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
class Shards:
    """The shards of an array that have chunks; the first axis of every array is that of the shards."""

    coordinates: Numbers
    # For each of the files that a shard may draw on: the number of the file, -1 if there is none, and the range of it.
    # A shard has its files in the order of their numbers, and none after the last.
    numbers: Numbers
    starts: Places
    stops: Places
    # The bytes of the chunks, without the gaps between them.
    nbytes: Places
    # For each inner chunk its offset and its length.
    tables: Places

    @property
    def files(self) -> int:
        """The largest number of files that a shard is in."""
        return int(self.numbers.shape[1])

    def only(self, chosen: NDArray[np.bool_]) -> "Shards":
        """Return some of the shards."""
        return Shards(
            self.coordinates[chosen],
            self.numbers[chosen],
            self.starts[chosen],
            self.stops[chosen],
            self.nbytes[chosen],
            self.tables[chosen],
        )

    def index(self, shard: int) -> bytes:
        """Return the index of a shard as it is stored."""
        return encode_table(self.tables[shard], has_checksum=True)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How an array is cut into shards: the number of chunks in a shard along each axis, and the shards."""

    counts: tuple[int, ...]
    shards: Shards
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


def _problem_of(table: ChunkTable, counts: tuple[int, ...], shards: Shards, least: int, max_index: int) -> str | None:
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


def _segments(numbers: Numbers, axis: int) -> tuple[int, ...]:
    """Return the lengths, in chunks, of the pieces between which the file changes along an axis."""
    lines = _without_gaps(np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1))
    changes = (lines[1:] != lines[:-1]).any(axis=1)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(lines)]
    return tuple(stop - start for start, stop in itertools.pairwise(edges))


def _without_gaps(lines: Numbers) -> Numbers:
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
    return [each for each in dict.fromkeys(reversed(by_files[: best + 1])) if math.prod(each) >= least]


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
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def cut_shards(table: ChunkTable, counts: tuple[int, ...], max_files: int = MAX_FILES) -> Shards | None:
    """Return the shards of an array; None if the chunks of a shard are in more than `max_files` files."""
    numbers = _blocks(table.numbers, counts, _NO_FILE)
    has_chunks = (numbers != _NO_FILE).any(axis=1)
    coordinates = np.stack(np.unravel_index(np.flatnonzero(has_chunks), shard_grid(table.grid, counts)), axis=1)
    numbers = numbers[has_chunks]
    offsets, lengths = (_blocks(each, counts, 0)[has_chunks] for each in (table.offsets, table.lengths))
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
    return Shards(coordinates, files, starts, stops, nbytes, tables)


def _files_of(numbers: Numbers, max_files: int) -> Numbers | None:
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
    offsets, lengths = (_blocks(each, counts, 0) for each in (table.offsets, table.lengths))
    order = np.lexsort((offsets, numbers), axis=1)
    numbers, offsets, lengths = (np.take_along_axis(each, order, axis=1) for each in (numbers, offsets, lengths))
    is_next = (numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] != _NO_FILE)
    ends = (offsets + lengths)[:, :-1]
    # Chunks that share bytes have no gap.
    gaps = np.where(is_next & (offsets[:, 1:] > ends), offsets[:, 1:] - ends, 0)
    return int(lengths.sum(dtype=np.uint64)) + int(gaps[gaps <= MAX_GAP].sum(dtype=np.uint64))
