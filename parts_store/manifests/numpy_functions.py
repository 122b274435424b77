"""NumPy functions for arrays of references: those that need no values, and those by which xarray merges variables."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from virtualizarr.manifests import ManifestArray

from parts_store.errors import ManifestError, describe
from parts_store.format.parts import ConcatParts
from parts_store.manifests import combining
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References


def _arrays(arrays: Any, subject: str) -> list[PartsArray]:
    found = []
    for each in arrays:
        if isinstance(each, ManifestArray):
            found.append(PartsArray.from_manifest_array(each))
        elif isinstance(each, PartsArray):
            found.append(each)
        else:
            raise ManifestError(subject, "arrays of references only", f"an object of type {type(each).__name__}")
    if not found:
        raise ManifestError(subject, "at least one array", "none")
    return found


def _combine(
    function: Callable[[Sequence[References], int, Sequence[str]], References],
    arrays: Any,
    axis: Any = 0,
    out: Any = None,
    **others: Any,
) -> PartsArray:
    """Return the combination of arrays, with the parts that they declare and the registries of all of them."""
    subject = function.__name__
    others.pop("casting", None)
    others |= {"out": out}
    if not isinstance(axis, int | np.integer) or any(value is not None for value in others.values()):
        raise ManifestError(subject, "an axis, and no other arguments", describe({"axis": axis, **others}))
    found = _arrays(arrays, subject)
    parts = _same_parts(found, subject)
    references = function([each.references for each in found], int(axis), [each.name for each in found])
    registries = tuple({id(each): each for array in found for each in array.registries}.values())
    return PartsArray.of(references, parts, registries, found[0].name)


def _same_parts(arrays: Sequence[PartsArray], subject: str) -> ConcatParts | None:
    """Return the parts that arrays declare, None if no array does; raise `ManifestError` if they differ."""
    declared = [each.declared_parts for each in arrays if each.declared_parts is not None]
    for parts in declared[1:]:
        if parts != declared[0]:
            expected, found = ([(each.key_suffix, each.size) for each in both.parts] for both in (declared[0], parts))
            raise ManifestError(subject, f"the parts {expected}", str(found))
    return declared[0] if declared else None


def _expand_dims(a: PartsArray, axis: Any) -> PartsArray:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return a.derive(combining.expand_dims(a.references, [int(each) for each in axes]), a.declared_parts)


def _broadcast_to(array: PartsArray, shape: Any, subok: bool = False) -> PartsArray:  # noqa: ARG001
    lengths = (shape,) if isinstance(shape, int | np.integer) else shape
    references = combining.broadcast_to(array.references, tuple(int(each) for each in lengths))
    return array.derive(references, array.declared_parts)


def _result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the data type of a result, as NumPy does it; raise `ManifestError` if references had to be cast."""
    virtual = [each for each in arrays_and_dtypes if isinstance(each, PartsArray | ManifestArray)]
    for each in virtual:
        if each.dtype != virtual[0].dtype:
            expected = f"the data type {virtual[0].dtype}, because references cannot be cast"
            raise ManifestError("result_type", expected, str(each.dtype))
    return np.result_type(
        *(each.dtype if isinstance(each, PartsArray | ManifestArray) else each for each in arrays_and_dtypes)
    )


def _full_like(a: PartsArray, fill_value: Any, dtype: Any = None, **others: Any) -> NDArray[Any]:
    shape = a.shape if others.get("shape") is None else others["shape"]
    return np.full(shape, fill_value, a.dtype if dtype is None else dtype)


def _where(*args: Any) -> Any:
    """Return the values that a condition selects. xarray calls this to merge variables, and for `fillna`."""
    return np.where(*(each.load() if isinstance(each, PartsArray) else each for each in args))


def _reshape(a: PartsArray, /, *args: Any, **others: Any) -> NDArray[Any]:
    """Return the values in another shape. xarray calls this to encode times."""
    return np.reshape(a.load(), *args, **others)


HANDLERS: dict[Any, Callable[..., Any]] = {
    np.concatenate: partial(_combine, combining.concatenate),
    np.stack: partial(_combine, combining.stack),
    np.expand_dims: _expand_dims,
    np.broadcast_to: _broadcast_to,
    np.result_type: _result_type,
    np.full_like: _full_like,
    np.where: _where,
    np.reshape: _reshape,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
}
