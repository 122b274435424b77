"""The entries of VirtualiZarr's manifests: made from dictionaries, checked, and taken apart again.

Knows where bytes are said to be, and whether that makes sense. Reads nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest

from parts_store._compat.virtualizarr import (
    INLINED_CHUNK_PATH,
    MISSING_CHUNK_PATH,
    columns_of,
    validate_and_normalize_path_to_uri,
)
from parts_store.errors import ManifestError, describe
from parts_store.format.ranges import Span

# What a file can hold, and a signed number of 64 bits can count.
MAX_NBYTES: Final = 2**63 - 1
_KEY = re.compile(r"(?:c[./])?(?:0|[1-9][0-9]{0,18})(?:[./](?:0|[1-9][0-9]{0,18}))*")
_REFERENCE = frozenset({"path", "offset", "length"})


type Checksum = str | datetime
"""By what a file is known that was changed: its ETag, or a time after which it must not have been modified."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, by its URL."""

    location: str
    span: Span
    checksum: Checksum | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.span.nbytes


type Piece = FileRange | bytes
"""Some bytes of a chunk: a range of a file, or the bytes themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A manifest as arrays on its chunk grid, and the chunks that it holds itself."""

    paths: NDArray[Any]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    inlined: Mapping[tuple[int, ...], bytes]

    @classmethod
    def of(cls, manifest: ChunkManifest) -> "Columns":
        """Return the columns of a manifest."""
        return cls(*columns_of(manifest))

    @classmethod
    def empty(cls, grid: tuple[int, ...]) -> "Columns":
        """Columns that can be written to, in which all chunks are missing."""
        paths = np.full(grid, MISSING_CHUNK_PATH, np.dtypes.StringDType())
        return cls(paths, np.zeros(grid, np.uint64), np.zeros(grid, np.uint64), {})

    def manifest(self) -> ChunkManifest:
        """The manifest with these columns."""
        return ChunkManifest.from_arrays(
            paths=cast("Any", self.paths),
            offsets=self.offsets,
            lengths=self.lengths,
            inlined=dict(self.inlined),
            validate_paths=False,
        )

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Which chunks there are not."""
        return np.asarray(self.paths == MISSING_CHUNK_PATH)

    def put(self, index: tuple[int, ...], piece: Piece) -> None:
        """Say where a chunk is; of columns that were made by `empty`."""
        if isinstance(piece, FileRange):
            self.paths[index], self.offsets[index] = piece.location, piece.span.start
        else:
            self.paths[index] = INLINED_CHUNK_PATH
            # Made by `empty`, and still ours alone.
            self.inlined[index] = piece  # type: ignore[index]
        self.lengths[index] = piece.nbytes if isinstance(piece, FileRange) else len(piece)

    def get(self, index: tuple[int, ...]) -> Piece | None:
        """Where a chunk is, None if it is missing."""
        path = str(self.paths[index])
        if path == MISSING_CHUNK_PATH:
            return None
        if path == INLINED_CHUNK_PATH:
            return self.inlined[index]
        start = int(self.offsets[index])
        return FileRange(path, Span(start, start + int(self.lengths[index])))


def key_of(index: Sequence[int]) -> str:
    """The key of a chunk in a manifest."""
    return ".".join(map(str, index))


def parse_key(key: object, ndim: int) -> tuple[int, ...] | None:
    """The place of a chunk on the grid, by its key in a manifest; None if it is not one of so many dimensions."""
    if not isinstance(key, str):
        return None
    if not ndim:
        return () if key in ("", "c", "0") else None
    if _KEY.fullmatch(key) is None:
        return None
    index = tuple(int(number) for number in re.findall("[0-9]+", key))
    return index if len(index) == ndim else None


def parse_manifest(entries: Mapping[Any, Any], grid: tuple[int, ...], part: int) -> ChunkManifest:
    """The manifest of a part from a dictionary, as VirtualiZarr takes it, on this grid of chunks."""
    columns = Columns.empty(grid)
    for key, entry in entries.items():
        index = parse_key(key, len(grid))
        where = f"part {part}, chunk {describe(key)}"
        if index is None or any(number >= count for number, count in zip(index, grid, strict=True)):
            raise ManifestError(where, f"the key of a chunk on a grid of {grid}", describe(key))
        piece = parse_entry(entry, where)
        if piece is not None:
            columns.put(index, piece)
    return columns.manifest()


def parse_entry(entry: object, where: str) -> Piece | None:
    """Where a chunk is, by an entry of a manifest as a dictionary; None if the entry says that it is missing."""
    if not isinstance(entry, Mapping) or not _REFERENCE <= set(entry) <= _REFERENCE | {"data"}:
        raise ManifestError(where, "an entry with 'path', 'offset' and 'length', or with 'data' too", describe(entry))
    if "data" in entry:
        return parse_data(entry["data"], where)
    if entry["path"] == MISSING_CHUNK_PATH:
        return None
    return parse_reference(entry["path"], entry["offset"], entry["length"], where)


def parse_data(data: object, where: str) -> bytes:
    """The bytes of a chunk that a manifest holds itself."""
    if not isinstance(data, bytes | bytearray | memoryview) or not len(data):
        raise ManifestError(where, "at least one byte as 'data'", describe(data))
    return bytes(data)


def parse_reference(path: object, offset: object, length: object, where: str) -> FileRange:
    """A range of a file, checked."""
    for name, found, least in (("offset", offset, 0), ("length", length, 1)):
        is_number = isinstance(found, int | np.integer) and not isinstance(found, bool)
        if not is_number or not least <= found <= MAX_NBYTES:  # type: ignore[operator]
            raise ManifestError(where, f"an integer from {least} as {name!r}", describe(found))
    start, nbytes = int(offset), int(length)  # type: ignore[call-overload]
    if start + nbytes > MAX_NBYTES:
        raise ManifestError(where, f"a range that ends at {MAX_NBYTES} at most", f"{start} + {nbytes}")
    return FileRange(parse_location(path, where), Span(start, start + nbytes))


def parse_location(path: object, where: str) -> str:
    """The URL of a file; one of this machine may be given by its path."""
    expected = "the URL of a file, or its absolute path"
    if not isinstance(path, str) or path == INLINED_CHUNK_PATH or re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", path):
        raise ManifestError(where, expected, describe(path))
    try:
        location = validate_and_normalize_path_to_uri(path)
    except ValueError as error:
        raise ManifestError(where, expected, describe(path)) from error
    if "://" not in location:
        raise ManifestError(where, expected, describe(path))
    return location


def normalise(manifest: ChunkManifest, grid: tuple[int, ...], part: int) -> ChunkManifest:
    """The manifest, checked, with nothing said of where a missing chunk is; as it is, if nothing is."""
    where = f"part {part}"
    columns = Columns.of(manifest)
    if columns.paths.shape != grid:
        raise ManifestError(where, f"a grid of {grid} chunks, as the array has", f"{columns.paths.shape}")
    _require_inlined(columns, where)
    missing = columns.is_missing
    if bool(np.any(columns.offsets[missing])) or bool(np.any(columns.lengths[missing])):
        offsets, lengths = np.where(missing, 0, columns.offsets), np.where(missing, 0, columns.lengths)
        columns = Columns(columns.paths, offsets.astype(np.uint64), lengths.astype(np.uint64), columns.inlined)
        manifest = columns.manifest()
    limit = np.uint64(MAX_NBYTES)
    if bool(np.any(columns.offsets > limit)) or bool(np.any(columns.lengths > limit - columns.offsets)):
        raise ManifestError(where, f"ranges that end at {MAX_NBYTES} at most", "one that ends beyond it")
    for path in set(columns.paths.flat) - {MISSING_CHUNK_PATH, INLINED_CHUNK_PATH}:
        if parse_location(path, where) != path:
            raise ManifestError(where, "the URL of a file", describe(path))
    return manifest


def _require_inlined(columns: Columns, where: str) -> None:
    """Raise unless a manifest holds exactly the chunks itself that it says it does."""
    said = {tuple(map(int, index)) for index in np.argwhere(columns.paths == INLINED_CHUNK_PATH)}
    if said != set(columns.inlined):
        found = min(said ^ set(columns.inlined))
        raise ManifestError(f"{where}, chunk {key_of(found)!r}", "bytes where the path says so", "the one or the other")
    for index, data in columns.inlined.items():
        if len(data) != columns.lengths[index] or not data or columns.offsets[index]:
            raise ManifestError(f"{where}, chunk {key_of(index)!r}", f"{columns.lengths[index]} bytes", f"{len(data)}")
