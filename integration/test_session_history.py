"""Icechunk's guarantees, for arrays in parts, of a repository on a real S3 server: conflicts, forks, references."""

import io
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import (
    BasicConflictSolver,
    ForkSession,
    RepositoryConfig,
    Session,
    VersionSelection,
    VirtualChunkContainer,
    containers_credentials,
    local_filesystem_store,
    s3_credentials,
    s3_storage,
    s3_store,
)
from icechunk import Repository as Icechunk
from icechunk.credentials import LocalFileSystemAccess
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from integration.conftest import Bucket
from parts_store.errors import SessionError
from tests.sessions.histories import (
    CHUNK,
    INTERLEAVINGS,
    KINDS,
    PLAIN,
    SOLVERS,
    Scene,
    commit,
    look,
    marked,
    pairs,
    raw_chunks,
)

KIND = KINDS["split, 3 parts"]
USE_OURS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
FILE = "files/some file.h5"


def repository(bucket: Bucket, name: str = "repo", *, files: Path | None = None, authorized: bool = True) -> Icechunk:
    """Create a repository in the bucket that may reference `files/` there and a local folder."""
    server = bucket.server
    keys: dict[str, Any] = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    remote: dict[str, Any] = {"region": "us-east-1", "endpoint_url": server.endpoint}
    remote |= {"allow_http": True, "force_path_style": True}
    prefix = f"s3://{bucket.name}/files/"
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, s3_store(**remote, s3_compatible=True)))
    credentials: dict[str, Any] = {prefix: s3_credentials(**keys)}
    if files is not None:
        local = f"file://{files}/"
        config.set_virtual_chunk_container(VirtualChunkContainer(local, local_filesystem_store(str(files))))
        credentials[local] = LocalFileSystemAccess
    return Icechunk.open_or_create(
        s3_storage(bucket=bucket.name, prefix=name, **remote, **keys),
        config=config,
        authorize_virtual_chunk_access=containers_credentials(credentials) if authorized else None,
    )


def begin(repo: Icechunk) -> tuple[Session, ps.PartsStore]:
    session = repo.writable_session("main")
    return session, ps.PartsStore.from_session(session)


def started(repo: Icechunk, *, chunks: int = 4) -> str:
    """Commit an array `a` of the given number of chunks, and return the snapshot."""
    session, store = begin(repo)
    KIND.create(store, shape=(chunks * CHUNK,))[:] = marked(0, chunks * CHUNK)
    return commit(session)


def values(repo: Icechunk) -> Any:
    return look(repo.readonly_session("main"))[:]


def write(store: ps.PartsStore, number: int, mark: int) -> None:
    zarr.open_array(store, path="a")[number * CHUNK : (number + 1) * CHUNK] = marked(mark)


def chunks_of(bucket: Bucket) -> int:
    return sum(key.startswith("repo/chunks/") for key in bucket.list_keys())


# --- conflicts and forks --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_conflicts_within_a_chunk_end_as_without_parts(bucket: Bucket, tmp_path: Path) -> None:
    scenes = [Scene(kind, repository(bucket, name, files=tmp_path), tmp_path) for name, kind in _TWO.items()]
    some = ("overwrite a chunk", "write a part of a chunk", "delete a chunk", "refer to a file", "delete the array")
    for (first, second), solver in itertools.product(pairs(some), ("none", "UseOurs, delete", "UseTheirs, delete")):
        plain, found = [scene.play(first, second, SOLVERS[solver], INTERLEAVINGS[0]) for scene in scenes]
        assert found == plain, (first, second, solver)
    assert scenes[1].cases == 75


_TWO = {"plain": PLAIN, "split": KIND}


def test_writers_that_commit_at_once_leave_every_chunk_whole(bucket: Bucket) -> None:
    repo = repository(bucket)
    writers, rounds = 4, 3
    started(repo, chunks=writers + 1)
    together = threading.Barrier(writers)

    def work(writer: int) -> None:
        for each in range(rounds):
            session, store = begin(repo)
            together.wait()
            # The first is everybody's, and one more each writer's own.
            write(store, 0, 1000 * (writer + 1))
            write(store, writer + 1, 1000 * (writer + 1) + 100 * each)
            session.commit("by one of several", rebase_with=USE_OURS)

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(work, range(writers)))
    found = values(repo)
    assert any(np.array_equal(found[:CHUNK], marked(1000 * (writer + 1))) for writer in range(writers))
    for writer in range(writers):
        own = found[(writer + 1) * CHUNK : (writer + 2) * CHUNK]
        assert np.array_equal(own, marked(1000 * (writer + 1) + 100 * (rounds - 1)))
    session = repo.readonly_session("main")
    for number, parts in raw_chunks(session, KIND).items():
        whole = b"".join(part or b"" for part in parts)
        assert whole == found[number * CHUNK : (number + 1) * CHUNK].tobytes()
    assert ps.PartsStore.from_session(session).verify().is_clean


def write_in_fork(store: ps.PartsStore, number: int, mark: int) -> ForkSession:
    """Write one chunk that no other process writes, and one that all processes write."""
    write(store, 0, mark)
    write(store, number, mark)
    fork: ForkSession = store.session
    return fork


