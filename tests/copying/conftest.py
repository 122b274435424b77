"""A place that is filled, one that is empty, and the objects of a store that was written, not copied."""

from pathlib import Path

import pytest
from obstore.store import MemoryStore

import parts_store as ps
from tests.copying.places import Place, fill, new_place, objects_in


@pytest.fixture
def source(tmp_path: Path) -> Place:
    """Return a place in memory with the arrays to copy."""
    place = new_place("memory", tmp_path)
    fill(place.store)
    return place


@pytest.fixture
def destination(tmp_path: Path) -> Place:
    """Return an empty place in memory."""
    return new_place("memory", tmp_path)


@pytest.fixture(scope="module")
def reference() -> dict[str, bytes]:
    """Return the objects of the same arrays, written to a store in memory."""
    objects = MemoryStore()
    fill(ps.PartsStore(objects))
    return objects_in(objects)
