"""What concurrent writers of the same shards lose, and how long they take: zarr's stores, tensorstore, and ours.

Eight processes set elements in disjoint inner chunks of the same shards; every write changes one element. HDF5 is not
in the table: a file has one writing process. Memory cannot be shared by processes, so its writers are threads.

    python benchmarks/many_writers.py --writes 1000
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from minio import Minio
from obstore.store import LocalStore, MemoryStore

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.places import BUCKET, objects
from integration.many_writers import Peer, Work, run
from integration.server import supervised

PEERS: tuple[tuple[Peer, bool], ...] = (
    ("zarr", False),
    ("tensorstore", False),
    ("ours", False),
    ("ours", True),
    ("ours, zarr's pipeline", False),
    ("ours, zarr's pipeline", True),
)


def measure(place: str, work: Work) -> None:
    """Run one peer, and print a row."""
    result = run(work)
    name = work.peer + (", 2 parts" if work.has_parts else "")
    total = work.writers * work.writes
    print(
        f"{place:7} {name:32} {result.seconds:8.1f} s {total / result.seconds:8.0f} writes/s  lost {result.lost:5}"
        f"  errors {len(result.errors):5}  slowest {result.slowest:6.2f} s",
        flush=True,
    )


def main() -> None:
    """Measure all peers at all places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--writes", type=int, default=100, help="how many each of them makes")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--places", default="memory,disk,minio")
    given = parser.parse_args()
    numbers: dict[str, Any] = {"writers": given.writers, "writes": given.writes, "shards": given.shards}
    if "memory" in given.places:
        for peer, has_parts in PEERS:
            if peer != "tensorstore":
                measure("memory", Work(MemoryStore(), peer, has_parts=has_parts, in_threads=True, **numbers))
    if "disk" in given.places:
        with tempfile.TemporaryDirectory() as folder:
            for number, (peer, has_parts) in enumerate(PEERS):
                files = {"driver": "file", "path": f"{folder}/{number}/"}
                local = LocalStore(f"{folder}/{number}", mkdir=True)
                measure("disk", Work(local, peer, has_parts=has_parts, kvstore=files, **numbers))
    if "minio" in given.places:
        with supervised() as server:
            os.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
            host = server.endpoint.partition("://")[2]
            Minio(host, access_key=server.access_key, secret_key=server.secret_key, secure=False).make_bucket(BUCKET)
            for number, (peer, has_parts) in enumerate(PEERS):
                kvstore: dict[str, Any] = {
                    "driver": "s3",
                    "bucket": BUCKET,
                    "path": f"{number}/",
                    "endpoint": server.endpoint,
                    "aws_region": "us-east-1",
                    "aws_credentials": {"type": "environment"},
                }
                measure(
                    "minio", Work(objects(server, str(number)), peer, has_parts=has_parts, kvstore=kvstore, **numbers)
                )


if __name__ == "__main__":
    main()
