"""Readers without concat-parts: each refuses an array that it would misread, and reads the others right."""

import json
import pickle
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.errors import MetadataValidationError

import parts_store as ps
from parts_store.errors import PartsConfigError, StoreConfigError
from parts_store.maintenance.report import Problem
from parts_store.virtual.adopt import adopt
from tests.virtual.adopting import repository, settle

VALUES = np.arange(1, 9, dtype="int32")
REFUSAL = {"name": "parts_store", "must_understand": True}
# The member of arrays that were written before it had a name.
OLD_REFUSAL = {"must_understand": True}
# The parts of arrays whose chunks are not the objects at their keys.
MISREAD: dict[str, list[Any]] = {
    "no part without suffix": [".a", ps.Part(".b", size=4)],
    "one part with a suffix": [".x"],
    "a part after the data": ["", ps.Part(".b", size=4)],
    "a part before the data": [ps.Part(".b", size=4), ""],
}
# Those whose chunks are.
READ_RIGHT: dict[str, list[Any]] = {
    "one part without suffix": [""],
    "one part of a known size": [ps.Part("", size=16)],
    "other parts without bytes": [ps.Part(".b", size=0), ""],
}
READERS: dict[str, Callable[[str], Any]] = {
    "zarr, by the array's path": lambda folder: zarr.open_array(f"{folder}/g/t", mode="r")[:],
    "zarr, as a member": lambda folder: np.asarray(zarr.open_group(folder, mode="r", use_consolidated=False)["g/t"]),
    "zarr, consolidated": lambda folder: np.asarray(zarr.open_consolidated(f"{folder}/g")["t"]),
    "zarr, all members": lambda folder: np.asarray(dict(zarr.open_group(f"{folder}/g", mode="r").members())["t"]),
    "xarray": lambda folder: xr.open_zarr(f"{folder}/g", consolidated=False)["t"].to_numpy(),
    "xarray, consolidated": lambda folder: xr.open_zarr(f"{folder}/g", consolidated=True)["t"].to_numpy(),
    "tensorstore": lambda folder: read_by_tensorstore(f"{folder}/g/t/"),
}


def read_by_tensorstore(path: str) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return tensorstore.open(spec).result().read().result()


def are_values(found: Any) -> bool:
    return np.array_equal(np.asarray(found), VALUES)


def zarr_document(store: Any, path: str) -> bytes:
    """The stored document of an array, which zarr's own store returns."""
    found = sync(store.get(f"{path}/zarr.json", default_buffer_prototype()))
    return bytes(found.to_bytes())


def opened(store: Any, path: str) -> Any:
    """A member of the root, as zarr opens it."""
    return zarr.open_group(store, mode="r")[path]


def write(store: ps.PartsStore, parts: Any, **options: Any) -> None:
    group = zarr.create_group(store, path="g")
    arguments: dict[str, Any] = {
        "shape": (8,),
        "chunks": (4,),
        "dtype": "int32",
        "dimension_names": ["x"],
        "compressors": None,
    }
    array = ps.create_array(store, "g/t", parts=parts, **arguments, **options)
    array[:] = VALUES
    with warnings.catch_warnings():
        # zarr says of every group of Zarr v3 that others may not know consolidated metadata.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store, path=group.path)


def documents_of(folder: Path) -> list[dict[str, Any]]:
    """The document of the array, and that which is consolidated."""
    above = json.loads((folder / "g/zarr.json").read_text())
    return [json.loads((folder / "g/t/zarr.json").read_text()), above["consolidated_metadata"]["metadata"]["t"]]


