"""Measure `ps.serve`: reads over HTTP beside direct reads of the same store with the same client, and first pictures.

    python -m benchmarks.serving
    python -m benchmarks.serving --minutes 10    # 50 clients at the same time, and the memory of the server

Prints ratios: 0.5 means that a read over HTTP takes twice as long as a direct one.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import numpy as np
import tensorstore
import zarr
from numpy.typing import NDArray
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import parts_store as ps
from benchmarks.places import BUCKET, Disk, Place, places
from tests.web.served import ask, resident, running, served

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


def write(store: ps.PartsStore) -> NDArray[Any]:
    values = np.random.default_rng(0).integers(0, 4000, SHAPE, "u2")
    zarr.create_array(store, name="a", data=values, chunks=CHUNK, shards=SHARD)
    return values


def measure_reads(found: Mapping[str, Place], repeats: int = REPEATS) -> Iterator[tuple[str, str, float, float]]:
    """Yield the place, the client, and the seconds of direct reads and of reads over HTTP."""
    for where in (DISK, S3):
        place = found[where].below("served")
        store = ps.PartsStore(place.objects())
        values = write(store)
        with served(*url_and_options(place)) as url:
            http = HTTPStore.from_url(f"{url}zarr", client_options={"allow_http": True})
            direct = store if isinstance(place, Disk) else ObjectStore(place.objects(), read_only=True)
            over_http = ObjectStore(http, read_only=True)
            yield where, "zarr with our pipeline", *compare(values, by_zarr(direct), by_zarr(over_http), repeats)
            if isinstance(place, Disk):
                files = by_tensorstore(f"file://{place.folder}/a/")
                yield where, "tensorstore", *compare(values, files, by_tensorstore(f"{url}zarr/a/"), repeats)


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
    with places({S3: 0}, DISK) as found:
        place = found[S3].below("served")
        store = ps.PartsStore(place.objects())
        write(store)
        wanted = {f"a/c/{row}/{column}": b"" for row in range(4) for column in range(4)}
        for key in wanted:
            value = store.get_sync(key)
            assert value is not None
            wanted[key] = value.to_bytes()
        keys = list(wanted)
        with running(*url_and_options(place)) as (url, process):
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
                            answer = ask(url, f"/zarr/{key}", headers={"Range": f"bytes={start}-{start + 130_000}"})
                            good = answer[::2] == (206, data[start : start + 130_001])
                        case "suffix":
                            answer = ask(url, f"/zarr/{key}", headers={"Range": "bytes=-1028"})
                            good = answer[::2] == (206, data[-1028:])
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


def url_and_options(place: Place) -> list[str]:
    """Return the URL of a place, and the options of the command line that open it."""
    if isinstance(place, Disk):
        return [str(place.folder)]
    options = [f"--option={name}={value}" for name, value in place.server.options.items()]
    return [f"s3://{BUCKET}/{place.prefix}", *options]


def compare_all() -> None:
    print("speed over HTTP, direct reads with the same client = 1")
    with places({S3: 0}, DISK) as found:
        for where, client, direct, over_http in measure_reads(found):
            print(f"{f'{where}, {client}':45} {direct / over_http:5.2f}")
    measure_pictures()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="let 50 clients read for some minutes instead")
    minutes = parser.parse_args().minutes
    compare_all() if minutes is None else load(minutes)


if __name__ == "__main__":
    main()
