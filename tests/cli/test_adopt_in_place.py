"""`parts-store adopt-in-place`: an N5 container as Zarr, where it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from tests.cli.places import LEFTOVERS, OK, call, contents, fails
from tests.virtual.parsers.n5.containers import numbers, write_java, write_root


def make_container(folder: Path) -> Path:
    write_java(folder / "raw/s0", numbers((8, 6), "uint16"), (4, 4), "gzip")
    write_java(folder / "raw/s1", numbers((4, 3), "uint16"), (4, 4), "gzip")
    write_root(folder)
    return folder


def test_a_container_is_adopted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_container(tmp_path / "a.n5")
    before = contents(tmp_path)
    result = call(["adopt-in-place", folder, "--dry-run"], capsys)
    assert result.code == OK
    assert "dry run: nothing was written" in result.out
    assert contents(tmp_path) == before
    result = call(["adopt-in-place", folder], capsys)
    assert result.code == OK
    assert "raw/s0: uint16[6, 8]" in result.out
    array: Any = zarr.open_array(ps.PartsStore.from_url(folder, read_only=True), path="raw/s0", mode="r")
    np.testing.assert_array_equal(array[:], numbers((8, 6), "uint16").T)


def test_a_path_selects_and_what_is_skipped_changes_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_container(tmp_path / "a.n5")
    (folder / "raw/s1/attributes.json").write_text('{"dimensions": 3, "dataType": "uint8"}')
    assert "raw/s1" in fails(["adopt-in-place", folder, "--strict"], capsys)
    assert not list(folder.rglob("zarr.json"))
    result = call(["adopt-in-place", folder, "--path", "raw/s0", "--json"], capsys)
    assert result.code == OK
    assert [each["path"] for each in json.loads(result.out)["arrays"]] == ["raw/s0"]
    result = call(["adopt-in-place", folder], capsys)
    assert result.code == LEFTOVERS
    assert "skipped: raw/s1: expected `dimensions`" in result.out


def test_another_document_is_replaced_with_overwrite_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_container(tmp_path / "a.n5")
    (folder / "raw/s0/zarr.json").write_text("{}")
    assert "raw/s0/zarr.json" in fails(["adopt-in-place", folder], capsys)
    assert call(["adopt-in-place", folder, "--overwrite"], capsys).code == OK
    assert json.loads((folder / "raw/s0/zarr.json").read_text())["node_type"] == "array"
