"""Arrays of references as JSON: in a format of parts_store, which can be read again, and in that of kerchunk.

    {"parts_store_manifest": 1, "node_type": "array", "metadata": {the array's zarr.json},
     "parts": [{"key_suffix": "", "size": 4}, ...] or null, "number_of_parts": 2,
     "chunks": {"0.0": [["s3://bucket/file", 0, 100], {"data": "base64"}, null], ...},
     "checksums": {"s3://bucket/file": {"etag": "..."}, "file:///file": {"last_modified": "2026-01-01T00:00:00+00:00"}}}
    {"parts_store_manifest": 1, "node_type": "group", "attributes": {}, "arrays": {...}, "groups": {...}}

A chunk has one entry for each part. The entry is null for a part that has no bytes in any chunk.
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
from parts_store.manifests.entries import Columns, key_of, parse_chunk_key, parse_data, parse_reference
from parts_store.manifests.pieces import Piece, merge_pieces

VERSION: Final = 1
_MARK: Final = "parts_store_manifest"
# The largest number of chunks times parts of all arrays in a document. It needs 2 GB of memory.
_MAX_ENTRIES: Final = 2**26

type Json = dict[str, Any]


def with_version(data: Json) -> Json:
    """Return the JSON object of a node with the version of the format."""
    return {_MARK: VERSION, **data}


def parse(data: object, node_type: Literal["array", "group"]) -> Json:
    """Return the JSON object of a node, given an object or text; raise `ManifestError` for an unknown version."""
    if isinstance(data, str | bytes | bytearray):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError("JSON", "an object", "text that is not JSON") from error
    found = require_object(data, "JSON")
    if type(found.get(_MARK)) is not int or found[_MARK] != VERSION:
        raise ManifestError("JSON", f"{_MARK!r}: {VERSION}", describe(found.get(_MARK)))
    if found.get("node_type") != node_type:
        raise ManifestError("JSON", f"the node type {node_type!r}", describe(found.get("node_type")))
    return found


def require_object(data: object, where: str) -> Json:
    """Return a copy of the data; raise `ManifestError` unless it is a JSON object."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise ManifestError(where, "an object", describe(data))
    return dict(data)


def array_to_json(references: References, parts: ConcatParts | None) -> Json:
    """Return an array as a JSON object."""
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
    """The number of parts of chunks that the remaining arrays of a document may have."""

    left: int = _MAX_ENTRIES

    def take(self, count: int, grid: tuple[int, ...], where: str) -> None:
        """Subtract an array with `count` parts on a grid; raise `ManifestError` if the document has too many."""
        # Each part needs some memory even without chunks.
        self.left -= max(count, count * math.prod(grid))
        if self.left < 0:
            expected = f"at most {_MAX_ENTRIES} parts of chunks in one document"
            raise ManifestError(where, expected, f"more, with {count} parts on a grid of {grid}")


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that JSON describes, before memory is allocated for its chunks."""

    metadata: ArrayV3Metadata
    parts: ConcatParts | None
    count: int
    chunks: Json
    checksums: Checksums
    where: str

    def build(self) -> tuple[References, ConcatParts | None]:
        """Return the references of the array with all chunks, and its parts."""
        grid = grid_of(self.metadata)
        columns = [Columns.empty(grid) for _ in range(self.count)]
        for key, values in self.chunks.items():
            _put_chunk(columns, grid, key, values, f"{self.where}, chunk {describe(key)}")
        manifests = [each.manifest() for each in columns]
        return References.checked(self.metadata, manifests, self.checksums), self.parts


def plan_array(data: Json, where: str, budget: Budget) -> PlannedArray:
    """Return the array that JSON describes, with everything checked except its chunks."""
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
    index = parse_chunk_key(key, grid, where)
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
                raise ManifestError(where, "base64 text", describe(data)) from error
        case [path, offset, length]:
            return parse_reference(path, offset, length, where)
        case _:
            raise ManifestError(where, "[path, offset, length], or {'data': base64}", describe(value))


# --- kerchunk -----------------------------------------------------------------------------------------------------


def kerchunk(references: Json) -> Json:
    """Return references by their keys as a kerchunk document."""
    return {"version": 1, "refs": references}


def array_to_kerchunk(references: References, path: str) -> Json:
    """Return the kerchunk references of an array. Parts that are adjacent in one file become one range."""
    below = f"{path}/" if path else ""
    found: Json = {f"{below}zarr.json": json.dumps(document_of(references.metadata))}
    for index, pieces in references.all_pieces():
        merged = merge_pieces(pieces)
        key = f"{below}{references.metadata.encode_chunk_key(index)}"
        if len(merged) != 1:
            raise ManifestError(f"kerchunk, chunk {key!r}", "one range of one file", f"{len(merged)} ranges")
        (piece,) = merged
        if isinstance(piece, bytes):
            found[key] = f"base64:{base64.b64encode(piece).decode()}"
        else:
            found[key] = [_path(piece.location), piece.span.start, piece.nbytes]
    return found


def _path(location: str) -> str:
    """Return a URL as fsspec expects it, which kerchunk uses: the path of a local file, not percent-encoded."""
    return unquote(location.removeprefix("file://")) if location.startswith("file:///") else location
