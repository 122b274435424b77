"""The argument `progress` means the same wherever it is accepted."""

import subprocess
import sys
from typing import Any

import pytest

from parts_store.errors import StoreConfigError
from parts_store.progress import report_progress


def test_a_function_is_called_as_it_is() -> None:
    told: list[tuple[int, int]] = []
    with report_progress(lambda *each: told.append(each), "count", "things") as update:
        update(1, 2)
        update(2, 2)
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_is_shown_by_default(nothing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with report_progress(nothing, "count", "things") as update:
        update(2, 2)
    assert capsys.readouterr() == ("", "")


def test_true_shows_a_bar_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with report_progress(True, "count", "things") as update:
        update(2, 2)
    out, errors = capsys.readouterr()
    assert out == ""
    assert "count" in errors
    assert "2/2 things" in errors


@pytest.mark.parametrize("wrong", [1, "yes", []])
def test_anything_else_is_refused(wrong: Any) -> None:
    expected = "progress: expected True, a callable with two arguments, or None"
    with pytest.raises(StoreConfigError, match=expected), report_progress(wrong, "count", "things"):
        pass


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    program = """
import sys
sys.modules["rich"] = None
from parts_store.progress import report_progress
try:
    with report_progress(True, "count", "things"):
        pass
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("a progress bar needs rich")
    assert "pip install 'parts_store[cli]'" in found.stdout
