"""Shards as TIFF files: what is around the inner chunks, which are the tiles or strips of the images.

The directories, which describe the images, come behind the inner chunks. So a reader that compares a file with its seal
gets all it needs with the request for the index of the shard. What the attributes of the array say comes first. All
directories share it, and readers of the array do not need it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parts_store.format.files.description import ShardFile
from parts_store.format.files.seal import SEAL_NBYTES
from parts_store.format.files.tiff_metadata import MOST_TAGS, NO_METADATA, ImageMetadata
from parts_store.format.shard_index import NO_CHUNK, may_have_holes
from parts_store.format.tiff_directory import (
    ENTRY_NBYTES,
    GRAY,
    LONG,
    LONG8,
    ROWS_PER_STRIP,
    STRIP_BYTE_COUNTS,
    STRIP_OFFSETS,
    TILE_BYTE_COUNTS,
    TILE_LENGTH,
    TILE_OFFSETS,
    TILE_WIDTH,
    ByteOrder,
    DirectoryTag,
    TiffForm,
    image_tags,
)

# Offsets in TIFF have 32 bits, and those of BigTIFF 64.
_MAX_NBYTES = 2**32 - 1


def tiff_around(
    file: ShardFile,
    table: NDArray[np.uint64],
    data_nbytes: int,
    extent: tuple[int, ...],
    metadata: ImageMetadata = NO_METADATA,
) -> tuple[bytes, bytes]:
    """Return what comes before and after the inner chunks, so that they are the tiles of TIFF images.

    The `table` says where the inner chunks are in their data, and `extent` which part of the shard is in the array. A
    tile that is not stored is the fill tile, which comes last. All images get the tags in `metadata`.
    """
    images = _Images.of(file, extent)
    offsets, lengths = images.tiles_of(table)
    is_hole = offsets == NO_CHUNK
    fill_tile = file.fill_tile if may_have_holes(table) else b""
    lengths = np.where(is_hole, np.uint64(len(fill_tile)), lengths)
    if file.compression == "none":
        lengths = np.minimum(lengths, images.stored_nbytes)
    tags = list(metadata.of_all)
    if metadata.of_first is not None and images.may_be_described(offsets, lengths):
        tags.append(metadata.of_first)
    byteorder: ByteOrder = "big" if file.dtype.str[0] == ">" else "little"
    for form in (TiffForm(byteorder), TiffForm(byteorder, is_big=True)):
        extra, values = form.placed(tags, len(form.magic()))
        page_nbytes = images.directory_nbytes(form, extra)
        start = len(form.magic()) + len(values)
        if start + data_nbytes + images.count * page_nbytes + len(fill_tile) + SEAL_NBYTES <= _MAX_NBYTES:
            break
    # Directories begin at even offsets.
    at = first = start + data_nbytes + data_nbytes % 2
    offsets = np.where(is_hole, np.uint64(first + images.count * page_nbytes), offsets + np.uint64(start))
    pages, numbers_of_all = [bytes(data_nbytes % 2)], {each.number for each in metadata.of_all}
    for number in range(images.count):
        is_last = number == images.count - 1
        described = [each for each in extra if number == 0 or each.number in numbers_of_all]
        places = images.tags(form, offsets[number].tolist(), lengths[number].tolist())
        pages.append(form.pack([*places, *described], at, 0 if is_last else at + page_nbytes).ljust(page_nbytes, b"\0"))
        at += page_nbytes
    return form.magic(first) + values, b"".join((*pages, fill_tile))


def usual_directories_nbytes(file: ShardFile) -> int:
    """Return the size of the directories of a shard that is all in the array."""
    images = _Images.of(file, file.shard_shape)
    room = images.count * MOST_TAGS * ENTRY_NBYTES
    return 1 + images.count * images.directory_nbytes(TiffForm("little")) + room


@dataclass(frozen=True, slots=True)
class _Images:
    """The images of one file, all of the same size: one for each position along the axes before the height."""

    file: ShardFile
    # The lengths of the axes before the height, in this file.
    leading: tuple[int, ...]
    height: int
    width: int
    samples: int

    @classmethod
    def of(cls, file: ShardFile, extent: tuple[int, ...]) -> "_Images":
        *leading, height, width = extent[:-1] if file.is_rgb else extent
        if file.has_strips:
            # Strips are not cut off, as tiles are. After the array was resized, the image may be larger than its part
            # of the array.
            rows, width = file.chunk_shape[len(leading)], file.chunk_shape[len(leading) + 1]
            height = -(-height // rows) * rows if file.codecs else height
        return cls(file, tuple(leading), height, width, extent[-1] if file.is_rgb else GRAY)

    @property
    def count(self) -> int:
        return math.prod(self.leading)

    @property
    def chunk_height(self) -> int:
        return self.file.chunk_shape[len(self.leading)]

    @property
    def chunk_width(self) -> int:
        return self.file.chunk_shape[len(self.leading) + 1]

    @property
    def tile_grid(self) -> tuple[int, int]:
        """The number of tiles along the height and the width of an image."""
        return -(-self.height // self.chunk_height), -(-self.width // self.chunk_width)

    @property
    def stored_nbytes(self) -> NDArray[np.uint64]:
        """How many bytes of each tile belong to the image, without compression: of the last strip, only its rows."""
        rows, columns = self.tile_grid
        heights = np.full(rows, self.chunk_height)
        if self.file.has_strips:
            heights[-1] = self.height - (rows - 1) * self.chunk_height
        of_row = self.chunk_width * self.samples * self.file.dtype.itemsize
        return np.repeat(heights * of_row, columns).astype(np.uint64)

    def tiles_of(self, table: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the offsets and the lengths of all tiles, one row for each image."""
        rows, columns = self.tile_grid
        inside = tuple(slice(length) for length in (*self.leading, rows, columns))
        tiles = table.astype(np.uint64).reshape(*self.file.grid, 2)[inside].reshape(self.count, rows * columns, 2)
        return tiles[..., 0], tiles[..., 1]

    def tags(self, form: TiffForm, offsets: list[int], lengths: list[int]) -> list[DirectoryTag]:
        """Return the tags of one image, whose tiles are there."""
        kind = LONG8 if form.is_big else LONG
        if self.file.has_strips:
            places = [
                DirectoryTag(STRIP_OFFSETS, kind, tuple(offsets)),
                DirectoryTag.number_of(ROWS_PER_STRIP, self.chunk_height),
                DirectoryTag(STRIP_BYTE_COUNTS, kind, tuple(lengths)),
            ]
        else:
            places = [
                DirectoryTag.number_of(TILE_WIDTH, self.chunk_width),
                DirectoryTag.number_of(TILE_LENGTH, self.chunk_height),
                DirectoryTag(TILE_OFFSETS, kind, tuple(offsets)),
                DirectoryTag(TILE_BYTE_COUNTS, kind, tuple(lengths)),
            ]
        file = self.file
        described = image_tags(self.height, self.width, self.samples, file.dtype, file.compression, is_rgb=file.is_rgb)
        return [*described, *places]

    def may_be_described(self, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> bool:
        """Return whether the file may have the description of ImageJ.

        Programs that find it may read all images without compression from the place of the first one on.
        """
        if self.file.compression != "none" or self.count == 1:
            return True
        starts, sizes = offsets.ravel(), lengths.ravel()
        return not (starts == NO_CHUNK).any() and bool(np.all(starts[1:] == starts[:-1] + sizes[:-1]))

    def directory_nbytes(self, form: TiffForm, extra: Sequence[DirectoryTag] = ()) -> int:
        """Return the size of the directory of one image; the next one begins at an even offset."""
        count = math.prod(self.tile_grid)
        nbytes = form.directory_nbytes([*self.tags(form, [0] * count, [0] * count), *extra])
        return nbytes + nbytes % 2
