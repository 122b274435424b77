"""Sessions, targets and sources that cannot be used are refused before any task runs."""

import sys
from pathlib import Path

import dask.array
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client
from icechunk import Repository, in_memory_storage

import parts_store as ps
from parts_store.cluster import write_array, write_dataset
from parts_store.errors import ClusterWriteError, ReadOnlySessionError, StoreConfigError
from tests.cluster.arrays import VALUES, begin, begin_with, chunked, committed, messages, watched

pytestmark = pytest.mark.slow


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
    with pytest.raises(ImportError, match=rf"needs {missing}: pip install 'parts_store\[dask\]'"):
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
