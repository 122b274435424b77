"""Write dask arrays and xarray datasets to an Icechunk session from a cluster, in one commit or none."""

import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client, LocalCluster
from distributed.client import _set_global_client
from hypothesis import given, settings
from hypothesis import strategies as st
from icechunk import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    Repository,
    Session,
    VersionSelection,
    in_memory_storage,
    local_filesystem_storage,
)
from numpy.typing import NDArray

import parts_store as ps
from parts_store.cluster import write_array, write_dataset
from parts_store.errors import ClusterWriteError, ReadOnlySessionError, StoreConfigError
from tests.effort import examples

pytestmark = pytest.mark.slow

HEAD = (ps.Part(".head", size=100), ps.Part(""))
SHARDS = (ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX))
VALUES: NDArray[np.int32] = np.arange(1, 81, dtype="int32").reshape(8, 10)

# How an array is stored: its parts, and whether each part is a chunk of a node of its own.
KINDS: dict[str, tuple[tuple[ps.Part, ...] | None, bool]] = {
    "no parts": (None, False),
    "whole": (SHARDS, False),
    "split": (SHARDS, True),
}
by_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Any]:
    """Make a client of two threads of this process the current one."""
    arguments = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**arguments) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(str(tmp_path / "repository")))


def begin(repo: Repository) -> tuple[Session, ps.PartsStore]:
    """Return a writable session, and a store on it."""
    session = repo.writable_session("main")
    return session, ps.PartsStore.from_session(session)


def create(store: ps.PartsStore, kind: str = "no parts", name: str = "a", **more: Any) -> zarr.Array[Any]:
    """Create an array of shape (8, 10) in shards of (4, 5)."""
    arguments: dict[str, Any] = {"shape": (8, 10), "shards": (4, 5), "chunks": (2, 5), "dtype": "int32"} | more
    parts, split = KINDS[kind]
    if parts is None:
        return zarr.create_array(store, name=name, **arguments)
    return ps.create_array(store, name, parts=parts, split=split, **arguments)


def begin_with(repo: Repository, kind: str = "no parts", **more: Any) -> tuple[Session, zarr.Array[Any]]:
    """Commit an empty array, and return a new session with that array."""
    session, store = begin(repo)
    create(store, kind, **more)
    session.commit("an array")
    session, store = begin(repo)
    return session, zarr.open_array(store, path="a")


