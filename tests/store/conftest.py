"""An empty obstore store for every test, in memory and on a local disk."""

from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty obstore store."""
    return (
        MemoryStore()
        if request.param == "memory"
        else LocalStore(tmp_path / "objects", mkdir=True, automatic_cleanup=True)
    )
