"""The demo does what it prints."""

from pathlib import Path

import icechunk
import numpy as np
import pytest
import tifffile
import zarr
from PIL import Image

import parts_store as ps
from parts_store.examples import demo


@pytest.mark.slow
def test_demo_writes_tiff_chunks_parts_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        demo.main(tmp_path)
    expected = demo.julia_set(demo.SIDE)
    with Image.open(tmp_path / "picture.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected)
    arrays = tmp_path / "pictures.zarr"
    np.testing.assert_array_equal(tifffile.imread(arrays / "tiles/c/3/0/0"), expected[768:, :256])
    np.testing.assert_array_equal(tifffile.imread(arrays / "shards/c/0/1/0.tif"), expected[:512, 512:])
    assert (arrays / "parts/c/3/3/0.header").stat().st_size == 64
    assert (arrays / "parts/c/3/3/0.index").stat().st_size == 16 * 16 + 4
    printed = capsys.readouterr().out
    assert "picture.png" in printed
    assert "parts/c/1/2/0.index" in printed
    assert "DIFFERENT" not in printed
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "history")))
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["a part of it inverted", "the picture"]
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    changed = np.asarray(zarr.open_array(store, path="parts", mode="r")[200:500, 200:500])
    np.testing.assert_array_equal(changed, 255 - expected[200:500, 200:500])