def committed(repo: Repository, name: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(ps.PartsStore.from_session(repo.readonly_session("main")), path=name, mode="r")


def messages(repo: Repository) -> list[str]:
    """Return the messages of all commits, newest first, without the initial commit."""
    return [each.message for each in repo.ancestry(branch="main")][:-1]


def chunked(values: Any, chunks: Any) -> Any:
    return dask.array.from_array(values, chunks=chunks)


def watched(path: Path) -> Any:
    """Return a dask array that creates a file when a block is computed."""

    def touch(block: NDArray[Any]) -> NDArray[Any]:
        path.touch()
        return block

    return chunked(VALUES, (4, 5)).map_blocks(touch, meta=VALUES[:0, :0])


def failing(values: NDArray[Any], chunks: Any, should_fail: Callable[[NDArray[Any]], bool]) -> Any:
    """Return a dask array with blocks that raise when they are computed."""

    def check(block: NDArray[Any]) -> NDArray[Any]:
        if should_fail(block):
            raise ArithmeticError(f"no block from {block.flat[0]}")
        return block

    return chunked(values, chunks).map_blocks(check, meta=values[:0, :0])


# --- arrays ---------------------------------------------------------------------------------------------------------


@by_kind
def test_write_array_makes_one_commit(repo: Repository, kind: str) -> None:
    session, store = begin(repo)
    array = create(store, kind)
    snapshot = write_array(chunked(VALUES, (4, 5)), array, message="written", metadata={"by": "a cluster"})
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    (newest, _) = repo.ancestry(branch="main")
    assert (newest.id, newest.message, newest.metadata) == (snapshot, "written", {"by": "a cluster"})
    assert not session.has_uncommitted_changes
    parts, _ = KINDS[kind]
    assert (committed(repo).store.parts_of("a") is None) == (parts is None)  # type: ignore[attr-defined] # a PartsStore


@by_kind
def test_earlier_changes_of_the_session_are_in_the_same_commit(repo: Repository, kind: str) -> None:
    _, array = begin_with(repo, kind)
    array[:4] = 7
    write_array(chunked(VALUES[4:], (4, 10)), array, region=np.s_[4:, :], message="written")
    expected = VALUES.copy()
    expected[:4] = 7
    np.testing.assert_array_equal(committed(repo)[...], expected)
    assert messages(repo) == ["written", "an array"]


@by_kind
@pytest.mark.parametrize("region", [np.s_[4:8, 5:10], np.s_[-4:, :], np.s_[4:4, :]])
def test_write_array_writes_the_region_only(repo: Repository, kind: str, region: tuple[slice, ...]) -> None:
    _, array = begin_with(repo, kind, fill_value=-1)
    expected = np.full((8, 10), -1, "int32")
    expected[region] = VALUES[region]
    write_array(chunked(VALUES[region], (4, 5)), array, region=region, message="written")
    np.testing.assert_array_equal(committed(repo)[...], expected)


@by_kind
@pytest.mark.parametrize("chunks", [(4, 5), (8, 5)])
def test_write_array_with_partial_edge_chunks(repo: Repository, kind: str, chunks: Any) -> None:
    values = VALUES[:7, :8]
    _, array = begin_with(repo, kind, shape=(7, 8))
    write_array(chunked(values, chunks), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], values)


def test_values_are_cast_to_the_dtype_of_the_target(repo: Repository) -> None:
    _, array = begin_with(repo, dtype="uint8")
    write_array(chunked(VALUES + 0.75, (4, 5)), array, message="written")
    assert committed(repo).dtype == np.dtype("uint8")
    np.testing.assert_array_equal(committed(repo)[...], VALUES.astype("uint8"))


def test_write_array_of_strings(repo: Repository) -> None:
    words = np.array(["", "one", "zwölf", "a" * 1000], dtype=object)
    _, array = begin_with(repo, shape=(4,), chunks=(2,), shards=None, dtype="str")
    write_array(chunked(words, 2), array, message="written")
    np.testing.assert_array_equal(np.asarray(committed(repo)[...]), words)


@pytest.mark.parametrize("parts", [None, [ps.Part("", size=4), ps.Part(".tail")]])
def test_write_array_without_dimensions(repo: Repository, parts: list[ps.Part] | None) -> None:
    _, store = begin(repo)
    arguments: dict[str, Any] = {"shape": (), "dtype": "int64"}
    if parts is None:
        array = zarr.create_array(store, name="a", **arguments)
    else:
        array = ps.create_array(store, "a", parts=parts, **arguments)
    write_array(dask.array.asarray(np.int64(7)), array, message="written")
    assert committed(repo)[()] == 7


@pytest.mark.parametrize("chunks", [(4, 5), (1, 3)])
def test_write_array_without_elements_makes_a_commit(repo: Repository, chunks: tuple[int, int]) -> None:
    _, array = begin_with(repo, "split", shape=(0, 10))
    write_array(dask.array.zeros((0, 10), chunks=chunks), array, message="nothing", align_chunks=True)
    assert np.asarray(committed(repo)[...]).shape == (0, 10)
    assert messages(repo) == ["nothing", "an array"]


def test_write_array_at_the_root_path(repo: Repository) -> None:
    _, store = begin(repo)
    array = zarr.create_array(store, shape=(8, 10), chunks=(4, 5), dtype="int32")
    with pytest.raises(ClusterWriteError) as caught:
        write_array(failing(VALUES, (4, 10), lambda block: block[0, 0] == 1), array, message="not this")
    assert caught.value.array == "/"
    assert [region for region, _ in caught.value.failed] == ["/[0:4, 0:10]"]
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(committed(repo, "")[...], VALUES)


