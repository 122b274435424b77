"""Measure work: repetitions of all peers interleaved, and the median of each."""

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.places import Place
from benchmarks.speed.handles import Handle, ZarrHandle
from benchmarks.speed.layouts import Archive, Layout
from benchmarks.speed.peers import Peer, folder_of
from benchmarks.speed.work import Operation, Work

RANDOM_READS = 20
APPENDS = 3

type Unit = Literal["seconds", "requests", "copies", "MiB", "ratio"]
type Row = tuple[str, str, str]
type Table = Mapping[Row, Mapping[str, "Result"]]


@dataclass(frozen=True, slots=True)
class Result:
    """How much a peer took for an operation: the median of the repetitions."""

    where: str
    layout: str
    operation: str
    peer: str
    value: float
    unit: Unit = "seconds"


@dataclass(frozen=True, slots=True)
class Task:
    """An operation that is ready to be timed, and what it must return."""

    run: Callable[[], object]
    # The values that the array, or what was read, must have afterwards.
    expected: NDArray[np.uint8]
    # Returns the values to compare; what `run` has returned, if None.
    read_back: Callable[[], NDArray[np.uint8]] | None = None


def measure(
    work: Work, place: Place, peers: Sequence[Peer], repetitions: int, budget: Callable[[Operation, Peer], float]
) -> Iterator[Result]:
    """Measure all operations of some work for all peers.

    A peer is not repeated any more when its repetitions, with all that prepares and checks them, have taken longer
    than its budget of seconds for the operation.
    """
    written: set[str] = set()
    for operation in work.operations:
        able = [peer for peer in peers if peer.does(operation, place) and peer.name not in work.without]
        times: dict[str, list[float]] = {peer.name: [] for peer in able}
        left = {peer.name: budget(operation, peer) for peer in able}
        for repetition in range(repetitions * work.times + 1):
            # Each time from another peer on, so that none is always measured after the same one.
            shift = repetition * 5 % len(able)
            for peer in (*able[shift:], *able[:shift]):
                if left[peer.name] < 0:
                    continue
                own = place.below(folder_of(f"{work.layout.name}-{peer.name}"))
                start = time.perf_counter()
                with peer.configured():
                    seconds = _once(operation, peer, own, work.layout, repetition, written)
                left[peer.name] -= time.perf_counter() - start if seconds is not None else math.inf
                # The first repetition warms up what is shared; for a slow peer it has to do.
                if seconds is not None and (repetition or left[peer.name] < 0):
                    times[peer.name].append(seconds)
        for name, seconds_of_peer in times.items():
            if seconds_of_peer:
                median = statistics.median(seconds_of_peer)
                yield Result(work.where, work.layout.name, operation, name, median)


def _once(
    operation: Operation, peer: Peer, place: Place, layout: Layout, repetition: int, written: set[str]
) -> float | None:
    """Return the seconds of one repetition, or None if the peer cannot do it."""
    try:
        task = prepare(operation, peer, place, layout, repetition, written)
        gc.collect()
        start = time.perf_counter()
        result = task.run()
        seconds = time.perf_counter() - start
    except Exception as error:
        if not (peer.is_limit and isinstance(error, NotImplementedError)):
            print(f"  {peer.name} cannot do '{operation}': {str(error)[:150]}", file=sys.stderr)
        return None
    if repetition == 0 and not peer.is_limit:
        found = task.read_back() if task.read_back is not None else result
        np.testing.assert_array_equal(np.asarray(found), task.expected, err_msg=f"{peer.name}, {operation}")
    if task.read_back is not None and operation != "overwrite":
        place.below(f"{operation}-{repetition}").clear()
    return seconds


def prepare(operation: Operation, peer: Peer, place: Place, layout: Layout, repetition: int, written: set[str]) -> Task:
    """Return an operation that is ready to be timed.

    Arrays are opened anew for every repetition, so that caches are empty. `written` are the peers whose array for
    reading exists.
    """
    values = layout.values()
    fresh, kept = place.below(f"{operation}-{repetition}"), place.below("kept")
    match operation:
        case "first write" | "dask regions":
            handle = peer.create(fresh, layout)
            write = (
                handle.write if operation == "first write" else lambda all_of_it: _with_dask(handle, layout, all_of_it)
            )
            return Task(lambda: write(values), values, lambda: peer.reopen(fresh, layout, False).read())
        case "append":
            band = replace(layout, rows=layout.outer)
            handle = peer.create(fresh, band)
            handle.write(band.values())
            longer = values[: (APPENDS + 1) * layout.outer]
            return Task(
                lambda: _append(handle, longer, layout), longer, lambda: peer.reopen(fresh, layout, False).read()
            )
    if peer.name not in written:
        peer.create(kept, layout).write(values)
        written.add(peer.name)
    if operation == "read of an old snapshot" and peer.reopen_old is not None:
        if f"{peer.name}, old" not in written:
            peer.reopen(kept, layout, True).write(values[::-1])
            written.add(f"{peer.name}, old")
        return Task(peer.reopen_old(kept, layout).read, values)
    if operation == "copy" and peer.copy is not None:
        return Task(partial(peer.copy, kept, fresh), values, lambda: peer.reopen(fresh, layout, False).read())
    if isinstance(layout, Archive):
        return _prepare_archive(operation, peer, kept, layout, repetition)
    return _prepare_stored(operation, peer, kept, layout, repetition)


