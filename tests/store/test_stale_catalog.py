"""What a store has learnt of an array never makes it read or write the wrong thing, whatever other stores do."""

import asyncio
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import LayoutChangedError, PartsStoreError
from parts_store.format.metadata import layout_of
from parts_store.maintenance.report import Problem
from parts_store.store.options import Concurrency
from tests.effort import examples
from tests.store.schedules import Result, run_in_memory, run_in_processes, run_on_disk

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")

FIRST: list[str | ps.Part] = ["", ps.Part(".t", size=2)]
REORDERED: list[str | ps.Part] = [ps.Part(".t", size=2), ""]
SUFFIXED: list[str | ps.Part] = [".a", ps.Part(".b", size=2)]
VALUES = np.arange(1, 9, dtype="uint16")


def create(store: ps.PartsStore, parts: Any = FIRST, path: str = "g/x", **arguments: Any) -> zarr.Array[Any]:
    """Create an array of two chunks; without parts if `parts` is None."""
    chosen: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "uint16", "compressors": None} | arguments
    if parts is None:
        return zarr.create_array(store, name=path, **chosen)
    return ps.create_array(store, path, parts=parts, **chosen)


create_plain = partial(create, parts=None)


def two_stores(objects: Any, **options: Any) -> tuple[ps.PartsStore, ps.PartsStore]:
    """Return two stores that know nothing of each other, on objects with a group."""
    zarr.create_group(ps.PartsStore(objects), path="g")
    return ps.PartsStore(objects, **options), ps.PartsStore(objects, **options)


def open_consolidated(store: ps.PartsStore) -> zarr.Array[Any]:
    found = zarr.open_consolidated(store, path="g")["x"]
    assert isinstance(found, zarr.Array)
    return found


def raw(objects: Any) -> dict[str, bytes]:
    entries = obstore.list(objects).collect()
    return {each["path"]: bytes(obstore.get(objects, each["path"]).bytes()) for each in entries}


def read_fresh(objects: Any) -> Any:
    return zarr.open_array(ps.PartsStore(objects), path="g/x")[:]


# --- an array that was not there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [FIRST, REORDERED, SUFFIXED])
def test_an_array_created_after_it_was_looked_for_is_read_and_written(objects: Any, parts: Any) -> None:
    first, second = two_stores(objects)
    with pytest.raises(FileNotFoundError):
        zarr.open_array(first, path="g/x")
    create(second, parts)[:] = VALUES
    zarr.consolidate_metadata(second, path="g")
    array = open_consolidated(first)
    np.testing.assert_array_equal(array[:], VALUES)
    array[4:] = 7
    np.testing.assert_array_equal(read_fresh(objects), [1, 2, 3, 4, 7, 7, 7, 7])


@pytest.mark.parametrize("ask", ["open", "parts_of", "get", "exists", "list"])
def test_that_there_is_no_array_is_never_remembered(objects: Any, ask: str) -> None:
    first, second = two_stores(objects)
    match ask:
        case "open":
            with pytest.raises(FileNotFoundError):
                zarr.open_array(first, path="g/x")
        case "parts_of":
            assert first.parts_of("g/x") is None
        case "get":
            assert first.get_sync("g/x/c/0") is None
        case "exists":
            assert not sync(first.exists("g/x/c/0"))
        case "list":
            obstore.put(objects, "g/x/c/0.t", b"ab")
            sync(_listed(first))
    create(second, overwrite=True)[:] = VALUES
    assert first.parts_of("g/x") == ps.ConcatParts(FIRST)
    assert first.get_sync("g/x/c/0.t") is None
    value = first.get_sync("g/x/c/1")
    assert value is not None
    assert value.to_bytes() == VALUES[4:].tobytes()


async def _listed(store: ps.PartsStore) -> set[str]:
    return {key async for key in store.list()}