def test_write_array_with_rectilinear_chunks(repo: Repository) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        _, array = begin_with(repo, chunks=[[3, 1, 4], [4, 6]], shards=None)
        with pytest.raises(StoreConfigError, match="align_chunks"):
            write_array(chunked(VALUES, (4, 5)), array, message="not this")
        write_array(chunked(VALUES, ((4, 4), (4, 6))), array, message="written")
        np.testing.assert_array_equal(committed(repo)[...], VALUES)
        session, store = begin(repo)
        again = zarr.open_array(store, path="a")
        write_array(chunked(VALUES + 1, (2, 5)), again, message="aligned", align_chunks=True)
        np.testing.assert_array_equal(committed(repo)[...], VALUES + 1)
        assert not session.has_uncommitted_changes


def test_write_array_follows_write_empty_chunks(repo: Repository) -> None:
    session, store = begin(repo)
    create(store, "no parts", "dropped", config={"write_empty_chunks": False})
    create(store, "no parts", "kept", config={"write_empty_chunks": True})
    session.commit("arrays")
    kept = {}
    for name, keep in (("dropped", False), ("kept", True)):
        _, store = begin(repo)
        array = zarr.open_array(store, path=name, config={"write_empty_chunks": keep})
        write_array(dask.array.zeros((8, 10), chunks=(4, 5)), array, message=name)
        kept[name] = committed(repo, name).nchunks_initialized
    assert kept == {"dropped": 0, "kept": 8}


def test_padding_functions_are_sent_to_the_workers(repo: Repository) -> None:
    # A lambda, which `pickle` alone cannot serialize.
    codec = ps.codecs.pad_codec(nbytes=4, padding_func=lambda chunk: len(chunk).to_bytes(4, "little"))
    _, store = begin(repo)
    array = create(store, compressors=[codec], shards=None, chunks=(4, 5))
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)


def test_write_array_from_another_store_on_the_session(repo: Repository) -> None:
    _, store = begin(repo)
    create(store)
    array = zarr.open_array(store.with_parts({"*": SHARDS}).with_read_only(read_only=False), path="a")
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)


def test_open_array_reads_the_new_values_after_the_commit(repo: Repository) -> None:
    session, array = begin_with(repo, "split", fill_value=-1)
    np.testing.assert_array_equal(array[...], np.full((8, 10), -1))
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(array[...], VALUES)
    assert session.read_only


# --- alignment of chunks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(2, 5), (3, 5), (4, 4), ((4, 1, 3), (5, 5)), ((4, 4), (5, 1, 4))])
def test_misaligned_chunks_are_refused_or_aligned(repo: Repository, chunks: Any) -> None:
    session, array = begin_with(repo)
    with pytest.raises(StoreConfigError, match="align_chunks"):
        write_array(chunked(VALUES, chunks), array, message="not this")
    assert not session.has_uncommitted_changes
    write_array(chunked(VALUES, chunks), array, message="aligned", align_chunks=True)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    assert messages(repo) == ["aligned", "an array"]


def test_region_that_cuts_chunks_is_refused(repo: Repository) -> None:
    _, array = begin_with(repo)
    for region in (np.s_[1:5, :], np.s_[:, 0:9], np.s_[:2, :]):
        with pytest.raises(StoreConfigError, match="region of 'a'"):
            write_array(chunked(VALUES[region], -1), array, region=region, message="not this", align_chunks=True)
    assert messages(repo) == ["an array"]


sizes_of = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


def touches_twice(sizes: Sequence[int], step: int) -> bool:
    """Return whether two dask chunks have elements in the same chunk of `step` elements."""
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    return any(len(set(owners[start : start + step])) > 1 for start in range(0, len(owners), step))