def _prepare_stored(operation: Operation, peer: Peer, kept: Place, layout: Layout, repetition: int) -> Task:
    values, handle = layout.values(), peer.reopen(kept, layout, operation == "overwrite")
    match operation:
        case "overwrite":
            return Task(lambda: handle.write(values), values, lambda: peer.reopen(kept, layout, False).read())
        case "read":
            return Task(handle.read, values)
        case "64 points":
            rows, columns = _points(layout, repetition)
            return Task(lambda: handle.read_points(rows, columns), values[rows, columns])
    corners = _inner_chunks(operation, layout, repetition)
    if operation == "random reads, known shard":
        # From here on the shard is known.
        _read_inner(handle, layout, (0, 0))
    expected = np.stack([_inner(values, layout, corner) for corner in corners])
    return Task(lambda: [_read_inner(handle, layout, corner) for corner in corners], expected)


def _prepare_archive(operation: Operation, peer: Peer, place: Place, archive: Archive, repetition: int) -> Task:
    def opened() -> ZarrHandle:
        handle = peer.reopen(place, archive, False)
        assert isinstance(handle, ZarrHandle)
        return handle

    values, series = archive.values(), archive.series(repetition)
    if operation == "open and time series":
        return Task(lambda: opened().select(series), values[series])
    handle = opened()
    # It reads from every shard. From here on what is known of all chunks is in memory.
    handle.select(archive.series(1000 + repetition))
    match operation:
        case "full read":
            return Task(handle.read, values)
        case "time series":
            return Task(lambda: handle.select(series), values[series])
    tiles = archive.tiles(repetition, RANDOM_READS)
    return Task(lambda: [handle.select(tile) for tile in tiles], np.stack([values[tile] for tile in tiles]))


def _with_dask(handle: Handle, layout: Layout, values: NDArray[np.uint8]) -> None:
    handle.write_with_dask(values, layout.outer)


def _append(handle: Handle, values: NDArray[np.uint8], layout: Layout) -> None:
    for start in range(layout.outer, len(values), layout.outer):
        handle.append(values[start : start + layout.outer])


def _points(layout: Layout, repetition: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return 64 points in as many inner chunks, spread over all shards."""
    random = np.random.default_rng(repetition)
    along = layout.side // layout.chunk
    chosen = random.choice(along**2, 64, replace=False)
    inside = random.integers(0, layout.chunk, (2, 64))
    return chosen // along * layout.chunk + inside[0], chosen % along * layout.chunk + inside[1]


def _inner_chunks(operation: Operation, layout: Layout, repetition: int) -> list[tuple[int, int]]:
    """Return the first elements of the inner chunks to read: of the first shard, or one of each of 16 shards."""
    along, random = layout.inner_count, np.random.default_rng(repetition)
    if operation == "random reads, known shard":
        # Never the first one, which was read to make the shard known.
        numbers = random.permutation(np.arange(1, along**2))[:RANDOM_READS]
        return [(int(each) // along * layout.chunk, int(each) % along * layout.chunk) for each in numbers]
    shards = random.permutation((layout.side // layout.outer) ** 2)[:16].tolist()
    across = layout.side // layout.outer
    inside = random.integers(0, along, (len(shards), 2)).tolist()
    return [
        (shard // across * layout.outer + row * layout.chunk, shard % across * layout.outer + column * layout.chunk)
        for shard, (row, column) in zip(shards, inside, strict=True)
    ]


def _inner(values: NDArray[np.uint8], layout: Layout, corner: tuple[int, int]) -> NDArray[np.uint8]:
    row, column = corner
    return values[row : row + layout.chunk, column : column + layout.chunk]


def _read_inner(handle: Handle, layout: Layout, corner: tuple[int, int]) -> NDArray[np.uint8]:
    row, column = corner
    return handle.read_region(slice(row, row + layout.chunk), slice(column, column + layout.chunk))


def by_row(results: Iterable[Result]) -> Table:
    """Return the results by place, layout and operation, and then by peer."""
    table: dict[Row, dict[str, Result]] = {}
    for each in results:
        table.setdefault((each.where, each.layout, each.operation), {})[each.peer] = each
    return table