def require_read(store: ps.PartsStore, path: str = "g") -> None:
    assert are_values(zarr.open_array(store, path=f"{path}/t", mode="r")[:])
    assert are_values(xr.open_zarr(store, group=path, consolidated=False)["t"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("parts", MISREAD)
def test_a_reader_without_concat_parts_refuses_what_it_would_misread(parts: str, reader: str, tmp_path: Path) -> None:
    write(ps.PartsStore(LocalStore(tmp_path)), MISREAD[parts])
    assert [each["parts_store"] for each in documents_of(tmp_path)] == [REFUSAL, REFUSAL]
    with pytest.raises((MetadataValidationError, ValueError), match=r"parts_store|storage_transformers"):
        READERS[reader](str(tmp_path))
    store = ps.PartsStore(LocalStore(tmp_path))
    require_read(store)
    assert are_values(zarr.open_consolidated(store, path="g")["t"])


@pytest.mark.parametrize("reader", [name for name in READERS if "member" in name or "xarray" in name])
def test_without_the_member_the_same_readers_return_fill_values(reader: str, tmp_path: Path) -> None:
    # What the member is for: should this fail some day, it is not needed any more.
    write(ps.PartsStore(LocalStore(tmp_path), must_understand=False), MISREAD["no part without suffix"])
    assert ["parts_store" in each for each in documents_of(tmp_path)] == [False, False]
    assert not np.any(READERS[reader](str(tmp_path)))
    require_read(ps.PartsStore(LocalStore(tmp_path)))


@pytest.mark.parametrize("parts", READ_RIGHT)
def test_an_array_that_plain_readers_read_right_has_no_such_member(parts: str, tmp_path: Path) -> None:
    write(ps.PartsStore(LocalStore(tmp_path)), READ_RIGHT[parts])
    assert ["parts_store" in each for each in documents_of(tmp_path)] == [False, False]
    for reader in ("zarr, as a member", "zarr, consolidated", "xarray"):
        assert are_values(READERS[reader](str(tmp_path)))


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", MISREAD)
def test_plain_icechunk_reads_whole_arrays_and_refuses_split_arrays(parts: str) -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    store = ps.PartsStore.from_session(session)
    for name, split in (("whole", False), ("split", True)):
        array = ps.create_array(
            *(store, f"{name}/t"), parts=MISREAD[parts], shape=(8,), chunks=(4,), dtype="int32", split=split,
            dimension_names=["x"], compressors=None,
        )  # fmt: skip
        array[:] = VALUES
    session.commit("both")
    committed = repo.readonly_session("main")
    for name in ("whole", "split"):
        require_read(ps.PartsStore.from_session(committed), name)
    assert are_values(opened(committed.store, "whole/t"))
    assert are_values(xr.open_zarr(committed.store, group="whole", consolidated=False)["t"])
    with pytest.raises(MetadataValidationError, match="parts_store"):
        opened(committed.store, "split/t")
    with pytest.raises(MetadataValidationError, match="parts_store"):
        xr.open_zarr(committed.store, group="split", consolidated=False)


def test_plain_icechunk_refuses_an_adopted_array_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file.h5"
    with h5py.File(file, "w") as root:
        # Enough chunks for a shard.
        root.create_dataset("t", data=np.tile(VALUES, 100), chunks=(4,), compression="gzip")
    settle(file)
    for must_understand in (True, False):
        repo = repository(tmp_path)
        session = repo.writable_session("main")
        store = ps.PartsStore.from_session(session, must_understand=must_understand)
        adopt(file, into=store, shard_chunks=4095)
        assert are_values(opened(store, "t")[:8])
        session.commit("adopted")
        plain = repo.readonly_session("main").store
        if must_understand:
            with pytest.raises(MetadataValidationError, match="parts_store"):
                opened(plain, "t")
        else:
            with pytest.raises(ValueError, match="checksum"):
                opened(plain, "t")[:]


# --- what keeps it, and what leaves it out ----------------------------------------------------------------------------


def test_attributes_resizing_and_consolidation_keep_the_member(tmp_path: Path) -> None:
    write(ps.PartsStore(LocalStore(tmp_path)), MISREAD["one part with a suffix"])
    array = zarr.open_array(ps.PartsStore(LocalStore(tmp_path)), path="g/t", mode="r+")
    array.attrs["units"] = "m"
    array.resize((4,))
    stored, _ = documents_of(tmp_path)
    assert (stored["parts_store"], stored["shape"], stored["attributes"]) == (REFUSAL, [4], {"units": "m"})
    assert "parts_store" not in array.metadata.to_dict()


@pytest.mark.parametrize("of_array", [None, True, False])
@pytest.mark.parametrize("of_store", [True, False])
def test_the_option_of_an_array_outranks_that_of_its_store(of_store: bool, of_array: bool | None) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects, must_understand=of_store)
    write(store, MISREAD["one part with a suffix"], must_understand=of_array)
    stored = json.loads(bytes(objects.get("g/t/zarr.json").bytes()))
    assert ("parts_store" in stored) == (of_store if of_array is None else of_array)


def test_the_option_goes_along_with_pickling_and_patterns(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path), parts={"*": [".x"]}, must_understand=False)
    for name, each in (("a", pickle.loads(pickle.dumps(store))), ("b", store.with_read_only(False))):
        zarr.create_array(each, name=name, shape=(4,), dtype="u1")
        assert "parts_store" not in json.loads((tmp_path / name / "zarr.json").read_text())
    zarr.create_array(ps.PartsStore(LocalStore(tmp_path), parts={"*": [".x"]}), name="c", shape=(4,), dtype="u1")
    assert json.loads((tmp_path / "c" / "zarr.json").read_text())["parts_store"] == REFUSAL


