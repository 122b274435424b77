"""Repositories and files on Azure, on S3 with credentials that are refreshed, on a web server, and on Google Storage.

For Google Storage there is no server to write to here. A web server shows the objects of a bucket, to which Icechunk
sends the requests that it would send to Google.
"""

import pickle
import secrets
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import h5py
import icechunk
import numpy as np
import obstore
import pytest
import xarray as xr

import parts_store as ps
from integration import azurite
from integration.azurite import Azurite
from integration.conftest import Bucket
from parts_store.errors import PartsStoreError, SessionError, StoreConfigError
from tests.test_http import with_ranges

icechunk.set_logs_filter("off")

VALUES = np.arange(4000.0).reshape(40, 100)


def write_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(5, 10), compression="gzip")
    return path


def read(repository: icechunk.Repository) -> Any:
    return ps.open_array(ps.PartsStore.from_session(repository.readonly_session("main")), "x")[:]


@pytest.fixture
def container(azure: Azurite) -> str:
    name = f"parts-store-{secrets.token_hex(8)}"
    azure.make_container(name)
    return name


@dataclass
class S3Keys:
    """A function that returns keys that soon expire, and counts how often it is called in this process."""

    access_key: str
    secret_key: str
    calls: ClassVar[int] = 0

    def __call__(self) -> icechunk.S3StaticCredentials:
        S3Keys.calls += 1
        return icechunk.S3StaticCredentials(
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            # Already expired: each request asks again.
            expires_after=datetime.now(UTC) + timedelta(seconds=1),
        )


def azure_key() -> Any:
    made: Any = icechunk.AzureRefreshableCredential.AccessKey
    return made(azurite.KEY, datetime.now(UTC) + timedelta(minutes=5))


def google_token() -> icechunk.GcsBearerCredential:
    return icechunk.GcsBearerCredential("Zq7x0123456789Zq7x", expires_after=datetime.now(UTC) + timedelta(minutes=5))


@pytest.mark.parametrize("is_refreshed", [False, True])
@pytest.mark.parametrize("scheme", ["az", "azure", "abfs"])
def test_repository_and_files_on_azure(
    azure: Azurite, container: str, scheme: str, tmp_path: Path, *, is_refreshed: bool
) -> None:
    objects = obstore.store.AzureStore(container, **azure.options, client_options={"allow_http": True})
    obstore.put(objects, "data/deep/x y#%.h5", write_file(tmp_path / "x.h5").read_bytes())
    options = {**azure.options}
    if is_refreshed:
        options |= {"get_credentials": azure_key}
        del options["account_key"]
    place, folder = f"{scheme}://{container}/repository", f"{scheme}://{container}/data/deep"
    repository = ps.open_repository(place, virtual=[folder], **options)
    session = repository.writable_session("main")
    report = ps.adopt(f"{folder}/x y#%.h5", into=session, **options)
    assert report.folders == (f"{folder}/",)
    session.commit("adopted")
    np.testing.assert_array_equal(read(repository), VALUES)
    # A reader names the parent, or finds its name in the error.
    again = ps.open_repository(place, virtual=[f"{scheme}://{container}"], create=False, **options)
    np.testing.assert_array_equal(read(again), VALUES)
    with pytest.raises(PartsStoreError, match=rf"virtual=\['{folder}/'\], \*\*options"):
        read(ps.open_repository(place, create=False, **options))
    opened = xr.open_dataset(place, engine="parts_store", virtual=[folder], storage_options=options)
    np.testing.assert_array_equal(opened["x"], VALUES)
    stored = [bytes(obstore.get(objects, meta["path"]).bytes()) for page in obstore.list(objects) for meta in page]
    assert not any(azurite.KEY.encode() in data for data in stored)
    obstore.put(objects, "data/deep/x y#%.h5", write_file(tmp_path / "x.h5").read_bytes()[:-1] + b"\0")
    with pytest.raises(SessionError, match="which was changed or deleted after"):
        read(repository)
    obstore.delete(objects, "data/deep/x y#%.h5")
    with pytest.raises(SessionError, match=rf"the file '{folder}/x y#%.h5', which was changed or deleted"):
        read(repository)


def test_repository_on_azure_says_what_icechunk_does_not_take(azure: Azurite, container: str) -> None:
    options: dict[str, Any] = {**azure.options, "client_id": "id", "client_secret": "Zq7x0123456789"}
    with pytest.raises(
        StoreConfigError, match=r"options that Icechunk takes: account_key.*found client_id, client"
    ) as caught:
        ps.open_repository(f"az://{container}/r", **options)
    assert "Zq7x" not in str(caught.value)
    with pytest.raises(StoreConfigError, match="account_name: expected the storage account"):
        ps.open_repository(f"az://{container}/r", account_key=azurite.KEY)


