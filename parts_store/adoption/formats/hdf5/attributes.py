"""Convert the attributes of HDF5 and netCDF4 files to JSON, and find the names of dimensions."""

import base64
import contextlib
import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import h5py
import numpy as np

from parts_store.adoption.description import CannotBeReadError, Description
from parts_store.adoption.report import Skipped

# Attributes that HDF5 and netCDF4 use internally.
_INTERNAL: Final = {
    *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties", "_NCCOMPRESS"),
}
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(slots=True)
class Dimensions:
    """The names of the dimensions of a group, as far as they are known."""

    # Generated names, by the size, and the position among axes of that size in an array.
    phony: dict[tuple[int, int], str] = field(default_factory=dict)
    # Names by their numbers in netCDF, which are read once.
    by_number: dict[int, str] | None = None


def dimension_names(dataset: h5py.Dataset, known: Dimensions) -> Iterator[str]:
    """Yield the names of the dimensions: those of their scales, or generated names as in netCDF4 readers."""
    is_scale = _is_scale(dataset)
    if is_scale and "_Netcdf4Coordinates" in dataset.attrs:
        if known.by_number is None:
            known.by_number = _names_by_number(dataset.parent)
        names = known.by_number
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
            yield known.phony.setdefault((size, met[size]), f"phony_dim_{len(known.phony)}")
            met[size] += 1


def _is_scale(dataset: h5py.Dataset) -> bool:
    return text(dataset.attrs.get("CLASS")) == "DIMENSION_SCALE"


def _scale_name(dataset: h5py.Dataset, axis: int) -> str | None:
    """Return the name of the scale of an axis, the last one if there are several, as netCDF does; None without a scale.

    This does not use `dims` of h5py: with a damaged file, the HDF5 library would end the process.
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
    """Return the dimensions of a netCDF4 group and of the groups above it, by their numbers in netCDF."""
    names: dict[int, str] = {}
    while True:
        for member in group:
            each = group.get(member) if isinstance(group.get(member, getlink=True), h5py.HardLink) else None
            # A variable also has this attribute, with the number of its first dimension.
            if isinstance(each, h5py.Dataset) and _is_scale(each) and "_Netcdf4Dimid" in each.attrs:
                names.setdefault(int(each.attrs["_Netcdf4Dimid"]), _own_name(each))
        if group.name == "/":
            return names
        group = group.parent


def attributes_of(owner: h5py.Group | h5py.Dataset, description: Description, name: str) -> dict[str, Any]:
    """Return the attributes as JSON values; add those that JSON cannot represent to the skipped ones."""
    found: dict[str, Any] = {}
    for key in owner.attrs:
        if key in _INTERNAL:
            continue
        try:
            require_utf8(key)
            value = owner.attrs[key]
            is_fill = key == "_FillValue" and isinstance(owner, h5py.Dataset)
            found[key] = _fill_attribute(value, owner.dtype) if is_fill else _plain(value)
        # h5py raises any error for a damaged file. The other attributes may be intact.
        except Exception as error:
            description.skipped.append(Skipped(shown(f"{name}@{key}"), reason_of(error)))
    return found


def reason_of(error: Exception) -> str:
    """Return the reason in the report for an error."""
    return str(error) if isinstance(error, CannotBeReadError) else shown(f"{type(error).__name__}: {error}")


def shown(name: str) -> str:
    """Return a name that can be printed, even if it is not UTF-8 in the file."""
    return name.encode(errors="backslashreplace").decode()


def require_utf8(value: str) -> str:
    """Return a text; raise if it is not UTF-8, which h5py returns with surrogate escapes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CannotBeReadError("a text that is not UTF-8") from None
    return value


def _plain(value: Any) -> Any:
    """Return a value as a JSON value; an array of one element becomes that element, as in netCDF."""
    match value:
        case bytes():
            return require_utf8(value.decode(errors="surrogateescape"))
        case str():
            return require_utf8(str(value))
        case bool() | int():
            return value
        case float() if not math.isfinite(value):
            # JSON has no such numbers. These are the names that Zarr uses for fill values.
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
    """Return `_FillValue` as xarray writes it: floating-point numbers as base64, because JSON has no NaN."""
    number = np.asarray(value).ravel()[0]
    if dtype.kind == "f":
        return _packed(number)
    return [_packed(number.real), _packed(number.imag)] if dtype.kind == "c" else _plain(number)


def _packed(number: Any) -> str:
    return base64.standard_b64encode(struct.pack("<d", float(number))).decode()


def text(value: object) -> str:
    """Return an attribute that should be text, or an empty text if it is something else."""
    if isinstance(value, bytes | np.bytes_):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value if isinstance(value, str) else ""