def test_forks_in_other_processes_are_merged_chunk_by_chunk(bucket: Bucket) -> None:
    repo = repository(bucket)
    started(repo)
    session = repo.writable_session("main")
    stores = [ps.PartsStore.from_session(session.fork()) for _ in range(3)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        forks = list(processes.map(write_in_fork, stores, (1, 2, 3), (1000, 2000, 3000)))
    session.merge(*forks)
    commit(session)
    expected = [marked(3000), marked(1000), marked(2000), marked(3000)]
    assert np.array_equal(values(repo), np.concatenate(expected))
    assert ps.PartsStore.from_session(repo.readonly_session("main")).verify().is_clean


def test_garbage_collection_keeps_exactly_the_reachable_parts(bucket: Bucket) -> None:
    repo = repository(bucket)
    first = started(repo)
    repo.create_tag("first", first)
    for mark in (1000, 2000):
        session, store = begin(repo)
        write(store, 0, mark)
        commit(session)
    # Four chunks of three parts, and twice one.
    assert chunks_of(bucket) == 12 + 3 + 3
    later = datetime.now(UTC) + timedelta(days=1)
    repo.expire_snapshots(older_than=later)
    repo.garbage_collect(later)
    assert chunks_of(bucket) == 12 + 3
    assert np.array_equal(look(repo.readonly_session(tag="first"))[:], marked(0, 32))
    assert np.array_equal(values(repo), [*marked(2000), *range(8, 32)])


def test_moved_arrays_and_old_snapshots_have_their_parts(bucket: Bucket) -> None:
    repo = repository(bucket)
    before = started(repo)
    moving = repo.rearrange_session("main")
    moving.move("/a", "/b")
    commit(moving)
    session, store = begin(repo)
    array = zarr.open_array(store, path="b")
    array[5:20] = 7
    array.resize((16,))
    commit(session)
    assert np.array_equal(look(repo.readonly_session("main"), "b")[:], [*range(5), *[7] * 11])
    assert np.array_equal(look(repo.readonly_session(snapshot_id=before))[:], marked(0, 32))


# --- references -----------------------------------------------------------------------------------------------------

DATA = marked(1000).tobytes()


def put_file(bucket: Bucket, content: bytes) -> None:
    bucket.client.put_object(bucket.name, FILE, io.BytesIO(content), len(content))


def refer(bucket: Bucket, checksum: str | datetime | None, *, before: int = 8) -> list[bytes | ps.Reference]:
    """Return the parts of a chunk whose main part is in a file of the bucket."""
    location = f"s3://{bucket.name}/{FILE.replace(' ', '%20')}"
    return [DATA[:8], ps.Reference(location, before, len(DATA) - 16, checksum), DATA[-8:]]


@pytest.fixture
def referring(bucket: Bucket) -> Icechunk:
    """Create a repository, and a file in the same bucket with the main part of a chunk."""
    put_file(bucket, b"\x89HDF\r\n\x1a\n" + DATA[8:-8] + b"something else")
    repo = repository(bucket)
    started(repo)
    return repo


def _modified(bucket: Bucket) -> datetime:
    modified = bucket.client.stat_object(bucket.name, FILE).last_modified
    assert modified is not None
    return modified


CHECKSUMS: dict[str, Callable[[Bucket], str | datetime | None]] = {
    "none": lambda bucket: None,
    "time": _modified,
    "etag": lambda bucket: bucket.client.stat_object(bucket.name, FILE).etag,
    "etag in quotes": lambda bucket: f'"{bucket.client.stat_object(bucket.name, FILE).etag}"',
}
DAMAGES: dict[str, Callable[[Bucket], None]] = {
    "changed": lambda bucket: put_file(bucket, bytes(38)),
    "shorter": lambda bucket: put_file(bucket, bucket.read(FILE)[:12]),
    "empty": lambda bucket: put_file(bucket, b""),
    "deleted": lambda bucket: bucket.client.remove_object(bucket.name, FILE),
}


def test_chunk_with_a_referenced_part_reads_as_any_other(bucket: Bucket, referring: Icechunk) -> None:
    session, store = begin(referring)
    store.set_parts("a/c/1", refer(bucket, None))
    commit(session)
    assert np.array_equal(values(referring), [*range(8), *marked(1000), *range(16, 32)])
    store = ps.PartsStore.from_session(referring.readonly_session("main"))
    for start, stop in itertools.combinations(range(0, len(DATA) + 1, 4), 2):
        found = sync(store.get("a/c/1", default_buffer_prototype(), RangeByteRequest(start, stop)))
        assert found is not None
        assert found.to_bytes() == DATA[start:stop]
    session, store = begin(referring)
    zarr.open_array(store, path="a")[9:14:2] = [5, 6, 7]
    commit(session)
    bucket.client.remove_object(bucket.name, FILE)
    expected = marked(1000)
    expected[1:6:2] = [5, 6, 7]
    assert np.array_equal(values(referring)[8:16], expected)


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_object_that_was_changed_is_an_error_and_never_values(
    damage: str, checksum: str, bucket: Bucket, referring: Icechunk
) -> None:
    session, store = begin(referring)
    store.set_parts("a/c/0", refer(bucket, CHECKSUMS[checksum](bucket)))
    commit(session)
    assert np.array_equal(values(referring), [*marked(1000), *range(8, 32)])
    if checksum in ("none", "time") and damage == "changed":
        # Times are whole seconds, and one more where nothing is given.
        time.sleep(2.1)
    DAMAGES[damage](bucket)
    array = look(referring.readonly_session("main"))
    for span in (slice(0, CHUNK), slice(4, 6), slice(0, 32)):
        with pytest.raises(SessionError):
            array[span]
    assert np.array_equal(array[CHUNK:], range(8, 32))


def test_a_reader_without_authorisation_gets_an_error_and_no_values(bucket: Bucket, referring: Icechunk) -> None:
    session, store = begin(referring)
    store.set_parts("a/c/0", refer(bucket, None))
    commit(session)
    array = look(repository(bucket, authorized=False).readonly_session("main"))
    with pytest.raises(SessionError, match=r"authoriz|credential"):
        array[:CHUNK]
    assert np.array_equal(array[CHUNK:], range(8, 32))
