"""What `durable=True` costs: arrays with and without parts on a local disk, created and overwritten, as ratios.

The folder must be on the disk that is measured: `python -m benchmarks.durability FOLDER`. On one that is in memory,
nothing has to be synchronised. Both kinds of store are measured in turns, and told as the ratio of the medians.
"""

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import zarr

import parts_store as ps

CHUNKS, REPEAT = 64, 7
SIZES = {"64 kB": 1 << 16, "1 MB": 1 << 20}
PARTS: dict[str, list[ps.Part]] = {
    "no parts": [],
    "2 parts": [ps.Part(""), ps.Part(".index", size=260)],
    "3 parts": [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=260)],
}


def seconds(folder: Path, parts: list[ps.Part], nbytes: int, chunks: int, *, durable: bool) -> tuple[float, float]:
    """Return the seconds for writing an array of so many chunks the first time, and again."""
    store = ps.PartsStore.from_url(folder, durable=durable, parts={"a": parts} if parts else None)
    zarr.create_array(store, name="a", shape=(chunks * nbytes,), chunks=(nbytes,), dtype="uint8", compressors=None)
    array = ps.open_array(store, path="a", mode="r+")
    times = []
    for fill in (1, 2):
        start = time.perf_counter()
        array[:] = fill
        times.append(time.perf_counter() - start)
    return times[0], times[1]


def compare(parts: list[ps.Part], nbytes: int, chunks: int) -> list[str]:
    """Return the ratio and the milliseconds of a chunk, for writing it the first time and again."""
    measured: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        for repeat in range(REPEAT):
            for durable, times in measured.items():
                times.append(seconds(Path(name) / f"{repeat}-{durable}", parts, nbytes, chunks, durable=durable))
    told = []
    for again in (0, 1):
        plain, durable_ = (median(each[again] for each in measured[durable]) for durable in (False, True))
        told.append(f"{durable_ / plain:>9.1f}{1000 * durable_ / chunks:>7.1f} ms")
    return told


def main() -> None:
    print("times with durable=True relative to durable=False, and milliseconds for a chunk with durable=True\n")
    print(f"{'chunk of':<19}{'chunks':>7}{'create':>9}{'':>10}{'overwrite':>10}")
    for parts_name, parts in PARTS.items():
        for size_name, nbytes in SIZES.items():
            for chunks in (1, CHUNKS):
                told = "".join(compare(parts, nbytes, chunks))
                print(f"{parts_name:<10}{size_name:<9}{chunks:>7}{told}", flush=True)


if __name__ == "__main__":
    main()
