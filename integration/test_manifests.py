"""Arrays as references, on a real S3 server: what is stored there, read through a registry, and kept by Icechunk."""

from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    containers_credentials,
    in_memory_storage,
    s3_credentials,
    s3_store,
)
from obspec_utils.registry import ObjectStoreRegistry

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from parts_store.errors import LocationError, SessionError
from parts_store.manifests import PartsArray, PartsGroup

VALUES = np.arange(1, 257, dtype="int32").reshape(16, 16)
PARTS = [ps.Part(".head", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


def create(store: ps.PartsStore, name: str = "a") -> None:
    array = ps.create_array(
        store, name, shape=VALUES.shape, chunks=(4, 4), shards=(8, 8), dtype=VALUES.dtype, parts=PARTS
    )
    array[:] = VALUES


def registry(bucket: Bucket) -> ObjectStoreRegistry[Any]:
    return ObjectStoreRegistry({f"s3://{bucket.name}": bucket.store()})


def repository(bucket: Bucket) -> Repository:
    """Create a repository that may reference `data/` in the bucket."""
    server = bucket.server
    keys: dict[str, Any] = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    remote: dict[str, Any] = {"region": "us-east-1", "endpoint_url": server.endpoint}
    remote |= {"allow_http": True, "force_path_style": True}
    prefix = f"s3://{bucket.name}/data/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, s3_store(**remote, s3_compatible=True)))
    allowed = containers_credentials({prefix: s3_credentials(**keys)})
    return Repository.create(in_memory_storage(), config=config, authorize_virtual_chunk_access=allowed)


def test_a_stored_array_is_references_to_its_objects_and_reads_the_same(bucket: Bucket) -> None:
    store = ps.PartsStore(bucket.store("data/set"))
    create(store)
    store.stats.reset()
    array = store.manifest("a")
    # A listing does not show whether a small part is of an unfinished write.
    small = 2 * len(array.dict())
    calls = {kind: count for kind, count in store.stats.calls.items() if count}
    assert calls == {"get": 1, "list": 1, "head": small + len(array.dict())}
    base = f"s3://{bucket.name}/data/set/a/c"
    assert [each["path"] for each in array.dict()["1.0"]] == [f"{base}/1/0.head", f"{base}/1/0", f"{base}/1/0.index"]
    assert np.array_equal(np.asarray(array), VALUES)
    loose = PartsArray.from_json(array.to_json())
    assert np.array_equal(loose.load(registry(bucket)), VALUES)
    assert np.array_equal(loose[8:].load(registry(bucket)), VALUES[8:])
    opened = zarr.open_array(loose.to_store(registry(bucket)), mode="r")
    assert np.array_equal(opened[3:9, 5:6], VALUES[3:9, 5:6])


@pytest.mark.parametrize("name", ["a", "some name", "é#1?2%41"])
def test_references_to_s3_are_kept_by_icechunk(bucket: Bucket, name: str) -> None:
    store = ps.PartsStore(bucket.store("data/set"))
    create(store, name)
    array = store.manifest(name)
    assert np.array_equal(np.asarray(array), VALUES)
    twice: Any = np.concatenate([array, array], axis=1)
    repo = repository(bucket)
    session = repo.writable_session("main")
    PartsGroup({"a": array, "twice": twice}, attributes={"x": 1}).to_icechunk(session, overwrite=True)
    session.commit("references")
    kept = ps.PartsStore.from_session(repo.readonly_session("main"))
    opened: Any = zarr.open_group(kept, mode="r")
    assert np.array_equal(opened["a"][:], VALUES)
    assert np.array_equal(opened["twice"][:], np.concatenate([VALUES, VALUES], axis=1))
    assert kept.manifest("a").dict() == array.dict()
    create(ps.PartsStore(bucket.store("other")))
    with pytest.raises(SessionError, match="virtual chunk container"):
        ps.PartsStore(bucket.store("other")).manifest("a").to_icechunk(repo.writable_session("main"), path="b")


def document_of(length: int) -> dict[str, Any]:
    return {
        "shape": [length],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }


@pytest.mark.parametrize(("gap", "requests"), [(0, 4), (9, 4), (10, 1)])
def test_so_many_requests_go_over_the_wire(bucket: Bucket, gap: int, requests: int) -> None:
    content = b"".join(bytes([number]) * 4 + b"-" * 10 for number in range(4))
    bucket.store().put("f", content)
    location = f"s3://{bucket.name}/f"
    parts = [
        {str(number): {"path": location, "offset": 14 * number + start, "length": length} for number in range(4)}
        for start, length in ((0, 1), (1, 3))
    ]
    array = PartsArray(document_of(16), parts)
    with CountingProxy(bucket.server.endpoint) as proxy:
        user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
        through = ObjectStoreRegistry[Any]({f"s3://{bucket.name}": bucket.store(user=user)})
        assert array.load(through, coalesce_gap=gap).tolist() == [number for number in range(4) for _ in range(4)]
        assert [each.kind for each in proxy.requests] == ["get"] * requests


def test_a_range_beyond_an_object_of_s3_is_an_error(bucket: Bucket) -> None:
    bucket.store().put("f", b"abcd")
    document = document_of(4)
    location = f"s3://{bucket.name}/f"
    for offset, length in ((2, 4), (4, 4), (9, 4)):
        entry = {"path": location, "offset": offset, "length": length}
        with pytest.raises(LocationError):
            PartsArray(document, [{"0": entry}]).load(registry(bucket))
    good = PartsArray(document, [{"0": {"path": location, "offset": 0, "length": 4}}])
    assert good.load(registry(bucket)).tobytes() == b"abcd"
    with pytest.raises(LocationError, match="registered store"):
        good.load({f"s3://{bucket.name}": bucket.store("data")})


def test_objects_of_s3_that_are_changed_after_the_manifest_are_refused(bucket: Bucket) -> None:
    store = ps.PartsStore(bucket.store("data/set"))
    create(store)
    array = store.manifest("a")
    loose = PartsArray.from_json(array.to_json())
    etags = {f"s3://{bucket.name}/{each['path']}": each["e_tag"] for batch in bucket.store().list() for each in batch}
    assert loose.checksums == {path: etag for path, etag in etags.items() if not path.endswith("zarr.json")}
    session = repository(bucket).writable_session("main")
    array.to_icechunk(session, path="a")
    kept = ps.PartsStore.from_session(session)
    again = kept.manifest("a")
    assert np.array_equal(again.load(registry(bucket)), VALUES)
    assert set(again.checksums) == set(array.checksums)
    zarr.open_array(store, path="a", mode="r+")[8:, 8:] = 0
    zarr.open_array(store, path="a", mode="r+")[8:, 8:] = VALUES[::-1, ::-1][8:, 8:]
    for refused in (array, loose.with_registry(registry(bucket)), loose.with_registry(registry(bucket))[8:]):
        with pytest.raises(LocationError, match=r"c/1/1.*the file was changed: expected the ETag"):
            np.asarray(refused)
    assert np.array_equal(loose[:8].load(registry(bucket)), VALUES[:8])
    with pytest.raises(SessionError, match="changed"):
        zarr.open_array(kept, path="a", mode="r")[:]
    with pytest.raises(LocationError, match=r"c/1/1.*changed"):
        kept.manifest("a")
