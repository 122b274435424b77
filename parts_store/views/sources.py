"""The files that a view shows: which shards of an array exist, and what the first bytes of their files say. Pure.

The image or dataset in a file ends where the array ended when the shard was written. So its size is not known from the
metadata of the array, which may have been resized since.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np

from parts_store.errors import StoreConfigError
from parts_store.format.files.description import ShardFile
from parts_store.format.shard_index import Table, is_hole
from parts_store.format.tiff_directory import HEIGHT, STRIP_OFFSETS, TILE_OFFSETS, WIDTH

_SIZES: Final = {3: "H", 4: "I", 16: "Q"}


@dataclass(frozen=True, slots=True)
class ViewedArray:
    """An array, and what its metadata says about it."""

    path: str
    # The name of the dataset in files, and of the image.
    name: str
    shape: tuple[int, ...]
    file: ShardFile
    dimension_names: tuple[str | None, ...]
    attributes: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The start of the keys in the folder of the view."""
        return self.path[: self.path.rfind("/") + 1]

    @property
    def leading(self) -> tuple[int, ...]:
        """The lengths of the axes before the height of images."""
        return self.shape[: self.height_axis]

    @property
    def height_axis(self) -> int:
        """The number of the axis that is the height of images."""
        return len(self.shape) - 2 - self.file.is_rgb

    @property
    def samples(self) -> int:
        """How many values a pixel of an image has."""
        return self.shape[-1] if self.file.is_rgb else 1

    def refuse(self, expected: str, found: str) -> StoreConfigError:
        """Return the error for an array that a view cannot show."""
        return StoreConfigError(f"view of array {self.path!r}", expected, found)


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A shard that exists, as a file."""

    # Relative to the folder of the view.
    filename: str
    # The position of the first element of the shard in the array.
    origin: tuple[int, ...]
    # The shape of what is in the file, of which a part may be outside of the array now.
    stored_shape: tuple[int, ...]
    # That shape, cut where the array ends.
    extent: tuple[int, ...]
    # The name of the dataset in an HDF5 file.
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class FileContent:
    """What is in a file: the number of its images and their shape, or its dataset."""

    count: int
    shape: tuple[int, ...]
    dataset: str = ""
    # Of each image of a TIFF file, the offsets of its tiles, if they were asked for.
    tiles: tuple[tuple[int, ...], ...] = ()


def place_source(
    array: ViewedArray, key: str, coordinates: Sequence[int], content: FileContent, table: Table | None = None
) -> ShardSource:
    """Return the shard with these coordinates, whose file has this content; `table` is its decoded index, if needed."""
    shard = array.file.shard_shape
    origin = tuple(at * length for at, length in zip(coordinates, shard, strict=True))
    inside = tuple(min(part, end - start) for part, end, start in zip(shard, array.shape, origin, strict=True))
    match array.file.format:
        case "tiff":
            leading = _leading(array, key, inside[: array.height_axis], content, table)
            stored = (*leading, *content.shape, *shard[len(leading) + 2 :])
        case "hdf5":
            stored = content.shape
            if len(stored) != len(shard):
                raise array.refuse("a dataset of the shape of its shard in every file", f"{stored} in {key!r}")
        case other:
            assert_never(other)
    extent = tuple(map(min, stored, inside))
    return ShardSource(key.removeprefix(array.folder), origin, stored, extent, content.dataset)


def needs_index(array: ViewedArray, content: FileContent) -> bool:
    """Return whether the number of images does not tell which ones they are, because several axes are before them."""
    return array.file.format == "tiff" and len(_possible_leading(array, content.count)) > 1


def _possible_leading(array: ViewedArray, count: int) -> list[tuple[int, ...]]:
    """Return the lengths that the axes before the height may have in a file with that many images."""
    found: list[tuple[int, ...]] = [()]
    for length in array.file.shard_shape[: array.height_axis]:
        found = [(*each, n) for each in found for n in range(1, length + 1) if count % (math.prod(each) * n) == 0]
    return [each for each in found if math.prod(each) == count]


def _leading(
    array: ViewedArray, key: str, inside: tuple[int, ...], content: FileContent, table: Table | None
) -> tuple[int, ...]:
    """Return how many images a file has along each axis before the height.

    The array may have been resized since the file was written. The index of the shard says which tile is where.
    """
    possible = _possible_leading(array, content.count)
    if len(possible) > 1 and table is not None:
        possible = [each for each in possible if _fits(array, content, each, table)]
    if possible:
        # If several are left, the images of which the position is not known have no stored tiles.
        return inside if inside in possible else possible[0]
    found = f"{content.count} others in {key!r}; write the shard again"
    raise array.refuse(f"{math.prod(inside)} images in a file", found)


def _fits(array: ViewedArray, content: FileContent, leading: tuple[int, ...], table: Table) -> bool:
    """Return whether the tiles of each image are where the index says, if the axes before the height are that long."""
    offsets = table[:, 0].reshape(array.file.grid)
    is_stored = ~is_hole(table).reshape(array.file.grid)
    heights = zip(content.shape, array.file.chunk_shape[array.height_axis :], strict=False)
    inside = tuple(slice(-(-length // chunk)) for length, chunk in heights)
    for position, tiles in zip(np.ndindex(*leading), content.tiles, strict=True):
        stored = is_stored[(*position, *inside)].ravel()
        if len(tiles) != stored.size or not np.array_equal(
            offsets[(*position, *inside)].ravel()[stored], np.array(tiles, np.uint64)[stored]
        ):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The start of a file, and another range of it."""

    start: bytes
    more: bytes = b""
    # Where the other range begins in the file.
    at: int = 0

    def take(self, at: int, nbytes: int) -> bytes:
        """Return bytes of the file; raise `NotReadError` if they are in neither range."""
        for data, first in ((self.start, 0), (self.more, self.at)):
            if first <= at and at + nbytes <= first + len(data):
                return data[at - first : at - first + nbytes]
        raise NotReadError(at)


