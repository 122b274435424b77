"""Icechunk sessions on a local disk and on a real S3 server: arrays like NumPy's, damage, parts in existing files."""

import functools
import itertools
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from parts_store.errors import SessionError
from parts_store.format.references import Reference
from parts_store.maintenance.report import Problem
from tests.array_machine import ArraysInSession, require_tidy
from tests.machines import run

KINDS = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def on_server(bucket: Bucket, prefix: str) -> icechunk.Storage:
    server = bucket.server
    return icechunk.s3_storage(
        bucket=bucket.name,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=server.endpoint,
        allow_http=True,
        force_path_style=True,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
    )


@pytest.fixture(params=["disk", "server"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], icechunk.Storage]:
    """Return a function that opens the storage of a repository by name."""
    if request.param == "disk":
        return lambda name: icechunk.local_filesystem_storage(str(tmp_path / name))
    return functools.partial(on_server, request.getfixturevalue("bucket"))


def in_objects() -> icechunk.RepositoryConfig:
    """Return a configuration that stores every chunk as an object, whatever its size."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    return config


@KINDS
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_arrays_behave_like_those_of_numpy(storage: Callable[[str], icechunk.Storage], *, split: bool) -> None:
    numbers = itertools.count()

    class Machine(ArraysInSession):
        is_split = split

        def new_repository(self) -> icechunk.Repository:
            return icechunk.Repository.create(storage(f"repository-{next(numbers)}"), config=in_objects())

    run(Machine, 18, steps=15)


def make(store: ps.PartsStore, *, split: bool) -> Any:
    parts = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    ps.create_array(
        store, "a", parts=parts, split=split, shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint16"
    )
    array = zarr.open_array(store, path="a")
    array[:] = VALUES
    return array


VALUES = np.arange(1, 64 * 64 + 1, dtype="uint16").reshape(64, 64)


@KINDS
def test_other_clients_read_the_commit_and_older_versions(
    storage: Callable[[str], icechunk.Storage], pipeline: str, *, split: bool
) -> None:
    repository = icechunk.Repository.create(storage("repository"), config=in_objects())
    session = repository.writable_session("main")
    make(ps.PartsStore.from_session(session), split=split)
    first = session.commit("first")
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array = zarr.open_array(store, path="a")
    array[5:40, 7] = 0
    array.resize((96, 64))
    array[90] = 9
    session.commit("second")
    expected = np.zeros((96, 64), "uint16")
    expected[:64] = VALUES
    expected[5:40, 7] = 0
    expected[90] = 9
    again = icechunk.Repository.open(storage("repository"))
    reader = pickle.loads(pickle.dumps(ps.PartsStore.from_session(again.readonly_session("main"))))
    np.testing.assert_array_equal(zarr.open_array(reader, path="a")[:], expected)
    before = ps.PartsStore.from_session(again.readonly_session(snapshot_id=first))
    np.testing.assert_array_equal(zarr.open_array(before, path="a")[:], VALUES)
    for each in (reader, before):
        require_tidy(each, {"a"})


@KINDS
def test_random_read_of_a_shard_is_two_requests_then_one(
    storage: Callable[[str], icechunk.Storage], pipeline: str, *, split: bool
) -> None:
    repository = icechunk.Repository.create(storage("repository"), config=in_objects())
    session = repository.writable_session("main")
    make(ps.PartsStore.from_session(session), split=split)
    session.commit("an array")
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = zarr.open_array(store, path="a")
    for gets in (2, 1):
        store.stats.reset()
        assert array[40, 40] == VALUES[40, 40]
        assert store.stats.get == gets


@KINDS
def test_missing_objects_are_errors_never_fill_values(
    request: pytest.FixtureRequest, storage: Callable[[str], icechunk.Storage], pipeline: str, *, split: bool
) -> None:
    repository = icechunk.Repository.create(storage("repository"), config=in_objects())
    session = repository.writable_session("main")
    make(ps.PartsStore.from_session(session), split=split)
    session.commit("an array")
    if isinstance(storage, functools.partial):
        bucket: Bucket = request.getfixturevalue("bucket")
        for key in bucket.list_keys():
            if key.startswith("repository/chunks/"):
                bucket.client.remove_object(bucket.name, key)
    else:
        shutil.rmtree(request.getfixturevalue("tmp_path") / "repository" / "chunks")
    store = ps.PartsStore.from_session(icechunk.Repository.open(storage("repository")).readonly_session("main"))
    for selection in (np.s_[0, 0], np.s_[:32, :32], np.s_[:]):
        with pytest.raises(SessionError):
            zarr.open_array(store, path="a")[selection]
    report = store.verify(checksums=True)
    assert {each.problem for each in report.findings} == {Problem.UNREADABLE}
    assert len(report.findings) == 4


def test_a_part_may_be_a_range_of_an_object_that_exists_already(bucket: Bucket, pipeline: str) -> None:
    content = bytes(range(256))
    store_of_files = bucket.store("files")
    store_of_files.put("file", content)
    server = bucket.server
    location = f"s3://{bucket.name}/files/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.s3_store(
        region="us-east-1",
        endpoint_url=server.endpoint,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(location, files))
    key = icechunk.s3_credentials(access_key_id=server.access_key, secret_access_key=server.secret_key)
    repository = icechunk.Repository.create(
        on_server(bucket, "repository"),
        config=config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({location: key}),
    )
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    parts = [ps.Part(".header", size=2), ps.Part("")]
    array: Any = ps.create_array(
        store, "a", parts=parts, split=True, shape=(16,), chunks=(8,), dtype="uint8", compressors=None
    )
    store.set_parts("a/c/0", [b"\x01\x02", Reference(f"{location}file", 100, 6)])
    array[8:] = 7
    expected = [1, 2, *content[100:106], *[7] * 8]
    session.commit("a reference")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert np.asarray(zarr.open_array(reader, path="a")[:]).tolist() == expected
    assert reader.verify(checksums=True).is_clean
    bucket.client.remove_object(bucket.name, "files/file")
    with pytest.raises(SessionError):
        zarr.open_array(reader, path="a")[:]
