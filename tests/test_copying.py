"""Copies from any store to any other: what arrives, in which order, what is refused, and what a failure leaves."""

import asyncio
import itertools
import json
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import icechunk
import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import AzureStore, HTTPStore, LocalStore, MemoryStore, S3Store
from zarr.core.buffer import Buffer, BufferPrototype, cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.object_store import ObjectBackend, address_of
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Done, Outcome, Put, Steps
from parts_store.errors import (
    ConcurrentWriteError,
    CopyMismatchError,
    PartsConfigError,
    ReadOnlySessionError,
    ReservedKeyError,
    SessionError,
    StoreConfigError,
    UnknownTransformerError,
)

TWO = [ps.Part(""), ps.Part(".tail", size=2)]
INDEXED = [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
TWO_VALUES: NDArray[Any] = np.arange(1, 17, dtype="uint16")
SHARD_VALUES: NDArray[Any] = np.random.default_rng(0).integers(1, 250, (8, 8)).astype("uint8")
PLAIN_VALUES: NDArray[Any] = np.linspace(0, 1, 6)
FILL = 7


@dataclass
class Place:
    """A store, and what is really there, seen without it."""

    store: ps.PartsStore
    raw: Callable[[], dict[str, bytes]]
    session: Any = None
    repository: Any = None


def objects_in(objects: Any) -> dict[str, bytes]:
    keys = sorted(each["path"] for each in obstore.list(objects).collect())
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys}


def chunks_in(session: Any) -> dict[str, bytes]:
    """Everything that Icechunk itself says is in a session, the nodes of parts included."""

    async def collect() -> dict[str, bytes]:
        store = session.store
        keys = [key async for key in store.list()]
        found = {key: await store.get(key, default_buffer_prototype()) for key in sorted(keys)}
        return {key: value.to_bytes() for key, value in found.items() if value is not None}

    return sync(collect())


def new_place(kind: str, folder: Path, cls: type[ps.PartsStore] = ps.PartsStore, **options: Any) -> Place:
    if kind in ("session", "whole", "split"):
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        session = repository.writable_session("main")
        return Place(cls.from_session(session, **options), lambda: chunks_in(session), session, repository)
    objects: Any = MemoryStore()
    if kind == "disk":
        objects = LocalStore(folder / f"objects-{len(list(folder.iterdir()))}", mkdir=True, automatic_cleanup=True)
    return Place(cls(objects, **options), lambda: objects_in(objects))


def fill(store: ps.PartsStore, *, split: bool = False, below: str = "") -> None:
    """Nested groups, arrays with parts, in shards and not, one of them without some chunks, one without dimensions."""
    root = zarr.create_group(store, path=below, attributes={"of": "the root"})
    root.create_group("deep", attributes={"depth": 1}).create_group("er", attributes={"depth": [2, None]})
    at = f"{below}/" if below else ""
    arguments: dict[str, Any] = {"split": True} if split else {}
    two = ps.create_array(
        store,
        f"{at}two",
        parts=TWO,
        shape=(16,),
        chunks=(4,),
        dtype="uint16",
        compressors=None,
        fill_value=FILL,
        attributes={"unit": "m", "weird": {"nested": [1.5, "ü"]}},
        **arguments,
    )
    two[:4], two[8:] = TWO_VALUES[:4], TWO_VALUES[8:]
    shards = ps.create_array(
        store,
        f"{at}deep/er/shards",
        parts=INDEXED,
        shape=(8, 8),
        chunks=(2, 2),
        shards=(4, 4),
        dtype="uint8",
        **arguments,
    )
    shards[...] = SHARD_VALUES
    scalar = ps.create_array(store, f"{at}deep/scalar", parts=TWO, shape=(), dtype="int32", **arguments)
    scalar[...] = -5
    ps.create_array(store, f"{at}empty", parts=TWO, shape=(4,), chunks=(2,), dtype="uint8", **arguments)
    plain = zarr.create_array(
        store, name=f"{at}deep/plain", shape=(6,), chunks=(4,), dtype="float64", fill_value=np.nan
    )
    plain[...] = PLAIN_VALUES


# What `fill` writes: the chunks by their keys, and the nodes.
CHUNKS = [
    *("deep/er/shards/c/0/0", "deep/er/shards/c/0/1", "deep/er/shards/c/1/0", "deep/er/shards/c/1/1"),
    *("deep/plain/c/0", "deep/plain/c/1", "deep/scalar/c", "two/c/0", "two/c/2", "two/c/3"),
]
ARRAYS = ("two", "deep/er/shards", "deep/scalar", "empty", "deep/plain")
PARTS = {"two": TWO, "deep/er/shards": INDEXED, "deep/scalar": TWO, "empty": TWO}


