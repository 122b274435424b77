"""Parse one file: recognise its format, read where its chunks are, and check that it does not change meanwhile."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import numpy as np
from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ManifestStore
from virtualizarr.parsers import NetCDF3Parser
from virtualizarr.parsers.typing import Parser

from parts_store._compat import virtualizarr
from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.virtual.description import CannotBeReadError
from parts_store.virtual.existing_files import (
    FileReader,
    FolderReader,
    StoredFile,
    StoredFolder,
    find_file,
    find_folder,
    first_line,
    missing_file,
    open_stored,
    read_from,
    refused_file,
)
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import Checksums, number_paths
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.parsers import hdf5, netcdf3, tiff
from parts_store.virtual.parsers.n5 import dataset as n5_dataset
from parts_store.virtual.parsers.n5.container import MAX_NBYTES
from parts_store.virtual.registries import Registries, find_store, parse_registry
from parts_store.virtual.report import Skipped
from parts_store.virtual.store_access import run_tasks_sync

# How many files are asked for their sizes at the same time.
_AT_ONCE: Final = 32
# How many bytes from the beginning of a file are enough to recognise its format.
HEAD_NBYTES: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class Format:
    """A file format, and the parser for it."""

    name: str
    # The module and the class of the parser.
    parser: str
    # What installs the packages that the parser needs, besides those of the extra `virtual`.
    install: str | None = None
    # The first bytes of a file, any of them.
    signatures: tuple[bytes, ...] = ()


HDF5: Final = Format(
    "HDF5 or netCDF4", "parts_store.virtual.parsers.file_parsers:HDF5", signatures=(b"\x89HDF\r\n\x1a\n",)
)
NETCDF3: Final = Format(
    "netCDF3", "virtualizarr.parsers:NetCDF3Parser", signatures=(b"CDF\x01", b"CDF\x02", b"CDF\x05")
)
TIFF: Final = Format(
    "TIFF",
    "parts_store.virtual.parsers.file_parsers:TIFF",
    "parts_store[tiff]",
    tiff.SIGNATURES,
)
N5: Final = Format("N5", "parts_store.virtual.parsers.file_parsers:N5")
ZARR: Final = Format("Zarr", "virtualizarr.parsers:ZarrParser", "virtualizarr[zarr]")
ZIP: Final = Format("zip file of Zarr", "virtualizarr.parsers:ZippedZarrParser", signatures=(b"PK\x03\x04",))
KERCHUNK_JSON: Final = Format("kerchunk JSON", "virtualizarr.parsers:KerchunkJSONParser")
KERCHUNK_PARQUET: Final = Format(
    "kerchunk Parquet", "virtualizarr.parsers:KerchunkParquetParser", "virtualizarr[kerchunk_parquet]"
)
# The formats that are recognised. The values that their parsers read were compared with other libraries.
_FORMATS: Final = (HDF5, NETCDF3, TIFF, N5, ZARR, ZIP, KERCHUNK_JSON, KERCHUNK_PARQUET)
# References of kerchunk: an object of version 1, or the keys of a Zarr group themselves.
_KERCHUNK: Final = re.compile(rb'"refs"\s*:|"\.z(?:group|array|attrs|metadata)"\s*:|"zarr\.json"\s*:')
# The parsers for other formats, which read some values wrongly: a caller has to choose one.
_OTHERS: Final = (
    (b"SIMPLE  =", "FITS", "virtualizarr.parsers.FITSParser()"),
    (b"GRIB", "GRIB", "gribberish.virtualizarr.GribberishParser()"),
    (b"\x0e\x03\x13\x01", "HDF4", "virtualizarr.parsers.HDF4Parser()"),
)


def recognise_file(head: bytes) -> Format | None:
    """Return the format of a file, given its first `HEAD_NBYTES` bytes; None if it is not known.

    HDF5 files with a user block are not recognised: their signature is at a later place.
    """
    for found in _FORMATS:
        if head.startswith(found.signatures):
            return found
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{") and _KERCHUNK.search(text):
        return KERCHUNK_JSON
    return None


def name_other(head: bytes) -> str:
    """Return what a file is whose format is not recognised, and which parser there is for it."""
    if not head:
        return "an empty file"
    for signature, name, parser in _OTHERS:
        if head.startswith(signature):
            return f"{name}; pass `parser={parser}`, whose values are not checked"
    return "a format that is not known; check that the file was downloaded completely, or pass a `parser`"


def is_checked(parser: object) -> bool:
    """Return whether a parser is ours, or one whose values were compared with other libraries."""
    module, name = type(parser).__module__, type(parser).__name__
    known = {found.parser.rpartition(":")[2] for found in _FORMATS}
    return module.startswith(("parts_store.", "virtualizarr.parsers")) and name in known | {"Raw"}


def recognise_folder(names: Collection[str], *, is_n5: bool) -> Format | None:
    """Return the format of a folder, given the names of the files in it; None if it is not known.

    `is_n5` says whether there are attributes of N5 among them. They may be beside a `zarr.json` for the same blocks.
    `.zmetadata` alone is the mark of kerchunk's Parquet files. In a Zarr v2 store, other files are beside it.
    """
    if is_n5:
        return N5
    if {"zarr.json", ".zgroup", ".zarray"} & set(names):
        return ZARR
    if ".zmetadata" in names:
        return KERCHUNK_PARQUET
    return None


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


# --- parsed files -----------------------------------------------------------------------------------------------------

type StoredContent = StoredFile | StoredFolder
"""What is parsed: a file, or a folder such as a Zarr store."""


@dataclass(eq=False, repr=False)
class ParsedFile(ManifestStore):
    """What a parser returns: a read-only zarr store of the arrays of a file, and the report of what was parsed."""

    location: str
    # The name of the format; that of the parser, if the caller gave one.
    format: str
    # The size and the time or ETag of the file, or of the files in the folder, as text.
    state: tuple[str, ...]
    # The arrays, with the checksums of the files that they refer to, bound to the registry.
    group: PartsGroup
    registry: ObjectStoreRegistry[Any]
    skipped: tuple[Skipped, ...] = ()
    # What the report says about arrays, by their paths.
    notes: Mapping[str, str] = field(default_factory=dict)
    # Why values were loaded, or chunks encoded again, by the paths of the arrays.
    loaded: Mapping[str, str] = field(default_factory=dict)
    # Whether the parser is one whose values were compared with those of other libraries.
    is_checked: bool = True

    def __post_init__(self) -> None:
        super().__init__(self.group.to_manifest_group(), registry=self.registry)


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """A file or a folder that is parsed."""

    url: str
    stored: StoredContent
    registry: ObjectStoreRegistry[Any]
    # The name of the format for the report, and whether values of its parser were checked.
    format: str
    is_checked: bool
    opened: FileReader | None = None
    # Whether the arrays are joined with those of other files.
    joins: bool = False

    @property
    def registries(self) -> Registries:
        """The stores that may be read."""
        return (self.registry,)

    @property
    def file(self) -> StoredFile:
        """The file; raise `AdoptionError` if it is a folder."""
        if not isinstance(self.stored, StoredFile):
            raise self.refused("there is no such file")
        return self.stored

    @property
    def reader(self) -> FileReader:
        """What has read the file so far, and keeps blocks of it; raise `AdoptionError` for a folder."""
        return self.opened or FileReader(self.file)

    def refused(self, problem: str) -> AdoptionError:
        """Return the error for a file that cannot be parsed."""
        return refused_file(self.url, problem)

    def parsed(
        self,
        group: PartsGroup,
        skipped: Iterable[Skipped] = (),
        notes: Mapping[str, str] | None = None,
        loaded: Mapping[str, str] | None = None,
    ) -> ParsedFile:
        """Return the result of a parser, with arrays that have checksums."""
        return ParsedFile(
            self.url,
            self.format,
            state_of(self.stored),
            group.with_registry(self.registry),
            self.registry,
            tuple(skipped),
            notes or {},
            loaded or {},
            self.is_checked,
        )

    def with_checksums(self, group: PartsGroup) -> PartsGroup:
        """Return the arrays with the checksums of all files that they refer to; raise if one is missing or too short.

        A folder has many small files, and all of them have the checksum of the folder: the time of its newest file.
        """
        stored, location = self.stored, self.stored.location
        ends = _ends_of(node for _, node in group.nodes() if isinstance(node, PartsArray))
        checksums: dict[str, Any]
        if isinstance(stored, StoredFolder):
            checksums = {url: stored.newest for url in ends if url.startswith(f"{location}/")}
        else:
            checksums = {location: stored.checksum}
            _require_end(stored, ends.get(location, 0), location)
        for file in _find_all([url for url in ends if url not in checksums], self.registries, location):
            _require_end(file, ends[file.location], location)
            checksums[file.location] = file.checksum
        return _rebuilt(group, checksums)


class FileParser(ABC):
    """A parser of this package. It has VirtualiZarr's interface, and returns what was skipped, too."""

    __slots__ = ()

    def __call__(self, url: str, registry: Any) -> ParsedFile:
        """Return the arrays in a file as manifests; raise `AdoptionError` if the file cannot be read.

        Parameters
        ----------
        url : str
            The URL of the file, or of the folder of a container.
        registry : ObjectStoreRegistry
            The stores that may be read.
        """
        registries = (parse_registry(registry),)
        stored = _find(url, registries)
        if stored is None:
            raise refused_file(url, "there is no such file")
        return _parse(url, stored, registries, self)

    @abstractmethod
    def parse(self, source: ParsedSource) -> ParsedFile:
        """Return the arrays in a file that was found; raise `AdoptionError` if it cannot be read."""


