"""Nodes of parts that no array owns are hidden, found by verify and removed by repair."""

import json
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import IncompleteChunkError, PartsStoreError, SessionError
from parts_store.maintenance.report import Problem
from tests.backends.icechunk_session.stores import PLAIN, PROTOTYPE, SHARDED, buffer, keys_of, make_sharded

pytestmark = pytest.mark.usefixtures("short_waits")


def delete_with_icechunk(session: icechunk.Session) -> None:
    """Delete the array as Icechunk does, which does not know parts and leaves their nodes behind."""
    sync(session.store.delete("a/zarr.json"))
    assert any("__parts__" in key for key in keys_of(session.store.list()))


@pytest.mark.parametrize("commits_between", [False, True])
def test_recreated_array_does_not_inherit_parts(repository: icechunk.Repository, *, commits_between: bool) -> None:
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
    assert store.verify().is_clean


@pytest.mark.parametrize("commits_between", [False, True])
def test_array_recreated_by_icechunk_does_not_inherit_parts(
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
    # The same document and the same anchor, written by a program that does not know parts.
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["document", "folder", "group"])
@pytest.mark.parametrize("then", ["split", "whole", "plain"])
def test_known_array_is_not_confused_with_a_recreated_array(store: ps.PartsStore, how: str, then: str) -> None:
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
    assert store.repair().is_clean
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
    assert not report.is_clean
    assert store.repair().is_clean
    assert store.verify().is_clean
    assert {key.split("/")[0] for key in keys_of(store.session.store.list()) if "__parts__" in key} == {"b"}
    np.testing.assert_array_equal(zarr.open_array(store, path="b")[:], np.arange(1, 17))


def test_stray_nodes_go_with_their_folder(store: ps.PartsStore) -> None:
    make_sharded(store, "g/a", split=True)
    sync(store.session.store.delete("g/a/zarr.json"))
    sync(store.delete_dir("g"))
    assert keys_of(store.session.store.list()) == {"zarr.json"}


@pytest.mark.parametrize(
    "owner",
    [None, 7, "0000000000000000", "b"],
    ids=["none", "no text", "unknown array", "another array"],
)
def test_node_of_parts_with_another_owner_has_no_parts(store: ps.PartsStore, owner: Any) -> None:
    for name in ("a", "b"):
        make_sharded(store, name, split=True)
    raw, key = store.session.store, "a/__parts__/.index/zarr.json"
    found = sync(raw.get(key, PROTOTYPE))
    assert found is not None
    named = store.session.get_node_id("/b") if owner == "b" else owner
    attributes = {} if named is None else {"array_node_id": named}
    sync(raw.set(key, buffer(json.dumps(json.loads(found.to_bytes()) | {"attributes": attributes}).encode())))
    # A store reads the owner of a node once: no program that knows parts changes it.
    fresh = ps.PartsStore.from_session(store.session)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(fresh, path="a")[0]
    problems = {each.problem for each in fresh.verify().findings}
    assert problems == {Problem.STRAY_NODES, Problem.INCOMPLETE}
    with pytest.raises(SessionError, match="found none, or a node of another array"):
        zarr.open_array(fresh, path="a")[:] = 3
    np.testing.assert_array_equal(zarr.open_array(fresh, path="b")[:], np.arange(1, 17))
