"""What the store promises, kept in Icechunk sessions: byte by byte, in damage, beside others, and by what errors."""

import asyncio
import itertools
import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.icechunk_session import SessionBackend
from parts_store.engine.executor import run_sync
from parts_store.engine.stats import Stats
from parts_store.errors import (
    ChunkSizeError,
    ConcurrentWriteError,
    IncompleteChunkError,
    PartsConfigError,
    PartSizeError,
    PartsStoreError,
    ReadOnlySessionError,
    ReservedKeyError,
    SessionError,
    StoreConfigError,
)
from parts_store.format.references import Reference
from parts_store.maintenance.diagnosis import Problem
from parts_store.transactions import session as session_protocol
from tests.conftest import PIPELINES

PROTOTYPE = default_buffer_prototype()
SHARDED = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
KINDS = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def new_repository() -> icechunk.Repository:
    return icechunk.Repository.create(icechunk.in_memory_storage())


@pytest.fixture
def repository() -> icechunk.Repository:
    return new_repository()


@pytest.fixture
def session(repository: icechunk.Repository) -> icechunk.Session:
    return repository.writable_session("main")


@pytest.fixture
def store(session: icechunk.Session) -> ps.PartsStore:
    return ps.PartsStore.from_session(session)


def buffer(data: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(data)


def value_of(store: ps.PartsStore, key: str, wanted: ByteRequest | None = None) -> bytes | None:
    found = sync(store.get(key, PROTOTYPE, wanted))
    return None if found is None else found.to_bytes()


def keys_of(listing: Any) -> set[str]:
    async def collect() -> set[str]:
        return {key async for key in listing}

    return sync(collect())


def make_sharded(store: ps.PartsStore, name: str = "a", *, split: bool, **arguments: Any) -> Any:
    """An array of two shards of four inner chunks, and its values, none of them the fill value."""
    options: dict[str, Any] = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "uint8", "compressors": None}
    array = ps.create_array(store, name, parts=SHARDED, split=split, **{**options, **arguments})
    array[:] = np.arange(1, array.shape[0] + 1)
    return array


def make_bytes(store: ps.PartsStore, parts: Any, name: str = "a", *, split: bool) -> None:
    """An array whose chunks can be any bytes, as far as nobody decodes them."""
    ps.create_array(store, name, parts=parts, split=split, shape=(8,), chunks=(1,), dtype="uint8", compressors=None)


# --- ranges ---------------------------------------------------------------------------------------------------------


def requests(nbytes: int) -> Iterator[tuple[ByteRequest | None, slice]]:
    """Every request at, in and beyond a value, and the slice that it is."""
    yield None, slice(None)
    for start, stop in itertools.product(range(nbytes + 3), repeat=2):
        if start <= stop:
            yield RangeByteRequest(start, stop), slice(start, stop)
    for offset in range(nbytes + 3):
        yield OffsetByteRequest(offset), slice(offset, None)
        yield SuffixByteRequest(offset), slice(max(nbytes - offset, 0), None)


LAYOUTS: dict[str, list[Any]] = {
    "one": [""],
    "header": [ps.Part(".h", size=2), ""],
    "trailer": ["", ps.Part(".t", size=3)],
    "both": [ps.Part(".h", size=1), "", ps.Part(".t", size=2)],
    "no anchor of its own": [ps.Part(".h", size=1), ".main", ps.Part(".t", size=1)],
    "fixed": [ps.Part(".h", size=2), ps.Part("", size=3)],
}


def fixed_size(parts: list[Any]) -> tuple[int, bool]:
    """How many bytes have their place, and whether others may follow."""
    sizes = [each.size if isinstance(each, ps.Part) else None for each in parts]
    return sum(size for size in sizes if isinstance(size, int)), None in sizes


@KINDS
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_any_range_of_a_chunk_reads_as_a_slice_of_its_bytes(store: ps.PartsStore, layout: str, *, split: bool) -> None:
    make_bytes(store, LAYOUTS[layout], split=split)
    fixed, is_open = fixed_size(LAYOUTS[layout])
    for number, nbytes in enumerate(range(fixed + 1, 9) if is_open else [fixed]):
        value, key = bytes(range(1, nbytes + 1)), f"a/c/{number % 8}"
        store.set_sync(key, buffer(value))
        wanted = list(requests(nbytes))

        async def read_each(key: str, wanted: list[Any]) -> list[Any]:
            return [await store.get(key, PROTOTYPE, each) for each, _ in wanted]

        for (each, expected), found in zip(wanted, sync(read_each(key, wanted)), strict=True):
            assert found is not None
            assert found.to_bytes() == value[expected], (nbytes, each)
        together = store.get_ranges_sync(key, [each for each, _ in wanted], prototype=PROTOTYPE)
        assert [None if each is None else each.to_bytes() for _, each in together] == [
            value[each] for _, each in wanted
        ]
        partial = sync(store.get_partial_values(PROTOTYPE, [(key, each) for each, _ in wanted]))
        assert [None if each is None else each.to_bytes() for each in partial] == [value[each] for _, each in wanted]
        assert sync(store.getsize(key)) == nbytes
        assert sync(store.exists(key))


