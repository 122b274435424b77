"""Measure `ps.serve`: reads over HTTP beside direct reads of the same store with the same client, and first pictures.

    python -m benchmarks.serving

Prints ratios: 0.5 means that a read over HTTP takes twice as long as a direct one.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.request import urlopen

import numpy as np
import tensorstore
import zarr
from numpy.typing import NDArray
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import parts_store as ps
from benchmarks.places import Disk, Place, places

DISK, S3 = "disk", "S3 +0 ms"
REPEATS = 5
SHAPE, SHARD, CHUNK = (8192, 8192), (2048, 2048), (256, 256)

type Read = Callable[[], NDArray[Any]]


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(values: NDArray[Any], direct: Read, served: Read, repeats: int) -> tuple[float, float]:
    """Return the median seconds of direct reads and of reads over HTTP, in turns."""
    for read in (direct, served):
        np.testing.assert_array_equal(read(), values)
    pairs = [(seconds(direct), seconds(served)) for _ in range(repeats)]
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


def by_zarr(store: Any) -> Read:
    def read() -> NDArray[Any]:
        with zarr.config.set({"codec_pipeline.path": "parts_store.pipeline.codec_pipeline.PartsCodecPipeline"}):
            return np.asarray(zarr.open_array(store, path="a", mode="r")[...])

    return read


def by_tensorstore(kvstore: Any) -> Read:
    spec = {"driver": "zarr3", "kvstore": kvstore, "recheck_cached_data": True}
    return lambda: np.asarray(tensorstore.open(spec, read=True).result().read().result())


def measure_reads(found: Mapping[str, Place], repeats: int = REPEATS) -> Iterator[tuple[str, str, float, float]]:
    """Yield the place, the client, and the seconds of direct reads and of reads over HTTP."""
    values = np.random.default_rng(0).integers(0, 4000, SHAPE, "u2")
    for where in (DISK, S3):
        place = found[where].below("served")
        store = ps.PartsStore(place.objects())
        zarr.create_array(store, name="a", data=values, chunks=CHUNK, shards=SHARD)
        with ps.serve(store) as server:
            http = HTTPStore.from_url(f"{server.url}zarr", client_options={"allow_http": True})
            direct = store if isinstance(place, Disk) else ObjectStore(place.objects(), read_only=True)
            served = ObjectStore(http, read_only=True)
            yield where, "zarr with our pipeline", *compare(values, by_zarr(direct), by_zarr(served), repeats)
            if isinstance(place, Disk):
                files = by_tensorstore(f"file://{place.folder}/a/")
                yield where, "tensorstore", *compare(values, files, by_tensorstore(f"{server.zarr_url}a/"), repeats)


def measure_pictures() -> None:
    """Print how long the first picture of 100,000 by 100,000 pixels takes, with a pyramid and without one."""
    with tempfile.TemporaryDirectory() as folder:
        store = ps.PartsStore.from_url(folder)
        side = 100_000
        large = zarr.create_array(
            store, name="0", shape=(side, side), chunks=(512, 512), shards=(4096, 4096), dtype="u1"
        )
        block = np.random.default_rng(0).integers(0, 255, (4096, side), "u1")
        for start in range(0, side, 4096 * 6):
            large[start : start + 4096] = block[: min(4096, side - start)]
        small = zarr.create_array(store, name="7", shape=(782, 782), chunks=(256, 256), dtype="u1")
        small[...] = block[:782, :782]
        with ps.serve(store) as server:
            for name, path, query in (
                ("first picture, level of a pyramid", "7", "axes=0,1&at=0,0&zoom=2"),
                ("first picture, no pyramid", "0", "axes=0,1&at=0,0&zoom=9"),
            ):

                def look(path: str = path, query: str = query) -> None:
                    for call in ("contrast", "tile"):
                        with urlopen(f"{server.url}api/{call}/{path}?{query}&high=255") as response:
                            response.read()

                print(f"{name:45} {seconds(look):5.2f} s")


def main() -> None:
    print("speed over HTTP, direct reads with the same client = 1")
    with places({S3: 0}, DISK) as found:
        for where, client, direct, served in measure_reads(found):
            print(f"{f'{where}, {client}':45} {direct / served:5.2f}")
    measure_pictures()


if __name__ == "__main__":
    main()
