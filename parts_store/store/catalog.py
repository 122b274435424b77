"""Catalog: the arrays that a store knows, and which of them a key belongs to.

The catalog reads a document only for a key of which it knows nothing, and looks at a document again whenever it passes
through the store.

zarr decodes a chunk with the document that it was served when the array was opened, and the store is not told which
handle asks. So the document that zarr was served last decides, and the store must notice when `zarr.json` has changed
since. Three rules ensure that:

1. The catalog remembers arrays, never their absence. It asks again with every operation whether there is an array at a
   path where there was none, because another process may create one. A listing remembers absence for itself alone.
2. Consolidated metadata may be out of date. An array that is known from it alone is unconfirmed: it counts as long as
   chunks confirm it, whose tags carry a digest of their layout. Before a write, and where a chunk is absent or has no
   tag, `zarr.json` is read once. It is also read where consolidated metadata differs from what was known of the array.
3. For every path the catalog keeps a digest of what zarr was served: of the parts, and of all members that decide how
   zarr decodes a chunk. When the store uses an array, what it knows of the array must have the same digest. If it does
   not, `zarr.json` is read, and `LayoutChangedError` is raised if that has another digest, too.

What remains is an array that another process creates again after this store has read its `zarr.json`. There the tags of
the chunks tell. A local disk has no tags; there the store looks at the file of `zarr.json` before every use. Chunks
that are absent under the old keys, chunks without tags, and writes that read nothing first are the limits of that;
docs/transactions.md names them.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from parts_store.engine.steps import Get, Steps, content
from parts_store.errors import LayoutChangedError, PartsStoreError
from parts_store.format import metadata
from parts_store.format.coordinates import Coordinates
from parts_store.format.files.description import recorded_format
from parts_store.format.keys import (
    DOCUMENT,
    Chunk,
    PartPlacement,
    ancestors,
    candidates,
    is_default_key,
    is_protocol_key,
    join,
    may_be_chunk,
    split,
)
from parts_store.format.layout import Encoded, plan_split, require_no_empty
from parts_store.format.metadata import ONE_OBJECT, Around, ArrayRecord, Document, PlainLayout, plain_layout
from parts_store.format.parts import ConcatParts
from parts_store.format.shard_index import CODEC, ShardIndex
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import read_attributes, read_coordinates

# Of how many nodes it is remembered what the files of shards take from them.
_MAX_NODES: Final = 1000

type Stamp = tuple[int, ...]
"""Identifies the file of a `zarr.json` on a local disk. An empty stamp is equal to that of no file."""


class Plain(Enum):
    """What is known of a path where there is no array with parts."""

    # An array whose chunks are single objects.
    ARRAY = "array"
    # A group, or nothing.
    NO_ARRAY = "no array"


@dataclass(frozen=True, slots=True)
class PlainArray:
    """An array without parts, and its stored document, whose members stay as stored unless zarr changes them."""

    stored: bytes

    def layout_at(self, relative: str) -> PlainLayout | None:
        """Return how the chunk at a key, which is relative to the array, is read; None if it is passed through."""
        found = plain_layout(self.stored)
        return found if found is not None and found.encoding.is_chunk_key(relative) else None

    @property
    def decides_reads(self) -> bool:
        """Whether the document may say where the index of a shard is."""
        return CODEC.encode() in self.stored


# The parts of an object that is a value by itself.
ONE_PART: Final = ConcatParts(ONE_OBJECT)

type CatalogEntry = ArrayRecord | PlainArray | Plain


class RecordSource(Enum):
    """How the store learnt of an array."""

    # From the array's own `zarr.json`, read or written through this store.
    DOCUMENT = "document"
    # From a document that is written after the chunks.
    EXPECTED = "expected"
    # From the consolidated metadata of a group alone, which may be out of date.
    CONSOLIDATED = "consolidated"


@dataclass(frozen=True, slots=True)
class Served:
    """What zarr was served last of a path, or wrote there."""

    # The digest of the array; empty for an array without parts; None if zarr was told that there is nothing.
    digest: str | None
    # Whether it was a member of consolidated metadata.
    is_consolidated: bool = False


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What a store knows of one path."""

    # None if unknown. `Plain.NO_ARRAY` is never kept: another process may create an array at any time.
    entry: CatalogEntry | None = None
    source: RecordSource = RecordSource.DOCUMENT
    # On a local disk, the file that the document was read from.
    stamp: Stamp | None = None
    served: Served | None = None
    # Whether chunks of the array were read or written.
    is_used: bool = False

    @property
    def served_digest(self) -> str | None:
        """The digest of the array that zarr was served last, None if it was served none."""
        return None if self.served is None else self.served.digest

    @property
    def was_absent(self) -> bool:
        """Whether zarr was told last that there is nothing: if zarr writes a document there, it creates an array."""
        return self.served is not None and self.served.digest is None

    def is_as_served(self, entry: CatalogEntry) -> bool:
        """Whether this is the array that zarr was served last, if it was served one."""
        return self.served_digest in (None, digest_of(entry))

    def learnt(self, entry: CatalogEntry, stamp: Stamp | None) -> "PathRecord":
        """Return the record after the array's own document was read or written."""
        if entry is Plain.NO_ARRAY:
            return replace(self, entry=None, source=RecordSource.DOCUMENT, stamp=stamp)
        served = None if self.was_absent else self.served
        return replace(self, entry=entry, source=RecordSource.DOCUMENT, stamp=stamp, served=served)

    def learnt_plain(self, stamp: Stamp | None) -> "PathRecord":
        """Return the record after the document of an array of Zarr v2 was found; one of Zarr v3 takes precedence."""
        if isinstance(self.entry, ArrayRecord | PlainArray):
            return self
        return replace(self, entry=Plain.ARRAY, stamp=stamp, served=Served(""))

    def served_by_group(self, entry: CatalogEntry) -> "PathRecord":
        """Return the record after zarr was served this array as a member of consolidated metadata."""
        served = Served(digest_of(entry), is_consolidated=True)
        if self.entry is None or self.source is RecordSource.CONSOLIDATED:
            return replace(self, entry=entry, source=RecordSource.CONSOLIDATED, served=served)
        if digest_of(self.entry) != digest_of(entry):
            # Either the document or the consolidated metadata is out of date: the next use reads the document.
            return replace(self, entry=None, source=RecordSource.DOCUMENT, served=served)
        return replace(self, served=served)

    def served_array(self, entry: CatalogEntry) -> "PathRecord":
        """Return the record after zarr was served this array by its own document, or wrote it."""
        return replace(self, served=Served(digest_of(entry)))

    def served_no_array(self, *, is_missing: bool) -> "PathRecord":
        """Return the record after zarr was served a document that is not an array's, or that there is none."""
        if is_missing:
            return replace(self, served=Served(None))
        return self if self.was_absent else replace(self, served=None)

    def relied_on(self, entry: CatalogEntry, *, may_vanish: bool) -> "PathRecord":
        """Return the record after a caller used the array; `may_vanish` if a session can discard it."""
        record = self if self.is_used else replace(self, is_used=True)
        if isinstance(entry, ArrayRecord) and record.served_digest is None:
            return replace(record, served=Served(entry.digest))
        if entry is Plain.NO_ARRAY and may_vanish:
            # The caller was told that the array is gone, which happens when a session discards its changes.
            return record.served_no_array(is_missing=False)
        return record

    def doubted(self) -> "PathRecord":
        """Return the record without the array, but with what zarr was served."""
        return replace(self, entry=None, source=RecordSource.DOCUMENT)

    def in_other_snapshot(self) -> "PathRecord":
        """Return the record for another snapshot: what zarr was served is kept, since its handles still exist."""
        return replace(self.doubted(), served=None if self.was_absent else self.served)

    def forgotten(self) -> "PathRecord":
        """Return the record without the array and without what zarr was served."""
        return replace(self.doubted(), served=None)

    def to_state(self, unread: Stamp | None) -> "PathRecord | Told | None":
        """Return what a copy of the store in another process needs of the record, None if it needs nothing.

        An array that was used is included whole. Of any other array that zarr was served, the digest is included, so
        that the other process can tell it from an array that was created again. Of an array without parts that has
        shards, the document is included, which says where the index of a shard is. `unread` is the stamp of a document
        that was not read.
        """
        is_needed_whole = document_not_served(self.entry) is not None
        if is_needed_whole and self.is_used:
            return self
        if self.served_digest is None or (is_needed_whole and isinstance(self.entry, PlainArray)):
            return None
        stored = self.entry.stored if isinstance(self.entry, PlainArray) and self.entry.decides_reads else None
        is_consolidated = self.source is RecordSource.CONSOLIDATED
        return self.served_digest, stored, is_consolidated, self.stamp if self.is_used else unread, self.is_used

    @classmethod
    def from_state(cls, state: "PathRecord | Told") -> "PathRecord":
        """Return the record that another process has handed over."""
        if isinstance(state, PathRecord):
            return state
        digest, stored, is_consolidated, stamp, is_used = state
        known = Plain.ARRAY if stored is None else PlainArray(stored)
        source = RecordSource.CONSOLIDATED if is_consolidated else RecordSource.DOCUMENT
        return cls(None if digest else known, source, stamp, Served(digest), is_used)


