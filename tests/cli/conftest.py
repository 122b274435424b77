"""Fixtures for the tests of the command line."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import icechunk
import pytest

from tests.cli.places import make_repository, make_store

SNAPSHOTS = Path(__file__).parent / "snapshots"
RENEW = "PARTS_STORE_RENEW_SNAPSHOTS"

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


@pytest.fixture
def require_snapshot(tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that compares an output with the file of that name in `snapshots`.

    With the environment variable PARTS_STORE_RENEW_SNAPSHOTS it writes the file instead.
    """

    def require(name: str, output: str) -> None:
        text = output.replace(str(tmp_path), "TMP")
        # Ids of snapshots, and times.
        text = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{20}\b", "SNAPSHOT", text)
        text = re.sub(r"\b\d+:\d\d:\d\d\b", "0:00:00", text)
        path = SNAPSHOTS / f"{name}.txt"
        if os.environ.get(RENEW):
            path.write_text(text)
        assert text == path.read_text(), f"if this is as it should be, renew with {RENEW}=1"

    return require
