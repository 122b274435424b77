"""Step 1: an image as a Zarr array whose shards are TIFF files, opened by programs that do not know Zarr."""

from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

import parts_store as ps
from parts_store.examples.demo.figures import julia_set, png
from parts_store.examples.demo.outcome import Figure, Outcome
from parts_store.text import count, size

SIDE = 1024
SHARD = 512


def write_image(folder: Path, picture: NDArray[np.uint8]) -> None:
    """Write an array whose shards are TIFF files."""
    store = ps.PartsStore.from_url(folder / "images.zarr")
    image = ps.create_array(
        store, "image", shard_file="tiff", shape=picture.shape, chunks=(64, 64, 3), shards=(512, 512, 3), dtype="uint8"
    )
    image[:] = picture


def open_shard(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Open a shard with two programs that do not know Zarr."""
    with Image.open(file) as image:  # Pillow
        return np.asarray(image), tifffile.imread(file)


def show_tiff_shards(folder: Path) -> Outcome:
    """Write an image, and open each of its shards with Pillow and tifffile."""
    picture = julia_set(SIDE)
    write_image(folder, picture)
    files = sorted((folder / "images.zarr" / "image").rglob("*.tif"))
    same = [_is_part_of(picture, file, open_shard(file)) for file in files]
    array = ps.open_array(ps.PartsStore.from_url(folder / "images.zarr", read_only=True), "image")
    is_right = len(files) == (SIDE // SHARD) ** 2 and all(same) and np.array_equal(np.asarray(array[:]), picture)
    first = files[1]
    figures = (
        Figure(png(picture, "the image"), f"the Zarr array, {SIDE} x {SIDE} pixels"),
        Figure(png(open_shard(first)[0], "one shard"), f"{first.relative_to(folder)}, opened by Pillow"),
    )
    nbytes = sum(file.stat().st_size for file in files)
    listed = "\n".join(
        f"{size(file.stat().st_size):>10}  {file.relative_to(folder)}"
        for file in sorted((folder / "images.zarr").rglob("*"))
        if file.is_file()
    )
    tiles = (SHARD // 64) ** 2
    return Outcome(
        result=f"Pillow and tifffile read the right pixels from {sum(same)} of {count(len(files), 'shard')}",
        is_right=is_right,
        text=f"Every shard of this Zarr array is a TIFF file: its {tiles} inner chunks are the tiles of the file, and "
        f"the index of the shard is an object beside it. {count(len(files), 'file')}, {size(nbytes)}. zarr, Pillow "
        "and tifffile read the same pixels from the same bytes. ImageJ, QGIS and GDAL open such files, too.",
        code=(write_image, open_shard),
        figures=figures,
        outputs=(("The files", listed),),
    )


def _is_part_of(picture: NDArray[np.uint8], file: Path, found: tuple[NDArray[np.uint8], ...]) -> bool:
    """Return whether all programs have found the pixels of the shard that the path of the file names."""
    row, column = int(file.parent.parent.name) * SHARD, int(file.parent.name) * SHARD
    expected = picture[row : row + SHARD, column : column + SHARD]
    return all(np.array_equal(each, expected) for each in found)
