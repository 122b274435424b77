"""A copy on an executor is the same copy: complete, compared, and removed again if it fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import icechunk
import obstore
import pytest
from distributed import Client, LocalCluster

import parts_store as ps
from parts_store.copying import plan
from parts_store.errors import ConcurrentWriteError, StoreConfigError
from tests.copying.places import CHUNKS, Place, chunks_in, fill, new_place, require_filled
from tests.copying.watched import new_watched


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_BATCH", 2)


def place_of(kind: str, folder: Path) -> Place:
    """A place that other processes can open, too: repositories are on the local disk."""
    if kind not in ("session", "read-only session"):
        return new_place(kind, folder)
    where = folder / f"repository-{len(list(folder.iterdir()))}"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(where)))
    session = repository.writable_session("main")
    return Place(ps.PartsStore.from_session(session), lambda: chunks_in(session), session, repository)


def filled(kind: str, folder: Path) -> ps.PartsStore:
    source = place_of(kind, folder)
    fill(source.store)
    if kind != "read-only session":
        return source.store
    source.session.commit("filled")
    return ps.PartsStore.from_session(source.repository.readonly_session("main"))


def check_copy(source_kind: str, destination_kind: str, folder: Path, executor: Any) -> None:
    """Copy on the executor, and compare everything that is stored with a copy of this process."""
    source = filled(source_kind, folder)
    expected, destination = place_of(destination_kind, folder), place_of(destination_kind, folder)
    seen: list[tuple[int, int]] = []
    same = ps.copy(source, expected.store, to="x")
    found = ps.copy(source, destination.store, to="x", executor=executor, progress=lambda *each: seen.append(each))
    assert found == same
    assert destination.raw() == expected.raw()
    require_filled(destination.store, "x")
    assert (seen[0], seen[-1]) == ((0, len(CHUNKS)), (len(CHUNKS), len(CHUNKS)))
    # Two shards, two chunks of an array ... in each of seven tasks.
    assert len(seen) == 1 + 6
    if destination.session is not None:
        destination.session.commit("copied")
        require_filled(ps.PartsStore.from_session(destination.repository.readonly_session("main")), "x")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("destination", ["memory", "disk", "session"])
@pytest.mark.parametrize("source", ["memory", "session", "read-only session"])
def test_copy_on_threads_is_the_same(source: str, destination: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as executor:
        check_copy(source, destination, tmp_path, executor)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "destination"), [("disk", "session"), ("read-only session", "disk")])
def test_copy_on_a_dask_cluster_is_the_same(source: str, destination: str, tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        check_copy(source, destination, tmp_path, client)
        (tmp_path / "again").mkdir()
        check_copy(source, destination, tmp_path / "again", "dask")


@pytest.mark.parametrize("fails_at", [1, 3, 9])
def test_failed_copy_on_threads_leaves_nothing(source: Place, fails_at: int, tmp_path: Path) -> None:
    destination = new_watched("memory", tmp_path, fails_at=fails_at)
    with ThreadPoolExecutor(3) as executor, pytest.raises(OSError, match="the disk is full"):
        ps.copy(source.store, destination.store, to="x", executor=executor)
    assert destination.raw() == {}


def test_chunk_that_vanishes_is_an_error_and_the_session_keeps_no_chunks(source: Place, tmp_path: Path) -> None:
    destination = place_of("session", tmp_path)

    def remove(done: int, total: int) -> None:
        obstore.delete(source.store.store, ["two/c/3"])

    with ThreadPoolExecutor(2) as executor, pytest.raises(ConcurrentWriteError, match="two/c/3"):
        ps.copy(source.store, destination.store, progress=remove, executor=executor)
    assert not [key for key in destination.raw() if not key.endswith("zarr.json")]
    assert chunks_in(destination.repository.readonly_session("main")) == {}


def test_a_fork_is_not_a_destination_for_an_executor(source: Place, tmp_path: Path) -> None:
    destination = place_of("session", tmp_path)
    fork = ps.PartsStore.from_session(destination.session.fork())
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(StoreConfigError, match=r"destination: .* a fork of a session"),
    ):
        ps.copy(source.store, fork, executor=executor)
