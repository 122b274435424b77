"""Parse one file: recognise its format, read where its chunks are, and check that it does not change meanwhile."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np
from virtualizarr.parsers import NetCDF3Parser

from parts_store._compat.virtualizarr import group_of
from parts_store.adoption import parsers, recognition, source_file
from parts_store.adoption.description import CannotBeReadError, OtherFile
from parts_store.adoption.formats import hdf5, netcdf3
from parts_store.adoption.formats.n5 import dataset as n5_dataset
from parts_store.adoption.formats.n5.reader import MAX_NBYTES
from parts_store.adoption.other_files import other_files
from parts_store.adoption.parsers import N5, TIFF, DescribedFile, FormatParser, Parser
from parts_store.adoption.recognition import Format
from parts_store.adoption.report import Skipped
from parts_store.backends.existing_files import StoredFile, find_file
from parts_store.backends.existing_folders import FolderReader, StoredFolder, find_folder
from parts_store.backends.registered_files import Registries, find_store, parse_registry
from parts_store.errors import AdoptionError, PartsStoreError, StoreConfigError, describe, raise_translated
from parts_store.manifests.array import PartsArray
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.path_numbers import number_paths
from parts_store.redaction import hide_secrets

# How many files are asked for their sizes at the same time.
_AT_ONCE: Final = 32

type Stored = StoredFile | StoredFolder
"""What is parsed: a file, or a folder such as a Zarr store."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedFile:
    """The arrays of a file as references, and what of it is skipped."""

    location: str
    # The name of the format; that of the parser, if the caller gave one.
    format: str
    # The size and the time or ETag of the file, or of the files in the folder, as text.
    state: tuple[str, ...]
    group: PartsGroup
    skipped: tuple[Skipped, ...]
    # What the report says about arrays, by their paths.
    notes: Mapping[str, str] = field(default_factory=dict)
    # Why values were loaded, or chunks encoded again, by the paths of the arrays.
    loaded: Mapping[str, str] = field(default_factory=dict)
    # Whether the parser is one whose values were compared with those of other libraries.
    is_checked: bool = True


def parse_file(url: str, registry: Any, parser: Parser | None = None, *, joins: bool = False) -> ParsedFile:
    """Return the arrays of a file, bound to the registry.

    If they are joined with those of other files (`joins`), an OME-TIFF image in several files has only the pages in
    this file: otherwise each of them would be the whole image.

    Raises `AdoptionError` if the file cannot be read, has an unknown format, is damaged, refers to files that are
    missing, or is changed meanwhile. Raises `ImportError` if a package for its format is missing.
    """
    registries = (parse_registry(registry),)
    stored = look_at(url, registries)
    reader = source_file.BlockReader(stored) if isinstance(stored, StoredFile) else None
    found = None if parser is not None else _recognise(stored, registries, reader)
    if parser is None:
        parser = parsers.find_parser(cast("Format", found))
    if isinstance(parser, FormatParser) and isinstance(stored, StoredFile):
        is_part = joins and isinstance(parser, TIFF)
        described = parser.describe(stored, reader, _open_none if is_part else other_files(url, registries))
    elif isinstance(parser, N5) and isinstance(stored, StoredFolder):
        described = parser.describe(stored.location, registries)
        described = replace(described, group=_with_checksums(described.group, stored, registries))
    else:
        described = DescribedFile(_run(stored, registries, parser, found))
        if isinstance(parser, NetCDF3Parser) and reader is not None:
            described = DescribedFile(*netcdf3.corrected(described.group, reader))
    require_same(stored, registries)
    name = type(parser).__name__ if found is None else found.name
    group = described.group.with_registry(registry)
    return ParsedFile(
        url,
        name,
        state_of(stored),
        group,
        described.skipped,
        notes=described.notes,
        loaded=described.loaded,
        is_checked=recognition.is_checked(parser),
    )


def _open_none(name: str) -> OtherFile:
    raise CannotBeReadError(
        f"its arrays are joined with those of other files; to join it with {name!r}, adopt it alone"
    )


def look_at(url: str, registries: Registries) -> Stored:
    """Return the file or the folder at a URL.

    Raises `StoreConfigError` if there is none, and `AdoptionError` if it cannot be read.
    """

    def look() -> Stored:
        store, key = find_store(url, registries)
        found = find_file(store, key, url) or find_folder(store, key, url)
        if found is None:
            raise StoreConfigError("url", "a file", describe(url))
        return found

    return source_file.open_stored(url, look)


def state_of(stored: Stored) -> tuple[str, ...]:
    """Return what changes when a file, or something in a folder, is written; as text."""
    return tuple(map(str, stored.state))


