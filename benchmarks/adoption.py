"""What adopting HDF5 files costs: against VirtualiZarr's own writer, in one run, with a million chunks in all.

A MinIO is started on this machine, with a file in it of four variables in small compressed chunks: `a` and `b` were
written one after the other, `c` and `d` in turns, time step by time step. The file is adopted into Icechunk
repositories on the same MinIO. Times are told as ratios to VirtualiZarr's, best of three, each with a repository that
was made or opened anew. Requests are counted by a proxy in between, in a run of their own. Everything that is read is
compared with what h5py reads.

    python -m benchmarks.adoption --chunks 100000    # fewer of them, in less time
"""

import argparse
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import obstore
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser
from zarr.abc.store import Store

import parts_store as ps
from benchmarks.places import minio, objects
from integration.proxy import CountingProxy
from integration.server import Server
from parts_store.virtual.adopt import adopt

# Chunks of 16 x 16 numbers, 1,000 of them in a time step of a variable.
ROWS, COLUMNS, SIDE, SLAB_STEPS, REPEAT = 25, 40, 16, 4, 3
URL = "s3://bench/files/model.h5"
FOLDERS = ("manifests", "chunks", "snapshots", "transactions")
ZARR_SETTINGS = (
    "async.concurrency",
    "array.sharding_coalesce_max_gap_bytes",
    "array.sharding_coalesce_max_bytes",
    "codec_pipeline.path",
)

type Selection = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to make the file readable from a session."""

    name: str
    adopt: Callable[[Server, icechunk.Session], object]
    view: Callable[[icechunk.Session], Store]
    inline: int = 512

    def prefix(self, repeat: int) -> str:
        """Where its repository is."""
        return f"adoption/{repeat}/{self.name.replace(',', '').replace(' ', '-')}"


@dataclass(slots=True)
class Result:
    """What is known of one contestant."""

    seconds: dict[str, float] = field(default_factory=dict)
    # To the repository, to the file, and bytes of the file that were asked for.
    requests: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    nbytes: Counter[str] = field(default_factory=Counter)
    references: int = 0


def with_virtualizarr(server: Server, session: icechunk.Session) -> None:
    registry = ObjectStoreRegistry({"s3://bench": objects(server, "")})
    with open_virtual_dataset(URL, registry=registry, parser=HDFParser(), loadable_variables=[]) as dataset:
        dataset.vz.to_icechunk(session.store)


def in_shards(name: str, *, inline: int, shard_chunks: int = 4095, gap: int | None = None) -> Contestant:
    def with_parts_store(server: Server, session: icechunk.Session) -> None:
        options: dict[str, Any] = {
            "endpoint": server.endpoint,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }
        adopt(URL, into=session, shard_chunks=shard_chunks, **options)

    return Contestant(
        name, with_parts_store, lambda session: ps.PartsStore.from_session(session, coalesce_gap=gap), inline
    )


VIRTUALIZARR = Contestant("VirtualiZarr", with_virtualizarr, lambda session: session.store)
RECOMMENDED = in_shards("parts_store, inline 65,535", inline=65_535)
CONTESTANTS = (
    VIRTUALIZARR,
    in_shards("parts_store, inline 512", inline=512),
    RECOMMENDED,
    # zarr joins inner chunks that are up to 1 MiB apart; here only those that are up to 16 KiB apart.
    in_shards("the same, coalesce_gap 16 KiB", inline=65_535, gap=1 << 14),
)
SIZES = tuple(
    in_shards(f"shards of {count:,} chunks", inline=65_535, shard_chunks=count) for count in (1000, 2000, 4095, 16_000)
)


# --- the file -----------------------------------------------------------------------------------------------------


def write_file(path: Path, steps: int) -> None:
    """Write `a` and `b` one after the other, then `c` and `d` in turns."""
    chance = np.random.default_rng(1)
    pool = [encoded_chunk(chance) for _ in range(1024)]
    with h5py.File(path, "w", libver="latest") as file:
        shape, chunk_shape = (steps, ROWS * SIDE, COLUMNS * SIDE), (1, SIDE, SIDE)
        form: dict[str, Any] = {"dtype": "<f4", "compression": "gzip", "compression_opts": 1, "shuffle": True}
        variables = {name: file.create_dataset(name, shape, chunks=chunk_shape, **form) for name in "abcd"}
        order = [(name, step) for name, step in product("ab", range(steps))]
        order += [(name, step) for step, name in product(range(steps), "cd")]
        for name, step in order:
            write = variables[name].id.write_direct_chunk
            chosen = iter(chance.integers(0, len(pool), ROWS * COLUMNS).tolist())
            for row, column in product(range(ROWS), range(COLUMNS)):
                write((step, row * SIDE, column * SIDE), pool[next(chosen)])


def encoded_chunk(chance: np.random.Generator) -> bytes:
    """A smooth field with more or less noise, as HDF5's filters leave it: of 200 to 1,000 bytes."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    smooth = 280 + 20 * np.sin(rows * chance.uniform(0, 6) + columns * chance.uniform(0, 6))
    digits = int(chance.integers(0, 4))
    values = np.round(smooth + chance.normal(0, chance.uniform(0.01, 5), (SIDE, SIDE)), digits).astype("<f4")
    return zlib.compress(values.view("u1").reshape(-1, 4).T.tobytes(), 1)


