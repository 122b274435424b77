"""Measure `ps.serve`: reads over HTTP beside direct reads of the same store with the same client, and first pictures.

    python -m benchmarks.serving
    python -m benchmarks.serving --minutes 10    # 50 clients at the same time, and the memory of the server

Needs the MinIO of the tests. Prints ratios: 0.5 means that a read over HTTP takes twice as long as a direct one.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import numpy as np
import tensorstore
import zarr
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import parts_store as ps
from integration.conftest import Bucket, new_bucket
from integration.server import supervised
from tests.web.served import ask, resident, running, served

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
        with served(folder) as url:
            for name, path, query in (
                ("first picture, level of a pyramid", "7", "axes=0,1&at=0,0&zoom=2"),
                ("first picture, no pyramid", "0", "axes=0,1&at=0,0&zoom=9"),
            ):

                def look(path: str = path, query: str = query) -> None:
                    for call in ("contrast", "tile"):
                        with urlopen(f"{url}api/{call}/{path}?{query}&high=255") as response:
                            response.read()

                print(f"{name:45} {seconds(look):5.2f} s")


def load(minutes: float, clients: int = 50) -> None:
    """Let many clients read for some minutes; compare what they get, and print the memory of the server each minute."""
    with supervised() as minio, new_bucket(minio) as bucket:
        store = ps.PartsStore(bucket.store())
        write(store)
        wanted = {f"a/c/{row}/{column}": b"" for row in range(4) for column in range(4)}
        for key in wanted:
            found = store.get_sync(key)
            assert found is not None
            wanted[key] = found.to_bytes()
        keys = list(wanted)
        with running(f"s3://{bucket.name}", *options_of(bucket)) as (url, process):
            page = "/api/tile/a?axes=0,1&at=0,0&high=4000&zoom={}&place=0,0"
            until = time.monotonic() + minutes * 60

            def read(number: int) -> Counter[str]:
                chosen, counts = random.Random(number), Counter[str]()
                while time.monotonic() < until:
                    kind, key = (
                        chosen.choice(("range", "range", "range", "suffix", "whole", "document", "tile")),
                        chosen.choice(keys),
                    )
                    data = wanted[key]
                    start = chosen.randrange(len(data))
                    match kind:
                        case "range":
                            found = ask(url, f"/zarr/{key}", headers={"Range": f"bytes={start}-{start + 130_000}"})
                            good = found[::2] == (206, data[start : start + 130_001])
                        case "suffix":
                            found = ask(url, f"/zarr/{key}", headers={"Range": "bytes=-1028"})
                            good = found[::2] == (206, data[-1028:])
                        case "whole":
                            good = ask(url, f"/zarr/{key}")[::2] == (200, data)
                        case "document":
                            good = ask(url, "/zarr/zarr.json")[0] == 200
                        case _:
                            good = ask(url, page.format(chosen.randrange(6)))[0] == 200
                    counts[kind if good else f"{kind}, wrong"] += 1
                return counts

            with ThreadPoolExecutor(clients) as pool:
                reads = [pool.submit(read, number) for number in range(clients)]
                while time.monotonic() < until:
                    print(
                        f"{(until - time.monotonic()) / 60:5.1f} minutes left, memory {resident(process.pid)} MiB",
                        flush=True,
                    )
                    time.sleep(max(min(60.0, until - time.monotonic()), 0))
                print(f"at the end, memory {resident(process.pid)} MiB")
                print(dict(sum((each.result() for each in reads), Counter[str]())))


def options_of(bucket: Bucket) -> list[str]:
    """Return the options of the command line for a bucket."""
    return [f"--option={name}={value}" for name, value in bucket.server.options.items()]


def compare_all() -> None:
    print("speed over HTTP, direct reads with the same client = 1")
    with tempfile.TemporaryDirectory() as folder:
        local = ps.PartsStore.from_url(folder)
        write(local)
        with served(folder) as url:
            http = HTTPStore.from_url(f"{url}zarr", client_options={"allow_http": True})
            compare("disk, zarr with our pipeline", by_zarr(local), by_zarr(ObjectStore(http, read_only=True)))
            compare("disk, tensorstore", by_tensorstore(f"file://{folder}/a/"), by_tensorstore(f"{url}zarr/a/"))
    with supervised() as minio, new_bucket(minio) as bucket:
        write(ps.PartsStore(bucket.store()))
        with served(f"s3://{bucket.name}", *options_of(bucket)) as url:
            http = HTTPStore.from_url(f"{url}zarr", client_options={"allow_http": True})
            direct = ObjectStore(bucket.store(), read_only=True)
            compare("MinIO, zarr with our pipeline", by_zarr(direct), by_zarr(ObjectStore(http, read_only=True)))
    measure_pictures()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="let 50 clients read for some minutes instead")
    minutes = parser.parse_args().minutes
    compare_all() if minutes is None else load(minutes)


if __name__ == "__main__":
    main()
