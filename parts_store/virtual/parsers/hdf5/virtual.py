"""Describe virtual HDF5 datasets: their chunks are those of datasets in other files, or in the same one.

Sources are opened here, and not by the HDF5 library: only where references are allowed.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import h5py
import numpy as np

from parts_store.virtual.description import (
    MISSING,
    Array,
    CannotBeReadError,
    Chunked,
    Contiguous,
    Header,
    Json,
    rows_of_file,
)
from parts_store.virtual.parsers.hdf5.attributes import shown

type Shape = tuple[int, ...]
type Describe = Callable[[str, str], tuple[Array, str]]
"""Return the dataset at a path of a file, given the name of the file, and the location of that file."""

# The largest numbers of chunks and of sources, and of bytes in a chunk.
_MAX_CHUNKS: Final = 1 << 24
_MAX_SOURCES: Final = 1 << 12
_MAX_NBYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True, eq=False)
class _MappedSource:
    """A source on the axes of the virtual dataset: its place there, and its chunks."""

    start: Shape
    shape: Shape
    chunk_shape: Shape
    codecs: tuple[Json, ...]
    location: str
    offsets: Any
    lengths: Any


def describe_virtual(dataset: h5py.Dataset, header: Header, describe: Describe) -> Chunked:
    """Return a virtual dataset as an array; raise `CannotBeReadError` unless its sources make up one grid of chunks."""
    mapped = dataset.virtual_sources()
    if len(mapped) > _MAX_SOURCES:
        raise CannotBeReadError(
            f"a virtual dataset of {len(mapped):,} sources, and at most {_MAX_SOURCES:,} are opened"
        )
    sources = [_source(each, header, describe) for each in mapped]
    if not sources:
        raise CannotBeReadError("a virtual dataset without sources")
    first = sources[0]
    grid = tuple(-(-size // chunk) for size, chunk in zip(header.shape, first.chunk_shape, strict=True))
    if math.prod(grid) > _MAX_CHUNKS:
        raise CannotBeReadError(f"{math.prod(grid):,} chunks, and at most {_MAX_CHUNKS:,} can be listed")
    offsets, lengths = (np.full(grid, MISSING, np.uint64) for _ in range(2))
    locations = np.full(grid, "", np.dtypes.StringDType())
    is_covered = np.zeros(grid, bool)
    for each in sources:
        if (each.chunk_shape, each.codecs) != (first.chunk_shape, first.codecs):
            raise _not_regular("its sources have different chunks or filters")
        block = tuple(_chunks_along(each, header.shape))
        if is_covered[block].any():
            raise _not_regular("two of its sources overlap")
        is_covered[block] = True
        offsets[block], lengths[block] = each.offsets, each.lengths
        locations[block] = np.where(each.offsets == MISSING, "", each.location)
    return Chunked(header, first.chunk_shape, first.codecs, offsets, lengths, locations=locations)


def _source(mapped: Any, header: Header, describe: Describe) -> _MappedSource:
    """Return a source of a virtual dataset, with the axes of the virtual dataset."""
    if "%" in mapped.file_name or "%" in mapped.dset_name:
        raise _not_regular("the names of its sources are a pattern")
    start, shape = _block(mapped.vspace, header.shape)
    array, location = describe(mapped.file_name, mapped.dset_name)
    found = array.header
    src_start, src_shape = _block(mapped.src_space, found.shape)
    if any(src_start) or src_shape != found.shape:
        raise _not_regular(f"it has a part of {shown(mapped.dset_name)!r}")
    if found.dtype != header.dtype:
        raise _not_regular(f"a source has the data type {found.dtype}, and not {header.dtype}")
    match array:
        case Chunked(chunk_shape=chunk_shape, codecs=codecs, encoded={}, locations=None):
            offsets, lengths = array.offsets, array.lengths
            is_missing = (offsets == MISSING).any()
            if is_missing and np.asarray(found.fill_value).tobytes() != np.asarray(header.fill_value).tobytes():
                raise _not_regular("a source has another fill value")
        case Contiguous(offset=offset, location=None):
            chunk_shape, columns = rows_of_file(location, offset, found.shape, found.dtype.itemsize)
            codecs, offsets, lengths = (), columns.offsets, columns.lengths
        case _:
            raise _not_regular(f"zarr cannot decode {shown(mapped.dset_name)!r}")
    if math.prod(chunk_shape) * found.dtype.itemsize > _MAX_NBYTES:
        raise _not_regular(f"a chunk of a source has more than {_MAX_NBYTES:,} bytes")
    chunk_shape = _with_axes_of(shape, found.shape, chunk_shape)
    grid = tuple(-(-size // chunk) for size, chunk in zip(shape, chunk_shape, strict=True))
    return _MappedSource(start, shape, chunk_shape, codecs, location, offsets.reshape(grid), lengths.reshape(grid))


def _block(space: h5py.h5s.SpaceID, shape: Shape) -> tuple[Shape, Shape]:
    """Return the first element and the shape of a selection; raise unless it is one block."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return (0,) * len(shape), shape
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise _not_regular("a source is not one block of it")
    start, stride, count, block = space.get_regular_hyperslab()
    for each in zip(stride, count, block, strict=True):
        if h5py.h5s.UNLIMITED in each[1:] or (each[1] > 1 and each[0] != each[2]):
            raise _not_regular("a source is not one block of it, or has no end")
    return tuple(map(int, start)), tuple(int(one * other) for one, other in zip(count, block, strict=True))


def _with_axes_of(shape: Shape, own_shape: Shape, chunk_shape: Shape) -> Shape:
    """Return the shape of the chunks on the axes of the virtual dataset, which may have other axes of length 1."""
    own = [(length, chunk) for length, chunk in zip(own_shape, chunk_shape, strict=True) if (length, chunk) != (1, 1)]
    if [length for length in shape if length != 1] != [length for length, _ in own]:
        raise _not_regular(f"a source of the shape {own_shape} is mapped to {shape}")
    chunks = iter(own)
    return tuple(1 if length == 1 else next(chunks)[1] for length in shape)


def _chunks_along(source: _MappedSource, shape: Shape) -> Iterator[slice]:
    """Yield which chunks of the virtual dataset a source has along each axis."""
    for at, length, chunk, size in zip(source.start, source.shape, source.chunk_shape, shape, strict=True):
        stop = at + length
        if at % chunk or (stop % chunk and stop != size) or stop > size:
            raise _not_regular("a source does not begin and end with a chunk")
        yield slice(at // chunk, -(-stop // chunk))


def _not_regular(problem: str) -> CannotBeReadError:
    return CannotBeReadError(f"a virtual dataset that is no grid of chunks: {problem}")
