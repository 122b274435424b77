"""zarr's own test suite and state machines, on a bucket."""

import asyncio
import itertools
import re
from typing import Any

import obstore
import pytest
from obstore.store import S3Store
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.stateful import ZarrStoreStateMachine
from zarr.testing.store import StoreTests

from integration.conftest import Bucket
from integration.store.arrays import document
from parts_store import Part, PartsStore
from parts_store.errors import ChunkSizeError
from parts_store.store.options import Concurrency
from tests.machines import ObjectStoreMachine, UnreservedKeys, run

LEVELS: tuple[Concurrency, ...] = ("exclusive", "writers", "full")


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


@pytest.mark.parametrize(
    ("parts", "concurrency"),
    [(None, "writers"), *(({"*": [Part(""), Part(".tail", size=0)]}, level) for level in LEVELS)],
    ids=["plain", *LEVELS],
)
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_zarrs_state_machines_find_no_difference(bucket: Bucket, parts: Any, concurrency: Concurrency) -> None:
    numbers = itertools.count()

    class Hierarchy(ObjectStoreMachine):
        def __init__(self) -> None:
            objects = bucket.store(f"hierarchy-{next(numbers)}")
            super().__init__(UnreservedKeys(objects, parts=parts, concurrency=concurrency))

    class Store(ZarrStoreStateMachine):
        def __init__(self) -> None:
            objects = bucket.store(f"store-{next(numbers)}")
            super().__init__(UnreservedKeys(objects, parts=parts, concurrency=concurrency))

    for machine in (Hierarchy, Store):
        run(machine, 15, steps=15)


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
        # Parts of another writer may be among them: they are hidden, and stay until the next write or repair.
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
    """Return the keys of the suite that are chunks of a known array."""
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
