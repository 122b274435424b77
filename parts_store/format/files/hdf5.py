"""HDF5 files made without the HDF5 library, from one of its files that differs only in its chunks.

The library takes long to write many chunks. The files of shards with the same dataset differ in the chunks, the index
of the chunks (a Fixed Array), the size of the file, and the numbers of coordinates, whose places the library tells. The
HDF5 File Format Specification describes the bytes of the others:

| structure  | bytes                                                                                               |
|------------|-----------------------------------------------------------------------------------------------------|
| superblock | 28 others, 8 for where the file ends, 8 others, checksum                                            |
| index      | `FAHD`, version 0, 1 for whether there are filters, 1 for the size of an entry, 1 for the bits of   |
|            | the length of a page, 8 for the number of entries, 8 for where the block is, checksum               |
| block      | `FADB`, version 0, 1 for whether there are filters, 8 for where the index is, entries, checksum     |
| entry      | 8 for where the chunk is; with filters, the size of the chunk, and 4 for filters that were left out |

A block with more entries than a page has one bit for each page in place of the entries, which tells whether the page
has chunks. The pages come behind the block. Each has entries and a checksum.

The file of the library is compared with all of this. If anything is different, there is no template.
"""

import json
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5t, h5z
from numcodecs.checksum32 import JenkinsLookup3
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs import ZstdCodec
from zarr.codecs.numcodecs import Fletcher32, Shuffle, Zlib

from parts_store.format.coordinates import Dimensions
from parts_store.format.files.description import ShardFile, numcodec_of
from parts_store.format.files.netcdf import add_scales, set_attributes
from parts_store.format.shard_index import NO_CHUNK, is_hole

type Places = NDArray[np.uint64]
"""The offset and the size of each chunk of a dataset; `NO_CHUNK` twice for a missing one."""

# The signature; then the version, and the sizes of offsets and of lengths.
_SUPERBLOCKS: Final = tuple(b"\x89HDF\r\n\x1a\n" + bytes((version, 8, 8)) for version in (2, 3))
_SUPERBLOCK_NBYTES: Final = 48
# Where the file begins, and where it ends.
_BASE: Final = slice(12, 20)
_END: Final = slice(28, 36)
_INDEX_MAGIC: Final = b"FAHD"
_INDEX: Final = struct.Struct("<4sBBBBQQ")
_BLOCK: Final = struct.Struct("<4sBBQ")
_ADDRESS_NBYTES: Final = 8
_MASK_NBYTES: Final = 4
_CHECKSUM_NBYTES: Final = 4
_INDEX_NBYTES: Final = _INDEX.size + _CHECKSUM_NBYTES


def _with_checksum(data: bytes) -> bytes:
    """Return data with its checksum behind it, as in all structures of HDF5."""
    return bytes(JenkinsLookup3().encode(data))


