"""The goals: limits for what parts_store takes, relative to other peers or as a number."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.speed import counting, growth, memory
from benchmarks.speed.layouts import COUNTED, ONE_CHUNK
from benchmarks.speed.measuring import Table
from benchmarks.speed.work import DISK, KNOWN_SHARD, LATENCY, S3

OURS: Final = "ours, 2 parts"
OURS_PLAIN: Final = "ours, no parts"
DEFAULT: Final = "ours, 2 parts, zarr's pipeline"
DEFAULT_PLAIN: Final = "ours, no parts, zarr's pipeline"
# Peers that notice when stored data has changed.
PEERS: Final = (
    *(
        "zarr",
        "zarr, 64 in flight",
        "zarr fused",
        "zarrs",
        "tensorstore",
        "tensorstore, no cache",
        "icechunk",
        "fsspec",
    ),
)
# Two equal programs differ by so much from run to run.
NOISE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for a peer of parts_store.

    The limit is a multiple of what the best of some peers takes. Without such peers it is a number: of round trips
    for times, otherwise in the unit of the row.
    """

    text: str
    where: tuple[str, ...]
    layouts: tuple[str, ...]
    operations: tuple[str, ...]
    ours: str
    others: tuple[str, ...]
    at_most: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A goal, what it was measured on, and the outcome."""

    goal: Goal
    row: str
    found: float

    @property
    def holds(self) -> bool:
        """Whether the goal is met."""
        return self.found <= self.goal.at_most


_SHARDS: Final = ("shards", "zstd")
_BOTH: Final = ("read", "first write")
_LISTED: Final = ("200 arrays", "10,000 arrays")
GOALS: Final = (
    Goal("at most 1.2 times tensorstore", S3[:1], _SHARDS, ("read",), OURS, ("tensorstore",), 1.2),
    Goal("ahead of zarrs", S3[:1], _SHARDS, ("read",), OURS, ("zarrs",), 1.0),
    Goal("a fifth of zarr", S3[:1], _SHARDS, ("first write",), OURS, ("zarr",), 0.2),
    Goal("at most 1.3 times the limit", S3[:1], ("shards",), ("first write",), OURS, ("limit, 2 parts",), 1.3),
    Goal("ahead of zarrs and tensorstore", S3[1:2], _SHARDS, _BOTH, OURS, ("zarrs", "tensorstore"), 1.0),
    Goal("at most 1.15 times the limit", S3[1:2], ("small",), _BOTH, OURS_PLAIN, ("limit, 1 part",), 1.15),
    Goal("at most 1.15 times the limit", S3[1:2], ("small",), _BOTH, OURS, ("limit, 2 parts",), 1.15),
    Goal("1.9 times as fast as all that notice changes", S3[1:2], _SHARDS, KNOWN_SHARD, OURS, PEERS, 1 / 1.9),
    Goal("1.9 times as fast as all that notice changes", S3[1:2], _SHARDS, KNOWN_SHARD, OURS_PLAIN, PEERS, 1 / 1.9),
    Goal("1 request", (counting.WHERE,), (COUNTED.name,), KNOWN_SHARD, OURS, (), 1.0),
    Goal("1 request", (counting.WHERE,), (COUNTED.name,), KNOWN_SHARD, OURS_PLAIN, (), 1.0),
    Goal("at most 3 round trips", S3[1:2], _SHARDS, ("64 points",), OURS, (), 3.0),
    Goal("ahead of zarr's fused pipeline", (DISK,), _SHARDS, _BOTH, OURS, ("zarr fused",), 1.0),
    Goal("at most twice tensorstore", (DISK,), _SHARDS, ("read",), OURS, ("tensorstore",), 2.0),
    Goal("not slower than zarr's fused pipeline", (DISK,), _SHARDS, KNOWN_SHARD, OURS, ("zarr fused",), NOISE),
    Goal("at most 2.2 times zarr with one part", (DISK,), ("small",), _BOTH, OURS, ("zarr",), 2.2),
    Goal(
        "not slower than zarr",
        (DISK, *S3),
        ("small", "shards", "zstd", "blosc", "big"),
        (*_BOTH, "overwrite", *KNOWN_SHARD, "random reads, unknown shards", "64 points", "append", "dask regions"),
        DEFAULT_PLAIN,
        ("zarr",),
        NOISE,
    ),
    Goal(
        "at most one copy of the chunk besides the array",
        tuple(f"{memory.WHERE}, {where}" for where in (DISK, S3[0])),
        (ONE_CHUNK.name,),
        ("read", "write"),
        "ours, 3 parts",
        (),
        # What the allocator and the interpreter take besides is a few MiB.
        NOISE,
    ),
    *(
        Goal("time per chunk is flat", (growth.WHERE,), ("100 to 100,000 chunks",), ("read", "write"), name, (), 1.25)
        for name in (OURS, OURS_PLAIN)
    ),
    Goal(
        "not slower than zarr",
        (DISK, *S3),
        _LISTED,
        ("open 200 arrays one by one", "open a group and all arrays", "list everything"),
        DEFAULT_PLAIN,
        ("zarr",),
        NOISE,
    ),
)


def check(table: Table) -> Iterator[Checked]:
    """Return every goal with every row that it was measured on."""
    for goal in GOALS:
        for (where, layout, operation), found in table.items():
            if where not in goal.where or layout not in goal.layouts or operation not in goal.operations:
                continue
            if goal.ours not in found:
                continue
            ours = found[goal.ours]
            row = f"{where}, {layout}, {operation}: {goal.ours}"
            if goal.others:
                others = [found[other].value for other in goal.others if other in found]
                if others:
                    yield Checked(goal, row, ours.value / min(others))
            elif ours.unit == "seconds":
                yield Checked(goal, row, ours.value * 1e3 / LATENCY[where])
            else:
                yield Checked(goal, row, ours.value)