@pytest.mark.parametrize("member", ["no part without suffix", "split"])
def test_the_member_is_an_extension_object_of_the_core_specification(member: str) -> None:
    if member == "split":
        session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
        store = ps.PartsStore.from_session(session)
        ps.create_array(store, "t", parts=[".x", ""], shape=8, dtype="u1", split=True)
        found = json.loads(zarr_document(session.store, "t"))["parts_store"]
        assert found["configuration"] == {"placing": "split"}
    else:
        objects = MemoryStore()
        write(ps.PartsStore(objects), MISREAD[member])
        found = json.loads(bytes(objects.get("g/t/zarr.json").bytes()))["parts_store"]
    assert found.keys() <= {"name", "configuration", "must_understand"}
    assert re.fullmatch(r"[a-z][a-z0-9-_.]+", found["name"])
    assert isinstance(found.get("configuration", {}), dict)


@pytest.mark.parametrize("kind", ["store", "session"])
def test_arrays_with_the_member_of_earlier_versions_are_read_written_and_copied(kind: str, tmp_path: Path) -> None:
    is_split = kind == "session"
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    plain: Any = session.store if is_split else zarr.storage.LocalStore(tmp_path / "old")
    opens: Callable[[], ps.PartsStore] = partial(ps.PartsStore.from_session, session)
    if not is_split:
        opens = partial(ps.PartsStore.from_url, tmp_path / "old")
    store = opens()
    options: dict[str, Any] = {"shape": 8, "chunks": 4, "dtype": "int32", "split": is_split}
    ps.create_array(store, "t", parts=MISREAD["a part after the data"], compressors=None, **options)[:] = VALUES
    document = json.loads(zarr_document(plain, "t"))
    old = OLD_REFUSAL | ({"placing": "split"} if is_split else {})
    data = json.dumps(document | {"parts_store": old}).encode()
    sync(plain.set("t/zarr.json", default_buffer_prototype().buffer.from_bytes(data)))
    again = opens()
    array = zarr.open_array(again, path="t", mode="r+")
    assert are_values(array[:])
    array[:4] = 7
    array.attrs["units"] = "m"
    assert json.loads(zarr_document(plain, "t"))["parts_store"] == old
    assert again.verify().findings == ()
    assert again.parts_of("t") == ps.ConcatParts(MISREAD["a part after the data"])
    ps.copy(again, ps.PartsStore.from_url(tmp_path / "copy"))
    assert json.loads((tmp_path / "copy/t/zarr.json").read_text())["parts_store"] == REFUSAL
    copied = zarr.open_array(ps.PartsStore.from_url(tmp_path / "copy"), path="t")
    assert np.array_equal(np.asarray(copied), [7, 7, 7, 7, 5, 6, 7, 8])