def require_same(before: Stored, registries: Registries) -> None:
    """Raise `AdoptionError` if a file or a folder was changed or deleted while it was read."""
    try:
        now = look_at(before.location, registries)
    except StoreConfigError as error:
        raise _refused(before.location, "it was deleted while it was read") from error
    if now.state != before.state:
        raise changed(before.location)


def changed(location: str) -> AdoptionError:
    """Return the error for a file that was changed while it was read."""
    return _refused(location, "it was changed while it was read; adopt it again")


def _recognise(stored: Stored, registries: Registries, reader: source_file.BlockReader | None) -> Format:
    """Return the format of a file or a folder; raise `AdoptionError` unless there is a parser for it."""
    if isinstance(stored, StoredFolder):
        found = recognition.recognise_folder(stored.names, is_n5=_is_n5(stored, registries))
        problem = (
            "expected a file, a Zarr store or an N5 container, found a folder; name its files, for example '*.nc' in "
            "it, or pass a `parser`"
        )
    else:
        found, other = _recognise_file(cast("source_file.BlockReader", reader))
        problem = f"expected a format that is known, found {other}"
    if found is None:
        raise _refused(stored.location, problem)
    return found


def _is_n5(stored: StoredFolder, registries: Registries) -> bool:
    """Return whether a folder has attributes of an N5 dataset, or of the root of a container."""
    if n5_dataset.ATTRIBUTES not in stored.names:
        return False

    def read() -> bytes | None:
        folder = FolderReader(*find_store(stored.location, registries))
        return folder.read(n5_dataset.ATTRIBUTES, MAX_NBYTES)

    try:
        return n5_dataset.is_n5(n5_dataset.parse_attributes(source_file.open_stored(stored.location, read) or b""))
    except CannotBeReadError as error:
        raise _refused(stored.location, str(error)) from error


def _recognise_file(reader: source_file.BlockReader) -> tuple[Format | None, str]:
    """Return the format of a file; if it is not known, also what the file is."""
    file = reader.buffered()
    head = source_file.read_from(reader, lambda: file.read(recognition.HEAD_NBYTES))
    found = recognition.recognise_file(head)
    if found is None and source_file.read_from(reader, lambda: hdf5.recognise(file, reader.nbytes)):
        return recognition.HDF5, ""
    return found, recognition.name_other(head)


def _run(stored: Stored, registries: Registries, parser: Parser, found: Format | None) -> PartsGroup:
    """Return what a parser of another package finds in a file, with the checksums of all files."""
    try:
        group = PartsGroup.from_manifest_group(group_of(parser(url=stored.location, registry=registries[0])))
        return _with_checksums(group, stored, registries)
    except PartsStoreError:
        raise
    except ImportError as error:
        raise error if found is None else parsers.missing_packages(found, error) from error
    # Parsers raise any error for a damaged file, or for one that they do not support.
    except BaseException as error:
        # A panic of Rust code is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = hide_secrets(str(error).partition("\n\nDebug source")[0].strip().partition("\n")[0])[:300]
        problem = f"{type(parser).__name__} failed: {type(error).__name__}: {said}"
        raise_translated(_refused(stored.location, problem), error)


def _refused(location: str, problem: str) -> AdoptionError:
    return AdoptionError(location, (("the file", problem),))


# --- checksums --------------------------------------------------------------------------------------------------------


def _with_checksums(group: PartsGroup, stored: Stored, registries: Registries) -> PartsGroup:
    """Return the arrays with the checksums of all files that they refer to; raise if a file is missing or too short.

    A folder has many small files, and all of them have the checksum of the folder: the time of its newest file.
    """
    ends = _ends_of(node for _, node in group.nodes() if isinstance(node, PartsArray))
    if isinstance(stored, StoredFolder):
        below = f"{stored.location}/"
        checksums: dict[str, Any] = {location: stored.newest for location in ends if location.startswith(below)}
    else:
        checksums = {stored.location: stored.checksum}
        _require_end(stored, ends.get(stored.location, 0), stored.location)
    others = [location for location in ends if location not in checksums]
    for file in _find_all(others, registries, stored.location):
        _require_end(file, ends[file.location], stored.location)
        checksums[file.location] = file.checksum
    return _rebuilt(group, checksums)


def _rebuilt(group: PartsGroup, checksums: Checksums) -> PartsGroup:
    arrays = {
        name: PartsArray(each.metadata, each.manifests, parts=each.declared_parts, checksums=checksums)
        for name, each in group.arrays.items()
    }
    return PartsGroup(
        arrays, {name: _rebuilt(each, checksums) for name, each in group.groups.items()}, group.attributes
    )


def _ends_of(arrays: Iterable[PartsArray]) -> Mapping[str, int]:
    """Return where the last range of every file ends that arrays refer to."""
    found: dict[str, int] = {}
    for array in arrays:
        for columns in array.references.columns():
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

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(find, locations))
