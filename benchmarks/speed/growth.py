"""Measure the time per chunk as the number of chunks grows, in memory, where no server hides it."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import zarr
from obstore.store import MemoryStore
from zarr.storage import ObjectStore

import parts_store as ps
from benchmarks.speed.measuring import Result

WHERE = "growth"
COUNTS = (100, 1_000, 10_000, 100_000)
_CHUNK = 16
_PARTS = [ps.Part(""), ps.Part(".tail", size=4)]
# Small arrays are measured several times, until so many chunks were written.
_AT_LEAST = 20_000
# zarr itself is shown for comparison up to so many chunks; no goal needs it.
_MOST_OF_ZARR = 10_000

type Open = Callable[[int], zarr.Array[Any]]


def _arguments(count: int) -> dict[str, Any]:
    return {"shape": (count * _CHUNK,), "chunks": (_CHUNK,), "dtype": "uint8", "compressors": None, "fill_value": 0}


def _ours(count: int) -> zarr.Array[Any]:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, **_arguments(count))
    return ps.open_array(store, mode="r+")


PEERS: dict[str, Open] = {
    "zarr": lambda count: zarr.create_array(ObjectStore(MemoryStore()), **_arguments(count)),
    "ours, no parts": _ours,
    "ours, 2 parts": lambda count: ps.create_array(ps.PartsStore(MemoryStore()), parts=_PARTS, **_arguments(count)),
}


def measure_growth(counts: Sequence[int] = COUNTS) -> Iterator[Result]:
    """Return the seconds per chunk for each number of chunks, and how much the last exceeds the best of the others."""
    found: dict[tuple[str, str], list[float]] = {}
    for count in counts:
        for peer, create in PEERS.items():
            if peer == "zarr" and count > _MOST_OF_ZARR:
                continue
            for operation, seconds in _median(create, count).items():
                found.setdefault((peer, operation), []).append(seconds)
                yield Result(WHERE, f"{count:,} chunks", f"{operation}, per chunk", peer, seconds)
    for (peer, operation), seconds_per_chunk in found.items():
        if len(seconds_per_chunk) < len(counts):
            continue
        growth = seconds_per_chunk[-1] / min(seconds_per_chunk[:-1])
        yield Result(WHERE, f"{counts[0]:,} to {counts[-1]:,} chunks", operation, peer, growth, "ratio")


def _median(create: Open, count: int) -> dict[str, float]:
    """Return the median seconds per chunk for writing and reading."""
    values = np.random.default_rng(0).integers(1, 255, count * _CHUNK, dtype=np.uint8)
    writes, reads = [], []
    for _ in range(min(20, max(1, _AT_LEAST // count))):
        array = create(count)
        gc.collect()
        start = time.perf_counter()
        array[...] = values
        middle = time.perf_counter()
        found = array[...]
        reads.append((time.perf_counter() - middle) / count)
        writes.append((middle - start) / count)
        np.testing.assert_array_equal(found, values)
    return {"write": statistics.median(writes), "read": statistics.median(reads)}
