"""The goals: limits for what parts_store takes, relative to other peers or as a number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.speed import counting, growth, memory
from benchmarks.speed.layouts import COUNTED, IN_FLIGHT, IN_SESSION, MONTHS, ONE_CHUNK, OPENED, TIFF
from benchmarks.speed.measuring import RANDOM_READS, Row, Table
from benchmarks.speed.work import DISK, KNOWN_SHARD, LATENCY, S3, THREADS

OURS: Final = "ours, 2 parts"
OURS_PLAIN: Final = "ours, no parts"
DEFAULT: Final = "ours, 2 parts, zarr's pipeline"
DEFAULT_PLAIN: Final = "ours, no parts, zarr's pipeline"
SESSION: Final = "ours, session"
SHARDED: Final = "ours, shards"
REFERENCES: Final = "ours, references"
# Peers that notice when stored data has changed.
PEERS: Final = (
    *("zarr", "zarr, 64 in flight", "zarr fused", "zarrs"),
    *("tensorstore", "tensorstore, no cache", "icechunk", "fsspec"),
)
# Two equal programs differ by so much from run to run.
NOISE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for a peer of parts_store, for some work, with some text that says what is compared.

    The limit is a multiple of what the best of some peers takes. Without such peers it is a number: of round trips
    for times, otherwise in the unit of the row.
    """

    work: str
    text: str
    where: tuple[str, ...]
    layouts: tuple[str, ...]
    operations: tuple[str, ...]
    ours: str
    others: tuple[str, ...]
    at_most: float

    def covers(self, row: Row) -> bool:
        """Return whether the goal is about this row."""
        where, layout, operation = row
        return where in self.where and layout in self.layouts and operation in self.operations


@dataclass(frozen=True, slots=True)
class Checked:
    """A goal, what it was measured on, and the outcome."""

    goal: Goal
    row: Row
    found: float

    @property
    def name(self) -> str:
        """The row and the peer, as they are printed."""
        return f"{', '.join(self.row)}: {self.goal.ours}"

    @property
    def holds(self) -> bool:
        """Whether the goal is met."""
        return self.found <= self.goal.at_most