def test_a_listing_reads_each_document_once() -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_group(store, path="g")
    for number in range(50):
        obstore.put(store.store, f"g/x/c/{number}.t", b"ab")
    store.stats.reset()
    sync(_listed(store))
    # Of the two paths that the keys may belong to: "g/x", and "g/x/c" for the encoding of Zarr v2.
    assert store.stats.get == 2
    assert store.stats.list == 1


def test_an_array_of_zarr_v2_costs_one_request_for_each_chunk() -> None:
    objects = MemoryStore()
    writer = ps.PartsStore(objects)
    zarr.create_group(writer, path="g", zarr_format=2)
    create_plain(writer, zarr_format=2)[:] = VALUES
    zarr.consolidate_metadata(writer, path="g", zarr_format=2)
    for opened in ("directly", "consolidated"):
        store = ps.PartsStore(objects)
        group = zarr.open_group(store, path="g", zarr_format=2, use_consolidated=opened == "consolidated")
        array = group["x"]
        assert isinstance(array, zarr.Array)
        store.stats.reset()
        np.testing.assert_array_equal(array[:], VALUES)
        assert store.stats.get == 2


# --- an array that was created again --------------------------------------------------------------------------------


def change(array: zarr.Array[Any], how: str) -> None:
    match how:
        case "read":
            array[:]
        case "partial write":
            array[1] = 9
        case "overwrite":
            array[:4] = 9
        case "set_if_not_exists":
            chunk = cpu.Buffer.from_bytes(bytes(8))
            sync(array.store_path.store.set_if_not_exists("g/x/c/0", chunk))
        case "exists":
            sync(array.store_path.store.exists("g/x/c/0"))
        case "getsize":
            sync(array.store_path.store.getsize("g/x/c/0"))
        case "resize":
            array.resize((12,))
        case "attributes":
            array.update_attributes({"a": 1})


# What happens to an array after it was opened: it is created again in another way, or deleted.
AGAIN: dict[str, tuple[Any, dict[str, Any]] | None] = {
    "reordered": (REORDERED, {}),
    "other size": (["", ps.Part(".t", size=4)], {}),
    "other suffix": (["", ps.Part(".u", size=2)], {}),
    "other type": (FIRST, {"dtype": "int16"}),
    "other chunks": (FIRST, {"chunks": (8,)}),
    "plain": (None, {}),
    "suffixed": (SUFFIXED, {}),
    "deleted": None,
}


def create_again(store: ps.PartsStore, again: str) -> None:
    if (created := AGAIN[again]) is None:
        sync(store.delete_dir("g/x"))
    else:
        create(store, created[0], overwrite=True, **created[1])[:] = VALUES


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("how", "level"),
    [
        *((how, "writers") for how in ("read", "partial write", "exists", "getsize", "resize", "attributes")),
        *((how, level) for how in ("overwrite", "set_if_not_exists") for level in ("writers", "full")),
    ],
)
@pytest.mark.parametrize("again", ["reordered", "other size", "other suffix", "other type", "other chunks"])
def test_a_handle_from_before_an_array_was_created_again_raises(
    objects: Any, again: str, how: str, level: Concurrency
) -> None:
    first, second = two_stores(objects, concurrency=level)
    array = create(first)
    array[:] = 5
    create_again(second, again)
    before = raw(objects)
    # And again: it does not become right by itself.
    for _ in range(2):
        with pytest.raises(LayoutChangedError, match=r"array 'g/x': it was created again .* open it again"):
            change(array, how)
    assert raw(objects) == before
    np.testing.assert_array_equal(zarr.open_array(first, path="g/x")[:], VALUES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["read", "partial write", "overwrite", "resize", "attributes"])
@pytest.mark.parametrize("again", ["plain", "deleted", "suffixed"])
def test_on_a_local_disk_absent_and_untagged_chunks_raise_too(tmp_path: Path, again: str, how: str) -> None:
    objects = LocalStore(tmp_path)
    first, second = two_stores(objects)
    array = create(first)
    array[:] = 5
    create_again(second, again)
    before = raw(objects)
    with pytest.raises(LayoutChangedError, match=r"since it was opened; open it again"):
        change(array, how)
    assert raw(objects) == before


