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


@pytest.mark.parametrize("name", ["notes.txt", "index.html", ".hidden", "images.zarr"])
def test_folder_with_other_things_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreConfigError, match="an empty folder, or the output of an earlier demo, found other files"):
        prepare_folder(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_only_names_of_the_demo_are_removed(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of the demo")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    prepare_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MARK, "mine"}
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_what_a_link_points_to_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    prepare_folder(tmp_path / "folder")
    (tmp_path / "folder" / "history").symlink_to(tmp_path / "elsewhere")
    prepare_folder(tmp_path / "folder")
    assert (tmp_path / "elsewhere" / "file").read_text() == "mine"
    assert not (tmp_path / "folder" / "history").is_symlink()


@pytest.mark.parametrize("url", ["s3://bucket/demo", "https://host/demo", "file:///demo"])
def test_url_is_refused(url: str) -> None:
    with pytest.raises(StoreConfigError, match="FOLDER: expected a folder of this machine"):
        prepare_folder(Path(url))


@pytest.mark.parametrize("name", ["my demo", "größe", "50%"])
def test_path_with_special_characters_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreConfigError, match="FOLDER: expected a path without spaces and special characters"):
        prepare_folder(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreConfigError, match="FOLDER: expected a folder, found a file"):
        prepare_folder(tmp_path / "file")


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


def test_wrong_step_is_shown_as_wrong(tmp_path: Path) -> None:
    assert 'class="result wrong"' in of_text(tmp_path, "x", is_right=False)
    assert 'class="result wrong"' not in of_text(tmp_path, "x")


# --- counting and workers --------------------------------------------------------------------------------------------
