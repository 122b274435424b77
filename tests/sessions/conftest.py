"""A repository for every test, and Icechunk without log messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from icechunk import Repository as Icechunk
from icechunk import local_filesystem_storage

from tests.sessions.histories import open_repository


@pytest.fixture
def repo(tmp_path: Path) -> Icechunk:
    """Create a repository on disk, whose sessions can be sent to other processes."""
    return open_repository(local_filesystem_storage(str(tmp_path / "repo")))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Icechunk's warnings of conflicts, which are what is tested here, go nowhere."""
    from icechunk import set_logs_filter

    set_logs_filter("off")
    yield
    set_logs_filter(None)
