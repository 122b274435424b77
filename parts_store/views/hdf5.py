"""Whole arrays for HDF5 and netCDF programs: a virtual dataset over the HDF5 files of an array."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import h5py

from parts_store.format.coordinates import Coordinates
from parts_store.format.files.netcdf import add_scales, set_attributes
from parts_store.format.view_keys import MARK
from parts_store.views.sources import FileContent, ShardSource, ViewedArray, as_number

# The oldest version that has virtual datasets, which HDF5 1.10 and newer open.
_VERSION: Final = ("v110", "v110")


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
        set_attributes(dataset, array.attributes)
        add_scales(dataset, tuple((name, coordinates.get(name or "")) for name in array.dimension_names))
    return image.getvalue()


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