type Told = tuple[str, bytes | None, bool, Stamp | None, bool]
"""The state of an array that was not used: a tuple, because a group may mention thousands of arrays."""


def digest_of(entry: CatalogEntry) -> str:
    """Return the digest of all that decides how the chunks of an array are read; empty if it has no parts."""
    return entry.digest if isinstance(entry, ArrayRecord) else ""


def stored_document(entry: CatalogEntry | None) -> Document | None:
    """Return the stored document of an array of Zarr v3, None if it is not known."""
    match entry:
        case ArrayRecord(stored=document):
            return document
        case PlainArray(stored):
            return metadata.parse(stored)
    return None


def described(entry: CatalogEntry | None) -> Document | None:
    """Return the stored document of an array without its attributes, None if it is not known."""
    found = stored_document(entry)
    return None if found is None else {name: value for name, value in found.items() if name != "attributes"}


def is_created_again(before: CatalogEntry | None, now: CatalogEntry | None) -> bool:
    """Return whether an array was deleted or created again, with chunks that are encoded in another way.

    A shape and attributes are changed without creating the array again. False if it is not known what was before.
    """
    if before is now or (was := described(before)) is None:
        return False
    found = described(now)
    return found is None or was | {"shape": None} != found | {"shape": None}


def document_not_served(entry: CatalogEntry | None) -> Document | None:
    """Return the stored document of an array if zarr is served a different one, else None."""
    if isinstance(entry, ArrayRecord):
        return entry.stored
    document = metadata.parse(entry.stored) if isinstance(entry, PlainArray) else None
    return document if document is not None and metadata.complete(document) != document else None


