"""Turn an encoded shard into a file of another format with the index of the shard behind it. Pure.

zarr encodes a shard as inner chunks, one after the other, and an index. The result consists of the bytes of the file,
which contains the same inner chunks, and of an index with offsets into the file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, assert_never

import numpy as np

from parts_store.errors import CodecError
from parts_store.format.coordinates import Coordinates, Dimensions, numbers_of
from parts_store.format.files.description import ShardFile
from parts_store.format.files.seal import SEAL_NBYTES, Ends, build_tail
from parts_store.format.files.tiff import tiff_around, usual_directories_nbytes
from parts_store.format.files.tiff_metadata import ArrayDescription, ImageMetadata, image_metadata
from parts_store.format.layout import BufferChain
from parts_store.format.shard_index import Table, encode_table, is_hole

# The size that most compressed fill tiles do not exceed.
_USUAL_FILL_NBYTES: Final = 4096


def file_of(
    file: ShardFile,
    shard: memoryview,
    coordinates: Sequence[int],
    array_shape: Sequence[int],
    array: ArrayDescription,
) -> BufferChain:
    """Return a shard as a file, followed by its index.

    Parameters
    ----------
    file
        What the shards of the array are as files.
    shard
        The shard as zarr encodes it, or as such a file with its index. The file is made again, because the array may
        have another shape, name or attributes than when the file was made: it was resized, or is a copy.
    coordinates
        The position of the shard in the grid of the array's chunks.
    array_shape
        The shape of the array. The image or dataset in the file ends where the array ends.
    array
        What the documents say about the array: its name, which a dataset has, attributes, and coordinates.
    """
    data, index = shard[: -file.index.nbytes], bytes(shard[-file.index.nbytes :])
    extent = _extent(file, coordinates, array_shape)
    description: _Description
    dimensions: Dimensions = ()
    match file.format:
        case "tiff":
            description = _image_metadata(file, coordinates, array_shape, extent, array)
        case "hdf5":
            dimensions = _dimensions(file, coordinates, array_shape, extent, array)
            numbers = tuple(numbers_of(dimensions))
            description = _Dataset(array.name, json.dumps(array.attributes), dimensions, numbers)
        case other:
            assert_never(other)
    # Without compression, most shards of an array have the same index.
    frame = (_make_frame if file.codecs else _known_frame)(file, index, data.nbytes, extent, description)
    return _hdf5_of_library(file, data, index, extent, array, dimensions) if frame is None else frame.around(data)


def usual_ends(file: ShardFile) -> Ends:
    """Return how many bytes at the end of most files are needed to compare them with their seals.

    A reader does not make a fill tile, which takes long if it is large. If it is not compressed, few files have one.
    """
    match file.format:
        case "hdf5":
            return Ends(0, SEAL_NBYTES)
        case "tiff":
            return Ends(0, usual_directories_nbytes(file) + SEAL_NBYTES + (_USUAL_FILL_NBYTES if file.codecs else 0))
        case other:
            assert_never(other)


def _extent(file: ShardFile, coordinates: Sequence[int], array_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part of the shard that is in the array; all of a shard that is outside of the array."""
    extent = tuple(
        min(shard, length - at * shard)
        for shard, at, length in zip(file.shard_shape, coordinates, array_shape, strict=True)
    )
    return extent if all(length > 0 for length in extent) else file.shard_shape


def _image_metadata(
    file: ShardFile,
    coordinates: Sequence[int],
    array_shape: Sequence[int],
    extent: tuple[int, ...],
    array: ArrayDescription,
) -> ImageMetadata:
    """Return the tags of a TIFF file that are not about where its pixels are."""
    origin = [at * shard for at, shard in zip(coordinates, file.shard_shape, strict=True)]
    # The height and the width are the last axes, before the colours.
    y, x = (-3, -2) if file.is_rgb else (-2, -1)
    return image_metadata(array, extent[:y], (origin[y], origin[x]), (array_shape[y], array_shape[x]))


def _dimensions(
    file: ShardFile,
    coordinates: Sequence[int],
    array_shape: Sequence[int],
    extent: tuple[int, ...],
    array: ArrayDescription,
) -> Dimensions:
    """Return the names of the dimensions of a shard, and the part of their coordinates that belongs to it."""
    found: list[tuple[str | None, Coordinates | None]] = []
    for axis, name in enumerate(array.dimension_names):
        whole = array.coordinates.get(name or "")
        fits = whole is not None and len(whole.values) == array_shape[axis]
        start = coordinates[axis] * file.shard_shape[axis]
        found.append((name, whole.cut(start, extent[axis]) if whole is not None and fits else None))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What an HDF5 file says about its dataset: a name, attributes as JSON text, and dimensions.

    Dimensions with the same names are equal, whatever the numbers of their coordinates, which are here as bytes.
    """

    name: str
    attributes: str
    dimensions: Dimensions
    numbers: tuple[bytes, ...]


type _Description = ImageMetadata | _Dataset


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a file has besides its inner chunks, and the shard's index behind it."""

    start: bytes
    # Where the inner chunks are in the shard, in their order in the file. None if they are all of its data.
    chunks: Sequence[tuple[int, int]] | None
    end: bytes

    def around(self, data: memoryview) -> BufferChain:
        """Return a file with the inner chunks of a shard."""
        packed = data if self.chunks is None else b"".join(data[at : at + nbytes] for at, nbytes in self.chunks)
        return BufferChain(tuple(map(memoryview, (self.start, packed, self.end))))


