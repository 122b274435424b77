"""What a store knows of its arrays stays true: whatever zarr, other stores, other threads and old metadata say."""

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Delete, Done, Get
from parts_store.errors import PartsConfigError, UnknownTransformerError
from parts_store.store.catalog import Catalog
from tests.effort import examples

TAIL: list[str | ps.Part] = ["", ps.Part(".t", size=2)]


def create(store: ps.PartsStore, name: str, parts: Any = TAIL, **arguments: Any) -> zarr.Array[Any]:
    chosen: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "uint8", "compressors": None}
    return ps.create_array(store, name, parts=parts, **(chosen | arguments))


def create_plain(store: ps.PartsStore, name: str, **arguments: Any) -> zarr.Array[Any]:
    chosen: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "uint8", "compressors": None}
    return zarr.create_array(store, name=name, **(chosen | arguments))


@pytest.fixture
def store() -> ps.PartsStore:
    store = ps.PartsStore(MemoryStore())
    zarr.create_group(store)
    return store


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("fresh", [True, False])
def test_old_consolidated_metadata_decides_nothing(store: ps.PartsStore, *, fresh: bool) -> None:
    create_plain(store, "becomes-parts")
    create(store, "becomes-plain")
    create(store, "changes-parts")
    zarr.consolidate_metadata(store)
    writer = ps.PartsStore(store.store) if fresh else store
    create(writer, "becomes-parts", overwrite=True)[...] = 1
    create_plain(writer, "becomes-plain", overwrite=True)[...] = 2
    create(writer, "changes-parts", parts=["", ps.Part(".new", size=3)], overwrite=True)[...] = 3
    # The group's document is read again, with its copies of before.
    zarr.open_group(writer)
    for each in (writer, ps.PartsStore(store.store)):
        assert each.parts_of("becomes-parts") == ps.ConcatParts(TAIL)
        assert each.parts_of("becomes-plain") is None
        assert each.parts_of("changes-parts") == ps.ConcatParts(["", ps.Part(".new", size=3)])
        for value, name in enumerate(("becomes-parts", "becomes-plain", "changes-parts"), start=1):
            np.testing.assert_array_equal(zarr.open_array(each, path=name)[...], value)


def test_a_document_of_zarr_v2_beside_one_of_v3_changes_nothing(store: ps.PartsStore) -> None:
    create(store, "a")[...] = np.arange(8)
    obstore.put(store.store, "a/.zarray", b"{}")
    fresh = ps.PartsStore(store.store)
    array = zarr.open_array(fresh, path="a", zarr_format=3)
    assert fresh.get_sync("a/.zarray") is not None
    np.testing.assert_array_equal(array[...], np.arange(8))


def test_arrays_of_zarr_v2_pass_through(store: ps.PartsStore) -> None:
    for name, separator in (("dots", "."), ("nested", "/")):
        array = create_plain(
            store,
            name,
            zarr_format=2,
            shape=(4, 4),
            chunks=(2, 2),
            chunk_key_encoding={"name": "v2", "separator": separator},
        )
        array[...] = np.arange(16).reshape(4, 4)
        fresh = ps.PartsStore(store.store)
        reopened = zarr.open_array(fresh, path=name, zarr_format=2)
        fresh.stats.reset()
        np.testing.assert_array_equal(reopened[...], np.arange(16).reshape(4, 4))
        assert fresh.stats.get == 4


@pytest.mark.parametrize("name", ["a//b", "/a/b/", "c", "0", "c/0", "x*", "[x]", "?", "c/0/c"])
def test_any_name_of_an_array_works(store: ps.PartsStore, name: str) -> None:
    create(store, name)[...] = np.arange(8)
    path = name.strip("/").replace("//", "/")
    assert store.parts_of(path) == ps.ConcatParts(TAIL)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(store.store), path=path)[...], np.arange(8))


def test_an_array_at_the_root_works() -> None:
    store = ps.PartsStore(MemoryStore())
    create(store, "")[...] = np.arange(8)
    assert {each["path"] for each in obstore.list(store.store).collect()} == {
        "zarr.json",
        *("c/0", "c/0.t", "c/1", "c/1.t"),
    }
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(store.store))[...], np.arange(8))


def test_an_array_without_dimensions_works(store: ps.PartsStore) -> None:
    create(store, "a", shape=(), chunks=(), dtype="uint32", parts=["", ps.Part(".t", size=2)])[...] = 70000
    assert bytes(obstore.get(store.store, "a/c.t").bytes()) == (70000).to_bytes(4, "little")[2:]
    assert zarr.open_array(ps.PartsStore(store.store), path="a")[()] == 70000


def test_parts_are_refused_for_zarr_v2(store: ps.PartsStore) -> None:
    with pytest.raises(PartsConfigError, match="Zarr v2 has no storage transformers"):
        create(store, "a", zarr_format=2)