@pytest.fixture(scope="module")
def shared_repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository.create(local_filesystem_storage(str(tmp_path_factory.mktemp("shared"))))


names = (f"a{number}" for number in itertools.count())


@settings(max_examples=examples(20))
@given(rows=sizes_of, columns=sizes_of, steps=st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_any_chunks_are_written_unchanged_or_aligned(
    shared_repo: Repository, rows: list[int], columns: list[int], steps: tuple[int, int]
) -> None:
    _, store = begin(shared_repo)
    name, shape = next(names), (sum(rows), sum(columns))
    values = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape)
    array = zarr.create_array(store, name=name, shape=shape, chunks=steps, dtype=values.dtype)
    source = chunked(values, (tuple(rows), tuple(columns)))
    if touches_twice(rows, steps[0]) or touches_twice(columns, steps[1]):
        with pytest.raises(StoreConfigError, match="align_chunks"):
            write_array(source, array, message="not this")
        counts: list[int] = []
        write_array(source, array, message="aligned", align_chunks=True, progress=lambda _, total: counts.append(total))
        # Aligning merges chunks, but not more than necessary.
        assert counts[0] <= len(rows) * len(columns)
    else:
        write_array(source, array, message="as it is")
    np.testing.assert_array_equal(committed(shared_repo, name)[...], values)


# --- refused arguments ----------------------------------------------------------------------------------------------


def test_read_only_session_is_refused_before_any_task_runs(repo: Repository, tmp_path: Path) -> None:
    session, array = begin_with(repo)
    ran = tmp_path / "ran"
    reading = ps.PartsStore.from_session(repo.readonly_session("main"))
    twin = array.store.with_read_only(read_only=True)
    for each in (reading, twin):
        with pytest.raises(ReadOnlySessionError):
            write_array(watched(ran), zarr.open_array(each, path="a", mode="r"), message="not this")
        with pytest.raises(ReadOnlySessionError):
            write_dataset(xarray.Dataset({"b": (("y", "x"), watched(ran))}), each, message="not this")  # type: ignore[arg-type] # a PartsStore
    array[:1] = 1
    session.commit("by hand")
    with pytest.raises(ReadOnlySessionError):
        write_array(watched(ran), array, message="not this")
    with pytest.raises(ReadOnlySessionError):
        write_dataset(xarray.Dataset(), array.store, message="not this")  # type: ignore[arg-type] # a PartsStore
    moving = ps.PartsStore.from_session(repo.rearrange_session("main"))
    with pytest.raises(ReadOnlySessionError):
        write_dataset(xarray.Dataset(), moving, message="not this")
    assert not ran.exists()
    assert messages(repo) == ["by hand", "an array"]


def test_fork_is_refused_because_it_cannot_be_committed(repo: Repository, tmp_path: Path) -> None:
    session, _ = begin_with(repo)
    fork = ps.PartsStore.from_session(session.fork())
    with pytest.raises(StoreConfigError, match="fork"):
        write_array(watched(tmp_path / "ran"), zarr.open_array(fork, path="a"), message="not this")
    assert not (tmp_path / "ran").exists()


