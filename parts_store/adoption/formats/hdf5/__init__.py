"""HDF5 and netCDF4 files."""

from typing import Final

from parts_store.adoption.formats.hdf5.reader import describe, recognise

NAME: Final = "HDF5 or netCDF4"
SUFFIXES: Final = (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".cdf")

__all__ = ["NAME", "SUFFIXES", "describe", "recognise"]
