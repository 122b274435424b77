"""The references of an array: its metadata, and where the chunks of each part are, all on the same grid of chunks."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store._compat.zarr import (
    ArrayV3Metadata,
    RectilinearChunkGridMetadata,
    RegularChunkGridMetadata,
    unstable_types,
)
from parts_store.errors import ManifestError, PartsConfigError, PartsStoreError, describe, raise_translated
from parts_store.redaction import hide_secrets
from parts_store.virtual.manifests.entries import (
    Checksums,
    Columns,
    FileRange,
    Piece,
    checked_columns,
    is_in_grid,
    key_of,
    parse_manifest,
)
from parts_store.virtual.store_access import ConcatParts, Part, complete, read_array


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """The metadata of an array, and the columns of its parts in order. There is at least one part."""

    metadata: ArrayV3Metadata
    columns: tuple[Columns, ...]
    checksums: Checksums
    # The suffixes and sizes of the parts where the array is stored; None if they are not declared.
    parts: ConcatParts | None = None

    @classmethod
    def parse(
        cls,
        metadata: ArrayV3Metadata,
        manifests: Sequence[ChunkManifest | Mapping[Any, Any]],
        checksums: Checksums,
        parts: ConcatParts | None = None,
    ) -> "References":
        """Return references, given the manifests of a caller; raise `ManifestError` unless they are valid."""
        if isinstance(manifests, Mapping | ChunkManifest) or not isinstance(manifests, Sequence) or not manifests:
            raise ManifestError("manifests", "a list with a manifest for each part, at least one", describe(manifests))
        grid = grid_of(metadata)
        parsed = [parse_manifest(manifest, grid, part) for part, manifest in enumerate(manifests)]
        return cls.checked(metadata, parsed, checksums, parts)

    @classmethod
    def checked(
        cls,
        metadata: ArrayV3Metadata,
        columns: Iterable[Columns],
        checksums: Checksums,
        parts: ConcatParts | None = None,
    ) -> "References":
        """Return references; checksums of files that no chunk is in are dropped.

        Raises `ManifestError` unless all columns are valid and on the grid of the metadata, and `PartsConfigError`
        unless each chunk has all of its parts or none, with the sizes that are declared.
        """
        grid = grid_of(metadata)
        valid = tuple(checked_columns(column, grid, f"part {part}") for part, column in enumerate(columns))
        checked = cls(metadata, valid, checksums, parts)
        _require_parts(checked)
        if not checksums:
            return checked
        used = set(checked.locations())
        return dataclasses.replace(
            checked, checksums={location: checksum for location, checksum in checksums.items() if location in used}
        )

    @classmethod
    def from_pieces(
        cls,
        metadata: ArrayV3Metadata,
        number_of_parts: int,
        chunks: Iterable[tuple[tuple[int, ...], Sequence[Piece | None]]],
        checksums: Checksums,
        parts: ConcatParts | None = None,
    ) -> "References":
        """Return references, given the index and the pieces of each chunk: None for a part without bytes."""
        columns = [Columns.empty(grid_of(metadata)) for _ in range(number_of_parts)]
        for index, pieces in chunks:
            for column, piece in zip(columns, pieces, strict=True):
                if piece is not None:
                    column.put(index, piece)
        return cls.checked(metadata, columns, checksums, parts)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Return the shape of a chunk; of a shard, if the array is sharded."""
        return chunk_shape_of(self.metadata)

    @property
    def grid(self) -> tuple[int, ...]:
        """Return the number of chunks along each axis."""
        return grid_of(self.metadata)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the data type of the values."""
        return self.metadata.data_type.to_native_dtype()

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Return the data type in the bytes of a chunk whose last codec is `bytes`."""
        endian = getattr(self.metadata.codecs[-1], "endian", None)
        return self.dtype.newbyteorder(">" if str(getattr(endian, "value", endian)) == "big" else "<")

    @property
    def nbytes_of_plain_chunk(self) -> int:
        """Return the number of bytes of a chunk of plain values."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def locations(self) -> tuple[str, ...]:
        """Return the URLs of all files that are referred to, each once, in alphabetical order."""
        found = {location for column in self.columns for location in column.locations()}
        return tuple(sorted(found))

    def is_missing(self) -> NDArray[np.bool_]:
        """Return an array that is True where all parts of a chunk are missing."""
        return np.asarray(np.all([column.is_missing for column in self.columns], axis=0))

    def pieces(self, index: tuple[int, ...]) -> tuple[Piece, ...] | None:
        """Return the pieces of a chunk in order; None if the chunk is missing."""
        found = [column.get(index) for column in self.columns]
        return tuple(self._known(piece) for piece in found if piece is not None) or None

    def all_pieces(self) -> Iterator[tuple[tuple[int, ...], tuple[Piece, ...]]]:
        """Yield the index and the pieces of every chunk that is not missing."""
        for numbers in np.argwhere(~self.is_missing()).tolist():
            index = tuple(numbers)
            found = (column.get(index) for column in self.columns)
            yield index, tuple(self._known(piece) for piece in found if piece is not None)

    def _known(self, piece: Piece) -> Piece:
        """Return a piece with the checksum of its file, if it has one."""
        if not self.checksums or isinstance(piece, bytes):
            return piece
        return FileRange(piece.location, piece.span, self.checksums.get(piece.location))


@contextmanager
def as_manifest_errors(subject: str, expected: str) -> Iterator[None]:
    """Raise `ManifestError` in place of the errors of VirtualiZarr and zarr, with their text."""
    try:
        yield
    except PartsStoreError:
        raise
    # They raise ValueError, TypeError, NotImplementedError and others for operations that are not possible.
    except Exception as error:
        said = hide_secrets(str(error).strip().partition("\n")[0])[:300]
        raise_translated(ManifestError(subject, expected, f"{type(error).__name__}: {said}"), error)


# --- metadata -----------------------------------------------------------------------------------------------------


def parse_metadata(metadata: object) -> tuple[ArrayV3Metadata, ConcatParts | None]:
    """Return the metadata of an array, and its parts if the metadata document declares them."""
    if isinstance(metadata, ArrayV3Metadata):
        found, parts = metadata, None
    elif isinstance(metadata, Mapping):
        # The dictionaries that zarr makes contain tuples.
        document = {"zarr_format": 3, "node_type": "array", **metadata}
        document |= {key: list(value) for key, value in document.items() if isinstance(value, tuple)}
        with as_manifest_errors("metadata", "the metadata document of a Zarr v3 array"):
            record = read_array(document, "") if document.get("storage_transformers") else None
            parts = None if record is None else record.parts
            found = ArrayV3Metadata.from_dict(complete(document))
    else:
        raise ManifestError("metadata", "the metadata of a Zarr v3 array, or its metadata document", describe(metadata))
    return found, parts


def document_of(metadata: ArrayV3Metadata) -> dict[str, Any]:
    """Return the metadata document of an array as zarr writes it."""
    with as_manifest_errors("metadata", "metadata that can be written as JSON"):
        with unstable_types():
            stored_document = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
        document: dict[str, Any] = json.loads(stored_document)
    if document["fill_value"] == "NaN":
        # zarr reads a NaN with other bits from its hexadecimal form, but does not write it.
        stored = np.asarray(metadata.fill_value).astype(metadata.data_type.to_native_dtype().newbyteorder(">"))
        if stored.tobytes() != np.array(np.nan, stored.dtype).tobytes():
            document["fill_value"] = f"0x{stored.tobytes().hex()}"
    return document


def is_rectilinear(metadata: ArrayV3Metadata) -> bool:
    """Return whether chunks may have several lengths along an axis."""
    return isinstance(metadata.chunk_grid, RectilinearChunkGridMetadata)


def chunk_shape_of(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """Return the shape of a chunk; of a shard, if the array is sharded. Raise `ManifestError` if there are several."""
    if not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        raise ManifestError("chunk_grid", "a regular grid, for an operation on chunks", describe(metadata.chunk_grid))
    return tuple(metadata.chunk_grid.chunk_shape)


def edges_of(metadata: ArrayV3Metadata) -> tuple[tuple[int, ...], ...]:
    """Return the lengths of the chunks along each axis. The last chunk may extend beyond the end of the array."""
    match metadata.chunk_grid:
        case RectilinearChunkGridMetadata(chunk_shapes=lengths):
            pass
        case _:
            lengths = chunk_shape_of(metadata)
    return tuple(
        (each,) * -(-length // each) if isinstance(each, int) else tuple(each)
        for each, length in zip(lengths, metadata.shape, strict=True)
    )


def chunk_lengths_of(metadata: ArrayV3Metadata) -> tuple[int | tuple[int, ...], ...]:
    """Return the length of the chunks along each axis; the lengths of all of them where they differ."""
    if not is_rectilinear(metadata):
        return chunk_shape_of(metadata)
    return tuple(edges[0] if len(set(edges)) == 1 else edges for edges in edges_of(metadata))


def grid_of(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """Return the number of chunks of an array along each axis."""
    if is_rectilinear(metadata):
        return tuple(map(len, edges_of(metadata)))
    return tuple(-(-length // chunk) for length, chunk in zip(metadata.shape, chunk_shape_of(metadata), strict=True))


def chunk_of_key(metadata: ArrayV3Metadata, key: str) -> tuple[int, ...] | None:
    """Return the index of a chunk, given its key below the path of its array; None if there is no such chunk."""
    index = tuple(int(number) for number in re.findall("[0-9]+", key)) if metadata.shape else ()
    is_here = is_in_grid(index, grid_of(metadata)) and metadata.encode_chunk_key(index) == key
    return index if is_here else None


def storage_order(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest in the bytes of a chunk; none if they are not plain values."""
    match tuple(metadata.codecs):
        case (BytesCodec(),):
            return tuple(range(len(metadata.shape)))
        case (TransposeCodec(order=order), BytesCodec()):
            return tuple(order)
        case _:
            return ()