def _make_frame(
    file: ShardFile, index: bytes, nbytes: int, extent: tuple[int, ...], description: _Description
) -> _Frame | None:
    """Return the frame of a shard with this index and so many bytes before it; None if only HDF5 can make the file.

    The arguments are all that decides its bytes, so that the same arguments have the same frame.
    """
    table = file.index.decode(index)
    if table is None or not _is_inside(table, nbytes):
        raise CodecError("sharding_indexed", "a shard with a valid index", f"{nbytes + len(index)} other bytes")
    _require_sizes(file, table)
    match description:
        case ImageMetadata():
            return _tiff_frame(file, table, nbytes, extent, description)
        case _Dataset():
            return _hdf5_frame(file, table, nbytes, extent, description)
        case other:
            assert_never(other)


_known_frame: Final = lru_cache(maxsize=16)(_make_frame)


def _tiff_frame(file: ShardFile, table: Table, nbytes: int, extent: tuple[int, ...], metadata: ImageMetadata) -> _Frame:
    # Programs that find the description of ImageJ expect images without compression one behind the other.
    chunks, packed = _pack(table, nbytes, is_sorted=metadata.of_first is not None and not file.codecs)
    start, end = tiff_around(file, packed, _total(packed), extent, metadata)
    index = _encode(file, _moved(packed, len(start)))
    return _Frame(start, chunks, build_tail(index, end) + index)


def _hdf5_frame(
    file: ShardFile, table: Table, nbytes: int, extent: tuple[int, ...], dataset: _Dataset
) -> _Frame | None:
    # h5py is an extra, and takes a while to import.
    from parts_store.format.files.hdf5 import hdf5_template, slots_in  # noqa: PLC0415

    template = hdf5_template(file, extent, dataset.name, dataset.attributes, dataset.dimensions)
    slots = slots_in(file, extent)
    is_stored = ~is_hole(table)
    is_inside = is_stored.sum() == is_stored[slots].sum()
    if template is None or not is_inside or not template.can_hold(table[slots]):
        return None
    chunks, packed = _pack(table, nbytes)
    moved = _moved(packed, template.nbytes)
    index = _encode(file, moved)
    start = template.start_of_file(moved[slots], _total(packed), dataset.numbers)
    return _Frame(start, chunks, build_tail(index) + index)


def _hdf5_of_library(
    file: ShardFile,
    data: memoryview,
    index: bytes,
    extent: tuple[int, ...],
    array: ArrayDescription,
    dimensions: Dimensions,
) -> BufferChain:
    """Return a file that the HDF5 library makes, which takes longer."""
    from parts_store.format.files.hdf5 import hdf5_image  # noqa: PLC0415

    ranges = file.index.ranges_of(index, range(file.index.slots)) or ()
    chunks = [None if inner is None else data[inner.start : inner.end] for inner in ranges]
    pieces, found, _ = hdf5_image(file, chunks, extent, array.name, array.attributes, dimensions)
    index = file.index.encode(found)
    return BufferChain(tuple(map(memoryview, (*pieces, build_tail(index) + index))))


def _moved(table: Table, nbytes: int) -> Table:
    """Return where inner chunks are after that many bytes were put before them."""
    moved = table.copy()
    moved[~is_hole(table), 0] += nbytes
    return moved


def _encode(file: ShardFile, table: Table) -> bytes:
    return encode_table(table.astype(file.index.dtype), has_checksum=file.index.has_checksum)


def _require_sizes(file: ShardFile, table: Table) -> None:
    """Raise `CodecError` if an inner chunk is empty or, without compression, has a wrong size."""
    sizes = table[~is_hole(table), 1]
    for nbytes in (int(sizes.min()), int(sizes.max())) if sizes.size else ():
        if nbytes != file.chunk_nbytes and (nbytes == 0 or not file.codecs):
            expected = (
                "inner chunks that are not empty" if file.codecs else f"inner chunks of {file.chunk_nbytes} bytes"
            )
            raise CodecError("sharding_indexed", expected, f"an inner chunk of {nbytes} bytes")


def _is_inside(table: Table, nbytes: int) -> bool:
    """Return whether all inner chunks are inside the data of a shard."""
    offsets, lengths = table[~is_hole(table)].astype(np.uint64).T
    limit = np.uint64(nbytes)
    return bool(np.all(offsets <= limit) and np.all(lengths <= limit - offsets))


def _pack(table: Table, nbytes: int, *, is_sorted: bool = False) -> tuple[Sequence[tuple[int, int]] | None, Table]:
    """Return where the inner chunks are, one after the other, and where they are without other bytes between them.

    They keep their order, or are sorted in C order. The first result is None if there are no bytes between them.
    """
    native = table.astype(np.uint64)
    stored = np.flatnonzero(~is_hole(native))
    if not is_sorted:
        stored = stored[np.argsort(native[stored, 0], kind="stable")]
    offsets, sizes = native[stored].T
    starts = np.cumsum(sizes) - sizes
    if np.array_equal(offsets, starts) and int(sizes.sum()) == nbytes:
        return None, native
    chunks = [(at, size) for at, size in native[stored].tolist()]
    native[stored, 0] = starts
    return chunks, native


def _total(table: Table) -> int:
    """Return the size of all inner chunks."""
    return int(table[~is_hole(table), 1].sum())
