"""`parts-store view`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from tests.cli.places import OK, call, fails
from tests.views import readers

LAYOUT: dict[str, Any] = {"shape": (40, 50), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint8"}


def make(folder: Path, path: str | None, shard_file: Any) -> np.ndarray:
    values = np.random.default_rng(1).integers(1, 255, (40, 50)).astype("uint8")
    ps.create_array(ps.PartsStore.from_url(folder), path, shard_file=shard_file, **LAYOUT)[...] = values
    return values


def test_view_writes_a_file_that_shows_the_whole_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = make(tmp_path, "images/a", "tiff")
    result = call(["view", tmp_path, "images/a", "--format", "vrt"], capsys)
    assert (result.code, result.out, result.err) == (OK, "wrote images/a.vrt\n", "")
    np.testing.assert_array_equal(readers.read_gdal(tmp_path / "images/a.vrt")[0], values)
    make(tmp_path, "cube", "hdf5")
    result = call(["view", tmp_path, "cube", "--format", "hdf5", "--json", "--durable"], capsys)
    assert (result.code, json.loads(result.out)) == (OK, {"key": "cube.h5"})
    np.testing.assert_array_equal(readers.read_h5py(tmp_path / "cube.h5", "cube"), values)


def test_view_without_a_path_is_that_of_the_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = make(tmp_path, None, "hdf5")
    assert call(["view", tmp_path, "--format", "hdf5"], capsys).out == "wrote array.h5\n"
    np.testing.assert_array_equal(readers.read_h5py(tmp_path / "array.h5", "data"), values)


def test_view_says_what_would_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "images/aerial", "tiff")
    zarr.create_array(ps.PartsStore.from_url(tmp_path), name="plain", shape=(4,), dtype="uint8")
    assert "use 'vrt' or 'ome'" in fails(["view", tmp_path, "images/aerial", "--format", "hdf5"], capsys)
    error = fails(["view", tmp_path, "images/areal", "--format", "vrt"], capsys)
    assert error.startswith("parts-store: PATH: expected an array whose shards are tiff files")
    assert "did you mean 'images/aerial'?" in error
    assert "shard_file='tiff'" in fails(["view", tmp_path, "plain", "--format", "vrt"], capsys)
    assert "OME-XML cannot join files" in fails(["view", tmp_path, "images/aerial", "--format", "ome"], capsys)
    assert not list(tmp_path.rglob("*.vrt"))