def require_filled(store: ps.PartsStore, below: str = "") -> None:
    """What `fill` wrote is there, as zarr sees it."""
    root = zarr.open_group(store, path=below, mode="r")
    two: Any = root["two"]
    assert two[...].tolist() == [1, 2, 3, 4, FILL, FILL, FILL, FILL, *range(9, 17)]
    assert two.fill_value == FILL
    assert dict(two.attrs) == {"unit": "m", "weird": {"nested": [1.5, "ü"]}}
    shards: Any = root["deep/er/shards"]
    assert np.array_equal(shards[...], SHARD_VALUES)
    assert np.array_equal(shards[1:3, 5:6], SHARD_VALUES[1:3, 5:6])
    assert (shards.chunks, shards.shards) == ((2, 2), (4, 4))
    scalar: Any = root["deep/scalar"]
    assert scalar[...] == -5
    plain: Any = root["deep/plain"]
    assert np.array_equal(plain[...], PLAIN_VALUES)
    assert np.isnan(plain.fill_value)
    empty: Any = root["empty"]
    assert not empty[...].any()
    assert dict(root.attrs) == {"of": "the root"}
    assert dict(root["deep"].attrs) == {"depth": 1}
    assert dict(root["deep/er"].attrs) == {"depth": [2, None]}


@pytest.fixture(scope="module")
def reference() -> dict[str, bytes]:
    """The objects of the same arrays on a store in memory, which nothing was copied to."""
    objects = MemoryStore()
    fill(ps.PartsStore(objects))
    return objects_in(objects)


