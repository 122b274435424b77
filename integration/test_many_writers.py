"""Many processes write to the same shards at the same time, and lose nothing."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore

import parts_store as ps
from integration.conftest import Bucket
from integration.many_writers import Peer, Work, run
from tests.conftest import PIPELINES
from tests.histories import PARTS, record, violations

OURS: list[Peer] = ["ours", "ours, zarr's pipeline"]


@pytest.fixture(params=["s3", "disk"])
def objects(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Any:
    return bucket.store("many") if request.param == "s3" else LocalStore(tmp_path)


@pytest.mark.parametrize("peer", OURS)
@pytest.mark.parametrize("has_parts", [False, True], ids=["no parts", "parts"])
def test_processes_that_write_disjoint_inner_chunks_lose_nothing(objects: Any, peer: Peer, *, has_parts: bool) -> None:
    result = run(Work(objects, peer, writers=4, writes=12, shards=3, has_parts=has_parts))
    assert (result.lost, result.errors) == (0, ())


def test_processes_that_share_an_inner_chunk_lose_nothing_with_our_pipeline(objects: Any) -> None:
    result = run(Work(objects, "ours", writers=4, writes=8, shards=2, is_disjoint=False))
    assert (result.lost, result.errors) == (0, ())


def test_sixteen_processes_on_one_shard_all_make_progress(objects: Any) -> None:
    result = run(Work(objects, "ours, zarr's pipeline", writers=16, writes=3, shards=1))
    assert (result.lost, result.errors) == (0, ())


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("parts", PARTS)
def test_histories_on_a_server_are_linearizable(bucket: Bucket, name: str, parts: str) -> None:
    for seed in range(3):
        with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
            histories = record(bucket.store(f"history-{seed}"), PARTS[parts], seed)
        assert violations(histories) == [], f"seed {seed}"


def _write_and_say(objects: Any, number: int, acknowledged: Any) -> None:
    """Set one element after the other, and say so after each of them, until the process is killed."""
    with ps.fast():
        array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r+")
    for place in range(number * 100, number * 100 + 100):
        array[place] = 1
        acknowledged.put(place)


@pytest.mark.parametrize("has_parts", [False, True], ids=["no parts", "parts"])
def test_acknowledged_writes_survive_sigkill_of_other_writers(objects: Any, *, has_parts: bool) -> None:
    arguments: dict[str, Any] = {"shape": (400,), "chunks": (50,), "shards": (400,), "dtype": "i4", "fill_value": 0}
    store = ps.PartsStore(objects)
    if has_parts:
        ps.create_array(store, "a", parts=PARTS["two parts"], **arguments)
    else:
        zarr.create_array(store, name="a", **arguments)
    context = multiprocessing.get_context("spawn")
    acknowledged = context.SimpleQueue()
    writers = [context.Process(target=_write_and_say, args=(objects, number, acknowledged)) for number in range(4)]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    chance = random.Random(7)
    for writer in writers[:3]:
        # All have begun, and each is killed at some moment of a write.
        while len(seen) < 8 or (not acknowledged.empty()):
            seen.append(acknowledged.get())
        time.sleep(chance.uniform(0, 0.3))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
    deadline = time.monotonic() + 120
    while (writers[3].is_alive() or not acknowledged.empty()) and time.monotonic() < deadline:
        if acknowledged.empty():
            time.sleep(0.01)
        else:
            seen.append(acknowledged.get())
        if len(seen) > 60:
            break
    writers[3].kill()
    writers[3].join(60)
    while not acknowledged.empty():
        seen.append(acknowledged.get())
    values = np.asarray(zarr.open_array(ps.PartsStore(objects), path="a", mode="r")[...])
    assert [place for place in seen if values[place] != 1] == []
    assert len(seen) >= 8
    assert not ps.PartsStore(objects).verify().is_damaged
