"""Every type, compression, predictor and layout is read bit for bit, or named."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tifffile

from tests.adoption.adopting import adopted
from tests.adoption.formats.tiff.files import cases, require_equal

KINDS: list[tuple[Literal["<", ">"], bool]] = [("<", False), (">", False), ("<", True), (">", True)]


def require_cases(path: Path, step: int) -> int:
    """Write every `step`-th case, alternately to files of each byte order and kind; return how many are equal."""
    equal = 0
    for number, (byteorder, bigtiff) in enumerate(KINDS):
        chosen = cases()[number::step]
        expected = [case.values(seed) for seed, case in enumerate(chosen)]
        with tifffile.TiffWriter(path, byteorder=byteorder, bigtiff=bigtiff) as file:
            for case, values in zip(chosen, expected, strict=True):
                case.write(file, values)
        report, store = adopted(path, strict=True)
        assert len(report.arrays) == len(chosen)
        for which, values in enumerate(expected):
            require_equal(store, f"series_{which}/data", values)
        equal += len(expected)
        path.unlink()
    return equal


def test_every_way_to_write_an_image_is_read_bit_for_bit_in_a_sample(tmp_path: Path) -> None:
    assert require_cases(tmp_path / "a.tif", 97) > 60


@pytest.mark.slow
def test_every_way_to_write_an_image_is_read_bit_for_bit(tmp_path: Path) -> None:
    assert require_cases(tmp_path / "a.tif", 4) == len(cases()) > 1500


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", [{}, {"tile": (16, 16)}, {"rowsperstrip": 5}], ids=str)
@pytest.mark.parametrize("bits", [1, 2, 4, 10, 12, 14])
def test_packed_bits_are_read(tmp_path: Path, bits: int, layout: dict[str, Any]) -> None:
    path = tmp_path / "a.tif"
    values = np.random.default_rng(bits).integers(0, 1 << bits, (23, 37)).astype("u1" if bits <= 8 else "u2")
    tifffile.imwrite(path, values.astype(bool) if bits == 1 else values, bitspersample=bits, **layout)
    _, store = adopted(path, strict=True)
    require_equal(store, "data", tifffile.imread(path))
    assert np.array_equal(tifffile.imread(path), values)