def described_files(entry: CatalogEntry | None) -> Document | None:
    """Return the stored document of an array whose shards are files, None for any other array."""
    match entry:
        case ArrayRecord(stored=document):
            return document if recorded_format(document) is not None else None
        case PlainArray(stored):
            layout = plain_layout(stored)
            return None if layout is None else layout.of_files
    return None


@dataclass(frozen=True, slots=True)
class OwnedChunk:
    """A chunk of an array with parts."""

    chunk: Chunk
    record: ArrayRecord
    # Whether the array is known from the consolidated metadata of a group alone.
    is_unconfirmed: bool = False
    # Of a chunk that is written: what other nodes say about the array.
    around: Around | None = None

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.chunk.array

    @property
    def may_have_gaps(self) -> bool:
        """Whether a shard may be a range of an existing file, with bytes between its inner chunks that are not its own.

        Such a shard has two parts, of which the second is its index.
        """
        sizes, index = self.record.parts.sizes, self.record.shard_index
        if index is None or self.record.placement is not PartPlacement.SPLIT or not index.is_understood:
            return False
        return len(sizes) == 2 and index.location == "end" and sizes[-1] == index.nbytes

    def cut(self, value: memoryview) -> list[Encoded]:
        """Return the value as it is stored: whole, or in parts. Raise if it does not fit the array's parts."""
        encoded = self.record.as_stored(self.chunk, value, self.around)
        spans = plan_split(self.record.parts, encoded.nbytes, self.chunk.chunk_key)
        is_whole = self.record.placement is PartPlacement.WHOLE
        stored = [encoded] if is_whole else [encoded[span.start : span.stop] for span in spans]
        if self.record.placement is not PartPlacement.BESIDE:
            require_no_empty(self.chunk.parts, [each.nbytes for each in stored], self.chunk.chunk_key)
        return stored


@dataclass(frozen=True, slots=True)
class Hidden:
    """A part of a chunk, or an object of the write protocol: neither shown nor usable by itself."""

    owner: str


