"""TIFF files: classic and BigTIFF, COG, OME-TIFF, ImageJ and others."""

from importlib import import_module
from typing import BinaryIO, Final, cast

from parts_store.virtual.description import Description, OpenOther, open_no_other

SIGNATURES: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

__all__ = ["SIGNATURES", "describe", "recognise"]


def recognise(file: BinaryIO, nbytes: int) -> bool:  # noqa: ARG001 - the interface of a format
    """Return whether a file begins with the signature of TIFF or BigTIFF."""
    file.seek(0)
    return file.read(4) in SIGNATURES


def describe(file: BinaryIO, nbytes: int, open_other: OpenOther = open_no_other) -> Description:
    """Return what is in a TIFF file of `nbytes` bytes; raise `ImportError` without tifffile and imagecodecs.

    `open_other` opens the other files of OME images.
    """
    # These packages are optional, and formats are imported together.
    reader = import_module("parts_store.virtual.parsers.tiff.reader")
    return cast("Description", reader.describe(file, nbytes, open_other))
