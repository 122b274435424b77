"""What concurrent writers of the same shards lose, and how fast they are: zarr's stores, tensorstore, h5py, and ours.

The first table: processes set elements in disjoint inner chunks of the same shards, each element once. Memory cannot be
shared by processes, so its writers are threads. HDF5 files cannot be written on S3.

The second table: 1 to 16 processes write to one shard for some seconds, each to its own inner chunk.

    python -m benchmarks.many_writers --seconds 60
    python -m benchmarks.many_writers --tables throughput --places disk --peers "tensorstore;ours"
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from obstore.store import LocalStore, MemoryStore

from benchmarks.places import BUCKET, minio, objects
from integration.many_writers import Peer, Result, Work, Writers, run
from integration.server import Server

ONE_SHARD: Final = {"slots": 16, "slot_elements": 1024, "shards": 1}


@dataclass(frozen=True, slots=True)
class Column:
    """A peer, as it is named in the tables."""

    name: str
    peer: Peer
    places: tuple[str, ...] = ("memory", "disk", "MinIO")
    has_parts: bool = False
    in_threads: bool = False
    # Whether it is in the second table.
    is_measured: bool = True


PEERS: Final = (
    Column("zarr", "zarr", is_measured=False),
    Column("h5py, threads of one process", "h5py", ("disk",), in_threads=True, is_measured=False),
    Column("h5py, processes with a lock", "h5py", ("disk",), is_measured=False),
    Column("tensorstore", "tensorstore"),
    Column("ours", "ours"),
    Column("ours, 2 parts", "ours", has_parts=True),
    Column("ours, zarr's pipeline", "ours, zarr's pipeline"),
    Column("ours, 2 parts, zarr's pipeline", "ours, zarr's pipeline", has_parts=True),
)


@dataclass(slots=True)
class Places:
    """New places for arrays, each used once."""

    stack: ExitStack
    server: Server | None
    count: int = 0

    def new(self, place: str) -> tuple[Any, dict[str, Any]]:
        """Return an empty place as a store of obstore, and as tensorstore names it."""
        self.count += 1
        name = f"run-{self.count}"
        if place == "memory":
            return MemoryStore(), {"driver": "memory", "path": f"{name}/"}
        if place == "disk":
            folder = self.stack.enter_context(tempfile.TemporaryDirectory())
            return LocalStore(folder), {"driver": "file", "path": f"{folder}/"}
        assert self.server is not None
        spec: dict[str, Any] = {"driver": "s3", "bucket": BUCKET, "path": f"{name}/", "endpoint": self.server.endpoint}
        spec |= {"aws_region": "us-east-1", "aws_credentials": {"type": "environment"}}
        return objects(self.server, name), spec


def _started(stack: ExitStack) -> Server:
    """Start MinIO, before the writers: tensorstore takes the credentials from their environment."""
    server = stack.enter_context(minio())
    os.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    return server


def losses(given: argparse.Namespace, places: Places, writers: Writers, peers: Sequence[Column]) -> Iterator[str]:
    """Let many processes make all writes, or those of some seconds, and count what is lost."""
    yield f"{given.writers} writers x {given.writes:,} writes, {given.shards} shards, at most {given.seconds:g} s"
    yield "| | writes | time | writes/s | lost | errors | slowest write |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for place in given.places.split(","):
        for column in peers:
            if place not in column.places:
                continue
            in_threads = column.in_threads or place == "memory"
            work = _work(places.new(place), column, in_threads=in_threads, **_numbers(given))
            result = run(work, writers)
            made = sum(result.counts)
            yield (
                f"| {place}, {column.name} | {made:,} | {result.seconds:.1f} s | {made / result.seconds:,.0f} "
                f"| {result.lost:,} | {_errors(result)} | {result.slowest:.2f} s |"
            )


def throughput(given: argparse.Namespace, places: Places, writers: Writers, peers: Sequence[Column]) -> Iterator[str]:
    """Let more and more processes write to one shard for some seconds; say how much the slowest and fastest made."""
    counts = [int(each) for each in given.counts.split(",")]
    yield f"writes per second to one shard of {16 * 1024 * 4 // 1024} KiB; {given.one_shard_seconds:g} s each"
    heads = " | ".join(str(count) for count in counts)
    yield f"| writers | {heads} | least to most of {counts[-1]} | lost | errors |"
    yield "|---|" + "---:|" * (len(counts) + 3)
    for place in given.places.split(","):
        for column in peers:
            if place not in column.places or not column.is_measured:
                continue
            results = []
            for count in counts:
                numbers = {"writers": count, "writes": 1_000_000, "seconds": given.one_shard_seconds}
                in_threads = place == "memory"
                work = _work(places.new(place), column, in_threads=in_threads, **numbers, **ONE_SHARD)
                results.append(run(work, writers))
            rates = " | ".join(f"{sum(each.counts) / each.seconds:,.0f}" for each in results)
            last = results[-1].counts
            lost, errors = sum(each.lost for each in results), sum(len(each.errors) for each in results)
            yield f"| {place}, {column.name} | {rates} | {min(last):,} to {max(last):,} | {lost} | {errors} |"


def _numbers(given: argparse.Namespace) -> dict[str, Any]:
    return {"writers": given.writers, "writes": given.writes, "shards": given.shards, "seconds": given.seconds}


def _work(place: tuple[Any, dict[str, Any]], column: Column, **numbers: Any) -> Work:
    return Work(place[0], column.peer, has_parts=column.has_parts, kvstore=place[1], **numbers)


def _errors(result: Result) -> str:
    """Return the number of errors, and print the first one, with which a run can be understood."""
    if result.errors:
        print(f"  {result.errors[0][:300]}", file=sys.stderr)
    return f"{len(result.errors):,}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default="losses,throughput")
    parser.add_argument("--places", default="memory,disk,MinIO")
    parser.add_argument("--peers", default=";".join(each.name for each in PEERS), help="separated by ';'")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--writes", type=int, default=1000, help="how many each of them makes")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120, help="a row of the first table ends after so long")
    parser.add_argument("--counts", default="1,2,4,8,16", help="numbers of writers of the second table")
    parser.add_argument("--one-shard-seconds", type=float, default=5, help="for each number of the second table")
    given = parser.parse_args()
    named = given.peers.split(";")
    peers = [each for each in PEERS if each.name in named]
    most = max(given.writers, *(int(each) for each in given.counts.split(",")))
    with ExitStack() as stack:
        places = Places(stack, _started(stack) if "MinIO" in given.places else None)
        writers = stack.enter_context(Writers(most))
        for table in given.tables.split(","):
            for line in (losses if table == "losses" else throughput)(given, places, writers, peers):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