@KINDS
def test_no_range_of_a_chunk_that_is_not_there_reads_as_anything(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for wanted, _ in requests(2):
        assert value_of(store, "a/c/0", wanted) is None
    with pytest.raises(BaseExceptionGroup) as caught:
        store.get_ranges_sync("a/c/0", [RangeByteRequest(0, 1)], prototype=PROTOTYPE)
    assert caught.group_contains(FileNotFoundError)
    assert sync(store.get_partial_values(PROTOTYPE, [("a/c/0", None)])) == [None]
    assert not sync(store.exists("a/c/0"))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0"))


@KINDS
def test_a_value_that_does_not_fit_is_refused_and_the_old_chunk_stays(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    # In a split array each part is a chunk by itself, and Icechunk keeps none that is empty.
    for value in (b"", b"12", *([b"123"] if split else [])):
        for write in (store.set_sync, lambda key, new: sync(store.set_if_not_exists(key, new))):
            with pytest.raises(ChunkSizeError):
                write("a/c/0", buffer(value))
        with pytest.raises(ChunkSizeError):
            store.set_sync("a/c/1", buffer(value))
    assert value_of(store, "a/c/0") == b"12345"
    assert value_of(store, "a/c/1") is None
    assert store.verify().is_tidy


def test_a_split_array_with_a_part_without_bytes_is_refused_when_it_is_created(store: ps.PartsStore) -> None:
    with pytest.raises(PartsConfigError, match="at least 1"):
        make_bytes(store, [ps.Part(".empty", size=0), ""], split=True)
    assert not sync(store.exists("a/zarr.json"))
    make_bytes(store, [ps.Part(".empty", size=0), ""], split=False)
    store.set_sync("a/c/0", buffer(b"1"))
    assert value_of(store, "a/c/0") == b"1"


@KINDS
def test_set_if_not_exists_writes_a_chunk_once(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for value in (b"first", b"other"):
        sync(store.set_if_not_exists("a/c/0", buffer(value)))
        assert value_of(store, "a/c/0") == b"first"
    store.delete_sync("a/c/0")
    sync(store.set_if_not_exists("a/c/0", buffer(b"again")))
    assert value_of(store, "a/c/0") == b"again"


@KINDS
def test_an_array_without_dimensions_and_one_at_the_root_are_kept(
    repository: Any, session: Any, *, split: bool
) -> None:
    store = ps.PartsStore.from_session(session)
    parts = [ps.Part(".h", size=1), ps.Part(""), ps.Part(".t", size=1)]
    scalar = ps.create_array(store, None, parts=parts, split=split, shape=(), dtype="float64", compressors=None)
    scalar[...] = 2.5
    session.commit("a number")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert zarr.open_array(reader)[...] == 2.5
    assert keys_of(reader.list()) == {"zarr.json", "c"}
    assert reader.verify().is_tidy


@KINDS
@pytest.mark.parametrize("suffix", [".x", ".a.b", "%2E", "~", " x", "ü", "-" * 60, ":", "?", "#"])
def test_any_suffix_that_the_specification_allows_is_kept(store: ps.PartsStore, suffix: str, *, split: bool) -> None:
    make_bytes(store, ["", ps.Part(suffix, size=2)], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    assert value_of(store, "a/c/0") == b"12345"
    store.session.commit("a chunk")
    assert value_of(store, "a/c/0", SuffixByteRequest(3)) == b"345"
    assert keys_of(store.list()) == {"zarr.json", "a/zarr.json", "a/c/0"}
    assert store.verify().is_tidy


# --- references into files ------------------------------------------------------------------------------------------


@pytest.fixture
def referring(tmp_path: Path) -> tuple[icechunk.Repository, str]:
    """A repository that may refer to the files of a folder, and where that is."""
    folder = tmp_path / "files"
    folder.mkdir()
    location = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(location, icechunk.local_filesystem_store(str(folder)))
    )
    made = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config=config,
        authorize_virtual_chunk_access={location: icechunk.credentials.LocalFileSystemAccess},
    )
    return made, location


def test_any_range_of_a_chunk_of_references_reads_as_a_slice_of_its_bytes(
    referring: tuple[icechunk.Repository, str], tmp_path: Path
) -> None:
    repository, location = referring
    content = bytes(range(100, 140))
    (tmp_path / "files" / "file").write_bytes(content)
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    make_bytes(store, LAYOUTS["both"], split=True)
    middle = Reference(f"{location}file", 7, 5)
    store.set_parts("a/c/0", [b"h", middle, b"ta"])
    store.set_parts("a/c/1", [Reference(f"{location}file", 1, 1), b"m", Reference(f"{location}file", 38, 2)])
    expected = {"a/c/0": b"h" + content[7:12] + b"ta", "a/c/1": content[1:2] + b"m" + content[38:]}
    session.commit("references")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    for key, value in expected.items():
        for wanted, cut in requests(len(value)):
            assert value_of(reader, key, wanted) == value[cut], (key, wanted)
        assert sync(reader.getsize(key)) == len(value)
    assert reader.verify(checksums=True).is_tidy


def test_references_are_written_only_where_and_as_they_can_be_read(
    referring: tuple[icechunk.Repository, str], tmp_path: Path
) -> None:
    repository, location = referring
    (tmp_path / "files" / "file").write_bytes(bytes(40))
    store = ps.PartsStore.from_session(repository.writable_session("main"))
    make_bytes(store, LAYOUTS["both"], split=True)
    make_bytes(store, LAYOUTS["both"], "whole", split=False)
    store.set_sync("a/c/0", buffer(b"12345"))
    good = Reference(f"{location}file", 0, 5)
    with pytest.raises(SessionError, match="virtual chunk container"):
        store.set_parts("a/c/0", [b"h", Reference("s3://elsewhere/file", 0, 5), b"ta"])
    with pytest.raises(ChunkSizeError):
        store.set_parts("a/c/0", [b"hh", good, b"ta"])
    with pytest.raises(ChunkSizeError):
        store.set_parts("a/c/0", [b"h", b"", b"ta"])
    with pytest.raises(PartsConfigError):
        store.set_parts("a/c/0", [b"h", good])
    with pytest.raises(SessionError, match="split=True"):
        store.set_parts("whole/c/0", [b"h", good, b"ta"])
    assert value_of(store, "a/c/0") == b"12345"


def test_a_reference_to_a_file_that_is_gone_or_was_changed_is_an_error_never_fill_values(
    referring: tuple[icechunk.Repository, str], tmp_path: Path
) -> None:
    repository, location = referring
    file = tmp_path / "files" / "file"
    file.write_bytes(bytes(range(1, 41)))
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array = ps.create_array(
        store, "a", parts=["", ps.Part(".t", size=2)], split=True, shape=(8,), chunks=(8,), dtype="u1", compressors=None
    )
    store.set_parts("a/c/0", [Reference(f"{location}file", 0, 6), b"tt"])
    np.testing.assert_array_equal(array[:], [1, 2, 3, 4, 5, 6, 116, 116])
    file.unlink()
    with pytest.raises(SessionError):
        array[:]
    report = store.verify(checksums=True)
    assert [finding.problem for finding in report.findings] == [Problem.UNREADABLE]
    assert report.is_damaged


# --- missing and damaged parts --------------------------------------------------------------------------------------


def test_a_missing_part_is_an_error_never_fill_values(store: ps.PartsStore, pipeline: str) -> None:
    array = make_sharded(store, split=True)
    sync(store.session.store.delete("a/__parts__/.index/c/0"))
    for selection in (np.s_[0], np.s_[0:8], np.s_[:], np.s_[3:12]):
        with pytest.raises(IncompleteChunkError) as caught:
            zarr.open_array(store, path="a")[selection]
        assert caught.value.chunk_key == "a/c/0"
        assert caught.value.missing == ("a/__parts__/.index/c/0",)
    np.testing.assert_array_equal(array[8:], np.arange(9, 17))
    with pytest.raises(IncompleteChunkError):
        array[0:3] = 7
    report = store.verify()
    assert [(each.problem, each.chunk_key) for each in report.findings] == [(Problem.INCOMPLETE, "a/c/0")]
    assert report.is_damaged
    # What is written whole is whole again.
    array[0:8] = 5
    np.testing.assert_array_equal(array[:8], [5] * 8)
    assert store.verify().is_tidy


def test_a_missing_data_part_or_a_missing_node_of_parts_is_an_error_never_fill_values(store: ps.PartsStore) -> None:
    make_sharded(store, "a", split=True)
    sync(store.session.store.delete("a/__parts__/.index/zarr.json"))
    fresh = ps.PartsStore.from_session(store.session)
    for each in (store, fresh):
        with pytest.raises(IncompleteChunkError):
            zarr.open_array(each, path="a")[0]
        with pytest.raises(PartsStoreError):
            zarr.open_array(each, path="a")[:] = 3
    assert store.verify().is_damaged


def test_the_anchor_missing_means_that_there_is_no_chunk_and_the_rest_are_orphans(store: ps.PartsStore) -> None:
    array = make_sharded(store, split=True)
    sync(store.session.store.delete("a/c/0"))
    np.testing.assert_array_equal(array[:], [0] * 8 + list(range(9, 17)))
    assert not sync(store.exists("a/c/0"))
    report = store.verify()
    assert [each.problem for each in report.findings] == [Problem.ORPHANS]
    assert not report.is_damaged
    assert store.repair().is_tidy
    assert store.verify().is_tidy
    assert "a/__parts__/.index/c/0" not in keys_of(store.session.store.list())


def test_a_part_of_another_size_than_it_should_have_is_an_error(store: ps.PartsStore) -> None:
    make_bytes(store, LAYOUTS["both"], split=True)
    store.set_sync("a/c/0", buffer(b"12345"))
    sync(store.session.store.set("a/__parts__/.t/c/0", buffer(b"long")))
    with pytest.raises(PartSizeError) as caught:
        value_of(ps.PartsStore.from_session(store.session), "a/c/0")
    assert caught.value.part_key == "a/__parts__/.t/c/0"
    assert [each.problem for each in store.verify().findings] == [Problem.WRONG_SIZE]


def test_a_shard_whose_index_is_damaged_is_found_whole_and_split(store: ps.PartsStore) -> None:
    for name, split in (("whole", False), ("split", True)):
        make_sharded(store, name, split=split)
    raw = store.session.store
    index = sync(raw.get("split/__parts__/.index/c/1", PROTOTYPE))
    assert index is not None
    damaged = bytes(byte ^ 1 for byte in index.to_bytes())
    sync(raw.set("split/__parts__/.index/c/1", buffer(damaged)))
    whole = sync(raw.get("whole/c/1", PROTOTYPE))
    assert whole is not None
    sync(raw.set("whole/c/1", buffer(whole.to_bytes()[: -len(damaged)] + damaged)))
    report = store.verify()
    assert {(each.problem, each.chunk_key) for each in report.findings} == {
        (Problem.CHECKSUM, "split/c/1"),
        (Problem.CHECKSUM, "whole/c/1"),
    }


# --- nodes that belong to nobody ------------------------------------------------------------------------------------


def delete_with_icechunk(session: icechunk.Session) -> None:
    """Deletes the array as somebody does who knows nothing of parts: Icechunk leaves their nodes behind."""
    sync(session.store.delete("a/zarr.json"))
    assert any("__parts__" in key for key in keys_of(session.store.list()))


PLAIN: dict[str, Any] = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "uint8", "compressors": None}


@pytest.mark.parametrize("commits_between", [False, True])
def test_an_array_created_anew_by_us_does_not_inherit_the_parts_of_one_deleted_by_icechunk(
    repository: icechunk.Repository, *, commits_between: bool
) -> None:
    session = repository.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=True)
    delete_with_icechunk(session)
    if commits_between:
        session.commit("deleted")
        session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    assert "a" not in zarr.open_group(store)
    assert keys_of(store.list()) == {"zarr.json"}
    array = ps.create_array(store, "a", parts=SHARDED, split=True, **PLAIN)
    np.testing.assert_array_equal(array[:], [0] * 16)
    # Not even if the anchor comes back.
    sync(session.store.set("a/c/0", buffer(bytes(8))))
    with pytest.raises(IncompleteChunkError):
        array[0]
    array[8:] = 4
    store.delete_sync("a/c/0")
    np.testing.assert_array_equal(array[:], [0] * 8 + [4] * 8)
    assert store.verify().is_tidy


