"""zarr's own conformance suite and state machine on Icechunk sessions, with plain arrays, whole ones and split ones.

A session keeps the documents of nodes, and chunks in the grid of an array that is there, none of them empty. Where
zarr's suite writes other keys or values, the test is replaced by one of the same promise on what a session can keep.
"""

import json
import pickle
from typing import Any, Self, override

import icechunk
import pytest
from hypothesis.errors import UnsatisfiedAssumption
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator
from zarr.testing.stateful import ZarrHierarchyStateMachine
from zarr.testing.store import StoreTests

from parts_store import ConcatParts, Part, PartsStore
from parts_store.errors import SessionError
from parts_store.format.keys import is_node_key, is_protocol_key
from tests.backends.icechunk_session.stores import cut, require_ours
from tests.machines import run

GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
PARTS = ConcatParts([Part(".head", size=1), "", Part(".tail", size=1)])
VALUE = b"\x01\x02\x03\x04"


def document(ndim: int, *, parts: bool, split: bool = False) -> bytes:
    """Return the stored document of an array of bytes with 2000 chunks in each dimension."""
    stored: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2000] * ndim,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * ndim}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    if parts:
        stored["storage_transformers"] = [PARTS.to_json()]
    if split:
        placing = {"placing": "split"}
        stored["parts_store"] = {"name": "parts_store", "configuration": placing, "must_understand": False}
    return json.dumps(stored).encode()


class InSession(PartsStore):
    """A store on a session; zarr's suite makes stores by their class."""

    def __init__(self, session: icechunk.Session, *, read_only: bool = False) -> None:
        made = PartsStore.from_session(session, read_only=read_only)
        self.__dict__.update(made.__dict__)

    @classmethod
    @override
    async def open(cls, *arguments: Any, **options: Any) -> Self:
        store = cls(*arguments, **options)
        await store._open()
        return store


