"""A write of our pipeline that lost a race is repeated until it succeeds, and no update is lost."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.engine import executor
from parts_store.engine.executor import retry
from parts_store.engine.steps import Lock
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.transactions.locking import array_locks
from tests.conftest import PIPELINES
from tests.maintenance.stores import side_folder
from tests.store.interrupted import ONE_CHUNK, ONE_IN_PARTS, Overtaken, create_one


def create(objects: Any, parts: str, **arguments: Any) -> Any:
    """Create an array of one chunk or shard, whose elements are 1."""
    array = create_one(ps.PartsStore(objects), parts, **arguments)
    array[...] = 1
    return array


class Failing:
    """A write that raises errors in turn, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait, and return the list of the waits that were asked for."""
    slept: list[float] = []
    monkeypatch.setattr("parts_store.engine.executor.time.sleep", slept.append)
    monkeypatch.setattr("parts_store.engine.executor.random.uniform", lambda _, longest: longest)
    return slept


def test_waits_grow_up_to_the_longest(sleeps: list[float]) -> None:
    write = Failing(*[ConcurrentWriteError("a/c/0", "changed")] * 12)
    retry(write)
    assert write.calls == 13
    assert sleeps == sorted(sleeps)
    assert sleeps[0] < 0.01
    assert sleeps[-1] == sleeps[-2] == executor._LONGEST_WAIT_SECONDS


@pytest.mark.parametrize("error", [AmbiguousWriteError("a/c/0", "no answer"), LayoutChangedError("a", "another")])
def test_other_errors_are_not_retried(error: Exception) -> None:
    write = Failing(ConcurrentWriteError("a/c/0", "changed"), error)
    with pytest.raises(type(error)):
        retry(write)
    assert write.calls == 2


def test_last_error_names_the_chunk_and_says_what_to_do(sleeps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_MAX_SECONDS", -1.0)
    with pytest.raises(ConcurrentWriteError, match=r"'a/c/0'.*1 attempts.*fewer clients") as raised:
        retry(Failing(ConcurrentWriteError("a/c/0", "changed")))
    assert isinstance(raised.value.__cause__, ConcurrentWriteError)
    assert sleeps == []


def test_waits_of_all_attempts_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_MAX_SECONDS", 0.1)
    objects = LocalStore(tmp_path / "objects", mkdir=True)
    array = create(objects, "two parts", chunks=(32,))
    lock = Lock(f"{side_folder('a', 'c/0')}.lock", "another writer", array_locks("a")[1])
    release = ps.PartsStore(objects)._backend.lock(lock)
    assert release is not None
    # The wait for the lock has used up the time: there is no second attempt, which would wait as long again.
    with pytest.raises(ConcurrentWriteError, match="all 1 attempts") as raised:
        array[...] = 2
    assert "held its lock" in str(raised.value.__cause__)
    release()
    array[...] = 3
    np.testing.assert_array_equal(array[...], 3)


@pytest.mark.parametrize("chunks", ONE_CHUNK)
@pytest.mark.parametrize("parts", ONE_IN_PARTS)
def test_overtaken_partial_writes_keep_what_the_others_wrote(objects: Any, parts: str, chunks: str) -> None:
    create(objects, parts, **ONE_CHUNK[chunks])
    others: Any = ps.open_array(ps.PartsStore(objects), "a", mode="r+")
    store = Overtaken(objects)
    array: Any = ps.open_array(store, "a", mode="r+")
    # The other client writes to the same inner chunk, to another one, to all of the shard, and deletes it.
    expected = np.ones(32, "i4")
    for region, value in ((slice(4, 8), 2), (slice(20, 28), 3), (slice(0, 32), 4), (slice(0, 32), 0)):
        store.acts = iter([lambda region=region, value=value: others.__setitem__(region, value)])  # type: ignore[misc]
        array[0:4] = expected[0:4] = 10 + value
        expected[region.start : region.stop] = value
        expected[0:4] = 10 + value
        np.testing.assert_array_equal(others[...], expected)
        assert next(store.acts, None) is None


@pytest.mark.parametrize("chunks", ONE_CHUNK)
def test_partial_write_to_the_fill_value_keeps_what_another_client_wrote(objects: Any, chunks: str) -> None:
    create(objects, "no parts", **ONE_CHUNK[chunks])[4:] = 0
    others: Any = ps.open_array(ps.PartsStore(objects), "a", mode="r+")
    store = Overtaken(objects)
    store.acts = iter([lambda: others.__setitem__(slice(5, 7), 6)])
    ps.open_array(store, "a", mode="r+")[0:4] = 0
    assert np.flatnonzero(others[...]).tolist() == [5, 6]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("chunks", ONE_CHUNK)
@pytest.mark.parametrize("parts", ONE_IN_PARTS)
def test_threads_that_write_one_chunk_lose_no_update(objects: Any, pipeline: str, parts: str, chunks: str) -> None:
    if (pipeline, chunks) == ("batched", "plain"):
        # zarr reads and writes such chunks in two tasks.
        return
    create(objects, parts, **ONE_CHUNK[chunks])
    count = 8 if pipeline == "parts" else 2

    def write(number: int) -> None:
        array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r+")
        for value in range(2, 12):
            # Neighbours share an inner chunk. Only our pipeline writes again by itself.
            while True:
                with nullcontext() if pipeline == "parts" else suppress(ConcurrentWriteError):
                    array[4 * number : 4 * number + 3] = value
                    break
            assert (array[4 * number : 4 * number + 3] == value).all()

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(write, range(count)))
    expected = np.where(np.arange(32) % 4 == 3, 1, np.where(np.arange(32) < 4 * count, 11, 1))
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)


@pytest.mark.parametrize("chunks", ONE_CHUNK)
@pytest.mark.parametrize("concurrency", ["writers", "exclusive"])
def test_arrays_without_parts_are_written_with_the_requests_of_any_store(
    objects: Any, concurrency: Any, chunks: str
) -> None:
    create(objects, "no parts", **ONE_CHUNK[chunks])
    store = ps.PartsStore(objects, concurrency=concurrency)
    array: Any = ps.open_array(store, "a", mode="r+")
    for region, requests in ((slice(None), 1), (slice(3, 5), 2)):
        before = sum(store.stats.calls.values())
        array[region] = requests + 1
        # On a disk, a partial write beside other writers needs more.
        if requests == 1 or concurrency == "exclusive" or isinstance(objects, MemoryStore):
            assert sum(store.stats.calls.values()) - before == requests
    np.testing.assert_array_equal(array[2:6], [2, 3, 3, 2])


@pytest.mark.parametrize("chunks", ONE_CHUNK)
def test_partial_write_of_an_array_without_parts_is_refused_with_zarrs_pipeline(objects: Any, chunks: str) -> None:
    create(objects, "no parts", **ONE_CHUNK[chunks])
    store = Overtaken(objects)
    others = ps.PartsStore(objects)
    whole = ps.PartsStore(objects).get_sync("a/c/0")
    assert whole is not None
    changed = whole.to_bytes().replace(b"\1\0\0\0", b"\7\0\0\0")
    store.acts = iter([lambda: others.set_sync("a/c/0", cpu.Buffer.from_bytes(changed))])
    with zarr.config.set({"codec_pipeline.path": PIPELINES["fused"]}):
        array: Any = zarr.open_array(store, path="a")
        with pytest.raises(ConcurrentWriteError, match="was changed after it was read"):
            array[3:5] = 2
    np.testing.assert_array_equal(zarr.open_array(others, path="a")[...], 7)
