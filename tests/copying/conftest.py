"""The objects of a store that was written, not copied."""

import pytest
from obstore.store import MemoryStore

import parts_store as ps
from tests.copying.places import fill, objects_in


@pytest.fixture(scope="module")
def reference() -> dict[str, bytes]:
    """Return the objects of the same arrays, written to a store in memory."""
    objects = MemoryStore()
    fill(ps.PartsStore(objects))
    return objects_in(objects)
