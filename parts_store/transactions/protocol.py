"""The interface of the protocols that make a chunk atomic.

A store has one protocol, which is chosen by what the backend can do when the store is opened (`protocol_choice`). The
other modules call the protocol, and never ask which kind of backend they have.

| module      | backend                  | a chunk is committed by                                          |
|-------------|--------------------------|------------------------------------------------------------------|
| `tagged`    | object stores, memory    | the write of its anchor, whose tag names the write of all parts  |
| `journaled` | local disk               | a journal, written under a lock, and renames                     |
| `session`   | Icechunk                 | the commit of the session                                        |
| `protocol`  | plain HTTP               | cannot be written; ETags show whether it changed during a read   |

A partial write of a shard (`Change`) keeps what other clients have written to its other inner chunks meanwhile. It has
read the shard, changed some inner chunks, and writes all of them. If another client has written the shard in between,
the write is not refused at once (`ChunkProtocol.change`): the shard of the other client is read, and the inner chunks
that this writer changed are put in. The result is written on the condition that the shard is still that of the other
client, and so on. Each inner chunk is then as if both writes had been carried out one after the other.

The partial write raises `ConcurrentWriteError`, and nothing is written, if both clients changed the same inner chunk,
if a shard is not as zarr writes it, if the array was resized, and if the shard that was read is not known any more. It
raises `LayoutChangedError` if the array was deleted, or created again with other chunks.
"""

from abc import ABC, abstractmethod
from collections.abc import Buffer, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Never, Self, override

from parts_store.engine import steps
from parts_store.engine.steps import DATA, Done, Entry, Found, Put, Steps, head, remove, run_together
from parts_store.errors import ChunkSizeError, ConcurrentWriteError, SessionError, StoreConfigError
from parts_store.format import metadata
from parts_store.format.keys import PROTOCOL_FOLDER, Chunk, PartPlacement, is_node_key, is_protocol_key, join
from parts_store.format.layout import Encoded, Wanted
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.format.references import Reference
from parts_store.format.shard_index import NotMergedError, Shard, ShardIndex, empty_shard, is_empty, merge_shards
from parts_store.transactions import reading
from parts_store.transactions.reading import (
    NOT_AS_SEEN,
    WHOSE,
    Absent,
    Attempt,
    Outdated,
    Read,
    ReadSettings,
    ReadTask,
    Seen,
    Version,
    require_unedited,
    result_of,
)
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.server import Features


@dataclass(frozen=True, slots=True)
class Unknown:
    """A shard that was read, and whose bytes are not known any more."""


@dataclass(slots=True)
class Change:
    """A partial write of a shard: the shard that was read, and what is written instead."""

    chunk: Chunk
    index: ShardIndex
    base: Shard | Unknown
    # None if no inner chunk is left.
    mine: Shard
    # Cuts a shard into the parts of the chunk.
    cut: Callable[[memoryview], Sequence[Encoded]]
    # Raises an error if the array is not the same any more.
    confirm: Callable[[], Steps[None]]

    @property
    def parts(self) -> Sequence[Encoded] | None:
        """The parts to write, None if no inner chunk is left."""
        return None if self.mine is None else self.cut(self.mine)

    @property
    def empty_parts(self) -> Sequence[Encoded] | None:
        """The parts of a shard without inner chunks, None if such a shard does not fit the parts."""
        try:
            return self.cut(empty_shard(self.index))
        except ChunkSizeError:
            return None

    @property
    def has_no_effect(self) -> bool:
        """Whether no inner chunk is left, and there was none before."""
        return self.mine is None and not isinstance(self.base, Unknown) and is_empty(self.index, self.base)

    def follow(self, read: Read | None) -> bool:
        """Change what another client has stored instead of the base; return False if nothing is left to change.

        Raises
        ------
        ConcurrentWriteError
            If the changes of both cannot be kept.
        """
        if isinstance(self.base, Unknown):
            raise ConcurrentWriteError(self.chunk.chunk_key, NOT_AS_SEEN)
        require_unedited(self.chunk, self.index, None if read is None else read.values[0])
        theirs = None if read is None else memoryview(b"".join(read.values[0] or ()))
        try:
            merged = merge_shards(self.index, self.base, self.mine, theirs)
        except NotMergedError as error:
            raise ConcurrentWriteError(self.chunk.chunk_key, str(error)) from None
        self.base, self.mine = theirs, merged.shard
        return merged.differs


type PartData = Encoded | Reference
"""The bytes of a part, or a reference to a range of an existing file."""


