"""Empty obstore stores for every test, in memory and on a local disk."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Return a function that makes an empty obstore store."""
    numbers = itertools.count()
    if request.param == "memory":
        return MemoryStore
    return lambda: LocalStore(tmp_path / str(next(numbers)), mkdir=True, automatic_cleanup=True)


@pytest.fixture
def objects(place: Callable[[], Any]) -> Any:
    """Make an empty obstore store."""
    return place()
