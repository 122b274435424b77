"""Headers that make an encoded chunk a file, or a block, of another format."""

from parts_store.headers.n5 import N5Header, n5
from parts_store.headers.tiff import TiffHeader, tiff

__all__ = ["N5Header", "TiffHeader", "n5", "tiff"]
