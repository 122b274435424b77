"""Arrays that are stored, as references to what they are stored in: objects, or the chunks of an Icechunk session."""

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from icechunk import ChunkType, IcechunkError
from obspec_utils.registry import ObjectStoreRegistry
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import ArrayV3Metadata, sync
from parts_store.backends.addresses import url_of
from parts_store.engine.steps import Entry, Found, Get, List, Listed, Steps, content
from parts_store.errors import (
    ConcurrentWriteError,
    IncompleteChunkError,
    LocationError,
    ManifestError,
    PartSizeError,
    PartsStoreError,
    SessionError,
    raise_translated,
)
from parts_store.format.keys import DOCUMENT, Chunk, ChunkKeyEncoding, PartPlacement, join, part_node, side_folder_of
from parts_store.format.layout import plan_split
from parts_store.format.metadata import ArrayRecord, is_array, parse
from parts_store.format.parts import ConcatParts, Part
from parts_store.format.ranges import Span
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, grid_of, parse_metadata
from parts_store.manifests.entries import Checksum, Columns, FileRange, Piece
from parts_store.manifests.fetch_plan import nbytes_of, slice_piece
from parts_store.manifests.fetching import from_url, shown
from parts_store.redaction import hide_secrets
from parts_store.store import PartsStore

_PLAIN = ConcatParts([Part("")])
_AT_ONCE: Final = 32

type Index = tuple[int, ...]


def manifest_of(store: PartsStore, path: str, native_chunks_prefix: str | None, *, check: bool) -> PartsArray:
    """The array at a path as references, bound to the store that it is in."""
    if store.session is None:
        return _of_objects(store, path)
    return _of_session(store, path, native_chunks_prefix, check=check)


def _understand(store: PartsStore, path: str, stored: bytes | None) -> tuple[ArrayV3Metadata, ArrayRecord | None]:
    """What a document says of an array."""
    document = None if stored is None else parse(stored)
    if document is None or not is_array(document):
        raise ManifestError(f"path {path!r}", "an array of Zarr v3", "none")
    record = store.protocol.read_array(document, path)
    metadata, _ = parse_metadata(document)
    return metadata, record


# --- objects ------------------------------------------------------------------------------------------------------


def _of_objects(store: PartsStore, path: str) -> PartsArray:
    """An array in a store of objects, from one listing: each part a whole object."""
    store.require_listable()
    stored, entries = store.carry_out(_look(path))
    sizes = {key: entry.nbytes for key, entry in entries.items()}
    metadata, record = _understand(store, path, stored)
    parts = _PLAIN if record is None else record.parts
    base = url_of(store.store)
    columns = [Columns.empty(grid_of(metadata)) for _ in parts.parts]
    busy = {side_folder_of(key) for key in sizes}
    places: dict[str, tuple[Columns, Index]] = {}
    checksums: dict[str, Checksum] = {}
    for index, chunk in _chunks(metadata, parts, path, sizes).items():
        _require_whole(chunk, sizes, busy)
        for key, column in zip(chunk.part_keys, columns, strict=True):
            if base is None:
                places[key] = column, index
            elif sizes[key]:
                location = _location(base, key)
                column.put(index, FileRange(location, Span(0, sizes[key])))
                checksums[location] = _checksum(entries[key], base)
    for key, data in store.carry_out(_read(tuple(places))).items():
        if data:
            column, index = places[key]
            column.put(index, data)
    references = References.checked(metadata, [each.manifest() for each in columns], checksums)
    registries = () if base is None else (ObjectStoreRegistry({base: store.store}),)
    return PartsArray.of(references, None if record is None else parts, registries)


def _checksum(entry: Entry, base: str) -> Checksum:
    """Return by what an object is known that was changed since it was listed."""
    # Of a local disk, Icechunk compares the time alone.
    if entry.etag is None or base.startswith("file:"):
        return entry.modified
    # Azure lists ETags without the quotation marks that a response has.
    return entry.etag if entry.etag.endswith('"') else f'"{entry.etag}"'


def _look(path: str) -> Steps[tuple[bytes | None, dict[str, Entry]]]:
    """The document of an array, and everything below it."""
    got, listed = yield (
        Get(join(path, DOCUMENT), None, "the array to refer to"),
        List(path, "the objects to refer to"),
    )
    entries = listed.entries if isinstance(listed, Listed) else ()
    return content(got), {entry.key: entry for entry in entries}