@dataclass(frozen=True, slots=True)
class Other:
    """Any other key: its value is passed through unchanged."""

    # The path of the array without parts that the key belongs to, None if it belongs to no known array.
    array: str | None = None
    # Whether that array is known from the consolidated metadata of a group alone.
    is_unconfirmed: bool = False
    # How the shard at the key is read and written, None if the key is not known to be that of a shard.
    layout: PlainLayout | None = None
    # That array, None if its document is not known.
    record: PlainArray | None = None
    # Of a shard that is written: what other nodes say about the array.
    around: Around | None = None

    @property
    def path(self) -> str:
        """The path of the array, that of the root if there is none."""
        return self.array or ""

    @property
    def shard_index(self) -> ShardIndex | None:
        """The index of the shard at the key."""
        return None if self.layout is None else self.layout.shard_index

    def chunk(self, key: str) -> Chunk:
        """Return the object at the key as a chunk of one part."""
        return Chunk(key, ONE_PART, self.array or "", ends=None if self.layout is None else self.layout.ends)

    def is_of_chunk(self, key: str) -> bool:
        """Return whether a key in the array is spelled like that of a chunk, and not like that of a stray file."""
        return self.array is not None and may_be_chunk(key[len(join(self.array, "")) :])

    def as_stored(self, key: str, value: memoryview) -> Encoded:
        """Return the value as it is stored: a shard as a file, if the array says so."""
        return value if self.layout is None else self.layout.as_stored(self.chunk(key), value, self.around)


type Owner = OwnedChunk | Hidden | Other


def owner_in(entry: CatalogEntry, path: str, relative: str, *, is_unconfirmed: bool = False) -> Owner | None:
    """Return what a key is in the array at a path, None if it does not belong to this array."""
    if isinstance(entry, PlainArray):
        return Other(path, is_unconfirmed, entry.layout_at(relative), entry)
    if entry is Plain.ARRAY:
        return Other(path, is_unconfirmed)
    if not isinstance(entry, ArrayRecord):
        return None
    if entry.encoding.is_chunk_key(relative):
        return OwnedChunk(entry.chunk(path, relative), entry, is_unconfirmed)
    for part in entry.parts.parts:
        suffix = part.key_suffix
        if suffix and relative.endswith(suffix) and entry.encoding.is_chunk_key(relative.removesuffix(suffix)):
            return Hidden(f"chunk {join(path, relative.removesuffix(suffix))!r}")
    if entry.placement is not PartPlacement.BESIDE and is_default_key(relative):
        # A chunk key with another number of dimensions. Icechunk accepts it, and can then not list the array any more.
        return Hidden(f"array {path!r}, which has no such chunk")
    return None


_OPEN_AGAIN = "open it again; if it was opened with consolidated metadata, that is out of date: consolidate again"


