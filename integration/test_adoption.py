"""Files on a real S3 server adopted into a repository there, and read through a container with credentials."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from icechunk import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    containers_credentials,
    s3_credentials,
    s3_storage,
    s3_store,
)

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from parts_store.errors import AdoptionError, PartsStoreError, SessionError, StoreConfigError
from parts_store.virtual.adopt import adopt

FILE = "files/some file.nc"


def repository(bucket: Bucket) -> Repository:
    """Create a repository in the bucket that may reference `files/` there."""
    server = bucket.server
    keys: dict[str, Any] = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    remote: dict[str, Any] = {"region": "us-east-1", "endpoint_url": server.endpoint}
    remote |= {"allow_http": True, "force_path_style": True}
    prefix = f"s3://{bucket.name}/files/"
    config = RepositoryConfig(inline_chunk_threshold_bytes=65535)
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, s3_store(**remote, s3_compatible=True)))
    return Repository.open_or_create(
        s3_storage(bucket=bucket.name, prefix="repo", **remote, **keys),
        config=config,
        authorize_virtual_chunk_access=containers_credentials({prefix: s3_credentials(**keys)}),
    )


def upload(bucket: Bucket, path: Path, key: str = FILE) -> str:
    bucket.client.fput_object(bucket.name, key, str(path))
    return f"s3://{bucket.name}/{key}"


def write_weather(path: Path) -> None:
    random = np.random.default_rng(1)
    days = np.datetime64("2000-01-01", "ns") + np.arange(40) * np.timedelta64(1, "D")
    dataset = xr.Dataset(
        {
            "packed": (("time", "y", "x"), random.normal(0, 50, (40, 20, 30))),
            "plain": (("time", "y", "x"), random.random((40, 20, 30))),
            "area": (("y", "x"), random.random((20, 30))),
        },
        {"time": days, "x": np.arange(30.0), "y": np.arange(20, dtype="f4")},
        {"title": "on S3"},
    )
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -32768}
    encoding = {
        "packed": {**packed, "zlib": True, "shuffle": True, "chunksizes": (7, 6, 9)},
        "plain": {"chunksizes": (10, 20, 30), "fletcher32": True},
    }
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])


def test_xarray_sees_on_s3_what_is_in_the_file(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    write_weather(path)
    repo = repository(bucket)
    session = repo.writable_session("main")
    report = adopt(upload(bucket, path), into=session, path="weather", strict=True, **bucket.server.options)
    session.commit("adopted")
    assert report.nbytes_copied == 0
    assert not [key for key in bucket.list_keys() if key.startswith("repo/chunks/")]
    store = ps.PartsStore.from_session(repo.readonly_session("main"))
    found = xr.open_zarr(store, group="weather", consolidated=False, chunks=None)
    with xr.open_dataset(path, engine="h5netcdf") as expected:
        xr.testing.assert_identical(found.load(), expected.load())


def test_a_whole_shard_comes_without_the_other_variables(bucket: Bucket, tmp_path: Path) -> None:
    path, chunks, nbytes = tmp_path / "a.h5", 70, 50_000
    with h5py.File(path, "w") as file:
        made = [file.create_dataset(name, (chunks * nbytes,), "u1", chunks=(nbytes,)) for name in "abc"]
        for at in range(chunks):
            for number, each in enumerate(made):
                each[at * nbytes : (at + 1) * nbytes] = at * 3 + number
            file.flush()
    repo = repository(bucket)
    session = repo.writable_session("main")
    adopt(upload(bucket, path), into=session, shard_chunks=4095, **bucket.server.options)
    session.commit("adopted")
    store = ps.PartsStore.from_session(repo.readonly_session("main"))
    array: Any = zarr.open_array(store, path="b", mode="r")
    store.stats.reset()
    assert np.array_equal(array[:], np.repeat(np.arange(chunks) * 3 + 1, nbytes))
    assert store.stats.bytes_read == chunks * nbytes + chunks * 16 + 4


def test_a_file_that_was_replaced_or_deleted_is_never_misread(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", data=np.arange(100), chunks=(10,))
        file["contiguous"] = np.arange(100)
    session = repository(bucket).writable_session("main")
    adopt(upload(bucket, path), into=session, **bucket.server.options)
    store = ps.PartsStore.from_session(session)
    for name in ("chunked", "contiguous"):
        assert np.array_equal(zarr.open_array(store, path=name, mode="r")[:], np.arange(100))
    # In the same second, and of the same size.
    with h5py.File(path, "r+") as file:
        file["chunked"][...] = 0
        file["contiguous"][...] = 0
    upload(bucket, path)
    for gone in (False, True):
        if gone:
            bucket.client.remove_object(bucket.name, FILE)
        for name in ("chunked", "contiguous"):
            for selection in (slice(None), slice(3, 5)):
                with pytest.raises(SessionError):
                    zarr.open_array(store, path=name, mode="r")[selection]


def test_what_cannot_be_had_is_an_error_of_ours(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(100)
    session = repository(bucket).writable_session("main")
    with pytest.raises(StoreConfigError, match="a file"):
        adopt(f"s3://{bucket.name}/files/nothing.h5", into=session, **bucket.server.options)
    with pytest.raises(SessionError, match="container"):
        adopt(upload(bucket, path, "elsewhere.h5"), into=session, **bucket.server.options)
    with CountingProxy(bucket.server.endpoint) as proxy:
        wrong = {**bucket.server.options, "endpoint": proxy.endpoint, "secret_access_key": "wrong"}
        with pytest.raises(PartsStoreError) as caught:
            adopt(upload(bucket, path), into=session, **wrong)
        # What is refused is not tried again and again.
        assert len(proxy.requests) <= 2
    assert bucket.server.secret_key not in str(caught.value)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(AdoptionError, match="truncated"):
        adopt(upload(bucket, path), into=session, **bucket.server.options)
    assert not session.has_uncommitted_changes
