"""Failed, retried and interrupted tasks, and conflicts with other commits, lose nothing."""

import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed.client import _set_global_client
from icechunk import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    Repository,
    VersionSelection,
    local_filesystem_storage,
)
from numpy.typing import NDArray

import parts_store as ps
from parts_store.cluster import write_array
from parts_store.errors import ClusterWriteError
from tests.cluster.arrays import (
    HEAD,
    VALUES,
    begin,
    begin_with,
    by_kind,
    chunked,
    commit_elsewhere,
    committed,
    failing,
    messages,
)

pytestmark = pytest.mark.slow


@by_kind
@pytest.mark.parametrize("has_changes", [False, True])
def test_failed_computation_is_reported_and_not_committed(repo: Repository, kind: str, *, has_changes: bool) -> None:
    session, array = begin_with(repo, kind, fill_value=-1)
    expected = np.full((8, 10), -1)
    if has_changes:
        array[:4, :5] = expected[:4, :5] = 7
    source = failing(VALUES, (4, 5), lambda block: bool((block == VALUES[4, 5]).any() or (block == 1).any()))
    with pytest.raises(ClusterWriteError) as caught:
        write_array(source, array, message="not this")
    assert (caught.value.array, caught.value.tasks) == ("a", 4)
    assert caught.value.failed == (
        ("a[0:4, 0:5]", "ArithmeticError: no block from 1"),
        ("a[4:8, 5:10]", "ArithmeticError: no block from 46"),
    )
    assert session.has_uncommitted_changes == has_changes
    assert messages(repo) == ["an array"]
    np.testing.assert_array_equal(array[...], expected)
    # The session can be used again.
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    assert messages(repo) == ["written", "an array"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.array, again.tasks, again.failed, str(again)) == ("a", 4, caught.value.failed, str(caught.value))


@pytest.mark.parametrize("split", [False, True])
def test_failed_write_is_reported_and_not_committed(repo: Repository, *, split: bool) -> None:
    _, store = begin(repo)
    shape, chunks = (3000,), (1000,)
    ps.create_array(store, "a", parts=HEAD, split=split, shape=shape, chunks=chunks, dtype="int32")
    store.session.commit("an array")
    session, store = begin(repo)
    array = zarr.open_array(store, path="a")
    # A block that compresses well has fewer bytes than the first part needs.
    values = np.random.default_rng(0).integers(1, 1 << 30, 3000).astype("int32")
    good, values[1000:2000] = values.copy(), 5
    with pytest.raises(ClusterWriteError) as caught:
        write_array(chunked(values, 1000), array, message="not this")
    ((region, problem),) = caught.value.failed
    assert region == "a[1000:2000]"
    assert problem.startswith("ChunkSizeError: chunk 'a/c/1'")
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["an array"]
    write_array(chunked(good, 1000), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], good)


def fails_until(path: Path) -> Callable[[NDArray[Any]], bool]:
    """Return a function that fails once, for the first block."""

    def should_fail(block: NDArray[Any]) -> bool:
        if block.size == 0 or block[0, 0] != 1 or path.exists():
            return False
        path.touch()
        return True

    return should_fail


def test_retry_repeats_a_failed_task(repo: Repository, tmp_path: Path) -> None:
    _, array = begin_with(repo, "split")
    with pytest.raises(ClusterWriteError):
        write_array(failing(VALUES, (4, 5), fails_until(tmp_path / "one")), array, message="not this")
    write_array(failing(VALUES, (4, 5), fails_until(tmp_path / "two")), array, message="written", retries=1)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    assert messages(repo) == ["written", "an array"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError])
def test_interruption_cancels_tasks_and_merges_nothing(
    repo: Repository, client: Any, tmp_path: Path, error: type[BaseException]
) -> None:
    session, array = begin_with(repo, shape=(160, 10), shards=(4, 10), chunks=(4, 10))

    def slow(block: NDArray[Any]) -> NDArray[Any]:
        """Return three blocks at once, and the others after the interruption."""
        if block.size:
            (tmp_path / f"block-{block.flat[0]}").touch()
            for number in range(3):
                with suppress(FileExistsError):
                    (tmp_path / f"quick-{number}").touch(exist_ok=False)
                    return block
            until = time.monotonic() + 300
            while not (tmp_path / "interrupted").exists() and time.monotonic() < until:
                time.sleep(0.01)
        return block

    def interrupt(done: int, _: int) -> None:
        if done == 3:
            raise error

    values = np.arange(1, 1601, dtype="int32").reshape(160, 10)
    source = chunked(values, (4, 10)).map_blocks(slow, meta=values[:0])
    with pytest.raises(error):
        write_array(source, array, message="not this", progress=interrupt)
    (tmp_path / "interrupted").touch()
    before = time.monotonic()
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) and time.monotonic() - before < 300:
        time.sleep(0.02)
    assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0
    assert len(list(tmp_path.glob("block-*"))) < 40
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["an array"]


def test_write_array_inside_dask_tasks_does_not_deadlock(client: Any, tmp_path: Path) -> None:
    def write(path: str) -> str:
        _, array = begin_with(Repository.create(local_filesystem_storage(path)))
        return write_array(chunked(VALUES, (4, 5)), array, message="from a task")

    paths = [str(tmp_path / name) for name in ("one", "two")]
    for future in client.map(write, paths, pure=False):
        future.result(timeout=300)
    for path in paths:
        np.testing.assert_array_equal(committed(Repository.open(local_filesystem_storage(path)))[...], VALUES)


def test_write_array_without_a_client_uses_local_threads(repo: Repository, client: Any) -> None:
    _, array = begin_with(repo)
    _set_global_client(None)
    try:
        write_array(chunked(VALUES, (4, 5)), array, message="written")
    finally:
        _set_global_client(client)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)


@by_kind
def test_session_is_rebased_onto_a_commit_of_another_session(repo: Repository, kind: str) -> None:
    _, array = begin_with(repo, kind)
    commit_elsewhere(repo, np.s_[4:, :], 7)
    write_array(chunked(VALUES[:4], (4, 5)), array, region=np.s_[:4, :], message="ours", rebase_with=ConflictDetector())
    expected = VALUES.copy()
    expected[4:] = 7
    np.testing.assert_array_equal(committed(repo)[...], expected)
    assert messages(repo) == ["ours", "meanwhile", "an array"]


@by_kind
def test_conflict_keeps_the_uncommitted_changes(repo: Repository, kind: str) -> None:
    session, array = begin_with(repo, kind)
    commit_elsewhere(repo, np.s_[:4, :], 7)
    with pytest.raises(ConflictError):
        write_array(chunked(VALUES, (4, 5)), array, message="ours")
    assert messages(repo) == ["meanwhile", "an array"]
    assert session.has_uncommitted_changes
    np.testing.assert_array_equal(array[...], VALUES)
    session.rebase(BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs))
    session.commit("ours, later")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    assert messages(repo) == ["ours, later", "meanwhile", "an array"]
