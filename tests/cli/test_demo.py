"""`parts-store demo`."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.places import OK, call, fails


@pytest.mark.slow
def test_demo_prints_that_everything_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(["demo", tmp_path, "--json"], capsys)
    assert result.code == OK
    said = json.loads(result.out)
    assert said["folder"] == str(tmp_path)
    assert sum(line.endswith("equal") for line in said["said"]) == 12
    assert not any("DIFFERENT" in line for line in said["said"])


def test_demo_names_a_missing_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "parts_store.examples.demo", raising=False)
    monkeypatch.delattr("parts_store.examples.demo", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "this needs PIL: pip install 'parts_store[demo]'" in fails(["demo", tmp_path], capsys)
