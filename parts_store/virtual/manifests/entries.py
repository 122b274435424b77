"""Where chunks are: pieces of chunks, columns of pieces, the manifests that they are read from, and checksums. Pure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import quote, unquote

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
from parts_store.virtual.store_access import ENCODED_SCHEMES, Span, parse_integer

# The largest size of a file: what a signed 64-bit integer can hold.
MAX_NBYTES: Final = 2**63 - 1
_KEY = re.compile(r"(?:c[./])?(?:0|[1-9][0-9]{0,18})(?:[./](?:0|[1-9][0-9]{0,18}))*")
_REFERENCE = frozenset({"path", "offset", "length"})
# These characters are not percent-encoded in the path of a URL.
_UNQUOTED = "/:@!$&'()*+,;=~"

type Checksum = str | datetime
"""How a change of a file is detected: its ETag, or a time after which the file must not have been modified."""


type Checksums = Mapping[str, Checksum]
"""The checksums of files, by their URLs. A file may have none."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of bytes of a file, which is given by its URL."""

    location: str
    span: Span
    checksum: Checksum | None = None

    @property
    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self.span.nbytes


type Piece = FileRange | bytes
"""Some bytes of a chunk: a range of a file, or the bytes themselves."""


def nbytes_of(*pieces: Piece) -> int:
    """Return the number of bytes of some pieces."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def slice_pieces(pieces: Sequence[Piece], span: Span) -> tuple[Piece, ...]:
    """Return the pieces that a range of a chunk is made of."""
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        nbytes = nbytes_of(piece)
        first, last = max(span.start - start, 0), min(span.stop - start, nbytes)
        if first < last:
            found.append(slice_piece(piece, Span(first, last)))
        start += nbytes
    return tuple(found)


def slice_piece(piece: Piece, span: Span) -> Piece:
    """Return a range of a piece."""
    if isinstance(piece, bytes):
        return piece[span.start : span.stop]
    start = piece.span.start
    return FileRange(piece.location, Span(start + span.start, start + span.stop), piece.checksum)


def number_paths(paths: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the different paths in the order in which they first occur, and the number of the path of each chunk.

    Neighbouring chunks mostly have the same path. Only the first path of such a run becomes a Python object.
    """
    flat = paths.reshape(-1)
    is_first = np.ones(flat.shape, bool)
    np.not_equal(flat[1:], flat[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    ranks: dict[str, int] = {}
    of_runs = np.array([ranks.setdefault(path, len(ranks)) for path in flat[starts].tolist()], np.intp)
    return tuple(ranks), np.repeat(of_runs, np.diff(starts, append=len(flat))).reshape(paths.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Where the chunks of a part are, as arrays on the chunk grid, and the bytes of those that are in no file.

    A `ChunkManifest` of VirtualiZarr has the same in private attributes. It is made where VirtualiZarr takes one.
    """

    # A URL may have a secret.
    paths: NDArray[Any] = field(repr=False)
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    inlined: Mapping[tuple[int, ...], bytes]

    @classmethod
    def of(cls, manifest: ChunkManifest) -> "Columns":
        """Return the columns of a manifest of VirtualiZarr."""
        return cls(*columns_of(manifest))

    @classmethod
    def empty(cls, grid: tuple[int, ...]) -> "Columns":
        """Return columns that can be written to, in which all chunks are missing."""
        paths = np.full(grid, MISSING_CHUNK_PATH, np.dtypes.StringDType())
        return cls(paths, np.zeros(grid, np.uint64), np.zeros(grid, np.uint64), {})

    @classmethod
    def of_range(cls, location: str, offset: int, grid: tuple[int, ...], nbytes: int) -> "Columns":
        """Return chunks of `nbytes` bytes that follow each other in a file, in C order of the grid."""
        offsets = np.uint64(offset) + np.arange(math.prod(grid), dtype=np.uint64) * np.uint64(nbytes)
        paths = np.full(grid, location, np.dtypes.StringDType())
        return cls(paths, offsets.reshape(grid), np.full(grid, nbytes, np.uint64), {})

    def manifest(self) -> ChunkManifest:
        """Return the manifest of VirtualiZarr with these columns."""
        return ChunkManifest.from_arrays(
            paths=cast("Any", self.paths),
            offsets=self.offsets,
            lengths=self.lengths,
            inlined=dict(self.inlined),
            validate_paths=False,
        )

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Return an array that is True where a chunk is missing."""
        return np.asarray(self.paths == MISSING_CHUNK_PATH)

    def is_same(self, other: "Columns") -> bool:
        """Return whether all chunks are the same bytes; both are on the same grid."""
        return self.inlined == other.inlined and all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.paths, other.paths),
                (self.offsets, other.offsets),
                (self.lengths, other.lengths),
            )
        )

    def transposed(self) -> "Columns":
        """Return the columns of the same chunks with the axes of the grid in reverse order."""
        inlined = {index[::-1]: data for index, data in self.inlined.items()}
        return Columns(self.paths.T, self.offsets.T, self.lengths.T, inlined)

    def locations(self) -> tuple[str, ...]:
        """Return the URLs of all files that are referred to, each once."""
        found, _ = number_paths(self.paths)
        return tuple(path for path in found if path not in (MISSING_CHUNK_PATH, INLINED_CHUNK_PATH))

    @property
    def is_in_file(self) -> NDArray[np.bool_]:
        """Return an array that is True where a chunk is a range of a file."""
        return np.asarray((self.paths != MISSING_CHUNK_PATH) & (self.paths != INLINED_CHUNK_PATH))

    def put(self, index: tuple[int, ...], piece: Piece) -> None:
        """Set the piece of a chunk. Only for columns that were made by `empty`."""
        if isinstance(piece, FileRange):
            self.paths[index], self.offsets[index] = piece.location, piece.span.start
        else:
            self.paths[index] = INLINED_CHUNK_PATH
            # `empty` made this dictionary, and nothing else refers to it yet.
            self.inlined[index] = piece  # type: ignore[index]
        self.lengths[index] = nbytes_of(piece)

    def get(self, index: tuple[int, ...]) -> Piece | None:
        """Return the piece of a chunk, None if the chunk is missing."""
        path = str(self.paths[index])
        if path == MISSING_CHUNK_PATH:
            return None
        if path == INLINED_CHUNK_PATH:
            return self.inlined[index]
        start = int(self.offsets[index])
        return FileRange(path, Span(start, start + int(self.lengths[index])))