def test_wrong_target_source_or_region_is_refused(repo: Repository) -> None:
    session, array = begin_with(repo)
    source = chunked(VALUES, (4, 5))
    in_memory = zarr.create_array({}, shape=(8, 10), dtype="int32")
    in_objects = zarr.create_array(ps.PartsStore.from_url("memory://"), shape=(8, 10), dtype="int32")
    for target in (None, VALUES, array.async_array, in_memory, in_objects, array.store):
        with pytest.raises(StoreConfigError):
            write_array(source, target, message="not this")  # type: ignore[arg-type] # on purpose
    unknown = source[source[:, 0] > -1]
    for wrong in (VALUES, None, source[:4], source[None], unknown, xarray.DataArray(source)):
        with pytest.raises(StoreConfigError, match="source for 'a'"):
            write_array(wrong, array, message="not this", align_chunks=True)
    for region in (slice(None), [slice(None)], np.s_[::2, :], np.s_[0, :], 3, np.s_[...]):
        with pytest.raises(StoreConfigError, match="region"):
            write_array(source, array, region=region, message="not this")  # type: ignore[arg-type] # on purpose
    for client in ("127.0.0.1:8786", object()):
        with pytest.raises(StoreConfigError, match="client"):
            write_array(source, array, client=client, message="not this")
    for store in (None, session, session.store, ps.PartsStore.from_url("memory://")):
        with pytest.raises(StoreConfigError, match="store"):
            write_dataset(xarray.Dataset(), store, message="not this")  # type: ignore[arg-type] # on purpose
    for dataset in (None, VALUES, source, {"a": VALUES}):
        with pytest.raises(StoreConfigError, match="dataset"):
            write_dataset(dataset, array.store, message="not this")  # type: ignore[arg-type] # on purpose
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["an array"]


def test_masked_array_is_refused(repo: Repository) -> None:
    session, array = begin_with(repo)
    source = chunked(np.ma.masked_greater(VALUES, 40), (4, 5))
    with pytest.raises(StoreConfigError, match="mask"):
        write_array(source, array, message="not this")
    assert not session.has_uncommitted_changes
    write_array(dask.array.ma.filled(source, -1), array, message="filled")
    np.testing.assert_array_equal(committed(repo)[...], np.where(VALUES > 40, -1, VALUES))


async def test_asynchronous_client_is_refused(repo: Repository) -> None:
    _, array = begin_with(repo)
    async with Client(processes=False, dashboard_address=":0", asynchronous=True, set_as_default=False) as client:
        with pytest.raises(StoreConfigError, match="asynchronous"):
            write_array(chunked(VALUES, (4, 5)), array, client=client, message="not this")


@pytest.mark.parametrize("missing", ["dask", "distributed"])
def test_missing_package_error_names_the_extra(repo: Repository, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, array = begin_with(repo)
    source = chunked(VALUES, (4, 5))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"needs {missing}: install parts_store\[dask\]"):
        write_array(source, array, message="not this")
    assert not session.has_uncommitted_changes


def test_dataset_in_memory_is_written_without_dask(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = begin(repo)
    monkeypatch.setitem(sys.modules, "distributed", None)
    write_dataset(xarray.Dataset({"a": (("y", "x"), VALUES)}), store, message="written")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)


def test_repository_in_memory_fails_and_keeps_the_session() -> None:
    repo = Repository.create(in_memory_storage())
    session, array = begin_with(repo, shards=None, chunks=(400, 500), shape=(800, 1000))
    values = np.random.default_rng(0).integers(0, 1 << 30, (800, 1000))
    with pytest.raises(ClusterWriteError):
        write_array(chunked(values, (400, 500)), array, message="not this")
    assert not session.has_uncommitted_changes


# --- failures -------------------------------------------------------------------------------------------------------


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
        if block.size:
            (tmp_path / str(block.flat[0])).touch()
            time.sleep(0.03)
        return block

    def interrupt(done: int, _: int) -> None:
        if done == 3:
            raise error

    values = np.arange(1, 1601, dtype="int32").reshape(160, 10)
    source = chunked(values, (4, 10)).map_blocks(slow, meta=values[:0])
    with pytest.raises(error):
        write_array(source, array, message="not this", progress=interrupt)
    before = time.monotonic()
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) and time.monotonic() - before < 5:
        time.sleep(0.02)
    assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) < 40
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["an array"]


def test_write_array_inside_dask_tasks_does_not_deadlock(client: Any, tmp_path: Path) -> None:
    def write(path: str) -> str:
        _, array = begin_with(Repository.create(local_filesystem_storage(path)))
        return write_array(chunked(VALUES, (4, 5)), array, message="from a task")

    paths = [str(tmp_path / name) for name in ("one", "two")]
    for future in client.map(write, paths, pure=False):
        future.result(timeout=15)
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


