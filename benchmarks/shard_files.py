"""What it costs that every shard is a file: arrays with `shard_file`, against the same shards without it.

Shards of 1 MiB and 16 MiB with 256 inner chunks are written to MinIO and to a local disk, and small regions of them are
read. Each pair is measured in turns, and told as the ratio of the medians. The sizes are exact.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec
from zarr.codecs.numcodecs import Shuffle, Zlib

import parts_store as ps
from benchmarks.places import Bucket, Disk, Place, minio

SHARDS, READS, REPEAT = 16, 64, 15
# The side of an inner chunk of uint16; a shard has 16 x 16 of them.
SIDES = {"1 MiB": 48, "16 MiB": 176}
CODECS: dict[str, dict[str, list[Any]]] = {
    "tiff": {"none": [], "deflate": [Zlib(level=1)], "zstd": [ZstdCodec(level=1)]},
    "hdf5": {
        "none": [],
        "deflate": [Zlib(level=1)],
        "zstd": [ZstdCodec(level=1)],
        "shuffle, deflate": [Shuffle(elementsize=2), Zlib(level=1)],
    },
}


@dataclass(frozen=True)
class Case:
    """An array whose shards are files, and the same array without."""

    shard_file: str
    compressors: list[Any]
    side: int

    def create(self, place: Place, *, is_file: bool) -> tuple[ps.PartsStore, zarr.Array[Any]]:
        place.clear()
        store = ps.PartsStore(place.objects())
        shard = 16 * self.side
        layout: dict[str, Any] = {
            "shape": (shard * 4, shard * (SHARDS // 4)),
            "chunks": (self.side, self.side),
            "shards": (shard, shard),
            "dtype": "uint16",
            "compressors": self.compressors,
            "overwrite": True,
        }
        if is_file:
            return store, ps.create_array(store, "image", shard_file=self.shard_file, **layout)  # type: ignore[arg-type]
        zarr.create_array(store, name="image", **layout)
        # With the same pipeline.
        return store, ps.open_array(store, "image", mode="r+")

    def values(self) -> np.ndarray:
        """Return a picture that compresses to about half its size: a smooth surface with noise."""
        rng, shard = np.random.default_rng(1), 16 * self.side
        surface = np.add.outer(np.arange(shard * 4), np.arange(shard * (SHARDS // 4)))
        return (surface + rng.integers(0, 64, surface.shape) + 1).astype("uint16")


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def stored_nbytes(store: ps.PartsStore) -> int:
    return sum(each["size"] for page in store.store.list() for each in page if "/c/" in each["path"])


def measure(case: Case, place: Place) -> tuple[float, float, float]:
    """Return how much larger the files are, and the ratios of the times to write everything and to read regions."""
    values = case.values()
    writes: dict[bool, list[float]] = {True: [], False: []}
    reads: dict[bool, list[float]] = {True: [], False: []}
    sizes = {}
    for repeat in range(REPEAT + 1):
        for is_file in (True, False) if repeat % 2 else (False, True):
            store, array = case.create(place.below(f"{case.shard_file}-{is_file}-{repeat}"), is_file=is_file)
            written = seconds(partial(array.__setitem__, slice(None), values))
            sizes[is_file] = stored_nbytes(store)
            regions = list(places(case, repeat))
            read = seconds(partial(read_all, array, regions))
            # The first turn imports modules and opens connections.
            if repeat:
                writes[is_file].append(written)
                reads[is_file].append(read)
    ratios = [median(times[True]) / median(times[False]) for times in (writes, reads)]
    return sizes[True] / sizes[False] - 1, ratios[0], ratios[1]


def read_all(array: zarr.Array[Any], regions: list[tuple[slice, slice]]) -> None:
    for each in regions:
        array[each]


def places(case: Case, seed: int) -> Iterator[tuple[slice, slice]]:
    """Yield regions of one inner chunk, at random."""
    rng = np.random.default_rng(seed)
    for row, column in rng.integers(0, 64, (READS, 2)).tolist():
        yield tuple(slice(at * case.side, at * case.side + case.side) for at in (row, column))  # type: ignore[misc]


def main() -> None:
    print(f"{'':<44}{'size':>9}{'write':>9}{'random read':>13}")
    with minio() as server, tempfile.TemporaryDirectory() as folder:
        measured: dict[str, Place] = {"MinIO": Bucket(server, "files"), "local disk": Disk(Path(folder))}
        for where, place in measured.items():
            for shard_file, codecs in CODECS.items():
                for codec, compressors in codecs.items():
                    for size, side in SIDES.items():
                        if "--quick" in sys.argv and size != "1 MiB":
                            continue
                        grown, write, read = measure(Case(shard_file, compressors, side), place)
                        name = f"{where}, {shard_file}, {codec}, shards of {size}"
                        print(f"{name:<44}{grown:>+9.2%}{write:>9.2f}{read:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
