"""Find the names and the lengths of the dimensions of HDF5 and netCDF4 datasets."""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from parts_store.virtual.description import PhonyDimensions
from parts_store.virtual.parsers.hdf5.attributes import Address, ObjectPaths, StoredAttributes, address_of, shown


@dataclass(slots=True, eq=False)
class Scale:
    """A dimension scale, and its name in its group."""

    dataset: h5py.Dataset
    name: str
    _length: int | None = None

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> "Scale":
        """Return a scale that was opened by its name."""
        return cls(dataset, _own_name(dataset.name))

    def unlimited_length(self) -> int:
        """Return the length of an unlimited dimension: that of its scale, or of the longest variable."""
        if self._length is None:
            self._length = max([*self.dataset.shape, *_lengths_of_variables(self.dataset)])
        return self._length


@dataclass(slots=True)
class Scales:
    """The dimension scales of a file, each of which is looked up once."""

    file: h5py.File
    paths: ObjectPaths
    _by_address: dict[Address, Scale | None] = field(default_factory=dict)
    # Those of each group by their numbers in netCDF, by the path of the group.
    _by_number: dict[str, dict[int, Scale]] = field(default_factory=dict)

    def attached(self, dataset: h5py.Dataset, attributes: StoredAttributes) -> list[Scale | None]:
        """Return the scale of each axis, the last one if there are several, as netCDF does; None without a scale.

        This does not use `dims` of h5py: with a damaged file, the HDF5 library would end the process.
        """
        found: list[Scale | None] = []
        for axis in range(len(dataset.shape)):
            try:
                listed = attributes.get("DIMENSION_LIST")
                scales: Sequence[Any] = [] if listed is None else listed[axis]
                found.append(self._referred(scales[-1]) if len(scales) else None)
            except (KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError):
                found.append(None)
        return found

    def _referred(self, reference: Any) -> Scale | None:
        """Return the scale that a reference points to; None if it is no dataset with a shape and a name."""
        identifier = h5py.h5r.dereference(reference, self.file.id)
        if not isinstance(identifier, h5py.h5d.DatasetID):
            return None
        address = address_of(identifier)
        if address not in self._by_address:
            # The HDF5 library would search the whole file for the name.
            path = self.paths.path_at(address)
            dataset = h5py.Dataset(identifier, readonly=True)
            is_scale = path is not None and dataset.shape is not None
            self._by_address[address] = Scale(dataset, _own_name(path or "")) if is_scale else None
        return self._by_address[address]

    def numbered(self, path: str, number: int) -> Scale | None:
        """Return the scale with a number in netCDF, in the group of the dataset at a path or the groups above it."""
        while path != "/":
            path = posixpath.dirname(path)
            if path not in self._by_number:
                self._by_number[path] = _scales_by_number(self.file[path])
            if number in self._by_number[path]:
                return self._by_number[path][number]
        return None


@dataclass(slots=True)
class GroupDimensions:
    """The dimensions of a group, as far as they are known."""

    scales: Scales
    phony: PhonyDimensions = field(default_factory=PhonyDimensions)

    def scales_of(self, dataset: h5py.Dataset, attributes: StoredAttributes) -> list[Scale | None]:
        """Return the scale of each axis of a dataset, None for an axis without one."""
        if attributes.is_scale and "_Netcdf4Coordinates" in attributes.names:
            numbers = _numbers(attributes.get("_Netcdf4Coordinates"))
            found = [self.scales.numbered(dataset.name, number) for number in numbers]
            if len(numbers) == len(dataset.shape) and None not in found:
                return found
        scales = self.scales.attached(dataset, attributes)
        return [Scale.of(dataset)] if scales == [None] and attributes.is_scale else scales

    def names_of(self, scales: list[Scale | None], shape: tuple[int, ...]) -> Iterator[str]:
        """Return the names of the axes of an array: those of their scales, or generated ones as in netCDF4 readers."""
        return self.phony.names_of(shape, [None if scale is None else scale.name for scale in scales])


def lengths_of(scales: list[Scale | None], shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the lengths of the axes; in netCDF, all variables have the length of an unlimited dimension."""
    for scale, length in zip(scales, shape, strict=True):
        if scale is None or scale.dataset.maxshape != (None,):
            yield length
        else:
            yield max(length, scale.unlimited_length())


def _lengths_of_variables(scale: h5py.Dataset) -> Iterator[int]:
    """Yield the lengths of the axes that a scale is attached to."""
    for reference, axis in scale.attrs.get("REFERENCE_LIST", ()):
        found = h5py.h5r.dereference(reference, scale.id) if reference else None
        if isinstance(found, h5py.h5d.DatasetID) and axis < len(found.shape or ()):
            yield found.shape[axis]


def _own_name(path: str) -> str:
    return shown(path.rpartition("/")[2])


def _scales_by_number(group: h5py.Group) -> dict[int, Scale]:
    """Return the dimensions of a netCDF4 group by their numbers in netCDF."""
    scales: dict[int, Scale] = {}
    for member in group:
        each = group.get(member) if isinstance(group.get(member, getlink=True), h5py.HardLink) else None
        # A variable also has this attribute, with the number of its first dimension.
        if isinstance(each, h5py.Dataset) and (attributes := StoredAttributes(each)).is_scale:
            for number in _numbers(attributes.get("_Netcdf4Dimid")):
                scales.setdefault(number, Scale.of(each))
    return scales


def _numbers(value: Any) -> list[int]:
    """Return the numbers in an attribute of netCDF; none if it is missing, or something else."""
    found = np.asarray(value).ravel()
    return list(found.tolist()) if found.dtype.kind in "iu" else []
