"""Find the fill values of HDF5 datasets, and whether zarr fills in the same."""

from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.adoption.description import MISSING, TEXT, CannotBeReadError, Chunked, NoReferenceError
from parts_store.adoption.formats.hdf5.types import StoredType

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