def test_handle_of_an_array_without_parts_reads_no_parts_as_chunks(objects: Any) -> None:
    first, second = two_stores(objects)
    array = create_plain(first)
    array[:] = 5
    create(second, [""], dtype="int16", overwrite=True)[:] = VALUES
    with pytest.raises(LayoutChangedError):
        array[:]
    if isinstance(objects, LocalStore):
        # On an object store, the document of an array without parts is written as in any other store.
        with pytest.raises(LayoutChangedError):
            array.resize((12,))
    np.testing.assert_array_equal(read_fresh(objects), VALUES)


def test_an_array_created_again_just_like_it_was_is_used_as_before(objects: Any) -> None:
    first, second = two_stores(objects)
    array = create(first)
    create(second, overwrite=True, attributes={"a": 1})[:] = VALUES
    np.testing.assert_array_equal(array[:], VALUES)
    array[0] = 9
    array.resize((12,))
    np.testing.assert_array_equal(read_fresh(objects), [9, *VALUES[1:], 0, 0, 0, 0])


def test_a_chunk_of_another_layout_is_named_and_repaired() -> None:
    objects = MemoryStore()
    first, second = two_stores(objects)
    old = create(first)
    new = create(second, REORDERED, overwrite=True)
    new[4:] = VALUES[4:]
    # The chunk is absent, so a first write looks at nothing: a limit that is documented.
    old[:4] = VALUES[:4]
    for _ in range(2):
        with pytest.raises(LayoutChangedError, match=r"'g/x/c/0' was written with another layout.*drop_incomplete"):
            new[:]
        with pytest.raises(LayoutChangedError, match="drop_incomplete"):
            new[:4] = 1
    report = second.verify()
    assert [(each.problem, each.chunk_key) for each in report.findings] == [(Problem.OTHER_LAYOUT, "g/x/c/0")]
    assert report.is_damaged
    assert not second.repair(min_age=0).is_clean
    assert second.repair(min_age=0, drop_incomplete=True).is_clean
    np.testing.assert_array_equal(new[:], [0, 0, 0, 0, *VALUES[4:]])


def test_tags_without_a_layout_stay_readable() -> None:
    objects = MemoryStore()
    writer = ps.PartsStore(objects)
    array = create(writer, path="x")
    array[:] = VALUES
    for key in raw(objects):
        found = obstore.get(objects, key)
        if (tag := found.attributes.get("partsgen")) is not None:
            shorter = str(tag).rpartition(";")[0]
            assert shorter.count(";") == 3
            obstore.put(objects, key, bytes(found.bytes()), attributes={"partsgen": shorter})
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="x")[:], VALUES)
    assert writer.verify().is_clean
    array[0] = 9
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="x")[:], [9, *VALUES[1:]])


def test_layout_hash_covers_parts_chunks_and_type_only() -> None:
    store = ps.PartsStore(MemoryStore())

    def layout(parts: Any = FIRST, **arguments: Any) -> str:
        create(store, parts, path="x", overwrite=True, **arguments)
        document = json.loads(bytes(obstore.get(store.store, "x/zarr.json").bytes()))
        return layout_of(document, ps.ConcatParts(parts))

    same: list[dict[str, Any]] = [
        {},
        {"shape": (100,)},
        {"compressors": "auto"},
        {"attributes": {"a": 1}},
        {"fill_value": 3},
    ]
    assert len({layout(**arguments) for arguments in same}) == 1
    others = [
        REORDERED,
        SUFFIXED,
        ["", ps.Part(".t", size=4)],
        ["", ps.Part(".T", size=2)],
        [""],
        [ps.Part("", size=2), ".t"],
    ]
    changed: list[dict[str, Any]] = [{"chunks": (8,)}, {"dtype": "int16"}, {"shape": (8, 8), "chunks": (4, 4)}]
    found = {layout(), *(layout(parts) for parts in others), *(layout(**arguments) for arguments in changed)}
    assert len(found) == 1 + len(others) + len(changed)
    assert all(len(each) == 8 for each in found)


