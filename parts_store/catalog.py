"""What a store has learnt of its arrays, from the documents that passed through it.

Decides whose a key is, what zarr is served of a document, and what is stored of one that zarr writes. Reads a document
only for a key of which it knows nothing, and looks at one again whenever it passes through.

zarr decodes a chunk with the document that it was served when the array was opened, and the store is not told which
handle asks. So the document that zarr was served last decides, and the store must notice when `zarr.json` says
something else by now. Three rules make that sound:

1. Only what is there is remembered. Whether there is an array at a path where none was is asked again with every
   operation, because another process may create one. A listing remembers it for itself alone.
2. Consolidated metadata may be out of date. An entry that is known from it alone counts for as long as chunks confirm
   it, whose tags carry a digest of their layout. Before a write, and where a chunk is absent or has no tag, `zarr.json`
   is read once. It is also read where consolidated metadata differs from what was known of the array.
3. For every path the catalog keeps a digest of what zarr was served: of the parts, and of all members that decide how
   zarr decodes a chunk. When the store uses an array, what it knows of the array must have the same digest. If not,
   `zarr.json` is read, and `LayoutChangedError` is raised if that has another digest, too.

What remains is an array that another process creates again after this store has read its `zarr.json`. Then the tags of
the chunks tell. A local disk has no tags; there the file of `zarr.json` itself is looked at before every use. Chunks
that are absent under the old keys, chunks without tags, and writes that look at nothing first are the limits of that;
docs/transactions.md names them.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from parts_store.engine.steps import Get, Steps, content
from parts_store.errors import LayoutChangedError, PartsStoreError
from parts_store.format import metadata as documents
from parts_store.format.keys import (
    DOCUMENT,
    Chunk,
    PartPlacement,
    candidates,
    is_default_key,
    is_protocol_key,
    join,
    may_be_part,
    split,
)
from parts_store.format.layout import plan_split, require_no_empty
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.options import StoreOptions
from parts_store.transactions.protocol import ChunkProtocol


class Plain(Enum):
    """What is known of a path where no array with parts is."""

    # An array whose chunks are single objects.
    ARRAY = "array"
    # A group, or nothing.
    NO_ARRAY = "no array"


@dataclass(frozen=True, slots=True)
class PlainArray:
    """An array without parts, and its stored document: what zarr does not change of it stays as its writer wrote it."""

    stored: bytes


type Entry = ArrayRecord | PlainArray | Plain

_OPEN_AGAIN = "open it again; if it was opened with consolidated metadata, that is out of date: consolidate again"


@dataclass(frozen=True, slots=True)
class OwnedChunk:
    """A chunk of an array with parts."""

    chunk: Chunk
    record: ArrayRecord
    # Whether the array is known from consolidated metadata alone.
    is_hearsay: bool = False

    def cut(self, value: memoryview) -> list[memoryview]:
        """The value as it is stored; it is checked in any case whether it fits the array's parts."""
        spans = plan_split(self.record.parts, value.nbytes, self.chunk.chunk_key)
        is_whole = self.record.placement is PartPlacement.WHOLE
        stored = [value] if is_whole else [value[span.start : span.stop] for span in spans]
        if self.record.placement is not PartPlacement.BESIDE:
            require_no_empty(self.chunk.parts, [each.nbytes for each in stored], self.chunk.chunk_key)
        return stored


@dataclass(frozen=True, slots=True)
class Hidden:
    """A part of a chunk, or an object of the write protocol: not to be seen or used by itself."""

    owner: str


@dataclass(frozen=True, slots=True)
class Other:
    """Anything else: passed through as it is."""

    # The path of the array without parts that the key belongs to, None if it belongs to no array that is known.
    array: str | None = None
    # Whether that array is known from consolidated metadata alone.
    is_hearsay: bool = False


type Owner = OwnedChunk | Hidden | Other


