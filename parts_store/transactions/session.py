"""The protocol for an Icechunk session, whose commit is the transaction.

Within the session, a chunk of one part is replaced by one request. A chunk whose parts are chunks of several nodes is
not, and a session may be committed after a write that failed. Therefore the other parts are removed first. If a write
ends after a step, this is what it leaves behind:

| overwrite, several nodes      | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| the other parts removed       | the old anchor                    | the chunk is incomplete       |
| the anchor                    | the new anchor                    | the chunk is incomplete       |
| the other parts               | the whole chunk                   | the new chunk                 |

A new chunk gets its anchor last, as in the other protocols. The earlier value is in the session's snapshot.

Every write and every delete touches every node of the chunk. Two sessions that change the same chunk therefore conflict
in all of its nodes, or in none, and a conflict solver decides the same for each node: no commit has parts of two
writers. This also has to hold for a new chunk whose write failed and that was committed nevertheless. So the anchor is
deleted first, although it does not exist: otherwise the anchor of the other session would be combined with these parts.

A session has no chunks with suffixes, but it has nodes below an array. The nodes of an array's parts are created,
changed and deleted with their array (`follow_array`). A session does not delete them with the array, and a new array at
the same path would inherit them. Therefore each node records the array that it belongs to, by the id that the session
gives to a node when it is created, and that the node keeps when it is moved. A node that belongs to no array, or to
another array, is stray, and its chunks are not parts of anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, override

from parts_store.engine.steps import Found, Get, Put, Refer, StepRequest, Steps, content, head, remove
from parts_store.errors import PartsConfigError, SessionError
from parts_store.format.keys import DOCUMENT, Chunk, ChunkKeyEncoding, PartPlacement, join, part_node
from parts_store.format.layout import Encoded
from parts_store.format.metadata import ArrayRecord, Document, dump, parse
from parts_store.format.references import Reference
from parts_store.format.tags import Tag
from parts_store.transactions import reading
from parts_store.transactions.locking import lock_chunk
from parts_store.transactions.protocol import ChunkProtocol, PartData
from parts_store.transactions.reading import Attempt, ReadTask, Seen, require_still
from parts_store.transactions.rules import Rules


@dataclass(frozen=True, slots=True)
class SessionProtocol(ChunkProtocol):
    """The protocol for an Icechunk session, whose commit is the transaction."""

    has_part_nodes: ClassVar[bool] = True
    can_discard_changes: ClassVar[bool] = True
    compares_plain_objects: ClassVar[bool] = False
    supports_consolidated_metadata: ClassVar[bool] = False

    @override
    def write(self, chunk: Chunk, data: Sequence[PartData], seen: Seen | None = None) -> Steps[None]:
        # Also for a single request: it must not come between the read and the write of another thread.
        yield from lock_chunk(chunk.side_folder, shares_array=False)
        if len(data) == 1 and seen is None:
            yield _requests(chunk, data, self.rules)
            return
        anchor = yield from head(chunk.anchor_key, reading.EXISTS)
        require_still(seen, anchor, chunk.chunk_key)
        yield from _write_parts(chunk, data, self.rules, is_new=anchor is None)

    @override
    def write_references(self, chunk: Chunk, data: Sequence[PartData]) -> Steps[None]:
        return self.write(chunk, data)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[Encoded]) -> Steps[None]:
        yield from lock_chunk(chunk.side_folder, shares_array=False)
        if (yield from head(chunk.anchor_key, reading.EXISTS)) is None:
            yield from _write_parts(chunk, data, self.rules, is_new=True)

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        yield from lock_chunk(chunk.side_folder, shares_array=False)
        if seen is not None:
            require_still(seen, (yield from head(chunk.anchor_key, reading.EXISTS)), chunk.chunk_key)
        yield from remove((chunk.anchor_key, *chunk.other_keys), "the chunk")

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        return reading.read_untagged(task, with_anchor=with_anchor, compares_again=False)

    @override
    def new_placement(self, *, is_split: bool) -> PartPlacement:
        return PartPlacement.SPLIT if is_split else PartPlacement.WHOLE

    @override
    def require_keepable(self, document: Document, path: str) -> None:
        try:
            encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), 0)
        except PartsConfigError as error:
            raise SessionError(join(path, DOCUMENT), str(error)) from error
        if (encoding.name, encoding.separator) != ("default", "/"):
            found = f"{encoding.name!r} with {encoding.separator!r}"
            problem = f"chunk_key_encoding: expected 'default' with '/', found {found}, which no session can store"
            raise SessionError(join(path, DOCUMENT), problem)

    @property
    @override
    def knows_dead_writers(self) -> bool:
        # No other client can write to the session.
        return True


def _write_parts(chunk: Chunk, data: Sequence[PartData], rules: Rules, *, is_new: bool) -> Steps[None]:
    """Write all parts in an order in which a mixture of two writes cannot be read."""
    requests = list(_requests(chunk, data, rules))
    anchor = requests.pop(chunk.parts.anchor)
    if not requests:
        yield (anchor,)
    elif is_new:
        yield from remove((chunk.anchor_key,), "conflict of two new chunks")
        yield tuple(requests)
        yield (anchor,)
    else:
        yield from remove(chunk.other_keys, "the rest of the old chunk")
        yield (anchor,)
        yield tuple(requests)


def _requests(chunk: Chunk, data: Sequence[PartData], rules: Rules) -> tuple[StepRequest, ...]:
    tag = Tag(rules.new_generation(), "c", tuple(part.nbytes for part in data))
    return tuple(
        Refer(key, part, tag, "part of a chunk")
        if isinstance(part, Reference)
        else Put(key, part, tag, None, "part of a chunk")
        for key, part in zip(chunk.part_keys, data, strict=True)
    )


_OWNER = "array_node_id"


def owner_of_node(document: Document | None) -> str | None:
    """Return the id of the array that a node belongs to, None if its document does not say."""
    attributes = None if document is None else document.get("attributes")
    owner = attributes.get(_OWNER) if isinstance(attributes, dict) else None
    return owner if isinstance(owner, str) else None


def part_node_keys(path: str, record: ArrayRecord) -> tuple[str, ...]:
    """Return the keys of the documents of the nodes of an array's parts."""
    if record.placement is not PartPlacement.SPLIT:
        return ()
    others = [part for number, part in enumerate(record.parts.parts) if number != record.parts.anchor]
    return tuple(join(part_node(path, part.key_suffix), DOCUMENT) for part in others)


