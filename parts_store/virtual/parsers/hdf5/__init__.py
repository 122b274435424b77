"""HDF5 and netCDF4 files."""

from parts_store.virtual.parsers.hdf5.reader import describe, recognise

__all__ = ["describe", "recognise"]