@pytest.mark.parametrize("commits_between", [False, True])
def test_an_array_created_anew_by_icechunk_does_not_inherit_them_and_repair_removes_them(
    repository: icechunk.Repository, *, commits_between: bool
) -> None:
    session = repository.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=True)
    stored = sync(session.store.get("a/zarr.json", PROTOTYPE))
    assert stored is not None
    anchor = sync(session.store.get("a/c/0", PROTOTYPE))
    assert anchor is not None
    delete_with_icechunk(session)
    if commits_between:
        session.commit("deleted")
        session = repository.writable_session("main")
    # The same document and the same anchor, by somebody who knows nothing of parts.
    sync(session.store.set("a/zarr.json", stored))
    sync(session.store.set("a/c/0", anchor))
    store = ps.PartsStore.from_session(session)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(store, path="a")[:]
    with pytest.raises(PartsStoreError):
        zarr.open_array(store, path="a")[8:] = 3
    found = {each.problem: each.keys for each in store.verify().findings}
    assert found[Problem.STRAY_NODES] == ("a/__parts__/.index/zarr.json",)
    assert Problem.INCOMPLETE in found
    store.repair(drop_incomplete=True)
    assert not any("__parts__" in key for key in keys_of(session.store.list()))
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], [0] * 16)


@pytest.mark.parametrize("how", ["document", "folder", "group"])
@pytest.mark.parametrize("then", ["split", "whole", "plain"])
def test_a_store_that_knew_the_array_does_not_take_one_created_anew_for_it(
    store: ps.PartsStore, how: str, then: str
) -> None:
    make_sharded(store, "g/a", split=True)
    raw = store.session.store
    match how:
        case "document":
            sync(raw.delete("g/a/zarr.json"))
        case "folder":
            sync(raw.delete_dir("g/a"))
        case _:
            del zarr.open_group(raw)["g"]
    if then == "plain":
        array: Any = zarr.create_array(raw, name="g/a", fill_value=0, **PLAIN)
        array[8:] = 3
        array = zarr.open_array(store, path="g/a")
        array[9] = 4
    else:
        array = ps.create_array(store, "g/a", parts=SHARDED, split=then == "split", **PLAIN)
        array[8:] = 3
        array[9] = 4
    for each in (store, ps.PartsStore.from_session(store.session)):
        np.testing.assert_array_equal(zarr.open_array(each, path="g/a")[:], [0] * 8 + [3, 4] + [3] * 6)
    assert store.repair().is_tidy
    np.testing.assert_array_equal(zarr.open_array(store, path="g/a")[:], [0] * 8 + [3, 4] + [3] * 6)
    assert (len([key for key in keys_of(raw.list()) if "__parts__" in key]) > 0) == (then == "split")


