"""Fixtures for the tests of verify and repair."""

from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.maintenance.stores import disk


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an empty obstore store."""
    return MemoryStore() if request.param == "memory" else disk(tmp_path)
