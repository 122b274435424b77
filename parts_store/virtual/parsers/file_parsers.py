"""Parsers for HDF5 and TIFF files, N5 containers and flat files, and which parser there is for a format.

A parser has the interface of VirtualiZarr: a callable `(url, registry)` that returns a `ManifestStore`. Every parser of
VirtualiZarr can be used in place of these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, override
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import DTypeLike
from virtualizarr.parsers.typing import Parser

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import AdoptionError, StoreConfigError, describe
from parts_store.virtual import parsed_file
from parts_store.virtual.description import Header, group_of, loaded_of, rows_of_file
from parts_store.virtual.existing_files import (
    FolderReader,
    OtherFiles,
    SourceFormat,
    StoredFile,
    describe_file,
    open_stored,
    read_from,
)
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.parsed_file import FileParser, Format, ParsedFile, ParsedSource
from parts_store.virtual.parsers import hdf5, tiff
from parts_store.virtual.parsers.n5 import container
from parts_store.virtual.registries import find_store
from parts_store.virtual.store_access import ENCODED_SCHEMES

__all__ = ["HDF5", "N5", "TIFF", "Parser", "Raw"]

_ORDERS: Final = ("C", "F")


@dataclass(frozen=True, slots=True)
class _FormatParser(FileParser):
    """A parser for a file format that this package reads itself."""

    FORMAT: ClassVar[Format]
    READER: ClassVar[SourceFormat]

    def parse(self, source: ParsedSource) -> ParsedFile:
        """Return the arrays in a file as references with its checksum, and what is skipped."""
        reader, file = source.reader, source.file
        if not read_from(reader, self.READER.recognise):
            raise source.refused(f"expected {self.FORMAT.name}, found another format")
        try:
            description = describe_file(self.READER, reader, self._others(source))
        except ImportError as error:
            raise parsed_file.missing_packages(self.FORMAT, error) from error
        group = group_of(description, file.location, {file.location: file.checksum, **description.checksums})
        return source.parsed(group, description.skipped, loaded=loaded_of(description))

    def _others(self, source: ParsedSource) -> OtherFiles:
        return OtherFiles(source.file.location, source.registries)


@dataclass(frozen=True, slots=True)
class HDF5(_FormatParser):
    """A parser for HDF5 and netCDF4 files.

    `ps.adopt` and `ps.open_virtual_dataset` use it for these files. It can be passed to VirtualiZarr, too.

    Examples
    --------
    >>> import h5py
    >>> with h5py.File("file.h5", "w") as file:
    ...     dataset = file.create_dataset("x", data=np.arange(6), chunks=(2,), compression="gzip")
    >>> ps.open_virtual_dataset("file.h5", parser=ps.parsers.HDF5())["x"].shape
    (6,)
    """

    FORMAT: ClassVar[Format] = parsed_file.HDF5
    READER: ClassVar[SourceFormat] = hdf5


@dataclass(frozen=True, slots=True)
class TIFF(_FormatParser):
    """A parser for TIFF files: BigTIFF, COG, OME-TIFF and others that tifffile reads.

    `ps.adopt` and `ps.open_virtual_dataset` use it for these files. It can be passed to VirtualiZarr, too.

    Examples
    --------
    >>> import tifffile
    >>> tifffile.imwrite("file.tif", np.zeros((64, 48), "uint16"), tile=(16, 16), compression="zlib")
    >>> ps.open_virtual_dataset("file.tif", parser=ps.parsers.TIFF())["data"].sizes
    Frozen({'y': 64, 'x': 48})
    """

    FORMAT: ClassVar[Format] = parsed_file.TIFF
    READER: ClassVar[SourceFormat] = tiff

    @override
    def _others(self, source: ParsedSource) -> OtherFiles:
        # An OME-TIFF image in several files would be the whole image in each of them.
        joined = "its arrays are joined with those of other files; to join it with {!r}, adopt it alone"
        return OtherFiles(source.file.location, source.registries, joined.format if source.joins else None)


@dataclass(frozen=True, slots=True)
class N5(FileParser):
    """A parser for N5 containers and datasets.

    `ps.adopt` and `ps.open_virtual_dataset` use it for folders with attributes of N5. Pass it for a group of a
    container that has no such attributes itself. The axes are in the order of z5py: those of `dimensions`, reversed.

    Examples
    --------
    >>> import z5py
    >>> _ = z5py.File("numbers.n5", "a").create_dataset("x", data=np.arange(6).reshape(2, 3), chunks=(2, 2))
    >>> ps.open_virtual_dataset("numbers.n5", parser=ps.parsers.N5())["x"].load().values
    array([[0, 1, 2],
           [3, 4, 5]])
    """

    def parse(self, source: ParsedSource) -> ParsedFile:
        """Return the datasets as references with the time of the folder, what is skipped, and notes on datasets."""
        location = source.stored.location.rstrip("/")
        is_encoded = location.partition("://")[0].lower() in ENCODED_SCHEMES
        name = location.rpartition("/")[2]

        def url_of(path: str) -> str:
            return f"{location}/{quote(path) if is_encoded else path}"

        def describe_it() -> container.ContainerReferences:
            folder = FolderReader(*find_store(location, source.registries))
            return container.describe(folder, unquote(name) if is_encoded else name, url_of)

        group, skipped, notes = open_stored(location, describe_it)
        if not group.arrays and not group.groups and not skipped:
            raise AdoptionError(source.url, (("the folder", "there is no group and no dataset of N5 in it"),))
        return source.parsed(source.with_checksums(group), skipped, notes=notes)


@dataclass(frozen=True, slots=True)
class Raw(FileParser):
    """A parser for flat files: one uncompressed array behind a header of a fixed size, and nothing after it.

    Parameters
    ----------
    offset : int
        The size of the header in bytes.
    shape : tuple of int
        The shape of the array. One entry may be -1: it follows from the size of the file.
    dtype : data type
        The data type of the values, with their byte order.
    order : str
        `"C"` if the last axis varies fastest in the file, `"F"` if the first one does.
    name : str
        The name of the array.
    dimension_names : sequence of str, optional
        The names of the axes.
    attributes : mapping of str to JSON, optional
        The attributes of the array.

    Raises
    ------
    StoreConfigError
        If an argument is not valid.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("file.raw").write_bytes(b"header" + np.arange(6, dtype=">i2").tobytes())
    >>> parser = ps.parsers.Raw(offset=6, shape=(-1, 3), dtype=">i2", dimension_names=("y", "x"))
    >>> ps.open_virtual_dataset("file.raw", parser=parser)["data"].load().values
    array([[0, 1, 2],
           [3, 4, 5]], dtype=int16)
    """

    offset: int
    shape: tuple[int, ...]
    dtype: DTypeLike
    order: Literal["C", "F"] = "C"
    name: str = "data"
    dimension_names: Sequence[str] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _number_type(self.dtype))
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        if self.offset < 0:
            raise StoreConfigError("offset", "an integer from 0", describe(self.offset))
        if any(length < 1 and length != -1 for length in self.shape) or self.shape.count(-1) > 1:
            raise StoreConfigError("shape", "lengths from 1, and -1 at most once", describe(self.shape))
        if self.order not in _ORDERS:
            raise StoreConfigError("order", "'C' or 'F'", describe(self.order))
        if self.dimension_names is not None and len(self.dimension_names) != len(self.shape):
            raise StoreConfigError("dimension_names", f"{len(self.shape)} names", describe(self.dimension_names))

    def parse(self, source: ParsedSource) -> ParsedFile:
        """Return the array in a file; raise `AdoptionError` if the file does not have the right size."""
        return source.parsed(PartsGroup({self.name: PartsArray.of(self._references(source.file), ())}))

    def _references(self, file: StoredFile) -> References:
        shape = self._shape_in(file)
        names = self.dimension_names or [f"dim_{axis}" for axis in range(len(shape))]
        dtype = np.dtype(self.dtype)
        header = Header(self.name, shape, dtype, dtype.type(0), dict(self.attributes), tuple(names))
        # With the first axis fastest in the file, the file has the transposed array in C order.
        stored = shape if self.order == "C" else shape[::-1]
        chunk_shape, columns = rows_of_file(file.location, self.offset, stored, dtype.itemsize)
        codecs = [header.bytes_codec]
        if self.order == "F":
            order = list(range(len(shape)))[::-1]
            codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
            chunk_shape, columns = chunk_shape[::-1], columns.transposed()
        metadata = ArrayV3Metadata.from_dict(header.to_json(chunk_shape, codecs))
        return References.checked(metadata, [columns], {file.location: file.checksum})

    def _shape_in(self, file: StoredFile) -> tuple[int, ...]:
        """Return the shape of the array in a file; raise `AdoptionError` if the file does not have the right size."""
        itemsize = np.dtype(self.dtype).itemsize
        row = math.prod(length for length in self.shape if length != -1) * itemsize
        found = file.nbytes - self.offset
        if -1 in self.shape and found > 0 and found % row == 0:
            return tuple(found // row if length == -1 else length for length in self.shape)
        if -1 in self.shape or found != row:
            expected = f"{self.offset} bytes and {'a multiple of ' if -1 in self.shape else ''}{row} bytes"
            raise AdoptionError(
                file.location, (("the file", f"expected {expected}, found {file.nbytes} bytes in all"),)
            )
        return self.shape


def _number_type(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise StoreConfigError("dtype", "a data type of NumPy", describe(dtype)) from error
    if found.kind not in "biufc":
        raise StoreConfigError("dtype", "a type of numbers", describe(found))
    return found
