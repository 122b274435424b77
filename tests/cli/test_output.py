"""The output on a terminal: tables, trees, colours and a progress bar."""

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import override

import pytest

from parts_store.cli import main
from tests.cli.places import LEFTOVERS, OK, leave_file, lose_anchor, lose_part, make_store


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str | Path]], tuple[int, str, str]]:
    """Return a function that runs a command on a terminal of 100 columns."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CI", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(arguments: Sequence[str | Path]) -> tuple[int, str, str]:
        out, err = Terminal(), Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([str(each) for each in arguments])
        return code, out.getvalue(), err.getvalue()

    return run


type Show = Callable[[Sequence[str | Path]], tuple[int, str, str]]
type Snapshot = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["inspect", "{}", "--sizes"], ["├── ", "images", "uint16"]),
        (["explain", "{}", "images/img", "0:3, 0:3"], ["request", "images/img/c/0/0.index", " requests"]),
        (["check", "{}"], ["exclusive, writers, full"]),
        (["verify", "{}"], ["problem", "incomplete", "a/c/0.tail", "orphans", "damaged"]),
        (
            ["repair", "{}", "--drop-incomplete"],
            ["incomplete, deleted", "1 damaged chunk deleted"],
        ),
    ],
    ids=lambda each: each[0],
)
def test_terminal_shows_results_as_tables_and_trees_in_colour(
    command: list[str], shown: list[str], folder: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_part(folder)
    (folder / "a/c/1").unlink()
    monkeypatch.chdir(folder.parent)
    _, out, _ = show([each.replace("{}", folder.name) for each in command])
    assert all(each in out for each in shown), out
    assert ("\x1b[" in out) == (command[0] != "check")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "36m" not in show(["inspect", folder.name])[1]


def test_terminal_help_has_boxes(show: Show) -> None:
    _, out, _ = show(["verify", "--help"])
    assert "╭─" in out
    assert "Where to look" in out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["verify", "repair"])
def test_progress_bar_is_shown_on_a_terminal_only(
    tmp_path: Path, command: str, show: Show, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = {"verify": "chunks", "repair": "findings"}[command]
    done = {"verify": "8/8", "repair": "1/1"}[command]
    code, _, err = show([command, make_store(tmp_path / "shown", lose_anchor)])
    assert code == (LEFTOVERS if command == "verify" else OK)
    assert done in err
    assert unit in err
    for number, options in enumerate((["--json"], ["--quiet"])):
        folder = make_store(tmp_path / str(number), leave_file)
        assert show([command, folder, *options])[2] == ""
    assert main([command, str(make_store(tmp_path / "pipe", leave_file))]) in (OK, LEFTOVERS)
    assert capsys.readouterr().err == ""
