"""Load the values of HDF5 datasets whose bytes zarr cannot decode, up to a stated size."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, TEXT, CannotBeReadError, Chunked, NoReferenceError
from parts_store.adoption.encoding import encode_chunk
from parts_store.adoption.formats.hdf5.chunks import is_listed_right
from parts_store.adoption.formats.hdf5.fill_values import fill_element, zero
from parts_store.adoption.formats.hdf5.object_paths import ObjectPaths

MAX_LOADED: Final = 1 << 25
"""The largest number of bytes that is loaded of a dataset."""
MAX_LOADED_IN_FILE: Final = 1 << 28
"""The largest number of bytes that is loaded of all datasets of a file."""
# Texts and references are read in batches that need at most this much memory, even if each is as long as the file.
_MAX_BATCH: Final = 1 << 30
_MOST_IN_BATCH: Final = 1 << 16
# The path of each object that is referred to has to be looked up.
_MOST_REFERENCES: Final = 1 << 18


@dataclass(slots=True)
class Loader:
    """Loads datasets of one file of `nbytes` bytes, and counts the bytes."""

    nbytes: int
    paths: ObjectPaths
    loaded: int = 0

    def require_small(self, dataset: h5py.Dataset, reason: str) -> None:
        """Raise `CannotBeReadError`, with the reason for loading a dataset, if it is too large."""
        # A text of a variable length takes twice as much in the file as a pointer.
        itemsize = dataset.dtype.itemsize * (2 if dataset.dtype.hasobject else 1)
        self._require_small(dataset.size * itemsize, reason)
        if dataset.chunks is not None:
            self._require_small(math.prod(dataset.chunks) * itemsize, f"{reason}, in large chunks")

    def load(self, dataset: h5py.Dataset, reason: str) -> tuple[NDArray[Any], Any]:
        """Return the values of a small dataset, and its fill value, as zarr can store them, with little-endian numbers.

        Raises `CannotBeReadError` with the reason for loading them if their texts are too large.
        """
        read = self._read(dataset, reason)
        element = fill_element(dataset)
        if element is None:
            values = _plain(read, dataset.dtype, self.paths)
            filled = zero(values.dtype)
        else:
            # Converted together, because texts may become bytes of the length of the longest.
            both = np.concatenate([read.reshape(-1, *element.shape[1:]), element])
            converted = _plain(both, dataset.dtype, self.paths)
            values, filled = converted[:-1].reshape(read.shape), converted[-1]
        self.loaded += values.nbytes
        return values, filled

    def with_encoded(self, dataset: h5py.Dataset, array: Chunked, places: Sequence[tuple[int, ...]]) -> Chunked:
        """Return an array in which the chunks at these places of the file's grid are encoded again."""
        reason = f"{len(places):,} chunks that filters were left out of, or that end beyond the dataset"
        self._require_small(len(places) * math.prod(array.chunk_shape) * array.header.dtype.itemsize, reason)
        offsets, lengths = array.offsets.copy(), array.lengths.copy()
        encoded = {}
        for place in places:
            block = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, dataset.chunks, strict=True))
            values = np.asarray(dataset[block])
            chunk = np.full(array.chunk_shape, array.header.fill_value, array.header.dtype)
            chunk[tuple(map(slice, values.shape))] = values
            where = (*place, *[0] * (len(array.chunk_shape) - len(place)))
            offsets[where] = lengths[where] = MISSING
            encoded[where] = _encoded(array, chunk)
            self.loaded += chunk.nbytes
        return replace(array, offsets=offsets, lengths=lengths, encoded=encoded, note=f"{reason} are encoded again")

    def extended(self, values: NDArray[Any], shape: tuple[int, ...], fill_value: Any, reason: str) -> NDArray[Any]:
        """Return values in an array of a larger shape, with the fill value behind them."""
        self._require_small(math.prod(shape) * values.dtype.itemsize, reason)
        found = np.full(shape, fill_value, values.dtype)
        found[tuple(map(slice, values.shape))] = values
        return found

    def _require_small(self, nbytes: int, reason: str) -> None:
        if nbytes > MAX_LOADED:
            raise CannotBeReadError(f"{reason}; {nbytes:,} bytes, and at most {MAX_LOADED:,} are loaded of a dataset")
        if self.loaded + nbytes > MAX_LOADED_IN_FILE:
            raise CannotBeReadError(f"{reason}; {MAX_LOADED_IN_FILE:,} bytes of the file were loaded before")

    def _read(self, dataset: h5py.Dataset, reason: str) -> NDArray[Any]:
        """Return the values of a dataset as h5py reads them. It makes objects of texts and references."""
        if not dataset.dtype.hasobject:
            return np.asarray(dataset[()])
        found = np.empty(dataset.shape, dataset.dtype)
        nbytes = 0
        most = max(1, min(_MOST_IN_BATCH, _MAX_BATCH // max(1, self.nbytes)))
        blocks = _blocks(dataset.shape, most)
        # The HDF5 library cannot fill in texts of a variable length in a file that it may not write.
        is_listed = dataset.chunks is not None and is_listed_right(dataset)
        if is_listed and (element := fill_element(dataset)) is not None:
            found[...] = element[0]
            blocks = _written_blocks(dataset, most)
        for block in blocks:
            # Of a dataset without axes, an empty index would return an object, not an array.
            found[block or ...] = dataset[block]
            nbytes += _nbytes_of_objects(found[block or ...])
            self._require_small(nbytes, reason)
        self.loaded += nbytes
        return found


def _encoded(array: Chunked, values: NDArray[Any]) -> bytes:
    try:
        return encode_chunk(array.header, array.chunk_shape, array.codecs, values)
    # Each codec has its own errors for what it cannot encode.
    except Exception as error:
        raise NoReferenceError(f"a chunk that cannot be encoded again: {type(error).__name__}") from error


def _blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield blocks that make up an array, each with at most this number of elements."""
    if math.prod(shape) <= most:
        yield tuple(slice(0, length) for length in shape)
        return
    row = math.prod(shape[1:])
    if row <= most:
        step = most // row
        for start in range(0, shape[0], step):
            yield (slice(start, min(start + step, shape[0])), *(slice(0, length) for length in shape[1:]))
        return
    for start in range(shape[0]):
        for rest in _blocks(shape[1:], most):
            yield (slice(start, start + 1), *rest)


def _written_blocks(dataset: h5py.Dataset, most: int) -> Iterator[tuple[slice, ...]]:
    """Yield blocks that make up the chunks of a dataset that were written, each with at most so many elements."""
    for number in range(dataset.id.get_num_chunks()):
        start = dataset.id.get_chunk_info(number).chunk_offset
        shape = [min(size, end - at) for at, size, end in zip(start, dataset.chunks, dataset.shape, strict=True)]
        # HDF5 keeps chunks beyond the shape if the dataset was larger before.
        if min(shape) > 0:
            for block in _blocks(tuple(shape), most):
                yield tuple(slice(at + each.start, at + each.stop) for at, each in zip(start, block, strict=True))


def _nbytes_of_objects(values: NDArray[Any]) -> int:
    if values.dtype.names is not None:
        return sum(_nbytes_of_objects(values[name]) for name in values.dtype.names)
    return sum(len(each) for each in values.ravel() if isinstance(each, bytes)) if values.dtype.hasobject else 0


def _plain(values: NDArray[Any], dtype: np.dtype[Any], paths: ObjectPaths) -> NDArray[Any]:
    """Return values that h5py has read with this data type, as zarr can store them."""
    if dtype.subdtype is not None:
        return _plain(values, dtype.base, paths)
    if dtype.names is not None:
        return _with_fields({name: _plain(values[name], dtype[name], paths) for name in dtype.names}, values.shape)
    if h5py.check_ref_dtype(dtype) is not None:
        if values.size > _MOST_REFERENCES:
            raise CannotBeReadError(f"{values.size:,} references to objects, and at most {_MOST_REFERENCES:,} are read")
        return _mapped(values, paths.path_of)
    if not dtype.hasobject:
        return np.asarray(values, np.dtype(dtype.str).newbyteorder("<"))
    try:
        return _mapped(values, lambda each: each.decode() if isinstance(each, bytes) else str(each))
    except UnicodeDecodeError:
        return _fixed_length(values)


def _with_fields(fields: dict[str, NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a compound type, whose fields are one after the other."""
    parts = {}
    for name, field in fields.items():
        # A compound type of Zarr has no texts of variable lengths.
        part = _fixed_length(field) if field.dtype == TEXT else field
        while part.ndim > len(shape):
            # Zarr has no fields with several elements: each becomes a field.
            part = _with_fields({str(at): part[..., at] for at in range(part.shape[-1])}, part.shape[:-1])
        parts[name] = part
    made = np.empty(shape, [(name, each.dtype) for name, each in parts.items()])
    for name, each in parts.items():
        made[name] = each
    return made


def _mapped(values: NDArray[Any], convert: Callable[[Any], str]) -> NDArray[Any]:
    found = np.empty(values.shape, TEXT)
    for index, each in np.ndenumerate(values):
        found[index] = convert(each)
    return found


def _fixed_length(texts: NDArray[Any]) -> NDArray[Any]:
    """Return texts or bytes as bytes of the length of the longest."""
    found = [each if isinstance(each, bytes) else each.encode() for each in texts.ravel().tolist()]
    nbytes = len(found) * max(map(len, found), default=0)
    if nbytes > MAX_LOADED:
        raise CannotBeReadError(f"texts of a fixed length would have {nbytes:,} bytes, and at most {MAX_LOADED:,}")
    return np.asarray(found or [b""], "S")[: texts.size].reshape(texts.shape)
