"""Measure work: repetitions of all peers interleaved, and the median of each."""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.speed.layouts import Layout, Place
from benchmarks.speed.peers import Handle, Peer
from benchmarks.speed.work import Operation, Work

RANDOM_READS = 20


@dataclass(frozen=True, slots=True)
class Result:
    """How long a peer took for an operation: the median, in seconds."""

    where: str
    layout: str
    operation: Operation
    peer: str
    seconds: float


def measure(work: Work, place: Place, peers: Sequence[Peer], repetitions: int) -> Iterable[Result]:
    """Measure all operations of some work for all peers."""
    written: dict[str, Handle] = {}
    for operation in work.operations:
        times: dict[str, list[float]] = {peer.name: [] for peer in peers}
        for repetition in range(repetitions + 1):
            for peer in peers:
                if not times.get(peer.name) and repetition > 1:
                    continue
                with peer.configured():
                    try:
                        seconds = _once(operation, peer, place, work.layout, repetition, written)
                    except Exception as error:
                        if repetition == 0:
                            print(f"  {peer.name} cannot do '{operation}': {str(error)[:150]}", file=sys.stderr)
                        continue
                # The first repetition warms up everything that is shared.
                if repetition:
                    times[peer.name].append(seconds)
        for peer in peers:
            if times[peer.name]:
                yield Result(work.where, work.layout.name, operation, peer.name, statistics.median(times[peer.name]))


def _once(
    operation: Operation, peer: Peer, place: Place, layout: Layout, repetition: int, written: dict[str, Handle]
) -> float:
    values = layout.values()
    own = place.below(f"{layout.name}-{peer.name.replace(' ', '-').replace(',', '').replace(chr(39), '')}")
    if operation == "first write":
        fresh = own.below(str(repetition))
        handle = peer.create(fresh, layout)
        seconds = _timed(lambda: handle.write(values))
        fresh.clear()
        return seconds
    if peer.name not in written:
        peer.create(own.below("kept"), layout).write(values)
        written[peer.name] = peer.reopen(own.below("kept"), layout)
        if not peer.name.startswith("limit"):
            np.testing.assert_array_equal(written[peer.name].read(), values)
    handle = written[peer.name]
    return _timed(_call(operation, handle, layout, repetition))


def _call(operation: Operation, handle: Handle, layout: Layout, repetition: int) -> Callable[[], object]:
    """Return the operation as a call without arguments."""
    values = layout.values()
    if operation == "overwrite":
        return lambda: handle.write(values)
    if operation == "read":
        return handle.read
    random = np.random.default_rng(repetition)
    # All inside one shard, which is known after the first repetition.
    if operation == "random reads":
        places = random.integers(0, (layout.outer - 16), (RANDOM_READS, 2))
        return lambda: [handle.read_region(slice(r, r + 8), slice(c, c + 8)) for r, c in places.tolist()]
    points = random.integers(0, layout.side, (2, 64))
    return lambda: handle.read_points(points[0], points[1])


def _timed(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def by_work(results: Iterable[Result]) -> Mapping[tuple[str, str, str], Mapping[str, float]]:
    """Return the seconds by place, layout and operation, and then by peer."""
    table: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in results:
        table.setdefault((each.where, each.layout, each.operation), {})[each.peer] = each.seconds
    return table
