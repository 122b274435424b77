"""Plan shards of the chunks of a file: which chunks make a shard, and the index of each shard. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parts_store.adoption.description import MISSING, Chunked, Contiguous, Json
from parts_store.format.shard_index import encode_table

INDEX_CODECS: list[Json] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
# The largest number of bytes in a chunk of a contiguous array, and the largest number of such chunks.
_MAX_CHUNK = 1 << 25
_MAX_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class Shard:
    """The span of the file that contains all chunks of a shard, and the index of the shard."""

    coordinates: tuple[int, ...]
    start: int
    stop: int
    # The number of bytes in the span that are chunks of this array.
    nbytes: int
    index: bytes

    @property
    def relative(self) -> str:
        """Return the key of the shard relative to its array."""
        return "/".join(["c", *map(str, self.coordinates)])


def chunks_of_shard(grid: tuple[int, ...], max_chunks: int) -> tuple[int, ...]:
    """Return the number of chunks in a shard along each axis, at most `max_chunks` in all.

    A shard has whole rows of the last axes, because most files are written in this order. All shards have about the
    same size.
    """
    counts = [1] * len(grid)
    left = max_chunks
    for axis in range(len(grid) - 1, -1, -1):
        if grid[axis] <= left:
            counts[axis] = max(1, grid[axis])
            left //= counts[axis]
            continue
        shards = -(-grid[axis] // left)
        counts[axis] = -(-grid[axis] // shards)
        break
    return tuple(counts)


def shards_of(array: Chunked, counts: tuple[int, ...], *, start: int | None = None) -> Iterator[Shard]:
    """Yield the shards of an array that have chunks; offsets count from the start of the shard's span, or `start`."""
    for place in map(tuple, np.unique(np.argwhere(array.offsets != MISSING) // counts, axis=0).tolist()):
        region = tuple(slice(at * count, (at + 1) * count) for at, count in zip(place, counts, strict=True))
        offsets, lengths = array.offsets[region], array.lengths[region]
        is_there = offsets != MISSING
        first = int(offsets[is_there].min()) if start is None else start
        stop = int((offsets[is_there] + lengths[is_there]).max())
        table = np.full((*counts, 2), MISSING, "<u8")
        inner = table[tuple(slice(0, size) for size in offsets.shape)]
        inner[..., 0] = np.where(is_there, offsets - np.uint64(first), np.uint64(MISSING))
        inner[..., 1] = np.where(is_there, lengths, np.uint64(MISSING))
        index = encode_table(table, has_checksum=True)
        yield Shard(place, first, stop, int(lengths[is_there].sum()), index)


def sharded_document(array: Chunked, counts: tuple[int, ...]) -> Json:
    """Return the metadata document of an array in shards with `counts` chunks along each axis."""
    shard_shape = tuple(size * count for size, count in zip(array.chunk_shape, counts, strict=True))
    sharding = {
        "chunk_shape": list(array.chunk_shape),
        "codecs": [array.header.bytes_codec, *array.codecs],
        "index_codecs": INDEX_CODECS,
        "index_location": "end",
    }
    return array.header.to_json(shard_shape, [{"name": "sharding_indexed", "configuration": sharding}])


def rows_of_chunk(array: Contiguous) -> int:
    """Return the number of rows in a chunk of a contiguous array, such that all chunks have the same size."""
    shape = array.header.shape
    if not shape:
        return 1
    row = math.prod(shape[1:]) * array.header.dtype.itemsize
    most = max(1, _MAX_CHUNK // row)
    fewest = -(-shape[0] // most)
    # A prime number of rows has no divisor in this range. Then the array is one large chunk.
    counts = (count for count in range(fewest, min(shape[0], _MAX_CHUNKS) + 1) if shape[0] % count == 0)
    return shape[0] // next(counts, 1)