# --- progress -------------------------------------------------------------------------------------------------------


def test_progress_is_called_once_per_task(repo: Repository) -> None:
    _, array = begin_with(repo)
    told: list[tuple[int, int]] = []
    write_array(chunked(VALUES, (4, 5)), array, message="written", progress=lambda *each: told.append(each))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_progress_counts_failed_tasks(repo: Repository) -> None:
    _, array = begin_with(repo)
    told: list[tuple[int, int]] = []
    source = failing(VALUES, (4, 5), lambda block: bool((block == 1).any()))
    with pytest.raises(ClusterWriteError):
        write_array(source, array, message="not this", progress=lambda *each: told.append(each))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_progress_true_shows_a_bar(repo: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    _, array = begin_with(repo)
    write_array(chunked(VALUES, (4, 5)), array, message="written", progress=True)
    assert "4/4" in capsys.readouterr().err
    session, store = begin(repo)
    write_array(chunked(VALUES, (4, 5)), zarr.open_array(store, path="a"), message="in silence")
    assert "4/4" not in capsys.readouterr().err
    assert session.read_only


# --- commits of other sessions --------------------------------------------------------------------------------------


def commit_elsewhere(repo: Repository, region: Any, value: int) -> None:
    """Write and commit in another session."""
    session, store = begin(repo)
    zarr.open_array(store, path="a")[region] = value
    session.commit("meanwhile")


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


def test_conflict_solver_decides_about_chunks_both_wrote(repo: Repository) -> None:
    _, array = begin_with(repo, "split")
    commit_elsewhere(repo, np.s_[:4, :], 7)
    theirs = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    write_array(chunked(VALUES, (4, 5)), array, message="ours", rebase_with=theirs)
    expected = VALUES.copy()
    expected[:4] = 7
    np.testing.assert_array_equal(committed(repo)[...], expected)


# --- datasets -------------------------------------------------------------------------------------------------------


def dataset(days: int = 6, start: str = "2026-01-01") -> xarray.Dataset:
    """Return a dataset with packed numbers, times, missing values and text, in memory and as dask arrays."""
    random = np.random.default_rng(days)
    times = np.datetime64(start, "ns") + np.arange(days) * np.timedelta64(1, "D")
    packed = np.round(random.uniform(250, 300, (days, 10)), 1)
    packed[0, 0] = np.nan
    variables = {
        "packed": (("time", "x"), packed, {"units": "K"}),
        "seen": (("time",), times + np.timedelta64(90, "m")),
        "flag": (("x",), np.arange(10) % 3 == 0),
        "total": ((), 7.5),
    }
    coords = {"time": times, "x": np.arange(10), "place": ("x", np.array(list("abcdefghij")))}
    return xarray.Dataset(variables, coords, {"title": "a dataset"}).chunk(time=3, x=5)


ENCODING: dict[str, dict[str, Any]] = {
    "packed": {"dtype": "int16", "scale_factor": 0.1, "add_offset": 250.0, "_FillValue": -32768, "chunks": (3, 5)},
    "seen": {"units": "minutes since 2026-01-01", "dtype": "int64", "chunks": (3,)},
    "time": {"units": "hours since 2025-12-31", "dtype": "int32", "chunks": (3,)},
}


def reference(*steps: Callable[[Any], Any]) -> Any:
    """Return the memory store that xarray alone writes in these steps."""
    store = zarr.storage.MemoryStore()
    with dask.config.set(scheduler="synchronous"):
        for step in steps:
            step(store)
    return store


def assert_same(repo: Repository, expected: Any, group: str | None = None) -> None:
    """Assert that the commit equals what xarray alone writes, both decoded and as stored."""
    store = ps.PartsStore.from_session(repo.readonly_session("main"))
    for options in ({}, {"decode_cf": False}):
        arguments: dict[str, Any] = {"group": group, "consolidated": False, "chunks": None, **options}
        with xarray.open_zarr(store, **arguments) as found, xarray.open_zarr(expected, **arguments) as wanted:
            xarray.testing.assert_identical(found.load(), wanted.load())
            for name in wanted.variables:
                assert found[name].dtype == wanted[name].dtype


@pytest.mark.parametrize(("kind", "group"), [("no parts", None), ("whole", "some/where"), ("split", None)])
def test_write_dataset_equals_to_zarr(repo: Repository, kind: str, group: str | None) -> None:
    parts, split = (None, False) if kind == "no parts" else ((ps.Part("", size=4), ps.Part(".tail")), kind == "split")
    session, store = begin(repo)
    if parts is not None:
        store = store.with_parts({"*packed": parts, "*seen": parts, "*total": parts}, split=split)
    data = dataset()
    write_dataset(data, store, message="written", group=group, encoding=ENCODING, metadata={"n": 1})
    plain: Any = {"encoding": ENCODING, "group": group, "consolidated": False}
    assert_same(repo, reference(lambda each: data.to_zarr(each, **plain)), group)
    assert messages(repo) == ["written"]
    assert next(iter(repo.ancestry(branch="main"))).metadata == {"n": 1}
    reading = ps.PartsStore.from_session(repo.readonly_session("main"))
    folder = "" if group is None else f"{group}/"
    with_parts = {name for name in data.variables if reading.parts_of(f"{folder}{name}") is not None}
    assert with_parts == (set() if parts is None else {"packed", "seen", "total"})
    assert not session.has_uncommitted_changes


def test_write_dataset_appends_along_a_dimension(repo: Repository) -> None:
    first, second = dataset(), dataset(5, "2026-01-07").drop_vars(["flag", "total", "place"])
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    _, store = begin(repo)
    write_dataset(second, store, message="second", append_dim="time")

    def append(store: Any) -> Any:
        return second.to_zarr(store, append_dim="time", consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), append))
    assert messages(repo) == ["second", "first"]


