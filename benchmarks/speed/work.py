"""The work that is measured, and the goals for it."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.speed.layouts import BIG, BLOSC, SHARDS, SMALL, ZSTD, Layout

type Operation = Literal["first write", "overwrite", "read", "random reads", "64 points"]

DISK = "disk"
S3 = ("S3 +0 ms", "S3 +20 ms", "S3 +50 ms")
LATENCY = dict(zip(S3, (0, 20, 50), strict=True))
OURS, OURS_PLAIN = "ours, 2 parts", "ours, no parts"
DEFAULT, DEFAULT_PLAIN = "ours, 2 parts, zarr's pipeline", "ours, no parts, zarr's pipeline"


@dataclass(frozen=True, slots=True)
class Work:
    """Something that every peer does with the same array at the same place."""

    where: str
    layout: Layout
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the time of one peer relative to the time of others, or to a number of round trips."""

    text: str
    where: tuple[str, ...]
    layouts: tuple[str, ...]
    operations: tuple[Operation, ...]
    ours: str
    # The fastest of these counts. With none, the limit is a number of round trips.
    others: tuple[str, ...]
    at_most: float


_ALL: tuple[Operation, ...] = ("first write", "read", "random reads", "64 points")
WORK = (
    Work(S3[0], SHARDS, ("first write", "overwrite", "read", "random reads")),
    Work(S3[0], ZSTD, ("first write", "overwrite", "read", "random reads")),
    Work(S3[0], BLOSC, ("first write", "read")),
    Work(S3[0], SMALL, ("first write", "overwrite", "read")),
    Work(S3[1], SHARDS, _ALL),
    Work(S3[1], ZSTD, _ALL),
    Work(S3[1], SMALL, ("first write", "overwrite", "read")),
    Work(S3[2], SHARDS, ("first write", "read", "random reads")),
    Work(DISK, SHARDS, ("first write", "overwrite", "read", "random reads")),
    Work(DISK, ZSTD, ("first write", "overwrite", "read", "random reads")),
    Work(DISK, SMALL, ("first write", "overwrite", "read")),
    Work(DISK, BIG, ("first write", "read")),
)
QUICK = (
    Work(S3[0], SHARDS, ("first write", "read", "random reads")),
    Work(S3[1], SHARDS, ("first write", "read", "random reads")),
    Work(S3[1], SMALL, ("first write", "read")),
    Work(DISK, SHARDS, ("first write", "read", "random reads")),
)
_PEERS = ("zarr", "zarr fused", "zarrs", "tensorstore", "icechunk", "fsspec")
GOALS = (
    Goal(
        "full read, at most 1.2 times tensorstore", S3[:1], ("shards", "zstd"), ("read",), OURS, ("tensorstore",), 1.2
    ),
    Goal("full read, ahead of zarrs", S3[:1], ("shards", "zstd"), ("read",), OURS, ("zarrs",), 1.0),
    Goal("first write, a fifth of zarr", S3[:1], ("shards", "zstd"), ("first write",), OURS, ("zarr",), 0.2),
    Goal("first write, near the limit", S3[:1], ("shards",), ("first write",), OURS, ("limit, 2 parts",), 1.3),
    Goal(
        "ahead of zarrs and tensorstore",
        S3[1:2],
        ("shards", "zstd"),
        ("read", "first write"),
        OURS,
        ("zarrs", "tensorstore"),
        1.0,
    ),
    Goal("small chunks, one part", S3[1:2], ("small",), ("read", "first write"), OURS_PLAIN, ("limit, 1 part",), 1.15),
    Goal("small chunks, two parts", S3[1:2], ("small",), ("read", "first write"), OURS, ("limit, 2 parts",), 1.15),
    Goal("a known shard, with parts", S3[1:2], ("shards", "zstd"), ("random reads",), OURS, _PEERS, 1 / 1.9),
    Goal("a known shard, without parts", S3[1:2], ("shards", "zstd"), ("random reads",), OURS_PLAIN, _PEERS, 1 / 1.9),
    Goal("64 points in one call, 3 round trips", S3[1:2], ("shards", "zstd"), ("64 points",), OURS, (), 3.0),
    Goal(
        "ahead of zarr's fused pipeline",
        (DISK,),
        ("shards", "zstd"),
        ("read", "first write"),
        OURS,
        ("zarr fused",),
        1.0,
    ),
    Goal("reads, at most twice tensorstore", (DISK,), ("shards", "zstd"), ("read",), OURS, ("tensorstore",), 2.0),
    Goal(
        "a known shard, as fast as the fused pipeline",
        (DISK,),
        ("shards",),
        ("random reads",),
        OURS,
        ("zarr fused",),
        1.0,
    ),
    Goal(
        "two parts, at most 2.2 times zarr with one", (DISK,), ("small",), ("read", "first write"), OURS, ("zarr",), 2.2
    ),
    Goal(
        "no parts, zarr's pipeline, not slower than zarr",
        (DISK, *S3),
        ("small", "shards", "zstd", "blosc", "big"),
        ("first write", "overwrite", "read", "random reads"),
        DEFAULT_PLAIN,
        ("zarr",),
        1.1,
    ),
)