# --- the steps ----------------------------------------------------------------------------------------------------


def repository(server: Server, prefix: str, inline: int, *, create: bool) -> icechunk.Repository:
    keys: dict[str, Any] = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    remote: dict[str, Any] = {"region": "us-east-1", "endpoint_url": server.endpoint}
    remote |= {"allow_http": True, "force_path_style": True}
    files = "s3://bench/files/"
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = inline
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(files, icechunk.s3_store(**remote, s3_compatible=True))
    )
    call = icechunk.Repository.create if create else icechunk.Repository.open
    return call(
        icechunk.s3_storage(bucket="bench", prefix=prefix, **remote, **keys),
        config=config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({files: icechunk.s3_credentials(**keys)}),
    )


def reads(steps: int) -> dict[str, tuple[str, Selection]]:
    """What is read of which variable. The slabs are four time steps, which begin where no shard does."""
    first = steps // 2 | 1
    all_of_it, chunk = slice(None), slice(5 * SIDE, 6 * SIDE)
    slab = (slice(first, first + SLAB_STEPS), all_of_it, all_of_it)
    return {
        "one chunk": ("b", (slice(first, first + 1), chunk, chunk)),
        "slab": ("b", slab),
        "slab in turns": ("c", slab),
        "series": ("b", (all_of_it, chunk, chunk)),
    }


class Bench:
    """The server with the file in it, and what was measured there."""

    def __init__(self, server: Server, file: h5py.File) -> None:
        self._server, self._file = server, file
        self._reads = reads(file["a"].shape[0])
        self.columns = ("adopt", "commit", "open", *self._reads)
        self.results: dict[str, Result] = {}

    def write(self, contestant: Contestant, repeat: int) -> None:
        """Adopt the file, commit, and look at what that has stored."""
        result = self.results.setdefault(contestant.name, Result())
        prefix = contestant.prefix(repeat)
        repo = repository(self._server, prefix, contestant.inline, create=True)
        session = repo.writable_session("main")
        with timed(result.seconds, "adopt"):
            contestant.adopt(self._server, session)
        with timed(result.seconds, "commit"):
            snapshot = session.commit("adopted")
        result.references = sum(each.num_chunk_refs for each in repo.list_manifest_files(snapshot))
        result.nbytes.clear()
        for batch in obstore.list(objects(self._server, prefix)):
            for each in batch:
                result.nbytes[each["path"].partition("/")[0]] += each["size"]

    def read(self, contestant: Contestant) -> None:
        """Open the repository and read each piece, cold."""
        result, prefix = self.results[contestant.name], contestant.prefix(0)
        for name, (variable, selection) in self._reads.items():
            with timed(result.seconds, "open"):
                array = opened(self._server, prefix, contestant, variable)
            with timed(result.seconds, name):
                found = array[selection]
            np.testing.assert_array_equal(found, self._file[variable][selection])

    def count(self, contestant: Contestant, proxy: CountingProxy) -> None:
        """The same, through the proxy."""
        behind = Server(proxy.endpoint, self._server.access_key, self._server.secret_key)
        result, prefix = self.results[contestant.name], contestant.prefix(0)

        def note(name: str) -> None:
            to_file = [each.bounds for each in proxy.requests if each.key.startswith("files/")]
            nbytes = sum((stop or 0) - (start or 0) for start, stop in to_file)
            result.requests[name] = len(proxy.requests) - len(to_file), len(to_file), nbytes
            proxy.requests.clear()

        for name, (variable, selection) in self._reads.items():
            proxy.requests.clear()
            array = opened(behind, prefix, contestant, variable)
            note("open")
            array[selection]
            note(name)


