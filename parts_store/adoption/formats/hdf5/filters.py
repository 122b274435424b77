"""The filters of HDF5 datasets as codecs of Zarr; those that it has none for are named."""

import math
from collections.abc import Iterator
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, CannotBeReadError, Json

_BZIP2, _BLOSC, _LZ4, _ZSTD = 307, 32001, 32004, 32015
_UNKNOWN: Final = {
    h5py.h5z.FILTER_SZIP: "szip",
    h5py.h5z.FILTER_NBIT: "nbit",
    h5py.h5z.FILTER_SCALEOFFSET: "scaleoffset",
    _LZ4: "lz4, in a frame of HDF5's own",
}
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
# Filters that HDF5 always has.
_BUILT_IN: Final = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


def codecs_of(dataset: h5py.Dataset, mask: int) -> Iterator[Json]:
    """Zarr's codecs for the filters of a dataset, in their order, without those that the mask says were left out."""
    # How many bytes a filter is given, as far as that is known.
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
    """The codec for a filter. How much it compresses is only for writing: what does not fit there is left out."""
    first = values[0] if values else -1
    match code:
        case h5py.h5z.FILTER_DEFLATE:
            return {"name": "numcodecs.zlib", "configuration": {"level": first if 0 <= first <= 9 else 1}}
        case h5py.h5z.FILTER_SHUFFLE:
            if first < 1:
                raise CannotBeReadError("the filter shuffle does not say of how many bytes")
            return {"name": "numcodecs.shuffle", "configuration": {"elementsize": first}}
        case h5py.h5z.FILTER_FLETCHER32:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case _ if code == _ZSTD:
            return {"name": "zstd", "configuration": {"level": first if 0 <= first <= 22 else 0, "checksum": False}}
        case _ if code == _BZIP2:
            return {"name": "numcodecs.bz2", "configuration": {"level": first if 1 <= first <= 9 else 9}}
        case _ if code == _BLOSC:
            return {"name": "blosc", "configuration": _blosc(values, itemsize)}
    name = _UNKNOWN.get(code) or label.decode(errors="replace") or "without a name"
    raise CannotBeReadError(f"a filter that Zarr has no codec for: {name} (number {code})")


def _blosc(values: tuple[int, ...], itemsize: int) -> Json:
    """What chunks are made of is said by each itself; this is for writing."""
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
    """Raise if the filters were not applied to the chunks at the edge: HDF5 can do so, and its mask does not say it.

    With a compressor Zarr would raise when it reads them; with shuffle alone it would read other numbers.
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
    """The candidates that reach beyond the shape."""
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
