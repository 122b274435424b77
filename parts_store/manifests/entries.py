"""The entries of VirtualiZarr's manifests: parse them from dictionaries, check them, and read them. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from parts_store.format.integers import parse_integer
from parts_store.format.ranges import Span
from parts_store.format.references import ENCODED_SCHEMES
from parts_store.manifests.path_numbers import number_paths
from parts_store.manifests.pieces import FileRange, Piece, nbytes_of

# The largest size of a file: what a signed 64-bit integer can hold.
MAX_NBYTES: Final = 2**63 - 1
_KEY = re.compile(r"(?:c[./])?(?:0|[1-9][0-9]{0,18})(?:[./](?:0|[1-9][0-9]{0,18}))*")
_REFERENCE = frozenset({"path", "offset", "length"})
# These characters are not percent-encoded in the path of a URL.
_UNQUOTED = "/:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A manifest as arrays on its chunk grid, and the bytes of the chunks that it holds itself."""

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
        """Return columns that can be written to, in which all chunks are missing."""
        paths = np.full(grid, MISSING_CHUNK_PATH, np.dtypes.StringDType())
        return cls(paths, np.zeros(grid, np.uint64), np.zeros(grid, np.uint64), {})

    def manifest(self) -> ChunkManifest:
        """Return the manifest with these columns."""
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

    def transposed(self) -> "Columns":
        """Return the columns of the same chunks with the axes of the grid in reverse order."""
        inlined = {index[::-1]: data for index, data in self.inlined.items()}
        return Columns(self.paths.T, self.offsets.T, self.lengths.T, inlined)

    def locations(self) -> tuple[str, ...]:
        """Return the URLs of all files that are referred to, each once."""
        found, _ = number_paths(self.paths)
        return tuple(each for each in found if each not in (MISSING_CHUNK_PATH, INLINED_CHUNK_PATH))

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


def parse_chunk_key(key: object, grid: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the position of a chunk in the grid, given its key; raise `ManifestError` if it is not in the grid."""
    index = _parse_key(key, len(grid))
    if index is None or any(number >= count for number, count in zip(index, grid, strict=True)):
        raise ManifestError(where, f"the key of a chunk on a grid of {grid}", describe(key))
    return index


def _parse_key(key: object, ndim: int) -> tuple[int, ...] | None:
    if not isinstance(key, str):
        return None
    if not ndim:
        return () if key in ("", "c", "0") else None
    if _KEY.fullmatch(key) is None:
        return None
    index = tuple(int(number) for number in re.findall("[0-9]+", key))
    return index if len(index) == ndim else None


def parse_manifest(entries: Mapping[Any, Any], grid: tuple[int, ...], part: int) -> ChunkManifest:
    """Return the manifest of a part from a dictionary in VirtualiZarr's form, on this grid of chunks."""
    columns = Columns.empty(grid)
    for key, entry in entries.items():
        where = f"part {part}, chunk {describe(key)}"
        index = parse_chunk_key(key, grid, where)
        piece = parse_entry(entry, where)
        if piece is not None:
            columns.put(index, piece)
    return columns.manifest()


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


def without_chunks_on_grid(manifest: ChunkManifest, grid: tuple[int, ...]) -> ChunkManifest:
    """Return a manifest without any chunk on the grid of its array; return any other manifest as it is.

    For a dataset that was never written, the parsers of VirtualiZarr make a manifest with a grid of another shape.
    """
    columns = Columns.of(manifest)
    if columns.paths.shape == grid or not bool(np.all(columns.is_missing)):
        return manifest
    return Columns.empty(grid).manifest()


def normalise(manifest: ChunkManifest, grid: tuple[int, ...], part: int) -> ChunkManifest:
    """Return a manifest without offsets and lengths of missing chunks; raise `ManifestError` unless it is valid."""
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
        raise ManifestError(where, f"ranges that end at {MAX_NBYTES} at most", "a range that ends beyond it")
    for path in columns.locations():
        if parse_location(path, where) != path:
            raise ManifestError(where, "the URL of a file", describe(path))
    return manifest


def _require_inlined(columns: Columns, where: str) -> None:
    """Raise unless the manifest holds bytes for exactly the chunks whose path says so."""
    marked = {tuple(map(int, index)) for index in np.argwhere(columns.paths == INLINED_CHUNK_PATH)}
    if marked != set(columns.inlined):
        wrong = min(marked ^ set(columns.inlined))
        found = "a path that says so, and no bytes" if wrong in marked else "bytes, and a path of a file"
        raise ManifestError(f"{where}, chunk {key_of(wrong)!r}", "bytes where the path says so", found)
    for index, data in columns.inlined.items():
        if len(data) != columns.lengths[index] or not data or columns.offsets[index]:
            raise ManifestError(f"{where}, chunk {key_of(index)!r}", f"{columns.lengths[index]} bytes", f"{len(data)}")
