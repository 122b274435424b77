"""The plan of shards: every chunk has one index slot, with its offset in the file."""

import itertools
import math
import zlib
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from parts_store.adoption import shard_plan
from parts_store.adoption.description import MISSING, Chunked, Contiguous, Header

GRIDS = [grid for ndim in (1, 2, 3) for grid in itertools.product(range(1, 8 if ndim < 3 else 5), repeat=ndim)]


def header(shape: tuple[int, ...], dtype: str = "u1") -> Header:
    return Header("a", shape, np.dtype(dtype), 0, {}, tuple(f"d{axis}" for axis in range(len(shape))))


def chunked(grid: tuple[int, ...], *, missing: float = 0.3) -> Chunked:
    """Chunks of one element each, in no order, and some of them nowhere."""
    random = np.random.default_rng(zlib.crc32(repr(grid).encode()))
    count = math.prod(grid)
    lengths = random.integers(1, 50, count).astype(np.uint64)
    starts = np.concatenate([[0], np.cumsum(lengths + random.integers(0, 9, count).astype(np.uint64))[:-1]])
    offsets = (starts.astype(np.uint64) + np.uint64(2**40))[random.permutation(count)]
    nowhere = random.random(count) < missing
    offsets[nowhere] = lengths[nowhere] = MISSING
    return Chunked(header(grid), (1,) * len(grid), (), offsets.reshape(grid), lengths.reshape(grid))


def slots(shard: shard_plan.Shard, counts: tuple[int, ...]) -> NDArray[Any]:
    """The index of a shard, decoded without the code under test."""
    assert len(shard.index) == 16 * math.prod(counts) + 4
    assert int.from_bytes(shard.index[-4:], "little") == google_crc32c.value(shard.index[:-4])
    return np.frombuffer(shard.index[:-4], "<u8").reshape(*counts, 2)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 8, 100])
def test_every_chunk_is_in_one_index_slot_with_its_offset(most: int) -> None:
    for grid in GRIDS:
        array = chunked(grid)
        counts = shard_plan.chunks_of_shard(grid, most)
        found = np.full((*grid, 2), MISSING, np.uint64)
        met = []
        for shard in shard_plan.shards_of(array, counts):
            met.append(shard.coordinates)
            table = slots(shard, counts)
            named = []
            for slot in itertools.product(*map(range, counts)):
                place = tuple(
                    at * count + each for at, count, each in zip(shard.coordinates, counts, slot, strict=True)
                )
                is_hole = (table[slot] == MISSING).all()
                if any(at >= size for at, size in zip(place, grid, strict=True)):
                    assert is_hole
                elif not is_hole:
                    start, nbytes = map(int, table[slot])
                    assert start + nbytes <= shard.stop - shard.start
                    found[place] = shard.start + start, nbytes
                    named.append((start, start + nbytes))
            # The span is as small as it can be.
            assert min(start for start, _ in named) == 0
            assert max(stop for _, stop in named) == shard.stop - shard.start
            assert shard.nbytes == sum(stop - start for start, stop in named)
            assert shard.relative == "/".join(["c", *map(str, shard.coordinates)])
        assert len(set(met)) == len(met)
        assert np.array_equal(found[..., 0], array.offsets)
        assert np.array_equal(found[..., 1], array.lengths)


def test_offsets_can_count_from_the_file() -> None:
    array = chunked((3, 4), missing=0)
    (shard,) = shard_plan.shards_of(array, (3, 4), start=0)
    assert shard.start == 0
    assert np.array_equal(slots(shard, (3, 4))[..., 0], array.offsets)


def test_what_was_never_written_is_no_shard() -> None:
    for grid in GRIDS:
        assert list(shard_plan.shards_of(chunked(grid, missing=1.1), grid)) == []


@pytest.mark.parametrize("most", range(1, 40))
def test_shards_have_limited_and_similar_numbers_of_chunks(most: int) -> None:
    for grid in [*GRIDS, (97,), (3, 97), (97, 3), (1000, 1), (1, 1, 1, 50)]:
        counts = shard_plan.chunks_of_shard(grid, most)
        assert math.prod(counts) <= most
        assert all(1 <= count <= size for count, size in zip(counts, grid, strict=True))
        cut = [axis for axis, (count, size) in enumerate(zip(counts, grid, strict=True)) if count < size]
        if cut:
            # Whole rows after the axis that is cut, and single ones before it.
            axis = max(cut)
            assert counts[axis + 1 :] == grid[axis + 1 :]
            assert counts[:axis] == (1,) * axis
            # As few shards along it as there can be, of as few chunks as those can have.
            room = most // math.prod(grid[axis + 1 :])
            fewest = math.ceil(grid[axis] / room)
            assert math.ceil(grid[axis] / counts[axis]) == fewest
            assert (counts[axis] - 1) * fewest < grid[axis]


def test_document_describes_shards_and_chunks() -> None:
    array = Chunked(header((10, 7), ">i2"), (4, 3), ({"name": "crc32c"},), *[np.zeros((3, 3), np.uint64)] * 2)
    document = shard_plan.sharded_document(array, (2, 3))
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [8, 9]
    (codec,) = document["codecs"]
    assert codec["configuration"]["chunk_shape"] == [4, 3]
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    assert codec["configuration"]["codecs"] == [big, {"name": "crc32c"}]


@pytest.mark.parametrize("rows", [1, 2, 12, 97, 4096, 4097, 2**20, 2**20 + 7, 10**7 + 19, 2**25 + 1])
@pytest.mark.parametrize("columns", [1, 3, 2**20, 2**26])
def test_contiguous_array_is_cut_into_equal_chunks(rows: int, columns: int) -> None:
    found = shard_plan.rows_of_chunk(Contiguous(header((rows, columns)), 0))
    assert rows % found == 0
    assert rows // found <= 4096
    small = [count for count in range(1, 4097) if rows % count == 0 and rows // count * columns <= 2**25]
    # The largest that are not too large, if there are any; few enough in any case.
    assert rows // found == (small[0] if small else rows // found)
    if not small:
        assert rows // found in (1, rows)
