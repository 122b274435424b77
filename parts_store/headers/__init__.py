"""Headers of other file formats: with one before it, an encoded chunk is a TIFF file or an N5 block."""

from parts_store.headers.n5 import N5Header, n5
from parts_store.headers.tiff import TiffHeader, tiff

__all__ = ["N5Header", "TiffHeader", "n5", "tiff"]
