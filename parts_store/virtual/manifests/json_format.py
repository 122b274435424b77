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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, cast
from urllib.parse import unquote

from parts_store.errors import ManifestError, describe
from parts_store.virtual.manifests.array import PartsArray, ReferenceNode
from parts_store.virtual.manifests.entries import (
    Checksum,
    FileRange,
    Piece,
    key_of,
    nbytes_of,
    parse_checksum,
    parse_chunk_key,
    parse_data,
    parse_location,
    parse_reference,
    require_object,
)
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References, grid_of, parse_metadata
from parts_store.virtual.store_access import DOCUMENT, ConcatParts, Part, join

_VERSION: Final = 1
_MARK: Final = "parts_store_manifest"
# The largest number of chunks times parts of all arrays in a document. It needs 2 GB of memory.
_MAX_ENTRIES: Final = 2**26
# The largest depth of nested groups.
_MAX_DEPTH: Final = 100

type ManifestJson = dict[str, Any]


# --- writing ------------------------------------------------------------------------------------------------------


def to_json(node: ReferenceNode) -> ManifestJson:
    """Return an array or a group as a JSON object with the version of the format."""
    body = _group_to_json(node) if isinstance(node, PartsGroup) else _array_to_json(cast("PartsArray", node))
    return {_MARK: _VERSION, **body}


def _group_to_json(group: PartsGroup) -> ManifestJson:
    return {
        "node_type": "group",
        "attributes": group.document()["attributes"],
        "arrays": {name: _array_to_json(array) for name, array in group.arrays.items()},
        "groups": {name: to_json(member) for name, member in group.groups.items()},
    }


def _array_to_json(array: PartsArray) -> ManifestJson:
    references = array.references
    columns, parts = references.columns, references.parts
    return {
        "node_type": "array",
        "metadata": array.document(),
        "parts": None if parts is None else parts.to_json()["configuration"]["parts"],
        "number_of_parts": len(columns),
        "chunks": {
            key_of(index): [_entry(column.get(index)) for column in columns] for index, _ in references.all_pieces()
        },
        "checksums": {
            location: {"etag": checksum} if isinstance(checksum, str) else {"last_modified": checksum.isoformat()}
            for location, checksum in references.checksums.items()
        },
    }


def _entry(piece: Piece | None) -> Any:
    if piece is None:
        return None
    if isinstance(piece, bytes):
        return {"data": base64.b64encode(piece).decode()}
    return [piece.location, piece.span.start, piece.nbytes]


# --- reading ------------------------------------------------------------------------------------------------------


def from_json[T: ReferenceNode](data: object, kind: type[T]) -> T:
    """Return the array or the group that `to_json` wrote, given a JSON object or its text."""
    node_type = "group" if issubclass(kind, PartsGroup) else "array"
    if isinstance(data, str | bytes | bytearray):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError("JSON", "an object", "text that is not JSON") from error
    found = require_object(data, "JSON")
    if type(found.get(_MARK)) is not int or found[_MARK] != _VERSION:
        raise ManifestError("JSON", f"{_MARK!r}: {_VERSION}", describe(found.get(_MARK)))
    if found.get("node_type") != node_type:
        raise ManifestError("JSON", f"the node type {node_type!r}", describe(found.get("node_type")))
    reader = _Reader()
    # The whole document is checked before memory is allocated for an array.
    build = reader.plan_group(found, "group", 0) if node_type == "group" else reader.plan_array(found, "array")
    return cast("T", build())


