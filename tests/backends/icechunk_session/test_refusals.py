"""Wrong calls, sessions and keys are refused by name; missing and damaged parts are errors, never fill values."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import (
    IncompleteChunkError,
    PartsConfigError,
    PartSizeError,
    PartsStoreError,
    ReadOnlySessionError,
    ReservedKeyError,
    SessionError,
    StoreConfigError,
)
from parts_store.maintenance.report import Problem
from tests.backends.icechunk_session.stores import (
    KINDS,
    LAYOUTS,
    PROTOTYPE,
    buffer,
    keys_of,
    make_bytes,
    make_sharded,
    require_ours,
    value_of,
)

pytestmark = pytest.mark.usefixtures("short_waits")


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
    assert store.verify().is_clean


def test_missing_data_part_or_node_is_an_error(store: ps.PartsStore) -> None:
    make_sharded(store, "a", split=True)
    sync(store.session.store.delete("a/__parts__/.index/zarr.json"))
    fresh = ps.PartsStore.from_session(store.session)
    for each in (store, fresh):
        with pytest.raises(IncompleteChunkError):
            zarr.open_array(each, path="a")[0]
        with pytest.raises(PartsStoreError):
            zarr.open_array(each, path="a")[:] = 3
    assert store.verify().is_damaged


def test_chunk_without_its_anchor_does_not_exist(store: ps.PartsStore) -> None:
    array = make_sharded(store, split=True)
    sync(store.session.store.delete("a/c/0"))
    np.testing.assert_array_equal(array[:], [0] * 8 + list(range(9, 17)))
    assert not sync(store.exists("a/c/0"))
    report = store.verify()
    assert [each.problem for each in report.findings] == [Problem.ORPHANS]
    assert not report.is_damaged
    # A session has no other writers, whose age would matter.
    assert store.repair(min_age=timedelta(days=999)).is_clean
    assert store.verify().is_clean
    assert "a/__parts__/.index/c/0" not in keys_of(store.session.store.list())


def test_a_part_of_another_size_than_it_should_have_is_an_error(store: ps.PartsStore) -> None:
    make_bytes(store, LAYOUTS["both"], split=True)
    store.set_sync("a/c/0", buffer(b"12345"))
    sync(store.session.store.set("a/__parts__/.t/c/0", buffer(b"long")))
    with pytest.raises(PartSizeError) as caught:
        value_of(ps.PartsStore.from_session(store.session), "a/c/0")
    assert caught.value.part_key == "a/__parts__/.t/c/0"
    assert [each.problem for each in store.verify().findings] == [Problem.WRONG_SIZE]


def test_damaged_shard_index_is_an_error_whole_and_split(store: ps.PartsStore) -> None:
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
    for each, why in ((repository.readonly_session("main"), "read-only or was committed"), (moving, "only move nodes")):
        store = ps.PartsStore.from_session(each)
        assert store.read_only
        with pytest.raises(ValueError, match="read-only mode"):
            store.delete_sync("a/c/0")
        with pytest.raises(ReadOnlySessionError, match=why) as caught:
            store.with_read_only(read_only=False)
        require_ours(caught.value)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], np.arange(1, 17))
    assert "to move nodes" in str(store)


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


def test_a_document_that_icechunk_does_not_take_is_refused_by_name(store: ps.PartsStore) -> None:
    for document in (b"", b"no json", b"[]", b"{}", b'{"zarr_format": 3, "node_type": "array"}'):
        with pytest.raises(SessionError) as caught:
            store.set_sync("a/zarr.json", buffer(document))
        require_ours(caught.value)
    assert not sync(store.exists("a/zarr.json"))
    make_sharded(store, split=True)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@KINDS
@pytest.mark.parametrize("folder", ["chunks", "manifests"])
def test_missing_objects_are_errors_never_fill_values(
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


def test_what_is_no_session_is_refused_by_name(session: icechunk.Session) -> None:
    given: list[Any] = [None, "main", 7, object(), session.store]
    for found in given:
        with pytest.raises(StoreConfigError, match="an Icechunk session") as caught:
            ps.PartsStore.from_session(found)
        require_ours(caught.value)
    with pytest.raises(StoreConfigError, match="split"):
        ps.PartsStore.from_url("memory://").with_parts({}, split=True)


@KINDS
def test_a_chunk_that_the_array_cannot_have_is_refused(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    listed = keys_of(store.list())
    for key in ("a/c/0/0", "a/c", "a/c/0/1/2"):
        with pytest.raises(ReservedKeyError, match="no such chunk"):
            store.set_sync(key, buffer(b"12345"))
        assert value_of(store, key) is None
    assert keys_of(store.list()) == listed