# --- consolidated metadata ------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("again", ["reordered", "other type", "plain", "suffixed", "deleted"])
def test_consolidated_metadata_that_is_out_of_date_raises(objects: Any, again: str, *, known: bool) -> None:
    first, second = two_stores(objects)
    create(second)[:] = 5
    zarr.consolidate_metadata(second, path="g")
    create_again(second, again)
    if known and again != "deleted":
        zarr.open_array(first, path="g/x")
    array = open_consolidated(first)
    before = raw(objects)
    # An array that is gone is not told from one that zarr is about to create.
    for how in ("read", "partial write", "overwrite", *(["resize"] if again != "deleted" else [])):
        with pytest.raises(PartsStoreError) as caught:
            change(array, how)
        # A mixture of two layouts may be noticed first.
        assert "consolidate again" in str(caught.value) or again == "plain"
    assert raw(objects) == before
    if again == "deleted":
        return
    zarr.consolidate_metadata(second, path="g")
    array = open_consolidated(first)
    np.testing.assert_array_equal(array[:], VALUES)
    array[0] = 9
    np.testing.assert_array_equal(read_fresh(objects), [9, *VALUES[1:]])


def test_consolidated_metadata_without_parts_raises_if_there_are_parts(objects: Any) -> None:
    first, second = two_stores(objects)
    create_plain(second)[:] = 5
    zarr.consolidate_metadata(second, path="g")
    create(second, SUFFIXED, overwrite=True)[:] = VALUES
    array = open_consolidated(first)
    before = raw(objects)
    for how in ("read", "overwrite", "partial write", "resize"):
        with pytest.raises(LayoutChangedError, match="consolidate again"):
            change(array, how)
    assert raw(objects) == before


def test_valid_consolidated_metadata_needs_no_document() -> None:
    objects = MemoryStore()
    writer = ps.PartsStore(objects)
    zarr.create_group(writer, path="g")
    create(writer)[:] = VALUES
    create_plain(writer, path="g/plain")[:] = VALUES
    zarr.consolidate_metadata(writer, path="g")
    store = ps.PartsStore(objects)
    group = zarr.open_consolidated(store, path="g")
    store.stats.reset()
    for name, expected in (("x", 4), ("plain", 2)):
        array = group[name]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(array[:], VALUES)
        assert store.stats.get == expected
        store.stats.reset()


# --- stores in other processes --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pickled_store_carries_the_arrays_that_it_was_used_for(tmp_path: Path) -> None:
    objects = LocalStore(tmp_path)
    writer = ps.PartsStore(objects)
    zarr.create_group(writer, path="g")
    create(writer)[:] = VALUES
    zarr.consolidate_metadata(writer, path="g")
    document = json.loads(bytes(obstore.get(objects, "g/zarr.json").bytes()))
    members = document["consolidated_metadata"]["metadata"]
    members.update({f"array_{number:04}": members["x"] for number in range(2_000)})
    obstore.put(objects, "g/zarr.json", json.dumps(document).encode())
    store = ps.PartsStore(objects)
    array = open_consolidated(store)
    np.testing.assert_array_equal(array[:], VALUES)
    assert len(store.catalog.arrays()) == 2_001
    pickled = pickle.dumps(store)
    assert len(pickled) < 20_000
    copy = pickle.loads(pickled)
    assert list(copy.catalog.arrays()) == ["g/x"]
    np.testing.assert_array_equal(zarr.open_array(copy, path="g/x")[:], VALUES)
    copy = pickle.loads(pickled)
    value = asyncio.run(copy.get("g/x/c/0", cpu.buffer_prototype))
    assert value.to_bytes() == VALUES[:4].tobytes()
    # The journal is looked for before and after; the document is not read again.
    assert copy.stats.get == 4