@dataclass(frozen=True, slots=True)
class FixedArray:
    """The index of the chunks of a dataset."""

    # Where the index is in the file, and where its block is.
    at: int
    block_at: int
    count: int
    entry_nbytes: int
    page_bits: int
    has_filters: bool

    @property
    def page_count(self) -> int:
        """The number of pages of the block; 0 for a block without pages."""
        length = 1 << self.page_bits
        return -(-self.count // length) if self.count > length else 0

    @property
    def size_nbytes(self) -> int:
        """The number of bytes of the size of a chunk; 0 without filters."""
        return self.entry_nbytes - _ADDRESS_NBYTES - (_MASK_NBYTES if self.has_filters else 0)

    @property
    def block_nbytes(self) -> int:
        """The size of the block with its pages."""
        entries = self.count * self.entry_nbytes
        pages = self.page_count
        return _BLOCK.size + -(-pages // 8) + _CHECKSUM_NBYTES + entries + pages * _CHECKSUM_NBYTES

    def header(self) -> bytes:
        """Return the bytes of the index without its block."""
        numbers = self.has_filters, self.entry_nbytes, self.page_bits, self.count, self.block_at
        return _with_checksum(_INDEX.pack(_INDEX_MAGIC, 0, *numbers))

    def block(self, places: Places) -> bytes:
        """Return the bytes of the block for these chunks."""
        prefix = _BLOCK.pack(b"FADB", 0, self.has_filters, self.at)
        entries, is_stored = self._entries(places), ~is_hole(places)
        if not self.page_count:
            return _with_checksum(prefix + entries.tobytes())
        starts = range(0, self.count, 1 << self.page_bits)
        pages = [slice(start, start + (1 << self.page_bits)) for start in starts]
        has_chunks = [bool(is_stored[page].any()) for page in pages]
        blocks = [
            # HDF5 does not read a page without chunks.
            _with_checksum(entries[page].tobytes()) if used else bytes(entries[page].nbytes + _CHECKSUM_NBYTES)
            for page, used in zip(pages, has_chunks, strict=True)
        ]
        return b"".join((_with_checksum(prefix + np.packbits(has_chunks).tobytes()), *blocks))

    def _entries(self, places: Places) -> NDArray[np.uint8]:
        """Return one row of bytes for each chunk. A missing chunk is at `NO_CHUNK`, and its size is 0."""
        numbers = places.astype("<u8")
        numbers[is_hole(places), 1] = 0
        octets = numbers.view(np.uint8).reshape(-1, 2 * _ADDRESS_NBYTES)
        entries = np.zeros((self.count, self.entry_nbytes), np.uint8)
        stop = _ADDRESS_NBYTES + self.size_nbytes
        entries[:, :stop] = octets[:, :stop]
        return entries


@dataclass(frozen=True, slots=True)
class Template:
    """A file without its chunks and without the block of their index."""

    # It starts with the superblock, and contains the index. The block comes next.
    head: bytes
    index: FixedArray
    # Where the numbers of coordinates are in it.
    numbers: tuple[slice, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size of what comes before the chunks."""
        return len(self.head) + self.index.block_nbytes

    def can_hold(self, places: Places) -> bool:
        """Return whether the index can have the sizes of these chunks. Without filters, it has none."""
        sizes = places[~is_hole(places), 1]
        return not self.index.has_filters or int(sizes.max(initial=0)) < 1 << 8 * self.index.size_nbytes

    def start_of_file(self, places: Places, data_nbytes: int, numbers: Sequence[bytes] = ()) -> bytes:
        """Return what comes before the chunks, which are at these places in the file, and at its end.

        `numbers` are those of the coordinates of this file.
        """
        head = bytearray(_ending_at(self.head, self.nbytes + data_nbytes))
        for place, data in zip(self.numbers, numbers, strict=True):
            head[place] = data
        return bytes(head) + self.index.block(places)


def find_template(image: bytes, places: Places, numbers: Sequence[slice] = ()) -> Template | None:
    """Return the template of a file with at least one chunk; None if the file is not as it is expected.

    `numbers` are the places of the numbers of coordinates in the file.
    """
    stored = [(start, nbytes) for start, nbytes in places[~is_hole(places)].tolist()]
    head = image[: min(stored)[0]]
    if not head.startswith(_SUPERBLOCKS) or any(head[_BASE]) or _ending_at(head, len(image)) != head:
        return None
    # The block says where its index is. Therefore no other bytes of the file can be taken for the index.
    index = next((index for index in _indexes_in(head) if _has_block(image, index, places)), None)
    if index is None or not _is_unused(image, [(0, len(head)), (index.block_at, index.block_nbytes), *stored]):
        return None
    moved = replace(index, block_at=len(head))
    head = head[: index.at] + moved.header() + head[index.at + _INDEX_NBYTES :]
    return Template(head, moved, tuple(numbers)) if all(each.stop <= len(head) for each in numbers) else None


def _ending_at(head: bytes, end: int) -> bytes:
    """Return the start of a file for a file that ends there."""
    others = head[_END.stop : _SUPERBLOCK_NBYTES - _CHECKSUM_NBYTES]
    return _with_checksum(head[: _END.start] + end.to_bytes(8, "little") + others) + head[_SUPERBLOCK_NBYTES:]


def _indexes_in(head: bytes) -> Iterator[FixedArray]:
    """Yield all indexes in the start of a file. Attributes may contain anything."""
    at = head.find(_INDEX_MAGIC)
    while at >= 0:
        data = head[at : at + _INDEX_NBYTES]
        if len(data) == _INDEX_NBYTES:
            _, _, has_filters, entry_nbytes, page_bits, count, block_at = _INDEX.unpack(data[: _INDEX.size])
            index = FixedArray(at, block_at, count, entry_nbytes, page_bits, bool(has_filters))
            if index.header() == data:
                yield index
        at = head.find(_INDEX_MAGIC, at + 1)


def _has_block(image: bytes, index: FixedArray, places: Places) -> bool:
    """Return whether the block of an index is in a file, with the chunks that the file has."""
    if index.count != len(places) or index.size_nbytes not in (range(1, 9) if index.has_filters else (0,)):
        return False
    return image[index.block_at : index.block_at + index.block_nbytes] == index.block(places)


def _is_unused(image: bytes, places: Sequence[tuple[int, int]]) -> bool:
    """Return whether all bytes of a file are zero, except at these places."""
    at = 0
    for start, nbytes in sorted([*places, (len(image), 0)]):
        if image[at:start].strip(b"\0"):
            return False
        at = max(at, start + nbytes)
    return True


# The number of zstd in the registry of HDF5 filters.
_ZSTD: Final = 32015
_DEFAULT_LEVEL: Final = 3
# The size by which a file in memory grows at least.
_GROWTH: Final = 1 << 16
# HDF5 takes two files in memory with the same name for one file, and several threads write shards.
_NUMBERS: Final = count()


def hdf5_image(
    file: ShardFile,
    chunks: Sequence[memoryview | None],
    extent: tuple[int, ...],
    name: str,
    attributes: Mapping[str, Any],
    dimensions: Dimensions = (),
) -> tuple[list[bytes], list[tuple[int, int] | None], list[slice]]:
    """Return the pieces of an HDF5 file with one dataset and its coordinates.

    Also returns the offset and the size of each inner chunk, and the places of the numbers of coordinates in the file.
    The `extent` is the part of the shard that is in the array. Inner chunks outside of it follow behind the file that
    HDF5 knows.
    """
    opened = _create(sum(each.nbytes for each in chunks if each is not None))
    try:
        dataset = _create_dataset(opened, file, extent, name)
        described = h5py.Dataset(dataset)
        set_attributes(described, attributes)
        scales = add_scales(described, dimensions)
        # What describes the dataset comes before the chunks.
        h5f.flush(opened)
        outside: list[tuple[int, memoryview]] = []
        for slot, (start, chunk) in enumerate(zip(file.starts, chunks, strict=True)):
            if chunk is None:
                continue
            if all(map(operator.lt, start, extent)):
                dataset.write_direct_chunk(start, chunk)
            else:
                outside.append((slot, chunk))
        h5f.flush(opened)
        found: dict[tuple[int, ...], tuple[int, int]] = {}
        dataset.chunk_iter(lambda each: found.__setitem__(each.chunk_offset, (each.byte_offset, each.size)))
        image = opened.get_file_image()
        starts = [(each.id.get_offset(), each.nbytes) for each in scales]
        del dataset, described, scales
    finally:
        opened.close()
    places = [found.get(start) for start in file.starts]
    pieces, at = [image], len(image)
    for slot, chunk in outside:
        places[slot] = (at, chunk.nbytes)
        pieces.append(bytes(chunk))
        at += chunk.nbytes
    return pieces, places, [slice(start, start + nbytes) for start, nbytes in starts]


@lru_cache(maxsize=64)
def hdf5_template(
    file: ShardFile, extent: tuple[int, ...], name: str, attributes: str, dimensions: Dimensions = ()
) -> Template | None:
    """Return the template of the HDF5 files with this dataset, whose `attributes` are JSON text; None if there is none.

    It is found in a file whose last chunk is stored. The numbers of coordinates may be others than in this file.
    """
    chunks: list[memoryview | None] = [None] * len(file.starts)
    slots = slots_in(file, extent)
    chunks[slots[-1]] = memoryview(b"\1" if file.codecs else bytes(file.chunk_nbytes))
    (image,), places, numbers = hdf5_image(file, chunks, extent, name, json.loads(attributes), dimensions)
    found = np.array([places[slot] or (NO_CHUNK, NO_CHUNK) for slot in slots], np.uint64)
    return find_template(image, found, numbers)


def slots_in(file: ShardFile, extent: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the numbers of the inner chunks that are chunks of the dataset, in their order."""
    inside = tuple(slice(-(-length // chunk)) for length, chunk in zip(extent, file.chunk_shape, strict=True))
    return np.arange(len(file.starts)).reshape(file.grid)[inside].ravel()


def _create(data_nbytes: int) -> Any:
    """Return a new file in memory."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fapl_core(max(_GROWTH, data_nbytes + data_nbytes // 64), False)
    # HDF5 otherwise reserves space for metadata that may be added later.
    access.set_meta_block_size(0)
    # The oldest version with an index of chunks that needs few bytes. Programs with an older library than h5py has
    # cannot open a file of the newest version.
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    name = f"parts_store-{next(_NUMBERS)}.h5".encode()
    creation = h5p.create(h5p.FILE_CREATE)
    # With the time in the root group, the same values would give other bytes.
    creation.set_obj_track_times(False)
    return h5f.create(name, h5f.ACC_TRUNC, creation, access)


def _create_dataset(opened: Any, file: ShardFile, extent: tuple[int, ...], name: str) -> Any:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk(file.chunk_shape)
    creation.set_fill_value(np.asarray(file.fill_value, file.dtype))
    creation.set_obj_track_times(False)
    for codec in file.codecs:
        _add_filter(creation, codec)
    # HDF5 refuses chunks that are larger than the dataset can become.
    largest = tuple(-(-length // chunk) * chunk for length, chunk in zip(extent, file.chunk_shape, strict=True))
    kind = h5t.py_create(file.dtype, logical=True)
    return h5d.create(opened, name.encode(), kind, h5s.create_simple(extent, largest), creation)


def _add_filter(creation: Any, codec: Codec) -> None:
    match codec:
        case Zlib():
            creation.set_deflate(max(0, numcodec_of(codec).level))
        case Shuffle():
            creation.set_shuffle()
        case Fletcher32():
            creation.set_fletcher32()
        case ZstdCodec():
            # HDF5 looks for a filter that is not optional, and the inner chunks are already encoded.
            creation.set_filter(_ZSTD, h5z.FLAG_OPTIONAL, (codec.level or _DEFAULT_LEVEL,))
