"""Decide which data type of Zarr the values of an HDF5 dataset have, and whether zarr can decode their bytes.

Zarr decodes the bytes of a file if they are those of a NumPy array. Other values are converted: texts of a variable
length, texts that are padded with blanks, references to objects, and numbers of a form that NumPy does not have.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import h5py
import numpy as np

from parts_store.adoption.description import TEXT, CannotBeReadError

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