def opened(server: Server, prefix: str, contestant: Contestant, variable: str) -> zarr.Array[Any]:
    session = repository(server, prefix, contestant.inline, create=False).readonly_session("main")
    return zarr.open_array(contestant.view(session), path=variable, mode="r")


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds of the block, if they are the fewest."""
    start = time.perf_counter()
    yield
    passed = time.perf_counter() - start
    seconds[name] = min(passed, seconds.get(name, passed))


# --- what is told -------------------------------------------------------------------------------------------------


def tell(bench: Bench, contestants: tuple[Contestant, ...]) -> None:
    """Print four tables: what is stored, times as ratios to VirtualiZarr's, requests, and what those ask for."""
    results = {each.name: bench.results[each.name] for each in contestants}
    print(f"{'stored, kB':<32}{'references':>12}" + "".join(f"{name:>14}" for name in (*FOLDERS, "in all")))
    for name, each in results.items():
        sizes = [*(each.nbytes[folder] for folder in FOLDERS), each.nbytes.total()]
        print(f"{name:<32}{each.references:>12,}" + "".join(f"{size / 1000:>14,.1f}" for size in sizes))
    print(f"\n{'times':<32}" + "".join(f"{name:>14}" for name in bench.columns))
    reference = bench.results[VIRTUALIZARR.name].seconds
    print(f"{'VirtualiZarr, seconds':<32}" + "".join(f"{reference[name]:>14.3f}" for name in bench.columns))
    for name, each in results.items():
        print(f"{name:<32}" + "".join(f"{each.seconds[column] / reference[column]:>14.3f}" for column in bench.columns))
    counted = bench.columns[2:]
    print(f"\n{'requests, repository + file':<60}" + "".join(f"{name:>14}" for name in counted))
    for name, each in results.items():
        shown = ["{:,} + {:,}".format(*each.requests[column]) for column in counted]
        print(f"{name:<60}" + "".join(f"{text:>14}" for text in shown))
    print(f"\n{'kB of the file':<60}" + "".join(f"{name:>14}" for name in counted))
    for name, each in results.items():
        sizes = [each.requests[column][2] for column in counted]
        print(f"{name:<60}" + "".join(f"{size / 1000:>14,.1f}" for size in sizes))
    print()


def tell_goals(name: str, theirs: Result, ours: Result) -> None:
    """Print which goals are met."""
    goals = [
        ("20 times fewer references", theirs.references / ours.references, 20.0),
        ("fewer bytes, indexes counted", theirs.nbytes.total() / ours.nbytes.total(), 1.0),
        ("a shorter commit", theirs.seconds["commit"] / ours.seconds["commit"], 1.0),
    ]
    for read in ("slab", "slab in turns"):
        ratio = sum(theirs.requests[read][:2]) / sum(ours.requests[read][:2])
        goals.append((f"5 times fewer requests, {read}", ratio, 5.0))
    print(name)
    for text, ratio, least in goals:
        print(f"    {'met' if ratio >= least else 'NOT met':<8}{text}: {ratio:,.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000, help="in all, in steps of 4,000, at least 40,000")
    steps = max(10, parser.parse_args().chunks // (4 * ROWS * COLUMNS))
    icechunk.set_logs_filter("error")
    with minio() as server, tempfile.TemporaryDirectory(prefix="bench_adoption_") as folder:
        path = Path(folder) / "model.h5"
        write_file(path, steps)
        obstore.put(objects(server, "files"), "model.h5", path)
        print(f"{4 * steps * ROWS * COLUMNS:,} chunks, {path.stat().st_size / 1e6:,.0f} MB")
        print(", ".join(f"{name}={zarr.config.get(name)}" for name in ZARR_SETTINGS) + "\n", flush=True)
        with h5py.File(path) as file:
            bench = Bench(server, file)
            everybody = (*CONTESTANTS, *SIZES)
            # In turns, and every time from another one on: the machine has other things to do, and not always as many.
            for repeat, shift in enumerate(range(0, 2 * REPEAT, 2)):
                for each in (*everybody[shift:], *everybody[:shift]):
                    bench.write(each, repeat)
            for shift in range(0, 2 * REPEAT, 2):
                for each in (*everybody[shift:], *everybody[:shift]):
                    bench.read(each)
            with CountingProxy(server.endpoint) as proxy:
                for each in everybody:
                    bench.count(each, proxy)
        print("against VirtualiZarr; times relative to its own, smaller is better\n")
        tell(bench, CONTESTANTS)
        for each in CONTESTANTS[1:]:
            tell_goals(each.name, bench.results[VIRTUALIZARR.name], bench.results[each.name])
        print("\nhow many chunks in a shard, with inline 65,535\n")
        tell(bench, SIZES)


if __name__ == "__main__":
    main()
