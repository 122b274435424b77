"""Measure overwrites of many small chunks of two parts against bare PUTs of the same parts, at the default level.

python -m benchmarks.speed.overwriting [--repetitions N] [--stored N] [--chunks N]
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import obstore
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype

import parts_store as ps
from benchmarks.places import Bucket, places
from benchmarks.speed.handles import IN_FLIGHT
from parts_store import Part, PartsStore

LATENCY = {"S3": 0, "S3 +20 ms": 20}
SIDE = 64
PARTS = [Part(""), Part(".tail", size=4)]


@dataclass(frozen=True, slots=True)
class Grid:
    """An array whose chunks are stored, and the chunks that are written in one call."""

    place: Bucket
    store: PartsStore
    array: zarr.Array[Any]
    # The chunks along each dimension.
    side: int
    # How many chunks are written along each dimension.
    written: int

    @property
    def neighbours(self) -> list[str]:
        """Return the keys of a square of chunks."""
        return [f"a/c/{row}/{column}" for row in range(self.written) for column in range(self.written)]

    @property
    def scattered(self) -> list[str]:
        """Return the keys of as many chunks anywhere in the array."""
        numbers = random.Random(0).sample(range(self.side**2), self.written**2)
        return [f"a/c/{number // self.side}/{number % self.side}" for number in numbers]


def create(place: Bucket, stored: int) -> None:
    """Create an array of about so many stored chunks."""
    side = math.isqrt(stored)
    array = ps.create_array(
        PartsStore(place.objects()),
        "a",
        parts=PARTS,
        shape=(side * SIDE, side * SIDE),
        chunks=(SIDE, SIDE),
        dtype="uint8",
        compressors=None,
        fill_value=255,
    )
    for row in range(side):
        array[row * SIDE : (row + 1) * SIDE] = 0


def opened(place: Bucket, written: int) -> Grid:
    """Open the array."""
    store = PartsStore(place.objects())
    array = ps.open_array(store, path="a", mode="r+")
    return Grid(place, store, array, array.shape[0] // SIDE, written)


def buffer(fill: int) -> Buffer:
    """Return a chunk."""
    return default_buffer_prototype().buffer.from_bytes(bytes([fill]) * SIDE**2)


def put_bare(grid: Grid, keys: Sequence[str], fill: int) -> None:
    """Write the parts of chunks without a transaction, as many at a time as the codec pipeline does."""
    objects = grid.place.objects()
    whole = bytes([fill]) * SIDE**2
    parts = {f"{key}{suffix}": data for key in keys for suffix, data in (("", whole[:-4]), (".tail", whole[-4:]))}
    with ThreadPoolExecutor(IN_FLIGHT // 2) as pool:
        list(pool.map(lambda key: obstore.put(objects, key, parts[key]), parts))


def put_one_by_one(grid: Grid, keys: Sequence[str], fill: int) -> None:
    """Write chunks through the store."""
    with ThreadPoolExecutor(IN_FLIGHT // 2) as pool:
        list(pool.map(lambda key: grid.store.set_sync(key, buffer(fill)), keys))


def write_square(grid: Grid, _: Sequence[str], fill: int) -> None:
    """Write neighbouring chunks through zarr."""
    side = grid.written * SIDE
    grid.array[:side, :side] = np.full((side, side), fill, dtype="uint8")


type Write = Callable[[Grid, Sequence[str], int], None]
WAYS: dict[str, Write] = {
    "bare PUTs": put_bare,
    "array[...] = values": write_square,
    "set_sync": put_one_by_one,
}


def measure(grid: Grid, keys: Sequence[str], names: Sequence[str], repetitions: int) -> None:
    """Print the time and the requests of every way to write the chunks, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    requests: dict[str, float] = {}
    fill = 0
    # Bare PUTs remove the tags, so a write with tags follows that is not measured.
    for _ in range(repetitions):
        for name in names:
            fill = (fill + 1) % 250
            if name != "bare PUTs":
                put_one_by_one(grid, keys, fill + 1)
            grid.store.stats.reset()
            start = time.perf_counter()
            WAYS[name](grid, keys, fill)
            seconds[name].append(time.perf_counter() - start)
            requests[name] = sum(grid.store.stats.calls.values()) or 2 * len(keys)
    bare = statistics.median(seconds["bare PUTs"])
    for name in names:
        median = statistics.median(seconds[name])
        ratio = requests[name] / (2 * len(keys))
        print(
            f"    {name:24s} {median * 1e3:8.0f} ms {median / bare:6.2f}x {requests[name]:8.0f} requests {ratio:6.2f}x"
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="the median of so many counts")
    parser.add_argument("--stored", type=int, default=100_000, help="how many chunks the array has")
    parser.add_argument("--chunks", type=int, default=256, help="how many of them are written: a square number")
    options = parser.parse_args()
    with places(LATENCY, "disk") as found:
        near = found["S3"]
        assert isinstance(near, Bucket)
        create(near, options.stored)
        for where in LATENCY:
            place = found[where]
            assert isinstance(place, Bucket)
            grid = opened(Bucket(place.server, near.prefix), math.isqrt(options.chunks))
            print(f"{where}, {options.chunks} neighbouring chunks of {grid.side**2}")
            measure(grid, grid.neighbours, list(WAYS), options.repetitions)
            print(f"{where}, {options.chunks} scattered chunks of {grid.side**2}")
            measure(grid, grid.scattered, [name for name in WAYS if name[0] != "a"], options.repetitions)


if __name__ == "__main__":
    main()
