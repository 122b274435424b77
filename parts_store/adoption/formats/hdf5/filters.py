"""Convert the filters of HDF5 datasets to codecs of Zarr."""

import math
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, CannotBeReadError, Json


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
    Plugin.LZ4: "lz4, in a frame of HDF5's own",
}
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
# Filters that are part of HDF5.
_BUILT_IN: Final = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


def codecs_of(dataset: h5py.Dataset, mask: int) -> Iterator[Json]:
    """Yield the codecs for the filters of a dataset in order, without those that the filter mask excludes."""
    # The number of bytes that a filter receives, None if it is not known.
    nbytes: int | None = math.prod(dataset.chunks) * dataset.dtype.itemsize
    for number, (code, values, label) in enumerate(_filters(dataset)):
        if mask >> number & 1:
            continue
        codec = _codec(code, values, label, dataset.dtype.itemsize)
        if code == h5py.h5z.FILTER_SHUFFLE:
            if nbytes is None or nbytes % values[0]:
                raise CannotBeReadError("the filter shuffle after another, where it leaves bytes over")
        elif code == h5py.h5z.FILTER_FLETCHER32 and nbytes is not None:
            nbytes += 4
        else:
            nbytes = None
        yield codec


def _filters(dataset: h5py.Dataset) -> list[tuple[int, tuple[int, ...], bytes]]:
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    return [(code, tuple(map(int, values)), label or b"") for code, _, values, label in found]


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
    name = _UNKNOWN.get(code) or label.decode(errors="replace") or "without a name"
    raise CannotBeReadError(f"a filter that Zarr has no codec for: {name} (number {code})")


def _shuffle(values: tuple[int, ...]) -> Json:
    if not values or values[0] < 1:
        raise CannotBeReadError("the filter shuffle does not say of how many bytes")
    return {"name": "numcodecs.shuffle", "configuration": {"elementsize": values[0]}}


def _blosc(values: tuple[int, ...], itemsize: int) -> Json:
    """Return the configuration of blosc. It matters only for writing: each chunk contains its own."""
    padded = (*values, *(0, 0, itemsize, 0, 5, 1, 0)[len(values) :])
    size, level, shuffle, compressor = padded[2], *padded[4:7]
    if compressor >= len(_BLOSC_COMPRESSORS) or _BLOSC_COMPRESSORS[compressor] == "snappy":
        raise CannotBeReadError("a filter that Zarr has no codec for: blosc with snappy, or one that is not known")
    return {
        "cname": _BLOSC_COMPRESSORS[compressor],
        "clevel": min(level, 9),
        "shuffle": _BLOSC_SHUFFLES[min(shuffle, 2)],
        "typesize": size if 1 <= size <= 255 else 1,
        "blocksize": 0,
    }


def require_filtered_edges(dataset: h5py.Dataset, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> None:
    """Raise if the filters were not applied to the chunks at the edge, which the filter mask does not show.

    With a compressor, zarr would raise an error when it reads such a chunk. With shuffle alone, it would return wrong
    numbers.
    """
    codes = {code for code, _, _ in _filters(dataset)}
    if not codes or not codes <= _BUILT_IN:
        return
    raw_nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    for place in _edges(dataset, (offsets != MISSING) & (lengths == raw_nbytes)):
        start = tuple(at * size for at, size in zip(place, dataset.chunks, strict=True))
        stop = tuple(min(at + size, end) for at, size, end in zip(start, dataset.chunks, dataset.shape, strict=True))
        within = tuple(slice(0, last - first) for first, last in zip(start, stop, strict=True))
        values = dataset[tuple(map(slice, start, stop))].tobytes()
        stored = np.frombuffer(dataset.id.read_direct_chunk(start)[1], "u1")
        is_plain = _cut(stored, dataset, within) == values
        if not is_plain:
            return
        if codes != {h5py.h5z.FILTER_SHUFFLE} or _cut(_unshuffled(stored, dataset), dataset, within) != values:
            raise CannotBeReadError("chunks at its edge that the filters were not applied to")


def _edges(dataset: h5py.Dataset, candidates: NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    """Yield the positions of the candidates that extend beyond the shape."""
    for axis, (size, chunk) in enumerate(zip(dataset.shape, dataset.chunks, strict=True)):
        if size % chunk:
            last = np.take(candidates, [-1], axis)
            for place in np.argwhere(last).tolist():
                yield (*place[:axis], candidates.shape[axis] - 1, *place[axis + 1 :])


def _cut(stored: NDArray[np.uint8], dataset: h5py.Dataset, within: tuple[slice, ...]) -> bytes:
    cut: Any = stored.view(f"V{dataset.dtype.itemsize}").reshape(dataset.chunks)[within]
    return bytes(cut.tobytes())


def _unshuffled(stored: NDArray[np.uint8], dataset: h5py.Dataset) -> NDArray[np.uint8]:
    return np.ascontiguousarray(stored.reshape(dataset.dtype.itemsize, -1).T).ravel()