def test_stray_nodes_are_found_hidden_and_removed(store: ps.PartsStore) -> None:
    make_sharded(store, split=True)
    make_sharded(store, "b", split=True)
    delete_with_icechunk(store.session)
    assert all("a" not in key.split("/") for key in keys_of(store.list()))
    report = store.verify()
    assert [(each.problem, each.keys) for each in report.findings] == [
        (Problem.STRAY_NODES, ("a/__parts__/.index/zarr.json",))
    ]
    assert not report.is_damaged
    assert not report.is_tidy
    assert store.repair().is_tidy
    assert store.verify().is_tidy
    assert {key.split("/")[0] for key in keys_of(store.session.store.list()) if "__parts__" in key} == {"b"}
    np.testing.assert_array_equal(zarr.open_array(store, path="b")[:], np.arange(1, 17))


def test_stray_nodes_go_with_their_folder(store: ps.PartsStore) -> None:
    make_sharded(store, "g/a", split=True)
    sync(store.session.store.delete("g/a/zarr.json"))
    sync(store.delete_dir("g"))
    assert keys_of(store.session.store.list()) == {"zarr.json"}


def change_document(store: ps.PartsStore, key: str, change: Callable[[dict[str, Any]], None]) -> None:
    raw = store.session.store
    found = sync(raw.get(key, PROTOTYPE))
    assert found is not None
    document = json.loads(found.to_bytes())
    change(document)
    sync(raw.set(key, buffer(json.dumps(document).encode())))


def no_attributes(document: dict[str, Any]) -> None:
    document["attributes"] = {}


def no_text(document: dict[str, Any]) -> None:
    document["attributes"] = {"array_node_id": 7}


def another_array(document: dict[str, Any]) -> None:
    document["attributes"] = {"array_node_id": "0000000000000000"}


def a_group(document: dict[str, Any]) -> None:
    document.clear()
    document.update({"zarr_format": 3, "node_type": "group", "attributes": {}})


@pytest.mark.parametrize("damage", [no_attributes, no_text, another_array])
def test_a_node_of_parts_that_does_not_say_whose_it_is_has_no_parts(store: ps.PartsStore, damage: Any) -> None:
    make_sharded(store, split=True)
    change_document(store, "a/__parts__/.index/zarr.json", damage)
    # The owner of a node is learnt once, and nobody changes it who knows what it is.
    fresh = ps.PartsStore.from_session(store.session)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(fresh, path="a")[0]
    problems = {each.problem for each in fresh.verify().findings}
    assert problems == {Problem.STRAY_NODES, Problem.INCOMPLETE}
    with pytest.raises(SessionError, match="found none or another array's"):
        zarr.open_array(fresh, path="a")[:] = 3


def test_the_node_of_another_array_is_not_taken_for_ones_own(store: ps.PartsStore) -> None:
    make_sharded(store, "a", split=True)
    make_sharded(store, "b", split=True)
    owner = store.session.get_node_id("/b")

    def claim(document: dict[str, Any]) -> None:
        document["attributes"] = {"array_node_id": owner}

    change_document(store, "a/__parts__/.index/zarr.json", claim)
    fresh = ps.PartsStore.from_session(store.session)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(fresh, path="a")[0]
    np.testing.assert_array_equal(zarr.open_array(fresh, path="b")[:], np.arange(1, 17))


def test_parts_stay_with_an_array_that_is_moved(repository: icechunk.Repository, session: icechunk.Session) -> None:
    for name, split in (("g/a", True), ("g/b", False)):
        make_sharded(ps.PartsStore.from_session(session), name, split=split)
    session.commit("two arrays")
    moving = repository.rearrange_session("main")
    moving.move("/g", "/h")
    moving.commit("moved")
    store = ps.PartsStore.from_session(repository.writable_session("main"))
    for name in ("h/a", "h/b"):
        array = zarr.open_array(store, path=name)
        np.testing.assert_array_equal(array[:], np.arange(1, 17))
        array[3:5] = 99
        assert array[4] == 99
        array.resize((24,))
    assert store.verify().is_tidy


