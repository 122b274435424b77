"""What `durable=True` costs: chunks in parts and plain chunks on a local disk, created and overwritten, as ratios.

The folder must be on the disk that is measured: `python -m benchmarks.durability FOLDER`. On one that is in memory,
nothing has to be synchronised.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import zarr
from zarr.core.buffer import cpu

import parts_store as ps

CHUNKS, REPEAT = 64, 3
SIZES = {"64 kB": 1 << 16, "1 MB": 1 << 20}
PARTS: dict[str, list[ps.Part]] = {
    "no parts": [],
    "2 parts": [ps.Part(""), ps.Part(".index", size=260)],
    "3 parts": [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=260)],
}
THREADS = (1, 16)


def seconds(folder: Path, parts: list[ps.Part], nbytes: int, threads: int, *, durable: bool) -> tuple[float, float]:
    """Return the seconds for writing all chunks the first time, and again."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(REPEAT):
        of_array = {"a": parts} if parts else None
        store = ps.PartsStore.from_url(folder / f"{durable}-{repeat}", durable=durable, parts=of_array)
        shape = (CHUNKS * nbytes,)
        zarr.create_array(store, name="a", shape=shape, chunks=(nbytes,), dtype="uint8", compressors=None)
        for fill, each in enumerate(times):
            value = cpu.Buffer.from_bytes(bytes([fill + 1]) * nbytes)
            start = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda number: store.set_sync(f"a/c/{number}", value), range(CHUNKS)))  # noqa: B023
            each.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def main() -> None:
    print("times with durable=True relative to durable=False, and milliseconds for a chunk with durable=True\n")
    print(f"{'chunk of':<19}{'threads':>7}{'create':>9}{'':>8}{'overwrite':>10}")
    for parts_name, parts in PARTS.items():
        for size_name, nbytes in SIZES.items():
            for threads in THREADS:
                with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
                    plain = seconds(Path(name), parts, nbytes, threads, durable=False)
                    durable = seconds(Path(name), parts, nbytes, threads, durable=True)
                told = [
                    f"{mine / theirs:>9.1f}{1000 * mine / CHUNKS:>6.1f} ms"
                    for mine, theirs in zip(durable, plain, strict=True)
                ]
                print(f"{parts_name:<10}{size_name:<9}{threads:>7}{''.join(told)}", flush=True)


if __name__ == "__main__":
    main()
