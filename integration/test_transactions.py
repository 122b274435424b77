"""Readers and writers in processes of their own, at the same time, on the same shard: nothing torn, stale or lost."""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy, Seen
from integration.server import Server
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import ConcurrentWriteError
from parts_store.maintenance.report import Problem
from parts_store.store.options import Concurrency
from tests.conftest import PIPELINES

SPAWN = multiprocessing.get_context("spawn")


# What all processes share: where they meet, and what has been begun and committed.
_barrier: Any = None
_begun: Any = None
_committed: Any = None
# The beginnings and ends of reads: an odd number while the reader reads.
_turns: Any = None
_is_over: Any = None


def _share(barrier: Any, begun: Any, committed: Any, turns: Any, is_over: Any) -> None:
    global _barrier, _begun, _committed, _turns, _is_over
    _barrier, _begun, _committed, _turns, _is_over = barrier, begun, committed, turns, is_over


@pytest.fixture(scope="module")
def others() -> Iterator[ProcessPoolExecutor]:
    """Two processes, which share with us what is above."""
    shared = (SPAWN.Barrier(2), SPAWN.Value("q", 0), SPAWN.Value("q", 0), SPAWN.Value("q", 0), SPAWN.Event())
    _share(*shared)
    with ProcessPoolExecutor(2, mp_context=SPAWN, initializer=_share, initargs=shared) as pool:
        yield pool
    _share(None, None, None, None, None)


# --- a reader beside a writer ---------------------------------------------------------------------------------------

READS = 100
SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "shards": (64, 64), "dtype": "uint16"}
SHARD_PARTS = [Part(""), Part(".index", size=SHARD_INDEX)]


def values_of(number: int) -> NDArray[Any]:
    """Return the values of a write, which identify it, and whose compressed size differs from other writes."""
    noise = np.random.default_rng(number).integers(1, 1 << 16, (64, 64)).astype("uint16")
    values = np.full((64, 64), number, "uint16")
    # The second row of each inner chunk is noise, more of it or less.
    for row, column in np.ndindex(4, 4):
        width = 1 + (number * 7 + row * 5 + column * 3) % 15
        place = np.s_[16 * row + 1, 16 * column : 16 * column + width]
        values[place] = noise[place]
    return values


def _overwrite(store: PartsStore) -> int:
    """Write the shard again and again, and tell before each write and after it."""
    array = zarr.open_array(store, path="a")
    number, turn = int(_committed.value), -1
    while not _is_over.is_set():
        # One write begins in each read at most. A reader that is much slower than the writer would give up.
        if _turns.value == turn and turn % 2:
            time.sleep(0.001)
            continue
        turn = _turns.value
        number += 1
        _begun.value = number
        array[...] = values_of(number)
        _committed.value = number
        time.sleep(random.uniform(0, 0.06))
    return number


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


def test_known_shard_is_read_whole_while_a_process_overwrites_it(
    bucket: Bucket, proxy: CountingProxy, others: ProcessPoolExecutor, pipeline: str
) -> None:
    written = PartsStore(bucket.store())
    ps.create_array(written, "a", parts=SHARD_PARTS, **SHARDED)
    array = zarr.open_array(written, path="a")
    _begun.value = _committed.value = 1
    array[...] = values_of(1)
    user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
    store = PartsStore(bucket.store(user=user))
    ours = zarr.open_array(store, path="a")
    _is_over.clear()
    writer = others.submit(_overwrite, PartsStore(bucket.store()))
    _await_commit(3, writer)
    proxy.requests.clear()
    store.stats.reset()
    try:
        results: list[tuple[tuple[int, int], Counter[str]]] = []
        for chance in range(READS):
            # However slow the machine, the shard is overwritten ten times.
            if chance and chance % 10 == 0:
                _await_commit(results[-1][0][0] + 1, writer)
            results.append(_read_some(ours, proxy, chance))
        found, costs = zip(*results, strict=True)
    finally:
        _is_over.set()
        writer.result(timeout=300)
    changes = 0
    for before, (number, begun), cost in zip((None, *found), found, costs, strict=False):
        if before is not None and before[0] == begun:
            # No write has begun since the previous read.
            assert cost == {"data": 1}
        changes += before is not None and before[0] != number
    assert changes >= 5
    # A read costs one request, but the first, and those that find another write than the one before: these cost the
    # data again, its index and a look at the anchor at least; and a few more if they meet the writer at work.
    remapped = [cost for cost in costs if cost not in ({"data": 1}, {"data": 1, "index": 1})]
    assert all(cost["data"] >= 2 and cost["index"] >= 1 and cost["head"] >= 1 for cost in remapped)
    assert costs.count({"data": 1, "index": 1}) <= 1
    assert len(remapped) <= changes + 1
    total = sum(map(Counter.total, costs)) - sum(cost["head"] for cost in costs)
    assert store.stats.calls["get"] == total
    assert READS + 2 * len(remapped) <= total <= READS + 1 + 6 * len(remapped)


def _await_commit(number: int, writer: "Future[int]") -> None:
    """Wait until a write is committed, or its writer has failed."""
    while _committed.value < number and not writer.done():
        time.sleep(0.005)