@pytest.mark.parametrize("region", [{"time": slice(3, 6)}, "auto", {"time": "auto", "x": slice(0, 10)}])
def test_write_dataset_writes_a_region(repo: Repository, region: Any) -> None:
    first = dataset()
    second = (first.isel(time=slice(3, 6))[["packed"]] + 1).drop_vars("place")
    if region != "auto":
        second = second.drop_vars("x")
    if isinstance(region, dict) and region["time"] != "auto":
        second = second.drop_vars("time")
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    _, store = begin(repo)
    write_dataset(second, store, message="second", region=region)

    def update(store: Any) -> Any:
        return second.to_zarr(store, region=region, consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), update))


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_write_dataset_replaces_a_dataset(repo: Repository, mode: Any) -> None:
    first, second = dataset(), dataset()
    second["packed"] = second["packed"] + 2
    if mode != "r+":
        second["more"] = second["packed"].mean("x")
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    session, store = begin(repo)
    with pytest.raises(FileExistsError):
        write_dataset(second, store, message="not this")
    assert not session.has_uncommitted_changes
    write_dataset(second, store, message="second", mode=mode)

    def write(store: Any) -> Any:
        return second.to_zarr(store, mode=mode, consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), write))
    assert messages(repo) == ["second", "first"]


@pytest.mark.parametrize("name", [None, "given", "x"])
def test_write_dataset_of_a_data_array(repo: Repository, name: str | None) -> None:
    array = xarray.DataArray(VALUES, dims=("y", "x"), coords={"x": np.arange(10)}, name=name, attrs={"units": "m"})
    _, store = begin(repo)
    write_dataset(array.chunk(y=4), store, message="written")
    reading = ps.PartsStore.from_session(repo.readonly_session("main"))
    arguments: dict[str, Any] = {"engine": "zarr", "consolidated": False}
    with xarray.open_dataarray(reading, **arguments) as opened:  # type: ignore[arg-type] # a store, as zarr takes it
        xarray.testing.assert_identical(opened.load(), array)


