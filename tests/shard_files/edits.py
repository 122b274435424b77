"""Changes that other programs make to a file of a shard, and how those programs read the file afterwards."""

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import hdf5plugin  # noqa: F401 - registers zstd for h5py
import numpy as np
import rasterio
import tifffile
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window
from zarr.codecs import ZstdCodec
from zarr.codecs.numcodecs import Zlib

type Edit = Callable[[Path], None]

SHAPE: Final = (64, 128)
# The file that is changed is the first of two shards.
SHARD: Final = np.s_[0:64, 0:64]
# Where the array has an inner chunk that is stored, and where it has none.
STORED: Final = np.s_[16:32, 16:32]
HOLE: Final = np.s_[0:16, 0:16]
FILL: Final = 7
COMPRESSORS: Final[Mapping[str, Any]] = {"none": None, "deflate": Zlib(level=6), "zstd": ZstdCodec()}


def arguments(compression: str) -> dict[str, Any]:
    """Return the arguments that create the array whose file is changed."""
    return {
        "shape": SHAPE,
        "chunks": (16, 16),
        "shards": (64, 64),
        "dtype": "uint16",
        "fill_value": FILL,
        "compressors": COMPRESSORS[compression],
    }


def values() -> np.ndarray:
    """Return values of the array: noise, with one inner chunk of fill values."""
    noise = np.random.default_rng(0).integers(0, 300, SHAPE).astype("uint16")
    noise[HOLE] = FILL
    return noise


def noise(limit: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, limit, (16, 16)).astype("uint16")


def gdal(region: tuple[slice, slice], values: np.ndarray | int) -> Edit:
    """Return a change of a region by GDAL."""

    def edit(path: Path) -> None:
        rows, columns = region
        window = Window.from_slices(rows, columns)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path, "r+") as file:
                file.write(np.broadcast_to(np.uint16(values), (1, 16, 16)).copy(), window=window)

    return edit


def gdal_change(change: Callable[[Any], object]) -> Edit:
    """Return a change of something else than pixels by GDAL."""

    def edit(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(path, "r+") as file:
                change(file)

    return edit


def h5py_change(change: Callable[[h5py.File], object], **options: Any) -> Edit:
    """Return a change by HDF5."""

    def edit(path: Path) -> None:
        with h5py.File(path, "r+", **options) as file:
            change(file)

    return edit


def write_with_tifffile(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((64, 64), "uint16"), tile=(16, 16))


def append_with_tifffile(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((4, 4), "uint16"), append=True)


def exchange_two_tiles(path: Path) -> None:
    """Exchange two tiles with tifffile, which only changes the numbers in the header."""
    with tifffile.TiffFile(path, mode="r+") as file:
        tags = file.pages[0].tags  # type: ignore[union-attr]
        for name in ("TileOffsets", "TileByteCounts"):
            numbers = list(tags[name].value)
            numbers[5], numbers[6] = numbers[6], numbers[5]
            tags[name].overwrite(numbers)


def save_with_pillow(path: Path) -> None:
    with Image.open(path) as image:
        image.load()
        image.save(path, "TIFF")


def write_into_a_memory_map(path: Path) -> None:
    """Write into a tile without compression."""
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[5]
    mapped = np.memmap(path, "<u2", "r+", offset=offset, shape=(256,))
    mapped[:] = 9
    mapped.flush()


def cut(nbytes: Callable[[int], int]) -> Edit:
    return lambda path: os.truncate(path, nbytes(path.stat().st_size))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more bytes")


def set_region(file: h5py.File, region: tuple[slice, slice], values: np.ndarray | int) -> None:
    file["a"][region] = values


# What any program can do to any file.
_ANY: Final[Mapping[str, Edit]] = {
    "lose the last byte": cut(lambda nbytes: nbytes - 1),
    "lose the second half": cut(lambda nbytes: nbytes // 2),
    "lose all bytes": cut(lambda _: 0),
    "append bytes": append,
}
TIFF: Final[Mapping[str, Edit]] = {
    "GDAL, tile of one value": gdal(STORED, 3),
    "GDAL, tile of few values": gdal(STORED, noise(4)),
    "GDAL, tile of noise": gdal(STORED, noise(60000)),
    "GDAL, missing tile of one value": gdal(HOLE, 3),
    "GDAL, missing tile of noise": gdal(HOLE, noise(60000)),
    "GDAL, tags": gdal_change(lambda file: file.update_tags(made="by GDAL")),
    "GDAL, overviews": gdal_change(lambda file: file.build_overviews([2])),
    "GDAL, no data": gdal_change(lambda file: setattr(file, "nodata", 7)),
    "tifffile, new file": write_with_tifffile,
    "tifffile, one more image": append_with_tifffile,
    "tifffile, tiles exchanged": exchange_two_tiles,
    "Pillow": save_with_pillow,
    **_ANY,
}
HDF5: Final[Mapping[str, Edit]] = {
    "h5py, chunk of one value": h5py_change(lambda file: set_region(file, STORED, 3)),
    "h5py, chunk of noise": h5py_change(lambda file: set_region(file, STORED, noise(60000))),
    "h5py, missing chunk": h5py_change(lambda file: set_region(file, HOLE, noise(60000))),
    "h5py, in memory": h5py_change(lambda file: set_region(file, STORED, 3), driver="core"),
    "h5py, stdio": h5py_change(lambda file: set_region(file, STORED, 3), driver="stdio"),
    "h5py, attribute": h5py_change(lambda file: file["a"].attrs.update(made="by h5py")),
    "h5py, new dataset": h5py_change(lambda file: file.create_dataset("b", data=np.arange(1000))),
    "h5py, deleted": h5py_change(lambda file: file.pop("a")),
    "h5py, resized": h5py_change(lambda file: file["a"].resize((32, 32))),
    "h5py, opened only": h5py_change(lambda _: None),
    **_ANY,
}
EDITS: Final = {"tiff": TIFF, "hdf5": HDF5}


def replace_with_neighbour(path: Path) -> None:
    """Replace a file with that of the next shard."""
    shutil.copy(path.with_name("1" + path.suffix), path)


def read(path: Path, shard_file: str) -> np.ndarray | None:
    """Return what the program of its format reads from a file, None if it cannot."""
    try:
        if shard_file == "tiff":
            return tifffile.imread(path, key=0)
        with h5py.File(path, "r") as file:
            return np.asarray(file["a"][...])
    except (OSError, KeyError, ValueError, IndexError, RuntimeError, tifffile.TiffFileError):
        return None