class Contract(StoreTests[InSession, cpu.Buffer]):
    """The arrays are at `foo`, of one dimension, and at `foo2`, of two."""

    store_cls = InSession
    buffer_cls = cpu.Buffer
    in_parts = False
    is_split = False

    def document(self, ndim: int) -> bytes:
        return document(ndim, parts=self.in_parts, split=self.is_split)

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        session = repository.writable_session("main")
        return {"session": session}

    def make_arrays(self, store: InSession) -> None:
        """Icechunk keeps no chunk without its array."""
        for path, ndim in (("foo", 1), ("foo2", 2)):
            store.set_sync(f"{path}/zarr.json", cpu.Buffer.from_bytes(self.document(ndim)))

    def part_keys(self, key: str) -> list[str]:
        """Where the parts of a chunk are, by the design."""
        path, _, rest = key.partition("/")
        return [f"{path}/__parts__/.head/{rest}", key, f"{path}/__parts__/.tail/{rest}"]

    async def set(self, store: InSession, key: str, value: Buffer) -> None:
        if not await store.session.store.exists("foo/zarr.json"):
            for path, ndim in (("foo", 1), ("foo2", 2)):
                await store.set(f"{path}/zarr.json", cpu.Buffer.from_bytes(self.document(ndim)))
        if self.is_split and "/c/" in key:
            data = value.to_bytes()
            pieces = (data[:1], data[1:-1], data[-1:])
            for part_key, piece in zip(self.part_keys(key), pieces, strict=True):
                await store.session.store.set(part_key, cpu.Buffer.from_bytes(piece))
        else:
            await store.session.store.set(key, value)

    async def get(self, store: InSession, key: str) -> Buffer:
        keys = self.part_keys(key) if self.is_split and "/c/" in key else [key]
        found = [await store.session.store.get(each, default_buffer_prototype()) for each in keys]
        return cpu.Buffer.from_bytes(b"".join(each.to_bytes() for each in found))

    def test_store_repr(self, store: InSession) -> None:
        assert repr(store).startswith("PartsStore(icechunk session on main at ")

    def test_store_supports_writes(self, store: InSession) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: InSession) -> None:
        assert store.supports_listing

    # Icechunk wants a writable session forked before it goes to another process.
    async def test_serializable_store(self, store: InSession) -> None:
        with pytest.raises(pickle.PicklingError, match="fork the session"):
            pickle.dumps(store)

    # The suite writes 'foo', which is no key of a node.
    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await self.store_cls.open(**{**open_kwargs, "read_only": True})
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        assert not writer.read_only
        await writer.set("foo/zarr.json", cpu.Buffer.from_bytes(GROUP))
        await writer.delete("foo/zarr.json")
        for reader in (store, store.with_read_only(read_only=True)):
            assert reader.read_only
            with pytest.raises(ValueError, match="read-only mode"):
                await reader.set("foo/zarr.json", cpu.Buffer.from_bytes(GROUP))
            with pytest.raises(ValueError, match="read-only mode"):
                await reader.delete("foo/zarr.json")

    # Chunks are at 'c/0' of an array with '/' as separator, and never empty.
    @pytest.mark.parametrize("key", ["foo/c/0", "foo2/c/3/4"])
    @pytest.mark.parametrize(
        ("data", "byte_range"),
        [
            (VALUE, None),
            (VALUE, RangeByteRequest(1, 4)),
            (VALUE, OffsetByteRequest(1)),
            (VALUE, SuffixByteRequest(1)),
        ],
    )
    async def test_get(self, store: InSession, key: str, data: bytes, byte_range: ByteRequest | None) -> None:
        await super().test_get(store, key, data, byte_range)  # type: ignore[arg-type]  # None is a request too

    # The suite's key is a chunk of an array at the root, where the other arrays of these tests are.
    async def test_get_not_open(self, store_not_open: InSession) -> None:
        assert not store_not_open._is_open
        await self.set(store_not_open, "foo/c/0", cpu.Buffer.from_bytes(VALUE))
        found = await store_not_open.get("foo/c/0", prototype=default_buffer_prototype())
        assert found is not None
        assert found.to_bytes() == VALUE

    # As above.
    async def test_get_raises(self, store: InSession) -> None:
        await self.set(store, "foo/c/0", cpu.Buffer.from_bytes(VALUE))
        with pytest.raises((ValueError, TypeError), match=r"Unexpected byte_range, got.*"):
            await store.get("foo/c/0", prototype=default_buffer_prototype(), byte_range=(0, 2))  # type: ignore[arg-type]

    # The suite's keys '0' to '9' are no keys of a session.
    async def test_get_many(self, store: InSession) -> None:
        values = {f"foo/c/{number}": f"value {number}".encode() for number in range(10)}
        for key, value in values.items():
            await self.set(store, key, cpu.Buffer.from_bytes(value))
        found = await _collect_aiterator(store._get_many((key, default_buffer_prototype(), None) for key in values))
        assert {key: None if buffer is None else buffer.to_bytes() for key, buffer in found} == values

    # As for `test_get`.
    @pytest.mark.parametrize("key", ["foo/c/0", "foo2/c/3/4"])
    @pytest.mark.parametrize("data", [VALUE])
    async def test_getsize(self, store: InSession, key: str, data: bytes) -> None:
        await super().test_getsize(store, key, data)

    # The suite's folders are those of chunks of arrays at the root; here `foo2` is not below `foo`.
    async def test_getsize_prefix(self, store: InSession) -> None:
        keys = ["foo/c/0", "foo/c/1", "foo/c/11"]
        for key in [*keys, "foo2/c/0/0"]:
            await self.set(store, key, cpu.Buffer.from_bytes(VALUE))
        stored = len((await self.get(store, "foo/zarr.json")).to_bytes())
        for slash in ("", "/"):
            assert await store.getsize_prefix(f"foo/c{slash}") == len(VALUE) * len(keys)
            assert await store.getsize_prefix(f"foo/c/1{slash}") == 0
            assert await store.getsize_prefix(f"foo2/c/0{slash}") == len(VALUE)
            assert await store.getsize_prefix(f"foo{slash}") == len(VALUE) * len(keys) + stored

    # Documents are not any bytes, and chunks as for `test_get`.
    @pytest.mark.parametrize("key", ["zarr.json", "foo/c/0", "foo2/c/3/4"])
    @pytest.mark.parametrize("data", [VALUE])
    async def test_set(self, store: InSession, key: str, data: bytes) -> None:
        value = GROUP if key == "zarr.json" else data
        await self.set(store, "foo/c/1", cpu.Buffer.from_bytes(VALUE))
        await store.set(key, cpu.Buffer.from_bytes(value))
        assert (await self.get(store, key)).to_bytes() == value

    # As for `test_get_not_open`.
    async def test_set_not_open(self, store_not_open: InSession) -> None:
        await self.set(store_not_open, "foo/c/1", cpu.Buffer.from_bytes(VALUE))
        assert not store_not_open._is_open
        await store_not_open.set("foo/c/0", cpu.Buffer.from_bytes(VALUE))
        assert (await self.get(store_not_open, "foo/c/0")).to_bytes() == VALUE

    # As for `test_set`; the documents first, for without them there are no chunks.
    async def test_set_many(self, store: InSession) -> None:
        documents = {"zarr.json": GROUP, "foo/zarr.json": self.document(1), "foo2/zarr.json": self.document(2)}
        chunks = {"foo/c/0": b"first", "foo/c/9": b"second", "foo2/c/0/0": b"third"}
        for values in (documents, chunks):
            await store._set_many((key, cpu.Buffer.from_bytes(value)) for key, value in values.items())
        for key, value in {**documents, **chunks}.items():
            assert (await self.get(store, key)).to_bytes() == value

    # As for `test_set`.
    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("zarr.json", RangeByteRequest(0, 2))],
            [("foo/c/0", RangeByteRequest(0, 2)), ("zarr.json", None)],
            [
                ("foo2/c/0/0", RangeByteRequest(0, 2)),
                ("foo2/c/0/1", SuffixByteRequest(2)),
                ("foo2/c/0/2", OffsetByteRequest(2)),
            ],
            [("foo/c/0", RangeByteRequest(0, 2)), ("foo/c/1000", None), ("foo/c/0", SuffixByteRequest(9))],
        ],
    )
    async def test_get_partial_values(self, store: InSession, key_ranges: list[tuple[str, Any]]) -> None:
        values = {key: GROUP if key == "zarr.json" else key.encode() for key, _ in key_ranges if key != "foo/c/1000"}
        for key, value in values.items():
            await self.set(store, key, cpu.Buffer.from_bytes(value))
        found = await store.get_partial_values(default_buffer_prototype(), (each for each in key_ranges))
        expected = [None if key not in values else cut(values[key], wanted) for key, wanted in key_ranges]
        assert [None if each is None else each.to_bytes() for each in found] == expected

    # A document is not any bytes.
    async def test_exists(self, store: InSession) -> None:
        assert not await store.exists("foo")
        await store.set("foo/zarr.json", cpu.Buffer.from_bytes(GROUP))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo/.zgroup")

    # As above.
    async def test_delete(self, store: InSession) -> None:
        await self.set(store, "foo/c/0", cpu.Buffer.from_bytes(VALUE))
        for key in ("foo/c/0", "foo/zarr.json"):
            assert await store.exists(key)
            await store.delete(key)
            assert not await store.exists(key)

    # As above.
    async def test_delete_dir(self, store: InSession) -> None:
        for key in ("zarr.json", "foo-bar/zarr.json"):
            await store.set(key, cpu.Buffer.from_bytes(GROUP))
        await self.set(store, "foo/c/0", cpu.Buffer.from_bytes(VALUE))
        await store.delete_dir("foo")
        assert await store.exists("zarr.json")
        assert await store.exists("foo-bar/zarr.json")
        assert await store.exists("foo2/zarr.json")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")
        assert not [key async for key in store.session.store.list() if key.startswith("foo/")]

    # The suite writes 'foo/bar', which is no key of a session.
    async def test_is_empty(self, store: InSession) -> None:
        assert await store.is_empty("")
        await store.set("foo/bar/zarr.json", cpu.Buffer.from_bytes(GROUP))
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    # The suite writes 'key'.
    async def test_clear(self, store: InSession) -> None:
        await self.set(store, "foo/c/0", cpu.Buffer.from_bytes(VALUE))
        await store.clear()
        assert await store.is_empty("")
        assert not [key async for key in store.session.store.list()]

    # Documents are not empty, and chunks neither.
    async def test_list(self, store: InSession) -> None:
        assert await _collect_aiterator(store.list()) == ()
        keys = [f"foo/c/{number}" for number in range(10)]
        for key in keys:
            await self.set(store, key, cpu.Buffer.from_bytes(VALUE))
        expected = ["foo/zarr.json", *keys, "foo2/zarr.json"]
        assert sorted(await _collect_aiterator(store.list())) == sorted(expected)

    # As above.
    async def test_list_prefix(self, store: InSession) -> None:
        keys = ["zarr.json", "a/zarr.json", "a/b/zarr.json", "a/b/c/zarr.json"]
        for key in keys:
            await store.set(key, cpu.Buffer.from_bytes(GROUP))
        for prefix in ("", "a/", "a/b/", "a/b/c/", "a", "a/b"):
            expected = [key for key in keys if not prefix or key.startswith(prefix.rstrip("/") + "/")]
            assert sorted(await _collect_aiterator(store.list_prefix(prefix))) == sorted(expected)

    # As above.
    async def test_list_empty_path(self, store: InSession) -> None:
        await self.set(store, "foo/c/1", cpu.Buffer.from_bytes(VALUE))
        await store.set("bar/baz/zarr.json", cpu.Buffer.from_bytes(GROUP))
        expected = ["bar/baz/zarr.json", "foo/c/1", "foo/zarr.json", "foo2/zarr.json"]
        assert sorted(await _collect_aiterator(store.list())) == expected
        assert sorted(await _collect_aiterator(store.list_prefix(""))) == expected
        assert sorted(await _collect_aiterator(store.list_prefix("foo/"))) == expected[1:3]
        assert sorted(await _collect_aiterator(store.list_prefix("foo/c"))) == expected[1:2]

    # As above; and Icechunk shows of a folder what is in it only if it is a node, as zarr makes all of them.
    async def test_list_dir(self, store: InSession) -> None:
        for root in ("", "foo", "foo/c", "bar"):
            assert await _collect_aiterator(store.list_dir(root)) == ()
        await self.set(store, "foo/c/1", cpu.Buffer.from_bytes(VALUE))
        await self.set(store, "foo2/c/1/5", cpu.Buffer.from_bytes(VALUE))
        for key in ("zarr.json", "bar/zarr.json", "bar/baz/zarr.json"):
            await store.set(key, cpu.Buffer.from_bytes(GROUP))
        expected = {
            "": ["bar", "foo", "foo2", "zarr.json"],
            "foo": ["c", "zarr.json"],
            "foo/c": ["1"],
            "foo2/c/1": ["5"],
            "bar": ["baz", "zarr.json"],
            "bar/baz": ["zarr.json"],
            "bar/b": [],
        }
        for root, names in expected.items():
            for slash in ("", "/") if root else ("",):
                assert sorted(await _collect_aiterator(store.list_dir(root + slash))) == names

    # The suite writes 'k'.
    async def test_set_if_not_exists(self, store: InSession) -> None:
        await self.set(store, "foo/c/0", cpu.Buffer.from_bytes(b"0000"))
        for key, expected in (("foo/c/0", b"0000"), ("foo/c/1", b"1111")):
            await store.set_if_not_exists(key, cpu.Buffer.from_bytes(b"1111"))
            assert (await self.get(store, key)).to_bytes() == expected
        await store.set_if_not_exists("foo/zarr.json", cpu.Buffer.from_bytes(GROUP))
        assert (await self.get(store, "foo/zarr.json")).to_bytes() == self.document(1)
        await store.set_if_not_exists("bar/zarr.json", cpu.Buffer.from_bytes(GROUP))
        assert (await self.get(store, "bar/zarr.json")).to_bytes() == GROUP

    # The suite writes 'sync_get', and so on. What these tests promise is in the test after them.
    test_get_sync = test_set_sync = test_delete_sync = None  # type: ignore[assignment]  # not collected
    test_delete_sync_visible_to_async_get = None  # type: ignore[assignment]  # not collected

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: InSession, direction: str) -> None:
        self.make_arrays(store)
        if direction == "set_sync_get_async":
            store.set_sync("foo/c/0", cpu.Buffer.from_bytes(VALUE))
        else:
            await store.set("foo/c/0", cpu.Buffer.from_bytes(VALUE))
        assert (await self.get(store, "foo/c/0")).to_bytes() == VALUE
        for found in (store.get_sync("foo/c/0"), await store.get("foo/c/0", prototype=default_buffer_prototype())):
            assert found is not None
            assert found.to_bytes() == VALUE
        store.delete_sync("foo/c/0")
        assert store.get_sync("foo/c/0") is None
        assert await store.get("foo/c/0", prototype=default_buffer_prototype()) is None

    @pytest.mark.parametrize(
        "byte_range",
        [None, RangeByteRequest(1, 4), OffsetByteRequest(1), SuffixByteRequest(1), RangeByteRequest(10, 20)],
        ids=["none", "range", "offset", "suffix", "range-past-eof"],
    )
    async def test_get_sync_byte_range_parity(self, store: InSession, byte_range: ByteRequest | None) -> None:
        self.make_arrays(store)
        await store.set("foo/c/0", cpu.Buffer.from_bytes(VALUE))
        for found in (
            store.get_sync("foo/c/0", byte_range=byte_range),
            await store.get("foo/c/0", prototype=default_buffer_prototype(), byte_range=byte_range),
        ):
            assert found is not None
            assert found.to_bytes() == cut(VALUE, byte_range)

    @pytest.mark.parametrize(
        "key", ["foo", "", "foo/bar", "foo/c/0.0", "foo/0/0", "a/../c/0", "foo/c/2000", "foo/c/99999999999"]
    )
    async def test_key_that_a_session_cannot_store_is_absent_and_refused(self, store: InSession, key: str) -> None:
        self.make_arrays(store)
        before = {key async for key in store.session.store.list()}
        assert await store.get(key, default_buffer_prototype()) is None
        assert await store.get(key, default_buffer_prototype(), RangeByteRequest(0, 1)) is None
        assert not await store.exists(key)
        with pytest.raises(FileNotFoundError):
            await store.getsize(key)
        await store.delete(key)
        with pytest.raises(SessionError) as caught:
            await store.set(key, cpu.Buffer.from_bytes(VALUE))
        require_ours(caught.value)
        assert {key async for key in store.session.store.list()} == before


class TestPlain(Contract):
    """Arrays without parts."""


class TestWhole(Contract):
    """Arrays in parts, each chunk one of Icechunk's."""

    in_parts = True


class TestSplit(Contract):
    """Arrays in parts, each part a chunk of a node of its own."""

    in_parts = True
    is_split = True


EVERY_ARRAY_IN_PARTS = {"*": [Part(""), Part(".tail", size=1)]}


class UnreservedKeys(InSession):
    """Gives up an example that draws a name which is reserved here, or a document that Icechunk does not take."""

    @override
    async def set(self, key: str, value: Buffer) -> None:
        if is_protocol_key(key) or is_node_key(key):
            raise UnsatisfiedAssumption(f"{key!r} is reserved")
        await super().set(key, value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "whole", "split"])
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_zarrs_hierarchy_machine_finds_no_difference(kind: str) -> None:
    class Machine(ZarrHierarchyStateMachine):
        def __init__(self) -> None:
            repository = icechunk.Repository.create(icechunk.in_memory_storage())
            store = UnreservedKeys(repository.writable_session("main"))
            patterns = {} if kind == "plain" else EVERY_ARRAY_IN_PARTS
            super().__init__(store.with_parts(patterns, split=kind == "split"))

    run(Machine, 12)