def _read(keys: tuple[str, ...]) -> Steps[dict[str, bytes]]:
    """The bytes of objects that nobody else could read by their location."""
    outcomes = (yield tuple(Get(key, None, "a part to hold in the manifest") for key in keys)) if keys else ()
    return {key: content(outcome) or b"" for key, outcome in zip(keys, outcomes, strict=True)}


def _chunks(metadata: ArrayV3Metadata, parts: ConcatParts, path: str, sizes: Mapping[str, int]) -> dict[Index, Chunk]:
    """The chunks whose anchor is among the objects, by their places on the grid."""
    encoding = ChunkKeyEncoding.from_json(metadata.chunk_key_encoding.to_dict(), len(metadata.shape))
    anchor = parts.parts[parts.anchor].key_suffix
    grid = grid_of(metadata)
    found = {}
    start = len(path) + 1 if path else 0
    for key in sizes:
        relative = key[start:].removesuffix(anchor)
        if not key.endswith(anchor) or not encoding.is_chunk_key(relative):
            continue
        index = tuple(int(number) for number in re.findall("[0-9]+", relative)) if grid else ()
        if all(number < count for number, count in zip(index, grid, strict=True)):
            found[index] = Chunk(join(path, relative), parts, path)
    return found


def _require_whole(chunk: Chunk, sizes: Mapping[str, int], busy: Collection[str | None]) -> None:
    """Raise unless the parts of a chunk are there, of their sizes, and nobody is at work on them."""
    # A write that is not at its end may have replaced some parts and not others.
    if chunk.side_folder in busy:
        raise ConcurrentWriteError(chunk.chunk_key, "a write of it is not at its end; `store.repair()` if it is dead")
    missing = tuple(key for key in chunk.part_keys if key not in sizes)
    if missing:
        raise IncompleteChunkError(chunk.chunk_key, missing, ())
    for key, size in zip(chunk.part_keys, chunk.parts.sizes, strict=True):
        if size is not None and sizes[key] != size:
            raise PartSizeError(key, size, sizes[key])
        if size is None and not sizes[key]:
            raise ManifestError(f"part {key!r}", "at least one byte, for a manifest has no empty ranges", "none")


def _location(base: str, key: str) -> str:
    return f"{base}/{quote(key) if base.startswith('file:') else key}"


# --- sessions -----------------------------------------------------------------------------------------------------


def _of_session(store: PartsStore, path: str, native_chunks_prefix: str | None, *, check: bool) -> PartsArray:
    """An array in a session: virtual chunks where they are, inline ones as bytes, native ones below a prefix."""
    checks = _Checks(store, datetime.now(UTC)) if check else None
    (outcome,) = store.carry_out(_documents((path,)))
    metadata, record = _understand(store, path, outcome)
    parts = _PLAIN if record is None else record.parts
    anchors = sync(_session_chunks(store, path, metadata, native_chunks_prefix, checks))
    found: dict[Index, tuple[Piece, ...]]
    if record is None:
        found = {index: (piece,) for index, piece in anchors.items()}
    elif record.placement is PartPlacement.WHOLE:
        found = {index: _split(piece, parts, path) for index, piece in anchors.items()}
        if any(not nbytes_of([piece]) for pieces in found.values() for piece in pieces):
            # A manifest has no empty ranges: so it is one part.
            record, parts, found = None, _PLAIN, {index: (piece,) for index, piece in anchors.items()}
    else:
        found = _split_chunks(store, path, metadata, parts, anchors, native_chunks_prefix, checks)
    columns = [Columns.empty(grid_of(metadata)) for _ in parts.parts]
    for index, pieces in found.items():
        for column, piece in zip(columns, pieces, strict=True):
            column.put(index, piece)
    manifests = [each.manifest() for each in columns]
    references = References.checked(metadata, manifests, {} if checks is None else checks.checksums)
    return PartsArray.of(references, None if record is None else parts, ())


