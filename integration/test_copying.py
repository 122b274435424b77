"""Copies on a real S3 server: a versioned array published as plain parts, and parts brought under version control."""

import itertools
from typing import Any

import icechunk
import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray

import parts_store as ps
from integration.conftest import Bucket
from parts_store.errors import StoreConfigError

VALUES: NDArray[Any] = np.random.default_rng(0).integers(1, 2**16, (64, 64)).astype("uint16")
INDEXED = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


def repository_in(bucket: Bucket) -> icechunk.Repository:
    server = bucket.server
    return icechunk.Repository.create(
        icechunk.s3_storage(
            bucket=bucket.name,
            prefix="repository",
            region="us-east-1",
            endpoint_url=server.endpoint,
            allow_http=True,
            force_path_style=True,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
    )


def create(store: ps.PartsStore, name: str = "images/one", **arguments: Any) -> zarr.Array[Any]:
    return ps.create_array(
        store,
        name,
        parts=INDEXED,
        shape=VALUES.shape,
        chunks=(8, 8),
        shards=(32, 32),
        dtype="uint16",
        compressors=None,
        attributes={"unit": "counts"},
        **arguments,
    )


def test_a_version_of_an_array_is_published_as_plain_parts(bucket: Bucket) -> None:
    repository = repository_in(bucket)
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    for name, split in (("images/one", False), ("images/two", True)):
        create(store, name, split=split)[...] = VALUES
    first = session.commit("what is published")
    session = repository.writable_session("main")
    later: Any = zarr.open_group(ps.PartsStore.from_session(session))["images/one"]
    later[...] = 0
    session.commit("what is not")

    published = bucket.store("published")
    source = ps.PartsStore.from_session(repository.readonly_session(snapshot_id=first))
    copied = ps.copy(source, ps.PartsStore(published), path="images")
    # Four shards each, of 16 chunks of 128 bytes, and their index.
    assert copied == ps.Copied(groups=1, arrays=2, chunks=8, nbytes=8 * (16 * 128 + 16 * 16 + 4))
    for name in ("one", "two"):
        for row, column in np.ndindex(2, 2):
            key = f"images/{name}/c/{row}/{column}"
            header, data, index = (
                bytes(obstore.get(published, key + each).bytes()) for each in (".header", "", ".index")
            )
            assert (len(header), len(index)) == (64, 16 * 16 + 4)
            places = np.frombuffer(index[:-4], "<u8").reshape(4, 4, 2)
            shard = np.empty((32, 32), "<u2")
            for at in np.ndindex(4, 4):
                start, nbytes = places[at].tolist()
                inner = np.frombuffer((header + data)[start : start + nbytes], "<u2").reshape(8, 8)
                shard[at[0] * 8 :, at[1] * 8 :][:8, :8] = inner
            assert np.array_equal(shard, VALUES[row * 32 :, column * 32 :][:32, :32])
    chunks = itertools.product(("one", "two"), "01", "01", (".header", "", ".index"))
    parts = {f"published/images/{name}/c/{row}/{column}{suffix}" for name, row, column, suffix in chunks}
    documents = {f"published/{path}zarr.json" for path in ("", "images/", "images/one/", "images/two/")}
    assert {key for key in bucket.list_keys() if not key.startswith("repository/")} == parts | documents
    assert ps.PartsStore(published).verify().is_clean
    opened: Any = zarr.open_group(ps.PartsStore(published), mode="r")["images/two"]
    assert np.array_equal(opened[...], VALUES)
    assert dict(opened.attrs) == {"unit": "counts"}


def test_parts_are_brought_under_version_control(bucket: Bucket) -> None:
    source = ps.PartsStore(bucket.store("plain"))
    create(source)[...] = VALUES
    repository = repository_in(bucket)
    session = repository.writable_session("main")
    ps.copy(source, ps.PartsStore.from_session(session))
    session.commit("as it was")
    committed = ps.PartsStore.from_session(repository.readonly_session("main"))
    array: Any = zarr.open_group(committed, mode="r")["images/one"]
    assert np.array_equal(array[...], VALUES)
    assert committed.parts_of("images/one") == source.parts_of("images/one")


def test_a_bucket_is_not_overwritten_by_itself(bucket: Bucket) -> None:
    whole, inner = ps.PartsStore(bucket.store()), ps.PartsStore(bucket.store("images"))
    create(whole)[...] = VALUES
    before = bucket.list_keys()
    for path, to in (("images/one", "one"), ("images", "")):
        with pytest.raises(StoreConfigError, match="a path apart from"):
            ps.copy(whole, inner, path=path, to=to, overwrite=True)
    assert bucket.list_keys() == before
