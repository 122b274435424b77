"""The destination of a copy: which nodes are above a path, whether a path is free, and clearing it."""

import numpy as np
import pytest
import zarr
from icechunk import Repository, in_memory_storage
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.errors import StoreConfigError
from parts_store.store import destination


@pytest.fixture(params=["objects", "session"])
def store(request: pytest.FixtureRequest) -> ps.PartsStore:
    if request.param == "objects":
        store = ps.PartsStore(MemoryStore())
    else:
        store = ps.PartsStore.from_session(Repository.create(in_memory_storage()).writable_session("main"))
    zarr.create_array(store, name="g/a", data=np.arange(4), chunks=(2,))
    return store


def test_ancestors_are_read_from_the_root(store: ps.PartsStore) -> None:
    ancestors = destination.read_ancestors(store, "g/a/x/y")
    assert list(ancestors) == ["", "g", "g/a", "g/a/x"]
    assert [bool(documents) for documents in ancestors.values()] == [True, True, True, False]
    assert [destination.is_array(documents) for documents in ancestors.values()] == [False, False, True, False]
    assert destination.read_ancestors(store, "") == {}


def test_path_in_an_array_is_rejected(store: ps.PartsStore) -> None:
    destination.require_outside_arrays(destination.read_ancestors(store, "g/b"), "g/b", "to")
    with pytest.raises(StoreConfigError, match="to: expected a path that is not in an array, as 'g/a' is"):
        destination.require_outside_arrays(destination.read_ancestors(store, "g/a/x"), "g/a/x", "to")


def test_array_of_zarr_v2_is_recognised() -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="a", data=np.arange(4), zarr_format=2)
    assert destination.is_array(destination.read_nodes(store, ["a"])["a"])


def test_path_is_empty_only_after_it_was_cleared(store: ps.PartsStore) -> None:
    destination.require_empty(store, "g/b", "path")
    for path in ("", "g", "g/a"):
        with pytest.raises(StoreConfigError, match="path: expected a path with nothing there"):
            destination.require_empty(store, path, "path")
    destination.require_empty(store, "g/a", "path", ignored=("g/a/zarr.json", "g/a/c/0", "g/a/c/1"))
    destination.clear(store, "g/a")
    destination.require_empty(store, "g/a", "path")
    assert destination.find_key(store, "g") == "g/zarr.json"
