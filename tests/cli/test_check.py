"""`parts-store check` without a server; the tests with servers are in `tests/backends`."""

import json
from pathlib import Path

import pytest

from tests.cli.places import OK, call, contents, fails


def test_check_of_a_folder_supports_every_level(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    result = call(["check", folder], capsys)
    assert result.code == OK
    assert result.out.startswith("nothing needs checking")
    assert result.out.endswith(" (exclusive, writers, full)\n")
    assert result.out.count("\n") == 1
    said = json.loads(call(["check", folder, "--json"], capsys).out)
    assert said["levels"] == ["exclusive", "writers", "full"]
    assert contents(folder) == before


def test_check_needs_a_writable_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a folder that exists, found nothing" in fails(["check", tmp_path / "nowhere"], capsys)
    assert "a store that is read-only" in fails(["check", "https://127.0.0.1:9/data"], capsys)
