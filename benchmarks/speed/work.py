"""The work that every peer does, and where."""

from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.speed.layouts import (
    BIG,
    BLOSC,
    FILES,
    IN_FLIGHT,
    IN_SESSION,
    MONTHS,
    OPENED,
    SHARDS,
    SMALL,
    TIFF,
    ZSTD,
    Layout,
)

type Operation = Literal[
    "first write",
    "overwrite",
    "read",
    "random reads, known shard",
    "random reads, unknown shards",
    "64 points",
    "append",
    "dask regions",
    "read of an old snapshot",
    "copy",
    "full read",
    "time series",
    "random tiles",
    "open and time series",
]

DISK: Final = "disk"
S3: Final = ("S3 +0 ms", "S3 +20 ms", "S3 +50 ms")
LATENCY: Final = dict(zip(S3, (0, 20, 50), strict=True))
KNOWN_SHARD: Final[tuple[Operation, ...]] = ("random reads, known shard",)
# What an operation does once; reported beside the rows.
ABOUT: Final[dict[Operation, str]] = {
    "first write": "all values, in one call, to an array that was just created",
    "overwrite": "all values, in one call, where chunks exist",
    "read": "all values, in one call",
    "random reads, known shard": "20 inner chunks of one shard, one call each; the shard was read from before",
    "random reads, unknown shards": "one inner chunk of each of 16 shards, one call each; nothing was read before",
    "64 points": "64 single values in one call, each in another inner chunk; nothing was read before",
    "append": "a row of shards or chunks is appended, three times",
    "dask regions": "all values, by 8 threads of dask that write one chunk or shard each",
    "read of an old snapshot": "all values of the first of two commits, in one call",
    "copy": "the whole array, to another place in the same store",
    "full read": "all values of an archive, in one call; a time series, or a column, was read before",
    "time series": "all days at one point, in one call; another one was read before",
    "random tiles": "20 days or tiles, one call each; a time series, or a column, was read before",
    "open and time series": "a time series; nothing was opened before",
}


@dataclass(frozen=True, slots=True)
class Work:
    """Something that every peer does with the same array at the same place."""

    where: str
    layout: Layout
    operations: tuple[Operation, ...]
    # Peers that are left out: they would take minutes, and no goal compares with them.
    without: tuple[str, ...] = ()
    # Instead of the peers of all other work.
    peers: tuple[str, ...] = ()
    # How many times as often it is repeated: where a goal is about a small difference.
    times: int = 1


_WRITES: Final[tuple[Operation, ...]] = ("first write", "overwrite", "read")
_RANDOM: Final[tuple[Operation, ...]] = ("random reads, known shard", "random reads, unknown shards")
_REMOTE: Final[tuple[Operation, ...]] = ("first write", "read", *_RANDOM, "64 points")
_SESSION: Final[tuple[Operation, ...]] = (*_WRITES, "read of an old snapshot")
SESSION_PEERS: Final = ("icechunk", "icechunk, zarrs", "ours, session")
OPENED_PEERS: Final = ("ours, no parts", "ours, zarr.open", "ours, xr.open_zarr")
ON_ARCHIVES: Final[tuple[Operation, ...]] = ("full read", "time series", "random tiles", "open and time series")
ARCHIVE_PEERS: Final = (
    *("icechunk", "ours, references", "ours, shards", "files"),
    *("icechunk, dask", "ours, references, dask", "ours, shards, dask", "files, dask"),
)
FILES_PEERS: Final = ("ours, no parts", "ours, TIFF shards", "ours, HDF5 shards")
THREADS: Final = (8, 16, 32, 64, 96, 128)
IN_FLIGHT_PEERS: Final = ("ours, no parts", *(f"ours, {count} threads" for count in THREADS))
WORK: Final = (
    Work(S3[0], SHARDS, (*_WRITES, *_RANDOM)),
    Work(S3[0], ZSTD, (*_WRITES, *_RANDOM, "copy")),
    Work(S3[0], BLOSC, ("first write", "read")),
    Work(S3[0], SMALL, (*_WRITES, "copy")),
    Work(S3[0], BIG, ("first write", "read")),
    Work(S3[1], SHARDS, (*_REMOTE, "append", "dask regions")),
    Work(S3[1], ZSTD, _REMOTE),
    Work(S3[1], SMALL, _WRITES, without=("zarrs", "fsspec", "icechunk")),
    Work(S3[2], SHARDS, _REMOTE),
    Work(DISK, SHARDS, (*_WRITES, *_RANDOM, "append", "dask regions")),
    Work(DISK, ZSTD, (*_WRITES, *_RANDOM, "copy")),
    Work(DISK, BLOSC, ("first write", "read")),
    Work(DISK, SMALL, (*_WRITES, "copy")),
    Work(DISK, BIG, ("first write", "read")),
    *(Work(where, layout, _SESSION, peers=SESSION_PEERS) for where in (S3[0], DISK) for layout in IN_SESSION),
    *(Work(where, FILES, ("first write", "read", *_RANDOM), peers=FILES_PEERS) for where in (S3[0], DISK)),
    *(Work(where, OPENED, ("first write", "read"), peers=OPENED_PEERS, times=4) for where in (S3[0], DISK)),
    *(Work(where, layout, ("first write", "read"), peers=IN_FLIGHT_PEERS) for where in S3 for layout in IN_FLIGHT),
    *(Work(where, MONTHS, ON_ARCHIVES, peers=ARCHIVE_PEERS) for where in (DISK, S3[1])),
    Work(S3[0], MONTHS, ("full read", "time series"), peers=ARCHIVE_PEERS),
    *(Work(where, TIFF, ("full read", "random tiles"), peers=ARCHIVE_PEERS) for where in (DISK, *S3[:2])),
)
QUICK: Final = (
    Work(S3[0], SHARDS, ("first write", "read")),
    Work(S3[0], ZSTD, ("first write", "read")),
    Work(S3[1], SHARDS, ("read", "random reads, known shard", "64 points")),
    Work(S3[1], SMALL, ("first write", "read")),
    Work(DISK, SHARDS, ("first write", "read", "random reads, known shard")),
    Work(S3[0], IN_SESSION[1], _SESSION, peers=SESSION_PEERS),
    Work(DISK, IN_SESSION[2], _SESSION, peers=SESSION_PEERS),
    Work(DISK, ZSTD, ("copy",)),
    Work(DISK, FILES, ("first write", *KNOWN_SHARD), peers=FILES_PEERS),
    Work(DISK, OPENED, ("read",), peers=OPENED_PEERS, times=4),
    Work(S3[1], IN_FLIGHT[0], ("read",), peers=IN_FLIGHT_PEERS),
    Work(DISK, MONTHS, ON_ARCHIVES, peers=ARCHIVE_PEERS),
    Work(S3[1], TIFF, ("random tiles",), peers=ARCHIVE_PEERS),
)
QUICK_PEERS: Final = (
    *("zarr", "zarr fused", "zarrs", "tensorstore", "limit, 1 part", "limit, 2 parts"),
    *("ours, no parts, zarr's pipeline", "ours, no parts", "ours, 2 parts"),
)
