"""The files that a view shows: which shards of an array exist, and what the first bytes of their files say. Pure.

The image or dataset in a file ends where the array ended when the shard was written. So its size is not known from the
metadata of the array, which may have been resized since.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from parts_store.errors import StoreConfigError
from parts_store.format.files.description import ShardFile

_WIDTH, _HEIGHT = 256, 257
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


def place_source(array: ViewedArray, key: str, coordinates: Sequence[int], content: FileContent) -> ShardSource:
    """Return the shard with these coordinates, whose file has this content."""
    shard = array.file.shard_shape
    origin = tuple(at * length for at, length in zip(coordinates, shard, strict=True))
    inside = tuple(min(part, end - start) for part, end, start in zip(shard, array.shape, origin, strict=True))
    if array.file.format == "tiff":
        leading = _leading(array, key, inside[: array.height_axis], content.count)
        stored = (*leading, *content.shape, *shard[len(leading) + 2 :])
    else:
        stored = content.shape
        if len(stored) != len(shard):
            raise array.refuse("a dataset of the shape of its shard in every file", f"{stored} in {key!r}")
    extent = tuple(map(min, stored, inside))
    return ShardSource(key.removeprefix(array.folder), origin, stored, extent, content.dataset)


def _leading(array: ViewedArray, key: str, inside: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return how many images a file has along each axis before the height, given the number of all its images."""
    shard = array.file.shard_shape[: len(inside)]
    several = [axis for axis, length in enumerate(shard) if length > 1]
    possible = [inside, shard]
    if len(several) == 1:
        possible.append(tuple(count if axis in several else 1 for axis in range(len(shard))))
    for leading in possible:
        if math.prod(leading) == count:
            return leading
    found = f"{count} in {key!r}; the array was resized since: write the shard again"
    raise array.refuse(f"{math.prod(inside)} images in a file", found)


def read_tiff(start: bytes, *, has_pages: bool) -> FileContent | None:
    """Return what is in a TIFF file with this start, None if it takes more bytes; raise `ValueError` if it is none."""
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
    count, sizes = 0, dict[int, int]()
    while at and (has_pages or not count):
        begin = at + struct.calcsize(number)
        if begin > len(start):
            return None
        (entries,) = struct.unpack_from(f"{order}{number}", start, at)
        end = begin + entries * step
        if end + struct.calcsize(offset) > len(start):
            return None
        if not count:
            for place in range(begin, end, step):
                tag, kind, _ = entry.unpack_from(start, place)
                if tag in (_WIDTH, _HEIGHT) and kind in _SIZES:
                    (sizes[tag],) = struct.unpack_from(f"{order}{_SIZES[kind]}", start, place + entry.size)
        count += 1
        (at,) = struct.unpack_from(f"{order}{offset}", start, end)
    if len(sizes) != 2:
        raise ValueError("a TIFF file without an image")
    return FileContent(count, (sizes[_HEIGHT], sizes[_WIDTH]))


def is_node_name(name: object) -> TypeGuard[str]:
    """Return whether a node of a group, and a dataset at the root of an HDF5 file, can have this name."""
    return isinstance(name, str) and name.isprintable() and "/" not in name and name.strip(".") != ""


def has_gaps(array: ViewedArray, sources: Iterable[ShardSource]) -> bool:
    """Return whether a part of the array is in no file."""
    return sum(math.prod(source.extent) for source in sources) < math.prod(array.shape)


def as_number(array: ViewedArray) -> Any:
    """Return the fill value as a number of NumPy."""
    return np.asarray(array.file.fill_value, array.file.dtype.newbyteorder("="))[()]