# --- parts --------------------------------------------------------------------------------------------------------


def _require_parts(references: References) -> None:
    """Raise unless every chunk has all of its parts or none, and each part has the size that is declared."""
    columns, parts = references.columns, references.parts
    sizes: Sequence[int | None] = [None] * len(columns) if parts is None else parts.sizes
    if len(sizes) != len(columns):
        raise PartsConfigError("parts", f"{len(columns)} parts, one for each manifest", str(len(sizes)))
    if list(sizes) == [None]:
        # To compare the paths of many chunks takes long, and one part of any size is a whole chunk.
        return
    exists = ~references.is_missing()
    for part, (size, column) in enumerate(zip(sizes, columns, strict=True)):
        is_missing = column.is_missing
        # VirtualiZarr has no entries without bytes: a part of size 0 is missing in every chunk.
        if size != 0 and (absent := _first(exists & is_missing)):
            raise PartsConfigError("parts", f"all parts of chunk {key_of(absent[0])!r}, or none", f"no part {part}")
        if size is not None and (wrong := _first(~is_missing & (column.lengths != size))):
            expected = f"{size} bytes in a part of chunk {key_of(wrong[0])!r}"
            raise PartsConfigError("size", expected, str(column.lengths[wrong[0]]))


def _first(where: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Return a list with the first index where an array is True; an empty list if there is none."""
    return [tuple(index) for index in np.argwhere(where)[:1].tolist()]


def default_parts(references: References) -> ConcatParts:
    """Return parts with default suffixes: none for the part with most bytes, `.part0` and so on for the others."""
    totals = [int(column.lengths.sum()) for column in references.columns]
    largest = totals.index(max(totals))
    names = (f".part{number}" for number in range(len(totals)))
    return ConcatParts("" if part == largest else next(names) for part in range(len(totals)))


def with_sizes(references: References, parts: ConcatParts) -> ConcatParts:
    """Return the parts with the sizes that are the same in all chunks, so that readers need not ask for them.

    The anchor keeps the size that it declares.
    """
    sized = []
    for number, (part, column) in enumerate(zip(parts.parts, references.columns, strict=True)):
        sizes = set(column.lengths[~column.is_missing].tolist())
        known = sizes.pop() if number != parts.anchor and len(sizes) == 1 else part.size
        sized.append(Part(part.key_suffix, known))
    return ConcatParts(sized)
