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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, override

from parts_store.engine.steps import Put, Refer, Request, Steps, head, remove
from parts_store.errors import PartsConfigError, SessionError
from parts_store.format.keys import DOCUMENT, Chunk, ChunkKeyEncoding, PartPlacement, join
from parts_store.format.metadata import Document
from parts_store.format.references import Reference
from parts_store.format.tags import Tag
from parts_store.transactions import reading
from parts_store.transactions.locking import lock_chunk
from parts_store.transactions.protocol import ChunkProtocol, PartData
from parts_store.transactions.read_attempt import Attempt, ReadTask
from parts_store.transactions.rules import Rules
from parts_store.transactions.versions import Seen, require_still


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
    def write_if_absent(self, chunk: Chunk, data: Sequence[memoryview]) -> Steps[None]:
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


def _requests(chunk: Chunk, data: Sequence[PartData], rules: Rules) -> tuple[Request, ...]:
    tag = Tag(rules.new_generation(), "c", tuple(part.nbytes for part in data))
    return tuple(
        Refer(key, part, tag, "part of a chunk")
        if isinstance(part, Reference)
        else Put(key, part, tag, None, "part of a chunk")
        for key, part in zip(chunk.part_keys, data, strict=True)
    )