# --- hidden keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "a/__parts__/.index/c/0",
        "a/__parts__/.index/zarr.json",
        "a/__parts__/zarr.json",
        "a/__parts__",
        "__parts__/x/zarr.json",
        "a/c/0.index",
    ],
)
def test_the_keys_of_parts_are_not_there_and_cannot_be_changed(store: ps.PartsStore, key: str) -> None:
    array = make_sharded(store, split=True)
    before = keys_of(store.session.store.list())
    assert value_of(store, key) is None
    assert value_of(store, key, RangeByteRequest(0, 1)) is None
    assert store.get_sync(key) is None
    assert not sync(store.exists(key))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize(key))
    document = buffer(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode())
    changes: list[Callable[[], object]] = [
        lambda: sync(store.set(key, document)),
        lambda: store.set_sync(key, document),
        lambda: sync(store.set_if_not_exists(key, document)),
        lambda: sync(store.delete(key)),
        lambda: store.delete_sync(key),
    ]
    for change in changes:
        with pytest.raises(ReservedKeyError):
            change()
    assert keys_of(store.session.store.list()) == before
    np.testing.assert_array_equal(array[:], np.arange(1, 17))


@pytest.mark.parametrize("folder", ["a/__parts__", "a/__parts__/", "a/__parts__/.index", "a/__parts__/.index/c"])
def test_the_folders_of_parts_are_empty_and_cannot_be_deleted(store: ps.PartsStore, folder: str) -> None:
    array = make_sharded(store, split=True)
    assert keys_of(store.list_dir(folder)) == set()
    assert keys_of(store.list_prefix(folder)) == set()
    assert sync(store.is_empty(folder))
    with pytest.raises(ReservedKeyError):
        sync(store.delete_dir(folder))
    with pytest.raises(ValueError, match=r"parts|parent"):
        zarr.create_group(store, path=folder.rstrip("/"), overwrite=True)
    with pytest.raises(StoreConfigError):
        store.verify(folder)
    np.testing.assert_array_equal(array[:], np.arange(1, 17))


@KINDS
def test_the_size_of_a_folder_is_that_of_all_parts_in_it(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for number in range(3):
        store.set_sync(f"a/c/{number}", buffer(bytes(range(1, 6 + number))))
    stored = sync(store.session.store.get("a/zarr.json", PROTOTYPE))
    assert stored is not None
    assert sync(store.getsize_prefix("a/c")) == 5 + 6 + 7
    assert sync(store.getsize_prefix("a")) == 5 + 6 + 7 + len(stored)


@KINDS
def test_the_folder_of_chunks_is_listed_only_if_there_are_some(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    make_bytes(store, LAYOUTS["both"], "g/c", split=split)
    for _ in range(2):
        assert keys_of(store.list_dir("a")) == {"zarr.json"}
        assert keys_of(store.list_dir("a/c")) == set()
        assert keys_of(store.list_dir("g")) == {"zarr.json", "c"}
        store.set_sync("a/c/3", buffer(b"12345"))
        assert keys_of(store.list_dir("a")) == {"zarr.json", "c"}
        assert keys_of(store.list_dir("a/c")) == {"3"}
        store.delete_sync("a/c/3")


# --- named errors ---------------------------------------------------------------------------------------------------


def require_ours(error: BaseException) -> None:
    """The error is of our tree, nothing that zarr takes for absence, and survives pickling."""
    assert isinstance(error, PartsStoreError)
    assert not isinstance(error, KeyError | FileNotFoundError)
    # Without where it came from: distributed, once imported, pickles that too, and it can be too deep.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))


@KINDS
def test_a_session_that_was_committed_can_be_read_and_not_written(store: ps.PartsStore, *, split: bool) -> None:
    array = make_sharded(store, split=split)
    store.session.commit("an array")
    np.testing.assert_array_equal(array[:], np.arange(1, 17))
    writes: list[Callable[[], object]] = [
        lambda: array.__setitem__(0, 1),
        lambda: array.resize((4,)),
        lambda: array.attrs.update({"x": 1}),
        lambda: store.delete_sync("a/c/0"),
        lambda: sync(store.delete_dir("a")),
        lambda: sync(store.clear()),
        lambda: store.set_sync("a/c/0", buffer(bytes(200))),
        lambda: sync(store.set_if_not_exists("a/c/5", buffer(bytes(200)))),
        lambda: store.with_read_only(read_only=False),
        store.repair,
        lambda: store.set_parts("a/c/0", [bytes(8), bytes(68)]),
        lambda: make_sharded(store, "b", split=split),
    ]
    for write in writes:
        with pytest.raises(ReadOnlySessionError, match="committed") as caught:
            write()
        require_ours(caught.value)
    np.testing.assert_array_equal(array[:], np.arange(1, 17))


def test_a_read_only_session_and_one_to_move_nodes_are_read_only(
    repository: icechunk.Repository, session: icechunk.Session
) -> None:
    make_sharded(ps.PartsStore.from_session(session), split=True)
    session.commit("an array")
    moving = repository.rearrange_session("main")
    for each, why in ((repository.readonly_session("main"), "read only"), (moving, "only move nodes")):
        store = ps.PartsStore.from_session(each)
        assert store.read_only
        with pytest.raises(ValueError, match="read-only mode"):
            store.delete_sync("a/c/0")
        with pytest.raises(ReadOnlySessionError, match=why) as caught:
            store.with_read_only(read_only=False)
        require_ours(caught.value)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], np.arange(1, 17))
    assert "to move nodes" in str(store)


def test_a_store_may_be_read_only_on_a_writable_session(store: ps.PartsStore) -> None:
    make_sharded(store, split=True)
    reader = ps.PartsStore.from_session(store.session, read_only=True)
    assert reader.read_only
    assert reader != store
    assert reader == store.with_read_only(read_only=True)
    with pytest.raises(ValueError, match="read-only mode"):
        zarr.open_array(reader, path="a")[:] = 1
    writer = reader.with_read_only(read_only=False)
    zarr.open_array(writer, path="a")[:] = 7
    np.testing.assert_array_equal(zarr.open_array(reader, path="a")[:], [7] * 16)