def parse_file(url: str, registry: Any, parser: Parser | None = None, *, joins: bool = False) -> ParsedFile:
    """Return the arrays of a file, bound to the registry.

    If they are joined with those of other files (`joins`), an OME-TIFF image in several files has only the pages in
    this file: otherwise each of them would be the whole image.

    Raises `AdoptionError` if the file cannot be read, has an unknown format, is damaged, refers to files that are
    missing, or is changed meanwhile. Raises `ImportError` if a package for its format is missing.
    """
    registries = (parse_registry(registry),)
    return _parse(url, look_at(url, registries), registries, parser, joins=joins)


def _parse(
    url: str, stored: StoredContent, registries: Registries, parser: Parser | FileParser | None, *, joins: bool = False
) -> ParsedFile:
    reader = FileReader(stored) if isinstance(stored, StoredFile) else None
    found = None
    if parser is None:
        found = _recognise(stored, registries, reader)
        parser = find_parser(found)
    name = type(parser).__name__ if found is None else found.name
    source = ParsedSource(url, stored, registries[0], name, is_checked(parser), reader, joins)
    parsed = parser.parse(source) if isinstance(parser, FileParser) else _run(source, parser, found)
    require_same(stored, registries)
    return parsed


def _find(url: str, registries: Registries) -> StoredContent | None:
    """Return the file or the folder at a URL, None if there is none; raise `AdoptionError` if it cannot be read."""

    def find() -> StoredContent | None:
        store, key = find_store(url, registries)
        return find_file(store, key, url) or find_folder(store, key, url)

    return open_stored(url, find)