class Catalog:
    """The arrays that a store knows; in a session, those of one snapshot.

    Threads share a catalog. A record is replaced in one step, and a method that visits all records visits a copy.
    """

    def __init__(
        self,
        protocol: ChunkProtocol,
        entries: Mapping[str, CatalogEntry] | None = None,
        *,
        snapshot: Callable[[], str | None] = lambda: None,
        stamp: Callable[[str], Stamp | None] | None = None,
    ) -> None:
        self.protocol = protocol
        self.epoch = 0
        """Changes whenever a document does: what was read before may not be true any more."""
        self._stamp = stamp
        self._snapshot = snapshot
        self._known_snapshot = snapshot()
        # On a local disk, a document that was not read has the stamp of no file.
        self._unknown = PathRecord(stamp=None if stamp is None else ())
        expected = replace(self._unknown, source=RecordSource.EXPECTED)
        self._records = {path: replace(expected, entry=entry) for path, entry in (entries or {}).items()}
        self._lock = threading.Lock()
        # The attributes of nodes that the files of shards depend on.
        self._attributes: dict[str, Mapping[str, Any]] = {}
        # The coordinate arrays that they depend on, None where there is none.
        self._coordinates: dict[str, Coordinates | None] = {}
        self.fixed_around: Mapping[str, Around] = {}
        """Of arrays that are copied: what other nodes say about the original, as long as their copies are not there."""

    def record(self, path: str) -> PathRecord:
        """Return what the catalog knows of a path."""
        return self._records.get(path, self._unknown)

    def change(self, path: str, change: Callable[[PathRecord], PathRecord]) -> None:
        """Replace the record of a path by the one that follows from an event."""
        with self._lock:
            changed = change(self.record(path))
            if changed == self._unknown:
                self._records.pop(path, None)
            else:
                self._records[path] = changed

    def arrays(self) -> dict[str, ArrayRecord]:
        """Return the arrays with parts, by their paths."""
        records = self._records.copy()
        return {path: record.entry for path, record in records.items() if isinstance(record.entry, ArrayRecord)}

    def to_state(self) -> dict[str, PathRecord | Told]:
        """Return what a copy of the store in another process needs of the catalog."""
        states = {path: record.to_state(self._unknown.stamp) for path, record in self._records.copy().items()}
        return {path: state for path, state in states.items() if state is not None}

    def from_state(self, states: Mapping[str, PathRecord | Told]) -> None:
        """Learn what the catalog of another process has handed over."""
        self._records.update({path: PathRecord.from_state(state) for path, state in states.items()})

    # --- learning and forgetting ----------------------------------------------------------------------------------

    def forget(self, path: str) -> None:
        """Forget what is at a path, and what zarr was served of it."""
        self.epoch += 1
        self._attributes.pop(path, None)
        self._coordinates.pop(path, None)
        self.change(path, PathRecord.forgotten)

    def doubt(self, path: str) -> None:
        """Forget what is at a path, but not what zarr was served of it."""
        self.epoch += 1
        self.change(path, PathRecord.doubted)

    def forget_below(self, prefix: str) -> None:
        """Forget what is at and below a path."""
        self.epoch += 1
        self._forget_around()
        for path, record in self._records.copy().items():
            # Where zarr was told that there is nothing, this is still so.
            is_known = record.entry is not None or record.served_digest is not None
            if is_known and (not prefix or path == prefix or path.startswith(f"{prefix}/")):
                self.forget(path)

    def learn(self, path: str, entry: CatalogEntry, since: int, stamp: Stamp | None = None) -> None:
        """Learn what the document at a path says, unless any document was changed since the epoch `since`."""
        if since == self.epoch:
            self.change(path, lambda record: record.learnt(entry, stamp))

    def learn_written(self, path: str, entry: CatalogEntry) -> None:
        """Learn what is about to be at a path, because zarr writes a document there."""
        self.epoch += 1
        self.learn(path, entry, self.epoch, self._unknown.stamp)
        if entry is Plain.NO_ARRAY:
            self.change(path, lambda record: record.served_no_array(is_missing=False))
        else:
            self.change(path, lambda record: record.served_array(entry))

    def learn_plain(self, path: str) -> None:
        """Learn that there is an array of Zarr v2, unless one of Zarr v3 is known there."""
        self.change(path, lambda record: record.learnt_plain(self.stamp(path)))

    def learn_consolidated_v2(self, path: str, consolidated: bytes) -> None:
        """Learn of the arrays of Zarr v2 that the consolidated metadata of a group mentions."""
        members = (metadata.parse(consolidated) or {}).get("metadata")
        for key in members if isinstance(members, dict) else ():
            if split(key)[1] == ".zarray":
                member = join(path, split(key)[0])
                self.learn_plain(member)
                # An array of Zarr v3 that has taken its place is found when a chunk is absent.
                self.change(member, lambda record: replace(record, source=RecordSource.CONSOLIDATED))

    def expect(self, path: str, stored: bytes) -> None:
        """Learn of an array, of Zarr v3 or v2, from a document that will be written after the chunks."""
        self.forget(path)
        document = metadata.parse(stored)
        if document is not None and metadata.is_array(document):
            self.learn(path, self.understand(path, stored, document)[0], self.epoch)
        else:
            self.learn_plain(path)
        self.change(path, lambda record: replace(record, source=RecordSource.EXPECTED))

    def stamp(self, path: str) -> Stamp | None:
        """Return what identifies the file of the document at a path; None if there is no file, or no local disk.

        Callers ask for it before they read the document, so that it is never newer than what was read.
        """
        return None if self._stamp is None else self._stamp(join(path, DOCUMENT))

    def refresh(self) -> None:
        """Forget what was true of another snapshot."""
        now = self._snapshot()
        if now != self._known_snapshot:
            for path in self._records.copy():
                self.change(path, PathRecord.in_other_snapshot)
            self.epoch += 1
            self._forget_around()
            self._known_snapshot = now

    def rely_on(self, path: str, entry: CatalogEntry) -> None:
        """Learn that a caller uses what the store said of an array: from now on, another layout there is an error.

        This also protects callers that use the store's keys without a document from this store.
        """
        may_vanish = self.protocol.can_discard_changes
        record = self.record(path)
        # Nearly always the caller has used the array before.
        if record.relied_on(entry, may_vanish=may_vanish) is not record:
            self.change(path, lambda record: record.relied_on(entry, may_vanish=may_vanish))

    # --- reading documents ----------------------------------------------------------------------------------------

    def entry_of(self, document: Document, path: str, stored: bytes | None) -> CatalogEntry:
        """Return what the document of an array says; `stored` is kept of an array without parts, unless None."""
        record = self.protocol.read_array(document, path)
        if record is not None:
            return record
        return Plain.ARRAY if stored is None else PlainArray(stored)

    def understand(
        self, path: str, stored: bytes | None, document: Document | None
    ) -> tuple[CatalogEntry, bytes | None]:
        """Return what a stored document says, and what zarr is served of it if it is not a group's."""
        if stored is None:
            return Plain.NO_ARRAY, None
        if document is None:
            # A damaged document says nothing; what is known stays known.
            return self.record(path).entry or Plain.NO_ARRAY, stored
        if not metadata.is_array(document):
            return Plain.NO_ARRAY, stored
        try:
            entry = self.entry_of(document, path, stored)
        except PartsStoreError:
            # What was known of the array is outdated, and the new document cannot be understood.
            self.forget(path)
            raise
        served = metadata.complete(document)
        return entry, stored if served == document else metadata.dump_compact(served)

    def trusted(self, path: str, *, trust_consolidated: bool = False) -> CatalogEntry | None:
        """Return what is known of a path; None if nothing is known, or if the document has to be read first."""
        record = self.record(path)
        if record.entry is None or (record.source is RecordSource.CONSOLIDATED and not trust_consolidated):
            return None
        is_current = record.source is RecordSource.EXPECTED or self.stamp(path) == record.stamp
        return record.entry if is_current and record.is_as_served(record.entry) else None

    def read(self, path: str, *, trust_consolidated: bool = False) -> Steps[CatalogEntry]:
        """Return what is known of a path; read its document if nothing is known."""
        self.refresh()
        record = self.record(path)
        if record.entry is not None and (trust_consolidated or record.source is not RecordSource.CONSOLIDATED):
            return record.entry
        return (yield from self.read_again(path))

    def read_again(self, path: str) -> Steps[CatalogEntry]:
        """Read the document at a path, and learn what it says."""
        since, stamp = self.epoch, self.stamp(path)
        (outcome,) = yield (Get(join(path, DOCUMENT), None, "which parts the array has"),)
        stored = content(outcome)
        entry, _ = self.understand(path, stored, None if stored is None else metadata.parse(stored))
        self.learn(path, entry, since, stamp)
        return entry

    def read_many(self, paths: Sequence[str]) -> Steps[dict[str, CatalogEntry]]:
        """Return what is known of these paths; read all documents of which nothing is known at the same time.

        An array whose document cannot be understood counts as no array: it must not prevent that others are listed.
        """
        self.refresh()
        records = {path: self.record(path) for path in paths}
        found = {
            path: record.entry
            for path, record in records.items()
            if record.entry is not None and record.source is not RecordSource.CONSOLIDATED
        }
        unknown = [path for path in records if path not in found]
        if not unknown:
            return found
        since, stamps = self.epoch, [self.stamp(path) for path in unknown]
        outcomes = yield tuple(Get(join(path, DOCUMENT), None, "which parts the array has") for path in unknown)
        for path, stamp, outcome in zip(unknown, stamps, outcomes, strict=True):
            stored = content(outcome)
            try:
                found[path], _ = self.understand(path, stored, None if stored is None else metadata.parse(stored))
            except PartsStoreError:
                found[path] = Plain.NO_ARRAY
            else:
                self.learn(path, found[path], since, stamp)
        return found

    def confirm(self, path: str) -> Steps[CatalogEntry]:
        """Read the document at a path; raise `LayoutChangedError` if zarr was served that of another array.

        An array without parts that was deleted looks like one of Zarr v2, and is passed through.
        """
        entry = yield from self.read_again(path)
        if not self.record(path).is_as_served(entry):
            raise layout_changed(path, entry)
        return entry

    # --- what the files of shards depend on ---------------------------------------------------------------------

    def note_attributes(self, path: str, document: Document | None) -> None:
        """Note what the document of a node says, which the files of shards may depend on."""
        self._attributes[path] = metadata.attributes_of(document)

    def expect_attributes(self, path: str, document: Document | None) -> None:
        """Forget what files take from a node, except attributes that stay the same when this document is written."""
        self.expect_values(path)
        if self._attributes.get(path) != metadata.attributes_of(document):
            self._attributes.pop(path, None)

    def expect_values(self, path: str) -> None:
        """Forget the values of an array, of which a chunk is written or deleted."""
        if path in self._coordinates:
            self.epoch += 1
            self._coordinates.pop(path, None)

    def around(self, path: str, document: Document) -> Steps[Around]:
        """Return what other nodes say about an array with this document; read of them what is not known.

        It is copied into files, which do not change with it. So it does not matter if it is out of date.
        """
        if path in self.fixed_around:
            return self.fixed_around[path]
        attributes = yield from self.attributes_around(path, document)
        nodes = metadata.coordinates_around(path, document)
        return {**attributes, "coordinates": (yield from self._look_up(nodes, self._coordinates, read_coordinates))}

    def attributes_around(self, path: str, document: Document | None) -> Steps[Around]:
        """Return only the attributes of other nodes, which are read when the array is opened."""
        nodes = {} if document is None else metadata.nodes_around(path, document)
        return (yield from self._look_up(nodes, self._attributes, read_attributes))

    def _look_up[T](
        self, nodes: Mapping[str, str], known: dict[str, T], read: Callable[[Sequence[str]], Steps[list[T]]]
    ) -> Steps[dict[str, T]]:
        """Return what is known of nodes, by their names, and read all others at the same time."""
        self.refresh()
        since, found = self.epoch, known.copy()
        unknown = [node for node in nodes.values() if node not in found]
        if unknown:
            new = dict(zip(unknown, (yield from read(unknown)), strict=True))
            found |= new
            if since == self.epoch:
                known |= new
                for node in list(known)[:-_MAX_NODES]:
                    known.pop(node, None)
        return {name: found[node] for name, node in nodes.items()}

    def _forget_around(self) -> None:
        """Forget what files take from other nodes. It is read again."""
        self._attributes.clear()
        self._coordinates.clear()

    def is_in_parts(self, folder: str) -> bool:
        """Return whether a folder is known to be an array with parts, or to be inside one."""
        return any(isinstance(self.record(path).entry, ArrayRecord) for path in (*ancestors(folder), folder))

    # --- which array a key belongs to -----------------------------------------------------------------------------

    def is_hidden(self, key: str) -> bool:
        """Return whether the key, which may be a document's, is neither shown nor usable by itself."""
        return self.protocol.is_internal(key)

    def owner(self, key: str, *, trust_consolidated: bool = False) -> Steps[Owner]:
        """Return what a key is that is not a document's.

        Raises `LayoutChangedError` if its array is not the one that zarr was served. With `trust_consolidated`, an
        array that is known from consolidated metadata alone is not looked up.
        """
        self.refresh()
        if is_protocol_key(key):
            return Hidden("the write protocol")
        if self.is_hidden(key):
            return Hidden("the parts of an array")
        for path, relative in candidates(key):
            entry = self.trusted(path, trust_consolidated=trust_consolidated)
            is_unconfirmed = self.record(path).source is RecordSource.CONSOLIDATED
            if entry is not None and (owner := owner_in(entry, path, relative, is_unconfirmed=is_unconfirmed)):
                self.rely_on(path, entry)
                return owner
        for path, relative in candidates(key):
            entry = self.trusted(path, trust_consolidated=trust_consolidated) or (yield from self.confirm(path))
            if (owner := owner_in(entry, path, relative)) is not None:
                self.rely_on(path, entry)
                return owner
        return Other()


def layout_changed(path: str, entry: CatalogEntry) -> LayoutChangedError:
    """Return the error for an array whose document now says this, which is not what zarr was served."""
    problem = "was deleted" if entry is Plain.NO_ARRAY else "was created again with another layout"
    return LayoutChangedError(path, f"it {problem} since it was opened; {_OPEN_AGAIN}")
