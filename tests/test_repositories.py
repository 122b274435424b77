"""Opening URLs: repositories, their versions, and stores of objects."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import SessionError, StoreConfigError
from parts_store.store.repositories import is_repository, open_branch, open_store, open_writable, options_for
from tests.virtual import raw_files

icechunk.set_logs_filter("error")


@pytest.fixture
def repository(tmp_path: Path) -> icechunk.Repository:
    return ps.open_repository(tmp_path / "repository")


def write(store: ps.PartsStore, value: int) -> str:
    array: Any = zarr.create_array(store, name="a", shape=(4,), dtype="uint8", overwrite=True)
    array[...] = value
    snapshot: str = store.session.commit(str(value))
    return snapshot


def read(store: ps.PartsStore) -> int:
    (value,) = set(np.asarray(zarr.open_array(store, path="a", mode="r")[...]).tolist())
    return int(value)


def test_open_repository_creates_it_once(tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match="an Icechunk repository"):
        ps.open_repository(tmp_path / "repository", create=False)
    assert not (tmp_path / "repository").exists()
    write(open_branch(tmp_path / "repository", create=True), 1)
    assert is_repository(tmp_path / "repository")
    assert is_repository((tmp_path / "repository").as_uri())
    assert read(open_store(tmp_path / "repository")) == 1
    # Small chunks go to the manifest.
    config = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    assert config is not None
    assert config.inline_chunk_threshold_bytes == 65535


def test_is_repository_is_false_for_other_folders(tmp_path: Path) -> None:
    assert not is_repository(tmp_path)
    assert not is_repository(tmp_path / "nowhere")
    assert not is_repository("memory://")
    (tmp_path / "repo").mkdir()
    assert not is_repository(tmp_path)


def test_open_store_opens_every_version(repository: icechunk.Repository, tmp_path: Path) -> None:
    place = tmp_path / "repository"
    first = write(open_branch(place), 1)
    repository.create_tag("one", first)
    repository.create_branch("dev", first)
    write(open_branch(place, branch="dev"), 2)
    write(open_branch(place), 3)
    assert read(open_store(place)) == 3
    assert read(open_store(place, branch="dev")) == 2
    assert read(open_store(place, tag="one")) == 1
    assert read(open_store(place, snapshot=first)) == 1
    assert open_store(place).read_only


def test_open_store_refuses_a_missing_version(repository: icechunk.Repository, tmp_path: Path) -> None:
    place = tmp_path / "repository"
    with pytest.raises(StoreConfigError, match="branch: expected one of 'main', found 'dev'"):
        open_store(place, branch="dev")
    with pytest.raises(StoreConfigError, match="branch: expected one of 'main', found 'dev'"):
        open_branch(place, branch="dev")
    with pytest.raises(StoreConfigError, match="tag: expected one of nothing: there are none"):
        open_store(place, tag="one")
    with pytest.raises(StoreConfigError, match="at most one of branch, tag and snapshot"):
        open_store(place, tag="one", branch="main")
    with pytest.raises(StoreConfigError, match="an Icechunk repository, found none"):
        open_store(tmp_path, tag="one")


def test_open_store_without_a_repository(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "store", name="a", shape=(4,), dtype="uint8")[...] = 1
    assert read(open_store(tmp_path / "store")) == 1
    assert open_store(tmp_path / "store").session is None
    store = open_writable(tmp_path / "store")
    assert (store.session, store.read_only) == (None, False)
    with pytest.raises(StoreConfigError, match="a folder that exists, found nothing"):
        open_writable(tmp_path / "new")
    open_writable(tmp_path / "new", create=True)
    assert (tmp_path / "new").is_dir()
    with pytest.raises(StoreConfigError, match="a store that is read-only"):
        open_writable("https://127.0.0.1:9/data")


def test_open_branch_opens_it_for_writing(repository: icechunk.Repository, tmp_path: Path) -> None:
    write(open_writable(tmp_path / "repository"), 1)
    repository.create_branch("dev", repository.lookup_branch("main"))
    write(open_writable(tmp_path / "repository", branch="dev"), 2)
    assert [read(open_store(tmp_path / "repository", branch=each)) for each in ("main", "dev")] == [1, 2]


def test_damaged_repository_raises_session_error(repository: icechunk.Repository, tmp_path: Path) -> None:
    (tmp_path / "repository/repo").write_bytes(b"not a repository")
    with pytest.raises(SessionError):
        open_store(tmp_path / "repository")


def test_repository_with_an_unsupported_scheme_is_refused() -> None:
    with pytest.raises(
        StoreConfigError, match="a path, or file://, s3://, gs://, az://, http:// or https://, for an Icechunk"
    ):
        ps.open_repository("ftp://example.org/repository")


def test_options_for_local_urls_are_empty() -> None:
    options = {"region": "eu-west-1"}
    assert options_for("s3://bucket/data", options) == options
    assert options_for("data", options) == options_for("file:///data", options) == {}


@pytest.mark.slow
def test_indexes_of_many_shards_are_in_several_manifests(tmp_path: Path) -> None:
    # 70 shards of 16 chunks. The first commit has 64 of them, and the second one continues the second manifest.
    values = np.arange(70 * 16, dtype="<i4").reshape(-1, 16)
    repository = ps.open_repository(tmp_path / "repository", virtual=[tmp_path])
    counts = []
    for first, last in ((0, 66), (66, 70)):
        array = raw_files.write(tmp_path, f"{first}.raw", values[first:last], (1, 1))
        session = repository.writable_session("main")
        append_dim = "time" if first else None
        ps.to_icechunk(raw_files.dataset(array, first=first), session, append_dim=append_dim, shard_chunks=16)
        snapshot = session.commit("appended")
        counts.append(sorted(each.num_chunk_refs for each in repository.list_manifest_files(snapshot)))
    # The coordinate has one chunk and then two, the references are in one manifest, and the indexes in two.
    assert counts == [[1, 2, 64, 66], [2, 6, 64, 70]]
    found: Any = zarr.open_array(open_store(tmp_path / "repository", virtual=[tmp_path]), path="t", mode="r")
    assert np.array_equal(found[...], values)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["with space", "50%", "größe", "a+b"])
def test_folder_that_icechunk_finds_no_files_in_is_refused_and_the_one_above_is_not(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(100,))
    with pytest.raises(StoreConfigError, match="name a folder above it"):
        ps.open_repository(tmp_path / "refused", virtual=[folder])
    session = ps.open_repository(tmp_path / "repository", virtual=[tmp_path]).writable_session("main")
    ps.adopt(folder / "x.h5", into=session)
    np.testing.assert_array_equal(ps.open_array(ps.PartsStore.from_session(session), "x")[:], np.arange(1000.0))


def test_reference_below_a_container_that_icechunk_cannot_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "x.bin").write_bytes(bytes(64))
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"{folder.as_uri()}/", store=store))
    access: Any = {f"{folder.as_uri()}/": icechunk.credentials.LocalFileSystemAccess}
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=access
    )
    session = repository.writable_session("main")
    array = ps.PartsStore.from_session(session)
    layout: Any = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
    ps.create_array(array, "a", parts=["", ps.Part(".t", size=2)], split=True, **layout)
    with pytest.raises(SessionError, match="a folder above it"):
        array.set_parts("a/c/0", [ps.Reference((folder / "x.bin").as_uri(), offset=0, length=6), b"\x01\x02"])


@pytest.mark.slow
def test_warning_of_a_local_repository_is_one_sentence_per_process(tmp_path: Path) -> None:
    code = """
import sys, zarr, parts_store as ps
for number in range(2):
    session = ps.open_repository(sys.argv[1]).writable_session("main")
    zarr.create_array(session.store, name=f"a{number}", shape=4, dtype="u1")[:] = 1
    session.commit("made")
"""
    environment = {name: value for name, value in os.environ.items() if name != "ICECHUNK_LOG"}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r")], capture_output=True, text=True, env=environment, check=True
    )
    (line,) = (ended.stdout + ended.stderr).splitlines()
    assert line.startswith("a repository on a local disk loses commits if several processes commit at the same time")
