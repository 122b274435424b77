"""A file that may not be read is an error that says what to do, and never reads as fill values."""

import re
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.backends.icechunk_storage import virtual_container
from parts_store.errors import LocationError, PartsStoreError, SessionError, StoreConfigError
from tests.test_http import with_ranges

icechunk.set_logs_filter("error")

VALUES = np.arange(1.0, 4001.0).reshape(100, 40)
SELECTIONS: dict[str, Any] = {
    "whole": ...,
    "one inner chunk": (slice(0, 5), slice(0, 10)),
    "one value": (0, 0),
    "rows": slice(3, 60, 7),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as opened:
        opened.create_dataset("sharded", data=VALUES, chunks=(5, 10), compression="gzip")
        opened.create_dataset("plain", data=VALUES)
    return folder


@pytest.fixture
def repository(tmp_path: Path, files: Path) -> Path:
    """A repository that refers to a file."""
    place = tmp_path / "repository"
    session = ps.open_repository(place, virtual=[files]).writable_session("main")
    ps.adopt(files / "a.h5", into=session, shard_chunks=4095)
    session.commit("adopted")
    return place


def unauthorised(place: Path) -> ps.PartsStore:
    return ps.PartsStore.from_session(ps.open_repository(place, create=False).readonly_session("main"))


def expected_message(key: str, files: Path) -> str:
    """Return a pattern for a message that names the key, and the argument that gives access to the files."""
    return re.escape(f"{key!r}") + ".*" + re.escape(f"virtual=['{files.resolve().as_uri()}/']")


@pytest.mark.sampled(18)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", ["sharded", "plain"])
@pytest.mark.parametrize("is_ours", [False, True])
def test_no_read_without_authorisation_returns_values(
    repository: Path, files: Path, name: str, selection: str, is_ours: bool
) -> None:
    store = unauthorised(repository)
    array = ps.open_array(store, name) if is_ours else zarr.open_array(store, path=name, mode="r")
    with pytest.raises(SessionError, match=expected_message(f"{name}/c/0/0", files)):
        array[SELECTIONS[selection]]


@pytest.mark.slow
def test_what_the_message_says_works(repository: Path, files: Path) -> None:
    store = unauthorised(repository)
    with pytest.raises(SessionError) as caught, xr.open_zarr(store, consolidated=False, chunks=None) as dataset:
        dataset.load()
    found = re.search(r"virtual=(\[.*?\])", str(caught.value))
    assert found is not None
    virtual: list[str] = eval(found[1])
    opened = ps.open_repository(repository, virtual=virtual)
    with xr.open_zarr(ps.PartsStore.from_session(opened.readonly_session("main")), consolidated=False) as dataset:
        np.testing.assert_array_equal(dataset.sharded, VALUES)
        np.testing.assert_array_equal(dataset.plain, VALUES)
    access: dict[str, Any] = {virtual[0]: icechunk.credentials.LocalFileSystemAccess}
    plain = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(repository)), authorize_virtual_chunk_access=access
    )
    store = ps.PartsStore.from_session(plain.readonly_session("main"))
    np.testing.assert_array_equal(zarr.open_array(store, path="sharded", mode="r")[...], VALUES)


@pytest.mark.slow
def test_references_and_checks_name_the_missing_access(repository: Path, files: Path) -> None:
    store = unauthorised(repository)
    with pytest.raises(LocationError, match="authorize_virtual_chunk_access"):
        store.manifest("plain")
    findings = store.verify(checksums=True).findings
    assert {finding.chunk_key.partition("/")[0] for finding in findings} == {"plain", "sharded"}
    assert all("authorize_virtual_chunk_access" in finding.detail for finding in findings)
    # Also a store of references to these chunks reads nothing without a registry.
    references = store.manifest("sharded", check=False)
    for use in (references.load, references.to_store):
        with pytest.raises(StoreConfigError, match="a registry of the stores that may be read"):
            use()


