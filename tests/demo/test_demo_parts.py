"""The parts of the demo that take no time: its folder, its page, its pictures."""

import inspect
import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts_store.demo import MARK, NAMES, Demo, Step, prepare_folder, write_page
from parts_store.demo.steps import StepResult
from parts_store.errors import StoreConfigError

# --- the folder ------------------------------------------------------------------------------------------------------


def test_new_or_empty_folder_is_used(tmp_path: Path) -> None:
    assert prepare_folder(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [MARK]
    (tmp_path / "empty").mkdir()
    prepare_folder(tmp_path / "empty")


def test_only_names_of_the_demo_are_removed(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    mine = tmp_path / "mine"
    for name in (*NAMES[:-1], mine.name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    # What a link points to is not deleted.
    (tmp_path / NAMES[-1]).symlink_to(mine)
    prepare_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MARK, mine.name}
    assert (mine / "file").read_text() == "text"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("{}", "an empty folder, or the output of an earlier demo, found other files"),
        ("{}/index.html", "a folder, found a file"),
        *((url, "a folder of this machine") for url in ("s3://bucket/demo", "https://host/demo", "file:///demo")),
        *((f"{{}}/{name}", "a path without spaces and special characters") for name in ("my demo", "größe", "50%")),
    ],
)
def test_folder_that_cannot_be_used_is_refused(tmp_path: Path, folder: str, expected: str) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(StoreConfigError, match=f"FOLDER: expected {expected}"):
        prepare_folder(Path(folder.format(tmp_path)))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"index.html": "mine"}


# --- the page --------------------------------------------------------------------------------------------------------


def shown(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def of_text(folder: Path, text: str, *, is_right: bool = True) -> str:
    result = StepResult(text, is_right, (shown,), printed=text)
    write_page(Demo(folder / "index.html", (Step(text, text, result, 1.5),)))
    return (folder / "index.html").read_text(encoding="utf-8")


def test_code_on_the_page_is_that_of_the_function(tmp_path: Path) -> None:
    source = inspect.getsource(shown).rstrip()
    assert "return first + second" in source
    assert unescape(of_text(tmp_path, "x")).count(f"<code>{source}</code>") == 1


@given(text=st.text(st.sampled_from("<>&\"'x/ "), min_size=1, max_size=12))
def test_all_text_on_the_page_is_escaped(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("page")
    # What is between two tags has no tag of the text.
    found, expected = (re.findall(r"<[^>]*>", of_text(folder, each)) for each in (text, "x"))
    assert found == expected
