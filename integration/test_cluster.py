"""A cluster of processes that writes to a session on a real MinIO: one commit, also if a worker dies."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from icechunk import Repository, Session, s3_storage
from numpy.typing import NDArray
from zarr.core.sync import sync

import parts_store as ps
from integration.conftest import Bucket
from parts_store.cluster import write_array
from parts_store.errors import ClusterWriteError

SHARDS = 1000
# Beyond what Icechunk keeps in its manifests.
ELEMENTS = 256
VALUES: NDArray[np.int32] = np.arange(SHARDS * ELEMENTS, dtype="int32")
PARTS = (ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX))
AT_MOST_SECONDS = 500.0


@pytest.fixture
def repo(bucket: Bucket) -> Repository:
    server = bucket.server
    storage = s3_storage(
        bucket=bucket.name,
        prefix="repository",
        region="us-east-1",
        endpoint_url=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        allow_http=True,
        force_path_style=True,
    )
    return Repository.create(storage)


@contextmanager
def workers() -> Iterator[Any]:
    """Start a client with three worker processes, which end with it."""
    started: set[int] = set()
    arguments = {"n_workers": 3, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    try:
        with LocalCluster(**arguments) as cluster, Client(cluster, set_as_default=False) as client:
            started |= pids(client)
            yield client
            started |= pids(client)
    finally:
        before = time.monotonic()
        while any(map(is_running, started)) and time.monotonic() - before < 300:
            time.sleep(0.05)
        assert not [pid for pid in started if is_running(pid)]


def pids(client: Any) -> set[int]:
    return set(client.run(os.getpid, on_error="ignore").values())


def is_running(pid: int) -> bool:
    """Return whether the process exists; dask waits for its processes, so that there are no zombies."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with workers() as client:
        yield client


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises, if it ends in time."""
    outcome: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"not done after {seconds} seconds"
    if errors:
        raise errors[0]
    return outcome[0]


def begin(repo: Repository, *, split: bool) -> zarr.Array[Any]:
    """Commit an array of many shards in two parts."""
    session = repo.writable_session("main")
    ps.create_array(
        ps.PartsStore.from_session(session),
        "a",
        parts=PARTS,
        split=split,
        shape=VALUES.shape,
        shards=(ELEMENTS,),
        chunks=(ELEMENTS // 4,),
        dtype="int32",
        fill_value=-1,
        compressors=None,
    )
    session.commit("an array")
    return zarr.open_array(ps.PartsStore.from_session(repo.writable_session("main")), path="a")


def source(shards: int = 1) -> Any:
    """Return the values as a dask array, with the given number of shards in a block."""
    return dask.array.arange(VALUES.size, chunks=shards * ELEMENTS, dtype="int32")


def messages(repo: Repository) -> list[str]:
    return [each.message for each in repo.ancestry(branch="main")][:-1]


def assert_all_written(repo: Repository, *, split: bool) -> None:
    """Check that one commit has all values in the expected number of chunks."""
    assert messages(repo) == ["written", "an array"]
    session = repo.readonly_session("main")
    store = ps.PartsStore.from_session(session)
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], VALUES)
    nodes = ["/a", "/a/__parts__/.index"] if split else ["/a"]
    for node in nodes:
        assert sorted(sync(coordinates(session, node))) == [(number,) for number in range(SHARDS)]


async def coordinates(session: Session, node: str) -> list[tuple[int, ...]]:
    return [tuple(each) async for each in session.chunk_coordinates(node)]


@pytest.mark.slow
@pytest.mark.parametrize(("split", "at_a_time"), [(False, 4), (True, 1)], ids=["whole", "split"])
def test_a_thousand_shards_are_one_commit(repo: Repository, client: Any, at_a_time: int, *, split: bool) -> None:
    array = begin(repo, split=split)
    within(AT_MOST_SECONDS, lambda: write_array(source(at_a_time), array, message="written", client=client))
    assert_all_written(repo, split=split)


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(repo: Repository) -> None:
    array = begin(repo, split=True)
    killed: list[int] = []
    with workers() as client:
        victims = sorted(pids(client))

        def kill(done: int, total: int) -> None:
            if done >= total // 3 and not killed:
                killed.append(victims[0])
                os.kill(victims[0], signal.SIGKILL)

        within(AT_MOST_SECONDS, lambda: write_array(source(4), array, message="written", client=client, progress=kill))
        assert killed
        assert not is_running(killed[0])
    assert_all_written(repo, split=True)


def poisoned(block: NDArray[Any], number: int) -> NDArray[Any]:
    """Return the block, or kill the worker that computes it if it is the chosen one."""
    if block.size and block[0] == number * ELEMENTS:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
def test_if_dask_gives_up_nothing_is_committed(repo: Repository) -> None:
    array = begin(repo, split=True)
    few = slice(0, 30 * ELEMENTS)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), workers() as client:
        bad = source()[few].map_blocks(poisoned, number=17, meta=VALUES[:0])
        with pytest.raises(ClusterWriteError) as caught:
            within(
                AT_MOST_SECONDS,
                lambda: write_array(bad, array, region=(few,), message="not this", client=client),
            )
        assert caught.value.tasks == 30
        failed = dict(caught.value.failed)
        # Others of the same worker may have died with it.
        assert failed[f"a[{17 * ELEMENTS}:{18 * ELEMENTS}]"].startswith("KilledWorker")
        assert all(problem.startswith("KilledWorker") for problem in failed.values())
        assert messages(repo) == ["an array"]
        assert not array.store.session.has_uncommitted_changes  # type: ignore[attr-defined] # a PartsStore
        # The cluster has new workers, and the session is as good as new.
        good = source()[few]
        within(AT_MOST_SECONDS, lambda: write_array(good, array, region=(few,), message="written", client=client))
    assert messages(repo) == ["written", "an array"]
    written = zarr.open_array(ps.PartsStore.from_session(repo.readonly_session("main")), path="a", mode="r")
    np.testing.assert_array_equal(written[few], VALUES[few])
    assert written.nchunks_initialized == 30 * 4
