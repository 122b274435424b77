"""Find the chunks of an HDF5 dataset, and convert its filters to codecs of Zarr."""

import bz2
import contextlib
import itertools
import math
import zlib
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from importlib import import_module
from typing import Any, BinaryIO, Final, cast

import h5py
import numpy as np
from numpy.typing import NDArray
from zarr.registry import get_codec_class

from parts_store.errors import CodecError
from parts_store.virtual.description import MISSING, CannotBeReadError, Json, NoReferenceError
from parts_store.virtual.store_access import require_blosc_sizes

# A table of more chunks would not fit into memory.
_MAX_CHUNKS: Final = 1 << 24

type ChunkCorner = tuple[int, ...]
type OffsetTable = dict[ChunkCorner, tuple[int, int]]
"""The offset and size of each chunk, by its position in the grid."""


type Grids = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]
"""The offset, the size and the filter mask of each chunk, in the shape of the grid."""


def chunks_of(dataset: h5py.Dataset, file: BinaryIO, shape: ChunkCorner) -> Grids:
    """Return where the chunks of a dataset are, and which filters were left out of them.

    The grid is that of an array of this shape, which is at least that of the dataset.
    """
    grid = tuple(-(-size // chunk) for size, chunk in zip(shape, dataset.chunks, strict=True))
    if math.prod(grid) > _MAX_CHUNKS:
        raise CannotBeReadError(f"{math.prod(grid):,} chunks, and at most {_MAX_CHUNKS:,} can be listed")
    if 0 in grid:
        return np.empty(grid, np.uint64), np.empty(grid, np.uint64), np.empty(grid, np.uint32)
    listed: list[Any] = []
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(listed.append)
    listed = [chunk for chunk in listed if chunk.byte_offset is not None]
    starts = np.array([chunk.chunk_offset for chunk in listed], np.int64).reshape(len(listed), len(grid))
    _require_order(starts, dataset.chunks)
    places = _right_places(dataset, file, starts, [(chunk.byte_offset, chunk.size) for chunk in listed])
    # HDF5 keeps chunks beyond the shape if the dataset was larger before.
    is_inside = np.all(places * np.array(dataset.chunks) < np.array(dataset.shape), axis=1)
    numbers = np.ravel_multi_index(tuple(places[is_inside].T), grid)
    # Most datasets have few chunks, for which NumPy takes longer.
    if len(set(numbers.tolist())) < len(numbers):
        seen, counts = np.unique(numbers, return_counts=True)
        place = tuple(int(at) for at in np.unravel_index(int(seen[counts > 1][0]), grid))
        raise CannotBeReadError(f"its chunk {place} is in the file twice")
    offsets, lengths = (np.full(grid, MISSING, np.uint64) for _ in range(2))
    offsets.ravel()[numbers] = np.array([chunk.byte_offset for chunk in listed], np.uint64)[is_inside]
    lengths.ravel()[numbers] = np.array([chunk.size for chunk in listed], np.uint64)[is_inside]
    masks = np.zeros(grid, np.uint32)
    masks.ravel()[numbers] = np.array([chunk.filter_mask for chunk in listed], np.uint32)[is_inside]
    return offsets, lengths, masks


def _require_order(starts: NDArray[np.int64], chunk_shape: ChunkCorner) -> None:
    """Raise if the index is damaged such that HDF5 would read fill values for a chunk that it lists."""
    # The first axis on which two chunks differ decides. Most datasets have few chunks, for which NumPy takes longer.
    if any(later <= earlier for earlier, later in itertools.pairwise(starts.tolist())):
        raise CannotBeReadError("the index of its chunks is not in order: it is damaged")
    if np.any(starts % np.array(chunk_shape)):
        raise CannotBeReadError("the index of its chunks names one that is not in the grid: it is damaged")


def _unlimited(dataset: h5py.Dataset) -> list[int]:
    return [axis for axis, size in enumerate(dataset.maxshape) if size is None]


def is_listed_right(dataset: h5py.Dataset) -> bool:
    """Return whether the HDF5 library certainly lists the chunks of a dataset where they are."""
    unlimited = _unlimited(dataset)
    return len(unlimited) != 1 or unlimited[0] == 0


def _right_places(
    dataset: h5py.Dataset, file: BinaryIO, starts: NDArray[np.int64], where: list[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the positions of the chunks in the grid: as they are listed, or as they are numbered.

    If one axis is unlimited and is not the first, HDF5 may store chunks by number, with that axis slowest. It reads
    them in this way, but lists them as if the first axis were slowest. Some chunks are read to find out which of the
    two applies.
    """
    places: NDArray[np.int64] = starts // np.array(dataset.chunks)
    if is_listed_right(dataset):
        return places
    unlimited = _unlimited(dataset)
    most = tuple(
        1 if size is None else -(-size // chunk) for size, chunk in zip(dataset.maxshape, dataset.chunks, strict=True)
    )
    said: list[ChunkCorner] = [tuple(place) for place in places.tolist()]
    numbered = [_by_number(place, unlimited[0], most) for place in said]
    one, other = dict(zip(said, where, strict=True)), dict(zip(numbered, where, strict=True))
    return np.array(numbered, np.int64).reshape(places.shape) if _matches_better(dataset, file, other, one) else places


def _by_number(place: ChunkCorner, slowest: int, most: ChunkCorner) -> ChunkCorner:
    """Return the position of a chunk, given the position that was computed with a wrong slowest axis."""
    number = 0
    for axis in range(slowest, len(place)):
        number = number * most[axis] + place[axis]
    right = [0] * len(place)
    for axis in [axis for axis in range(len(place) - 1, -1, -1) if axis != slowest]:
        number, right[axis] = divmod(number, most[axis])
    right[slowest] = number
    return tuple(right)


def _matches_better(dataset: h5py.Dataset, file: BinaryIO, table: OffsetTable, other: OffsetTable) -> bool:
    """Return whether the chunks are where `table` says and not where `other` says; False if the bytes are equal."""
    for place in table.keys() | other.keys():
        if table.get(place) == other.get(place) or not _is_within(place, dataset):
            continue
        start = tuple(at * size for at, size in zip(place, dataset.chunks, strict=True))
        try:
            stored: bytes | None = bytes(dataset.id.read_direct_chunk(start)[1])
        except (OSError, RuntimeError):
            stored = None
        found = [_read(file, each.get(place)) == stored for each in (table, other)]
        if found[0] != found[1]:
            return found[0]
    return False


def edges(dataset: h5py.Dataset, candidates: NDArray[np.bool_], shape: ChunkCorner) -> Iterator[ChunkCorner]:
    """Yield the positions of candidates that extend beyond the dataset, along the axes on which the shape does so."""
    for axis, (size, chunk, length) in enumerate(zip(dataset.shape, dataset.chunks, shape, strict=False)):
        if size % chunk and size < length:
            at = size // chunk
            for place in np.argwhere(np.take(candidates, [at], axis)).tolist():
                yield (*place[:axis], at, *place[axis + 1 :])


def _is_within(place: Iterable[int], dataset: h5py.Dataset) -> bool:
    return all(at * chunk < size for at, chunk, size in zip(place, dataset.chunks, dataset.shape, strict=True))


def _read(file: BinaryIO, where: tuple[int, int] | None) -> bytes | None:
    if where is None:
        return None
    file.seek(where[0])
    return file.read(where[1])


class Plugin(IntEnum):
    """The registered numbers of filters that are not part of HDF5."""

    BZIP2 = 307
    BLOSC = 32001
    LZ4 = 32004
    ZSTD = 32015


_UNKNOWN: Final = {
    h5py.h5z.FILTER_SZIP: "szip",
    h5py.h5z.FILTER_NBIT: "nbit",
    h5py.h5z.FILTER_SCALEOFFSET: "scaleoffset",
    Plugin.LZ4: "lz4",
}
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
# The parameters of szip, in the order of HDF5.
_SZIP: Final = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
_CHECKSUM_NBYTES: Final = 4
# The largest file of which chunks are read only to find out whether they are shorter than they should be.
_MOST_CHECKED: Final = 1 << 25
type Filters = list[tuple[int, tuple[int, ...], bytes]]
"""The number, the parameters and the label of each filter."""
# Filters that are part of HDF5.
_BUILT_IN: Final = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


def filters_of(dataset: h5py.Dataset) -> Filters:
    """Return the filters of a dataset, which takes long, in the order in which they were applied."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    return [(code, tuple(map(int, values)), label or b"") for code, _, values, label in found]


def codecs_of(dataset: h5py.Dataset, filters: Filters, mask: int) -> Iterator[Json]:
    """Yield the codecs for the filters of a dataset in order, without those that the filter mask excludes."""
    # The number of bytes that a filter receives, None if it is not known.
    nbytes: int | None = math.prod(dataset.chunks) * dataset.dtype.itemsize
    for number, (code, values, label) in enumerate(filters):
        if mask >> number & 1:
            continue
        codec = _codec(code, values, label, dataset.dtype.itemsize)
        if code == h5py.h5z.FILTER_SHUFFLE:
            if nbytes is None or nbytes % values[0]:
                raise NoReferenceError("the filter shuffle after another, where it leaves bytes over")
        elif code == h5py.h5z.FILTER_FLETCHER32 and nbytes is not None:
            nbytes += _CHECKSUM_NBYTES
        else:
            nbytes = None
        yield codec


def is_without_filters(filters: Filters, masks: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return which chunks no filter was applied to, given the filter mask of each."""
    every = np.uint32((1 << len(filters)) - 1)
    return np.asarray((masks & every) == every, np.bool_)


def require_filters(dataset: h5py.Dataset, reason: str) -> None:
    """Raise `CannotBeReadError` unless the HDF5 library has all filters of a dataset that is loaded for a reason."""
    for code, _, label in filters_of(dataset):
        if not h5py.h5z.filter_avail(code):
            # The package adds filters to the HDF5 library when it is imported.
            import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(code):
            name = _name(code, label)
            raise CannotBeReadError(f"{reason}; the HDF5 library has no filter {name} (number {code}) either")


def require_bounded_chunks(dataset: h5py.Dataset, places: Collection[tuple[int, ...]] | None = None) -> None:
    """Raise `CannotBeReadError` if a chunk is too large when it is decoded, has no end, or has no checksum.

    zlib and bzip2 make thousands of bytes of each byte, and the HDF5 library reads all of them. It waits forever for
    the end of bzip2, and reads beyond the end of blosc. All chunks are read, or those at these places of the grid.
    """
    if places is not None and not places:
        return
    filters = filters_of(dataset)
    if filters and filters[-1][0] == h5py.h5z.FILTER_FLETCHER32:
        _require_checksums(dataset, places, 1 << (len(filters) - 1))
    if not filters or filters[-1][0] not in (h5py.h5z.FILTER_DEFLATE, Plugin.BZIP2, Plugin.BLOSC):
        return
    # A text of a variable length takes twice as much in the file as a pointer, and other filters may add checksums.
    most = 2 * math.prod(dataset.chunks) * dataset.dtype.itemsize + _CHECKSUM_NBYTES * len(filters)
    for start in _starts(dataset, places):
        mask, data = dataset.id.read_direct_chunk(start)
        if not mask >> (len(filters) - 1) & 1:
            _require_bounded(dataset, start, filters[-1][0], data, most)


def _require_bounded(dataset: h5py.Dataset, start: tuple[int, ...], code: int, data: bytes, most: int) -> None:
    """Raise unless the bytes of a chunk have an end, and at most so many bytes, when its last filter is undone."""
    if code == Plugin.BLOSC:
        _require_whole(data)
        return
    try:
        has_end, nbytes = _decode(code, data, most)
    except (zlib.error, OSError):
        # The filters are not applied to some chunks at the edge, which the mask does not show.
        return
    if nbytes > most:
        raise CannotBeReadError(f"a chunk that is larger than {most} bytes when it is decoded: it is damaged")
    if not has_end:
        raise CannotBeReadError("a chunk that ends too early when it is decoded: it is damaged")
    if _is_deflated_alone(filters_of(dataset)) and not dataset.dtype.hasobject:
        _require_rows(dataset, start, nbytes)


def _require_whole(data: bytes) -> None:
    try:
        require_blosc_sizes(data)
    except CodecError as error:
        raise CannotBeReadError(
            f"a chunk of blosc that cannot be decoded: expected {error.expected}, found {error.found}"
        ) from error


def _require_checksums(dataset: h5py.Dataset, places: Iterable[tuple[int, ...]] | None, mask: int) -> None:
    """Raise if a chunk is shorter than its checksum, which ends the process in HDF5 2.0."""
    for start in _starts(dataset, places):
        chunk = dataset.id.get_chunk_info_by_coord(start)
        if chunk.byte_offset is not None and chunk.size < _CHECKSUM_NBYTES and not chunk.filter_mask & mask:
            raise CannotBeReadError(f"a chunk of {chunk.size} bytes, which is shorter than its checksum: it is damaged")


def _decode(code: int, data: bytes, most: int) -> tuple[bool, int]:
    """Return whether bytes have an end when they are decoded, and how many there are, up to one more than `most`."""
    decoder = bz2.BZ2Decompressor() if code == Plugin.BZIP2 else zlib.decompressobj()
    nbytes = len(decoder.decompress(data, most + 1))
    return decoder.eof, nbytes


def _is_deflated_alone(filters: Filters) -> bool:
    """Return whether the bytes of a chunk have the size of its values when deflate is undone."""
    codes = [code for code, _, _ in filters]
    return codes in ([h5py.h5z.FILTER_DEFLATE], [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE])


def _row_nbytes(dataset: h5py.Dataset) -> int:
    """Return the size of a row of a chunk in the file, where a number may be smaller than in h5py."""
    return int(math.prod(dataset.chunks[1:]) * dataset.id.get_type().get_size())


def _require_rows(dataset: h5py.Dataset, start: tuple[int, ...], nbytes: int) -> None:
    """Raise if a chunk lacks rows of the dataset: the HDF5 library returns what lies behind it in memory."""
    expected = min(dataset.chunks[0], dataset.shape[0] - start[0]) * _row_nbytes(dataset)
    if nbytes < expected:
        raise CannotBeReadError(f"a chunk of {nbytes} bytes when it is decoded, expected at least {expected} bytes")


def _starts(dataset: h5py.Dataset, places: Iterable[tuple[int, ...]] | None) -> Iterator[tuple[int, ...]]:
    """Yield the first element of each chunk that is stored, or of those at some places of the grid."""
    if places is None:
        for number in range(dataset.id.get_num_chunks()):
            yield dataset.id.get_chunk_info(number).chunk_offset
        return
    for place in places:
        yield tuple(at * size for at, size in zip(place, dataset.chunks, strict=True))


def _codec(code: int, values: tuple[int, ...], label: bytes, itemsize: int) -> Json:
    """Return the codec for a filter. The level matters only for writing, so a level out of range is replaced."""
    level = values[0] if values else -1
    match code:
        case h5py.h5z.FILTER_DEFLATE:
            return {"name": "numcodecs.zlib", "configuration": {"level": level if 0 <= level <= 9 else 1}}
        case h5py.h5z.FILTER_SHUFFLE:
            return _shuffle(values)
        case h5py.h5z.FILTER_FLETCHER32:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case Plugin.ZSTD:
            return {"name": "zstd", "configuration": {"level": level if 0 <= level <= 22 else 0, "checksum": False}}
        case Plugin.BZIP2:
            return {"name": "numcodecs.bz2", "configuration": {"level": level if 1 <= level <= 9 else 9}}
        case Plugin.BLOSC:
            return {"name": "blosc", "configuration": _blosc(values, itemsize)}
        case Plugin.LZ4:
            return _of_imagecodecs("lz4h5", {})
        # A PartsStore checks the chunks, because imagecodecs does not notice those that end too early.
        case h5py.h5z.FILTER_SZIP if len(values) == len(_SZIP):
            return _of_imagecodecs("szip", {**dict(zip(_SZIP, values, strict=True)), "header": True})
    name = _name(code, label)
    raise NoReferenceError(f"a filter that Zarr has no codec for: {name} (number {code})")


def _of_imagecodecs(name: str, configuration: Json) -> Json:
    """Return a codec of imagecodecs, which readers need as well; raise `NoReferenceError` if it is not installed.

    The package imagecodecs-zarr makes the codecs known to every zarr.
    """
    full_name = f"imagecodecs_{name}"
    try:
        import_module("imagecodecs.zarr").register_codecs({name})
        codec = get_codec_class(full_name).from_dict({"name": full_name, "configuration": configuration})
    # The package is missing, or was built without this codec.
    except (ImportError, KeyError, ValueError):
        raise NoReferenceError(
            f"the filter {name}, for which imagecodecs is needed: pip install imagecodecs-zarr"
        ) from None
    return cast("Json", codec.to_dict())


def _name(code: int, label: bytes) -> str:
    return _UNKNOWN.get(code) or label.decode(errors="replace") or "without a name"


def _shuffle(values: tuple[int, ...]) -> Json:
    if not values or values[0] < 1:
        raise CannotBeReadError("the filter shuffle does not say of how many bytes")
    return {"name": "numcodecs.shuffle", "configuration": {"elementsize": values[0]}}


def _blosc(values: tuple[int, ...], itemsize: int) -> Json:
    """Return the configuration of blosc. It matters only for writing: each chunk contains its own.

    The header of a chunk is compared with its size when the chunk is decoded (`codecs/damaged_chunks.py`).
    """
    padded = (*values, *(0, 0, itemsize, 0, 5, 1, 0)[len(values) :])
    size, level, shuffle, compressor = padded[2], *padded[4:7]
    if compressor >= len(_BLOSC_COMPRESSORS) or _BLOSC_COMPRESSORS[compressor] == "snappy":
        raise NoReferenceError("a filter that Zarr has no codec for: blosc with snappy, or one that is not known")
    return {
        "cname": _BLOSC_COMPRESSORS[compressor],
        "clevel": min(level, 9),
        "shuffle": _BLOSC_SHUFFLES[min(shuffle, 2)],
        "typesize": size if 1 <= size <= 255 else 1,
        "blocksize": 0,
    }


def unfiltered_edges(
    dataset: h5py.Dataset, filters: Filters, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
) -> list[tuple[int, ...]]:
    """Return the chunks at the edge that the filters were not applied to, which the filter mask does not show.

    With a compressor, zarr would raise an error when it reads such a chunk. With shuffle alone, it would return wrong
    numbers.
    """
    codes = {code for code, _, _ in filters}
    if not codes or not codes <= _BUILT_IN:
        return []
    raw_nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    # All axes that do not end with a chunk have an edge.
    beyond = tuple(size + 1 for size in dataset.shape)
    places = list(dict.fromkeys(edges(dataset, (offsets != MISSING) & (lengths == raw_nbytes), beyond)))
    require_bounded_chunks(dataset, places)
    for start in _starts(dataset, places):
        stop = tuple(min(at + size, end) for at, size, end in zip(start, dataset.chunks, dataset.shape, strict=True))
        within = tuple(slice(0, last - first) for first, last in zip(start, stop, strict=True))
        values = dataset[tuple(map(slice, start, stop))].tobytes()
        stored = np.frombuffer(dataset.id.read_direct_chunk(start)[1], "u1")
        is_plain = _cut(stored, dataset, within) == values
        if not is_plain:
            return []
        if codes != {h5py.h5z.FILTER_SHUFFLE} or _cut(_unshuffled(stored, dataset), dataset, within) != values:
            return places
    return []


def short_edges(
    dataset: h5py.Dataset, filters: Filters, is_there: NDArray[np.bool_], file_nbytes: int
) -> list[tuple[int, ...]]:
    """Return the chunks at the end of the first axis if they were written without the rows beyond the dataset.

    The HDF5 library reads such chunks, and never writes them; others do, such as for fast5 files. One chunk of a
    dataset tells whether there are some. In a large file, its bytes would have to be read for that alone.
    """
    if not _is_deflated_alone(filters) or file_nbytes > _MOST_CHECKED:
        return []
    places = list(edges(dataset, is_there, (dataset.shape[0] + 1, *dataset.shape[1:])))
    raw_nbytes = dataset.chunks[0] * _row_nbytes(dataset)
    for start in _starts(dataset, places[:1]):
        with contextlib.suppress(zlib.error):
            has_end, nbytes = _decode(h5py.h5z.FILTER_DEFLATE, dataset.id.read_direct_chunk(start)[1], raw_nbytes)
            return places if has_end and nbytes < raw_nbytes else []
    return []


def _cut(stored: NDArray[np.uint8], dataset: h5py.Dataset, within: tuple[slice, ...]) -> bytes:
    cut: Any = stored.view(f"V{dataset.dtype.itemsize}").reshape(dataset.chunks)[within]
    return bytes(cut.tobytes())


def _unshuffled(stored: NDArray[np.uint8], dataset: h5py.Dataset) -> NDArray[np.uint8]:
    return np.ascontiguousarray(stored.reshape(dataset.dtype.itemsize, -1).T).ravel()
