"""Write arrays of references to an Icechunk session: ranges of files become virtual references."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zarr.buffer import default_buffer_prototype

from parts_store import destination
from parts_store._compat.zarr import DefaultChunkKeyEncoding, normalize_path, sync
from parts_store.engine.concurrency import run_for_each
from parts_store.errors import LocationError, StoreConfigError
from parts_store.format.keys import DOCUMENT, is_node_key, join
from parts_store.format.parts import ConcatParts
from parts_store.format.references import Reference
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, document_of, require_parts, with_sizes
from parts_store.manifests.entries import to_icechunk_url
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.pieces import FileRange, Piece
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that will be written. Its parts are None if its chunks have one part without a declaration."""

    path: str
    references: References
    document: dict[str, Any]
    parts: ConcatParts | None


def write(root: PartsArray | PartsGroup, session: Any, path: str, *, overwrite: bool) -> None:
    """Write an array or a group to a session, after everything was checked."""
    # Raises if the session is read-only, or was committed.
    store = PartsStore.from_session(session).with_read_only(False)
    path = normalize_path(path)
    if is_node_key(path):
        raise StoreConfigError("path", "a path that is not reserved for parts of an array", repr(path))
    found = dict(root.nodes(path)) if isinstance(root, PartsGroup) else {path: root}
    arrays = [_plan(where, node) for where, node in found.items() if isinstance(node, PartsArray)]
    groups = {where: node.document() for where, node in found.items() if isinstance(node, PartsGroup)}
    for each in arrays:
        _require_locations(store, each.references)
    ancestors = destination.read_ancestors(store, path)
    destination.require_outside_arrays(ancestors, path, "path")
    if overwrite:
        destination.clear(store, path)
    else:
        # The document of the root group is replaced.
        destination.require_empty(store, path, "path", ignored=() if path else (DOCUMENT,))
    missing = [above for above, documents in ancestors.items() if not documents]
    sync(_write(store, missing, groups, arrays))


def _plan(path: str, array: PartsArray) -> PlannedArray:
    """Return the array with chunk keys that a session can store."""
    encoding = DefaultChunkKeyEncoding(separator="/")
    metadata = dataclasses.replace(array.metadata, chunk_key_encoding=encoding)
    references = References(metadata, array.manifests, array.checksums)
    if array.declared_parts is None and len(array.manifests) == 1:
        parts = None
    else:
        parts = array.parts if array.declared_parts is not None else with_sizes(references, array.parts)
        require_parts(references, parts)
        if 0 in parts.sizes and len(parts.parts) > 1:
            raise StoreConfigError(
                f"array {path!r}", "parts with bytes, because a session stores no empty parts", "size 0"
            )
    return PlannedArray(path, references, document_of(metadata), parts)


def _require_locations(store: PartsStore, references: References) -> None:
    """Raise if a file is outside the virtual chunk containers of the repository."""
    locations = (each for manifest in references.manifests for each in manifest.iter_nonempty_paths())
    for location in dict.fromkeys(locations):
        if location.endswith("/"):
            raise LocationError(hide_in_url(location), "expected a file, found a folder")
        store.require_location(Reference(to_icechunk_url(location), offset=0, length=1))


async def _write(
    store: PartsStore, missing: Iterable[str], groups: Mapping[str, dict[str, Any]], arrays: Iterable[PlannedArray]
) -> None:
    """Write the groups that are missing above the path, then the groups and the arrays."""
    for path in missing:
        await _set(store, path, PartsGroup().document())
    for path, document in groups.items():
        await _set(store, path, document)
    for each in arrays:
        await _write_array(store, each)


async def _set(store: PartsStore, path: str, document: dict[str, Any]) -> None:
    buffer = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    await store.set(join(path, DOCUMENT), buffer)


async def _write_array(store: PartsStore, array: PlannedArray) -> None:
    if array.parts is None:
        await _set(store, array.path, array.document)
    else:
        escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in array.path)
        await _set(store.with_parts({escaped: array.parts}, split=True), array.path, array.document)

    async def write_chunk(chunk: tuple[tuple[int, ...], tuple[Piece, ...]]) -> None:
        key = join(array.path, array.references.metadata.encode_chunk_key(chunk[0]))
        await store.set_parts_async(key, [_value(piece) for piece in chunk[1]])

    await run_for_each(list(array.references.all_pieces()), write_chunk, _AT_ONCE)


def _value(piece: Piece) -> Reference | bytes:
    if isinstance(piece, FileRange):
        return Reference(to_icechunk_url(piece.location), piece.span.start, piece.nbytes, piece.checksum)
    return piece
