"""The plan of shards: every chunk has one index slot, which leads to its bytes in its file."""

import itertools
import math
import struct
import zlib
from collections.abc import Iterator

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from parts_store.virtual.manifests.shards import (
    MAX_FILES,
    ChunkTable,
    Cut,
    NotCut,
    cut_shards,
    plan_cut,
    shard_grid,
)
from tests.effort import some

NONE = 2**64 - 1
type Grid = tuple[int, ...]


def in_files(grid: Grid, cuts: tuple[tuple[int, ...], ...]) -> NDArray[np.str_]:
    """Return the file of each chunk: along each axis the file changes at these positions."""
    names = np.full(grid, "s3://b/", "U40")
    for axis, positions in enumerate(cuts):
        numbers = np.searchsorted(positions, np.arange(grid[axis]), side="right").astype("U20")
        along_axis = [-1 if other == axis else 1 for other in range(len(grid))]
        names = np.strings.add(np.strings.add(names, numbers.reshape(along_axis)), "-")
    return names


def a_table(
    names: NDArray[np.str_], *, missing: float = 0.0, order: str = "any", keep: NDArray[np.bool_] | None = None
) -> ChunkTable:
    """Return a table of chunks that lie in their files in some order, with gaps between them."""
    random = np.random.default_rng(zlib.crc32(repr((names.tolist(), missing, order)).encode()))
    paths, offsets = names.astype(np.dtypes.StringDType()), np.zeros(names.shape, np.uint64)
    lengths = random.integers(1, 9, names.shape).astype(np.uint64)
    ends: dict[str, int] = {}
    places = list(itertools.product(*map(range, names.shape)))
    match order:
        case "any":
            places = [places[each] for each in random.permutation(len(places))]
        case "reversed":
            places.reverse()
    for place in places:
        if random.random() < missing or (keep is not None and not keep[place]):
            paths[place], lengths[place] = "", 0
            continue
        start = ends.get(str(names[place]), 5) + int(random.integers(0, 4))
        # Some chunks share their bytes with the chunk before.
        if order == "shared" and random.random() < 0.5:
            start = max(0, start - 4)
        offsets[place], ends[str(names[place])] = start, start + int(lengths[place])
    return ChunkTable.of(paths, offsets, lengths)


def files_of_shards(table: ChunkTable, counts: Grid) -> list[int]:
    """Return how many files the chunks of each shard are in."""
    return [
        len({int(each) for each in table.numbers[region].flat} - {-1})
        for shard in itertools.product(*map(range, shard_grid(table.grid, counts)))
        for region in [tuple(slice(at * count, (at + 1) * count) for at, count in zip(shard, counts, strict=True))]
    ]