_SHARDS: Final = ("shards", "zstd")
_BOTH: Final = ("read", "first write")
_AT: Final = (S3[0], DISK)
_SESSIONS: Final = tuple(layout.name for layout in IN_SESSION[:2])
_IN_SESSION: Final = (*_BOTH, "overwrite", "read of an old snapshot")
_LISTED: Final = ("200 arrays", "10,000 arrays")
# What the goals are about; some work has several.
_READ: Final = "shards and zstd shards with parts, full read, +0 ms"
_WRITE: Final = "shards and zstd shards with parts, first write, +0 ms"
_REMOTE: Final = "shards and zstd shards with parts, read and first write, +20 ms"
_SMALL: Final = "small chunks, read and first write, +20 ms, one part and two"
_KNOWN: Final = "random inner read of a known shard, +20 ms, with and without parts"
_POINTS: Final = "64 random inner reads in one call, +20 ms"
_ADOPTED: Final = "adopted netCDF4, full read and time series"
_TILES: Final = "adopted TIFF, random tile"
_ALL_DAYS: Final = ("full read", "time series")
_DISK: Final = "local disk: shards and zstd shards with parts, read and first write"
GOALS: Final = (
    Goal(_READ, "at most 1.2 times tensorstore", S3[:1], _SHARDS, ("read",), OURS, ("tensorstore",), 1.2),
    Goal(_READ, "ahead of zarrs", S3[:1], _SHARDS, ("read",), OURS, ("zarrs",), 1.0),
    Goal(_WRITE, "a fifth of zarr", S3[:1], _SHARDS, ("first write",), OURS, ("zarr",), 0.2),
    Goal(_WRITE, "at most 1.3 times the limit", S3[:1], ("shards",), ("first write",), OURS, ("limit, 2 parts",), 1.3),
    Goal(_REMOTE, "ahead of zarrs and tensorstore", S3[1:2], _SHARDS, _BOTH, OURS, ("zarrs", "tensorstore"), 1.0),
    Goal(_SMALL, "at most 1.15 times the limit", S3[1:2], ("small",), _BOTH, OURS_PLAIN, ("limit, 1 part",), 1.15),
    Goal(_SMALL, "at most 1.15 times the limit", S3[1:2], ("small",), _BOTH, OURS, ("limit, 2 parts",), 1.15),
    Goal(_KNOWN, "1 request", (counting.WHERE,), (COUNTED.name,), KNOWN_SHARD, OURS, (), 1.0),
    Goal(_KNOWN, "1 request", (counting.WHERE,), (COUNTED.name,), KNOWN_SHARD, OURS_PLAIN, (), 1.0),
    *(
        Goal(
            _KNOWN, "1.9 times as fast as all that notice changes", S3[1:2], _SHARDS, KNOWN_SHARD, ours, PEERS, 1 / 1.9
        )
        for ours in (OURS, OURS_PLAIN)
    ),
    Goal(_POINTS, "at most 3 round trips", S3[1:2], _SHARDS, ("64 points",), OURS, (), 3.0),
    Goal(_DISK, "ahead of zarr's fused pipeline", (DISK,), _SHARDS, _BOTH, OURS, ("zarr fused",), 1.0),
    Goal(_DISK, "at most twice tensorstore", (DISK,), _SHARDS, ("read",), OURS, ("tensorstore",), 2.0),
    Goal(
        "local disk: random inner read of a known shard, with parts",
        *("not slower than zarr's fused pipeline", (DISK,), _SHARDS, KNOWN_SHARD, OURS, ("zarr fused",), NOISE),
    ),
    Goal(
        "local disk: 1,024 chunks of two parts, write and read",
        *("at most 2.2 times zarr with one part", (DISK,), ("small",), _BOTH, OURS, ("zarr",), 2.2),
    ),
    Goal(
        "no parts, zarr's default pipeline, any row",
        "not slower than zarr",
        (DISK, *S3),
        ("small", "shards", "zstd", "blosc", "big"),
        (*_BOTH, "overwrite", *KNOWN_SHARD, "random reads, unknown shards", "64 points", "append", "dask regions"),
        DEFAULT_PLAIN,
        ("zarr",),
        NOISE,
    ),
    Goal(
        "peak memory with our pipeline, 64 MiB chunk in 3 parts",
        "at most one copy of the chunk besides the array",
        tuple(f"{memory.WHERE}, {where}" for where in (DISK, S3[0])),
        (ONE_CHUNK.name,),
        ("read", "write"),
        "ours, 3 parts",
        (),
        # What the allocator and the interpreter take besides is a few MiB.
        NOISE,
    ),
    Goal(
        "memory: 10,000 random reads",
        *(
            "at most 8 MiB more after them than after 1,000",
            (memory.WHERE,),
            ("10,000 random reads",),
            ("growth after the first tenth",),
        ),
        *(OURS, (), 8.0),
    ),
    *(
        Goal(
            "growth: chunks",
            *("time per chunk is flat", (growth.WHERE,), ("100 to 100,000 chunks",), ("read", "write"), name, (), 1.25),
        )
        for name in (OURS, OURS_PLAIN)
    ),
    Goal(
        "growth: opening and listing 10,000 arrays",
        "not slower than zarr",
        (DISK, S3[0], S3[1]),
        _LISTED,
        ("open 200 arrays one by one", "open a group and all arrays", "list everything"),
        DEFAULT_PLAIN,
        ("zarr",),
        NOISE,
    ),
    Goal(
        "arrays in a session: shards and zstd shards, read and first write",
        *("a tenth of zarr's pipeline on Icechunk's store", _AT, _SESSIONS, _BOTH, SESSION, ("icechunk",), 0.1),
    ),
    Goal(
        "arrays in a session: shards and zstd shards, any row",
        "ahead of zarr's and zarrs' pipeline on Icechunk's store",
        _AT,
        _SESSIONS,
        _IN_SESSION,
        SESSION,
        ("icechunk", "icechunk, zarrs"),
        1.0,
    ),
    Goal(
        "arrays in a session: small chunks",
        "not slower than zarr's and zarrs' pipeline on Icechunk's store",
        _AT,
        (IN_SESSION[2].name,),
        _IN_SESSION,
        SESSION,
        ("icechunk", "icechunk, zarrs"),
        NOISE,
    ),
    *(
        Goal(
            "opened by zarr or xarray, without another call",
            *("within 5 % of ps.open_array", _AT, (OPENED.name,), operations, name, (OURS_PLAIN,), 1.05),
        )
        for name, operations in (("ours, zarr.open", _BOTH), ("ours, xr.open_zarr", ("read",)))
    ),
    Goal(
        "requests in flight, chosen by our pipeline",
        "within 10 % of the best fixed number",
        S3,
        tuple(layout.name for layout in IN_FLIGHT),
        _BOTH,
        OURS_PLAIN,
        tuple(f"ours, {count} threads" for count in THREADS),
        NOISE,
    ),
    Goal(_ADOPTED, "at most 1.2 times h5py", (DISK,), (MONTHS.name,), _ALL_DAYS, SHARDED, ("files",), 1.2),
    Goal(
        _ADOPTED,
        *("with dask, at most 1.2 times open_mfdataset", (DISK,), (MONTHS.name,), _ALL_DAYS),
        *(f"{SHARDED}, dask", ("files, dask",), 1.2),
    ),
    *(
        Goal(_ADOPTED, text, (DISK, *S3[:2]), (MONTHS.name,), _ALL_DAYS, f"{ours}{dask}", (f"icechunk{dask}",), at_most)
        for ours, text, at_most in (
            (SHARDED, "ahead of VirtualiZarr with Icechunk", 1.0),
            (REFERENCES, "not slower than VirtualiZarr with Icechunk", NOISE),
        )
        for dask in ("", ", dask")
    ),
    *(
        goal
        for ours in (SHARDED, REFERENCES)
        for goal in (
            Goal(_TILES, "at most 1.5 times tifffile", (DISK,), (TIFF.name,), ("random tiles",), ours, ("files",), 1.5),
            Goal(_TILES, "1 request", (counting.WHERE,), (TIFF.name,), ("random tiles",), ours, (), 1.0),
        )
    ),
)


