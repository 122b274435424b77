"""What cannot be copied is refused before anything is written."""

import json
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import obstore
import pytest
import zarr
from obstore.store import AzureStore, HTTPStore, LocalStore, MemoryStore, S3Store

import parts_store as ps
from parts_store.backends.addresses import address_of
from parts_store.errors import (
    PartsConfigError,
    ReadOnlySessionError,
    ReservedKeyError,
    SessionError,
    StoreConfigError,
    UnknownTransformerError,
)
from tests.copying.places import Place, fill, new_place, of_v2, put, require_filled


def with_document(store: ps.PartsStore, **members: Any) -> None:
    """Change members of the stored document of the array `two`."""
    document = json.loads(bytes(obstore.get(store.store, "two/zarr.json").bytes()))
    put(store, "two/zarr.json", json.dumps(document | members).encode())


def dotted(store: ps.PartsStore) -> None:
    encoding: Any = {"name": "default", "separator": "."}
    zarr.create_array(store, name="dots", shape=(4,), chunks=(2,), dtype="uint8", chunk_key_encoding=encoding)[...] = 1


def like_v2(store: ps.PartsStore) -> None:
    encoding: Any = {"name": "v2", "separator": "/"}
    zarr.create_array(store, name="v2", shape=(4,), chunks=(2,), dtype="uint8", chunk_key_encoding=encoding)[...] = 1


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
    "text as progress": ("memory", lambda _: None, {"progress": "yes"}, StoreConfigError, "progress: expected"),
    "executor": ("memory", lambda _: None, {"executor": "threads"}, StoreConfigError, "executor: expected"),
    "class as executor": ("memory", lambda _: None, {"executor": Executor}, StoreConfigError, "executor: expected"),
}
# Of these, something is wrong with the overwriting itself.
NOT_OVERWRITING = ("something there", "in session, something", "overwrite")


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("name", "overwrite"),
    [
        (name, overwrite)
        for name in REFUSALS
        for overwrite in (False, True)
        if not overwrite or name not in NOT_OVERWRITING
    ],
)
def test_what_is_refused_changes_nothing(source: Place, name: str, overwrite: bool, tmp_path: Path) -> None:
    kind, spoil, arguments, error, message = REFUSALS[name]
    destination = new_place(kind, tmp_path)
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


def test_what_can_only_be_read_is_no_destination(source: Place, tmp_path: Path) -> None:
    place = new_place("session", tmp_path)
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
@pytest.mark.parametrize(("path", "to"), [("a", "a"), ("a", "a/b"), ("a/deep", "a"), ("", "b"), ("a", ""), ("", "")])
def test_copy_into_or_over_itself_is_refused(kind: str, path: str, to: str, tmp_path: Path) -> None:
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