class NotReadError(Exception):
    """Bytes of a file are needed that were not read."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def read_tiff(file: Excerpt, *, has_pages: bool, has_tiles: bool = False) -> FileContent:
    """Return what is in a TIFF file; with the offsets of all tiles of its images, if asked for.

    Raises `ValueError` if it is none, and `NotReadError` if that takes other bytes.
    """
    start = file.start
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None or len(start) < 16:
        raise ValueError("not a TIFF file")
    (version,) = struct.unpack_from(f"{order}H", start, 2)
    if version not in (42, 43):
        raise ValueError("not a TIFF file")
    offset, number, head = ("I", "H", 4) if version == 42 else ("Q", "Q", 8)
    entry = struct.Struct(f"{order}HH{offset}")
    step = entry.size + struct.calcsize(offset)
    (at,) = struct.unpack_from(f"{order}{offset}", start, head)
    sizes, tiles, seen = dict[int, int](), list[tuple[int, ...]](), set[int]()
    while at and (has_pages or not seen):
        if at in seen:
            raise ValueError("a TIFF file whose directories form a circle")
        begin = at + struct.calcsize(number)
        (entries,) = struct.unpack(f"{order}{number}", file.take(at, begin - at))
        data = file.take(begin, entries * step + struct.calcsize(offset))
        for place in range(0, entries * step, step):
            tag, kind, values = entry.unpack_from(data, place)
            if kind not in _SIZES:
                continue
            form = f"{order}{values}{_SIZES[kind]}"
            if tag in (WIDTH, HEIGHT) and not seen and values == 1:
                (sizes[tag],) = struct.unpack_from(form, data, place + entry.size)
            elif tag in (STRIP_OFFSETS, TILE_OFFSETS) and has_tiles:
                nbytes = values * struct.calcsize(_SIZES[kind])
                (there,) = struct.unpack_from(f"{order}{offset}", data, place + entry.size)
                is_beside = nbytes <= struct.calcsize(offset)
                found = data[place + entry.size :][:nbytes] if is_beside else file.take(there, nbytes)
                tiles.append(struct.unpack(form, found))
        seen.add(at)
        (at,) = struct.unpack_from(f"{order}{offset}", data, entries * step)
    if len(sizes) != 2:
        raise ValueError("a TIFF file without an image")
    return FileContent(len(seen), (sizes[HEIGHT], sizes[WIDTH]), tiles=tuple(tiles))


def has_gaps(array: ViewedArray, sources: Iterable[ShardSource]) -> bool:
    """Return whether a part of the array is in no file."""
    return sum(math.prod(source.extent) for source in sources) < math.prod(array.shape)


def as_number(array: ViewedArray) -> Any:
    """Return the fill value as a number of NumPy."""
    return np.asarray(array.file.fill_value, array.file.dtype.newbyteorder("="))[()]
