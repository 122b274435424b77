"""TIFF files that tifffile writes, and what tifffile reads of a file."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.virtual.report import Adoption

DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
COMPRESSIONS = ["none", "adobe_deflate", "deflate", "zstd", "lzw", "packbits", "lzma"]
# Tiles; strips of equal length; strips with a short last one; and one strip.
SHAPES: list[dict[str, Any]] = [{"tile": (16, 32)}, {"rowsperstrip": 8}, {"rowsperstrip": 7}, {"rowsperstrip": 24}]
SAMPLES = ["gray", "contig", "separate"]
PREDICTORS = {"f": 3, "u": 2, "i": 2}


@dataclass(frozen=True)
class Case:
    """A way to write an image."""

    dtype: str
    compression: str
    shape: dict[str, Any]
    samples: str
    predictor: int

    def values(self, seed: int) -> NDArray[Any]:
        """Values of any bits, most of which are repeated, so that compressors have something to do."""
        shape = {"gray": (24, 40), "contig": (24, 40, 3), "separate": (3, 24, 40)}[self.samples]
        rng = np.random.default_rng(seed)
        data = rng.integers(0, 256, (*shape, np.dtype(self.dtype).itemsize), np.uint8)
        data[..., 8:20, :, :] = 7
        return data.view(self.dtype).reshape(shape)

    def write(self, file: tifffile.TiffWriter, values: NDArray[Any]) -> None:
        options = dict(self.shape)
        if self.compression != "none":
            options["compression"] = self.compression
        if self.predictor != 1:
            options["predictor"] = self.predictor
        if self.samples != "gray":
            options |= {"photometric": "rgb", "planarconfig": self.samples}
        file.write(values, contiguous=False, **options)


def cases() -> list[Case]:
    """All ways to write an image that tifffile knows."""
    found = []
    for dtype, compression, shape, samples in itertools.product(DTYPES, COMPRESSIONS, SHAPES, SAMPLES):
        predictors = [1, PREDICTORS[dtype[0]]] if compression != "none" and dtype[0] in PREDICTORS else [1]
        found += [Case(dtype, compression, shape, samples, each) for each in predictors]
    return found


def images_of(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """The images of a file as tifffile reads them, by the names that their arrays have."""
    with tifffile.TiffFile(path) as file:
        for number, series in enumerate(file.series):
            base = f"series_{number}/" if len(file.series) > 1 else ""
            for depth, level in enumerate(series.levels):
                below = f"level_{depth}/" if len(series.levels) > 1 else ""
                yield f"{base}{below}data", level.asarray()


def read(store: ps.PartsStore, name: str = "data") -> NDArray[Any]:
    return np.asarray(zarr.open_array(store, path=name, mode="r")[...])


def require_equal(store: ps.PartsStore, name: str, values: NDArray[Any]) -> None:
    """The array has these values, bit by bit."""
    found = read(store, name)
    expected = values.astype(values.dtype.newbyteorder("="))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
    assert found.tobytes() == expected.tobytes(), name


def require_all_equal(report: Adoption, store: ps.PartsStore, path: Path) -> int:
    """Every image is adopted and equal, or named with a reason; return how many are equal."""
    adopted = {each.path for each in report.arrays}
    skipped = {each.name: each.reason for each in report.skipped}
    for name, values in images_of(path):
        assert (name in adopted) != (name in skipped), name
        if name in adopted:
            require_equal(store, name, values)
    return len(adopted)


def reason(report: Adoption, name: str) -> str:
    """Why something was skipped."""
    (found,) = [each.reason for each in report.skipped if re.fullmatch(name, each.name)]
    return found