def follow_array(path: str, record: ArrayRecord) -> Steps[None]:
    """Create the nodes of an array's parts, or give them the shape of the array."""
    keys = part_node_keys(path, record)
    if not keys:
        return
    array = yield from head(join(path, DOCUMENT), "which node the array is")
    if array is None or array.version is None:
        raise SessionError(join(path, DOCUMENT), "the array does not exist any more")
    expected = dump(_document(record.stored, array.version))
    outcomes = yield tuple(Get(key, None, "whether the node of a part is there") for key in keys)
    found = dict(zip(keys, outcomes, strict=True))
    # A stray node is not reported as found. Its chunks must not become parts of this array.
    strays = tuple(key for key, outcome in found.items() if not isinstance(outcome, Found))
    if strays:
        yield from remove(strays, "nodes of another array")
    changed = [key for key, outcome in found.items() if not _is_same(content(outcome), expected)]
    if changed:
        yield tuple(Put(key, expected, None, None, "node of a part") for key in changed)


def _is_same(stored: bytes | None, expected: bytes) -> bool:
    return stored is not None and parse(stored) == parse(expected)


def _document(array: Document, owner: str) -> Document:
    """Return the document of a node whose chunks are parts of an array's chunks: only what a session requires."""
    codecs: list[dict[str, Any]] = [{"name": "bytes"}]
    copied = {key: array[key] for key in ("zarr_format", "node_type", "shape", "chunk_grid", "chunk_key_encoding")}
    return {**copied, "data_type": "uint8", "fill_value": 0, "codecs": codecs, "attributes": {_OWNER: owner}}