@pytest.mark.parametrize("opened", ["directly", "consolidated", "used"])
def test_pickled_handle_raises_for_a_recreated_array(tmp_path: Path, opened: str) -> None:
    objects = LocalStore(tmp_path)
    writer = ps.PartsStore(objects)
    zarr.create_group(writer, path="g")
    create(writer)[:] = 5
    zarr.consolidate_metadata(writer, path="g")
    store = ps.PartsStore(objects)
    array = open_consolidated(store) if opened == "consolidated" else zarr.open_array(store, path="g/x")
    if opened == "used":
        array[:]
    pickled = pickle.dumps(array)
    np.testing.assert_array_equal(pickle.loads(pickled)[:], 5)
    create(writer, dtype="int16", overwrite=True)[:] = VALUES
    with pytest.raises(LayoutChangedError):
        pickle.loads(pickled)[:]


# --- sessions, and documents of Zarr v2 ------------------------------------------------------------------------------


def values(store: ps.PartsStore) -> list[Any]:
    found: list[Any] = np.asarray(zarr.open_array(store, path="g/x", mode="r")[:]).tolist()
    return found


def test_handle_raises_after_a_rebase_onto_a_recreated_array() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repository.writable_session("main")
    create(ps.PartsStore.from_session(first), dtype="int32")[:] = 3
    first.commit("one")
    mine = repository.writable_session("main")
    handle = zarr.open_array(ps.PartsStore.from_session(mine), path="g/x", mode="r+")
    assert np.asarray(handle[:]).tolist() == [3] * 8
    other = repository.writable_session("main")
    create(ps.PartsStore.from_session(other), overwrite=True, dtype="float32")[:] = 1.5
    other.commit("two")
    mine.rebase(icechunk.ConflictDetector())
    with pytest.raises(LayoutChangedError):
        handle[:]
    with pytest.raises(LayoutChangedError):
        handle[:] = 7
    assert values(ps.PartsStore.from_session(mine)) == [1.5] * 8


def test_a_handle_of_the_same_layout_goes_on_after_a_commit() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    handle = create(store)
    handle[:] = 3
    session.commit("one")
    assert np.asarray(handle[:]).tolist() == [3] * 8


def test_consolidated_metadata_of_zarr_v2_that_is_out_of_date_raises() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    zarr.create_group(store, path="g", zarr_format=2)
    create_plain(store, zarr_format=2)[:] = 1
    zarr.consolidate_metadata(store, path="g", zarr_format=2)
    create(store, [".d"], overwrite=True)[:] = 5
    handle: Any = zarr.open_consolidated(ps.PartsStore(objects), path="g", zarr_format=2)["x"]
    with pytest.raises(LayoutChangedError):
        handle[:]
    with pytest.raises(LayoutChangedError):
        handle[:] = 9
    assert values(ps.PartsStore(objects)) == [5] * 8


# --- random schedules -----------------------------------------------------------------------------------------------


def require_right(result: Result) -> None:
    """Raise unless every step of every schedule was right, and there were many of them."""
    assert not result.wrong, f"{len(result.wrong)} of {result.schedules} schedules\n" + "\n".join(result.wrong[:3])
    assert result.steps > 8 * result.schedules


@pytest.mark.slow
def test_random_schedules_of_two_stores_never_read_or_write_another_array() -> None:
    require_right(run_in_memory(range(examples(150))))


@pytest.mark.slow
def test_random_schedules_of_two_stores_on_a_local_disk(tmp_path: Path) -> None:
    require_right(run_on_disk(range(10_000, 10_000 + examples(60)), tmp_path))


@pytest.mark.slow
def test_random_schedules_of_two_processes_on_a_local_disk(tmp_path: Path) -> None:
    require_right(run_in_processes(range(20_000, 20_000 + examples(60)), tmp_path))
