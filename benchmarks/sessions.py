"""What parts cost in an Icechunk session: against the same array without parts, written by plain Icechunk, in one run.

A MinIO is started on this machine. Times are told as ratios to plain Icechunk's, best of three; requests are counted by
a proxy in between, in a run of their own, for it takes its time. `inline` is the size up to which Icechunk keeps
chunks in its manifests: for split arrays that decides where the indexes of the shards are.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import icechunk
import numpy as np
import obstore
import zarr

import parts_store as ps
from benchmarks.places import minio, objects
from integration.proxy import CountingProxy
from integration.server import Server

SIDE, SHARD, REPEAT = 2048, 128, 3
# 256 shards of 64 chunks: an index takes 1,028 bytes.
LAYOUT: dict[str, Any] = {
    "shape": (SIDE, SIDE),
    "chunks": (16, 16),
    "shards": (SHARD, SHARD),
    "dtype": "uint8",
    "compressors": None,
}
PARTS = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
COLUMNS = ("write", "commit", "open", "read all", "50 pieces")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to keep the array in a session."""

    name: str
    create: Callable[[icechunk.Session], zarr.Array[Any]]
    open: Callable[[icechunk.Session], zarr.Array[Any]]
    inline: int = 512


def in_parts(name: str, *, split: bool, inline: int = 512) -> Contestant:
    return Contestant(
        name,
        lambda session: ps.create_array(ps.PartsStore.from_session(session), "a", parts=PARTS, split=split, **LAYOUT),
        lambda session: zarr.open_array(ps.PartsStore.from_session(session), path="a", mode="r"),
        inline,
    )


CONTESTANTS = (
    Contestant(
        "plain Icechunk",
        lambda session: zarr.create_array(session.store, name="a", **LAYOUT),
        lambda session: zarr.open_array(session.store, path="a", mode="r"),
    ),
    in_parts("whole", split=False),
    in_parts("split, inline 512", split=True),
    in_parts("split, inline 4,096", split=True, inline=4096),
)


def repository(server: Server, prefix: str, inline: int, *, create: bool) -> icechunk.Repository:
    storage = icechunk.s3_storage(
        bucket="bench",
        prefix=prefix,
        endpoint_url=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
    )
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = inline
    return icechunk.Repository.create(storage, config=config) if create else icechunk.Repository.open(storage)


def run(server: Server, prefix: str, contestant: Contestant, seen: Callable[[], int]) -> dict[str, tuple[float, int]]:
    """Seconds and requests of each step, with a repository of its own."""
    values = np.random.default_rng(1).integers(0, 255, (SIDE, SIDE), dtype="uint8")
    places = np.random.default_rng(2).integers(0, SIDE - 16, (50, 2))
    found: dict[str, tuple[float, int]] = {}

    def measured[T](name: str, call: Callable[[], T]) -> T:
        before, start = seen(), time.perf_counter()
        result = call()
        found[name] = (time.perf_counter() - start, seen() - before)
        return result

    session = repository(server, prefix, contestant.inline, create=True).writable_session("main")
    array = contestant.create(session)
    measured("write", lambda: array.__setitem__(..., values))
    measured("commit", lambda: session.commit("all of it"))
    fresh = repository(server, prefix, contestant.inline, create=False).readonly_session("main")
    array = measured("open", lambda: contestant.open(fresh))
    np.testing.assert_array_equal(measured("read all", lambda: array[...]), values)

    def read_pieces() -> None:
        for row, column in places:
            array[row : row + 16, column : column + 16]

    measured("50 pieces", read_pieces)
    return found


def stored(server: Server, prefix: str) -> str:
    """How much is stored, and where."""
    nbytes: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for batch in obstore.list(objects(server, prefix)):
        for each in batch:
            folder = each["path"].partition("/")[0]
            nbytes[folder] += each["size"]
            count[folder] += 1
    shown = [f"{count[folder]:,} {folder} of {nbytes[folder] / 1000:,.0f} kB" for folder in ("chunks", "manifests")]
    return ", ".join(shown)


def main() -> None:
    icechunk.set_logs_filter("error")
    with minio() as server:
        best: dict[str, dict[str, float]] = {}
        for repeat in range(REPEAT):
            for number, each in enumerate(CONTESTANTS):
                times = run(server, f"sessions/{repeat}/{number}", each, lambda: 0)
                known = best.setdefault(each.name, {})
                known.update({name: min(seconds, known.get(name, seconds)) for name, (seconds, _) in times.items()})
        print("times relative to plain Icechunk, smaller is better; then requests\n")
        print(f"{'':<22}" + "".join(f"{name:>12}" for name in COLUMNS))
        for each in CONTESTANTS:
            ratios = [best[each.name][name] / best["plain Icechunk"][name] for name in COLUMNS]
            print(f"{each.name:<22}" + "".join(f"{ratio:>12.2f}" for ratio in ratios))
        print()
        with CountingProxy(server.endpoint) as proxy:
            behind = Server(proxy.endpoint, server.access_key, server.secret_key)
            for number, each in enumerate(CONTESTANTS):
                prefix = f"sessions/counted/{number}"
                counted = run(behind, prefix, each, lambda: len(proxy.requests))
                print(f"{each.name:<22}" + "".join(f"{counted[name][1]:>12,}" for name in COLUMNS))
                print(f"{'':<22}{stored(server, prefix)}")


if __name__ == "__main__":
    main()
