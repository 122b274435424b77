"""Find the names and the lengths of the dimensions of HDF5 and netCDF4 datasets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py

from parts_store.adoption.formats.hdf5.attributes import is_scale


@dataclass(slots=True)
class Dimensions:
    """The dimensions of a group, as far as they are known."""

    # The lengths of unlimited dimensions of the whole file, by the addresses of their scales.
    lengths: dict[int, int]
    # Generated names, by the length, and the position among axes of that length in an array.
    phony: dict[tuple[int, int], str] = field(default_factory=dict)
    # Scales by their numbers in netCDF, which are read once.
    by_number: dict[int, h5py.Dataset] | None = None

    def scales_of(self, dataset: h5py.Dataset) -> list[h5py.Dataset | None]:
        """Return the scale of each axis of a dataset, None for an axis without one."""
        if is_scale(dataset) and "_Netcdf4Coordinates" in dataset.attrs:
            if self.by_number is None:
                self.by_number = _scales_by_number(dataset.parent)
            numbers = [int(number) for number in dataset.attrs["_Netcdf4Coordinates"]]
            if len(numbers) == len(dataset.shape) and self.by_number.keys() >= set(numbers):
                return [self.by_number[number] for number in numbers]
        scales = [_attached(dataset, axis) for axis in range(len(dataset.shape))]
        return [dataset] if scales == [None] and is_scale(dataset) else scales

    def names_of(self, scales: list[h5py.Dataset | None], shape: tuple[int, ...]) -> Iterator[str]:
        """Yield the names of the axes of an array: those of their scales, or generated ones as in netCDF4 readers."""
        met: Counter[int] = Counter()
        for axis, length in enumerate(shape):
            scale = scales[axis] if axis < len(scales) else None
            if scale is not None:
                yield own_name(scale)
                continue
            yield self.phony.setdefault((length, met[length]), f"phony_dim_{len(self.phony)}")
            met[length] += 1

    def lengths_of(self, scales: list[h5py.Dataset | None], shape: tuple[int, ...]) -> Iterator[int]:
        """Yield the lengths of the axes; in netCDF, all variables have the length of an unlimited dimension."""
        for scale, length in zip(scales, shape, strict=True):
            is_unlimited = scale is not None and len(scale.shape) == 1 and scale.maxshape == (None,)
            yield max(length, self._length(scale)) if is_unlimited else length

    def _length(self, scale: h5py.Dataset) -> int:
        """Return the length of an unlimited dimension: that of its scale, or of the longest variable."""
        address = int(h5py.h5o.get_info(scale.id).addr)
        if address not in self.lengths:
            length = scale.shape[0]
            for reference, axis in scale.attrs.get("REFERENCE_LIST", ()):
                each = scale.file[reference] if reference else None
                if isinstance(each, h5py.Dataset) and axis < len(each.shape or ()):
                    length = max(length, each.shape[axis])
            self.lengths[address] = length
        return self.lengths[address]


def _attached(dataset: h5py.Dataset, axis: int) -> h5py.Dataset | None:
    """Return the scale of an axis, the last one if there are several, as netCDF does; None without a scale.

    This does not use `dims` of h5py: with a damaged file, the HDF5 library would end the process.
    """
    try:
        scales = dataset.attrs["DIMENSION_LIST"][axis]
        scale = dataset.file[scales[-1]] if len(scales) else None
    except (KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError):
        return None
    return scale if isinstance(scale, h5py.Dataset) and scale.name is not None and scale.shape is not None else None


def own_name(dataset: h5py.Dataset) -> str:
    """Return the name of a dataset in its group."""
    return str(dataset.name.rpartition("/")[2])


def _scales_by_number(group: h5py.Group) -> dict[int, h5py.Dataset]:
    """Return the dimensions of a netCDF4 group and of the groups above it, by their numbers in netCDF."""
    scales: dict[int, h5py.Dataset] = {}
    while True:
        for member in group:
            each = group.get(member) if isinstance(group.get(member, getlink=True), h5py.HardLink) else None
            # A variable also has this attribute, with the number of its first dimension.
            if isinstance(each, h5py.Dataset) and is_scale(each) and "_Netcdf4Dimid" in each.attrs:
                scales.setdefault(int(each.attrs["_Netcdf4Dimid"]), each)
        if group.name == "/":
            return scales
        group = group.parent