@dataclass(frozen=True, slots=True)
class _Checks:
    """Files of virtual chunks that are as they were when they were referred to, which Icechunk is asked.

    It does not tell the checksums that it keeps, but compares them when a chunk is read. A file that is as it was now
    must not be modified later.
    """

    store: PartsStore
    now: datetime
    checksums: dict[str, Checksum] = field(default_factory=dict)

    async def require_unchanged(self, chunks: Mapping[str, FileRange]) -> None:
        """Raise `LocationError` unless Icechunk reads the first byte of each of these virtual chunks, by their keys."""
        waiting = iter(chunks.items())

        async def work() -> None:
            for key, reference in waiting:
                await self._read_byte(key, reference.location)
                self.checksums[reference.location] = self.now

        workers = [asyncio.ensure_future(work()) for _ in range(min(_AT_ONCE, len(chunks)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _read_byte(self, key: str, location: str) -> None:
        try:
            await self.store.session.store.get(key, default_buffer_prototype(), RangeByteRequest(0, 1))
        except IcechunkError as error:
            said = str(error).strip().partition("\n")[0].replace(location, shown(location))
            problem = f"expected the file that {key!r} refers to as it was then, found: {said}"
            raise LocationError(shown(location), f"{problem}; `check=False` refers to it without asking") from error


def _documents(paths: tuple[str, ...]) -> Steps[tuple[bytes | None, ...]]:
    """Documents; that of a node of parts which is another array's is none."""
    outcomes = yield tuple(Get(join(path, DOCUMENT), None, "the array to refer to") for path in paths)
    return tuple(content(outcome) if isinstance(outcome, Found) else None for outcome in outcomes)


def _split(piece: Piece, parts: ConcatParts, path: str) -> tuple[Piece, ...]:
    """A whole chunk in its parts; in one if they do not tell where it is cut."""
    spans = plan_split(parts, nbytes_of([piece]), path)
    return tuple(slice_piece(piece, span) for span in spans)


def _split_chunks(
    store: PartsStore,
    path: str,
    metadata: ArrayV3Metadata,
    parts: ConcatParts,
    anchors: dict[Index, Piece],
    native_chunks_prefix: str | None,
    checks: _Checks | None,
) -> dict[Index, tuple[Piece, ...]]:
    """The chunks of a split array: the anchor is the array's own, every other part is that of a node."""
    by_part: list[dict[Index, Piece]] = []
    for number, part in enumerate(parts.parts):
        if number == parts.anchor:
            by_part.append(anchors)
            continue
        node = part_node(path, part.key_suffix)
        (document,) = store.carry_out(_documents((node,)))
        chunks = _session_chunks(store, node, metadata, native_chunks_prefix, checks) if document is not None else None
        by_part.append({} if chunks is None else sync(chunks))
    for index in anchors:
        chunk = Chunk(join(path, metadata.encode_chunk_key(index)), parts, path, is_split=True)
        missing = tuple(key for key, found in zip(chunk.part_keys, by_part, strict=True) if index not in found)
        if missing:
            raise IncompleteChunkError(chunk.chunk_key, missing, ())
    return {index: tuple(found[index] for found in by_part) for index in anchors}


async def _session_chunks(
    store: PartsStore,
    node: str,
    metadata: ArrayV3Metadata,
    native_chunks_prefix: str | None,
    checks: _Checks | None,
) -> dict[Index, Piece]:
    """Where the chunks of a node are. Icechunk's own have no location but below the repository's `chunks`."""
    grid = grid_of(metadata)
    found: dict[Index, Piece] = {}
    virtual: dict[str, FileRange] = {}
    try:
        async for batch in store.session.store.array_chunk_iterator(f"/{node}"):
            for row, (numbers, kind, path, offset, length) in enumerate(zip(*_listed(batch), strict=True)):
                index = tuple(numbers)
                if any(number >= count for number, count in zip(index, grid, strict=True)):
                    continue
                if kind == ChunkType.inline:
                    found[index] = bytes(batch[5][row])
                    continue
                location = _native(native_chunks_prefix, path, node) if kind == ChunkType.native else from_url(path)
                found[index] = reference = FileRange(location, Span(offset, offset + length))
                if kind == ChunkType.virtual:
                    virtual[join(node, metadata.encode_chunk_key(index))] = reference
        if checks is not None:
            await checks.require_unchanged(virtual)
    except PartsStoreError:
        raise
    except IcechunkError as error:
        raise_translated(SessionError(node, hide_secrets(str(error).strip().partition("\n")[0])), error)
    return found


def _listed(batch: Any) -> tuple[list[Any], ...]:
    coordinates, kinds, paths, offsets, lengths, _ = batch
    return coordinates.tolist(), list(kinds), list(paths), offsets.tolist(), lengths.tolist()


def _native(prefix: str | None, name: str, node: str) -> str:
    if prefix is None:
        expected = "`native_chunks_prefix`, the URL of the repository's 'chunks', to name a chunk that Icechunk keeps"
        raise ManifestError(f"session, array {node!r}", expected, "none")
    return f"{prefix.rstrip('/')}/{name}"
