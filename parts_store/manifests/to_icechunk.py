"""Arrays of references written to an Icechunk session: ranges of files as virtual references, bytes as they are."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import DefaultChunkKeyEncoding, normalize_path, sync
from parts_store.errors import LocationError, StoreConfigError
from parts_store.format.keys import DOCUMENT, is_node_key, join
from parts_store.format.parts import ConcatParts
from parts_store.format.references import Reference
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, document_of, require_parts, with_sizes
from parts_store.manifests.entries import FileRange, Piece
from parts_store.manifests.fetching import shown, to_url
from parts_store.manifests.group import PartsGroup
from parts_store.store import PartsStore

_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Writing:
    """An array as it will be written: its path, document, and parts; None if its chunks are Icechunk's own."""

    path: str
    references: References
    document: dict[str, Any]
    parts: ConcatParts | None


def write(root: PartsArray | PartsGroup, session: Any, path: str, *, overwrite: bool) -> None:
    """Write an array or a group to a session, all of it checked before."""
    # Raises if the session is read only, or was committed.
    store = PartsStore.from_session(session).with_read_only(False)
    path = normalize_path(path)
    if is_node_key(path):
        raise StoreConfigError("path", "a path that is not for the parts of an array", repr(path))
    found = dict(root.nodes(path)) if isinstance(root, PartsGroup) else {path: root}
    arrays = [_plan(where, node) for where, node in found.items() if isinstance(node, PartsArray)]
    groups = {where: node.document() for where, node in found.items() if isinstance(node, PartsGroup)}
    for each in arrays:
        _require_locations(store, each.references)
    sync(_require_free(store, path, overwrite=overwrite))
    sync(_write(store, path, groups, arrays, overwrite=overwrite))


def _plan(path: str, array: PartsArray) -> Writing:
    """The array, with chunk keys that a session can keep."""
    encoding = DefaultChunkKeyEncoding(separator="/")
    metadata = dataclasses.replace(array.metadata, chunk_key_encoding=encoding)
    references = References(metadata, array.manifests, array.checksums)
    if array.declared_parts is None and len(array.manifests) == 1:
        parts = None
    else:
        parts = array.parts if array.declared_parts is not None else with_sizes(references, array.parts)
        require_parts(references, parts)
        if 0 in parts.sizes and len(parts.parts) > 1:
            raise StoreConfigError(f"array {path!r}", "parts with bytes, for a session keeps none without", "size 0")
    return Writing(path, references, document_of(metadata), parts)


def _require_locations(store: PartsStore, references: References) -> None:
    """Raise if a file is outside of the repository's containers, each once."""
    seen: set[str] = set()
    for manifest in references.manifests:
        for location in manifest.iter_nonempty_paths():
            if location not in seen:
                seen.add(location)
                if location.endswith("/"):
                    raise LocationError(shown(location), "expected a file, found a folder")
                store.require_location(Reference(to_url(location), offset=0, length=1))


async def _require_free(store: PartsStore, path: str, *, overwrite: bool) -> None:
    """Raise if something is at the path already, or an array above it."""
    if path and not overwrite and await store.exists(join(path, DOCUMENT)):
        raise StoreConfigError("path", "a path where nothing is, or `overwrite=True`", repr(path))
    if not path and not overwrite and {name async for name in store.list_dir("")} - {DOCUMENT}:
        raise StoreConfigError("path", "an empty session for the root, or `overwrite=True`", "one with nodes")
    for above in _above(path):
        found = await store.get(join(above, DOCUMENT), default_buffer_prototype())
        if found is not None and json.loads(found.to_bytes()).get("node_type") == "array":
            raise StoreConfigError("path", "a path that is not in an array", repr(path))


def _above(path: str) -> Iterator[str]:
    """The paths above a path, the root first."""
    segments = path.split("/") if path else []
    for count in range(len(segments)):
        yield "/".join(segments[:count])


async def _write(
    store: PartsStore, path: str, groups: dict[str, dict[str, Any]], arrays: list[Writing], *, overwrite: bool
) -> None:
    if overwrite:
        await store.delete_dir(path)
    for above in _above(path):
        if not await store.exists(join(above, DOCUMENT)):
            await _set(store, above, PartsGroup().document())
    for where, document in groups.items():
        # The root of a session is there from the beginning.
        await _set(store, where, document)
    for each in arrays:
        await _write_array(store, each)


async def _set(store: PartsStore, path: str, document: dict[str, Any]) -> None:
    buffer = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    await store.set(join(path, DOCUMENT), buffer)


async def _write_array(store: PartsStore, array: Writing) -> None:
    if array.parts is None:
        await _set(store, array.path, array.document)
    else:
        escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in array.path)
        await _set(store.with_parts({escaped: array.parts}, split=True), array.path, array.document)
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(index: tuple[int, ...], pieces: tuple[Piece, ...]) -> None:
        key = join(array.path, array.references.metadata.encode_chunk_key(index))
        async with free:
            await store.set_parts_async(key, [_value(piece) for piece in pieces])

    tasks = [asyncio.ensure_future(one(*each)) for each in array.references.all_pieces()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _value(piece: Piece) -> Reference | bytes:
    if isinstance(piece, FileRange):
        return Reference(to_url(piece.location), piece.span.start, piece.nbytes, piece.checksum)
    return piece