def look_at(url: str, registries: Registries) -> StoredContent:
    """Return the file or the folder at a URL.

    Raises `StoreConfigError` if there is none, and `AdoptionError` if it cannot be read.
    """
    found = _find(url, registries)
    if found is None:
        raise missing_file(url)
    return found


def state_of(stored: StoredContent) -> tuple[str, ...]:
    """Return what changes when a file, or something in a folder, is written; as text."""
    return tuple(map(str, stored.state))


def require_same(before: StoredContent, registries: Registries) -> None:
    """Raise `AdoptionError` if a file or a folder was changed or deleted while it was read."""
    now = _find(before.location, registries)
    if now is None:
        raise refused_file(before.location, "it was deleted while it was read")
    if now.state != before.state:
        raise changed(before.location)


def changed(location: str) -> AdoptionError:
    """Return the error for a file that was changed while it was read."""
    return refused_file(location, "it was changed while it was read; adopt it again")


def _recognise(stored: StoredContent, registries: Registries, reader: FileReader | None) -> Format:
    """Return the format of a file or a folder; raise `AdoptionError` unless there is a parser for it."""
    if isinstance(stored, StoredFolder):
        found = recognise_folder(stored.names, is_n5=_is_n5(stored, registries))
        problem = (
            "expected a file, a Zarr store or an N5 container, found a folder; name its files, for example '*.nc' in "
            "it, or pass a `parser`"
        )
    else:
        found, other = _recognise_file(reader or FileReader(stored))
        problem = f"expected a format that is known, found {other}"
    if found is None:
        raise refused_file(stored.location, problem)
    return found