def compared(row: Row) -> frozenset[str]:
    """Return the peers that the goals of a row compare."""
    return frozenset(name for goal in GOALS if goal.covers(row) for name in (goal.ours, *goal.others))


def not_measured(checked: Iterable[Checked]) -> Iterator[tuple[Goal, str]]:
    """Return every goal with each of its places, layouts and operations of which there is no row."""
    found: dict[Goal, list[Row]] = {goal: [] for goal in GOALS}
    for each in checked:
        found[each.goal].append(each.row)
    for goal, rows in found.items():
        for axis, names in enumerate((goal.where, goal.layouts, goal.operations)):
            yield from ((goal, name) for name in names if all(row[axis] != name for row in rows))


def check(table: Table) -> Iterator[Checked]:
    """Return every goal with every row that it was measured on."""
    for goal in GOALS:
        for row, found in table.items():
            if not goal.covers(row) or goal.ours not in found:
                continue
            ours = found[goal.ours]
            if goal.others:
                others = [found[other].value for other in goal.others if other in found]
                if others:
                    yield Checked(goal, row, ours.value / min(others))
            elif ours.unit == "seconds":
                yield Checked(goal, row, ours.value / _round_trip(table, row[0]))
            else:
                yield Checked(goal, row, ours.value)


def _round_trip(table: Table, where: str) -> float:
    """Return the seconds that one request takes: the latency, and the time of the server."""
    row = table.get((where, "shards", KNOWN_SHARD[0]), {})
    limit = row.get("limit, 1 part")
    return LATENCY[where] / 1e3 if limit is None else limit.value / RANDOM_READS