def test_names_that_xarray_refuses_are_refused(repo: Repository) -> None:
    session, store = begin(repo)
    with pytest.raises(ValueError, match="name"):
        write_dataset(xarray.Dataset({"": ("x", VALUES[0])}), store, message="not this")
    assert not session.has_uncommitted_changes


def test_misaligned_dataset_is_refused_or_aligned(repo: Repository) -> None:
    data = dataset().chunk(time=2)
    session, store = begin(repo)
    with pytest.raises(StoreConfigError, match="align_chunks"):
        write_dataset(data, store, message="not this", encoding=ENCODING)
    assert not session.has_uncommitted_changes
    write_dataset(data, store, message="aligned", encoding=ENCODING, align_chunks=True)
    plain: Any = {"encoding": ENCODING, "consolidated": False, "align_chunks": True}
    assert_same(repo, reference(lambda each: data.to_zarr(each, **plain)))


@pytest.mark.parametrize("split", [False, True])
def test_failed_dataset_leaves_the_session_unchanged(repo: Repository, *, split: bool) -> None:
    first = dataset()
    parts = (ps.Part("", size=4), ps.Part(".tail"))
    session, store = begin(repo)
    write_dataset(first, store.with_parts({"packed": parts}, split=split), message="first", encoding=ENCODING)
    session, store = begin(repo)
    broken = first.copy()
    broken["packed"] = (("time", "x"), failing(first["packed"].values, (3, 5), lambda block: block.shape == (3, 5)))
    with pytest.raises(ClusterWriteError) as caught:
        write_dataset(broken, store, message="not this", mode="w", encoding=ENCODING)
    failed = ["packed[0:3, 0:5]", "packed[0:3, 5:10]", "packed[3:6, 0:5]", "packed[3:6, 5:10]"]
    assert [region for region, _ in caught.value.failed] == failed
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["first"]
    # The store shows the committed state again, and can be written to.
    with xarray.open_zarr(store, consolidated=False, chunks=None) as opened:
        assert (opened["packed"].shape, store.parts_of("packed")) == ((6, 10), ps.ConcatParts(parts))
    write_dataset(first, store, message="second", mode="w", encoding=ENCODING)
    assert store.parts_of("packed") is None
    assert messages(repo) == ["second", "first"]


def test_failed_dataset_keeps_earlier_changes(repo: Repository) -> None:
    _, store = begin(repo)
    create(store)[...] = VALUES
    broken = dataset()
    broken["packed"] = (("time", "x"), failing(broken["packed"].values, (3, 5), lambda block: block.shape == (3, 5)))
    with pytest.raises(ClusterWriteError):
        write_dataset(broken, store, message="not this", group="data")
    assert messages(repo) == []
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], VALUES)
    write_dataset(dataset(), store, message="written", group="data", mode="w", encoding=ENCODING)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    plain: Any = {"encoding": ENCODING, "group": "data", "consolidated": False}
    assert_same(repo, reference(lambda each: dataset().to_zarr(each, **plain)), "data")


def test_dataset_conflict_keeps_the_uncommitted_changes(repo: Repository) -> None:
    begin_with(repo)
    session, store = begin(repo)
    commit_elsewhere(repo, np.s_[...], 7)
    with pytest.raises(ConflictError):
        write_dataset(dataset(), store, message="ours", group="data", encoding=ENCODING)
    assert session.has_uncommitted_changes
    session.rebase(ConflictDetector())
    session.commit("ours, later")
    plain: Any = {"encoding": ENCODING, "group": "data", "consolidated": False}
    assert_same(repo, reference(lambda each: dataset().to_zarr(each, **plain)), "data")
    assert messages(repo) == ["ours, later", "meanwhile", "an array"]