class Catalog:
    """The arrays that a store knows, of one snapshot where there are several.

    Threads share it: an entry is replaced in one step, and whoever goes through all of them goes through a copy.
    """

    def __init__(
        self,
        protocol: ChunkProtocol,
        entries: Mapping[str, Entry] | None = None,
        *,
        snapshot: Callable[[], str | None] = lambda: None,
        stamp: Callable[[str], tuple[int, ...] | None] | None = None,
    ) -> None:
        self._entries: dict[str, Entry] = dict(entries or {})
        # By path: the digest of the document that zarr was served last, or wrote; empty for an array without parts.
        self._served: dict[str, str] = {}
        # The paths where zarr was told last that there is no array: if it writes a document there, it creates one.
        self._served_nothing: set[str] = set()
        # The paths where that was a member of consolidated metadata.
        self._served_by_group: set[str] = set()
        # The paths of arrays whose chunks were read or written.
        self._used: set[str] = set()
        # On a local disk, which file each document was read from. A document that is only expected has none.
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._expected: set[str] = set(self._entries)
        self._stamp = stamp
        # On a local disk, the stamp of a document that was not read: that of no file.
        self._not_read: tuple[int, ...] | None = None if stamp is None else ()
        self._protocol = protocol
        self._snapshot = snapshot
        self._known_of = snapshot()
        # Paths known from consolidated metadata alone, which nobody keeps up to date.
        self._hearsay: set[str] = set()
        self.epoch = 0
        """Changes whenever a document does: what was read before may not be true any more."""

    def arrays(self) -> dict[str, ArrayRecord]:
        """The arrays with parts, by their paths."""
        known = self._entries.copy()
        return {path: entry for path, entry in known.items() if isinstance(entry, ArrayRecord)}

    def lasting(self) -> dict[str, Any]:
        """Return what another process needs of the catalog: the arrays that were used, and what zarr was served.

        Of an array that was opened and not used, the digest alone is taken along, so that the array that zarr opened
        can be told from one that was created again.
        """
        known, used = self._entries.copy(), self._used.copy()
        # A document without parts is only needed if zarr is served another one.
        heavy = {path: entry for path, entry in known.items() if _incomplete(entry) is not None}
        entries = {path: entry for path, entry in heavy.items() if path in used}
        unknown = [path for path, entry in heavy.items() if path not in used and isinstance(entry, PlainArray)]
        served = {path: digest for path, digest in self._served.copy().items() if path not in unknown}
        stamps = {path: stamp for path, stamp in self._stamps.copy().items() if path in used}
        small = zlib.compress(json.dumps([served, sorted(self._hearsay.copy())]).encode())
        return {"entries": entries, "served": small, "stamps": stamps}

    def take_over(self, lasting: Mapping[str, Any]) -> None:
        """Know what the catalog of another process has handed over."""
        served, hearsay = json.loads(zlib.decompress(lasting["served"]))
        self._served.update(served)
        self._entries.update({path: Plain.ARRAY for path, digest in served.items() if not digest})
        self._entries.update(lasting["entries"])
        self._used.update(lasting["entries"])
        self._hearsay.update(hearsay)
        self._stamps.update(lasting["stamps"])

    def forget(self, path: str) -> None:
        """Know nothing more of what is at a path."""
        self.doubt(path)
        self._served.pop(path, None)
        self._served_nothing.discard(path)

    def doubt(self, path: str) -> None:
        """Know nothing more of what is at a path, but what zarr was served of it."""
        self.epoch += 1
        self._entries.pop(path, None)
        self._expected.discard(path)
        self._hearsay.discard(path)

    def forget_below(self, prefix: str) -> None:
        """Know nothing more of what is at or below a path."""
        self.epoch += 1
        for path in {*self._entries.copy(), *self._served.copy()}:
            if not prefix or path == prefix or path.startswith(f"{prefix}/"):
                self.forget(path)

    def learn_plain(self, path: str) -> None:
        """There is an array of Zarr v2, unless one of Zarr v3 is known there."""
        if not isinstance(self._entries.get(path), ArrayRecord | PlainArray):
            self._entries[path] = Plain.ARRAY
            self._note_served(path, Plain.ARRAY)
            self._stamps[path] = self.stamp(path)

    def learn_consolidated_v2(self, path: str, metadata: bytes) -> None:
        """Learn of the arrays of Zarr v2 that the consolidated metadata of a group mentions."""
        members = (documents.parse(metadata) or {}).get("metadata")
        for key in members if isinstance(members, dict) else ():
            if split(key)[1] == ".zarray":
                member = join(path, split(key)[0])
                self.learn_plain(member)
                # The metadata may be out of date. An array of Zarr v3 in its place is found when a chunk is absent.
                self._hearsay.add(member)

    def expect(self, path: str, stored: bytes) -> None:
        """Know the array at a path, of Zarr v3 or v2, by a document that may not be there yet: chunks come first."""
        self.forget(path)
        document = documents.parse(stored)
        if document is not None and documents.is_array(document):
            self._learn(path, self._understand(path, stored, document)[0], self.epoch)
        else:
            self.learn_plain(path)
        self._expected.add(path)

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """Return what tells the file of a document from another one at the same path; None where nothing does.

        It is asked for before the document is read, so that it is never newer than what was read.
        """
        return None if self._stamp is None else self._stamp(join(path, DOCUMENT))

    def _learn(self, path: str, entry: Entry, since: int, stamp: tuple[int, ...] | None = None) -> None:
        """Know this of a path, unless something was changed since it was asked for."""
        if since != self.epoch:
            return
        self._hearsay.discard(path)
        self._expected.discard(path)
        self._stamps[path] = stamp
        if entry is Plain.NO_ARRAY:
            # Another process may create one at any time.
            self._entries.pop(path, None)
        else:
            self._entries[path] = entry
            self._served_nothing.discard(path)

    def _refresh(self) -> None:
        """Forget what was true of another snapshot, but not what zarr was served: its handles are still there."""
        now = self._snapshot()
        if now != self._known_of:
            for path in self._entries.copy():
                self.doubt(path)
            self.epoch += 1
            self._served_nothing.clear()
            self._known_of = now

    # --- whose a key is -------------------------------------------------------------------------------------------

    def is_hidden(self, key: str) -> bool:
        """Whether the key, be it a document's, is not to be seen or used by itself."""
        return self._protocol.is_internal(key)

    def owner(self, key: str, *, trust_hearsay: bool = False) -> Steps[Owner]:
        """Whose this key is, which is no document's.

        Raises `LayoutChangedError` if its array is not the one that zarr was served. `trust_hearsay` takes the word of
        consolidated metadata for it.
        """
        self._refresh()
        if is_protocol_key(key):
            return Hidden("the write protocol")
        if self.is_hidden(key):
            return Hidden("the parts of an array")
        for path, relative in candidates(key):
            entry = self._trusted(path, trust_hearsay=trust_hearsay)
            is_hearsay = path in self._hearsay
            if entry is not None and (owner := _owned(entry, path, relative, is_hearsay=is_hearsay)) is not None:
                self.rely_on(path, entry)
                return owner
        for path, relative in candidates(key):
            entry = self._trusted(path, trust_hearsay=trust_hearsay) or (yield from self.confirm(path))
            if (owner := _owned(entry, path, relative)) is not None:
                self.rely_on(path, entry)
                return owner
        return Other()

    def rely_on(self, path: str, entry: Entry) -> None:
        """Know that a caller relies on what the store said of an array; another layout there is an error from now on.

        This is for callers that use the store's keys without a document from this store.
        """
        self._used.add(path)
        if isinstance(entry, ArrayRecord):
            self._served.setdefault(path, _digest(entry))
        elif entry is Plain.NO_ARRAY and self._protocol.can_discard_changes:
            # The caller was told that it is gone, which happens when a session discards its changes.
            self._served.pop(path, None)

    def _trusted(self, path: str, *, trust_hearsay: bool) -> Entry | None:
        """Return what is known of a path, None if nothing is, or not for sure."""
        entry = self._entries.get(path)
        if entry is None or (path in self._hearsay and not trust_hearsay):
            return None
        is_current = path in self._expected or self.stamp(path) == self._stamps.get(path, self._not_read)
        return entry if is_current and self._served.get(path, _digest(entry)) == _digest(entry) else None

    def _known(self, key: str) -> tuple[Entry, str, str] | None:
        """Return the array that a key is known to belong to, its path, and the rest of the key; None if none is."""
        for path, relative in candidates(key):
            entry = self._entries.get(path)
            if entry is not None and path not in self._hearsay and _owned(entry, path, relative) is not None:
                return entry, path, relative
        return None

    def read(self, path: str, *, trust_hearsay: bool = False) -> Steps[Entry]:
        """What is known of a path, after reading its document if nothing is."""
        self._refresh()
        entry = self._entries.get(path)
        if entry is not None and (trust_hearsay or path not in self._hearsay):
            return entry
        return (yield from self._read(path))

    def _read(self, path: str) -> Steps[Entry]:
        """Read the document at a path, and learn what it says."""
        since, stamp = self.epoch, self.stamp(path)
        (outcome,) = yield (Get(join(path, DOCUMENT), None, "which parts the array has"),)
        stored = content(outcome)
        entry, _ = self._understand(path, stored, None if stored is None else documents.parse(stored))
        self._learn(path, entry, since, stamp)
        return entry

    def confirm(self, path: str) -> Steps[Entry]:
        """Read the document at a path; raise `LayoutChangedError` if zarr was served that of another array.

        An array without parts that is gone is not told from one of Zarr v2, and is passed through.
        """
        entry = yield from self._read(path)
        if self._served.get(path, _digest(entry)) != _digest(entry):
            raise _changed(path, entry)
        return entry

    def shown(self, key: str, asked: dict[str, Entry]) -> Steps[str | None]:
        """The key that a listing shows for a stored object, None if it shows none.

        `asked` keeps what one listing has found at the paths that it asked for, so that it asks once.
        """
        if self.is_hidden(key):
            return None
        # A session keeps no parts beside a chunk.
        if self._protocol.has_part_nodes or split(key)[1] == DOCUMENT:
            return key
        if (known := self._known(key)) is not None:
            return _shown_key(*known)
        # A chunk's key without a suffix is a chunk without parts, or the anchor of one with: shown either way.
        if not may_be_part(key):
            return key
        for path, relative in candidates(key):
            if path not in asked:
                try:
                    asked[path] = yield from self.read(path)
                except PartsStoreError:
                    # An array that we do not understand must not keep the others from being listed.
                    asked[path] = Plain.NO_ARRAY
            if (shown := _shown_key(asked[path], path, relative)) != key:
                return shown
        return key

    # --- documents that zarr reads --------------------------------------------------------------------------------

    def serve(
        self, path: str, stored: bytes | None, *, since: int, stamp: tuple[int, ...] | None = None
    ) -> bytes | None:
        """What zarr is served of a stored document, read at the epoch `since`: itself, unless an array has parts."""
        self._refresh()
        document = None if stored is None else documents.parse(stored)
        entry, served = self._understand(path, stored, document)
        self._learn(path, entry, since, stamp)
        if entry is not Plain.NO_ARRAY:
            # Also if it was read before a change: zarr decodes with it nevertheless.
            self._note_served(path, entry)
        elif since == self.epoch:
            self._served.pop(path, None)
            if stored is None:
                self._served_nothing.add(path)
        if document is not None and not documents.is_array(document):
            return self._serve_group(path, stored, document)
        return served

    def _understand(self, path: str, stored: bytes | None, document: Document | None) -> tuple[Entry, bytes | None]:
        """Return what a stored document says, and what zarr is served of it if it is not a group's."""
        if stored is None:
            return Plain.NO_ARRAY, None
        if document is None:
            # A document that is damaged says nothing; what is known stays known.
            return self._entries.get(path, Plain.NO_ARRAY), stored
        if not documents.is_array(document):
            return Plain.NO_ARRAY, stored
        try:
            entry = self._read_array(document, path, stored)
        except PartsStoreError:
            # What was known of it is not true any more, and what is true we do not understand.
            self.forget(path)
            raise
        served = documents.complete(document)
        return entry, stored if served == document else documents.dump(served)

    def _serve_group(self, path: str, stored: bytes | None, document: Document) -> bytes | None:
        changed = False
        for member_path, member, replace in _consolidated(path, document):
            if not documents.is_array(member):
                continue
            served = documents.complete(member)
            entry = self._read_array(member, member_path, None if served == member else documents.dump(member))
            self._serve_member(member_path, entry)
            if served != member:
                replace(served)
                changed = True
        return documents.dump(document) if changed else stored

    def _serve_member(self, path: str, entry: Entry) -> None:
        """Know that zarr was served this of an array, by consolidated metadata."""
        known = self._entries.get(path)
        self._note_served(path, entry, by_group=True)
        if known is None or path in self._hearsay:
            self._hearsay.add(path)
            self._entries[path] = entry
        elif _digest(known) != _digest(entry):
            # One of the two is out of date: the next use of the array reads its own document.
            self._entries.pop(path, None)

    # --- documents that zarr writes -------------------------------------------------------------------------------

    def _read_array(self, document: Document, path: str, stored: bytes | None) -> Entry:
        """What is known of an array by its document; `stored` is kept of one without parts, unless None."""
        record = self._protocol.read_array(document, path)
        if record is not None:
            return record
        return Plain.ARRAY if stored is None else PlainArray(stored)

    def accept(self, path: str, written: bytes, options: StoreOptions) -> Steps[bytes]:
        """What is stored of a document that zarr writes: with the array's transformer, new or put back."""
        document = documents.parse(written)
        if document is None:
            self.forget(path)
            return written
        if documents.is_array(document):
            self._protocol.require_keepable(document, path)
            return (yield from self._accept_array(path, written, document, options))
        changed = False
        for member_path, member, replace in _consolidated(path, document):
            if documents.is_array(member) and not member.get("storage_transformers"):
                entry = yield from self.read(member_path, trust_hearsay=True)
                if (before := _incomplete(entry)) is not None:
                    replace(documents.put_back(member, before))
                    changed = True
        self._set(path, Plain.NO_ARRAY)
        return documents.dump(document) if changed else written

    def _accept_array(self, path: str, written: bytes, document: Document, options: StoreOptions) -> Steps[bytes]:
        if document.get("storage_transformers"):
            # Somebody writes the stored form himself.
            self._set(path, self._read_array(document, path, written))
            return written
        served = self._served.get(path)
        entry = yield from self._read_before_write(path)
        if entry is Plain.NO_ARRAY and path in self._served_by_group:
            # zarr reads the groups above an array while it creates it, and they may still mention an earlier one.
            served = None
        if served is not None and served != _digest(entry):
            raise _changed(path, entry)
        if isinstance(entry, ArrayRecord):
            stored = documents.put_back(document, entry.stored)
        elif entry is Plain.NO_ARRAY and served is None and (parts := options.parts_of(path)) is not None:
            placement = self._protocol.new_placement(is_split=options.split)
            must_understand = options.must_understand
            stored = documents.with_parts(document, parts, path, placement=placement, must_understand=must_understand)
        elif isinstance(entry, PlainArray) and (before := documents.parse(entry.stored)) is not None:
            stored = documents.put_back(document, before)
        else:
            stored = document
        kept = written if documents.is_same(stored, document) else documents.dump(stored)
        self._set(path, self._read_array(stored, path, kept))
        return kept

    def _read_before_write(self, path: str) -> Steps[Entry]:
        """Return what is at a path where zarr writes the document of an array.

        It is read now, for another process may have put an array of another layout there, whose document must not be
        replaced. Arrays without parts, old and new, cost no request more than in any other store.
        """
        if path in self._served_nothing and self.stamp(path) is None:
            return Plain.NO_ARRAY
        known = self._trusted(path, trust_hearsay=False)
        is_plain = known is Plain.ARRAY or isinstance(known, PlainArray)
        return known if is_plain and known is not None else (yield from self._read(path))

    def _set(self, path: str, entry: Entry) -> None:
        """What is about to be true of a path, by our own doing."""
        self.epoch += 1
        self._learn(path, entry, self.epoch, self._not_read)
        if entry is Plain.NO_ARRAY:
            self._served.pop(path, None)
        else:
            self._note_served(path, entry)

    def _note_served(self, path: str, entry: Entry, *, by_group: bool = False) -> None:
        """Know that this is what zarr was served last of an array, or wrote."""
        self._served[path] = _digest(entry)
        self._served_nothing.discard(path)
        if by_group:
            self._served_by_group.add(path)
        else:
            self._served_by_group.discard(path)