def whole_chunks(objects: dict[str, bytes]) -> dict[str, bytes]:
    """The chunks, put together from objects at their keys and suffixes."""
    chunks = {}
    for key in CHUNKS:
        suffixes = next(([each.key_suffix for each in PARTS[path]] for path in PARTS if key.startswith(path)), [""])
        chunks[key] = b"".join(objects[key + suffix] for suffix in suffixes)
    return chunks


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("destination_kind", ["memory", "disk", "session"])
@pytest.mark.parametrize("source_kind", ["memory", "disk", "whole", "split"])
def test_everything_arrives_whatever_it_is_copied_from_and_to(
    source_kind: str, destination_kind: str, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    source, destination = new_place(source_kind, tmp_path), new_place(destination_kind, tmp_path)
    fill(source.store, split=source_kind == "split")
    before = source.raw()
    copied = ps.copy(source.store, destination.store)
    nbytes = sum(map(len, whole_chunks(reference).values()))
    assert copied == ps.Copied(groups=3, arrays=5, chunks=10, nbytes=nbytes)
    require_filled(destination.store)
    assert source.raw() == before
    found = destination.raw()
    if destination_kind == "session":
        # One chunk each, no nodes of parts, and every document as it is stored elsewhere.
        assert {key: data for key, data in found.items() if key in CHUNKS} == whole_chunks(reference)
        assert {key for key in found if not key.endswith("zarr.json")} == set(CHUNKS)
        destination.session.commit("copied")
        committed = destination.repository.readonly_session("main")
        require_filled(ps.PartsStore.from_session(committed))
    else:
        assert found.keys() == reference.keys()
        assert {key: data for key, data in found.items() if not key.endswith("zarr.json")} == {
            key: data for key, data in reference.items() if not key.endswith("zarr.json")
        }
    documents = {key: json.loads(data) for key, data in found.items() if key.endswith("zarr.json")}
    expected = {key: json.loads(data) for key, data in reference.items() if key.endswith("zarr.json")}
    marked = {key for key, document in expected.items() if document.get("parts_store") == {"must_understand": True}}
    assert marked == {key for key, document in expected.items() if document.get("storage_transformers")}
    if destination_kind == "session":
        # There each chunk is whole, and plain readers read it right.
        expected = {
            key: {member: value for member, value in document.items() if member != "parts_store"}
            for key, document in expected.items()
        }
    assert documents == expected
    assert destination.store.verify().findings == ()


@pytest.mark.parametrize("destination_kind", ["memory", "session"])
def test_an_array_alone_goes_to_another_path_with_the_groups_above_it(destination_kind: str, tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place(destination_kind, tmp_path)
    fill(source.store)
    zarr.create_group(destination.store, path="old", attributes={"kept": True})
    copied = ps.copy(source.store, destination.store, path="/deep/er/shards/", to="old/new/er")
    assert (copied.groups, copied.arrays, copied.chunks) == (0, 1, 4)
    root = zarr.open_group(destination.store, mode="r")
    array: Any = root["old/new/er"]
    assert np.array_equal(array[...], SHARD_VALUES)
    assert dict(root["old"].attrs) == {"kept": True}
    assert destination.store.parts_of("old/new/er") == source.store.parts_of("deep/er/shards")
    assert [key for key in destination.raw() if key.startswith("deep")] == []


def test_the_same_store_takes_a_copy_at_another_path(tmp_path: Path) -> None:
    place = new_place("memory", tmp_path)
    fill(place.store, below="a")
    ps.copy(place.store, place.store, path="a", to="ab")
    require_filled(place.store, "a")
    require_filled(place.store, "ab")


def test_an_array_at_the_root_goes_below_and_back(tmp_path: Path) -> None:
    first, second, third = (new_place("memory", tmp_path) for _ in range(3))
    array = ps.create_array(first.store, parts=TWO, shape=(4,), chunks=(2,), dtype="uint16", compressors=None)
    array[...] = TWO_VALUES[:4]
    ps.copy(first.store, second.store, to="x/y")
    assert second.raw()["x/y/c/1.tail"] == TWO_VALUES[3:4].tobytes()
    ps.copy(second.store, third.store, path="x/y", to="")
    assert third.raw() == first.raw()


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_between_object_stores_everything_stays_byte_for_byte(tmp_path: Path) -> None:
    source = new_place("memory", tmp_path)
    fill(source.store)
    zarr.consolidate_metadata(source.store)
    old = zarr.create_group(source.store, path="v2", zarr_format=2, attributes={"old": 1})
    old.create_array("a", shape=(4, 4), chunks=(2, 2), dtype="uint8", attributes={"b": 2})[...] = 3
    for key, value in (("README.md", b"hello"), ("odd/zarr.json", b"{ no JSON"), ("two/c/0.other", b"else")):
        sync(source.store.set(key, cpu.Buffer.from_bytes(value)))
    for kind in ("memory", "disk"):
        destination = new_place(kind, tmp_path)
        copied = ps.copy(source.store, destination.store)
        assert destination.raw() == source.raw()
        assert (copied.groups, copied.arrays, copied.chunks) == (4, 6, len(CHUNKS) + 4 + 2)
        group: Any = zarr.open_group(destination.store, path="v2", zarr_format=2, mode="r")
        assert group["a"][...].tolist() == [[3] * 4] * 4


def test_groups_above_an_array_of_zarr_v2_are_of_zarr_v2(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    zarr.create_array(source.store, name="a", shape=(4,), chunks=(2,), dtype="uint8", zarr_format=2)[...] = 3
    ps.copy(source.store, destination.store, path="a", to="x/b")
    root: Any = zarr.open_group(destination.store, mode="r", zarr_format=2)
    assert root["x/b"][...].tolist() == [3] * 4
    assert not [key for key in destination.raw() if key.endswith("zarr.json")]


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_consolidated_metadata_does_not_go_into_a_session(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("session", tmp_path)
    fill(source.store)
    zarr.consolidate_metadata(source.store)
    assert b"consolidated_metadata" in source.raw()["zarr.json"]
    ps.copy(source.store, destination.store)
    assert b"consolidated_metadata" not in destination.raw()["zarr.json"]
    require_filled(destination.store)


def test_references_into_files_are_copied_as_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/old.bin").write_bytes(b"....\x01\x02\x03\x04....")
    config = icechunk.RepositoryConfig.default()
    url = f"file://{tmp_path}/files/"
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(url, icechunk.local_filesystem_store(f"{tmp_path}/files"))
    )
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        authorize_virtual_chunk_access={url: icechunk.credentials.LocalFileSystemAccess},
    )
    source, destination = ps.PartsStore.from_session(repository.writable_session("main")), MemoryStore()
    ps.create_array(
        source, "a", parts=["", ps.Part(".tail", size=2)], shape=(6,), dtype="uint8", split=True, compressors=None
    )
    source.set_parts("a/c/0", [ps.Reference(f"{url}old.bin", 4, 4), b"\x05\x06"])
    ps.copy(source, ps.PartsStore(destination))
    found = objects_in(destination)
    assert (found["a/c/0"], found["a/c/0.tail"]) == (b"\x01\x02\x03\x04", b"\x05\x06")


def test_what_is_copied_says_so_in_words() -> None:
    assert str(ps.Copied(1, 2, 1000, 1)) == "1 group, 2 arrays, 1,000 chunks, 1 byte"


def test_a_copy_gets_no_other_parts_than_its_original(tmp_path: Path) -> None:
    source = new_place("memory", tmp_path)
    destination = new_place("memory", tmp_path, parts={"*": [ps.Part(".x", size=1), ps.Part("")]})
    fill(source.store)
    ps.copy(source.store, destination.store)
    assert destination.raw() == source.raw()


def test_what_a_store_knew_before_does_not_matter(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    for place in (source, destination):
        assert place.store.parts_of("two") is None
        assert sync(place.store.get("two/c/0", default_buffer_prototype())) is None
    # Another process writes what is copied, with other parts than those that were there first.
    elsewhere = ps.PartsStore(source.store.store)
    ps.create_array(source.store, "two", parts=INDEXED, shape=(4,), chunks=(2,), shards=(4,), dtype="uint8")
    sync(elsewhere.delete_dir(""))
    fill(elsewhere)
    ps.copy(source.store, destination.store)
    assert destination.raw() == source.raw()
    require_filled(destination.store)


def test_looking_at_the_destination_meanwhile_does_no_harm(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    fill(source.store)

    def look(done: int, total: int) -> None:
        for path in ARRAYS:
            assert destination.store.get_sync(f"{path}/zarr.json") is None
            assert destination.store.get_sync(f"{path}/c/0", byte_range=None) is None or done

    ps.copy(source.store, destination.store, progress=look, max_concurrency=1)
    assert destination.raw() == source.raw()
    require_filled(destination.store)


# --- overwriting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_what_is_overwritten_is_gone(kind: str, tmp_path: Path, reference: dict[str, bytes]) -> None:
    source, destination = new_place("memory", tmp_path), new_place(kind, tmp_path)
    fill(source.store)
    zarr.create_group(destination.store, path="beside", attributes={"kept": 1})
    split: dict[str, Any] = {"split": True} if kind == "session" else {}
    for path in ("x/two", "x/gone"):
        ps.create_array(destination.store, path, parts=TWO, shape=(64,), chunks=(8,), dtype="uint16", **split)[:] = 9
    ps.copy(source.store, destination.store, to="x", overwrite=True)
    require_filled(destination.store, "x")
    found = destination.raw()
    expected = [*CHUNKS, *documents_of(reference)] if kind == "session" else list(reference)
    assert {key for key in found if key.startswith("x/")} == {f"x/{key}" for key in expected}
    assert "beside/zarr.json" in found


def documents_of(objects: dict[str, bytes]) -> list[str]:
    return [key for key in objects if key.endswith("zarr.json")]


def test_leftovers_without_a_document_count_as_something(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    fill(source.store)
    obstore.put(destination.store.store, "two/c/1", b"not of this array")
    with pytest.raises(StoreConfigError, match="two/c/1"):
        ps.copy(source.store, destination.store)
    ps.copy(source.store, destination.store, overwrite=True)
    assert destination.raw() == source.raw()


# --- refusals ---------------------------------------------------------------------------------------------------------


def put(store: ps.PartsStore, key: str, data: bytes) -> None:
    obstore.put(store.store, key, data)


def with_document(store: ps.PartsStore, **members: Any) -> None:
    """Change members of the stored document of the array `two`."""
    document = json.loads(bytes(obstore.get(store.store, "two/zarr.json").bytes()))
    put(store, "two/zarr.json", json.dumps(document | members).encode())


def two_unsized(store: ps.PartsStore) -> None:
    with_document(store, storage_transformers=[ps.ConcatParts(["", ".b"]).to_json()])


def dotted(store: ps.PartsStore) -> None:
    encoding: Any = {"name": "default", "separator": "."}
    zarr.create_array(store, name="dots", shape=(4,), chunks=(2,), dtype="uint8", chunk_key_encoding=encoding)[...] = 1


def like_v2(store: ps.PartsStore) -> None:
    encoding: Any = {"name": "v2", "separator": "/"}
    zarr.create_array(store, name="v2", shape=(4,), chunks=(2,), dtype="uint8", chunk_key_encoding=encoding)[...] = 1


def of_v2(store: ps.PartsStore) -> None:
    zarr.create_array(store, name="old", shape=(4,), chunks=(2,), dtype="uint8", zarr_format=2)[...] = 1


REFUSALS: dict[str, tuple[str, Callable[[ps.PartsStore], object], dict[str, Any], type[Exception], str]] = {
    "nothing": ("memory", lambda _: None, {"path": "nowhere"}, StoreConfigError, "none at 'nowhere'"),
    "in an array": ("memory", lambda _: None, {"path": "two/c"}, StoreConfigError, "none at 'two/c'"),
    "something there": ("memory", lambda _: None, {"to": "old"}, StoreConfigError, "nothing there, or `overwrite"),
    "below an array": ("memory", lambda _: None, {"to": "old/c/x"}, StoreConfigError, "not in an array, as 'old'"),
    "in session, something": ("session", lambda _: None, {"to": "old"}, StoreConfigError, "nothing there"),
    "in session, below": ("session", lambda _: None, {"to": "old/x"}, StoreConfigError, "not in an array, as 'old'"),
    "protocol": ("memory", lambda _: None, {"to": "a/.parts-txn/b"}, ReservedKeyError, ".parts-txn"),
    "nodes of parts": ("session", lambda _: None, {"to": "old/__parts__/b"}, ReservedKeyError, "__parts__"),
    "nodes of no parts": ("session", lambda _: None, {"to": "__parts__/b"}, ReservedKeyError, "__parts__"),
    "dots": ("session", dotted, {}, SessionError, "'x/dots/zarr.json': chunk_key_encoding"),
    "like v2": ("session", like_v2, {}, SessionError, "'x/v2/zarr.json': chunk_key_encoding"),
    "of v2": ("session", of_v2, {}, SessionError, "Zarr v2"),
    "a file": ("session", lambda store: put(store, "deep/README", b"x"), {}, SessionError, "'x/deep/README'"),
    "no grid": ("session", lambda store: put(store, "deep/plain/c/2", b"x"), {}, SessionError, "deep/plain/c/2"),
    "no dimension": ("session", lambda store: put(store, "deep/plain/c/0/0", b"x"), {}, SessionError, "c/0/0"),
    "no JSON": ("session", lambda store: put(store, "odd/zarr.json", b"{"), {}, SessionError, "odd/zarr.json"),
    "no shape": ("session", lambda store: with_document(store, shape=4), {}, PartsConfigError, "shape"),
    "unsized": ("memory", two_unsized, {}, PartsConfigError, "array 'two'.*at most one part"),
    "transformer": (
        "memory",
        lambda store: with_document(store, storage_transformers=[{"name": "zip"}]),
        {},
        UnknownTransformerError,
        "zip",
    ),
    "path": ("memory", lambda _: None, {"path": 4}, StoreConfigError, "path: expected"),
    "no path": ("memory", lambda _: None, {"path": "a/../b"}, StoreConfigError, "path: expected"),
    "to": ("memory", lambda _: None, {"to": b"x"}, StoreConfigError, "to: expected"),
    "overwrite": ("memory", lambda _: None, {"overwrite": "no"}, StoreConfigError, "overwrite: expected"),
    "verify": ("memory", lambda _: None, {"verify": 1}, StoreConfigError, "verify: expected"),
    "no concurrency": ("memory", lambda _: None, {"max_concurrency": 0}, StoreConfigError, "max_concurrency"),
    "half concurrency": ("memory", lambda _: None, {"max_concurrency": 1.5}, StoreConfigError, "max_concurrency"),
    "progress": ("memory", lambda _: None, {"progress": 4}, StoreConfigError, "progress: expected"),
}
# Of these, something is wrong with the overwriting itself.
NOT_OVERWRITING = ("something there", "in session, something", "overwrite")


@pytest.mark.parametrize(
    ("name", "overwrite"),
    [
        (name, overwrite)
        for name in REFUSALS
        for overwrite in (False, True)
        if not overwrite or name not in NOT_OVERWRITING
    ],
)
def test_what_is_refused_changes_nothing(name: str, overwrite: bool, tmp_path: Path) -> None:
    kind, spoil, arguments, error, message = REFUSALS[name]
    source, destination = new_place("memory", tmp_path), new_place(kind, tmp_path)
    fill(source.store)
    spoil(source.store)
    zarr.create_array(destination.store, name="old", shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
    before, original = destination.raw(), source.raw()
    chosen: dict[str, Any] = {"to": "x", "overwrite": overwrite} | arguments
    with pytest.raises(error, match=message):
        ps.copy(source.store, destination.store, **chosen)
    assert destination.raw() == before
    assert source.raw() == original
    opened: Any = zarr.open_array(destination.store, path="old", mode="r")
    assert opened[...].tolist() == [1] * 4


def test_only_a_parts_store_is_copied_from_and_to() -> None:
    store = ps.PartsStore(MemoryStore())
    unknown: Any = MemoryStore()
    with pytest.raises(StoreConfigError, match="source: expected a PartsStore, found an object of type MemoryStore"):
        ps.copy(unknown, store)
    with pytest.raises(StoreConfigError, match="destination: expected a PartsStore"):
        ps.copy(store, unknown)
    with pytest.raises(StoreConfigError, match="can be listed"):
        ps.copy(ps.PartsStore(HTTPStore("https://example.invalid")), store)


def test_what_can_only_be_read_is_no_destination(tmp_path: Path) -> None:
    source, place = new_place("memory", tmp_path), new_place("session", tmp_path)
    fill(source.store)
    zarr.create_group(place.store)
    place.session.commit("done")
    with pytest.raises(ReadOnlySessionError):
        ps.copy(source.store, place.store)
    for store in (
        ps.PartsStore(MemoryStore(), read_only=True),
        ps.PartsStore.from_session(place.repository.readonly_session("main")),
    ):
        with pytest.raises(StoreConfigError, match="destination: expected a store that can be written"):
            ps.copy(source.store, store)


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
@pytest.mark.parametrize(("path", "to"), [("a", "a"), ("a", "a/b"), ("a/deep", "a"), ("", "b"), ("a", ""), ("", "")])
def test_nothing_is_copied_into_itself_nor_over_itself(kind: str, path: str, to: str, tmp_path: Path) -> None:
    place = new_place(kind, tmp_path)
    fill(place.store, below="a")
    before = place.raw()
    for twin in (place.store, place.store.with_read_only(read_only=True)):
        with pytest.raises(StoreConfigError, match="a path apart from"):
            ps.copy(twin, place.store, path=path, to=to, overwrite=True)
    assert place.raw() == before


def test_a_folder_of_the_same_disk_is_not_overwritten_by_itself(tmp_path: Path) -> None:
    whole = ps.PartsStore(LocalStore(tmp_path))
    fill(whole, below="a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for folder in ("a", "link"):
        inner = ps.PartsStore(LocalStore(tmp_path / folder))
        with pytest.raises(StoreConfigError, match="a path apart from"):
            ps.copy(whole, inner, path="a", to="", overwrite=True)
        with pytest.raises(StoreConfigError, match="a path apart from"):
            ps.copy(inner, whole, path="deep", to="a", overwrite=True)
    require_filled(whole, "a")


def test_two_ways_into_a_bucket_lead_to_one_place() -> None:
    def bucket(name: str, **options: Any) -> Any:
        return S3Store(name, region="us-east-1", **options)

    here = {"endpoint": "http://here:9000"}
    assert address_of(bucket("b", prefix="x/", access_key_id="1", secret_access_key="2", **here)) == (
        address_of(bucket("b", endpoint="http://here:9000/"))[0],
        "x",
    )
    assert address_of(bucket("b")) != address_of(bucket("c"))
    assert address_of(bucket("b")) != address_of(bucket("b", **here))
    assert address_of(AzureStore("b", account_name="one")) != address_of(AzureStore("b", account_name="two"))
    assert address_of(MemoryStore()) != address_of(MemoryStore())


# --- failures ---------------------------------------------------------------------------------------------------------


@dataclass
class Events:
    """What a store was asked for, and what is to go wrong."""

    sets: list[str] = field(default_factory=list)
    fails_at: int | None = None
    fails_late: bool = False
    reading: int = 0
    most_reading: int = 0
    reads: int = 0


class Watched(ps.PartsStore):
    """A store that fails at the n-th write, before or after it took place, and counts what is read at once."""

    events: Events

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self.events.sets.append(key)
        fails = len(self.events.sets) == self.events.fails_at
        if fails and not self.events.fails_late:
            raise OSError("the disk is full")
        await super().set(key, value)
        if fails:
            raise OSError("no answer came")

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: Any = None) -> Buffer | None:
        self.events.reads += 1
        self.events.reading += 1
        self.events.most_reading = max(self.events.most_reading, self.events.reading)
        await asyncio.sleep(0.001)
        try:
            return await super().get(key, prototype, byte_range)
        finally:
            self.events.reading -= 1


def new_watched(kind: str, folder: Path, cls: type[ps.PartsStore] = Watched, **events: Any) -> Place:
    place = new_place(kind, folder, cls)
    vars(place.store)["events"] = Events(**events)
    return place


def events_of(place: Place) -> Events:
    events: Events = vars(place.store)["events"]
    return events


@pytest.mark.slow
@pytest.mark.parametrize("fails_late", [False, True])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_copy_that_fails_at_any_write_leaves_nothing_behind(kind: str, fails_late: bool, tmp_path: Path) -> None:
    source = new_place("whole", tmp_path)
    fill(source.store)
    # Ten chunks, and the documents of five arrays, of three groups, and of the one above them.
    for number in range(1, 20):
        destination = new_watched(kind, tmp_path, fails_at=number, fails_late=fails_late)
        with pytest.raises(OSError, match=r"the disk is full|no answer came") as caught:
            ps.copy(source.store, destination.store, to="x", max_concurrency=3)
        assert not hasattr(caught.value, "__notes__")
        assert destination.raw() == {}
        assert destination.store.parts_of("x/two") is None
        events_of(destination).fails_at = None
        ps.copy(source.store, destination.store, to="x")
        require_filled(destination.store, "x")
    destination = new_watched(kind, tmp_path, fails_at=20)
    ps.copy(source.store, destination.store, to="x")


@pytest.mark.parametrize("written", [False, True])
def test_a_copy_that_fails_within_a_chunk_leaves_none_of_its_parts(
    written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = new_place("memory", tmp_path)
    fill(source.store)
    perform, puts = ObjectBackend.perform, itertools.count(1)
    fails_at = 0

    async def failing(backend: ObjectBackend, request: BackendRequest) -> Outcome:
        fails = isinstance(request, Put) and next(puts) == fails_at
        outcome = await perform(backend, request) if written or not fails else Done()
        if fails:
            raise OSError("the disk is full")
        return outcome

    monkeypatch.setattr(ObjectBackend, "perform", failing)
    nobjects = len(source.raw())
    for fails_at in range(1, nobjects + 1):  # noqa: B007 - `failing` looks at it
        puts, destination = itertools.count(1), new_place("memory", tmp_path)
        with pytest.raises(OSError, match="the disk is full"):
            ps.copy(source.store, destination.store, max_concurrency=2)
        assert destination.raw() == {}
    puts, fails_at = itertools.count(1), nobjects + 1
    ps.copy(source.store, new_place("memory", tmp_path).store)


def test_a_crash_at_any_write_leaves_no_array_without_all_of_its_chunks(tmp_path: Path) -> None:
    source = new_place("memory", tmp_path)
    fill(source.store)
    destination = new_watched("memory", tmp_path)
    ps.copy(source.store, destination.store, to="x", max_concurrency=1)
    sets = events_of(destination).sets
    documents = [key for key in sets if key.endswith("zarr.json")]
    # All chunks, then what is below before what is above.
    assert sets == [f"x/{key}" for key in CHUNKS] + documents
    assert [key.count("/") for key in documents] == sorted((key.count("/") for key in documents), reverse=True)
    assert len(documents) == 9


def test_what_makes_an_array_of_zarr_v2_comes_after_its_attributes(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_watched("memory", tmp_path)
    of_v2(source.store)
    ps.copy(source.store, destination.store, path="old", max_concurrency=1)
    sets = events_of(destination).sets
    assert sets == ["old/0", "old/1", "old/.zattrs", "old/.zarray", ".zgroup"]


def test_a_failure_leaves_a_session_uncommitted(tmp_path: Path) -> None:
    source = new_place("memory", tmp_path)
    fill(source.store)
    for number in (1, 5, 12, 18):
        destination = new_watched("session", tmp_path, fails_at=number)
        with pytest.raises(OSError, match="the disk is full"):
            ps.copy(source.store, destination.store)
        assert chunks_in(destination.repository.readonly_session("main")) == {}
        destination.session.discard_changes()
        events_of(destination).fails_at = None
        ps.copy(source.store, destination.store)
        require_filled(destination.store)


def test_what_cannot_be_removed_again_is_said(tmp_path: Path) -> None:
    class Stuck(Watched):
        @override
        def carry_out[T](self, steps: Steps[T]) -> T:
            if self.events.sets:
                raise PermissionError("nothing is deleted here")
            return super().carry_out(steps)

    source, destination = new_place("memory", tmp_path), new_watched("memory", tmp_path, Stuck, fails_at=3)
    fill(source.store)
    with pytest.raises(OSError, match="the disk is full") as caught:
        ps.copy(source.store, destination.store)
    assert caught.value.__notes__ == [
        "what was copied so far could not be removed again: nothing is deleted here",
    ]
    assert not documents_of(destination.raw())


def test_others_objects_at_the_destination_survive_a_failure(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_watched("memory", tmp_path, fails_at=4)
    fill(source.store)

    def write(done: int, total: int) -> None:
        obstore.put(destination.store.store, "x/new", b"somebody else's")

    with pytest.raises(OSError, match="the disk is full"):
        ps.copy(source.store, destination.store, to="x", progress=write)
    assert destination.raw() == {"x/new": b"somebody else's"}


def test_a_chunk_that_vanishes_meanwhile_is_not_taken_for_one_that_was_never_there(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    fill(source.store)

    def remove(done: int, total: int) -> None:
        obstore.delete(source.store.store, ["two/c/3"])

    with pytest.raises(ConcurrentWriteError, match="two/c/3"):
        ps.copy(source.store, destination.store, progress=remove, max_concurrency=1)
    assert destination.raw() == {}


def test_ctrl_c_ends_the_copy_and_leaves_nothing(tmp_path: Path, interruptible: None) -> None:
    class Interrupting(Watched):
        @override
        async def get(self, key: str, prototype: BufferPrototype, byte_range: Any = None) -> Buffer | None:
            if self.events.reads == 4:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(60)
            return await super().get(key, prototype, byte_range)

    source, destination = new_watched("memory", tmp_path, Interrupting), new_watched("memory", tmp_path)
    fill(ps.PartsStore(source.store.store))
    with pytest.raises(KeyboardInterrupt):
        ps.copy(source.store, destination.store, max_concurrency=1)
    assert len(events_of(destination).sets) == 4
    assert destination.raw() == {}


# --- verifying --------------------------------------------------------------------------------------------------------


class Forgetful(ps.PartsStore):
    """A store that keeps something else than it is given, for one key."""

    @override
    async def set(self, key: str, value: Buffer) -> None:
        await super().set(key, value)
        victim, data = vars(self)["victim"]
        if key == victim:
            await (obstore.delete_async if data is None else obstore.put_async)(
                self.store, key, *([data] if data else [])
            )


@pytest.mark.parametrize(
    ("victim", "data", "found"),
    [
        ("deep/plain/c/1", b"wrong", "5 bytes that are not the same"),
        ("deep/plain/c/1", None, "found nothing"),
        ("deep/plain/zarr.json", b"{}", "2 bytes that are not the same"),
    ],
)
def test_a_destination_that_keeps_something_else_is_found_out(
    victim: str, data: bytes | None, found: str, tmp_path: Path
) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path, Forgetful)
    fill(source.store)
    vars(destination.store)["victim"] = (victim, data)
    with pytest.raises(CopyMismatchError, match=found) as caught:
        ps.copy(source.store, destination.store)
    assert caught.value.key == victim
    assert destination.raw() == {}
    ps.copy(source.store, destination.store, verify=False)
    assert destination.raw().get(victim) == data


def test_a_flipped_bit_in_a_part_is_found_out(tmp_path: Path) -> None:
    class Flipping(ps.PartsStore):
        @override
        async def set(self, key: str, value: Buffer) -> None:
            if key == "two/c/3":
                data = bytearray(value.to_bytes())
                data[-1] ^= 1
                value = cpu.Buffer.from_bytes(bytes(data))
            await super().set(key, value)

    source = new_place("memory", tmp_path)
    fill(source.store)
    for kind in ("memory", "session"):
        with pytest.raises(CopyMismatchError, match="'two/c/3': expected the 8 bytes that were written, found 8 bytes"):
            ps.copy(source.store, new_place(kind, tmp_path, Flipping).store)


def test_nothing_is_read_back_that_is_not_to_be_verified(tmp_path: Path) -> None:
    source = new_place("memory", tmp_path)
    fill(source.store)
    for verify, reads in ((False, 0), (True, len(CHUNKS))):
        destination = new_watched("memory", tmp_path)
        ps.copy(source.store, destination.store, verify=verify)
        assert events_of(destination).reads == reads


# --- progress and concurrency -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "session"])
def test_progress_counts_every_chunk_and_ends_at_the_total(kind: str, tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place(kind, tmp_path)
    fill(source.store)
    seen: list[tuple[int, int]] = []
    ps.copy(source.store, destination.store, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, len(CHUNKS)) for done in range(len(CHUNKS) + 1)]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_no_more_chunks_are_copied_at_once_than_asked_for(at_once: int, tmp_path: Path) -> None:
    source, destination = new_watched("memory", tmp_path), new_watched("memory", tmp_path)
    fill(ps.PartsStore(source.store.store))
    ps.copy(source.store, destination.store, max_concurrency=at_once)
    assert events_of(source).most_reading == min(at_once, len(CHUNKS))
    assert events_of(destination).most_reading <= at_once
