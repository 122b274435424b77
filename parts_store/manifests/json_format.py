"""References as JSON: our own, from which they are made again, and kerchunk's.

    {"parts_store_manifest": 1, "node_type": "array", "metadata": {the array's zarr.json},
     "parts": [{"key_suffix": "", "size": 4}, ...] or null, "number_of_parts": 2,
     "chunks": {"0.0": [["s3://bucket/file", 0, 100], {"data": "base64"}, null], ...},
     "checksums": {"s3://bucket/file": {"etag": "..."}, "file:///file": {"last_modified": "2026-01-01T00:00:00+00:00"}}}
    {"parts_store_manifest": 1, "node_type": "group", "attributes": {}, "arrays": {...}, "groups": {...}}

A chunk has as many entries as there are parts; null is for a part that never has any bytes.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import ManifestError, describe
from parts_store.format.parts import ConcatParts, Part
from parts_store.manifests import checksums
from parts_store.manifests.array_references import References, document_of, grid_of, parse_metadata
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.entries import Columns, Piece, key_of, parse_data, parse_key, parse_reference
from parts_store.manifests.fetch_plan import merge_pieces

VERSION: Final = 1
_MARK: Final = "parts_store_manifest"
# So many chunks, times parts, of all arrays of a document together, are in memory before one of them is read: 2 GB.
_MAX_ENTRIES: Final = 2**26

type Json = dict[str, Any]


def with_version(data: Json) -> Json:
    """The JSON of a node, as a document by itself."""
    return {_MARK: VERSION, **data}


def parse(data: object, node_type: Literal["array", "group"]) -> Json:
    """The JSON of a node, from an object or its text, if it is of a version that we know."""
    if isinstance(data, str | bytes | bytearray):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError("JSON", "an object", "text that is no JSON") from error
    found = require_object(data, "JSON")
    if type(found.get(_MARK)) is not int or found[_MARK] != VERSION:
        raise ManifestError("JSON", f"{_MARK!r}: {VERSION}", describe(found.get(_MARK)))
    if found.get("node_type") != node_type:
        raise ManifestError("JSON", f"the node type {node_type!r}", describe(found.get("node_type")))
    return found


def require_object(data: object, where: str) -> Json:
    """The data, if it is an object of JSON."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise ManifestError(where, "an object", describe(data))
    return dict(data)


def array_to_json(references: References, parts: ConcatParts | None) -> Json:
    """An array as JSON."""
    columns = references.columns()
    chunks = {key_of(index): [_entry(each.get(index)) for each in columns] for index, _ in references.all_pieces()}
    return {
        "node_type": "array",
        "metadata": document_of(references.metadata),
        "parts": None if parts is None else parts.to_json()["configuration"]["parts"],
        "number_of_parts": len(columns),
        "chunks": chunks,
        "checksums": checksums.to_json(references.checksums),
    }


def _entry(piece: Piece | None) -> Any:
    if piece is None:
        return None
    if isinstance(piece, bytes):
        return {"data": base64.b64encode(piece).decode()}
    return [piece.location, piece.span.start, piece.nbytes]


@dataclass(slots=True)
class Budget:
    """How many parts of chunks the arrays of one document may still have."""

    left: int = _MAX_ENTRIES

    def take(self, count: int, grid: tuple[int, ...], where: str) -> None:
        """Count an array with so many parts; raise `ManifestError` if the document has too many with it."""
        # Each part takes some memory also where there are no chunks.
        self.left -= max(count, count * math.prod(grid))
        if self.left < 0:
            expected = f"at most {_MAX_ENTRIES} parts of chunks in one document"
            raise ManifestError(where, expected, f"more, with {count} parts on a grid of {grid}")


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that JSON describes, before memory is taken for its chunks."""

    metadata: ArrayV3Metadata
    parts: ConcatParts | None
    count: int
    chunks: Json
    checksums: Checksums
    where: str

    def build(self) -> tuple[References, ConcatParts | None]:
        """Return the array, with all of its chunks."""
        grid = grid_of(self.metadata)
        columns = [Columns.empty(grid) for _ in range(self.count)]
        for key, values in self.chunks.items():
            _put_chunk(columns, grid, key, values, f"{self.where}, chunk {describe(key)}")
        manifests = [each.manifest() for each in columns]
        return References.checked(self.metadata, manifests, self.checksums), self.parts


def plan_array(data: Json, where: str, budget: Budget) -> PlannedArray:
    """Return the array that JSON describes, checked but for its chunks; nothing is taken for granted of it."""
    metadata, _ = parse_metadata(require_object(data.get("metadata"), f"{where}, metadata"))
    declared = data.get("parts")
    if declared is not None and not isinstance(declared, list):
        raise ManifestError(f"{where}, parts", "a list, or null", describe(declared))
    parts = None if declared is None else ConcatParts([Part.from_json(each) for each in declared])
    count = data.get("number_of_parts")
    if type(count) is not int or count < 1:
        raise ManifestError(f"{where}, number_of_parts", "an integer from 1", describe(count))
    budget.take(count, grid_of(metadata), where)
    chunks = require_object(data.get("chunks"), f"{where}, chunks")
    known = require_object(data.get("checksums", {}), f"{where}, checksums")
    return PlannedArray(metadata, parts, count, chunks, checksums.from_json(known, f"{where}, checksums"), where)


def _put_chunk(columns: list[Columns], grid: tuple[int, ...], key: str, values: object, where: str) -> None:
    index = parse_key(key, len(grid))
    if index is None or any(number >= length for number, length in zip(index, grid, strict=True)):
        raise ManifestError(where, f"the key of a chunk on a grid of {grid}", describe(key))
    if not isinstance(values, list) or len(values) != len(columns):
        raise ManifestError(where, f"a list of {len(columns)} entries", describe(values))
    for column, value in zip(columns, values, strict=True):
        if (piece := _piece(value, where)) is not None:
            column.put(index, piece)


def _piece(value: object, where: str) -> Piece | None:
    match value:
        case None:
            return None
        case {"data": str(data), **rest} if not rest:
            try:
                return parse_data(base64.b64decode(data, validate=True), where)
            except (binascii.Error, ValueError) as error:
                raise ManifestError(where, "bytes in base64", describe(data)) from error
        case [path, offset, length]:
            return parse_reference(path, offset, length, where)
        case _:
            raise ManifestError(where, "[path, offset, length], or {'data': base64}", describe(value))


# --- kerchunk -----------------------------------------------------------------------------------------------------


def kerchunk(references: Json) -> Json:
    """References by their keys, as a file of kerchunk's."""
    return {"version": 1, "refs": references}


def array_to_kerchunk(references: References, path: str) -> Json:
    """The keys of an array: its document, and its chunks. Parts that touch in their file are one range."""
    below = f"{path}/" if path else ""
    found: Json = {f"{below}zarr.json": json.dumps(document_of(references.metadata))}
    for index, pieces in references.all_pieces():
        merged = merge_pieces(pieces)
        key = f"{below}{references.metadata.encode_chunk_key(index)}"
        if len(merged) != 1:
            raise ManifestError(f"kerchunk, chunk {key!r}", "one range of one file", f"{len(merged)} of them")
        (piece,) = merged
        if isinstance(piece, bytes):
            found[key] = f"base64:{base64.b64encode(piece).decode()}"
        else:
            found[key] = [_path(piece.location), piece.span.start, piece.nbytes]
    return found


def _path(location: str) -> str:
    """A location as fsspec takes it, on which kerchunk is built: a file of this machine by its path, unquoted."""
    return unquote(location.removeprefix("file://")) if location.startswith("file:///") else location