def _read_some(array: zarr.Array[Any], proxy: CountingProxy, chance: int) -> tuple[tuple[int, int], Counter[str]]:
    """Read an inner chunk: of which write it was, and which the last was that had been begun then; and the requests."""
    row, column = divmod(random.Random(chance).randrange(16), 4)
    place = np.s_[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
    committed, at = int(_committed.value), len(proxy.requests)
    _turns.value += 1
    read = np.asarray(array[place])
    _turns.value += 1
    begun = int(_begun.value)
    number = int(read[0, 0])
    # Of one write, and of none before the last that was committed when the read began.
    np.testing.assert_array_equal(read, values_of(number)[place])
    assert committed <= number <= begun
    return (number, begun), Counter(map(_kind, proxy.requests[at:]))


def _kind(seen: Seen) -> str:
    if ".parts-txn" in seen.key:
        return "copy"
    assert seen.kind in ("get", "head")
    names = {("get", "a/c/0/0"): "data", ("get", "a/c/0/0.index"): "index", ("head", "a/c/0/0"): "head"}
    return names[seen.kind, seen.key]


# --- two processes that add -----------------------------------------------------------------------------------------

# On a local disk a write takes so little time that the two processes rarely meet.
ROUNDS = {"S3": 12, "disk": 60}


def _add(store: PartsStore, half: int, pipeline: str, rounds: int, *, retries: bool) -> tuple[int, int]:
    """Add to one half of a shard, round after round at the same time as the other; how often that went well, or not."""
    done = failed = 0
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        array: zarr.Array[Any] = zarr.open_array(store, path="a")
        region = np.s_[16 * half : 16 * half + 16, :]
        for _ in range(rounds):
            _barrier.wait(timeout=300)
            while True:
                try:
                    array[region] = np.asarray(array[region]) + 1
                except ConcurrentWriteError:
                    failed += 1
                    if retries:
                        # The process that came first goes first.
                        time.sleep(random.uniform(0, 0.02) * half)
                        continue
                else:
                    done += 1
                break
    return done, failed


KINDS: dict[str, dict[str, Any]] = {
    "shard": {"parts": SHARD_PARTS, "chunks": (8, 8), "shards": (32, 32)},
    "shard with a header": {
        "parts": [Part(".header", size=16), *SHARD_PARTS],
        "chunks": (8, 8),
        "shards": (32, 32),
        "compressors": None,
    },
    "chunk": {"parts": [Part(""), Part(".tail", size=4)], "chunks": (32, 32)},
}
# zarr's batched pipeline reads chunks and writes them in tasks that know nothing of each other: there, without shards,
# the last writer wins.
CASES: list[tuple[str, Concurrency, str, str]] = [
    ("S3", "writers", "shard", "batched"),
    ("S3", "writers", "shard", "fused"),
    ("S3", "writers", "shard with a header", "fused"),
    ("S3", "writers", "chunk", "fused"),
    ("S3", "full", "shard", "fused"),
    ("disk", "writers", "shard", "batched"),
    ("disk", "writers", "shard", "fused"),
    ("disk", "writers", "chunk", "fused"),
]


@pytest.mark.parametrize("retries", [True, False], ids=["with retries", "without"])
@pytest.mark.parametrize(("where", "level", "kind", "pipeline"), CASES, ids=[" ".join(case) for case in CASES])
def test_two_processes_that_add_to_one_chunk_lose_no_addition(
    request: pytest.FixtureRequest,
    others: ProcessPoolExecutor,
    tmp_path: Path,
    where: str,
    level: Concurrency,
    kind: str,
    pipeline: str,
    *,
    retries: bool,
) -> None:
    objects = request.getfixturevalue("bucket").store() if where == "S3" else LocalStore(tmp_path)
    store = PartsStore(objects, concurrency=level)
    ps.create_array(store, "a", shape=(32, 32), dtype="uint16", **KINDS[kind])
    _barrier.reset()
    rounds = ROUNDS[where]
    futures: list[Future[tuple[int, int]]] = [
        others.submit(_add, store, half, pipeline, rounds, retries=retries) for half in range(2)
    ]
    results = [future.result(timeout=500) for future in futures]
    values = np.asarray(zarr.open_array(PartsStore(objects), path="a")[...])
    for half, (done, failed) in enumerate(results):
        np.testing.assert_array_equal(values[16 * half : 16 * half + 16], done)
        assert done == rounds if retries else done + failed == rounds
    # The halves of a shard are merged. The halves of a chunk without shards are in each other's way.
    assert (sum(failed for _, failed in results) > 0) == (kind == "chunk")
    # Of two at the same time, one is first.
    assert retries or sum(done for done, _ in results) >= rounds
    # Two writers at the same time may leave objects that the other one needs; the next single writer removes them.
    report = PartsStore(objects).verify()
    assert {each.problem for each in report.findings} <= ({Problem.LEFTOVERS} if where == "S3" else set())
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        zarr.open_array(store, path="a")[0, 0] = 0
    assert PartsStore(objects).verify().findings == ()
