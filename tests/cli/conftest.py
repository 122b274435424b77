"""Fixtures for the tests of the command line."""

import sys
from pathlib import Path

import icechunk
import pytest

from tests.cli.places import make_repository, make_store

icechunk.set_logs_filter("error")


@pytest.fixture(autouse=True)
def strict_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep warnings as errors: without `-W`, a command ignores them."""
    monkeypatch.setattr(sys, "warnoptions", ["error"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an undamaged store of objects."""
    return make_store(tmp_path / "store")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return an undamaged Icechunk repository."""
    return make_repository(tmp_path / "repository")
