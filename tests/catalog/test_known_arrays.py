"""A store with many arrays does not visit all of them for each one that is written."""

import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.catalog.known_arrays import Catalog


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