def test_array_with_unknown_parts_does_not_stop_a_listing(store: ps.PartsStore) -> None:
    for name in ("good", "strange"):
        create(store, name)[...] = 1
    document = json.loads(bytes(obstore.get(store.store, "strange/zarr.json").bytes()))
    strange = {**document, "storage_transformers": [{"name": "strange"}]}
    obstore.put(store.store, "strange/zarr.json", json.dumps(strange).encode())
    fresh = ps.PartsStore(store.store)

    async def listed() -> set[str]:
        return {key async for key in fresh.list_prefix("good")} | {key async for key in fresh.list()}

    assert {"good/c/0", "good/c/1", "good/zarr.json"} <= sync(listed())
    assert "good/c/0.t" not in sync(listed())
    with pytest.raises(UnknownTransformerError):
        zarr.open_array(fresh, path="strange")


def test_an_answer_from_before_a_change_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore(MemoryStore())
    create_plain(store, "a")
    elsewhere = ps.PartsStore(MemoryStore())
    create(elsewhere, "a")
    document = bytes(obstore.get(elsewhere.store, "a/zarr.json").bytes())
    original = ObjectBackend.perform

    async def scenario() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def slow(self: ObjectBackend, request: Any) -> Any:
            outcome = await original(self, request)
            if isinstance(request, Get) and not asked.is_set():
                asked.set()
                await answered.wait()
            return outcome

        monkeypatch.setattr(ObjectBackend, "perform", slow)
        reading = asyncio.create_task(store.get("a/zarr.json", default_buffer_prototype()))
        await asked.wait()
        await store.delete_dir("a")
        await store.set("a/zarr.json", cpu.Buffer.from_bytes(document))
        answered.set()
        await reading

    asyncio.run(scenario())
    assert store.parts_of("a") == ps.ConcatParts(TAIL)


def test_threads_read_while_the_catalog_is_cleared() -> None:
    store = ps.PartsStore(MemoryStore())
    create(store, "a")[...] = 1
    stop, problems = time.monotonic() + examples(20) / 10, []

    def read() -> None:
        while time.monotonic() < stop:
            try:
                store.get_sync("a/zarr.json")
                chunk = store.get_sync("a/c/0")
                assert chunk is not None
                assert len(chunk) == 4
                store._repr_html_()
            # Whatever it is, it is a finding.
            except BaseException as error:
                problems.append(error)

    def forget() -> None:
        while time.monotonic() < stop:
            store._operations.catalog.forget_below("")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=each) for each in (read, read, forget)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []


def test_deleting_goes_on_after_what_is_not_there(tmp_path: Path) -> None:
    backend = ObjectBackend(LocalStore(tmp_path))
    keys = tuple(str(number) for number in range(50))
    for key in keys[1:]:
        obstore.put(backend.store, key, b"x")
    assert backend.perform_sync(Delete(keys, "test")) == Done()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_number_in_a_key_is_not_taken_for_a_status(place: str, tmp_path: Path) -> None:
    objects: Any = MemoryStore() if place == "memory" else LocalStore(tmp_path)
    store = ps.PartsStore(objects)
    create(store, "416", shape=(4,), chunks=(1,), parts=["", ps.Part(".t", size=1)])[...] = 7
    np.testing.assert_array_equal(zarr.open_array(store, path="416")[...], 7)


def test_a_store_that_is_only_read_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ps.errors.StoreConfigError):
        ps.PartsStore.from_url(tmp_path / "nothing", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_the_gap_between_merged_ranges_can_be_chosen() -> None:
    objects = MemoryStore()
    create(ps.PartsStore(objects), "a", shape=(64,), chunks=(64,))[...] = 1
    ranges: Any = [RangeByteRequest(at, at + 2) for at in (0, 10, 20)]
    for gap, expected in ((None, 1), (100, 1), (8, 1), (7, 3), (0, 3)):
        store = ps.PartsStore(objects, coalesce_gap=gap)
        store.parts_of("a")
        store.stats.reset()
        store.get_ranges_sync("a/c/0", ranges, prototype=default_buffer_prototype())
        assert store.stats.get == expected
        assert store.stats.saved_by_coalescing == 3 - expected


def test_writing_an_array_visits_no_other_array(monkeypatch: pytest.MonkeyPatch) -> None:
    visits: list[Catalog] = []
    arrays = Catalog.arrays

    def count(catalog: Catalog) -> object:
        visits.append(catalog)
        return arrays(catalog)

    monkeypatch.setattr(Catalog, "arrays", count)
    store = ps.PartsStore(MemoryStore())
    group = zarr.create_group(store)
    for number in range(4):
        group.create_array(f"a{number}", shape=(2,), dtype="u1", chunks=(1,))[:] = number
    assert not visits
    assert [int(group[f"a{number}"][0]) for number in range(4)] == [0, 1, 2, 3]  # type: ignore[index, arg-type]
