"""What a transaction costs: chunks in parts, created and overwritten at each level, against bare PUTs of their parts.

A MinIO is started on this machine; behind a proxy every answer takes 20 ms more, as one from afar does. Times are told
as ratios to obstore's own PUTs of the same parts, all of a chunk at once, which promise nothing.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import obstore
from obstore.store import S3Store
from zarr.core.buffer import cpu

import parts_store as ps
from benchmarks.places import minio, objects
from integration import toxics
from integration.server import Server
from parts_store.store.options import Concurrency

CHUNKS, AT_ONCE, REPEAT = 64, 8, 3
SIZES = {"64 kB": 1 << 16, "1 MB": 1 << 20}
PARTS: dict[str, dict[str, int | None]] = {
    "2 parts": {"": None, ".index": 260},
    "3 parts": {".header": 64, "": None, ".index": 260},
}
LEVELS: tuple[Concurrency, ...] = ("exclusive", "writers", "full")


async def timed(write: Callable[[int], Awaitable[None]]) -> float:
    """Seconds to write all chunks, some of them at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await write(number)

    start = time.perf_counter()
    await asyncio.gather(*map(one, range(CHUNKS)))
    return time.perf_counter() - start


async def bare(server: Server, prefix: str, parts: dict[str, int | None], nbytes: int) -> tuple[float, float]:
    """Seconds for bare PUTs of the same objects: the first time, and again."""
    times: tuple[list[float], list[float]] = ([], [])
    fixed = sum(size or 0 for size in parts.values())
    bodies = {suffix: bytes(nbytes - fixed if size is None else size) for suffix, size in parts.items()}
    for repeat in range(REPEAT):
        store = objects(server, f"{prefix}/{repeat}")

        async def put(number: int, store: S3Store = store) -> None:
            await asyncio.gather(
                *(
                    obstore.put_async(store, f"c/{number}{suffix}", body, use_multipart=False)
                    for suffix, body in bodies.items()
                )
            )

        for each in times:
            each.append(await timed(put))
    return min(times[0]), min(times[1])


async def transactions(
    server: Server, prefix: str, parts: dict[str, int | None], nbytes: int, level: Concurrency
) -> tuple[float, float]:
    """Seconds for the same chunks through a PartsStore: the first time, and again."""
    times: tuple[list[float], list[float]] = ([], [])
    described: Any = [
        {"key_suffix": suffix} | ({} if size is None else {"size": size}) for suffix, size in parts.items()
    ]
    for repeat in range(REPEAT):
        store = ps.PartsStore(objects(server, f"{prefix}/{repeat}"), concurrency=level)
        # Not with `create_array`, which runs an event loop of its own.
        arguments: dict[str, Any] = {
            "shape": (CHUNKS * nbytes,),
            "chunks": (nbytes,),
            "dtype": "uint8",
            "compressors": None,
        }
        await asyncio.to_thread(lambda: ps.create_array(store, "a", parts=described, **arguments))  # noqa: B023
        values = [cpu.Buffer.from_bytes(bytes([fill]) * nbytes) for fill in (1, 2)]
        for each, value in zip(times, values, strict=True):

            async def put(number: int, store: ps.PartsStore = store, value: cpu.Buffer = value) -> None:
                await store.set(f"a/c/{number}", value)

            each.append(await timed(put))
    return min(times[0]), min(times[1])


async def compare(server: Server, name: str) -> None:
    for parts_name, parts in PARTS.items():
        for size_name, nbytes in SIZES.items():
            prefix = f"{name}/{parts_name}/{size_name}".replace(" ", "-")
            base = await bare(server, f"{prefix}/bare", parts, nbytes)
            for level in LEVELS:
                times = await transactions(server, f"{prefix}/{level}", parts, nbytes, level)
                ratios = [mine / theirs for mine, theirs in zip(times, base, strict=True)]
                print(
                    f"{name:<9}{parts_name:<10}{size_name:<8}{level:<11}{ratios[0]:>8.2f}{ratios[1]:>11.2f}", flush=True
                )


def main() -> None:
    print("times relative to bare PUTs of the same objects, smaller is better\n")
    print(f"{'link':<9}{'chunk of':<18}{'level':<11}{'create':>8}{'overwrite':>11}")
    with minio() as server, toxics.supervised() as api:
        asyncio.run(compare(server, "+0 ms"))
        if api is None:
            sys.exit("no Go to build toxiproxy with: nothing measured at +20 ms")
        with toxics.proxied(api, server) as proxy:
            proxy.poison(toxics.toxic("latency", "downstream", latency=20))
            asyncio.run(compare(proxy.server, "+20 ms"))


if __name__ == "__main__":
    main()
