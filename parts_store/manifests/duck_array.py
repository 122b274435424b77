"""DuckArray: the methods by which NumPy and xarray use an array of references as an array."""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, override

import numpy as np
import xarray as xr
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray
from virtualizarr.manifests import ManifestArray

from parts_store._compat.xarray import FillValueCoder, LoadableArray
from parts_store._compat.zarr import ArrayV3Metadata, is_converted_by_zarr
from parts_store.errors import ManifestError, describe

# The functions by which xarray compares variables. They read the values.
_COMPARING: Final = frozenset(
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isnan, np.isnat)
)


def _needs_values(function: str) -> TypeError:
    return TypeError(f"{function} needs the values of a PartsArray, which are not in memory: call `.load()` first")


class DuckArray(NDArrayOperatorsMixin, LoadableArray, ABC):
    """An array for NumPy and xarray whose values are not in memory.

    Comparisons read the values, as xarray needs it to compare variables. Arithmetic and other functions that need
    values raise `TypeError`: a result in memory, of an array of any size, is only made if the caller asks for it.

    It has no attribute `chunks`: xarray takes every array with this attribute for one of dask or of another library
    with a chunk manager.
    """

    @property
    @abstractmethod
    def metadata(self) -> ArrayV3Metadata:
        """The metadata of the array."""

    @abstractmethod
    def load(self) -> NDArray[Any]:
        """Return the values."""

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        if is_converted_by_zarr():
            raise AttributeError("zarr converts an array without a shape to NumPy before it writes the array")
        return self.metadata.shape

    @property
    @override
    def dtype(self) -> np.dtype[Any]:
        """The data type of the values."""
        return self.metadata.data_type.to_native_dtype()

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values in memory."""
        return self.size * self.dtype.itemsize

    # --- values ---------------------------------------------------------------------------------------------------

    @override
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("cannot return the values of a PartsArray without a copy: they are read from files")
        values = self.load()
        return values if dtype is None else values.astype(dtype, copy=False)

    def to_numpy(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `to_numpy`."""
        return self.load()

    @override
    def get_duck_array(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `load`, `compute` and `to_zarr`."""
        return self.load()

    async def async_get_duck_array(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `load_async`."""
        return await asyncio.to_thread(self.load)

    def astype(self, dtype: DTypeLike, /, *, copy: bool = True) -> Self | NDArray[Any]:
        """Return the array itself, or, for another data type, the values, converted. xarray calls this.

        Parameters
        ----------
        dtype : data type
            The data type of the result. Text of no length stands for text of any length.
        copy : bool
            Whether to copy values that have the data type. The array itself is immutable, and is not copied.
        """
        wanted = np.dtype(dtype)
        is_any_length = wanted.kind in "SU" and wanted.itemsize == 0
        if wanted == self.dtype or (is_any_length and wanted.kind == self.dtype.kind):
            return self
        return self.load().astype(wanted, copy=copy)

    def transpose(self, *axes: Any) -> Self:
        """Return the array itself; raise `ManifestError` if the axes would change their order. xarray calls this.

        Parameters
        ----------
        axes : int or sequence of int
            The axes in the order of the result.
        """
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        if (list(order) if order else [*reversed(range(self.ndim))]) != [*range(self.ndim)]:
            raise ManifestError("transpose", "the axes in their order; load the values for any other", str(order))
        return self

    # --- functions ------------------------------------------------------------------------------------------------

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        from parts_store.manifests.numpy_functions import HANDLERS  # noqa: PLC0415 (imports this module)

        if not all(issubclass(each, DuckArray | ManifestArray | np.ndarray) for each in types):
            return NotImplemented
        handler = HANDLERS.get(function)
        if handler is None:
            raise _needs_values(f"{function.__module__}.{function.__name__}")
        return handler(*args, **kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc not in _COMPARING or method != "__call__" or kwargs:
            raise _needs_values(f"numpy.{ufunc.__name__}")
        if ufunc in (np.equal, np.not_equal):
            other = inputs[1] if inputs[0] is self else inputs[0]
            return self == other if ufunc is np.equal else self != other
        return ufunc(*(each.load() if isinstance(each, DuckArray) else each for each in inputs))

    # --- xarray ---------------------------------------------------------------------------------------------------

    def to_virtual_variable(self) -> xr.Variable:
        """Return a variable of xarray that wraps the array, with its dimension names and attributes. Nothing is read.

        Returns
        -------
        xarray.Variable
            The variable, as `xarray.open_zarr(..., decode_cf=False)` would return it.

        Raises
        ------
        ManifestError
            If an axis has no name.
        """
        names = self.metadata.dimension_names or ()
        if len(names) != self.ndim or None in names:
            raise ManifestError("dimension names", f"{self.ndim} names, one for each axis", str(names))
        attributes = dict(self.metadata.attributes)
        if "_FillValue" in attributes:
            attributes["_FillValue"] = _decoded_fill(attributes["_FillValue"], self.metadata)
        return xr.Variable(names, self, attributes)


def _decoded_fill(value: Any, metadata: ArrayV3Metadata) -> Any:
    """Return `_FillValue` as xarray has it in memory; Zarr stores floating-point numbers and bytes as base64."""
    dtype = metadata.data_type.to_native_dtype()
    if not isinstance(value, str | list) or dtype.kind not in "fcS":
        return value
    try:
        return FillValueCoder.decode(value, dtype)
    except (TypeError, ValueError, struct.error) as error:
        raise ManifestError(
            "attribute '_FillValue'", f"a value of the type {dtype} in base64", describe(value)
        ) from error