def _incomplete(entry: Entry) -> Document | None:
    """The stored document of an array, if zarr is served another one."""
    if isinstance(entry, ArrayRecord):
        return entry.stored
    document = documents.parse(entry.stored) if isinstance(entry, PlainArray) else None
    return document if document is not None and documents.complete(document) != document else None


def _changed(path: str, entry: Entry) -> LayoutChangedError:
    """Return the error of an array whose document now says this, which is not what zarr was served."""
    problem = "was deleted" if entry is Plain.NO_ARRAY else "was created again with another layout"
    return LayoutChangedError(path, f"it {problem} since it was opened; {_OPEN_AGAIN}")


def _digest(entry: Entry) -> str:
    """Return the digest of what decides how the chunks of an array are read; empty if it has no parts."""
    return entry.digest if isinstance(entry, ArrayRecord) else ""


def _owned(entry: Entry, path: str, relative: str, *, is_hearsay: bool = False) -> Owner | None:
    """Whose the key is, if it is this array's."""
    if entry is Plain.ARRAY or isinstance(entry, PlainArray):
        return Other(path, is_hearsay)
    if not isinstance(entry, ArrayRecord):
        return None
    if entry.encoding.is_chunk_key(relative):
        return OwnedChunk(entry.chunk(path, relative), entry, is_hearsay)
    for part in entry.parts.parts:
        suffix = part.key_suffix
        if suffix and relative.endswith(suffix) and entry.encoding.is_chunk_key(relative.removesuffix(suffix)):
            return Hidden(f"chunk {join(path, relative.removesuffix(suffix))!r}")
    if entry.placement is not PartPlacement.BESIDE and is_default_key(relative):
        # Of another number of dimensions. Icechunk takes it, and cannot list the array any more.
        return Hidden(f"array {path!r}, which has no such chunk")
    return None


def _shown_key(entry: Entry, path: str, relative: str) -> str | None:
    """The key that a listing shows for an object of an array: the chunk's for its anchor, none for its other parts."""
    if not isinstance(entry, ArrayRecord):
        return join(path, relative)
    anchor = entry.parts.parts[entry.parts.anchor].key_suffix
    if anchor and entry.encoding.is_chunk_key(relative):
        # No part is there; what is, is somebody else's.
        return None
    if relative.endswith(anchor) and entry.encoding.is_chunk_key(chunk := relative.removesuffix(anchor)):
        return join(path, chunk)
    return None if isinstance(_owned(entry, path, relative), Hidden) else join(path, relative)


def _consolidated(path: str, document: Document) -> Iterator[tuple[str, Document, Callable[[Document], None]]]:
    """The documents in a group's consolidated metadata, each with its path and the way to replace it."""
    consolidated = document.get("consolidated_metadata")
    members: Any = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if isinstance(members, dict):
        for name, member in list(members.items()):
            if isinstance(member, dict):
                yield join(path, name), member, lambda new, name=name: members.__setitem__(name, new)  # type: ignore[misc]