@pytest.mark.parametrize("authorised", ["data", "index"])
def test_a_shard_needs_access_to_the_files_of_all_its_parts(tmp_path: Path, authorised: str) -> None:
    folders = {name: tmp_path / name for name in ("data", "index")}
    parts = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    made = ps.PartsStore.from_url("memory://")
    layout: dict[str, Any] = {"shape": (8,), "chunks": (2,), "shards": (8,), "dtype": "u1", "fill_value": 99}
    ps.create_array(made, "a", parts=parts, compressors=None, **layout)[...] = np.arange(8)
    for name, key in (("data", "a/c/0"), ("index", "a/c/0.index")):
        folders[name].mkdir()
        (folders[name] / "file").write_bytes(bytes(made.store.get(key).bytes()))
    place = tmp_path / "repository"
    session = ps.open_repository(place, virtual=list(folders.values())).writable_session("main")
    store = ps.PartsStore.from_session(session)
    ps.create_array(store, "a", parts=parts, split=True, compressors=None, **layout)
    sizes = {name: (folder / "file").stat().st_size for name, folder in folders.items()}
    store.set_parts(
        "a/c/0", [ps.Reference((folder / "file").as_uri(), 0, sizes[name]) for name, folder in folders.items()]
    )
    session.commit("referred")
    whole = ps.open_repository(place, virtual=list(folders.values()), create=False)
    readable = zarr.open_array(ps.PartsStore.from_session(whole.readonly_session("main")), path="a", mode="r")
    assert readable[...].tolist() == list(range(8))  # type: ignore[union-attr]
    some = ps.open_repository(place, virtual=[folders[authorised]], create=False)
    missing = folders["index" if authorised == "data" else "data"]
    for is_ours in (False, True):
        reader = ps.PartsStore.from_session(some.readonly_session("main"))
        array = ps.open_array(reader, "a") if is_ours else zarr.open_array(reader, path="a", mode="r")
        for selection in (..., slice(0, 2), 5, [0, 7]):
            with pytest.raises(PartsStoreError, match=f"below '{missing.as_uri()}/'"):
                array[selection]


@pytest.mark.slow
def test_reading_does_not_write_the_configuration_again(repository: Path, files: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in repository.rglob("*") if path.is_file()}

    before = contents()
    opened = ps.open_repository(repository, virtual=[files])
    assert opened.authorized_virtual_container_prefixes == {f"{files.resolve().as_uri()}/"}
    assert contents() == before
    other = repository.parent / "other"
    other.mkdir()
    ps.open_repository(repository, virtual=[files, other])
    assert contents() != before
    stored = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(str(repository)))
    assert stored is not None
    assert set(stored.virtual_chunk_containers or ()) == {f"{each.resolve().as_uri()}/" for each in (files, other)}


@pytest.mark.slow
def test_files_of_a_web_server_can_be_referred_to(tmp_path: Path, files: Path) -> None:
    with with_ranges(files) as url:
        place = tmp_path / "web"
        session = ps.open_repository(place, virtual=[url]).writable_session("main")
        data = (files / "a.h5").read_bytes()
        zarr.create_array(
            session.store, name="a", shape=(len(data),), chunks=(1000,), dtype="u1", compressors=None, filters=None
        )
        store = ps.PartsStore.from_session(session)
        for number in range(2):
            store.set_parts(f"a/c/{number}", [ps.Reference(f"{url}/a.h5", 1000 * number, 1000)])
        session.commit("referred")
        opened = ps.open_repository(place, virtual=[url], create=False)
        array = zarr.open_array(ps.PartsStore.from_session(opened.readonly_session("main")), path="a", mode="r")
        assert bytes(np.asarray(array[:2000])) == data[:2000]
        closed = zarr.open_array(unauthorised(place), path="a", mode="r")
        with pytest.raises(SessionError, match=re.escape(f"virtual=['{url}/']")):
            closed[5:10]


def test_other_schemes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StoreConfigError, match="virtual: expected a path, s3://bucket/, gs://bucket/, az://container/, http://"
    ):
        ps.open_repository(tmp_path / "repository", virtual=["ftp://example.org/data"])


def test_public_buckets_are_read_without_credentials() -> None:
    given = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}
    for options, expected in (
        ({"region": "us-east-1", "skip_signature": True}, icechunk.S3Credentials.Anonymous),
        ({**given, "skip_signature": True}, icechunk.S3Credentials.Anonymous),
        (given, icechunk.S3Credentials.Static),
        ({"region": "us-east-1"}, icechunk.S3Credentials.FromEnv),
    ):
        container, access = virtual_container("s3://public/data", options)
        assert container.url_prefix == "s3://public/data/"
        assert isinstance(access, expected)
