"""Pictures of arrays: which values a tile needs, and their bytes as PNG. Only `read_tile` reads.

A tile has at most 256 by 256 pixels. At zoom `z` it shows every 2**z-th value of two axes. If that would decode too
many chunks, fewer values are read, and each of them is shown as a square.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parts_store._compat.zarr import largest_chunk

TILE: Final = 256
# How many chunks one tile may decode, and how many bytes these may have.
_MAX_CHUNKS: Final = 1024
_MAX_NBYTES: Final = 1 << 28
# Colours from low to high values, as RGB; between them they are interpolated.
_COLOURS: Final[Mapping[str, str]] = {
    "gray": "000000 ffffff",
    "viridis": "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
    "magma": "000004 1d1147 51127c 822681 b63679 e65164 fb8861 fec287 fcfdbf",
    "difference": "2166ac 67a9cf d1e5f0 f7f7f7 fddbc7 ef8a62 b2182b",
}
COLOUR_MAPS: Final = tuple(_COLOURS)


class PictureError(ValueError):
    """A picture that cannot be made."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: what is selected of the array, and how often each value is repeated."""

    selection: tuple[int | slice, ...]
    repeat: int
    shape: tuple[int, int]


def max_zoom(shape: Sequence[int]) -> int:
    """Return the zoom at which one tile shows all of two axes of these lengths."""
    zoom = 0
    while max(shape, default=1) > TILE << zoom:
        zoom += 1
    return zoom


