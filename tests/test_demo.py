"""The demo does what it prints."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from parts_store import demo


def test_the_demo_writes_tiff_chunks_and_parts_and_a_picture_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        demo.main(tmp_path)
    expected = demo.julia_set(demo.SIDE)
    with Image.open(tmp_path / "picture.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected)
    arrays = tmp_path / "pictures.zarr"
    np.testing.assert_array_equal(tifffile.imread(arrays / "tiles/c/3/0/0"), expected[768:, :256])
    np.testing.assert_array_equal(tifffile.imread(arrays / "compressed/c/0/3/0"), expected[:256, 768:])
    assert (arrays / "parts/c/3/3/0.header").stat().st_size == 64
    assert (arrays / "parts/c/3/3/0.index").stat().st_size == 16 * 16 + 4
    printed = capsys.readouterr().out
    assert "picture.png" in printed
    assert "parts/c/1/2/0.index" in printed
    assert "DIFFERENT" not in printed
