"""Measure speed against all peers in one run; print all results and goals.

python -m benchmarks.speed [--quick] [--repetitions N] [--only TEXT] [--output FOLDER]
python -m benchmarks.speed --from FOLDER --publish
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import icechunk

from benchmarks.places import Bucket, Place, places
from benchmarks.serving import measure_reads
from benchmarks.speed.archives import peer_of
from benchmarks.speed.counting import count_requests
from benchmarks.speed.goals import DEFAULT, DEFAULT_PLAIN, compared
from benchmarks.speed.growth import measure_growth
from benchmarks.speed.listing import STORES, all_rows
from benchmarks.speed.listing import measure as measure_row
from benchmarks.speed.measuring import Result, by_row, measure
from benchmarks.speed.memory import QUICK as QUICK_SIZES
from benchmarks.speed.memory import Sizes, measure_memory
from benchmarks.speed.peers import PEERS, Peer
from benchmarks.speed.plot import plot
from benchmarks.speed.report import from_json, goals, markdown, publish, text, to_json
from benchmarks.speed.work import DISK, LATENCY, QUICK, QUICK_PEERS, S3, WORK, Operation, Work

ROOT = Path(__file__).parent.parent.parent
PAGE, PICTURE = ROOT / "docs" / "speed.md", ROOT / "docs" / "images" / "speed.svg"


def run(options: argparse.Namespace, peers: Sequence[Peer]) -> Iterator[Result]:
    """Measure everything that was asked for."""
    with places(LATENCY, DISK) as found:
        for work in QUICK if options.quick else WORK:
            if work.where in found and options.only in f"{work.where}, {work.layout.name}":
                budget = partial(_seconds_for, work, is_quick=options.quick)
                chosen = [peer_of(name, work.layout) for name in work.peers] or peers
                yield from measure(work, found[work.where].below("run"), chosen, options.repetitions, budget)
        near = found[S3[0]]
        assert isinstance(near, Bucket)
        parts: dict[str, Callable[[], Iterator[Result]]] = {
            "requests": lambda: count_requests(near, peers),
            "server": lambda: measure_server(found, 1 if options.quick else options.repetitions),
            "memory": lambda: measure_memory(found, QUICK_SIZES if options.quick else Sizes(chunks=options.chunks)),
            "listing": lambda: measure_listing(found, options.repetitions),
            "growth": measure_growth,
        }
        for name, part in parts.items():
            if options.only in name and not (options.quick and name in ("listing", "growth")):
                yield from part()


def _seconds_for(work: Work, operation: Operation, peer: Peer, *, is_quick: bool) -> float:
    """Return for how long a peer is repeated: longer if a goal of the row compares it."""
    if is_quick or (work.peers and work.times == 1):
        return 2.0
    return 3.0 if peer.name in compared((work.where, work.layout.name, operation)) else 0.7


def measure_server(found: dict[str, Place], repetitions: int) -> Iterator[Result]:
    """Measure reads over HTTP, beside direct ones with the same client."""
    for where, client, direct, served in measure_reads(found, repetitions):
        for peer, value in (("direct", direct), ("over HTTP", served)):
            yield Result(where, "server", f"read by {client}", peer, value)


def measure_listing(found: dict[str, Place], repetitions: int) -> Iterator[Result]:
    """Measure opening and listing many arrays."""
    names = {"zarr": "zarr", "ours": DEFAULT_PLAIN, "ours, 2 parts": DEFAULT}
    chosen = ("open 200 arrays one by one", "open a group and all arrays", "list everything")
    written: set[Place] = set()
    for where, most in ((DISK, 10_000), (S3[0], 10_000), (S3[1], 200)):
        for row in all_rows((), (200, 10_000)):
            if row.name not in chosen or row.count > most or where not in found:
                continue
            # 10,000 arrays take some seconds, and a minute to write; no goal is about those with parts.
            stores, times = (STORES, repetitions) if row.count == 200 else (STORES[:2], min(repetitions, 2))
            seconds = measure_row(row, found[where].below("listing"), times, written, stores)
            for name, value in seconds.items():
                yield Result(where, f"{row.count:,} arrays", row.name, names[name], value)


def progress(results: Iterator[Result]) -> list[Result]:
    """Collect all results, or those up to Ctrl-C, and show on standard error which row was measured."""
    collected: list[Result] = []
    start, last = time.monotonic(), ""
    try:
        for each in results:
            collected.append(each)
            row = f"{each.where}, {each.layout}, {each.operation}"
            if row != last:
                print(f"{time.monotonic() - start:7.0f} s  {row}", file=sys.stderr, flush=True)
                last = row
    except KeyboardInterrupt:
        print("interrupted: what follows is incomplete", file=sys.stderr)
    return collected


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rows and peers, in about three minutes")
    parser.add_argument("--repetitions", type=int, default=5, help="the median of so many counts")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--chunks", type=int, default=Sizes().chunks, help="how many chunks are verified and copied")
    parser.add_argument("--peers", default="", help="only these peers, separated by ';'")
    parser.add_argument("--output", type=Path, help="write speed.json, speed.md and speed.svg to this folder")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing; show speed.json of this folder")
    parser.add_argument("--publish", action="store_true", help="write the tables and the picture into docs/")
    options = parser.parse_args()
    icechunk.set_logs_filter("error")
    if options.source is not None:
        document, results = from_json(options.source / "speed.json")
    else:
        named = options.peers.split(";") if options.peers else QUICK_PEERS if options.quick else PEERS
        results = progress(run(options, [PEERS[name.strip()] for name in named]))
        document = to_json(results)
    table = by_row(results)
    print(text(table, list(PEERS)))
    print()
    print(goals(table))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "speed.json").write_text(json.dumps(document, indent=1) + "\n")
        (options.output / "speed.md").write_text(markdown(document, table) + "\n")
        (options.output / "speed.svg").write_text(plot(table))
    if options.publish:
        publish(PAGE, markdown(document, table))
        PICTURE.write_text(plot(table))


if __name__ == "__main__":
    main()