@KINDS
@pytest.mark.parametrize(("name", "separator"), [("default", "."), ("v2", "/"), ("v2", ".")])
def test_chunk_keys_that_no_session_can_keep_are_refused_at_creation(
    store: ps.PartsStore, name: str, separator: str, *, split: bool
) -> None:
    encoding: Any = {"name": name, "separator": separator}
    for create in (
        lambda: make_sharded(store, split=split, chunk_key_encoding=encoding),
        lambda: zarr.create_array(store, name="a", shape=(4,), dtype="u1", chunk_key_encoding=encoding),
    ):
        with pytest.raises(SessionError, match="chunk_key_encoding") as caught:
            create()
        require_ours(caught.value)
    assert not any(key.startswith("a/") for key in keys_of(store.session.store.list()))


def test_zarr_v2_is_refused_by_name(store: ps.PartsStore) -> None:
    for create in (
        lambda: zarr.create_array(store, name="a", shape=(4,), dtype="u1", zarr_format=2),
        lambda: zarr.create_group(store, path="g", zarr_format=2),
    ):
        with pytest.raises(SessionError, match="Zarr v2") as caught:
            create()
        require_ours(caught.value)
    with pytest.raises(PartsConfigError, match="Zarr v2"):
        make_sharded(store, split=False, zarr_format=2)


@pytest.mark.parametrize("found", [None, "main", 7, object()])
def test_what_is_no_session_is_refused_by_name(found: Any) -> None:
    with pytest.raises(StoreConfigError, match="a session of Icechunk") as caught:
        ps.PartsStore.from_session(found)
    require_ours(caught.value)


def test_a_store_of_icechunk_is_no_session(session: icechunk.Session) -> None:
    with pytest.raises(StoreConfigError, match="a session of Icechunk"):
        ps.PartsStore.from_session(session.store)
    with pytest.raises(StoreConfigError, match="split"):
        ps.PartsStore.from_url("memory://").with_parts({}, split=True)


def test_a_chunk_outside_of_the_grid_is_refused_and_nothing_is_written(store: ps.PartsStore) -> None:
    for name, split in (("whole", False), ("split", True)):
        make_bytes(store, LAYOUTS["both"], name, split=split)
        before = keys_of(store.session.store.list())
        with pytest.raises(SessionError) as caught:
            store.set_sync(f"{name}/c/8", buffer(b"12345"))
        require_ours(caught.value)
        assert keys_of(store.session.store.list()) == before
        store.delete_sync(f"{name}/c/8")


def test_a_document_that_icechunk_does_not_take_is_refused_by_name(store: ps.PartsStore) -> None:
    for document in (b"", b"no json", b"[]", b"{}", b'{"zarr_format": 3, "node_type": "array"}'):
        with pytest.raises(SessionError) as caught:
            store.set_sync("a/zarr.json", buffer(document))
        require_ours(caught.value)
    assert not sync(store.exists("a/zarr.json"))
    make_sharded(store, split=True)


# --- chunks whose bytes are gone ------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path) -> icechunk.Repository:
    # Everything in objects, whatever its size.
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")), config=config)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@KINDS
@pytest.mark.parametrize("folder", ["chunks", "manifests"])
def test_objects_that_are_gone_are_errors_never_fill_values(
    on_disk: icechunk.Repository, tmp_path: Path, pipeline: str, folder: str, *, split: bool
) -> None:
    session = on_disk.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=split)
    session.commit("an array")
    shutil.rmtree(tmp_path / "repository" / folder)
    again = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    store = ps.PartsStore.from_session(again.readonly_session("main"))
    for selection in (np.s_[0], np.s_[0:8], np.s_[:]):
        with pytest.raises(SessionError) as caught:
            zarr.open_array(store, path="a")[selection]
        require_ours(caught.value)
    if folder == "chunks":
        report = store.verify(checksums=True)
        assert {each.problem for each in report.findings} == {Problem.UNREADABLE}
        assert {each.chunk_key for each in report.findings} == {"a/c/0", "a/c/1"}
        assert report.is_damaged


# --- how it looks, and where it goes --------------------------------------------------------------------------------


def test_a_store_says_what_session_it_is_on(repository: icechunk.Repository, session: icechunk.Session) -> None:
    store = ps.PartsStore.from_session(session)
    make_sharded(store, split=True)
    assert repr(store) == f"PartsStore(icechunk session on main at {session.snapshot_id})"
    assert str(store) == f"parts_store://icechunk session on main at {session.snapshot_id}"
    page = store._repr_html_()
    assert "icechunk session on main" in page
    assert "parts of a" in page
    snapshot = session.commit("an array")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert repr(reader) == f"PartsStore(icechunk at {snapshot}, read_only=True)"
    assert "<td>yes</td>" in reader._repr_html_()


def test_stores_are_equal_if_their_sessions_and_options_are(
    repository: icechunk.Repository, session: icechunk.Session
) -> None:
    store = ps.PartsStore.from_session(session)
    assert store == ps.PartsStore.from_session(session)
    assert store != ps.PartsStore.from_session(repository.writable_session("main"))
    assert store != ps.PartsStore.from_session(session, parts={"*": [""]})
    assert store.with_parts({"*": SHARDED}) != store.with_parts({"*": SHARDED}, split=True)
    assert store.session is session
    assert store.store is session


@KINDS
def test_a_read_only_session_and_a_fork_are_pickled_and_a_writable_session_is_not(
    on_disk: icechunk.Repository, *, split: bool
) -> None:
    session = on_disk.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=split)
    with pytest.raises(pickle.PicklingError, match="fork the session"):
        pickle.dumps(ps.PartsStore.from_session(session))
    session.commit("an array")
    reader = ps.PartsStore.from_session(on_disk.readonly_session("main"), index_cache_bytes=5, retries=2)
    zarr.open_array(reader, path="a")
    copy = pickle.loads(pickle.dumps(reader))
    # Icechunk takes no two sessions for the same, and so these are not.
    assert copy.session.snapshot_id == reader.session.snapshot_id
    assert copy.read_only
    assert copy.catalog.lasting() == reader.catalog.lasting()
    np.testing.assert_array_equal(zarr.open_array(copy, path="a")[:], np.arange(1, 17))
    writing = on_disk.writable_session("main")
    fork = writing.fork()
    forked = ps.PartsStore.from_session(fork).with_parts({"new": SHARDED}, split=split)
    sent = pickle.loads(pickle.dumps(forked))
    assert not sent.read_only
    zarr.open_array(sent, path="a")[2:4] = 50
    new = zarr.create_array(sent, name="new", **PLAIN)
    new[:] = 6
    writing.merge(pickle.loads(pickle.dumps(sent)).session)
    merged = ps.PartsStore.from_session(writing)
    np.testing.assert_array_equal(zarr.open_array(merged, path="a")[:5], [1, 2, 50, 50, 5])
    np.testing.assert_array_equal(zarr.open_array(merged, path="new")[:], [6] * 16)
    assert any(key.startswith("new/__parts__") for key in keys_of(writing.store.list())) == split
    assert merged.verify().is_tidy