def plan_tile(
    shape: Sequence[int],
    chunks: Sequence[int],
    nbytes: int,
    *,
    axes: tuple[int, int],
    at: Mapping[int, int | slice],
    zoom: int,
    place: tuple[int, int],
) -> Tile:
    """Return what a tile needs.

    Parameters
    ----------
    shape, chunks
        The shape of the array, and of its chunks.
    nbytes
        The size of a decoded chunk.
    axes
        The axes that are shown from top to bottom and from left to right.
    at
        The position on each other axis; a slice for an axis of colours.
    zoom
        The zoom.
    place
        The row and the column of the tile, in tiles.

    Raises
    ------
    PictureError
        If there is no such tile.
    """
    ndim = len(shape)
    others = set(range(ndim)) - set(axes)
    if len(set(axes)) != 2 or not set(axes) <= set(range(ndim)) or set(at) != others:
        raise PictureError(f"expected two axes of {ndim} and a position on each other axis")
    if any(isinstance(where, int) and not 0 <= where < shape[axis] for axis, where in at.items()):
        raise PictureError(f"expected positions inside the shape {tuple(shape)}")
    if not 0 <= zoom <= max_zoom([shape[axis] for axis in axes]):
        raise PictureError(f"expected a zoom from 0 to {max_zoom([shape[axis] for axis in axes])}")
    starts = [number * (TILE << zoom) for number in place]
    lengths = [shape[axis] for axis in axes]
    if not all(0 <= start < length for start, length in zip(starts, lengths, strict=True)):
        raise PictureError(f"expected a tile inside the shape {tuple(shape)}")
    stops = [min(start + (TILE << zoom), length) for start, length in zip(starts, lengths, strict=True)]
    pixels = tuple(-(-(stop - start) >> zoom) or 1 for start, stop in zip(starts, stops, strict=True))
    most = max(min(_MAX_CHUNKS, _MAX_NBYTES // max(nbytes, 1)), 1)
    repeat = 0
    while True:
        step = 1 << (zoom + repeat)
        # The middle of each step, so that a coarse picture does not show the edges of chunks alone.
        slices = [
            slice(min(start + step // 2, (start + stop) // 2), stop, step)
            for start, stop in zip(starts, stops, strict=True)
        ]
        touched = [
            min(
                len(range(each.start, each.stop, each.step)),
                (each.stop - 1) // chunks[axis] - each.start // chunks[axis] + 1,
            )
            for axis, each in zip(axes, slices, strict=True)
        ]
        if prod(touched) <= most or TILE >> repeat == 1:
            break
        repeat += 1
    chosen = {**at, **dict(zip(axes, slices, strict=True))}
    return Tile(tuple(chosen[axis] for axis in range(ndim)), 1 << repeat, (pixels[0], pixels[1]))


def arrange(values: npt.NDArray[Any], axes: tuple[int, int], colour: int | None, tile: Tile) -> npt.NDArray[Any]:
    """Return the values of a tile as rows and columns, with colours last, in the size of the tile."""
    kept = sorted([*axes, *([] if colour is None else [colour])])
    order = [kept.index(axis) for axis in (*axes, *([] if colour is None else [colour]))]
    pixels = np.transpose(values, order)
    if tile.repeat > 1:
        pixels = pixels.repeat(tile.repeat, 0).repeat(tile.repeat, 1)
    short = [(0, max(0, size - have)) for size, have in zip(tile.shape, pixels.shape, strict=False)]
    padded = np.pad(pixels, [*short, *[(0, 0)] * (pixels.ndim - 2)], mode="edge") if any(map(max, short)) else pixels
    return padded[: tile.shape[0], : tile.shape[1]]


def read_tile(array: Any, tile: Tile, axes: tuple[int, int], colour: int | None = None) -> npt.NDArray[np.float64]:
    """Read the values of a tile of an array as rows and columns of numbers, with colours last."""
    return arrange(numbers(select(array, tile.selection)), axes, colour, tile)


def select(array: Any, selection: tuple[int | slice, ...]) -> npt.NDArray[Any]:
    """Return a selection of an array; steps that are longer than a chunk cost nothing for the chunks between."""
    steps = [each.step or 1 if isinstance(each, slice) else 1 for each in selection]
    if all(step <= chunk for step, chunk in zip(steps, largest_chunk(array), strict=True)):
        return np.asarray(array[selection])
    # For a slice, zarr looks at every chunk between the first value and the last one.
    lists = [
        np.arange(*each.indices(length)) if isinstance(each, slice) else each
        for each, length in zip(selection, array.shape, strict=True)
    ]
    return np.asarray(array.oindex[tuple(lists)])


def numbers(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as real numbers; raise `PictureError` for values that are not numbers."""
    kind = values.dtype.kind
    if kind == "c":
        values = np.abs(values)
    elif kind in "mM":
        values = np.where(np.isnat(values), np.nan, values.astype("i8").astype("f8"))
    elif kind not in "biuf":
        raise PictureError(f"expected numbers, found values of type {values.dtype}")
    return values.astype(np.float64)


def contrast(values: npt.NDArray[np.float64], *, around_zero: bool = False) -> tuple[float, float]:
    """Return the values that are shown darkest and brightest: percentiles of the finite values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    if around_zero:
        most = float(np.percentile(np.abs(finite), 99)) or float(np.abs(finite).max()) or 1.0
        return -most, most
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (float(each) for each in np.percentile(finite, [1, 99]))
    if low == high or not (isfinite(low) and isfinite(high)):
        low, high = float(finite.min()), float(finite.max())
    if low < high:
        return low, high
    step = max(1.0, abs(low) * 1e-6)
    return (low, low + step) if isfinite(low + step) else (low - step, low)


def png(pixels: npt.NDArray[np.float64], low: float, high: float, colour_map: str) -> bytes:
    """Return rows and columns of numbers, or of RGB, as PNG; what is not finite is transparent."""
    if not (isfinite(low) and isfinite(high) and low < high):
        raise PictureError(f"expected a low value below a high one, found {low} and {high}")
    if colour_map not in _COLOURS:
        raise PictureError(f"expected one of {', '.join(_COLOURS)}, found another colour map")
    finite = np.isfinite(pixels)
    with np.errstate(over="ignore", invalid="ignore"):
        # Half of it is finite even if the difference is not.
        part = 1.0 if isfinite(high - low) else 0.5
        scaled = np.clip((np.where(finite, pixels, low) * part - low * part) / (high * part - low * part), 0, 1)
    if pixels.ndim == 3:
        rgb = np.rint(scaled[..., :3] * 255).astype("u1")
        alpha = (finite[..., :3].all(axis=-1, keepdims=True) * 255).astype("u1")
        return _png(np.concatenate([rgb, alpha], axis=-1), 6, b"")
    indexes = np.where(finite, np.rint(scaled * 254) + 1, 0).astype("u1")
    palette = np.vstack([np.zeros((1, 3), "u1"), _palette(colour_map)])
    return _png(indexes[..., None], 3, _block(b"PLTE", palette.tobytes()) + _block(b"tRNS", b"\0"))


def _palette(colour_map: str) -> npt.NDArray[np.uint8]:
    colours = np.array([list(bytes.fromhex(each)) for each in _COLOURS[colour_map].split()], "f8")
    places = np.linspace(0, len(colours) - 1, 255)
    channels = [np.interp(places, np.arange(len(colours)), colours[:, each]) for each in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype("u1")


def _png(pixels: npt.NDArray[np.uint8], colour_type: int, palette: bytes) -> bytes:
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), "u1")
    rows[:, 1:] = pixels.reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    body = _block(b"IDAT", zlib.compress(rows.tobytes(), 3))
    return b"\x89PNG\r\n\x1a\n" + _block(b"IHDR", header) + palette + body + _block(b"IEND", b"")


def _block(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@dataclass(frozen=True, slots=True, repr=False)
class Preview:
    """A picture of an array, which a notebook shows."""

    caption: str
    data: bytes

    def __repr__(self) -> str:
        return f"<picture of {self.caption}: {len(self.data)} bytes of PNG>"

    def _repr_png_(self) -> bytes:
        return self.data


def preview(array: Any, caption: str, at: Sequence[int]) -> Preview:
    """Return a picture of the last two axes of an array, at these positions on the others; few chunks are read."""
    ndim = array.ndim
    if ndim < 2 or 0 in array.shape:
        raise PictureError(f"expected an array with at least two axes and a value, found the shape {array.shape}")
    if len(at) > ndim - 2:
        raise PictureError(f"expected at most {ndim - 2} positions, found {len(at)}")
    axes = (ndim - 2, ndim - 1)
    where: dict[int, int | slice] = dict(enumerate([*at, *[0] * (ndim - 2 - len(at))]))
    chunks = largest_chunk(array)
    nbytes = prod(chunks) * array.dtype.itemsize
    zoom = max_zoom(array.shape[-2:])
    tile = plan_tile(array.shape, chunks, nbytes, axes=axes, at=where, zoom=zoom, place=(0, 0))
    values = read_tile(array, tile, axes)
    return Preview(caption, png(values, *contrast(values), "viridis"))
