"""The first error of a selection is raised once, and nothing further is begun."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.errors import IncompleteChunkError
from parts_store.pipeline import threads
from parts_store.pipeline.threads import Batch

SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (4, 4), "shards": (16, 16), "dtype": "i4"}


def test_a_damaged_chunk_in_the_middle_is_raised_with_its_key(tmp_path: Path) -> None:
    parts: list[Any] = ["", ps.Part(".index", size=ps.SHARD_INDEX)]
    store = ps.PartsStore(LocalStore(tmp_path))
    ps.create_array(store, "a", parts=parts, **SHARDED)
    array = ps.open_array(store, "a", mode="r+")
    array[...] = np.arange(64 * 64).reshape(64, 64)
    (tmp_path / "a/c/1/2.index").unlink()
    with pytest.raises(IncompleteChunkError, match=r"a/c/1/2"):
        array[...]
    np.testing.assert_array_equal(array[:16], np.arange(64 * 64).reshape(64, 64)[:16])


def test_a_damaged_shard_raises_what_zarr_raises() -> None:
    objects = MemoryStore()
    settings: list[Any] = [ps.fast(), nullcontext()]
    for setting in settings:
        with setting:
            array = zarr.create_array(ps.PartsStore(objects), overwrite=True, compressors=None, **SHARDED)
            array[...] = 1
            stored = bytes(objects.get("c/0/0").bytes())
            objects.put("c/0/0", stored[:-1] + bytes([stored[-1] ^ 1]))
            with pytest.raises(ValueError, match="checksum"):
                array[...]


def test_tasks_are_bounded_by_the_number_of_workers() -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def task() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        barrier.wait(5)
        with lock:
            at_once -= 1

    barrier = threading.Barrier(3)
    with zarr.config.set({"codec_pipeline.max_workers": 3}):
        Batch([task] * 9).run()
    assert most == 3


def test_after_an_error_no_task_is_begun_and_the_first_error_is_raised() -> None:
    begun = []

    def task(number: int) -> None:
        begun.append(number)
        raise ValueError(f"task {number}")

    with zarr.config.set({"codec_pipeline.max_workers": 1}), pytest.raises(ValueError, match="task 0"):
        Batch([lambda number=number: task(number) for number in range(50)]).run()  # type: ignore[misc]
    assert begun == [0]


def test_results_are_in_the_order_of_the_tasks() -> None:
    assert Batch([lambda number=number: number for number in range(100)]).run() == list(range(100))  # type: ignore[misc]


def test_a_stopped_batch_begins_no_further_task() -> None:
    batch: Batch[None] = Batch([lambda: None] * 10)
    batch.stop(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        batch.run()


def test_a_forked_process_makes_threads_of_its_own() -> None:
    Batch([lambda: None] * 3).run()
    assert threads._pools
    threads._forget_pools()
    assert not threads._pools
    assert Batch([lambda: 1] * 3).run() == [1, 1, 1]
