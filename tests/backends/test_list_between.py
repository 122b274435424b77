"""A listing of neighbouring objects has exactly the objects between two keys, or is refused if they are too many."""

import asyncio
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import LIST_PAGE, MAX_PAGES
from parts_store.engine.steps import List, Listed, Refused

NAMES = st.sets(st.integers(0, 120).map(str) | st.integers(0, 120).map(lambda number: f"{number}.index"), max_size=40)


def backend_with(keys: list[str]) -> ObjectBackend:
    objects = MemoryStore()
    for key in keys:
        obstore.put(objects, key, key.encode())
    return ObjectBackend(objects)


@given(NAMES, st.tuples(st.integers(0, 120), st.integers(0, 120)).map(lambda pair: sorted(map(str, pair))))
def test_listing_has_the_objects_from_the_first_to_the_last_key(names: set[str], bounds: list[str]) -> None:
    backend = backend_with([f"a/c/{name}" for name in names])
    first, last = (f"a/c/{name}" for name in bounds)
    expected = {key: len(key) for key in (f"a/c/{name}" for name in names) if first <= key <= last}
    request = List("a/c", "test", only=(first, last))
    for outcome in (backend.perform_sync(request), asyncio.run(backend.perform(request))):
        assert isinstance(outcome, Listed)
        assert {entry.key: entry.nbytes for entry in outcome.entries} == expected
        assert all(entry.etag for entry in outcome.entries)


@pytest.mark.parametrize("more", [0, 1])
def test_listing_of_too_many_objects_is_refused(more: int) -> None:
    count = MAX_PAGES * LIST_PAGE + more
    keys = [f"a/c/{number:05}" for number in range(count)]
    outcome: Any = backend_with(keys).perform_sync(List("a/c", "test", only=(keys[0], keys[-1])))
    assert isinstance(outcome, Refused) if more else len(outcome.entries) == count
