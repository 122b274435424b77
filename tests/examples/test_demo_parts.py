"""The parts of the demo that take no time: its folder, its page, its pictures."""

import ast
import inspect
import os
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from parts_store.errors import StoreConfigError
from parts_store.examples.demo import worker
from parts_store.examples.demo.figures import line_chart, png, writers_image
from parts_store.examples.demo.outcome import Demo, Outcome, Step, Table
from parts_store.examples.demo.output_folder import MARK, NAMES, prepare
from parts_store.examples.demo.page import page, source_of
from parts_store.examples.demo.program import STEPS
from parts_store.examples.demo.request_counts import CountedStore

# --- the folder ------------------------------------------------------------------------------------------------------


def test_new_or_empty_folder_is_used(tmp_path: Path) -> None:
    assert prepare(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [MARK]
    (tmp_path / "empty").mkdir()
    prepare(tmp_path / "empty")


@pytest.mark.parametrize("name", ["notes.txt", "index.html", ".hidden", "images.zarr"])
def test_folder_with_other_things_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreConfigError, match="an empty folder, or the output of an earlier demo, found other files"):
        prepare(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_only_names_of_the_demo_are_removed(tmp_path: Path) -> None:
    prepare(tmp_path)
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of the demo")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    prepare(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MARK, "mine"}
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_what_a_link_points_to_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    prepare(tmp_path / "folder")
    (tmp_path / "folder" / "history").symlink_to(tmp_path / "elsewhere")
    prepare(tmp_path / "folder")
    assert (tmp_path / "elsewhere" / "file").read_text() == "mine"
    assert not (tmp_path / "folder" / "history").is_symlink()


@pytest.mark.parametrize("url", ["s3://bucket/demo", "https://host/demo", "file:///demo"])
def test_url_is_refused(url: str) -> None:
    with pytest.raises(StoreConfigError, match="FOLDER: expected a folder of this machine"):
        prepare(Path(url))


@pytest.mark.parametrize("name", ["my demo", "größe", "50%"])
def test_path_with_special_characters_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreConfigError, match="FOLDER: expected a path without spaces and special characters"):
        prepare(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreConfigError, match="FOLDER: expected a folder, found a file"):
        prepare(tmp_path / "file")


# --- the page --------------------------------------------------------------------------------------------------------


def shown(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def of_text(text: str, *, is_right: bool = True) -> str:
    table = Table(("", "a"), ((text, "1"),))
    outcome = Outcome(text, is_right, text, (shown,), outputs=((text, text),), table=table)
    return page(Demo(Path("index.html"), [Step(text, outcome, 1.5)]))


def test_code_on_the_page_is_that_of_the_function() -> None:
    source = source_of(shown)
    assert source == "# Add two numbers.\ndef shown(first, second):\n    return first + second"
    assert f"<code>{source}</code>" in of_text("x")


@pytest.mark.parametrize("show", [show for _, show in STEPS], ids=lambda show: str(show.__name__))
def test_code_of_every_step_is_python(show: object) -> None:
    module = __import__(show.__module__, fromlist=["x"])
    names = re.findall(r"code=\(([\w, ]+)\)", Path(inspect.getfile(module)).read_text())[0]
    for name in filter(None, names.split(", ")):
        function = getattr(module, name.strip(","))
        (shown,), (ran,) = (ast.parse(text).body for text in (source_of(function), inspect.getsource(function)))
        assert isinstance(shown, ast.FunctionDef)
        assert isinstance(ran, ast.FunctionDef)
        # The same, but for the docstring and the types of the parameters.
        assert [ast.dump(each) for each in shown.body] == [ast.dump(each) for each in ran.body[1:]]
        assert [each.arg for each in shown.args.args] == list(inspect.signature(function).parameters)


@given(text=st.text(st.sampled_from("<>&\"'x/ "), min_size=1, max_size=12))
def test_all_text_on_the_page_is_escaped(text: str) -> None:
    # What is between two tags has no tag of the text.
    found, expected = re.findall(r"<[^>]*>", of_text(text)), re.findall(r"<[^>]*>", of_text("x"))
    assert found == expected


def test_wrong_step_is_shown_as_wrong() -> None:
    assert 'class="result wrong"' in of_text("x", is_right=False)
    assert 'class="result wrong"' not in of_text("x")


def test_table_rows_have_the_length_of_the_head() -> None:
    with pytest.raises(ValueError, match="expected 2 cells in each row"):
        Table(("a", "b"), (("1",),))


# --- pictures --------------------------------------------------------------------------------------------------------


def test_picture_of_the_page_has_the_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 3)).astype(np.uint8)
    html = png(pixels, "a <b>", side=16)
    assert 'alt="a &lt;b&gt;" width="16" height="8"' in html
    data = re.search(r"base64,([^\"]*)", html)
    assert data is not None
    with Image.open(BytesIO(b64decode(data[1]))) as image:
        np.testing.assert_array_equal(np.asarray(image), pixels.repeat(2, axis=0).repeat(2, axis=1))


def test_rows_without_a_writer_are_black() -> None:
    image = writers_image(np.array([0, 1, 8]))
    assert image.shape == (3, 3, 3)
    assert image[0].max() < 30 < min(image[1].max(), image[2].max())
    assert len(np.unique(image.reshape(-1, 3), axis=0)) == 3


def test_line_chart_has_every_value() -> None:
    lines = re.findall(r'points="([^"]*)"', line_chart([1, 5, 3, 2], [(0, "a"), (3, "b")], 2, "K"))
    first, second = ([tuple(map(float, point.split(","))) for point in line.split()] for line in lines)
    # Both lines share a point.
    assert (len(first), len(second)) == (3, 2)
    assert first[-1] == second[0]
    heights = [y for _, y in [*first, *second[1:]]]
    # A larger value is higher up.
    assert sorted(range(4), key=lambda each: heights[each]) == [1, 2, 3, 0]


# --- counting and workers --------------------------------------------------------------------------------------------


def test_every_request_of_zarr_is_counted(tmp_path: Path) -> None:
    store = CountedStore(tmp_path)
    array = zarr.create_array(store, name="a", shape=(8,), chunks=(2,), shards=(4,), dtype="uint8")
    store.calls.clear()
    array[:] = 1
    assert store.calls == ["put"] * 2
    array = zarr.open_array(store, path="a", mode="r")
    store.calls.clear()
    # The index of the shard, and an inner chunk.
    array[:2]
    assert store.calls == ["get"] * 2


def test_worker_refuses_unknown_arguments() -> None:
    with pytest.raises(SystemExit, match="unknown arguments"):
        worker.main([str(os.getppid()), "dance"])
