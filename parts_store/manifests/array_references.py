"""An array as references: its metadata, and a manifest for each part, all on one grid of chunks.

What can be done with them is done by VirtualiZarr, part by part, with the same metadata; here is what it leaves open.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest, ManifestArray
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store._compat.zarr import ArrayV3Metadata, RegularChunkGridMetadata
from parts_store.errors import ManifestError, PartsConfigError, PartsStoreError, describe, raise_translated
from parts_store.format.metadata import complete, read_array
from parts_store.format.parts import ConcatParts, Part
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.entries import Columns, FileRange, Piece, key_of, normalise, parse_manifest
from parts_store.redaction import hide_secrets


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Metadata, and one manifest for each part: in their order, checked, at least one."""

    metadata: ArrayV3Metadata
    manifests: tuple[ChunkManifest, ...]
    # Of the files that are referred to, where they are known.
    checksums: Checksums

    @classmethod
    def checked(
        cls,
        metadata: ArrayV3Metadata,
        manifests: Sequence[ChunkManifest | Mapping[Any, Any]],
        checksums: Checksums,
    ) -> "References":
        """The references, if every manifest is one, and on the grid of the metadata.

        Of the checksums, those of files that are not referred to are left out.
        """
        grid = grid_of(metadata)
        if isinstance(manifests, Mapping | ChunkManifest) or not isinstance(manifests, Sequence) or not manifests:
            raise ManifestError("manifests", "a list with a manifest for each part, at least one", describe(manifests))
        found = []
        for part, each in enumerate(manifests):
            if not isinstance(each, ChunkManifest | Mapping):
                raise ManifestError(f"part {part}", "a ChunkManifest, or a dictionary", describe(each))
            manifest = each if isinstance(each, ChunkManifest) else parse_manifest(each, grid, part)
            found.append(normalise(manifest, grid, part))
        if checksums:
            used = {location for each in found for location in each.iter_nonempty_paths()}
            checksums = {location: each for location, each in checksums.items() if location in used}
        return cls(metadata, tuple(found), checksums)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of what one entry of a manifest is: a chunk, or a shard."""
        return chunk_shape_of(self.metadata)

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return grid_of(self.metadata)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.metadata.data_type.to_native_dtype()

    def columns(self) -> tuple[Columns, ...]:
        """The manifests as arrays."""
        return tuple(map(Columns.of, self.manifests))

    def is_missing(self) -> NDArray[np.bool_]:
        """Which chunks there are not: no part of them."""
        return np.asarray(np.all([each.is_missing for each in self.columns()], axis=0))

    def pieces(self, index: tuple[int, ...]) -> tuple[Piece, ...] | None:
        """What a chunk is made of, in order; None if it is missing."""
        found = [each.get(index) for each in self.columns()]
        return tuple(self._known(piece) for piece in found if piece is not None) or None

    def all_pieces(self) -> Iterator[tuple[tuple[int, ...], tuple[Piece, ...]]]:
        """Every chunk that there is, and what it is made of."""
        columns = self.columns()
        for numbers in np.argwhere(~self.is_missing()).tolist():
            index = tuple(numbers)
            found = (each.get(index) for each in columns)
            yield index, tuple(self._known(piece) for piece in found if piece is not None)

    def _known(self, piece: Piece) -> Piece:
        """Return a piece with the checksum of its file, if there is one."""
        if not self.checksums or isinstance(piece, bytes):
            return piece
        return FileRange(piece.location, piece.span, self.checksums.get(piece.location))

    def nbytes_of_chunks(self) -> NDArray[np.uint64]:
        """How many bytes each chunk has, 0 if it is missing."""
        return np.asarray(sum((each.lengths for each in self.columns()), np.zeros(self.grid, np.uint64)))

    def manifest_array(self, part: int) -> ManifestArray:
        """A part as VirtualiZarr's array, without the names of its dimensions, which it does not keep in step."""
        metadata = dataclasses.replace(self.metadata, dimension_names=None)
        return ManifestArray(metadata=metadata, chunkmanifest=self.manifests[part])


def combined(
    arrays: Sequence[ManifestArray], dimension_names: Sequence[str | None] | None, checksums: Checksums
) -> References:
    """The references of an array, of which VirtualiZarr made each part."""
    names = None if dimension_names is None or not any(dimension_names) else tuple(dimension_names)
    metadata = dataclasses.replace(arrays[0].metadata, dimension_names=names)
    return References.checked(metadata, [each.manifest for each in arrays], checksums)


@contextmanager
def as_refusals(subject: str, expected: str) -> Iterator[None]:
    """What VirtualiZarr or zarr refuse, as our own error, with what they say."""
    try:
        yield
    except PartsStoreError:
        raise
    # They raise ValueError, TypeError, NotImplementedError and more for what cannot be done.
    except Exception as error:
        said = hide_secrets(str(error).strip().partition("\n")[0])[:300]
        raise_translated(ManifestError(subject, expected, f"{type(error).__name__}: {said}"), error)