def key_of(index: Sequence[int]) -> str:
    """Return the key of a chunk in a manifest."""
    return ".".join(map(str, index))


def is_in_grid(index: Sequence[int], grid: Sequence[int]) -> bool:
    """Return whether a chunk is in a grid, given its index."""
    return len(index) == len(grid) and all(number < count for number, count in zip(index, grid, strict=True))


def parse_chunk_key(key: object, grid: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the position of a chunk in the grid, given its key; raise `ManifestError` if it is not in the grid."""
    is_key = isinstance(key, str) and (_KEY.fullmatch(key) is not None if grid else key in ("", "c", "0"))
    index = tuple(int(number) for number in re.findall("[0-9]+", str(key))) if is_key and grid else ()
    if not is_key or not is_in_grid(index, grid):
        raise ManifestError(where, f"the key of a chunk on a grid of {grid}", describe(key))
    return index


def parse_manifest(manifest: object, grid: tuple[int, ...], part: int) -> Columns:
    """Return the columns of a part, given its manifest, which may be a dictionary in VirtualiZarr's form."""
    if isinstance(manifest, Mapping):
        return _parse_entries(manifest, grid, part)
    if not isinstance(manifest, ChunkManifest):
        raise ManifestError(f"part {part}", "a ChunkManifest, or a dictionary", describe(manifest))
    return Columns.of(manifest)


def _parse_entries(entries: Mapping[Any, Any], grid: tuple[int, ...], part: int) -> Columns:
    columns = Columns.empty(grid)
    for key, entry in entries.items():
        where = f"part {part}, chunk {describe(key)}"
        index = parse_chunk_key(key, grid, where)
        piece = parse_entry(entry, where)
        if piece is not None:
            columns.put(index, piece)
    return columns


def parse_entry(entry: object, where: str) -> Piece | None:
    """Return the piece that an entry of a manifest describes; None if the entry says that the chunk is missing."""
    if not isinstance(entry, Mapping) or not _REFERENCE <= set(entry) <= _REFERENCE | {"data"}:
        expected = "an entry with 'path', 'offset', 'length' and optionally 'data'"
        raise ManifestError(where, expected, describe(entry))
    if "data" in entry:
        return parse_data(entry["data"], where)
    if entry["path"] == MISSING_CHUNK_PATH:
        return None
    return parse_reference(entry["path"], entry["offset"], entry["length"], where)


def parse_data(data: object, where: str) -> bytes:
    """Return the bytes of a chunk that a manifest holds itself."""
    if not isinstance(data, bytes | bytearray | memoryview) or not len(data):
        raise ManifestError(where, "at least one byte as 'data'", describe(data))
    return bytes(data)


def parse_reference(path: object, offset: object, length: object, where: str) -> FileRange:
    """Return a range of a file; raise `ManifestError` unless it is valid."""
    for name, found, least in (("offset", offset, 0), ("length", length, 1)):
        if parse_integer(found, least, MAX_NBYTES) is None:
            raise ManifestError(where, f"an integer from {least} as {name!r}", describe(found))
    start, nbytes = int(offset), int(length)  # type: ignore[call-overload]
    if start + nbytes > MAX_NBYTES:
        raise ManifestError(where, f"a range that ends at {MAX_NBYTES} at most", f"{start} + {nbytes}")
    return FileRange(parse_location(path, where), Span(start, start + nbytes))


def parse_location(path: object, where: str) -> str:
    """Return the URL of a file; a file of this machine may be given by its absolute path."""
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


def to_icechunk_url(location: str) -> str:
    """Return the URL of a file as Icechunk expects it: with the key of an object percent-encoded."""
    return _with_path(location, lambda path: quote(path, safe=_UNQUOTED))


def from_icechunk_url(url: str) -> str:
    """Return the URL of a file, given Icechunk's URL: with the key of an object as it is."""
    return _with_path(url, unquote)


def _with_path(url: str, convert: Callable[[str], str]) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return url if scheme.lower() in ENCODED_SCHEMES else f"{scheme}://{host}{slash}{convert(path)}"


def checked_columns(columns: Columns, grid: tuple[int, ...], where: str) -> Columns:
    """Return columns without offsets and lengths of missing chunks.

    Raises `ManifestError` unless they are valid and on the grid of their array.
    """
    missing = columns.is_missing
    if columns.paths.shape != grid and missing.all():
        # For a dataset that was never written, the parsers of VirtualiZarr make a grid of another shape.
        return Columns.empty(grid)
    if columns.paths.shape != grid:
        raise ManifestError(where, f"a grid of {grid} chunks, as the array has", f"{columns.paths.shape}")
    _require_inlined(columns, where)
    if bool(np.any(columns.offsets[missing])) or bool(np.any(columns.lengths[missing])):
        offsets, lengths = np.where(missing, 0, columns.offsets), np.where(missing, 0, columns.lengths)
        columns = Columns(columns.paths, offsets.astype(np.uint64), lengths.astype(np.uint64), columns.inlined)
    if bool(np.any((columns.lengths == 0) & ~missing)):
        raise ManifestError(where, "at least one byte of every chunk that exists", "none of a chunk")
    limit = np.uint64(MAX_NBYTES)
    if bool(np.any(columns.offsets > limit)) or bool(np.any(columns.lengths > limit - columns.offsets)):
        raise ManifestError(where, f"ranges that end at {MAX_NBYTES} at most", "a range that ends beyond it")
    for path in columns.locations():
        if parse_location(path, where) != path:
            raise ManifestError(where, "the URL of a file", describe(path))
    return columns


def _require_inlined(columns: Columns, where: str) -> None:
    """Raise unless there are bytes for exactly the chunks whose path says so."""
    marked = set(map(tuple, np.argwhere(columns.paths == INLINED_CHUNK_PATH).tolist()))
    for index in marked | set(columns.inlined):
        nbytes = int(columns.lengths[index]) if index in marked else 0
        if (found := len(columns.inlined.get(index, b""))) != nbytes:
            where = f"{where}, chunk {key_of(index)!r}"
            raise ManifestError(where, f"{nbytes} bytes in the manifest", str(found))


# --- checksums: VirtualiZarr's manifests cannot hold them, so they are kept separately, one for each file --------


def parse_checksums(checksums: object) -> Checksums:
    """Return the checksums that a caller gives, by the URLs of files or their paths on this machine."""
    if checksums is None:
        return {}
    if not isinstance(checksums, Mapping):
        raise ManifestError("checksums", "a mapping from URLs of files to ETags or times", describe(checksums))
    return {
        parse_location(location, "checksums"): parse_checksum(checksum, f"checksum of {describe(location)}")
        for location, checksum in checksums.items()
    }


def parse_checksum(checksum: object, where: str) -> Checksum:
    """Return a checksum; raise `ManifestError` unless it is an ETag, or a time with its time zone."""
    match checksum:
        case str() if checksum:
            return checksum
        case datetime(tzinfo=zone) if zone is not None:
            return checksum
        case _:
            raise ManifestError(where, "an ETag, or a time with its time zone", describe(checksum))


def require_object(data: object, where: str) -> dict[str, Any]:
    """Return a copy of the data; raise `ManifestError` unless it is a JSON object."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise ManifestError(where, "an object", describe(data))
    return dict(data)