class _Reader:
    """Reads one document: its methods check a node, and return a function that allocates memory for its chunks."""

    def __init__(self) -> None:
        # The number of parts of chunks that the remaining arrays of the document may have.
        self._left = _MAX_ENTRIES

    def plan_group(self, data: ManifestJson, where: str, depth: int) -> Callable[[], PartsGroup]:
        if depth > _MAX_DEPTH:
            raise ManifestError(where, f"at most {_MAX_DEPTH} nested groups", "more")
        arrays, groups = {}, {}
        for name, member in require_object(data.get("arrays", {}), f"{where}, arrays").items():
            inside = f"{where}, array {describe(name)}"
            arrays[name] = self.plan_array(require_object(member, inside), inside)
        for name, member in require_object(data.get("groups", {}), f"{where}, groups").items():
            inside = f"{where}, group {describe(name)}"
            groups[name] = self.plan_group(require_object(member, inside), inside, depth + 1)
        attributes = require_object(data.get("attributes", {}), f"{where}, attributes")
        return lambda: PartsGroup(
            {name: build() for name, build in arrays.items()},
            {name: build() for name, build in groups.items()},
            attributes,
        )

    def plan_array(self, data: ManifestJson, where: str) -> Callable[[], PartsArray]:
        metadata, _ = parse_metadata(require_object(data.get("metadata"), f"{where}, metadata"))
        declared = data.get("parts")
        if declared is not None and not isinstance(declared, list):
            raise ManifestError(f"{where}, parts", "a list, or null", describe(declared))
        parts = None if declared is None else ConcatParts([Part.from_json(part) for part in declared])
        count, grid = data.get("number_of_parts"), grid_of(metadata)
        if type(count) is not int or count < 1:
            raise ManifestError(f"{where}, number_of_parts", "an integer from 1", describe(count))
        # Each part needs some memory even without chunks.
        self._left -= max(count, count * math.prod(grid))
        if self._left < 0:
            expected = f"at most {_MAX_ENTRIES} parts of chunks in one document"
            raise ManifestError(where, expected, f"more, with {count} parts on a grid of {grid}")
        chunks = require_object(data.get("chunks"), f"{where}, chunks")
        checksums = _parse_checksums(data.get("checksums", {}), f"{where}, checksums")

        def build() -> PartsArray:
            pieces = ((parse_chunk_key(key, grid, where), _pieces(chunks[key], count, where, key)) for key in chunks)
            return PartsArray.of(References.from_pieces(metadata, count, pieces, checksums, parts), ())

        return build


def _pieces(values: object, count: int, array: str, key: str) -> list[Piece | None]:
    where = f"{array}, chunk {describe(key)}"
    if not isinstance(values, list) or len(values) != count:
        raise ManifestError(where, f"a list of {count} entries", describe(values))
    return [_piece(value, where) for value in values]


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


def _parse_checksums(data: object, where: str) -> Mapping[str, Checksum]:
    return {
        parse_location(location, where): _parse_checksum(value, f"{where}, {describe(location)}")
        for location, value in require_object(data, where).items()
    }


def _parse_checksum(value: object, where: str) -> Checksum:
    match value:
        case {"etag": str(etag), **rest} if not rest:
            return parse_checksum(etag, where)
        case {"last_modified": str(text), **rest} if not rest:
            try:
                return parse_checksum(datetime.fromisoformat(text), where)
            except ValueError as error:
                raise ManifestError(where, "a time in ISO 8601 format", describe(text)) from error
        case _:
            raise ManifestError(where, "{'etag': text}, or {'last_modified': time}", describe(value))


# --- kerchunk -----------------------------------------------------------------------------------------------------


def to_kerchunk(root: ReferenceNode) -> ManifestJson:
    """Return a kerchunk document. Parts that are adjacent in one file become one range."""
    found: ManifestJson = {}
    for path, node in root.nodes():
        found[join(path, DOCUMENT)] = json.dumps(node.document())
        if isinstance(node, PartsArray):
            for index, pieces in node.references.all_pieces():
                key = join(path, node.metadata.encode_chunk_key(index))
                found[key] = _kerchunk_entry(pieces, key)
    return {"version": 1, "refs": found}


def _kerchunk_entry(pieces: Sequence[Piece], key: str) -> str | list[Any]:
    """Return the bytes of a chunk, or its range of a file; its pieces may be adjacent ranges."""
    data = [piece for piece in pieces if isinstance(piece, bytes)]
    ranges = [piece for piece in pieces if isinstance(piece, FileRange)]
    if not ranges:
        return f"base64:{base64.b64encode(b''.join(data)).decode()}"
    is_adjacent = all(
        one.location == following.location and one.span.stop == following.span.start
        for one, following in pairwise(ranges)
    )
    if data or not is_adjacent:
        raise ManifestError(f"kerchunk, chunk {key!r}", "one range of one file", f"{len(pieces)} pieces")
    path = ranges[0].location
    if path.startswith("file:///"):
        # kerchunk uses fsspec, which expects the path of a local file, not percent-encoded.
        path = unquote(path.removeprefix("file://"))
    return [path, ranges[0].span.start, nbytes_of(*ranges)]
