"""Measure `ps.serve`: reads over HTTP beside direct reads of the same store with the same client, and first pictures.

    python -m benchmarks.serving

Needs the MinIO of the tests. Prints ratios: 0.5 means that a read over HTTP takes twice as long as a direct one.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import numpy as np
import tensorstore
import zarr
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import parts_store as ps
from integration.conftest import new_bucket
from integration.server import supervised

REPEATS = 5
SHAPE, SHARD, CHUNK = (8192, 8192), (2048, 2048), (256, 256)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(name: str, direct: Callable[[], Any], served: Callable[[], Any]) -> None:
    """Print how fast reads over HTTP are in comparison with direct reads, in turns."""
    pairs = [(seconds(direct), seconds(served)) for _ in range(REPEATS + 1)][1:]
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{name:45} {ratio:5.2f}")


def by_zarr(store: Any) -> Callable[[], Any]:
    def read() -> Any:
        with zarr.config.set({"codec_pipeline.path": "parts_store.pipeline.codec_pipeline.PartsCodecPipeline"}):
            return zarr.open_array(store, path="a", mode="r")[...]

    return read


def by_tensorstore(kvstore: Any) -> Callable[[], Any]:
    spec = {"driver": "zarr3", "kvstore": kvstore, "recheck_cached_data": True}
    return lambda: tensorstore.open(spec, read=True).result().read().result()


def write(store: ps.PartsStore) -> None:
    values = np.random.default_rng(0).integers(0, 4000, SHAPE, "u2")
    zarr.create_array(store, name="a", data=values, chunks=CHUNK, shards=SHARD)


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
    with tempfile.TemporaryDirectory() as folder:
        local = ps.PartsStore.from_url(folder)
        write(local)
        with ps.serve(local) as server:
            http = HTTPStore.from_url(f"{server.url}zarr", client_options={"allow_http": True})
            compare("disk, zarr with our pipeline", by_zarr(local), by_zarr(ObjectStore(http, read_only=True)))
            compare("disk, tensorstore", by_tensorstore(f"file://{folder}/a/"), by_tensorstore(f"{server.zarr_url}a/"))
    with supervised() as minio, new_bucket(minio) as bucket:
        store = ps.PartsStore(bucket.store())
        write(store)
        with ps.serve(store) as server:
            http = HTTPStore.from_url(f"{server.url}zarr", client_options={"allow_http": True})
            direct = ObjectStore(bucket.store(), read_only=True)
            compare("MinIO, zarr with our pipeline", by_zarr(direct), by_zarr(ObjectStore(http, read_only=True)))
    measure_pictures()


if __name__ == "__main__":
    main()
