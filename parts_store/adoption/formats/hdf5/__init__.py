"""HDF5 and netCDF4 files."""
