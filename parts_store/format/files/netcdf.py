"""What netCDF programs find in an HDF5 file besides values: attributes, dimension scales and coordinates."""

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import h5py
import numpy as np

from parts_store.format.coordinates import Coordinates, Dimensions, is_node_name

# The name by which netCDF recognises a dimension without coordinates, and the length of the dimension behind it.
_NO_COORDINATES: Final = "This is a netCDF dimension but not a netCDF variable.{:10d}"
# Attributes by which HDF5 and netCDF tell what belongs to a dimension.
_RESERVED: Final = frozenset(
    ["CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid", "_Netcdf4Coordinates"]
)
# HDF5 stores the size of a name in 16 bits, with some other bytes.
_MAX_NAME_NBYTES: Final = 2**15


def add_scales(dataset: Any, dimensions: Dimensions) -> list[Any]:
    """Give the dimensions of a dataset their names and coordinates; return the datasets with numbers as coordinates.

    `dataset` is at the root of its file. Values are written last, so that programs find the rest at the start of the
    file.
    """
    added: dict[str, tuple[Any, Coordinates | None]] = {}
    own = dataset.name.removeprefix("/")
    for axis, (name, coordinates) in enumerate(dimensions):
        if name == own and dataset.ndim == 1:
            _remove_reserved(dataset)
            dataset.make_scale(name)
        elif is_node_name(name) and name != own:
            if not added:
                _remove_reserved(dataset)
            if name not in added:
                added[name] = _add_scale(dataset.file, name, dataset.shape[axis], coordinates), coordinates
            if (scale := added[name][0]).shape == (dataset.shape[axis],):
                dataset.dims[axis].attach_scale(scale)
    numbers = []
    for scale, coordinates in added.values():
        if coordinates is not None:
            scale[...] = coordinates.values
            numbers += [scale] if coordinates.texts is None else []
    return numbers


def _add_scale(file: Any, name: str, length: int, coordinates: Coordinates | None) -> Any:
    if coordinates is None:
        # No values are stored.
        scale = file.create_dataset(name, (length,), ">f4")
        scale.make_scale(_NO_COORDINATES.format(length))
        return scale
    dtype = h5py.string_dtype() if coordinates.texts is not None else coordinates.values.dtype
    scale = file.create_dataset(name, (length,), dtype)
    set_attributes(scale, json.loads(coordinates.attributes))
    _remove_reserved(scale)
    scale.make_scale(name)
    return scale


def _remove_reserved(dataset: Any) -> None:
    for name in _RESERVED.intersection(dataset.attrs):
        del dataset.attrs[name]


def set_attributes(dataset: Any, attributes: Mapping[str, Any]) -> None:
    """Give attributes to a dataset, as netCDF has them; those that HDF5 has no type for, as JSON text.

    `_FillValue` has the type of the data. Attributes with a name that HDF5 cannot have are in `zarr.json` only.
    """
    target = dataset.attrs
    named = {key: value for key, value in attributes.items() if _is_name(key) and key != "_FillValue"}
    for key, value in named.items():
        is_list = isinstance(value, list) and len({type(each) for each in value}) == 1
        kinds = {type(each) for each in value} if is_list else {type(value)}
        plain = value if kinds <= {str, int, float, bool} and (value or not is_list) else json.dumps(value)
        try:
            target[key] = plain
        except (TypeError, ValueError, OverflowError):
            target[key] = json.dumps(value)
    _set_fill_value(dataset, attributes.get("_FillValue"))


def _set_fill_value(dataset: Any, fill: object) -> None:
    if isinstance(fill, str) and dataset.dtype.kind == "f":
        # As xarray writes it in Zarr: the bytes of a double.
        with suppress(binascii.Error, struct.error):
            (fill,) = struct.unpack("<d", base64.b64decode(fill, validate=True))
    if isinstance(fill, int | float) and dataset.dtype.kind in "iuf":
        # A number that the type cannot have is no value of the data.
        with suppress(OverflowError, ValueError):
            dataset.attrs["_FillValue"] = np.asarray(fill, dataset.dtype)


def _is_name(key: str) -> bool:
    """Return whether HDF5 can have an attribute of this name."""
    # HDF5 ends names with a zero byte. JSON may have half of a surrogate pair, which UTF-8 cannot have.
    encoded = key.encode(errors="replace")
    return 0 < len(encoded) <= _MAX_NAME_NBYTES and b"\0" not in encoded and encoded.decode() == key
