"""What chunks in parts cost on S3: against zarr's own ObjectStore and a PartsStore without parts, in one run.

A MinIO is started on this machine, so a request takes about a millisecond; what is compared is the work around it, and
the number of requests. Times are told as ratios to zarr's ObjectStore, with zarr's default pipeline.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from minio import Minio
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.storage import ObjectStore

import parts_store as ps

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.server import Server, supervised

SIDE, REPEAT = 2048, 3
SMALL: dict[str, Any] = {"chunks": (64, 64)}
SHARDED: dict[str, Any] = {"chunks": (64, 64), "shards": (512, 512)}
FUSED = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline", "codec_pipeline.max_workers": 32}
SMALL_PARTS = [ps.Part(""), ps.Part(".tail", size=4)]
SHARD_PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


def objects(server: Server, prefix: str) -> S3Store:
    return S3Store(
        "bench",
        prefix=prefix,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
    )


def best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(array: zarr.Array[Any], values: NDArray[Any]) -> dict[str, float]:
    """Seconds to write all, to read all, and to read fifty small pieces."""
    places = np.random.default_rng(1).integers(0, SIDE - 64, (50, 2))

    def read_pieces() -> None:
        for row, column in places:
            array[row : row + 64, column : column + 64]

    array[...] = values
    found = best(lambda: array[...])
    np.testing.assert_array_equal(array[...], values)
    return {"overwrite": best(lambda: array.__setitem__(..., values)), "read": found, "pieces": best(read_pieces)}


def contestants(server: Server, layout: str) -> dict[str, Callable[[], zarr.Array[Any]]]:
    arguments = SHARDED if layout == "shards" else SMALL
    parts = SHARD_PARTS if layout == "shards" else SMALL_PARTS
    common: dict[str, Any] = {"shape": (SIDE, SIDE), "dtype": "uint8", "compressors": None, **arguments}

    def place(name: str) -> S3Store:
        return objects(server, f"{layout}/{name}")

    return {
        "zarr ObjectStore": lambda: zarr.create_array(ObjectStore(place("zarr")), **common),
        "PartsStore, no parts": lambda: zarr.create_array(ps.PartsStore(place("plain")), **common),
        f"PartsStore, {len(parts)} parts": lambda: ps.create_array(
            ps.PartsStore(place("parts")), parts=parts, **common
        ),
    }


def main() -> None:
    values = np.random.default_rng(0).integers(1, 256, (SIDE, SIDE)).astype("uint8")
    with supervised() as server:
        host = server.endpoint.removeprefix("http://")
        Minio(host, access_key=server.access_key, secret_key=server.secret_key, secure=False).make_bucket("bench")
        for layout in ("small", "shards"):
            print(f"\n{SIDE} x {SIDE} uint8, {layout}: times relative to zarr's ObjectStore, smaller is better\n")
            print(f"{'store':<38}{'overwrite':>11}{'read':>8}{'50 pieces':>11}")
            base: dict[str, float] = {}
            for name, create in contestants(server, layout).items():
                array = create()
                for pipeline, setting in (("", {}), (", fused pipeline", FUSED)):
                    if pipeline and name == "zarr ObjectStore":
                        # It has no synchronous interface, which that pipeline asks for.
                        continue
                    with zarr.config.set(setting):
                        # Opened again, for an array keeps the pipeline that it was opened with.
                        times = measure(zarr.open_array(array.store, path=array.path), values)
                    base = base or times
                    ratios = [times[each] / base[each] for each in ("overwrite", "read", "pieces")]
                    print(f"{name + pipeline:<38}{ratios[0]:>11.2f}{ratios[1]:>8.2f}{ratios[2]:>11.2f}")


if __name__ == "__main__":
    main()