def test_credentials_on_s3_are_refreshed_for_the_repository_and_for_files(bucket: Bucket, tmp_path: Path) -> None:
    obstore.put(bucket.store(), "data/x.h5", write_file(tmp_path / "x.h5").read_bytes())
    server = bucket.server
    keys = S3Keys(server.access_key, server.secret_key)
    options: dict[str, Any] = {"endpoint": server.endpoint, "region": "us-east-1", "get_credentials": keys}
    place, folder = f"s3://{bucket.name}/repository", f"s3://{bucket.name}/data"
    repository = ps.open_repository(place, virtual=[folder], **options)
    session = repository.writable_session("main")
    ps.adopt(f"{folder}/x.h5", into=session, **options)
    session.commit("adopted")
    before = S3Keys.calls
    np.testing.assert_array_equal(read(repository), VALUES)
    assert S3Keys.calls > before
    # The engine takes the same function.
    opened = xr.open_dataset(place, engine="parts_store", virtual=[folder], storage_options=options)
    np.testing.assert_array_equal(opened["x"], VALUES)
    for shown in (repr(repository), str(repository.storage), repr(session), repr(repository.config)):
        assert server.secret_key not in shown
    # A worker gets the store pickled, and calls the function there.
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    code = "import pickle, sys; import parts_store as ps; store = pickle.loads(sys.stdin.buffer.read());"
    code += "print(ps.open_array(store, 'x')[:].sum())"
    found = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, check=True)
    assert float(found.stdout) == VALUES.sum()


def test_functions_that_return_no_credentials_are_refused(bucket: Bucket) -> None:
    place = f"s3://{bucket.name}/repository"
    server: dict[str, Any] = {"endpoint": bucket.server.endpoint, "region": "us-east-1"}
    with pytest.raises(StoreConfigError, match=r"returns icechunk.S3StaticCredentials for s3://, found .* GcsBearer"):
        ps.open_repository(place, get_credentials=google_token, **server)
    with pytest.raises(StoreConfigError, match="a function that can be pickled"):
        ps.open_repository(place, get_credentials=lambda: None, **server)
    with pytest.raises(StoreConfigError, match="no other credentials beside it, found 'access_key_id"):
        ps.open_repository(place, get_credentials=google_token, **bucket.server.options)
    with pytest.raises(StoreConfigError, match="expected a function, found an object of type str"):
        ps.open_repository(place, get_credentials="Zq7x0123456789", **server)
    with pytest.raises(StoreConfigError, match="get_credentials=, a function that returns credentials of Icechunk"):
        ps.open_repository(place, credential_provider=dict, **server)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A repository in a folder that a web server shows; its references are to files there, too."""
    write_file(tmp_path / "data/x.h5")
    return tmp_path


def test_repository_on_a_web_server_is_read_and_never_written(published: Path) -> None:
    with with_ranges(published) as url:
        session = ps.open_repository(published / "repository", virtual=[f"{url}/data"]).writable_session("main")
        ps.adopt(f"{url}/data/x.h5", into=session, client_options={"allow_http": True})
        session.commit("adopted")
        opened = ps.open_repository(f"{url}/repository", virtual=[url])
        np.testing.assert_array_equal(read(opened), VALUES)
        found = xr.open_dataset(f"{url}/repository", engine="parts_store", virtual=[url])
        np.testing.assert_array_equal(found["x"], VALUES)
        with pytest.raises(StoreConfigError, match="an Icechunk repository, which cannot be created over HTTP"):
            ps.open_repository(f"{url}/nothing")
        with pytest.raises(icechunk.ReadOnlyError):
            opened.writable_session("main")


@pytest.mark.parametrize("is_refreshed", [False, True])
def test_repository_and_files_on_google_storage(published: Path, *, is_refreshed: bool) -> None:
    session = ps.open_repository(
        published / "repository", virtual={"gs://bucket/data": {"base_url": "http://127.0.0.1:1"}}
    ).writable_session("main")
    data = (published / "data/x.h5").read_bytes()
    array = ps.create_array(
        ps.PartsStore.from_session(session), "x", shape=(8,), chunks=(8,), dtype="u1", compressors=None,
        parts=["", ps.Part(".t", size=2)], split=True,
    )  # fmt: skip
    assert array.shape == (8,)
    with with_ranges(published) as url:
        base = url.rpartition("/")[0]
        options: dict[str, Any] = {"base_url": base, "client_options": {"allow_http": True}}
        options |= {"get_credentials": google_token} if is_refreshed else {"bearer_token": "Zq7x0123456789Zq7x"}
        reference = ps.Reference("gs://bucket/data/x.h5", offset=3, length=6)
        ps.PartsStore.from_session(session).set_parts("x/c/0", [reference, data[9:11]])
        session.commit("referred")
        repository = ps.open_repository("gs://bucket/repository", virtual=["gs://bucket"], create=False, **options)
        np.testing.assert_array_equal(read(repository), np.frombuffer(data[3:11], "u1"))
        assert "Zq7x" not in f"{repository!r} {repository.storage} {repository.config!r}"