# --- what a read costs ----------------------------------------------------------------------------------------------


def test_a_random_read_of_a_whole_shard_is_one_request_for_the_index_and_one_for_data(
    repository: icechunk.Repository, session: icechunk.Session, pipeline: str
) -> None:
    make_sharded(ps.PartsStore.from_session(session), split=False)
    session.commit("an array")
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = zarr.open_array(store, path="a")
    for expected, saved in ((2, 0), (1, 1), (1, 1)):
        planned = store.explain("a", np.s_[5])
        store.stats.reset()
        assert array[5] == 6
        assert {kind: count for kind, count in store.stats.calls.items() if count} == {"get": expected}
        assert store.stats.saved_by_index_cache == saved
        assert [request.kind for request in planned] == ["get"] * expected
        assert {request.key for request in planned} == {"a/c/0"}
    data = planned[-1]
    assert (data.start, data.stop) == (4, 6)


def test_a_random_read_of_a_split_shard_asks_for_the_index_in_its_own_node(
    repository: icechunk.Repository, session: icechunk.Session, pipeline: str
) -> None:
    make_sharded(ps.PartsStore.from_session(session), split=True)
    session.commit("an array")
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = zarr.open_array(store, path="a")
    planned = store.explain("a", np.s_[5])
    assert [request.key for request in planned if request.kind == "get"] == ["a/__parts__/.index/c/0", "a/c/0"]
    store.stats.reset()
    assert array[5] == 6
    assert store.stats.get == 2
    assert len(planned) == sum(store.stats.calls.values())
    store.stats.reset()
    assert array[6] == 7
    assert {kind: count for kind, count in store.stats.calls.items() if count} == {"get": 1}


@KINDS
def test_no_index_is_kept_while_a_session_has_changes(repository: icechunk.Repository, *, split: bool) -> None:
    session = repository.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=split)
    session.commit("an array")
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array: Any = zarr.open_array(store, path="a")
    assert array[5] == 6
    fork = session.fork()
    # Other inner chunks are there, and so the same ones are elsewhere.
    changed = ps.PartsStore.from_session(fork)
    zarr.open_array(changed, path="a")[:8] = [0, 0, 0, 0, 55, 66, 77, 88]
    session.merge(fork)
    np.testing.assert_array_equal(array[:8], [0, 0, 0, 0, 55, 66, 77, 88])
    assert array[5] == 66
    array[0:2] = 11
    np.testing.assert_array_equal(array[:8], [11, 11, 0, 0, 55, 66, 77, 88])
    again = session.fork()
    zarr.open_array(ps.PartsStore.from_session(again), path="a")[2:8] = [3, 3, 4, 4, 5, 5]
    assert array[7] == 88
    session.merge(again)
    np.testing.assert_array_equal(array[:8], [11, 11, 3, 3, 4, 4, 5, 5])
    session.commit("changed")
    for _ in range(2):
        assert [int(array[at]) for at in range(8)] == [11, 11, 3, 3, 4, 4, 5, 5]


@KINDS
def test_discarded_changes_are_not_read_any_more(repository: icechunk.Repository, *, split: bool) -> None:
    session = repository.writable_session("main")
    make_sharded(ps.PartsStore.from_session(session), split=split)
    session.commit("an array")
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array = zarr.open_array(store, path="a")
    array[:4] = 0
    assert array[5] == 6
    session.discard_changes()
    np.testing.assert_array_equal([array[at] for at in range(16)], np.arange(1, 17))
    np.testing.assert_array_equal(array[:], np.arange(1, 17))
    array[:2] = 9
    np.testing.assert_array_equal(array[:], [9, 9, *range(3, 17)])
    assert store.verify().is_tidy


# --- together with others -------------------------------------------------------------------------------------------


def in_threads(*targets: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def read_again(array: Any, selection: Any) -> Any:
    """What is read there, once nobody changes it meanwhile."""
    for _ in range(1000):
        try:
            return array[selection]
        except ConcurrentWriteError:
            continue
    pytest.fail("never came to rest")


# zarr's batched pipeline reads a plain chunk where nobody can know for which write it does.
@KINDS
@pytest.mark.parametrize(("chosen", "sharded"), [("batched", True), ("fused", True), ("fused", False)])
def test_threads_that_change_one_chunk_lose_no_update(
    store: ps.PartsStore, chosen: str, *, sharded: bool, split: bool
) -> None:
    chunks: dict[str, Any] = {"chunks": (2,), "shards": (8,)} if sharded else {"chunks": (8,), "shards": None}
    parts: Any = SHARDED if sharded else ["", ps.Part(".t", size=2)]
    options: dict[str, Any] = {"shape": (8,), "dtype": "uint8", "compressors": None, **chunks}
    ps.create_array(store, "a", parts=parts, split=split, **options)[:] = 1

    def writer(at: int) -> Callable[[], None]:
        def write() -> None:
            array = zarr.open_array(store, path="a")
            for value in range(2, 12):
                for _ in range(1000):
                    try:
                        array[at : at + 2] = value
                    except ConcurrentWriteError:
                        continue
                    break
                # Nobody else writes here: what was written stays.
                np.testing.assert_array_equal(read_again(array, np.s_[at : at + 2]), [value] * 2)

        return write

    with zarr.config.set({"codec_pipeline.path": PIPELINES[chosen]}):
        in_threads(*(writer(at) for at in (0, 2, 4, 6)))
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], [11] * 8)
    assert store.verify().is_tidy


