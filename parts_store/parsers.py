"""Parsers for files that are adopted, with the interface of VirtualiZarr. Needs the extra `virtual`."""

from virtualizarr.parsers.typing import Parser

from parts_store.virtual.parsers.file_parsers import HDF5, N5, TIFF, Raw

__all__ = ["HDF5", "N5", "TIFF", "Parser", "Raw"]
