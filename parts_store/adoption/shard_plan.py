"""How the chunks of a file become shards: which belong together, and what their index says. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parts_store.adoption.description import MISSING, Chunked, Contiguous, Json
from parts_store.format.shard_index import encode_table

INDEX_CODECS: list[Json] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
# Of the bytes of an array in one piece, so many make a chunk.
_MAX_CHUNK = 1 << 25
_MAX_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class Shard:
    """The chunks of one shard: the span of the file that holds them, and the index of where in it they are."""

    coordinates: tuple[int, ...]
    start: int
    stop: int
    # How many bytes of the span are chunks of this array.
    nbytes: int
    index: bytes

    @property
    def relative(self) -> str:
        """The key of the shard, below its array."""
        return "/".join(["c", *map(str, self.coordinates)])


def chunks_of_shard(grid: tuple[int, ...], max_chunks: int) -> tuple[int, ...]:
    """How many chunks a shard has along each axis: whole rows of the last axes, as files are mostly written.

    As many as fit into `max_chunks`, and in shards of about the same size.
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
    """The shards of an array, those without any chunk left out; offsets count from the shard's own span, or `start`."""
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
    """The document of an array in shards of so many chunks."""
    shard_shape = tuple(size * count for size, count in zip(array.chunk_shape, counts, strict=True))
    sharding = {
        "chunk_shape": list(array.chunk_shape),
        "codecs": [array.header.bytes_codec, *array.codecs],
        "index_codecs": INDEX_CODECS,
        "index_location": "end",
    }
    return array.header.to_json(shard_shape, [{"name": "sharding_indexed", "configuration": sharding}])


def rows_of_chunk(array: Contiguous) -> int:
    """How many rows of an array in one piece make a chunk: all chunks are of one size, or there is one."""
    shape = array.header.shape
    if not shape:
        return 1
    row = math.prod(shape[1:]) * array.header.dtype.itemsize
    most = max(1, _MAX_CHUNK // row)
    fewest = -(-shape[0] // most)
    # Of a prime number of rows there are only single ones: rather one large chunk than a million.
    counts = (count for count in range(fewest, min(shape[0], _MAX_CHUNKS) + 1) if shape[0] % count == 0)
    return shape[0] // next(counts, 1)
