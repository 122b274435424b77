"""Measure speed against all peers in one run; print ratios and goals, write JSON and a picture.

python -m benchmarks.speed [--quick] [--repetitions N] [--only TEXT] [--output FOLDER]
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from minio import Minio

from benchmarks.speed.layouts import Bucket, Disk, Place
from benchmarks.speed.measuring import Result, by_work, measure
from benchmarks.speed.peers import PEERS
from benchmarks.speed.report import goals, plot, ratios
from benchmarks.speed.work import DISK, LATENCY, QUICK, WORK
from integration import toxics
from integration.server import supervised

BUCKET = "speed"
PLOTTED = (
    ("S3 +0 ms", "shards", "read"),
    ("S3 +0 ms", "zstd", "read"),
    ("S3 +0 ms", "shards", "first write"),
    ("S3 +20 ms", "shards", "random reads"),
    ("S3 +20 ms", "small", "read"),
    ("disk", "shards", "read"),
)


@contextmanager
def places() -> Iterator[dict[str, Place]]:
    """Start a MinIO and proxies to it, and give the places to measure at by name."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="parts-store-speed-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(supervised())
        os.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        client = Minio(
            server.endpoint.removeprefix("http://"),
            access_key=server.access_key,
            secret_key=server.secret_key,
            secure=False,
        )
        if not client.bucket_exists(BUCKET):
            client.make_bucket(BUCKET)
        found: dict[str, Place] = {DISK: Disk(folder)}
        api = stack.enter_context(toxics.supervised())
        for name, latency in LATENCY.items():
            seen = server
            if latency:
                if api is None:
                    continue
                proxy = stack.enter_context(toxics.proxied(api, server))
                proxy.poison(toxics.toxic("latency", "downstream", latency=latency))
                seen = proxy.server
            found[name] = Bucket(seen, BUCKET, name.replace(" ", "").replace("+", ""))
        yield found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rows, in about two minutes")
    parser.add_argument("--repetitions", type=int, default=5, help="the median of so many counts")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--peers", default="", help="only these peers, separated by ';'")
    parser.add_argument("--output", type=Path, help="write speed.json and speed.svg to this folder")
    options = parser.parse_args()
    peers = [PEERS[name.strip()] for name in options.peers.split(";")] if options.peers else list(PEERS.values())
    results: list[Result] = []
    with places() as found:
        for work in QUICK if options.quick else WORK:
            if work.where in found and options.only in f"{work.where}, {work.layout.name}":
                results += measure(work, found[work.where].below("run"), peers, options.repetitions)
    table = by_work(results)
    print(ratios(table, [peer.name for peer in peers]))
    print()
    print(goals(table))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "speed.json").write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
        shown = [peer.name for peer in peers if "limit" not in peer.name]
        (options.output / "speed.svg").write_text(plot(table, PLOTTED, shown))


if __name__ == "__main__":
    main()
