"""Whole arrays for HDF5 and netCDF programs: a virtual dataset over the HDF5 files of an array."""

import base64
import binascii
import io
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store.format.files.hdf5 import set_attributes
from parts_store.format.view_keys import MARK
from parts_store.views.sources import FileContent, ShardSource, ViewedArray, as_number, is_node_name

# The name by which netCDF recognises a dimension without coordinates, and the length of the dimension behind it.
_NO_COORDINATES: Final = "This is a netCDF dimension but not a netCDF variable.{:10d}"
# The oldest version that has virtual datasets, which HDF5 1.10 and newer open.
_VERSION: Final = ("v110", "v110")


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The values and the attributes of a one-dimensional array with the name of a dimension."""

    values: NDArray[Any]
    attributes: Mapping[str, Any]


def hdf5_of(array: ViewedArray, sources: Sequence[ShardSource], coordinates: Mapping[str, Coordinates]) -> bytes:
    """Return an HDF5 file with a virtual dataset that shows the whole array; the fill value where no shard exists."""
    dtype = array.file.dtype
    layout = h5py.VirtualLayout(array.shape, dtype)
    for source in sources:
        target = tuple(slice(at, at + n) for at, n in zip(source.origin, source.extent, strict=True))
        # HDF5 reads `%b` in the name of a file as the number of a block.
        names = (each.replace("%", "%%") for each in (source.filename, source.dataset))
        shown = h5py.VirtualSource(*names, shape=source.stored_shape, dtype=dtype)
        layout[target] = shown[tuple(slice(n) for n in source.extent)]
    image = io.BytesIO()
    with h5py.File(image, "w", libver=_VERSION) as file:
        # At the start of the file, and not an attribute, which programs would show.
        h5py.h5o.set_comment(file.id, MARK.encode())
        dataset = file.create_virtual_dataset(array.name, layout, fillvalue=as_number(array))
        _describe(dataset, array.attributes)
        _add_scales(file, dataset, array, coordinates)
    return image.getvalue()


def _add_scales(file: Any, dataset: Any, array: ViewedArray, coordinates: Mapping[str, Coordinates]) -> None:
    """Give the dimensions of a dataset their names, and their coordinates where there are some."""
    for axis, name in enumerate(array.dimension_names):
        if name == array.name and dataset.ndim == 1:
            dataset.make_scale(name)
        elif is_node_name(name) and name != array.name:
            if name not in file:
                _add_scale(file, name, array.shape[axis], coordinates.get(name))
            if file[name].shape == (array.shape[axis],):
                dataset.dims[axis].attach_scale(file[name])


def _add_scale(file: Any, name: str, length: int, coordinates: Coordinates | None) -> None:
    if coordinates is None:
        # No values are stored.
        file.create_dataset(name, (length,), ">f4").make_scale(_NO_COORDINATES.format(length))
        return
    values = coordinates.values
    is_text = values.dtype.kind in "OTU"
    scale = file.create_dataset(
        name, data=values.astype(object) if is_text else values, dtype=h5py.string_dtype() if is_text else None
    )
    _describe(scale, coordinates.attributes)
    scale.make_scale(name)


def _describe(dataset: Any, attributes: Mapping[str, Any]) -> None:
    """Give attributes to a dataset, as netCDF has them: `_FillValue` has the type of the data."""
    set_attributes(dataset.id, {name: value for name, value in attributes.items() if name != "_FillValue"})
    fill = attributes.get("_FillValue")
    if isinstance(fill, str) and dataset.dtype.kind == "f":
        # As xarray writes it in Zarr: the bytes of a double.
        with suppress(binascii.Error, struct.error):
            (fill,) = struct.unpack("<d", base64.b64decode(fill, validate=True))
    if isinstance(fill, int | float) and dataset.dtype.kind in "iuf":
        # A number that the type cannot have is no value of the data.
        with suppress(OverflowError, ValueError):
            dataset.attrs["_FillValue"] = np.asarray(fill, dataset.dtype)


class _FileStart(io.RawIOBase):
    """A file of which only the start is known; what is behind it reads as zeros."""

    def __init__(self, start: bytes, nbytes: int) -> None:
        self.start, self.nbytes, self.at, self.is_short = start, nbytes, 0, False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.nbytes}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self.at + view.nbytes, self.nbytes)
        self.is_short |= stop > len(self.start)
        data = self.start[self.at : stop].ljust(max(0, stop - self.at), b"\0")
        view[: len(data)] = data
        self.at += len(data)
        return len(data)


def read_hdf5(start: bytes, nbytes: int) -> FileContent | None:
    """Return what is in an HDF5 file with this start, None if it takes more bytes; raise `ValueError` if it is none."""
    if not start.startswith(b"\x89HDF\r\n\x1a\n"):
        raise ValueError("not an HDF5 file")
    source = _FileStart(start, nbytes)
    try:
        with h5py.File(source, "r") as file:
            datasets = [each for each in file.values() if isinstance(each, h5py.Dataset)]
            # Dimension scales are no data.
            found = [each for each in datasets if not each.is_scale or len(datasets) == 1]
            names = [(each.name.removeprefix("/"), each.shape) for each in found]
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if source.is_short:
            return None
        raise ValueError("a damaged HDF5 file") from error
    if source.is_short:
        return None
    if len(names) != 1:
        raise ValueError("not an HDF5 file with one dataset")
    return FileContent(1, names[0][1], names[0][0])
