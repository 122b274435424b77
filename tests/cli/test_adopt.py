"""`parts-store adopt`: a file as Zarr in a repository, or copied into a store."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import icechunk
import numpy as np
import pytest
import zarr

from parts_store.repositories import open_store
from tests.adoption.adopting import settle
from tests.cli.places import LEFTOVERS, OK, call, contents, fails, make_file


def test_adopt_creates_a_repository_and_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], require_snapshot: Callable[[str, str], None]
) -> None:
    file, into = make_file(tmp_path / "t.nc"), tmp_path / "repository"
    result = call(["adopt", file, into, "--path", "2026/may", "--message", "from May"], capsys)
    assert result.code == OK
    require_snapshot("adopt", result.out)
    store = open_store(into, virtual=[tmp_path])
    assert np.asarray(zarr.open_array(store, path="2026/may/t", mode="r")[...]).tolist() == list(range(100))
    history = icechunk.Repository.open(icechunk.local_filesystem_storage(str(into))).ancestry(branch="main")
    assert next(iter(history)).message == "from May"
    said = json.loads(call(["adopt", file, into, "--path", "again", "--json"], capsys).out)
    assert {each["path"] for each in said["arrays"]} == {"again/t", "again/x"}


def test_adopt_copies_into_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.h5"
    with h5py.File(file, "w") as opened:
        opened.create_dataset("t", data=np.arange(100), chunks=(10,))
    settle(file)
    assert call(["adopt", file, tmp_path / "store", "--copy", "-q"], capsys).code == OK
    values = zarr.open_array(open_store(tmp_path / "store"), path="t", mode="r")[...]
    assert np.asarray(values).tolist() == list(range(100))


def test_adopt_exit_code_if_not_everything_is_adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.h5"
    with h5py.File(file, "w") as opened:
        opened.create_dataset("t", data=np.arange(100), chunks=(10,))
        opened.create_dataset("text", data=["a", "b"])
    settle(file)
    result = call(["adopt", file, tmp_path / "repository"], capsys)
    assert result.code == LEFTOVERS
    assert "skipped: text: " in result.out
    assert "text: " in fails(["adopt", file, tmp_path / "strict", "--strict"], capsys)


def test_adopt_creates_nothing_if_the_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("text")
    for name in ("nowhere", "text", "."):
        fails(["adopt", tmp_path / name, tmp_path / "repository"], capsys)
        fails(["adopt", tmp_path / name, tmp_path / "store", "--copy"], capsys)
    assert contents(tmp_path) == {tmp_path / "text": b"text"}
    assert [each.name for each in tmp_path.iterdir()] == ["text"]
