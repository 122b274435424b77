"""The file formats that can be adopted.

A new format is a module or a package in this folder, and an entry in `FORMATS`.
"""

from collections.abc import Sequence
from typing import BinaryIO, Final, Protocol

from parts_store.adoption.description import Description, OpenOther
from parts_store.adoption.formats import hdf5, tiff


class FileFormat(Protocol):
    """A module that reads one file format."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of a module
        """The name of the format in messages."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802 - a constant of a module
        """The suffixes of file names; the first one is for copies of files with another suffix."""

    def recognise(self, file: BinaryIO, nbytes: int) -> bool:
        """Return whether a file of `nbytes` bytes has this format."""

    def describe(self, file: BinaryIO, nbytes: int, open_other: OpenOther = ...) -> Description:
        """Return what is in a file of `nbytes` bytes; `open_other` opens files that it refers to."""


FORMATS: Final[tuple[FileFormat, ...]] = (tiff, hdf5)


def find_format(file: BinaryIO, nbytes: int, formats: Sequence[FileFormat] = FORMATS) -> FileFormat | None:
    """Return the format of a file, None if it is not one of these formats."""
    return next((each for each in formats if each.recognise(file, nbytes)), None)