@dataclass(frozen=True, slots=True)
class ChunkProtocol(ABC):
    """The way in which a store makes the parts of a chunk atomic."""

    rules: Rules

    # The parts of a chunk carry tags, which identify their write and the layout of their array. A server may lack what
    # tags need, so it is asked before the first write.
    has_tags: ClassVar[bool] = False
    # A write in progress is described by a journal beside the chunk.
    has_journal: ClassVar[bool] = False
    # Parts are chunks of nodes of their own, and the chunks of a node are deleted with it.
    has_part_nodes: ClassVar[bool] = False
    # A folder is deleted one array or group at a time, each under its own lock.
    locks_arrays: ClassVar[bool] = False
    # All changes since the last commit can be discarded, so that an array may vanish.
    can_discard_changes: ClassVar[bool] = False
    # Ranges of an object without parts are compared with the object that an earlier range came from.
    compares_plain_objects: ClassVar[bool] = True
    # Objects can be written, deleted and listed.
    can_write: ClassVar[bool] = True
    # Groups may have consolidated metadata.
    supports_consolidated_metadata: ClassVar[bool] = True

    # --- writing a chunk ------------------------------------------------------------------------------------------

    @abstractmethod
    def write(self, chunk: Chunk, data: Sequence[Encoded], seen: Seen | None = None) -> Steps[None]:
        """Write all parts of a chunk, whether it exists or not.

        `seen` is what the caller read of the chunk to compute the new value. If the chunk has changed since, the write
        raises `ConcurrentWriteError` and changes nothing.
        """

    def writes_without_trace(self, chunk: Chunk) -> bool:
        """Return whether a listing does not show that a write of a chunk is unfinished."""
        return False

    @abstractmethod
    def write_if_absent(self, chunk: Chunk, data: Sequence[Encoded]) -> Steps[None]:
        """Write all parts of a chunk unless it exists."""

    @abstractmethod
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        """Delete a chunk; raise `ConcurrentWriteError` if it has changed since it was `seen`."""

    def change(self, change: Change, seen: Seen, settings: ReadSettings) -> Steps[None]:
        """Write a change of a shard that was `seen`; if it has changed since, merge both changes, and try again."""
        attempts = 0
        while not change.has_no_effect:
            try:
                yield from self._write_change(change, seen)
            except ConcurrentWriteError as error:
                lost = error
            else:
                return
            if attempts and not (yield from steps.wait_for_others(attempts)):
                raise lost
            attempts += 1
            reading_again = self.read(change.chunk, [None], settings, with_anchor=True)
            read, _ = yield from run_together([reading_again, change.confirm()])
            if not change.follow(read):
                return
            seen = Absent() if read is None else read.version

    def _write_change(self, change: Change, seen: Seen) -> Steps[None]:
        # Object stores have no conditional delete, but a shard without inner chunks can be written conditionally.
        parts = change.parts or change.empty_parts
        if parts is None:
            yield from self.delete(change.chunk, seen)
        else:
            yield from self.write(change.chunk, parts, seen)

    def write_references(self, chunk: Chunk, data: Sequence[PartData]) -> Steps[None]:
        """Write all parts of a chunk, some of which refer to existing files; raise if the backend has no references."""
        raise SessionError(chunk.chunk_key, "expected a chunk of an array created with `split=True`, found another key")

    # --- reading a chunk ------------------------------------------------------------------------------------------

    @abstractmethod
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        """Read byte ranges of a chunk until they belong to one write; return None if there is no chunk."""

    def read(
        self,
        chunk: Chunk,
        wanted: Sequence[Wanted],
        settings: ReadSettings,
        *,
        with_anchor: bool = False,
        why: str = DATA,
    ) -> Steps[Read | None]:
        """Read byte ranges of a chunk, all of one write; return None if there is no chunk.

        `with_anchor` also looks at the anchor if none of its bytes are wanted. This detects a part that remained after
        its chunk was deleted, or that does not belong to the anchor's write.
        """
        attempt = yield from self.attempt(ReadTask(chunk, wanted, settings, why), with_anchor=with_anchor)
        return None if attempt is None else result_of(attempt, wanted)

    def read_version(
        self, chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, version: Version
    ) -> Steps[Read | Outdated | None]:
        """Read byte ranges of the write that an earlier read saw; return `Outdated` if the chunk has changed since."""
        read = yield from self.read(chunk, wanted, settings, with_anchor=True)
        return read if read is None or version.fits(read.version) else Outdated()

    def size(self, chunk: Chunk) -> Steps[int | None]:
        """Return the size of a chunk, None if there is no chunk."""
        return reading.size(chunk)

    def can_recognise(self, version: Version) -> bool:
        """Return whether a later read can tell that a chunk is still this version, so that its index may be cached."""
        return version.condition is not None

    def can_recognise_object(self, version: Version) -> bool:
        """Return the same for an object without a tag that is a chunk by itself, and that any program may write."""
        return version.condition is not None

    @property
    def expects_writers(self) -> bool:
        """Whether other clients may write a chunk at the same time, and a write can depend on what was read.

        Then shards are merged, and partial writes of objects without parts are conditional.
        """
        return False

    # --- documents and objects without parts ----------------------------------------------------------------------

    def put_document(self, key: str, data: bytes) -> Steps[None]:
        """Write a metadata document."""
        yield (Put(key, data, None, None, "document"),)

    def replace_document(self, key: str, data: bytes, found: Found) -> Steps[bool]:
        """Write a metadata document in place of the one that was found; return whether it was written."""
        condition = found.unchanged if self.has_tags and self.rules.has_conditions else None
        (outcome,) = yield (Put(key, data, None, condition, "document"),)
        return isinstance(outcome, Done)

    def put_if_absent(self, key: str, data: Buffer, why: str) -> Steps[None]:
        """Write an object unless it exists."""
        # Only object stores may lack this condition.
        if self.rules.has_conditions or not self.has_tags:
            yield from steps.put_if_absent(key, data, why)
        elif (yield from head(key, "whether it exists")) is None:
            yield (Put(key, data, None, None, why),)

    def read_array(self, document: Document, path: str) -> ArrayRecord | None:
        """Return what the document of an array says of its parts; None if it has none."""
        return metadata.read_array(document, path, self.new_placement(is_split=metadata.is_split(document)))

    def require_keepable(self, document: Document, path: str) -> None:
        """Raise unless the backend can store the chunks of the array with this document."""

    def new_placement(self, *, is_split: bool) -> PartPlacement:
        """Return where the parts of a new array are stored."""
        return PartPlacement.BESIDE

    # --- keys -----------------------------------------------------------------------------------------------------

    def is_part_node(self, key: str) -> bool:
        """Return whether a key is in a node that stores the parts of an array."""
        return self.has_part_nodes and is_node_key(key)

    def is_internal(self, key: str) -> bool:
        """Return whether zarr must neither see nor use a key, because it belongs to the protocol."""
        return is_protocol_key(key) or self.is_part_node(key)

    # --- checking and repairing -----------------------------------------------------------------------------------

    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        """Find out what the server supports."""
        yield from ()
        return Features(serverless_levels=tuple(Level))

    def without_conditions(self) -> Self:
        """Return the protocol for a server that ignores conditions on PUT requests."""
        return replace(self, rules=replace(self.rules, has_conditions=False))

    @property
    def knows_dead_writers(self) -> bool:
        """Return whether the protocol can tell a dead writer from one at work without looking at the age of objects."""
        return False

    @property
    def can_collect(self) -> bool:
        """Return whether orphans can be removed while other clients may write.

        Elsewhere, a write that begins at that moment would lose a part.
        """
        return self.rules.level is Level.EXCLUSIVE or self.rules.is_registered

    def can_finish_beside_writers(self, chunk: Chunk) -> bool:
        """Return whether a committed write can be finished although its writer, or another one, may be active."""
        return False

    def lock_chunk(self, folder: str) -> Steps[None]:
        """Keep other writers away from the chunk that a folder lies beside until the steps have ended, if possible."""
        yield from ()

    def folder_beside(self, array: str) -> str:
        """Return the folder whose listing shows what writers of an array have left beside its chunks."""
        return array if self.has_part_nodes else join(array, PROTOCOL_FOLDER)

    def remove_leftovers(self, keys: Sequence[str]) -> Steps[None]:
        """Remove objects that dead writers have left beside a chunk."""
        if keys:
            yield from remove(tuple(keys), "leftovers")

    def finish_write(self, chunk: Chunk, parts: Mapping[int, Entry], beside: Sequence[Entry]) -> Steps[bool]:
        """Finish a committed write of a dead writer, then remove what was listed beside the chunk.

        `parts` are the parts that were listed. Returns whether nothing is left.
        """
        yield from ()
        return False

    def remove_orphans(self, chunk: Chunk, orphans: tuple[str, ...]) -> Steps[bool]:
        """Remove the parts of a chunk that does not exist; return False if it exists by now."""
        if (yield from head(chunk.anchor_key, WHOSE)) is not None:
            return False
        yield from remove(orphans, "orphans")
        return True

    def drop(self, chunk: Chunk, why: str) -> Steps[None]:
        """Remove a chunk that cannot be read, the anchor first."""
        yield from remove((chunk.anchor_key,), why)
        if chunk.other_keys:
            yield from remove(chunk.other_keys, why)


@dataclass(frozen=True, slots=True)
class ReadOnlyProtocol(ChunkProtocol):
    """A protocol that reads chunks, and compares the ETags of their parts."""

    can_write: ClassVar[bool] = False

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        return reading.read_untagged(task, with_anchor=with_anchor, compares_again=True)

    @override
    def can_recognise(self, version: Version) -> bool:
        # A server of plain HTTP may give weak ETags, or none.
        return False

    @override
    def can_recognise_object(self, version: Version) -> bool:
        return False

    @override
    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        yield from ()
        return Features(serverless_levels=())

    @override
    def write(self, chunk: Chunk, data: Sequence[Encoded], seen: Seen | None = None) -> Steps[None]:
        _refuse(chunk)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[Encoded]) -> Steps[None]:
        _refuse(chunk)

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        _refuse(chunk)


def _refuse(chunk: Chunk) -> Never:
    raise StoreConfigError(chunk.chunk_key, "a store that can be written", "one that can only be read")
