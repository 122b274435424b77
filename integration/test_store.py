"""PartsStore on a real S3 server: zarr's own suite, what is stored, who may read it, and what damage looks like."""

import asyncio
import functools
import itertools
import json
import pickle
import re
import secrets
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import hypothesis.stateful
import numpy as np
import obstore
import pytest
import zarr
from hypothesis import HealthCheck, settings
from minio.commonconfig import CopySource
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import parts_store as ps
from integration.conftest import Bucket
from integration.server import Server
from parts_store import SHARD_INDEX, ConcatParts, Part, PartsStore
from parts_store.errors import (
    ChunkSizeError,
    IncompleteChunkError,
    PartSizeError,
    StorageError,
    StoreConfigError,
)
from parts_store.options import Concurrency
from tests.machines import UnreservedKeys

PIPELINES = [
    "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr.core.codec_pipeline.FusedCodecPipeline",
]
LEVELS: tuple[Concurrency, ...] = ("exclusive", "writers", "full")

# --- zarr's own suite -----------------------------------------------------------------------------------------------


class Suite(StoreTests[PartsStore, cpu.Buffer]):
    store_cls = PartsStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, bucket: Bucket) -> dict[str, Any]:
        return {"store": bucket.store("a folder")}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> PartsStore:
        return asyncio.run(self.store_cls.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> PartsStore:
        return self.store_cls(**store_kwargs)

    async def set(self, store: PartsStore, key: str, value: Buffer) -> None:
        await obstore.put_async(store.store, key, value.to_bytes())

    async def get(self, store: PartsStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(await _bytes_of(store.store, key))

    def test_store_repr(self, store: PartsStore) -> None:
        assert re.fullmatch(r"PartsStore\(S3Store\(.*\)\)", repr(store))

    def test_store_supports_writes(self, store: PartsStore) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: PartsStore) -> None:
        assert store.supports_listing


async def _bytes_of(objects: S3Store, key: str) -> bytes:
    return bytes(await (await obstore.get_async(objects, key)).bytes_async())


class TestPlain(Suite):
    """Every key is an object: no array is known, and none is there."""


MACHINE = settings(
    max_examples=5, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.parametrize(
    ("parts", "concurrency"),
    [(None, "writers"), *(({"*": [Part(""), Part(".tail", size=0)]}, level) for level in LEVELS)],
    ids=["plain", *LEVELS],
)
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_zarrs_state_machines_find_no_difference(bucket: Bucket, parts: Any, concurrency: Concurrency) -> None:
    numbers = itertools.count()

    class Hierarchy(ZarrHierarchyStateMachine):
        def __init__(self) -> None:
            objects = bucket.store(f"hierarchy-{next(numbers)}")
            super().__init__(UnreservedKeys(objects, parts=parts, concurrency=concurrency))

    class Store(ZarrStoreStateMachine):
        def __init__(self) -> None:
            objects = bucket.store(f"store-{next(numbers)}")
            super().__init__(UnreservedKeys(objects, parts=parts, concurrency=concurrency))

    for machine in (Hierarchy, Store):
        hypothesis.stateful.run_state_machine_as_test(machine, settings=MACHINE)


def document(ndim: int, encoding: str, separator: str, parts: list[Part]) -> bytes:
    """The stored document of an array with parts."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [10] * ndim,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * ndim}},
            "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "storage_transformers": [ConcatParts(parts).to_json()],
        }
    ).encode()


class TestWithParts(Suite):
    """The keys that the suite writes are chunks of arrays with parts.

    The suite begins with an empty store, and so the store knows the arrays without their documents: they are written
    through it, and taken away behind its back. Where the suite then writes a `zarr.json` that is none, the array is
    gone, and its chunks are objects like others: so in `test_set_many`, `test_delete_dir`, `test_list*`, which show no
    more here than above. Keys of no array (`foo`, `k`, `sync_get`) stay what they are, and an empty value does not fit
    parts with sizes: those cases are replaced.
    """

    PARTS = (Part(".head", size=1), Part(""), Part(".tail", size=2))
    VALUE = b"\x01\x02\x03\x04"

    @pytest.fixture(params=["one dimension", "two dimensions"])
    def documents(self, request: pytest.FixtureRequest) -> dict[str, bytes]:
        parts = list(self.PARTS)
        if request.param == "one dimension":
            return {
                "zarr.json": document(1, "default", "/", parts),
                "foo/c/zarr.json": document(2, "v2", ".", parts),
            }
        return {"zarr.json": document(2, "default", "/", parts), "foo/zarr.json": document(2, "v2", "/", parts)}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any], documents: dict[str, bytes]) -> PartsStore:
        return self._taught(asyncio.run(self.store_cls.open(**open_kwargs)), documents)

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any], documents: dict[str, bytes]) -> PartsStore:
        return self._taught(self.store_cls(**store_kwargs), documents)

    def _taught(self, store: PartsStore, documents: dict[str, bytes]) -> PartsStore:
        for key, stored in documents.items():
            store.set_sync(key, cpu.Buffer.from_bytes(stored))
        obstore.delete(store.store, list(documents))
        return store

    async def set(self, store: PartsStore, key: str, value: Buffer) -> None:
        data = value.to_bytes()
        if key not in _chunk_keys(store):
            await obstore.put_async(store.store, key, data)
            return
        for suffix, piece in ((".head", data[:1]), ("", data[1:-2]), (".tail", data[-2:])):
            await obstore.put_async(store.store, key + suffix, piece)

    async def get(self, store: PartsStore, key: str) -> Buffer:
        suffixes = (".head", "", ".tail") if key in _chunk_keys(store) else ("",)
        return self.buffer_cls.from_bytes(b"".join([await _bytes_of(store.store, key + each) for each in suffixes]))

    @pytest.mark.parametrize("key", ["c/0", "c/0/1", "foo/c/0.0", "foo/0/0"])
    async def test_get(self, store: PartsStore, key: str) -> None:  # type: ignore[override]  # all ranges, one value
        await super().test_get(store, key, self.VALUE, None)  # type: ignore[arg-type]  # zarr means None too
        byte_ranges: list[ByteRequest] = [
            *(RangeByteRequest(start, stop) for start, stop in itertools.combinations(range(5), 2)),
            *(OffsetByteRequest(offset) for offset in range(4)),
            *(SuffixByteRequest(suffix) for suffix in range(1, 5)),
        ]
        for byte_range in byte_ranges:
            await super().test_get(store, key, self.VALUE, byte_range)

    @pytest.mark.parametrize("key", ["c/0", "c/0/1", "foo/c/0.0", "foo/0/0"])
    async def test_getsize(self, store: PartsStore, key: str) -> None:  # type: ignore[override]
        await super().test_getsize(store, key, self.VALUE)

    @pytest.mark.parametrize("key", ["c/0", "c/0/1", "foo/c/0.0", "foo/0/0"])
    async def test_set(self, store: PartsStore, key: str) -> None:  # type: ignore[override]
        await super().test_set(store, key, self.VALUE)

    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("c/0", RangeByteRequest(0, 2)), ("c/1", None)],
            [("c/0/0", RangeByteRequest(0, 2)), ("c/0/1", SuffixByteRequest(2)), ("c/0/0", OffsetByteRequest(2))],
        ],
    )
    async def test_get_partial_values(self, store: PartsStore, key_ranges: list[tuple[str, ByteRequest]]) -> None:
        await super().test_get_partial_values(store, key_ranges)

    async def test_a_chunk_is_its_parts(self, store: PartsStore, bucket: Bucket) -> None:
        chunk_keys = _chunk_keys(store) & {"c/0", "c/0/0", "foo/c/0.0", "foo/0/0"}
        assert len(chunk_keys) == 2
        for key in chunk_keys:
            await store.set(key, cpu.Buffer.from_bytes(self.VALUE))
            with pytest.raises(ChunkSizeError):
                await store.set(key, cpu.Buffer.from_bytes(b"\x01\x02"))
        below = {f"a folder/{key}{part.key_suffix}" for key in chunk_keys for part in self.PARTS}
        assert bucket.list_keys() == below
        assert {key async for key in store.list()} == chunk_keys
        for key in chunk_keys:
            await store.delete(key)
        # Another writer's part may be among them: they are hidden, and stay until somebody writes or repairs.
        orphans = {key for key in below if key.endswith((".head", ".tail"))}
        assert bucket.list_keys() == orphans
        assert {key async for key in store.list()} == set()
        for key in chunk_keys:
            assert await store.get(key, default_buffer_prototype()) is None
            assert not await store.exists(key)
            await store.set(key, cpu.Buffer.from_bytes(self.VALUE))
            assert (await self.get(store, key)).to_bytes() == self.VALUE
        # Written over, staged, and nothing is left of that.
        assert bucket.list_keys() == below


def _chunk_keys(store: PartsStore) -> set[str]:
    """The keys of the suite that are chunks of an array which the store knows."""
    keys = {
        ("", 1): {"c/0", "c/1", "c/1000"},
        ("", 2): {"c/0/0", "c/0/1", "c/1/0", "c/1/1", "c/0/2"},
        ("foo/c", 2): {"foo/c/0.0"},
        ("foo", 2): {"foo/0/0"},
    }
    known: set[str] = set()
    for path, record in store.catalog.arrays().items():
        known |= keys[path, record.encoding.ndim]
    return known


# --- addresses, options, secrets ------------------------------------------------------------------------------------


def options_for(user: Server) -> dict[str, Any]:
    """What obstore needs for the server, by its names."""
    return {
        "endpoint": user.endpoint,
        "access_key_id": user.access_key,
        "secret_access_key": user.secret_key,
        "region": "us-east-1",
        "virtual_hosted_style_request": False,
        "client_options": {"allow_http": True},
    }


SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint8"}
VALUES: NDArray[Any] = (np.arange(64 * 64) % 251 + 1).astype("uint8").reshape(64, 64)


def create_shards(store: PartsStore, parts: Sequence[Part] = SHARD_PARTS) -> zarr.Array[Any]:
    array = ps.create_array(store, "shards", parts=parts, compressors=None, **SHARDED)
    array[...] = VALUES
    return array


def create_chunks(store: PartsStore, *, head: int = 10) -> zarr.Array[Any]:
    parts = [Part(".head", size=head), Part(""), Part(".tail", size=4)]
    array = ps.create_array(store, "chunks", parts=parts, shape=(64, 64), chunks=(32, 64), dtype="u1", compressors=None)
    array[...] = VALUES
    return array


def test_a_url_opens_the_same_store_as_obstore(bucket: Bucket) -> None:
    store = PartsStore.from_url(f"s3://{bucket.name}/data", **options_for(bucket.server))
    create_shards(store)
    assert {key.partition("/")[0] for key in bucket.list_keys()} == {"data"}
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store("data")), path="shards")[...], VALUES)
    readable = PartsStore.from_url(f"s3://{bucket.name}/data", read_only=True, **options_for(bucket.server))
    assert readable.read_only
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(readable, path="shards", mode="r")[...] = 1


def test_parts_may_be_given_with_the_url(bucket: Bucket) -> None:
    parts = ConcatParts(["", Part(".tail", size=4)])
    store = PartsStore.from_url(f"s3://{bucket.name}", parts={"*": parts}, **options_for(bucket.server))
    zarr.create_array(store, name="a", shape=(8,), chunks=(8,), dtype="u1")[...] = np.arange(1, 9)
    assert {"a/c/0", "a/c/0.tail"} < bucket.list_keys()


def spoken(error: BaseException) -> str:
    """Everything that an error says, to whoever asks it, with its causes."""
    return f"{error} {error!r} {error.args!r} {''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize("option", ["no_such_option", "secret_acces_key", "mkdir", "prefixes"])
def test_an_unknown_option_is_refused_by_name_and_its_value_not_told(server: Server, option: str) -> None:
    value = secrets.token_hex(8)
    with pytest.raises(StoreConfigError, match=option) as caught:
        PartsStore.from_url("s3://bucket", **(options_for(server) | {option: value}))
    assert server.secret_key not in spoken(caught.value)
    assert value not in spoken(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/folder", "s4://bucket", "://bucket", "s3://"])
def test_an_unknown_scheme_is_refused(server: Server, url: str) -> None:
    with pytest.raises(StoreConfigError) as caught:
        PartsStore.from_url(url, **options_for(server))
    assert server.secret_key not in spoken(caught.value)


def test_a_password_in_an_address_is_not_told(server: Server) -> None:
    with pytest.raises(StoreConfigError) as caught:
        PartsStore.from_url(f"ftp://user:{server.secret_key}@host/folder")
    assert server.secret_key not in spoken(caught.value)
    store = PartsStore.from_url(f"https://user:{server.secret_key}@host.invalid/folder")
    for shown in (repr(store), str(store), store._repr_html_()):
        assert server.secret_key not in shown


def test_a_store_shows_no_secret(bucket: Bucket) -> None:
    url, options = f"s3://{bucket.name}/data", options_for(bucket.server)
    for store in (PartsStore.from_url(url, **options), PartsStore(bucket.store())):
        array = create_shards(store)
        seen = (
            store,
            array,
            store.stats,
            store.explain("shards", np.s_[:5, :5]),
            array.info,
            store.with_read_only(True),
        )
        for shown in (*map(repr, seen), *map(str, seen), store._repr_html_(), f"{store}"):
            assert bucket.server.secret_key not in shown
        assert bucket.name in repr(store)


def test_the_errors_of_a_server_show_no_secret(bucket: Bucket, reader: Server) -> None:
    create_chunks(PartsStore(bucket.store()))
    elsewhere = Server("http://127.0.0.1:9", bucket.server.access_key, bucket.server.secret_key)
    nobody = Server(bucket.server.endpoint, bucket.server.access_key, "not-the-secret-of-that-user")
    hasty: dict[str, Any] = {"retry_config": {"max_retries": 0}}
    for user in (elsewhere, nobody):
        store = PartsStore.from_url(f"s3://{bucket.name}", **(options_for(user) | hasty))
        with pytest.raises(StorageError) as caught:
            store.get_sync("chunks/c/0/0")
        assert user.secret_key not in spoken(caught.value)
    with pytest.raises(StorageError) as caught:
        PartsStore(bucket.store(user=reader)).set_sync("chunks/c/0/0", cpu.Buffer.from_bytes(bytes(64 * 32)))
    assert reader.secret_key not in spoken(caught.value)


# --- other processes and users --------------------------------------------------------------------------------------

ELSEWHERE = """
import pickle, sys
import numpy as np
store, array = pickle.load(sys.stdin.buffer)
store.stats.reset()
values = array[...]
assert store.get_sync("chunks/c/0/0") is not None
calls = store.stats.calls
array[:32] = 7
import zarr
sys.stdout.buffer.write(pickle.dumps((values, calls, zarr.open(store)["shards"][:5, :5])))
"""


def test_a_store_and_its_arrays_work_in_another_process(bucket: Bucket) -> None:
    store = PartsStore(bucket.store("data"), parts={"new*": ["", Part(".tail", size=1)]})
    array = create_chunks(store)
    create_shards(store)
    command = [sys.executable, "-W", "error", "-c", ELSEWHERE]
    done = subprocess.run(command, input=pickle.dumps((store, array)), stdout=subprocess.PIPE, check=True)
    values, calls, corner = pickle.loads(done.stdout)
    np.testing.assert_array_equal(values, VALUES)
    np.testing.assert_array_equal(corner, VALUES[:5, :5])
    # What the store knew went with it: three parts of three chunks were read, and no document.
    assert {kind: count for kind, count in calls.items() if count} == {"get": 9}
    assert np.all(array[:32] == 7)
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    zarr.create_array(again, name="new", shape=(4,), chunks=(4,), dtype="u1")[...] = 1
    assert {"data/new/c/0", "data/new/c/0.tail"} < bucket.list_keys()


def stored(bucket: Bucket) -> dict[str, tuple[bytes, str | None, Any]]:
    """Every object: its bytes, its ETag, and its user metadata."""
    found = {}
    for key in bucket.list_keys():
        stat = bucket.client.stat_object(bucket.name, key)
        found[key] = (bucket.read(key), stat.etag, metadata_of(bucket, key))
    return found


def metadata_of(bucket: Bucket, key: str) -> dict[str, str]:
    """The user metadata of an object, as MinIO's own client sees it."""
    headers: Any = bucket.client.stat_object(bucket.name, key).metadata or {}
    start = "x-amz-meta-"
    return {
        name.lower().removeprefix(start): value for name, value in headers.items() if name.lower().startswith(start)
    }


def test_a_user_who_may_only_read_reads_everything(bucket: Bucket, reader: Server) -> None:
    store = PartsStore(bucket.store())
    create_shards(store)
    create_chunks(store)
    before = stored(bucket)
    theirs = PartsStore(bucket.store(user=reader))
    root = zarr.open_group(theirs, mode="r")
    for path in PIPELINES:
        with zarr.config.set({"codec_pipeline.path": path}):
            for name in ("shards", "chunks"):
                array = zarr.open_array(theirs, path=name, mode="r")
                np.testing.assert_array_equal(array[...], VALUES)
                np.testing.assert_array_equal(array[3:40, 3:5], VALUES[3:40, 3:5])
    assert sorted(root) == ["chunks", "shards"]
    assert theirs.parts_of("chunks") == store.parts_of("chunks")
    assert sync(theirs.getsize("chunks/c/0/0")) == 32 * 64
    assert sync(theirs.exists("shards/c/1/1"))
    assert stored(bucket) == before


def _resize(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks").resize((10, 10))


def _write(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks")[...] = 1


def _write_inner_chunk(store: PartsStore) -> None:
    zarr.open_array(store, path="shards")[:3, :3] = 1


def _set_attribute(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks").attrs["colour"] = "red"


def _create(store: PartsStore) -> None:
    ps.create_array(store, "new", parts=["", Part(".tail", size=1)], shape=(4,), dtype="u1")


def _overwrite(store: PartsStore) -> None:
    ps.create_array(store, "chunks", parts=[""], shape=(4,), dtype="u1", overwrite=True)


WRITES: dict[str, Callable[[PartsStore], Any]] = {
    "write": _write,
    "write a new chunk": lambda store: store.set_sync("chunks/c/9/9", cpu.Buffer.from_bytes(bytes(2048))),
    "write an inner chunk": _write_inner_chunk,
    "write if absent": lambda store: sync(store.set_if_not_exists("chunks/c/9/9", cpu.Buffer.from_bytes(bytes(2048)))),
    "attribute": _set_attribute,
    "resize": _resize,
    "create": _create,
    "overwrite": _overwrite,
    "delete": lambda store: sync(store.delete("chunks/c/0/0")),
    "delete at once": lambda store: store.delete_sync("chunks/c/0/0"),
    "delete a folder": lambda store: sync(store.delete_dir("chunks")),
    "clear": lambda store: sync(store.clear()),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_user_who_may_only_read_changes_nothing(bucket: Bucket, reader: Server, write: str) -> None:
    store = PartsStore(bucket.store())
    create_shards(store)
    create_chunks(store)
    before = stored(bucket)
    theirs = PartsStore(bucket.store(user=reader))
    # S3 answers a DELETE of several objects with an error for each, which obstore calls a generic one.
    with pytest.raises(StorageError, match=r"Access ?Denied"):
        WRITES[write](theirs)
    assert stored(bucket) == before
    # What was not written is not believed to be.
    for name in ("shards", "chunks"):
        np.testing.assert_array_equal(zarr.open_array(theirs, path=name, mode="r")[...], VALUES)


# --- what is stored -------------------------------------------------------------------------------------------------

TAG = re.compile(r"1;([0-9a-f]{32});([cs]);([0-9,]+);[0-9a-f]{8}")


def test_parts_are_plain_bytes_and_tagged_with_their_write(bucket: Bucket) -> None:
    array = create_chunks(PartsStore(bucket.store("data")))
    assert bucket.list_keys() == {
        "data/zarr.json",
        "data/chunks/zarr.json",
        *(f"data/chunks/c/{row}/0{suffix}" for row in range(2) for suffix in (".head", "", ".tail")),
    }
    seen: list[str] = []
    for mode, values in (("c", VALUES), ("s", VALUES[::-1])):
        array[...] = values
        for row in range(2):
            keys = [f"data/chunks/c/{row}/0{suffix}" for suffix in (".head", "", ".tail")]
            parts = [bucket.read(key) for key in keys]
            assert [len(part) for part in parts] == [10, 32 * 64 - 14, 4]
            assert b"".join(parts) == values[32 * row : 32 * row + 32].tobytes()
            metadata = [metadata_of(bucket, key) for key in keys]
            assert metadata == [metadata[0]] * 3
            assert list(metadata[0]) == ["partsgen"]
            found = TAG.fullmatch(metadata[0]["partsgen"])
            assert found is not None
            generation, written, sizes = found.groups()
            # The first write of all is a create; the same values, written again, are written over it.
            assert written == "s" or mode == "c"
            assert sizes == f"10,{32 * 64 - 14},4"
            seen.append(generation)
    assert len(set(seen)) == len(seen)
    for key in ("data/zarr.json", "data/chunks/zarr.json"):
        assert metadata_of(bucket, key) == {}


def test_a_chunk_that_is_created_says_so_and_one_that_is_overwritten_too(bucket: Bucket) -> None:
    array = create_chunks(PartsStore(bucket.store()))
    modes = []
    for _ in range(2):
        modes.append(
            {metadata_of(bucket, f"chunks/c/0/0{suffix}")["partsgen"][35] for suffix in (".head", "", ".tail")}
        )
        array[...] = 3
    assert modes == [{"c"}, {"s"}]


def test_the_parts_of_a_shard_are_its_header_its_data_and_its_index(bucket: Bucket) -> None:
    create_shards(PartsStore(bucket.store()))
    index_nbytes = 4 * 16 + 4
    document = json.loads(bucket.read("shards/zarr.json"))
    assert document["storage_transformers"] == [
        {
            "name": "concat-parts",
            "configuration": {
                "parts": [
                    {"key_suffix": ".header", "size": 64},
                    {"key_suffix": ""},
                    {"key_suffix": ".index", "size": index_nbytes},
                ]
            },
        }
    ]
    for row, column in np.ndindex(2, 2):
        key = f"shards/c/{row}/{column}"
        header, data, index = (bucket.read(key + suffix) for suffix in (".header", "", ".index"))
        assert (len(header), len(data), len(index)) == (64, 4 * 256 - 64, index_nbytes)
        tags = {metadata_of(bucket, key + suffix)["partsgen"] for suffix in (".header", "", ".index")}
        assert len(tags) == 1
        assert f";c;64,{4 * 256 - 64},{index_nbytes};" in tags.pop()
        shard = header + data
        for place, (offset, nbytes) in enumerate(np.frombuffer(index[:-4], "<u8").reshape(4, 2).astype(int)):
            top, left = 32 * row + 16 * (place // 2), 32 * column + 16 * (place % 2)
            inner = np.frombuffer(shard[offset : offset + nbytes], "u1").reshape(16, 16)
            np.testing.assert_array_equal(inner, VALUES[top : top + 16, left : left + 16])


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=PIPELINES, ids=["batched", "fused"])
def pipeline(request: pytest.FixtureRequest) -> Any:
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield request.param


def replace_by_stranger(bucket: Bucket, key: str, data: bytes | None = None) -> None:
    """Another object in place of one, without its tag, as a program writes it that knows of no parts."""
    obstore.put(bucket.store(), key, bytes(len(bucket.read(key))) if data is None else data)


def replace_by_older(bucket: Bucket, array: zarr.Array[Any], key: str) -> None:
    """The object of an older write, with the tag of that write, as a backup brings it back."""
    older = f"older/{key}"
    bucket.client.copy_object(bucket.name, older, CopySource(bucket.name, key))
    array[...] = 255 - VALUES
    bucket.client.copy_object(bucket.name, key, CopySource(bucket.name, older))
    bucket.client.remove_object(bucket.name, older)


def retag(bucket: Bucket, key: str, data: bytes) -> None:
    """Other bytes under the tag that an object has."""
    obstore.put(bucket.store(), key, data, attributes={"partsgen": metadata_of(bucket, key)["partsgen"]})


def assert_incomplete(act: Callable[[], Any], key: str, *, missing: bool) -> None:
    # Bare, not in a group; and the same the next time, for it is damage and no race.
    for _ in range(2):
        with pytest.raises(IncompleteChunkError) as caught:
            act()
        assert (key in caught.value.missing) is missing
        assert not missing or caught.value.mixed == ()


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
@pytest.mark.parametrize("how", ["stranger", "older"])
def test_a_mixture_is_never_read(bucket: Bucket, pipeline: str, suffix: str, how: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    if how == "stranger":
        replace_by_stranger(bucket, f"chunks/c/0/0{suffix}")
    else:
        replace_by_older(bucket, array, f"chunks/c/0/0{suffix}")
    for reader in (store, PartsStore(bucket.store())):
        opened = zarr.open_array(reader, path="chunks")
        for selection in (np.s_[...], np.s_[0, 0], np.s_[20:40, 5:6]):
            assert_incomplete(functools.partial(opened.__getitem__, selection), "chunks/c/0/0", missing=False)
        # The other chunk is whole.
        assert np.shape(opened[40:, :]) == (24, 64)


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
def test_a_mixture_is_never_read_by_range(bucket: Bucket, suffix: str) -> None:
    store = PartsStore(bucket.store())
    create_chunks(store)
    replace_by_stranger(bucket, f"chunks/c/0/0{suffix}")
    total = 32 * 64
    touching: dict[str, list[ByteRequest]] = {
        ".head": [RangeByteRequest(5, 20), RangeByteRequest(0, 11), OffsetByteRequest(0), SuffixByteRequest(total)],
        "": [RangeByteRequest(5, 20), RangeByteRequest(2000, total), OffsetByteRequest(9), SuffixByteRequest(5)],
        ".tail": [
            RangeByteRequest(2000, total),
            OffsetByteRequest(100),
            SuffixByteRequest(5),
            SuffixByteRequest(total),
        ],
    }
    prototype = default_buffer_prototype()
    key = "chunks/c/0/0"
    for wanted in touching[suffix]:
        acts: list[Callable[[], Any]] = [
            functools.partial(store.get_sync, key, byte_range=wanted),
            functools.partial(read_async, store, key, wanted),
            functools.partial(store.get_ranges_sync, key, [RangeByteRequest(30, 40), wanted], prototype=prototype),
            functools.partial(read_partial_values, store, key, wanted),
        ]
        for act in acts:
            assert_incomplete(act, key, missing=False)


def read_async(store: PartsStore, key: str, wanted: ByteRequest) -> Buffer | None:
    return sync(store.get(key, default_buffer_prototype(), wanted))


def read_partial_values(store: PartsStore, key: str, wanted: ByteRequest) -> list[Buffer | None]:
    return sync(store.get_partial_values(default_buffer_prototype(), [(key, wanted)]))


# Of a shard, each with the parts that reading it touches.
SHARD_SELECTIONS: dict[str, tuple[Any, set[str]]] = {
    "all shards": (np.s_[...], {".header", "", ".index"}),
    "a shard": (np.s_[:32, :32], {".header", "", ".index"}),
    "first inner chunk": (np.s_[:5, :5], {".header", "", ".index"}),
    "last inner chunk": (np.s_[20:25, 20:25], {"", ".index"}),
    "inner chunks": (np.s_[:25, 3:7], {".header", "", ".index"}),
}


def damage_shard(bucket: Bucket, key: str, how: str) -> NDArray[Any]:
    """Shards, of which one object is of another write; returns the values that the last write gave them."""
    array = create_shards(PartsStore(bucket.store()))
    if how == "older":
        replace_by_older(bucket, array, key)
        return 255 - VALUES
    replace_by_stranger(bucket, key, bucket.read(key))
    return VALUES


@pytest.mark.parametrize("suffix", [".header", "", ".index"])
@pytest.mark.parametrize("how", ["older", "copied without its tag"])
def test_a_mixture_is_never_read_from_a_shard(bucket: Bucket, pipeline: str, suffix: str, how: str) -> None:
    expected = damage_shard(bucket, f"shards/c/0/0{suffix}", how)
    for wanted, touched in SHARD_SELECTIONS.values():
        opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
        if suffix not in touched:
            np.testing.assert_array_equal(opened[wanted], expected[wanted])
            continue
        # At once, and every time: it is damage, and no race.
        assert_incomplete(functools.partial(opened.__getitem__, wanted), "shards/c/0/0", missing=False)


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_mixture_in_a_shard_is_told_from_a_race_at_the_first_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    damage_shard(bucket, f"shards/c/0/0{suffix}", "older")
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    assert_incomplete(lambda: opened[20:25, 20:25], "shards/c/0/0", missing=False)


def test_a_strangers_index_is_never_taken_for_empty(bucket: Bucket, pipeline: str) -> None:
    create_shards(PartsStore(bucket.store()))
    empty = b"\xff" * 64
    checksum = google_crc32c.value(empty).to_bytes(4, "little")
    replace_by_stranger(bucket, "shards/c/0/0.index", empty + checksum)
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, _ in SHARD_SELECTIONS.values():
        assert_incomplete(functools.partial(opened.__getitem__, wanted), "shards/c/0/0", missing=False)


def test_overwriting_fails_never(bucket: Bucket) -> None:
    # A server may answer a PUT that it refuses before it has read it, and hang up: then the answer is lost.
    array = create_chunks(PartsStore(bucket.store()))
    for number in range(100):
        array[...] = number
    assert np.all(array[...] == 99)


@pytest.mark.parametrize("suffix", [".head", ".tail"])
def test_a_chunk_without_one_of_its_parts_is_never_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    part_key = f"chunks/c/0/0{suffix}"
    bucket.client.remove_object(bucket.name, part_key)
    assert_incomplete(lambda: array[...], part_key, missing=True)
    assert_incomplete(lambda: array[3, 3], part_key, missing=True)
    wanted = RangeByteRequest(0, 5) if suffix == ".head" else SuffixByteRequest(3)
    assert_incomplete(lambda: store.get_sync("chunks/c/0/0", byte_range=wanted), part_key, missing=True)
    # Its existence is its anchor's, and what reads no more than that is served.
    assert sync(store.exists("chunks/c/0/0"))
    whole = store.get_sync("chunks/c/0/0", byte_range=RangeByteRequest(10, 20))
    assert whole is not None
    assert whole.to_bytes() == VALUES.tobytes()[10:20]


@pytest.mark.parametrize("suffix", [".header", ".index"])
def test_a_shard_without_one_of_its_parts_is_never_read(bucket: Bucket, pipeline: str, suffix: str) -> None:
    create_shards(PartsStore(bucket.store()))
    part_key = f"shards/c/0/0{suffix}"
    bucket.client.remove_object(bucket.name, part_key)
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, touched in SHARD_SELECTIONS.values():
        if suffix in touched:
            assert_incomplete(functools.partial(opened.__getitem__, wanted), part_key, missing=True)
        else:
            np.testing.assert_array_equal(opened[wanted], VALUES[wanted])


def test_without_its_anchor_there_is_no_chunk(bucket: Bucket, pipeline: str) -> None:
    store = PartsStore(bucket.store())
    array = create_chunks(store)
    bucket.client.remove_object(bucket.name, "chunks/c/0/0")
    expected = np.concatenate([np.zeros((32, 64), "u1"), VALUES[32:]])
    np.testing.assert_array_equal(array[...], expected)
    assert not sync(store.exists("chunks/c/0/0"))
    for wanted in (None, RangeByteRequest(5, 20), OffsetByteRequest(3), SuffixByteRequest(10)):
        assert store.get_sync("chunks/c/0/0", byte_range=wanted) is None
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("chunks/c/0/0"))

    # Orphans are no hindrance to a new one.
    array[:32] = 9
    assert np.all(array[:32] == 9)


@pytest.mark.parametrize("header", [64, 256, 700], ids=["of 64", "of an inner chunk", "of more than an inner chunk"])
def test_without_its_anchor_there_is_no_shard(bucket: Bucket, pipeline: str, header: int) -> None:
    store = PartsStore(bucket.store())
    create_shards(store, [Part(".header", size=header), Part(""), Part(".index", size=SHARD_INDEX)])
    bucket.client.remove_object(bucket.name, "shards/c/0/0")
    expected = VALUES.copy()
    expected[:32, :32] = 0
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for name, (wanted, _) in SHARD_SELECTIONS.items():
        np.testing.assert_array_equal(opened[wanted], expected[wanted], err_msg=name)


@pytest.mark.parametrize("suffix", [".head", "", ".tail"])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"], ids=["shorter", "longer"])
def test_a_part_of_another_size_is_named(
    bucket: Bucket, pipeline: str, suffix: str, change: Callable[[bytes], bytes]
) -> None:
    array = create_chunks(PartsStore(bucket.store()))
    part_key = f"chunks/c/0/0{suffix}"
    data = bucket.read(part_key)
    retag(bucket, part_key, change(data))
    for _ in range(2):
        with pytest.raises(PartSizeError) as caught:
            array[...]
        assert caught.value.args == (part_key, len(data), len(change(data)))


@pytest.mark.parametrize("suffix", [".header", "", ".index"])
@pytest.mark.parametrize("kept", [0, 10], ids=["to nothing", "to ten bytes"])
def test_a_truncated_part_of_a_shard_is_named(bucket: Bucket, pipeline: str, suffix: str, kept: int) -> None:
    create_shards(PartsStore(bucket.store()))
    part_key = f"shards/c/0/0{suffix}"
    nbytes = len(bucket.read(part_key))
    retag(bucket, part_key, bucket.read(part_key)[:kept])
    opened = zarr.open_array(PartsStore(bucket.store()), path="shards")
    for wanted, touched in SHARD_SELECTIONS.values():
        if suffix in touched:
            with pytest.raises(PartSizeError) as caught:
                opened[wanted]
            assert caught.value.args == (part_key, nbytes, kept)
        else:
            np.testing.assert_array_equal(opened[wanted], VALUES[wanted])
