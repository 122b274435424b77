"""Find the data type, the fill value and the values of HDF5 datasets in Zarr.

Zarr decodes the bytes of a file if they are those of a NumPy array. Other values are converted, and loaded up to a
stated size: texts of a variable length, texts that are padded with blanks, references to objects, and numbers of a form
that NumPy does not have.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.virtual.description import MISSING, TEXT, CannotBeReadError, ChunkCodec, Chunked, NoReferenceError
from parts_store.virtual.parsers.hdf5.attributes import ObjectPaths
from parts_store.virtual.parsers.hdf5.chunks import is_listed_right

# The largest numbers that Zarr has types for, in bytes.
_LARGEST: Final = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
# The largest number of elements in a field of a compound type, each of which becomes a field.
_MOST_ELEMENTS: Final = 64


@dataclass(frozen=True, slots=True)
class StoredType:
    """The data type of a dataset in Zarr."""

    # In the byte order of the file, if its bytes can be decoded.
    dtype: np.dtype[Any]
    # The lengths of the axes that each element has itself.
    shape: tuple[int, ...] = ()
    # Why the values have to be converted; None if zarr can decode the bytes.
    conversion: str | None = None


def stored_type(dataset: h5py.Dataset) -> StoredType:
    """Return the data type in Zarr for the values of a dataset; raise `CannotBeReadError` if Zarr has none."""
    return _stored(dataset.dtype, dataset.id.get_type())


def _stored(dtype: np.dtype[Any], file_type: h5py.h5t.TypeID) -> StoredType:
    if (text := h5py.check_string_dtype(dtype)) is not None:
        return _stored_text(text.length, file_type)
    if h5py.check_ref_dtype(dtype) is h5py.Reference:
        return StoredType(TEXT, conversion="references to objects, as their paths")
    if dtype.subdtype is not None and isinstance(file_type, h5py.h5t.TypeArrayID):
        base, shape = dtype.subdtype
        inner = _stored(base, file_type.get_super())
        return StoredType(inner.dtype, (*shape, *inner.shape), inner.conversion)
    if dtype.names is not None:
        return _stored_fields(dtype, file_type)
    if dtype.kind in "VMm" and dtype.itemsize and not h5py.check_ref_dtype(dtype):
        return StoredType(np.dtype(dtype.str))
    return _stored_number(dtype, file_type)


def _stored_text(length: int | None, file_type: h5py.h5t.TypeID) -> StoredType:
    if length is None:
        return StoredType(TEXT, conversion="texts of a variable length")
    dtype = np.dtype(f"S{length}")
    match file_type.get_strpad():
        case h5py.h5t.STR_NULLPAD:
            return StoredType(dtype)
        case h5py.h5t.STR_NULLTERM if length == 1:
            return StoredType(dtype)
        case h5py.h5t.STR_NULLTERM:
            # Anything may be after the zero byte.
            return StoredType(dtype, conversion="texts that end with a zero byte")
    return StoredType(dtype, conversion="texts that are padded with blanks")


def _stored_fields(dtype: np.dtype[Any], file_type: h5py.h5t.TypeID) -> StoredType:
    """Return the type of a compound, whose fields are one after the other without gaps."""
    fields: list[tuple[str, np.dtype[Any]]] = []
    conversion: str | None = None
    end = 0
    for number, name in enumerate(dtype.names or ()):
        field = _stored(dtype[name], file_type.get_member_type(number))
        # The length of the longest text becomes known with the values.
        element = np.dtype("S1") if field.dtype == TEXT else field.dtype
        fields.append((name, _elements(name, element, field.shape)))
        if field.conversion is not None:
            conversion = f"{field.conversion}, in the field {name!r}"
        elif file_type.get_member_offset(number) != end:
            conversion = conversion or "a compound type with gaps"
        end += fields[-1][1].itemsize
    packed = np.dtype(fields)
    if conversion is None and file_type.get_size() != end:
        conversion = "a compound type with gaps"
    if conversion is None and packed not in (packed.newbyteorder("<"), packed.newbyteorder(">")):
        conversion = "a compound type in two byte orders"
    return StoredType(packed if conversion is None else packed.newbyteorder("<"), conversion=conversion)


def _elements(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """Return the type of a field with several elements: one field for each, because Zarr has no such type."""
    if math.prod(shape) > _MOST_ELEMENTS:
        raise CannotBeReadError(f"a compound type with a field of {math.prod(shape):,} elements: {name!r}")
    for length in reversed(shape):
        dtype = np.dtype([(str(number), dtype) for number in range(length)])
    return dtype


def _stored_number(dtype: np.dtype[Any], file_type: h5py.h5t.TypeID) -> StoredType:
    if dtype.kind not in _LARGEST or (dtype.metadata and {"vlen", "ref"} & set(dtype.metadata)):
        raise CannotBeReadError(f"values of a type that Zarr has none for: {_name_of(dtype)}")
    if dtype.itemsize > _LARGEST[dtype.kind]:
        raise CannotBeReadError(f"numbers of {dtype.itemsize} bytes, which Zarr has no type for")
    # Without the names of an enumeration.
    plain = np.dtype(dtype.str)
    if isinstance(file_type, h5py.h5t.TypeEnumID):
        expected, file_type = h5py.h5t.py_create(np.dtype("i1") if dtype.kind == "b" else plain), file_type.get_super()
    elif dtype.kind == "c" and file_type.get_class() != h5py.h5t.COMPOUND:
        part = h5py.h5t.py_create(np.dtype(f"{plain.byteorder}f{plain.itemsize // 2}"))
        expected, file_type = part, file_type.get_super()
    else:
        expected = h5py.h5t.py_create(plain)
    if expected.equal(file_type):
        return StoredType(plain)
    return StoredType(plain.newbyteorder("<"), conversion=f"numbers of a size or form of their own, as {plain.name}")


def _name_of(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "lists of different lengths"
    return "references to regions" if h5py.check_ref_dtype(dtype) is not None else str(dtype)


# The largest fill value that is read, in bytes.
_MOST_NBYTES: Final = 1 << 20


def has_no_fill_value(dataset: h5py.Dataset) -> bool:
    """Return whether HDF5 does not fill in anything where a dataset was not written."""
    return bool(dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED)


def fill_value_of(dataset: h5py.Dataset, stored: StoredType) -> Any:
    """Return the fill value of a dataset in Zarr; that of values that are converted becomes known with the values."""
    if stored.conversion is not None or _is_zero(dataset):
        return zero(stored.dtype)
    if stored.shape:
        element = fill_element(dataset)
        return element.ravel()[0] if element is not None and _is_uniform(element) else zero(stored.dtype)
    if stored.dtype.names is not None:
        # The same bytes: NumPy would cast a field with several elements by repeating the first one, or not at all.
        return np.frombuffer(np.asarray(dataset.fillvalue, dataset.dtype).tobytes(), stored.dtype)[0]
    return dataset.fillvalue


def fill_element(dataset: h5py.Dataset) -> NDArray[Any] | None:
    """Return an array of one element that was not written, as h5py reads it; None if it is zero.

    h5py reads it from a dataset of the same type that nothing was written to, because it cannot return fill values of
    some types in another way.
    """
    if _is_zero(dataset):
        return None
    plist = dataset.id.get_create_plist()
    if dataset.dtype.itemsize > _MOST_NBYTES:
        raise CannotBeReadError(f"a fill value of {dataset.dtype.itemsize:,} bytes, and at most {_MOST_NBYTES:,}")
    for code in [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]:
        plist.remove_filter(code)
    plist.set_chunk((1,))
    with h5py.File.in_memory() as file:
        space = h5py.h5s.create_simple((1,))
        empty = h5py.h5d.create(file.id, b"a", dataset.id.get_type().copy(), space, plist)
        return np.asarray(h5py.Dataset(empty)[...])


def _is_zero(dataset: h5py.Dataset) -> bool:
    """Return whether HDF5 returns zeros for values that were not written: also if it does not fill in anything."""
    plist = dataset.id.get_create_plist()
    is_never = plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    is_defined = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    return is_never or not is_defined or dataset.shape is None


def zero(dtype: np.dtype[Any]) -> Any:
    """Return the value whose bytes are zero, or an empty text."""
    return "" if dtype == TEXT else np.zeros((), dtype)[()]


def require_fill_value(array: Chunked, dataset: h5py.Dataset) -> None:
    """Raise `NoReferenceError` if chunks are missing, and zarr would fill in other values than HDF5."""
    header = array.header
    if not (array.offsets == MISSING).any() and header.shape[: len(dataset.shape)] == dataset.shape:
        return
    if not header.keeps_fill_value:
        raise NoReferenceError("chunks that are missing, and a fill value that zarr does not keep: a NaN of its own")
    if len(header.shape) > len(dataset.shape):
        element = fill_element(dataset)
        if element is not None and not _is_uniform(element):
            raise NoReferenceError("chunks that are missing, and a fill value that is not the same for all elements")


def _is_uniform(element: NDArray[Any]) -> bool:
    """Return whether all elements of an array have the same bytes."""
    return len({each.tobytes() for each in element.ravel()}) == 1


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
        codec, encoded = ChunkCodec.of(array), {}
        for place in places:
            block = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, dataset.chunks, strict=True))
            values = np.asarray(dataset[block])
            chunk = np.full(array.chunk_shape, array.header.fill_value, array.header.dtype)
            chunk[tuple(map(slice, values.shape))] = values
            where = (*place, *[0] * (len(array.chunk_shape) - len(place)))
            offsets[where] = lengths[where] = MISSING
            encoded[where] = codec.encode(chunk)
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
