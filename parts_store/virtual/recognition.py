"""Recognise the format of a file or a folder by its content."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from virtualizarr.parsers.typing import Parser

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


HDF5: Final = Format("HDF5 or netCDF4", "parts_store.virtual.parsers.file_parsers:HDF5")
NETCDF3: Final = Format("netCDF3", "virtualizarr.parsers:NetCDF3Parser")
KERCHUNK_JSON: Final = Format("kerchunk JSON", "virtualizarr.parsers:KerchunkJSONParser")
ZIP: Final = Format("zip file of Zarr", "virtualizarr.parsers:ZippedZarrParser")
ZARR: Final = Format("Zarr", "virtualizarr.parsers:ZarrParser", "virtualizarr[zarr]")
KERCHUNK_PARQUET: Final = Format(
    "kerchunk Parquet", "virtualizarr.parsers:KerchunkParquetParser", "virtualizarr[kerchunk_parquet]"
)
TIFF: Final = Format("TIFF", "parts_store.virtual.parsers.file_parsers:TIFF", "parts_store[tiff]")
N5: Final = Format("N5", "parts_store.virtual.parsers.file_parsers:N5")
_CHECKED: Final = (HDF5, NETCDF3, KERCHUNK_JSON, ZIP, ZARR, KERCHUNK_PARQUET, TIFF, N5)

_SIGNATURES: Final = (
    (b"CDF\x01", NETCDF3),
    (b"CDF\x02", NETCDF3),
    (b"CDF\x05", NETCDF3),
    (b"PK\x03\x04", ZIP),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"MM\0+", TIFF),
)
_HDF5_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
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
    if head.startswith(_HDF5_SIGNATURE):
        return HDF5
    for signature, found in _SIGNATURES:
        if head.startswith(signature):
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
    return "another format; pass a `parser`"


def is_checked(parser: object) -> bool:
    """Return whether a parser is ours, or one whose values were compared with other libraries."""
    module, name = type(parser).__module__, type(parser).__name__
    known = {found.parser.rpartition(":")[2] for found in _CHECKED}
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
