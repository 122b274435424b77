"""The attributes of HDF5 and netCDF4 files as JSON takes them, and the names of their dimensions."""

import base64
import contextlib
import math
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import h5py
import numpy as np

from parts_store.adoption.description import CannotBeReadError, Description
from parts_store.adoption.report import Skipped

# What HDF5 and netCDF4 keep for themselves.
_INTERNAL: Final = {
    *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties", "_NCCOMPRESS"),
}
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}

type Phony = dict[tuple[int, int], str]
"""The names made up for the dimensions of a group: by their size, and which of that size in one array it is."""


def dimension_names(dataset: h5py.Dataset, phony: Phony) -> Iterator[str]:
    """The names of the dimensions: those of their scales, or ones made up by their sizes, as netCDF4 readers do."""
    is_scale = _is_scale(dataset)
    if is_scale and "_Netcdf4Coordinates" in dataset.attrs:
        names = _names_by_number(dataset.parent)
        numbers = [int(number) for number in dataset.attrs["_Netcdf4Coordinates"]]
        if len(numbers) == len(dataset.shape) and names.keys() >= set(numbers):
            yield from (names[number] for number in numbers)
            return
    met: Counter[int] = Counter()
    for axis, size in enumerate(dataset.shape):
        if (scale := _scale_name(dataset, axis)) is not None:
            yield scale
        elif is_scale and len(dataset.shape) == 1:
            yield _own_name(dataset)
        else:
            yield phony.setdefault((size, met[size]), f"phony_dim_{len(phony)}")
            met[size] += 1


def _is_scale(dataset: h5py.Dataset) -> bool:
    return text(dataset.attrs.get("CLASS")) == "DIMENSION_SCALE"


def _scale_name(dataset: h5py.Dataset, axis: int) -> str | None:
    """The name of the scale; of several the last, as netCDF has it; None if there is none, or it was deleted.

    Not by h5py's `dims`: the library below them ends the process if the file is damaged.
    """
    try:
        scales = dataset.attrs["DIMENSION_LIST"][axis]
        scale = dataset.file[scales[-1]] if len(scales) else None
    except (KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError):
        return None
    return _own_name(scale) if isinstance(scale, h5py.Dataset) and scale.name is not None else None


def _own_name(dataset: h5py.Dataset) -> str:
    return str(dataset.name.rpartition("/")[2])


def _names_by_number(group: h5py.Group) -> dict[int, str]:
    """The dimensions of a netCDF4 group and those above it, by the numbers that netCDF gave them."""
    names: dict[int, str] = {}
    while True:
        for member in group:
            each = group.get(member) if isinstance(group.get(member, getlink=True), h5py.HardLink) else None
            # Variables have the number of their first dimension.
            if isinstance(each, h5py.Dataset) and _is_scale(each) and "_Netcdf4Dimid" in each.attrs:
                names.setdefault(int(each.attrs["_Netcdf4Dimid"]), _own_name(each))
        if group.name == "/":
            return names
        group = group.parent


def attributes_of(owner: h5py.Group | h5py.Dataset, description: Description, name: str) -> dict[str, Any]:
    """The attributes as JSON takes them; those that it does not are named."""
    found: dict[str, Any] = {}
    for key in owner.attrs:
        if key in _INTERNAL:
            continue
        try:
            require_utf8(key)
            value = owner.attrs[key]
            is_fill = key == "_FillValue" and isinstance(owner, h5py.Dataset)
            found[key] = _fill_attribute(value, owner.dtype) if is_fill else _plain(value)
        # Whatever h5py says of a damaged file; the rest of it may be right.
        except Exception as error:
            description.skipped.append(Skipped(shown(f"{name}@{key}"), reason_of(error)))
    return found


def reason_of(error: Exception) -> str:
    """What went wrong, for the report."""
    return str(error) if isinstance(error, CannotBeReadError) else shown(f"{type(error).__name__}: {error}")


def shown(name: str) -> str:
    """A name as it can be printed, also if it is not UTF-8 in the file."""
    return name.encode(errors="backslashreplace").decode()


def require_utf8(value: str) -> str:
    """Raise if bytes of the file are no text; h5py hands them out in disguise."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CannotBeReadError("a text that is not UTF-8") from None
    return value


def _plain(value: Any) -> Any:
    """A value as JSON takes it: an array of one element is that element, as netCDF has it."""
    match value:
        case bytes():
            return require_utf8(value.decode(errors="surrogateescape"))
        case str():
            return require_utf8(str(value))
        case bool() | int():
            return value
        case float() if not math.isfinite(value):
            # As Zarr writes them elsewhere, for JSON has no such numbers.
            return _NOT_FINITE.get(value, "NaN")
        case float():
            return float(value)
        case h5py.Empty():
            return "" if h5py.check_string_dtype(value.dtype) is not None else []
        case np.ndarray() if value.dtype.kind in "biufSUO" and value.dtype.names is None:
            return _plain(value.ravel()[0]) if value.size == 1 else [_plain(each) for each in value]
        case np.generic() if value.dtype.kind in "biufSU" and value.dtype.char != "g":
            return _plain(value.item())
    raise CannotBeReadError(f"an attribute of a type that JSON has none for: {type(value).__name__}")


def _fill_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """`_FillValue` as xarray writes it: floating-point numbers by their bytes, for JSON has no NaN."""
    number = np.asarray(value).ravel()[0]
    if dtype.kind == "f":
        return _packed(number)
    return [_packed(number.real), _packed(number.imag)] if dtype.kind == "c" else _plain(number)


def _packed(number: Any) -> str:
    return base64.standard_b64encode(struct.pack("<d", float(number))).decode()


def text(value: object) -> str:
    """An attribute that should be a text; empty if it is none."""
    if isinstance(value, bytes | np.bytes_):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value if isinstance(value, str) else ""