def _is_n5(stored: StoredFolder, registries: Registries) -> bool:
    """Return whether a folder has attributes of an N5 dataset, or of the root of a container."""
    if n5_dataset.ATTRIBUTES not in stored.names:
        return False

    def read() -> bytes | None:
        folder = FolderReader(*find_store(stored.location, registries))
        return folder.read(n5_dataset.ATTRIBUTES, MAX_NBYTES)

    try:
        return n5_dataset.is_n5(n5_dataset.parse_attributes(open_stored(stored.location, read) or b""))
    except CannotBeReadError as error:
        raise refused_file(stored.location, str(error)) from error


def _recognise_file(reader: FileReader) -> tuple[Format | None, str]:
    """Return the format of a file; if it is not known, also what the file is."""
    head = read_from(reader, lambda file, _: file.read(HEAD_NBYTES))
    found = recognise_file(head)
    if found is None and read_from(reader, hdf5.recognise):
        return HDF5, ""
    return found, name_other(head)


def _run(source: ParsedSource, parser: Parser, found: Format | None) -> ParsedFile:
    """Return what a parser of another package finds in a file, with the checksums of all files."""
    try:
        store = parser(url=source.stored.location, registry=source.registry)
        if isinstance(store, ParsedFile):
            # A function of the caller around a parser of this package.
            return store
        group = source.with_checksums(PartsGroup.from_manifest_group(virtualizarr.group_of(store)))
        if isinstance(parser, NetCDF3Parser):
            return source.parsed(*netcdf3.corrected(group, source.reader))
        return source.parsed(group)
    except PartsStoreError:
        raise
    except ImportError as error:
        raise error if found is None else missing_packages(found, error) from error
    # Parsers raise any error for a damaged file, or for one that they do not support.
    except BaseException as error:
        # A panic of Rust code is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        problem = f"{type(parser).__name__} failed: {type(error).__name__}: {first_line(error)}"
        raise_translated(refused_file(source.stored.location, problem), error)


# --- checksums --------------------------------------------------------------------------------------------------------


def _rebuilt(group: PartsGroup, checksums: Checksums) -> PartsGroup:
    arrays = {
        name: PartsArray.of(
            References.checked(each.metadata, each.references.columns, checksums, each.declared_parts), ()
        )
        for name, each in group.arrays.items()
    }
    return PartsGroup(
        arrays, {name: _rebuilt(each, checksums) for name, each in group.groups.items()}, group.attributes
    )


def _ends_of(arrays: Iterable[PartsArray]) -> Mapping[str, int]:
    """Return where the last range of every file ends that arrays refer to."""
    found: dict[str, int] = {}
    for array in arrays:
        for columns in array.references.columns:
            locations, numbers = number_paths(columns.paths)
            ends = np.zeros(len(locations), np.uint64)
            # With more than 32 axes, NumPy crashes here.
            np.maximum.at(ends, numbers.ravel(), (columns.offsets + columns.lengths).ravel())
            for location, end in zip(locations, ends.tolist(), strict=True):
                if "://" in location:
                    found[location] = max(end, found.get(location, 0))
    return found


def _require_end(file: StoredFile, end: int, location: str) -> None:
    if end > file.nbytes:
        name = "the file" if file.location == location else file.location
        raise AdoptionError(location, ((name, f"its chunks end at {end}, and the file at {file.nbytes}"),))


def _find_all(locations: list[str], registries: Registries, location: str) -> list[StoredFile]:
    """Return the files at these URLs, which the file at `location` refers to."""

    def find(each: str) -> StoredFile:
        store, key = find_store(each, registries)
        if (file := find_file(store, key, each)) is None:
            raise AdoptionError(location, ((each, "there is no such file"),))
        return file

    return run_tasks_sync([partial(find, each) for each in locations], _AT_ONCE)