def cuts_of(length: int, files: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to cut a length into at most this number of files."""
    for count in range(files):
        yield from itertools.combinations(range(1, length), count)


def check(table: ChunkTable, counts: Grid) -> None:
    """Check that the index of every shard leads to its chunks, in ranges of files that are as small as possible."""
    needed = max(files_of_shards(table, counts), default=0)
    for most in range(1, MAX_FILES + 1):
        shards = cut_shards(table, counts, most)
        assert (shards is None) == (needed > most)
    if shards is None:
        return
    assert shards.files == max(needed, 1)
    columns = (table.numbers, table.offsets, table.lengths)
    places = [tuple(place) for place in np.argwhere(table.numbers >= 0).tolist()]
    left = {place: [int(column[place]) for column in columns] for place in places}
    for number, shard in enumerate(shards.coordinates.tolist()):
        index = shards.index(number)
        assert len(index) == 16 * math.prod(counts) + 4
        assert int.from_bytes(index[-4:], "little") == google_crc32c.value(index[:-4])
        ranges = zip(shards.numbers[number], shards.starts[number], shards.stops[number], strict=True)
        pieces = [(int(file), int(start), int(stop)) for file, start, stop in ranges if file >= 0]
        found: dict[int, list[tuple[int, int]]] = {file: [] for file, _, _ in pieces}
        assert len(found) == len(pieces)
        # The ranges of files follow each other in the shard.
        begins = [0, *itertools.accumulate(stop - start for _, start, stop in pieces)]
        begin_of = {file: begin - start for (file, start, _), begin in zip(pieces, begins, strict=False)}
        slots = itertools.product(*map(range, counts))
        for slot, row in zip(slots, struct.iter_unpack("<QQ", index[:-4]), strict=True):
            place = tuple(at * count + each for at, count, each in zip(shard, counts, slot, strict=True))
            if place in left:
                file, offset, nbytes = left.pop(place)
                assert row == (begin_of[file] + offset, nbytes)
                found[file].append((offset, offset + nbytes))
            else:
                assert row == (NONE, NONE)
        used = [(file, min(map(min, spans)), max(map(max, spans))) for file, spans in found.items()]
        assert used == pieces
        assert int(shards.nbytes[number]) == sum(stop - start for spans in found.values() for start, stop in spans)
    assert not left


GRIDS: list[Grid] = [*((length,) for length in range(1, 8)), (2, 5), (4, 3), (3, 1, 2), (1, 4, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
def test_every_chunk_is_found_by_its_index(grid: Grid, missing: float) -> None:
    # Exhaustive for one axis; along several axes in at most two files each.
    orders = ("forward", "reversed", "any", "shared") if len(grid) == 1 else ("any",)
    files = 5 if len(grid) == 1 else 2
    all_cuts = some(list(itertools.product(*(list(cuts_of(length, files)) for length in grid))))
    for order, cuts in itertools.product(orders, all_cuts):
        table = a_table(in_files(grid, cuts), missing=missing, order=order)
        for counts in itertools.product(*(range(1, length + 2) for length in grid)):
            check(table, counts)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 100])
def test_planned_shards_are_small_enough_and_in_few_files(most: int) -> None:
    grids = [(length,) for length in range(1, 9)] + [(2, 4), (4, 2), (3, 3)]
    for grid in grids:
        for cuts in itertools.product(*(list(cuts_of(length, 4)) for length in grid)):
            table = a_table(in_files(grid, cuts))
            plan = plan_cut(table, most)
            if isinstance(plan, NotCut):
                continue
            assert most > 1
            assert math.prod(plan.counts) <= most
            assert plan.shards.files == max(files_of_shards(table, plan.counts))
            check(table, plan.counts)


def lengths_to_cuts(lengths: list[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(lengths[:-1]))


def plain(grid: Grid, cuts: tuple[tuple[int, ...], ...], nbytes: int = 100, stride: int = 100) -> ChunkTable:
    """Return a table of equal chunks, in C order in each file, at a distance."""
    names = in_files(grid, cuts)
    offsets = np.zeros(grid, np.uint64)
    for file in set(names.flat):
        offsets[names == file] = np.arange((names == file).sum()) * stride
    return ChunkTable.of(names.astype(np.dtypes.StringDType()), offsets, np.full(grid, nbytes, np.uint64))


MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] * 2

CHOICES: dict[str, tuple[ChunkTable, int, Grid, int]] = {
    "one file, whole rows": (plain((100, 10), ((), ())), 4095, (100, 10), 1),
    "one file, rows of equal shards": (plain((100, 10), ((), ())), 400, (34, 10), 1),
    "one file, part of a row": (plain((2, 3, 100), ((), (), ())), 40, (1, 1, 34), 1),
    "files of equal length": (plain((100, 10), ((20, 40, 60, 80), ())), 4095, (20, 10), 1),
    "only the last file is shorter": (plain((90, 10), ((20, 40, 60, 80), ())), 4095, (20, 10), 1),
    "a divisor of all lengths": (plain((60, 100), ((20, 30), ())), 4095, (10, 100), 1),
    "a few short files": (plain((60, 10), ((20, 30), ())), 4095, (60, 10), 3),
    "months, of which one has three days": (plain((132, 8), ((29, 32, 63, 94), ())), 4095, (33, 8), 3),
    "months": (plain((sum(MONTHS), 8), (lengths_to_cuts(MONTHS), ())), 4095, (28, 8), 2),
    "months, in small shards": (plain((sum(MONTHS), 8), (lengths_to_cuts(MONTHS), ())), 100, (12, 8), 2),
    "two files of any length": (plain((41, 8), ((3,), ())), 4095, (41, 8), 2),
    "files joined along the last axis": (plain((100, 30), ((), (10, 20))), 4095, (100, 10), 1),
    "files joined along both axes": (plain((20, 30), ((10,), (10, 20))), 4095, (10, 10), 1),
}


@pytest.mark.parametrize("case", CHOICES)
def test_length_of_a_shard(case: str) -> None:
    table, most, counts, files = CHOICES[case]
    plan = plan_cut(table, most)
    assert isinstance(plan, Cut)
    assert (plan.counts, plan.shards.files) == (counts, files)
    check(table, counts)


def missing_but(table: ChunkTable, count: int) -> ChunkTable:
    """Return the table with only some of its chunks."""
    numbers = np.full(table.grid, -1)
    chosen = np.random.default_rng(1).permutation(numbers.size)[:count]
    numbers.reshape(-1)[chosen] = table.numbers.reshape(-1)[chosen]
    return ChunkTable(table.files, numbers, table.offsets, table.lengths)


REFUSED: dict[str, tuple[ChunkTable, int, str]] = {
    "few chunks": (plain((63,), ((),)), 4095, "too few chunks for shards: 63"),
    "fewer than a shard may have": (plain((19,), ((),)), 20, "too few chunks for shards: 19"),
    "no chunks": (missing_but(plain((100,), ((),)), 0), 4095, "too few chunks for shards: 0"),
    "an empty axis": (plain((0, 5), ((), ())), 4095, "too few chunks for shards: 0"),
    "one chunk in a shard": (plain((100,), ((),)), 1, "a shard may have one chunk only"),
    "a file for each chunk": (plain((100,), (tuple(range(1, 100)),)), 4095, "a shard would have fewer than 16 chunks"),
    "few of many chunks": (missing_but(plain((10**5,), ((),)), 200), 4095, "a shard would have about 8 chunks"),
    "many missing chunks": (missing_but(plain((10**5,), ((),)), 2000), 4095, "most chunks of a shard would be missing"),
    "chunks between others": (
        plain((1000,), ((),), nbytes=1000, stride=3000),
        4095,
        "a shard would read 3.0 times the bytes of its chunks",
    ),
    "chunks of many files side by side": (
        a_table(np.array([[f"s3://b/{row}" for _ in range(70)] for row in range(70)]), keep=np.eye(70, dtype=bool)),
        4095,
        "the chunks of a shard would be in more than 4 files",
    ),
    "empty chunks": (plain((100,), ((),), nbytes=0), 4095, "some chunks have no bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_reason_for_no_shards(case: str) -> None:
    table, most, reason = REFUSED[case]
    assert plan_cut(table, most) == NotCut(reason)


def test_small_gaps_and_large_gaps_are_not_counted() -> None:
    # Reading a few kilobytes more is faster than another request, and a gap of more than 16 KiB is not read.
    assert isinstance(plan_cut(plain((100,), ((),), nbytes=10, stride=110), 4095), Cut)
    assert isinstance(plan_cut(plain((1000,), ((),), nbytes=1000, stride=1001 + (1 << 14)), 4095), Cut)


def test_small_index_that_is_an_object_is_not_worth_it() -> None:
    reason = "an index of 255 chunks would be an object of its own (more than 512 bytes)"
    assert plan_cut(plain((255,), ((),)), 4095, 512) == NotCut(reason)
    for chunks, limit in ((256, 512), (255, 255 * 16 + 4)):
        plan = plan_cut(plain((chunks,), ((),)), 4095, limit)
        assert isinstance(plan, Cut)
        assert plan.counts == (chunks,)


def test_offsets_at_the_end_of_the_largest_file() -> None:
    table = plain((20,), ((7,),))
    largest = ChunkTable(table.files, table.numbers, table.offsets + np.uint64(2**63 - 1 - 2000), table.lengths)
    check(largest, (20,))


def test_a_file_that_comes_again_is_counted_once() -> None:
    # A shard in the files 0, 1, 0 is in two files.
    table = a_table(np.array(["s3://b/0", "s3://b/1", "s3://b/0", "s3://b/0"]))
    check(table, (4,))
