"""Arrange the tiles and strips of pages as the chunks of an array."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tifffile import TiffFrame, TiffPage

from parts_store.adoption.description import CannotBeReadError
from parts_store.adoption.formats.tiff.directories import MAX_SEGMENTS

type Page = TiffPage | TiffFrame
type Pages = Sequence[Page | None]
"""The pages of an image in order; None for a page that is missing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The chunks of an array: tiles or strips, all of one shape."""

    chunk_shape: tuple[int, ...]
    grid: tuple[int, ...]
    # The number of tiles and strips of a page. All chunks of a page follow each other in the grid.
    per_page: int
    # The axes of the columns and of the rows of pixels, counted from the end.
    y_axis: int
    x_axis: int


def plan_layout(shape: tuple[int, ...], page: TiffPage, chunk_shape: tuple[int, ...], count: int) -> Layout:
    """Return how `count` pages that are equal to `page` are arranged as an array; `chunk_shape` is that of a page.

    The last axes of the array are those of a page, in the same order. Both may have axes of length 1 that the other
    does not have.
    """
    left = list(zip(page.axes, page.shape, chunk_shape, strict=True))
    per_page = math.prod(-(-length // chunk) for _, length, chunk in left)
    chunks, axes, pages = [1] * len(shape), {}, 1
    for position in reversed(range(len(shape))):
        length = shape[position]
        while left and left[-1][1:] == (1, 1) and length != 1:
            left.pop()
        if left and left[-1][1] == length:
            axis, _, chunks[position] = left.pop()
            axes[axis] = position - len(shape)
        elif left and length != 1:
            raise CannotBeReadError(f"the shape {shape}, which is not made of pages of the shape {page.shape}")
        else:
            pages *= length
    if any(each[1:] != (1, 1) for each in left) or pages != count or not {"X", "Y"} <= axes.keys():
        raise CannotBeReadError(f"the shape {shape}, which is not made of {count:,} pages of the shape {page.shape}")
    grid = tuple(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    return Layout(tuple(chunks), grid, per_page, axes["Y"], axes["X"])


def page_chunk(page: TiffPage) -> tuple[int, ...]:
    """Return the shape of a tile or strip, with the axes of the page."""
    lengths = {
        "Z": page.tiledepth if page.is_tiled else 1,
        "Y": page.tilelength if page.is_tiled else page.rowsperstrip,
        "X": page.tilewidth if page.is_tiled else page.imagewidth,
        "S": page.samplesperpixel if page.planarconfig == 1 else 1,
    }
    found = tuple(lengths[axis] for axis in page.axes)
    if min(found) < 1:
        raise CannotBeReadError(f"{'tiles' if page.is_tiled else 'strips'} of the shape {found}")
    return found


def nbytes_of_segment(page: TiffPage) -> int:
    """Return the number of bytes of a tile or strip without compression. Each row begins with a new byte."""
    lengths = dict(zip(page.axes, page_chunk(page), strict=True))
    samples = lengths.get("S", 1) if page.planarconfig == 1 else 1
    bits = sum(page.bitspersample) if isinstance(page.bitspersample, tuple) else page.bitspersample * samples
    return int(lengths.get("Z", 1) * lengths["Y"] * -(-lengths["X"] * bits // 8))


def segments_of(pages: Pages, layout: Layout) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the offsets and sizes of all tiles or strips, in the shape of the grid. A missing one has the size 0."""
    if len(pages) * layout.per_page > MAX_SEGMENTS:
        raise CannotBeReadError(f"{len(pages) * layout.per_page:,} tiles and strips, and at most {MAX_SEGMENTS:,}")
    offsets = np.zeros((len(pages), layout.per_page), np.uint64)
    sizes = np.zeros((len(pages), layout.per_page), np.uint64)
    for number, page in enumerate(pages):
        if page is None:
            continue
        # More than are needed are left out, as by tifffile.
        found = [each[: layout.per_page] for each in (page.dataoffsets, page.databytecounts)]
        if len(found[0]) != layout.per_page or len(found[1]) != layout.per_page:
            counts = " and ".join(str(len(each)) for each in found)
            raise CannotBeReadError(f"{counts} offsets and sizes of tiles or strips, expected {layout.per_page}")
        offsets[number], sizes[number] = found
    sizes[offsets == 0] = 0
    return offsets.reshape(layout.grid), sizes.reshape(layout.grid)
