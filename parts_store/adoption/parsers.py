"""Parsers for HDF5 and TIFF files, N5 containers and flat files, and which parser there is for a format.

A parser has the interface of VirtualiZarr: a callable `(url, registry)` that returns a `ManifestStore`. Every parser of
VirtualiZarr can be used in place of these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final, Literal, cast
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import DTypeLike
from virtualizarr.manifests import ManifestStore
from virtualizarr.parsers.typing import Parser

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption import recognition, source_file
from parts_store.adoption.described_group import group_of, loaded_of, rows_of_file
from parts_store.adoption.description import Header, OpenOther, open_no_other
from parts_store.adoption.formats import FileFormat, hdf5, tiff
from parts_store.adoption.formats.n5 import reader as n5_reader
from parts_store.adoption.other_files import other_files
from parts_store.adoption.recognition import Format
from parts_store.adoption.report import Skipped
from parts_store.backends.existing_files import StoredFile, find_file
from parts_store.backends.existing_folders import FolderReader
from parts_store.backends.registered_files import Registries, find_store, parse_registry
from parts_store.errors import AdoptionError, StoreConfigError, describe
from parts_store.format.references import ENCODED_SCHEMES
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.group import PartsGroup

__all__ = ["HDF5", "N5", "TIFF", "Parser", "Raw"]

_ORDERS: Final = ("C", "F")


def find_parser(found: Format) -> Parser:
    """Return the parser for a format; raise `ImportError` with what to install if its packages are missing."""
    module, _, name = found.parser.partition(":")
    try:
        return cast("Parser", getattr(import_module(module), name)())
    except ImportError as error:
        raise missing_packages(found, error) from error


def missing_packages(found: Format, error: ImportError) -> ImportError:
    """Return the error for a parser that needs a package that is not installed."""
    install = "" if found.install is None else f": pip install '{found.install}'"
    return ImportError(f"{found.name} files need {error.name or 'more packages'}{install}", name=error.name)


@dataclass(frozen=True, slots=True, eq=False)
class DescribedFile:
    """The arrays of a file or a folder as references, and what is skipped."""

    group: PartsGroup
    skipped: tuple[Skipped, ...] = ()
    # Why values of arrays were loaded, and other notes on arrays, by their paths.
    loaded: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FormatParser:
    """A parser for a file format that this package reads itself."""

    FORMAT: ClassVar[Format]
    READER: ClassVar[FileFormat]

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Return the arrays in a file as manifests; raise `AdoptionError` if the file cannot be read.

        Parameters
        ----------
        url : str
            The URL of the file.
        registry : ObjectStoreRegistry
            The stores that may be read.
        """
        stored = open_registered(url, registry)
        described = self.describe(stored, open_other=other_files(url, (parse_registry(registry),)))
        return ManifestStore(described.group.to_manifest_group(), registry=registry)

    def describe(
        self,
        file: StoredFile,
        reader: source_file.BlockReader | None = None,
        open_other: OpenOther = open_no_other,
    ) -> DescribedFile:
        """Return the arrays in a file as references with its checksum, and what is skipped.

        Parameters
        ----------
        file : StoredFile
            The file.
        reader : BlockReader, optional
            What has read the file so far, and keeps blocks of it.
        open_other : callable, optional
            What opens files that the file refers to. By default none is opened.
        """
        try:
            description = source_file.read_source(file, reader, (self.READER,), open_other).description
        except ImportError as error:
            raise missing_packages(self.FORMAT, error) from error
        source_file.skip_invalid_names(description)
        group = group_of(description, file.location, {file.location: file.checksum, **description.checksums})
        return DescribedFile(group, tuple(description.skipped), loaded_of(description))


@dataclass(frozen=True, slots=True)
class HDF5(FormatParser):
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

    FORMAT: ClassVar[Format] = recognition.HDF5
    READER: ClassVar[FileFormat] = hdf5


@dataclass(frozen=True, slots=True)
class TIFF(FormatParser):
    """A parser for TIFF files: BigTIFF, COG, OME-TIFF and others that tifffile reads.

    `ps.adopt` and `ps.open_virtual_dataset` use it for these files. It can be passed to VirtualiZarr, too.

    Examples
    --------
    >>> import tifffile
    >>> tifffile.imwrite("file.tif", np.zeros((64, 48), "uint16"), tile=(16, 16), compression="zlib")
    >>> ps.open_virtual_dataset("file.tif", parser=ps.parsers.TIFF())["data"].sizes
    Frozen({'y': 64, 'x': 48})
    """

    FORMAT: ClassVar[Format] = recognition.TIFF
    READER: ClassVar[FileFormat] = tiff


@dataclass(frozen=True, slots=True)
class N5:
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

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Return the datasets of a container as manifests; raise `AdoptionError` if it cannot be read.

        Parameters
        ----------
        url : str
            The URL of the container, or of a dataset.
        registry : ObjectStoreRegistry
            The stores that may be read.
        """
        described = self.describe(url, (parse_registry(registry),))
        return ManifestStore(described.group.to_manifest_group(), registry=registry)

    def describe(self, url: str, registries: Registries) -> DescribedFile:
        """Return the datasets as references without checksums, what is skipped, and notes on datasets.

        Parameters
        ----------
        url : str
            The URL of the container, or of a dataset.
        registries : tuple of ObjectStoreRegistry
            The stores that may be read.
        """
        location = url.rstrip("/")
        is_encoded = location.partition("://")[0].lower() in ENCODED_SCHEMES
        name = location.rpartition("/")[2]

        def url_of(path: str) -> str:
            return f"{location}/{quote(path) if is_encoded else path}"

        def describe_it() -> DescribedFile:
            folder = FolderReader(*find_store(location, registries))
            group, skipped, notes = n5_reader.describe(folder, unquote(name) if is_encoded else name, url_of)
            return DescribedFile(group, skipped, notes=notes)

        found = source_file.open_stored(url, describe_it)
        if not found.group.arrays and not found.group.groups and not found.skipped:
            raise AdoptionError(url, (("the folder", "there is no group and no dataset of N5 in it"),))
        return found


@dataclass(frozen=True, slots=True)
class Raw:
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

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Return the array in a file as a manifest; raise `AdoptionError` if the file does not have the right size.

        Parameters
        ----------
        url : str
            The URL of the file.
        registry : ObjectStoreRegistry
            The stores that may be read.
        """
        file = open_registered(url, registry)
        group = PartsGroup({self.name: PartsArray.of(self._references(file), None, ())})
        return ManifestStore(group.to_manifest_group(), registry=registry)

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
        return References.checked(metadata, [columns.manifest()], {file.location: file.checksum})

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


def open_registered(url: str, registry: Any) -> StoredFile:
    """Return the file at a URL in a registered store; raise `AdoptionError` if there is none, or it cannot be read."""

    def open_it() -> StoredFile:
        store, key = find_store(url, (parse_registry(registry),))
        found = find_file(store, key, url)
        if found is None:
            raise AdoptionError(url, (("the file", "there is no such file"),))
        return found

    return source_file.open_stored(url, open_it)