@pytest.mark.parametrize("value", [1, "yes", None])
def test_anything_but_true_and_false_is_refused(value: Any) -> None:
    with pytest.raises(StoreConfigError, match="must_understand"):
        ps.PartsStore(MemoryStore(), must_understand=value)


def test_a_copy_has_the_member_where_the_destination_needs_it(tmp_path: Path) -> None:
    first = ps.PartsStore(LocalStore(tmp_path / "a", mkdir=True), must_understand=False)
    write(first, MISREAD["a part after the data"])
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    in_session = ps.PartsStore.from_session(session)
    second = ps.PartsStore(LocalStore(tmp_path / "b", mkdir=True))
    third = ps.PartsStore(LocalStore(tmp_path / "c", mkdir=True), must_understand=False)
    ps.copy(first, second)
    ps.copy(second, third)
    ps.copy(second, in_session)
    assert [each["parts_store"] for each in documents_of(tmp_path / "b")] == [REFUSAL, REFUSAL]
    assert ["parts_store" in each for each in documents_of(tmp_path / "c")] == [False, False]
    assert are_values(opened(session.store, "g/t"))
    fourth = ps.PartsStore(LocalStore(tmp_path / "d", mkdir=True))
    ps.copy(in_session, fourth)
    assert json.loads((tmp_path / "d/g/t/zarr.json").read_text())["parts_store"] == REFUSAL
    for store in (first, second, third, in_session, fourth):
        require_read(store)


@pytest.mark.parametrize(
    "member",
    [
        {"must_understand": True, "placing": "elsewhere"},
        {"must_understand": True, "key": "value"},
        {"name": "other", "must_understand": True},
        {"name": "parts_store", "key": "value"},
        {"name": "parts_store", "placing": "split"},
        {"name": "parts_store", "configuration": {"placing": "elsewhere"}},
        {"name": "parts_store", "configuration": "split"},
        {"placing": "elsewhere"},
        True,
        "text",
        None,
    ],
)
def test_a_member_that_has_to_be_understood_and_is_not_is_refused(member: Any, tmp_path: Path) -> None:
    write(ps.PartsStore(LocalStore(tmp_path)), [".x"])
    path = tmp_path / "g/t/zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parts_store": member}))
    with pytest.raises(PartsConfigError, match=r"array 'g/t'.*newer version"):
        zarr.open_array(ps.PartsStore(LocalStore(tmp_path)), path="g/t", mode="r")


# --- verify and repair ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_verify_reports_arrays_without_the_member_and_repair_adds_it(kind: str, tmp_path: Path) -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    places: dict[str, Callable[..., ps.PartsStore]] = {
        "memory": lambda **options: ps.PartsStore(objects, **options),
        "disk": lambda **options: ps.PartsStore(LocalStore(tmp_path), **options),
        "session": lambda **options: ps.PartsStore.from_session(session, **options),
    }
    objects, session = MemoryStore(), repo.writable_session("main")
    old = places[kind](must_understand=False)
    layouts: dict[str, list[Any]] = {"old": [".x", ps.Part(".y", size=4)], "right": [""]}
    for name, parts in layouts.items():
        array = ps.create_array(
            old, name, parts=parts, shape=(8,), chunks=(4,), dtype="int32", compressors=None, split=kind == "session"
        )
        array[:] = VALUES
    assert old.verify().findings == ()
    store = places[kind]()
    (found,) = store.verify().findings
    assert (found.problem, found.chunk_key, found.keys) == (Problem.UNMARKED, "old", ("old/zarr.json",))
    assert not store.verify().is_damaged
    assert store.verify().is_clean
    assert store.verify("old/c").findings == ()
    assert not any(each.is_repaired for each in store.repair().findings)
    before = zarr.open_array(store, path="old", mode="r").metadata
    (mended,) = store.repair(must_understand=True).findings
    assert mended.is_repaired
    assert store.verify().findings == ()
    array = zarr.open_array(store, path="old", mode="r+")
    assert array.metadata == before
    # The store has not kept the document that it knew before.
    array.attrs["units"] = "m"
    assert places[kind]().verify().findings == ()
    assert are_values(array)