# --- metadata -----------------------------------------------------------------------------------------------------


def parse_metadata(metadata: object) -> tuple[ArrayV3Metadata, ConcatParts | None]:
    """The metadata of an array, and the parts if it is a document that says them."""
    if isinstance(metadata, ArrayV3Metadata):
        found, parts = metadata, None
    elif isinstance(metadata, Mapping):
        # zarr's own dictionaries have tuples.
        document = {"zarr_format": 3, "node_type": "array", **metadata}
        document |= {key: list(value) for key, value in document.items() if isinstance(value, tuple)}
        with as_refusals("metadata", "the document of a Zarr v3 array"):
            record = read_array(document, "") if document.get("storage_transformers") else None
            parts = None if record is None else record.parts
            found = ArrayV3Metadata.from_dict(complete(document))
    else:
        raise ManifestError("metadata", "metadata of a Zarr v3 array, or its document", describe(metadata))
    if not isinstance(found.chunk_grid, RegularChunkGridMetadata):
        raise ManifestError("chunk_grid", "a regular grid", describe(found.chunk_grid))
    return found, parts


def document_of(metadata: ArrayV3Metadata) -> dict[str, Any]:
    """The document of an array, as zarr writes it: JSON alone."""
    with as_refusals("metadata", "metadata that can be written as JSON"):
        document: dict[str, Any] = json.loads(
            metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
        )
    return document


def chunk_shape_of(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """The shape of what one entry of a manifest is: a chunk, or a shard."""
    if not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        raise ManifestError("chunk_grid", "a regular grid", describe(metadata.chunk_grid))
    return tuple(metadata.chunk_grid.chunk_shape)


def grid_of(metadata: ArrayV3Metadata) -> tuple[int, ...]:
    """How many chunks an array has along each axis."""
    return tuple(-(-length // chunk) for length, chunk in zip(metadata.shape, chunk_shape_of(metadata), strict=True))


def uncompressed_axis(metadata: ArrayV3Metadata) -> int | None:
    """The axis along which the bytes of a chunk are laid out first; None if they are not the plain values."""
    match tuple(metadata.codecs):
        case (BytesCodec(),):
            return 0
        case (TransposeCodec(order=order), BytesCodec()):
            return int(order[0])
        case _:
            return None


def nbytes_of_chunk(references: References) -> int:
    """How many bytes a chunk has whose bytes are the plain values."""
    return math.prod(references.chunk_shape) * references.dtype.itemsize


# --- parts --------------------------------------------------------------------------------------------------------


def require_parts(references: References, parts: ConcatParts | None) -> None:
    """Raise unless every chunk has all of its parts or none, and these are of the sizes that are declared."""
    columns = references.columns()
    sizes: Sequence[int | None] = [None] * len(columns) if parts is None else parts.sizes
    if len(sizes) != len(columns):
        raise PartsConfigError("parts", f"{len(columns)} parts, one for each manifest", str(len(sizes)))
    # VirtualiZarr has no entries without bytes: a part that never has any is missing everywhere.
    counted = [(part, each) for part, each in enumerate(columns) if sizes[part] != 0]
    if not counted:
        return
    first, reference = counted[0]
    for part, each in counted[1:]:
        if different := _first(each.is_missing != reference.is_missing):
            absent = part if each.is_missing[different[0]] else first
            expected = f"all parts of chunk {key_of(different[0])!r}, or none"
            raise PartsConfigError("parts", expected, f"no part {absent}")
    for size, each in zip(sizes, columns, strict=True):
        if size is not None and (wrong := _first(~each.is_missing & (each.lengths != size))):
            expected = f"{size} bytes in a part of chunk {key_of(wrong[0])!r}"
            raise PartsConfigError("size", expected, str(each.lengths[wrong[0]]))


def _first(where: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """The first place where something is true, if there is one."""
    return [tuple(index) for index in np.argwhere(where)[:1].tolist()]


def default_parts(references: References) -> ConcatParts:
    """Suffixes for parts of which nobody said any: none for that with most bytes, and numbers for the others."""
    totals = [int(each.lengths.sum()) for each in references.columns()]
    largest = totals.index(max(totals))
    names = (f".part{number}" for number in range(len(totals)))
    return ConcatParts("" if part == largest else next(names) for part in range(len(totals)))


def with_sizes(references: References, parts: ConcatParts) -> ConcatParts:
    """The parts, each but the anchor with its size if that is the same in all chunks: then nobody has to ask for it."""
    sized = []
    for number, (part, each) in enumerate(zip(parts.parts, references.columns(), strict=True)):
        sizes = set(each.lengths[~each.is_missing].tolist())
        known = sizes.pop() if number != parts.anchor and len(sizes) == 1 else part.size
        sized.append(Part(part.key_suffix, known))
    return ConcatParts(sized)