@KINDS
def test_a_whole_write_waits_for_who_changes_the_chunk(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    backend, rules = store._backend, store._operations.rules
    assert isinstance(backend, SessionBackend)
    record = store.catalog.arrays()["a"]
    chunk = record.chunk("a", "c/0")
    parts = [b"x", b"changed", b"yz"] if split else [b"xchangedyz"]
    seen = run_sync(seen_of(chunk, store), backend, Stats())
    steps = session_protocol.write(chunk, [memoryview(part) for part in parts], rules, seen)
    lock = next(steps)
    taken = backend.lock(lock[0])  # type: ignore[arg-type]  # the first step
    assert taken is not None
    done = threading.Event()

    def overwrite() -> None:
        store.set_sync("a/c/0", buffer(b"overwritten"))
        done.set()

    thread = threading.Thread(target=overwrite)
    thread.start()
    assert not done.wait(0.1)
    steps.close()
    taken()
    thread.join(30)
    assert done.is_set()
    assert value_of(store, "a/c/0") == b"overwritten"


def seen_of(chunk: Any, store: ps.PartsStore) -> Any:
    from parts_store.transactions import reading

    read = yield from reading.read(chunk, [None], settings=store._operations.settings(), with_anchor=True)
    assert read is not None
    return read.version


@KINDS
def test_a_range_read_beside_writers_is_of_one_write(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    # Each value has its own size, and says at its end and everywhere else which one it is.
    values = [bytes([number]) * (4 + 7 * number % 40) for number in range(1, 200)]
    store.set_sync("a/c/0", buffer(values[0]))

    async def both() -> int:
        is_over = False
        reads = 0

        async def read(wanted: ByteRequest | None) -> None:
            nonlocal reads
            while not is_over:
                # Also where nothing has to be waited for, others get their turn.
                await asyncio.sleep(0)
                try:
                    found = await store.get("a/c/0", PROTOTYPE, wanted)
                except ConcurrentWriteError:
                    continue
                assert found is not None
                data = found.to_bytes()
                assert len(set(data)) == 1
                assert len(data) == len(cut_of(values[data[0] - 1], wanted))
                reads += 1

        wanted: list[ByteRequest | None] = [None, SuffixByteRequest(3), RangeByteRequest(1, 9), OffsetByteRequest(2)]
        readers = [asyncio.ensure_future(read(each)) for each in wanted]
        for value in values[1:]:
            await store.set("a/c/0", buffer(value))
        is_over = True
        await asyncio.gather(*readers)
        return reads

    assert sync(both()) > 0
    assert value_of(store, "a/c/0") == values[-1]


def cut_of(value: bytes, wanted: ByteRequest | None) -> bytes:
    match wanted:
        case RangeByteRequest(start=start, end=end):
            return value[start:end]
        case OffsetByteRequest(offset=offset):
            return value[offset:]
        case SuffixByteRequest(suffix=suffix):
            return value[-suffix:]
        case None:
            return value


@KINDS
def test_readers_of_a_shard_beside_its_writer_never_see_a_mixture(
    store: ps.PartsStore, pipeline: str, *, split: bool
) -> None:
    # Compressed, so that every inner chunk is elsewhere in every write.
    array = make_sharded(store, split=split, compressors=[zarr.codecs.GzipCodec(level=1)])
    array[:8] = 1
    is_over = threading.Event()

    def write() -> None:
        writing = zarr.open_array(store, path="a")
        try:
            for number in range(2, 40):
                # All of one write are alike modulo 50, and differ in how many bytes they take.
                writing[:8] = [number, number, number + 50, number, number, number + 50, number, number][:8]
        finally:
            is_over.set()

    reads = []

    def read(selection: Any) -> Callable[[], None]:
        def target() -> None:
            reading = zarr.open_array(store, path="a")
            while not is_over.is_set():
                try:
                    found = reading[selection]
                except ConcurrentWriteError:
                    continue
                assert len(set((np.asarray(found) % 50).tolist())) == 1, found
                reads.append(1)

        return target

    in_threads(write, read(np.s_[0:8]), read(np.s_[1:7:5]), read(np.s_[3:6]))
    assert reads


@KINDS
def test_a_write_that_is_cut_off_leaves_the_old_chunk_the_new_one_or_an_error(
    store: ps.PartsStore, monkeypatch: pytest.MonkeyPatch, *, split: bool
) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    old, new = b"12345", b"abcdefg"
    for calls in range(8):
        store.set_sync("a/c/0", buffer(old))
        left = iter(range(calls))

        def limited(name: str, left: Iterator[int]) -> Any:
            real = getattr(icechunk.IcechunkStore, name)

            async def call(self: Any, *arguments: Any) -> Any:
                if next(left, None) is None:
                    raise icechunk.StorageError("cut off")
                return await real(self, *arguments)

            return call

        with monkeypatch.context() as patch:
            for name in ("set", "delete"):
                patch.setattr(icechunk.IcechunkStore, name, limited(name, left))
            try:
                store.set_sync("a/c/0", buffer(new))
                is_written = True
            except SessionError:
                is_written = False
        try:
            found = value_of(store, "a/c/0")
        except IncompleteChunkError:
            assert not is_written
            assert store.verify().is_damaged
            continue
        assert found == new if is_written else found == old
    assert is_written


def test_repair_asks_for_no_age_in_a_session(store: ps.PartsStore) -> None:
    make_sharded(store, split=True)
    sync(store.session.store.delete("a/c/0"))
    assert store.repair(min_age=timedelta(days=999)).is_tidy


@KINDS
def test_a_chunk_that_the_array_cannot_have_is_refused(split: bool) -> None:
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    store = ps.PartsStore.from_session(session)
    parts = [ps.Part(""), ps.Part(".t", size=1)]
    array = ps.create_array(store, "a", shape=(8,), chunks=(4,), dtype="uint8", parts=parts, split=split)
    array[:] = 1
    listed = keys_of(store.list())
    for key in ("a/c/0/0", "a/c", "a/c/0/1/2"):
        with pytest.raises(ReservedKeyError, match="no such chunk"):
            sync(store.set(key, cpu.Buffer.from_bytes(b"xx")))
        assert sync(store.get(key, PROTOTYPE)) is None
    assert keys_of(store.list()) == listed
