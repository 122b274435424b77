"""Make arrays of references from stored arrays: from the objects of a store, or the chunks of an Icechunk session."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from icechunk import ChunkType, IcechunkError
from obspec_utils.registry import ObjectStoreRegistry
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import ArrayV3Metadata, sync
from parts_store.errors import (
    ConcurrentWriteError,
    IncompleteChunkError,
    LocationError,
    ManifestError,
    PartSizeError,
    SessionError,
    raise_translated,
)
from parts_store.redaction import hide_in_url
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import (
    Checksum,
    FileRange,
    Piece,
    from_icechunk_url,
    is_in_grid,
    nbytes_of,
    slice_piece,
)
from parts_store.virtual.manifests.references import References, chunk_of_key, grid_of, parse_metadata
from parts_store.virtual.store_access import (
    DOCUMENT,
    ArrayRecord,
    Chunk,
    ConcatParts,
    Entry,
    Found,
    Get,
    Head,
    List,
    Listed,
    Part,
    PartPlacement,
    PartsStore,
    Span,
    Steps,
    content,
    get_all,
    is_array,
    join,
    message_of,
    parse,
    part_node,
    plan_split,
    run_for_each,
    side_folder_of,
    url_of,
)

_PLAIN = ConcatParts([Part("")])
_AT_ONCE: Final = 32
_UNFINISHED: Final = "a write of it is unfinished; if the writer is dead, run `store.repair()`"

type ChunkIndex = tuple[int, ...]
type ChunkPieces = Mapping[ChunkIndex, Piece]
"""The pieces of one part of an array, by the indexes of its chunks."""
type Chunks = Mapping[ChunkIndex, Sequence[Piece]]
"""The pieces of all parts of an array, by the indexes of its chunks."""


def manifest_of(
    store: PartsStore, path: str, *, native_chunks_prefix: str | None = None, check: bool = True
) -> PartsArray:
    """Return an array of a store as references to the objects or files that it is stored in.

    `store.manifest(path)` is the same.

    Parameters
    ----------
    store
        The store that contains the array.
    path
        The path of the array in the store.
    native_chunks_prefix
        For an Icechunk session with chunks that Icechunk stores itself: the URL of the repository's folder `chunks`.
    check
        For an Icechunk session: whether to ask Icechunk, with a request of one byte for each reference, whether the
        files that it refers to are unchanged. Without the check, such changes go unnoticed.

    Returns
    -------
    PartsArray
        The array. Data that is only in memory, or inline in a session, is contained in it.

    Raises
    ------
    ManifestError
        If there is no array of Zarr v3 at the path, or if it cannot be referred to.
    LocationError
        If a file that a session refers to was changed.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(store, "a", parts=["", ps.Part(".crc", size=4)], shape=(8,), chunks=(4,), dtype="uint8")
    >>> array[:] = 7
    >>> ps.manifests.manifest_of(store, "a").parts == store.parts_of("a")
    True
    """
    path = path.strip("/")
    if store.session is None:
        return _of_objects(store, path)
    return _SessionArray(store, path, native_chunks_prefix, check).manifest()


def referred_array(store: PartsStore, path: str, now: datetime) -> PartsArray:
    """Return an array of a session as references, to write it again: parts that the session stores are read.

    Files that are modified later than `now`, in whole seconds, are not read any more. It must be in an earlier second.
    """
    return _SessionArray(store, path, None, is_checked=True, reads_parts=True, now=now).manifest()


def _read_document(store: PartsStore, path: str, stored: bytes | None) -> tuple[ArrayV3Metadata, ArrayRecord | None]:
    """Return the metadata of an array, and its parts if it has any."""
    document = None if stored is None else parse(stored)
    if document is None or not is_array(document):
        raise ManifestError(f"path {path!r}", "a Zarr v3 array", "none")
    record = store.protocol.read_array(document, path)
    metadata, _ = parse_metadata(document)
    return metadata, record


def _references(
    metadata: ArrayV3Metadata, parts: ConcatParts | None, chunks: Chunks, checksums: Mapping[str, Checksum]
) -> References:
    """Return the references of an array; a part of size 0 has no entries."""
    sizes: Sequence[int | None] = [None] if parts is None else parts.sizes
    with_bytes = (
        (index, [None if size == 0 else piece for size, piece in zip(sizes, pieces, strict=True)])
        for index, pieces in chunks.items()
    )
    return References.from_pieces(metadata, len(sizes), with_bytes, checksums, parts)


# --- objects ------------------------------------------------------------------------------------------------------


def _of_objects(store: PartsStore, path: str) -> PartsArray:
    """Return an array in an object store, after one listing: each part is a whole object."""
    store.require_listable()
    stored, entries = store.carry_out(_list_array(path))
    metadata, record = _read_document(store, path, stored)
    parts = _PLAIN if record is None else record.parts
    chunks = dict(_find_chunks(metadata, parts, path, entries))
    being_written = {side_folder_of(key) for key in entries}
    for chunk in chunks.values():
        _require_complete(chunk, entries, being_written)
    store.carry_out(_require_one_write([*filter(store.protocol.writes_without_trace, chunks.values())]))
    base = url_of(store.store)
    keys = [key for chunk in chunks.values() for key in chunk.part_keys]
    pieces, checksums = _pieces_of_objects(store, base, keys, entries)
    in_parts = {index: [pieces[key] for key in chunk.part_keys] for index, chunk in chunks.items()}
    registries = () if base is None else (ObjectStoreRegistry({base: store.store}),)
    references = _references(metadata, None if record is None else parts, in_parts, checksums)
    return PartsArray.of(references, registries, path)


def _list_array(path: str) -> Steps[tuple[bytes | None, dict[str, Entry]]]:
    """Return the metadata document of an array, and all objects below its path."""
    got, listed = yield (
        Get(join(path, DOCUMENT), None, "the array to refer to"),
        List(path, "the objects to refer to"),
    )
    entries = listed.entries if isinstance(listed, Listed) else ()
    return content(got), {entry.key: entry for entry in entries}


def _pieces_of_objects(
    store: PartsStore, base: str | None, keys: Sequence[str], entries: Mapping[str, Entry]
) -> tuple[dict[str, Piece], dict[str, Checksum]]:
    """Return the pieces that are these objects, and the checksums of the files among them.

    Objects without a URL, such as those in memory, are read, because references to them could not be resolved.
    """
    if base is None:
        contents = store.carry_out(get_all(keys, "a part to inline in the manifest"))
        return {key: data or b"" for key, data in contents.items()}, {}
    locations = {key: f"{base}/{quote(key) if base.startswith('file:') else key}" for key in keys}
    pieces: dict[str, Piece] = {
        key: FileRange(location, Span(0, entries[key].nbytes)) for key, location in locations.items()
    }
    return pieces, {location: _checksum(entries[key], base) for key, location in locations.items()}


def _checksum(entry: Entry, base: str) -> Checksum:
    """Return the checksum of a listed object."""
    # For local files, Icechunk compares only times.
    if entry.etag is None or base.startswith("file:"):
        return entry.modified
    # Azure lists ETags without the quotation marks that its responses have.
    return entry.etag if entry.etag.endswith('"') else f'"{entry.etag}"'


def _find_chunks(
    metadata: ArrayV3Metadata, parts: ConcatParts, path: str, keys: Collection[str]
) -> Iterator[tuple[ChunkIndex, Chunk]]:
    """Yield the index and the keys of every chunk whose anchor is among the keys."""
    anchor = parts.parts[parts.anchor].key_suffix
    start = len(join(path, ""))
    for key in keys:
        relative = key[start:].removesuffix(anchor)
        if key.endswith(anchor) and (index := chunk_of_key(metadata, relative)) is not None:
            yield index, Chunk(join(path, relative), parts, path)


def _require_complete(chunk: Chunk, entries: Mapping[str, Entry], being_written: Collection[str | None]) -> None:
    """Raise unless all parts of a chunk are stored with their sizes, and no write of the chunk is unfinished."""
    # An unfinished write may have replaced only some of the parts.
    if chunk.side_folder in being_written:
        raise ConcurrentWriteError(chunk.chunk_key, _UNFINISHED)
    missing = tuple(key for key in chunk.part_keys if key not in entries)
    if missing:
        raise IncompleteChunkError(chunk.chunk_key, missing, ())
    for key, size in zip(chunk.part_keys, chunk.parts.sizes, strict=True):
        if size is not None and entries[key].nbytes != size:
            raise PartSizeError(key, size, entries[key].nbytes)
        if size is None and not entries[key].nbytes:
            raise ManifestError(f"part {key!r}", "at least one byte, because manifests have no empty ranges", "none")


def _require_one_write(chunks: Sequence[Chunk]) -> Steps[None]:
    """Raise unless the parts of each chunk have the same tag: a listing does not show these unfinished writes."""
    heads = tuple(Head(key, "which write it belongs to") for chunk in chunks for key in chunk.part_keys)
    outcomes = iter((yield heads) if heads else ())
    for chunk in chunks:
        found = list(itertools.islice(outcomes, len(chunk.part_keys)))
        if len({head.generation if isinstance(head, Found) else "missing" for head in found}) > 1:
            raise ConcurrentWriteError(chunk.chunk_key, _UNFINISHED)


# --- sessions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SessionArray:
    """An array in an Icechunk session.

    Virtual chunks become ranges of files, inline chunks become bytes, and native chunks become files below a prefix.
    """

    store: PartsStore
    path: str
    native_chunks_prefix: str | None
    # Whether Icechunk is asked whether the files of virtual chunks are unchanged.
    is_checked: bool
    # Whether parts that Icechunk stores itself are read. Else they become files below the prefix.
    reads_parts: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    # Of the files that Icechunk found unchanged.
    checksums: dict[str, Checksum] = field(default_factory=dict)

    def manifest(self) -> PartsArray:
        """Return the array as references."""
        metadata, record = _read_document(self.store, self.path, self._document(self.path))
        anchors = sync(self._node_chunks(self.path, metadata))
        parts = None if record is None else record.parts
        chunks: Chunks = {}
        if record is not None and record.placement is PartPlacement.WHOLE:
            chunks = {
                index: [slice_piece(piece, span) for span in plan_split(record.parts, nbytes_of(piece), self.path)]
                for index, piece in anchors.items()
            }
            if not all(nbytes_of(piece) for pieces in chunks.values() for piece in pieces):
                # Manifests have no empty ranges, so the array gets one part.
                parts = None
        elif record is not None:
            chunks = self._read_split(metadata, record.parts, anchors)
        if parts is None:
            chunks = {index: [piece] for index, piece in anchors.items()}
        return PartsArray.of(_references(metadata, parts, chunks, self.checksums), (), self.path)

    def _document(self, path: str) -> bytes | None:
        key = join(path, DOCUMENT)
        return self.store.carry_out(get_all((key,), "the array to refer to"))[key]

    def _read_split(self, metadata: ArrayV3Metadata, parts: ConcatParts, anchors: ChunkPieces) -> Chunks:
        """Return the parts of a split array: each part except the anchor is a chunk of another node."""
        by_part: list[ChunkPieces] = []
        for number, part in enumerate(parts.parts):
            node = part_node(self.path, part.key_suffix)
            if number == parts.anchor:
                by_part.append(anchors)
            elif self._document(node) is None:
                by_part.append({})
            else:
                by_part.append(sync(self._node_chunks(node, metadata, reads_native=self.reads_parts)))
        for index in anchors:
            chunk = Chunk(join(self.path, metadata.encode_chunk_key(index)), parts, self.path, is_split=True)
            missing = tuple(key for key, found in zip(chunk.part_keys, by_part, strict=True) if index not in found)
            if missing:
                raise IncompleteChunkError(chunk.chunk_key, missing, ())
        # Without its anchor, a chunk does not exist.
        return {index: [pieces[index] for pieces in by_part] for index in anchors}

    async def _node_chunks(self, node: str, metadata: ArrayV3Metadata, *, reads_native: bool = False) -> ChunkPieces:
        """Return the chunks of a node; raise if a file of a virtual chunk was changed."""
        grid = grid_of(metadata)
        found: dict[ChunkIndex, Piece] = {}
        virtual: dict[str, str] = {}
        native: dict[ChunkIndex, str] = {}
        try:
            async for batch in self.store.session.store.array_chunk_iterator(f"/{node}"):
                coordinates, kinds, paths, offsets, lengths, inlined = batch
                rows = zip(coordinates.tolist(), kinds, paths, offsets.tolist(), lengths.tolist(), strict=True)
                for row, (numbers, kind, path, offset, length) in enumerate(rows):
                    index = tuple(numbers)
                    if not is_in_grid(index, grid):
                        continue
                    if kind == ChunkType.inline:
                        found[index] = bytes(inlined[row])
                    elif kind == ChunkType.native and reads_native:
                        native[index] = join(node, metadata.encode_chunk_key(index))
                    elif kind == ChunkType.native:
                        found[index] = FileRange(self._native_location(path, node), Span(offset, offset + length))
                    else:
                        location = from_icechunk_url(path)
                        found[index] = FileRange(location, Span(offset, offset + length))
                        virtual[join(node, metadata.encode_chunk_key(index))] = location
            contents = await run_for_each(native.values(), self._read, _AT_ONCE)
            found.update(zip(native, contents, strict=True))
            if self.is_checked:
                await run_for_each(virtual.items(), self._require_unchanged, _AT_ONCE)
        except IcechunkError as error:
            raise_translated(SessionError(node, message_of(error, self.store.session)), error)
        return found

    async def _read(self, key: str) -> bytes:
        stored = await self.store.session.store.get(key, default_buffer_prototype())
        if stored is None:
            raise SessionError(key, "expected a chunk that was listed, found none")
        return bytes(stored.to_bytes())

    async def _require_unchanged(self, chunk: tuple[str, str]) -> None:
        """Raise `LocationError` unless Icechunk can read the first byte of a virtual chunk.

        Icechunk does not return the checksums that it keeps. It compares them when a chunk is read. So the checksum in
        the manifest is the time of this comparison: the file must not be modified later.
        """
        key, location = chunk
        try:
            await self.store.session.store.get(key, default_buffer_prototype(), RangeByteRequest(0, 1))
        except IcechunkError as error:
            reason = message_of(error, self.store.session).replace(location, hide_in_url(location))
            problem = f"expected the file that {key!r} refers to unchanged, found: {reason}"
            advice = "with `check=False` the file is not checked"
            raise LocationError(hide_in_url(location), f"{problem}; {advice}") from error
        self.checksums[location] = self.now

    def _native_location(self, name: str, node: str) -> str:
        if self.native_chunks_prefix is None:
            expected = "`native_chunks_prefix`, the URL of the folder 'chunks' of the repository, for native chunks"
            raise ManifestError(f"session, array {node!r}", expected, "none")
        return f"{self.native_chunks_prefix.rstrip('/')}/{name}"
