"""What a store has learnt of its arrays, from the documents that passed through it.

Decides whose a key is, what zarr is served of a document, and what is stored of one that zarr writes. Reads a document
only for a key of which it knows nothing, and looks at one again whenever it passes through.
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from parts_store.errors import PartsConfigError, PartsStoreError, SessionError
from parts_store.plan import document as documents
from parts_store.plan.document import ArrayRecord, Document
from parts_store.plan.keys import (
    DOCUMENT,
    Chunk,
    ChunkKeyEncoding,
    Placing,
    candidates,
    is_default_key,
    is_node_key,
    is_protocol_key,
    join,
    may_be_part,
    split,
)
from parts_store.plan.layout import plan_split, require_no_empty
from parts_store.plan.spec import ConcatParts
from parts_store.plan.steps import Get, Steps, content


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


@dataclass(frozen=True, slots=True)
class Creation:
    """What arrays get that come into being: their parts, by patterns of their paths, and where these are."""

    patterns: Mapping[str, ConcatParts] = field(default_factory=dict)
    # In a session, whether each part is a chunk of its own.
    is_split: bool = False
    # Whether an array that plain readers would misread gets a member that they have to understand.
    must_understand: bool = True

    def parts_of(self, path: str) -> ConcatParts | None:
        """The parts of a new array, by the first pattern that matches; None if it gets none."""
        for pattern, parts in self.patterns.items():
            if fnmatch.fnmatchcase(path, pattern):
                return parts
        return None


@dataclass(frozen=True, slots=True)
class OwnedChunk:
    """A chunk of an array with parts."""

    chunk: Chunk
    record: ArrayRecord

    def cut(self, value: memoryview) -> list[memoryview]:
        """The value as it is stored; it is checked in any case whether it fits the array's parts."""
        spans = plan_split(self.record.parts, value.nbytes, self.chunk.chunk_key)
        is_whole = self.record.placing is Placing.WHOLE
        stored = [value] if is_whole else [value[span.start : span.stop] for span in spans]
        if self.record.placing is not Placing.BESIDE:
            require_no_empty(self.chunk.parts, [each.nbytes for each in stored], self.chunk.chunk_key)
        return stored


@dataclass(frozen=True, slots=True)
class Hidden:
    """A part of a chunk, or an object of the write protocol: not to be seen or used by itself."""

    owner: str


@dataclass(frozen=True, slots=True)
class Other:
    """Anything else: passed through as it is."""


type Owner = OwnedChunk | Hidden | Other


class Catalog:
    """The arrays that a store knows, of one snapshot where there are several.

    Threads share it: an entry is replaced in one step, and whoever goes through all of them goes through a copy.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry] | None = None,
        *,
        in_session: bool = False,
        snapshot: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._entries: dict[str, Entry] = dict(entries or {})
        self._in_session = in_session
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

    def lasting(self) -> dict[str, Entry]:
        """What is worth taking along into another process: arrays, with and without parts."""
        return {
            path: Plain.ARRAY if isinstance(entry, PlainArray) and _incomplete(entry) is None else entry
            for path, entry in self._entries.copy().items()
            if entry is not Plain.NO_ARRAY
        }

    def forget(self, path: str) -> None:
        """Know nothing more of what is at a path."""
        self.epoch += 1
        self._entries.pop(path, None)

    def forget_below(self, prefix: str) -> None:
        """Know nothing more of what is at or below a path."""
        self.epoch += 1
        for path in self._entries.copy():
            if not prefix or path == prefix or path.startswith(f"{prefix}/"):
                self._entries.pop(path, None)

    def learn_plain(self, path: str) -> None:
        """There is an array of Zarr v2, unless one of Zarr v3 is known there."""
        if not isinstance(self._entries.get(path), ArrayRecord | PlainArray):
            self._entries[path] = Plain.ARRAY

    def expect(self, path: str, stored: bytes) -> None:
        """Know the array at a path, of Zarr v3 or v2, by a document that may not be there yet: chunks come first."""
        self.forget(path)
        document = documents.parse(stored)
        if document is not None and documents.is_array(document):
            self._understand(path, stored, self.epoch)
        else:
            self.learn_plain(path)

    def _learn(self, path: str, entry: Entry, since: int) -> None:
        if since == self.epoch:
            self._entries[path] = entry
            self._hearsay.discard(path)

    def _refresh(self) -> None:
        """Forget what was true of another snapshot."""
        now = self._snapshot()
        if now != self._known_of:
            self.forget_below("")
            self._known_of = now

    # --- whose a key is -------------------------------------------------------------------------------------------

    def is_hidden(self, key: str) -> bool:
        """Whether the key, be it a document's, is not to be seen or used by itself."""
        return is_protocol_key(key) or (self._in_session and is_node_key(key))

    def owner(self, key: str) -> Steps[Owner]:
        """Whose this key is, which is no document's."""
        self._refresh()
        if is_protocol_key(key):
            return Hidden("the write protocol")
        if self.is_hidden(key):
            return Hidden("the parts of an array")
        if (known := self._known(key)) is not None:
            return known[0]
        for path, relative in candidates(key):
            entry = yield from self.read(path)
            if (owner := _owned(entry, path, relative)) is not None:
                return owner
        return Other()

    def _known(self, key: str) -> tuple[Owner, Entry, str, str] | None:
        """Whose the key is known to be, by which array, at which path, and the rest of the key."""
        for path, relative in candidates(key):
            entry = self._entries.get(path)
            if entry is not None and (owner := _owned(entry, path, relative)) is not None:
                return owner, entry, path, relative
        return None

    def read(self, path: str, *, trust_hearsay: bool = True) -> Steps[Entry]:
        """What is known of a path, after reading its document if nothing is."""
        self._refresh()
        entry = self._entries.get(path)
        if entry is not None and (trust_hearsay or path not in self._hearsay):
            return entry
        since = self.epoch
        (outcome,) = yield (Get(join(path, DOCUMENT), None, "which parts the array has"),)
        entry, _ = self._understand(path, content(outcome), since)
        return entry

    def shown(self, key: str, not_understood: set[str]) -> Steps[str | None]:
        """The key that a listing shows for a stored object, None if it shows none.

        `not_understood` keeps the paths whose documents cannot be understood, so that a listing asks once.
        """
        if self.is_hidden(key):
            return None
        # A session keeps no parts beside a chunk.
        if self._in_session or split(key)[1] == DOCUMENT:
            return key
        if (known := self._known(key)) is not None:
            _, entry, path, relative = known
            return _shown_key(entry, path, relative)
        # A chunk's key without a suffix is a chunk without parts, or the anchor of one with: shown either way.
        if not may_be_part(key):
            return key
        for path, relative in candidates(key):
            if path in not_understood:
                continue
            try:
                entry = yield from self.read(path)
            except PartsStoreError:
                # An array that we do not understand must not keep the others from being listed.
                not_understood.add(path)
                continue
            if (shown := _shown_key(entry, path, relative)) != key:
                return shown
        return key

    # --- documents that zarr reads --------------------------------------------------------------------------------

    def serve(self, path: str, stored: bytes | None, *, since: int) -> bytes | None:
        """What zarr is served of a stored document, read at the epoch `since`: itself, unless an array has parts."""
        self._refresh()
        _, served = self._understand(path, stored, since)
        return served

    def _understand(self, path: str, stored: bytes | None, since: int) -> tuple[Entry, bytes | None]:
        if stored is None:
            self._learn(path, Plain.NO_ARRAY, since)
            return Plain.NO_ARRAY, None
        document = documents.parse(stored)
        if document is None:
            # A document that is damaged says nothing; what is known stays known.
            if path not in self._entries:
                self._learn(path, Plain.NO_ARRAY, since)
            return self._entries.get(path, Plain.NO_ARRAY), stored
        if not documents.is_array(document):
            self._learn(path, Plain.NO_ARRAY, since)
            return Plain.NO_ARRAY, self._serve_group(path, stored, document)
        try:
            entry = self._read_array(document, path, stored)
        except PartsStoreError:
            # What was known of it is not true any more, and what is true we do not understand.
            self.forget(path)
            raise
        self._learn(path, entry, since)
        served = documents.complete(document)
        return entry, stored if served == document else documents.dump(served)

    def _serve_group(self, path: str, stored: bytes | None, document: Document) -> bytes | None:
        changed = False
        for member_path, member, replace in _consolidated(path, document):
            if not documents.is_array(member):
                continue
            served = documents.complete(member)
            entry = self._read_array(member, member_path, None if served == member else documents.dump(member))
            if member_path not in self._entries or member_path in self._hearsay:
                self._hearsay.add(member_path)
                self._entries[member_path] = entry
            if served != member:
                replace(served)
                changed = True
        return documents.dump(document) if changed else stored

    # --- documents that zarr writes -------------------------------------------------------------------------------

    def _read_array(self, document: Document, path: str, stored: bytes | None) -> Entry:
        """What is known of an array by its document; `stored` is kept of one without parts, unless None."""
        record = documents.read_array(document, path, in_session=self._in_session)
        if record is not None:
            return record
        return Plain.ARRAY if stored is None else PlainArray(stored)

    def accept(self, path: str, written: bytes, creation: Creation) -> Steps[bytes]:
        """What is stored of a document that zarr writes: with the array's transformer, new or put back."""
        document = documents.parse(written)
        if document is None:
            self.forget(path)
            return written
        if documents.is_array(document):
            if self._in_session:
                require_keepable(document, path)
            return (yield from self._accept_array(path, written, document, creation))
        changed = False
        for member_path, member, replace in _consolidated(path, document):
            if documents.is_array(member) and not member.get("storage_transformers"):
                entry = yield from self.read(member_path)
                if (before := _incomplete(entry)) is not None:
                    replace(documents.put_back(member, before))
                    changed = True
        self._set(path, Plain.NO_ARRAY)
        return documents.dump(document) if changed else written

    def _accept_array(self, path: str, written: bytes, document: Document, creation: Creation) -> Steps[bytes]:
        if document.get("storage_transformers"):
            # Somebody writes the stored form himself.
            self._set(path, self._read_array(document, path, written))
            return written
        entry = yield from self.read(path, trust_hearsay=False)
        if isinstance(entry, ArrayRecord):
            stored = documents.put_back(document, entry.stored)
        elif entry is Plain.NO_ARRAY and (parts := creation.parts_of(path)) is not None:
            placing = Placing.BESIDE
            if self._in_session:
                placing = Placing.SPLIT if creation.is_split else Placing.WHOLE
            must_understand = creation.must_understand
            stored = documents.with_parts(document, parts, path, placing=placing, must_understand=must_understand)
        elif isinstance(entry, PlainArray) and (before := documents.parse(entry.stored)) is not None:
            stored = documents.put_back(document, before)
        else:
            stored = document
        kept = written if documents.is_same(stored, document) else documents.dump(stored)
        self._set(path, self._read_array(stored, path, kept))
        return kept

    def _set(self, path: str, entry: Entry) -> None:
        """What is about to be true of a path, by our own doing."""
        self.epoch += 1
        self._entries[path] = entry
        self._hearsay.discard(path)


def _incomplete(entry: Entry) -> Document | None:
    """The stored document of an array, if zarr is served another one."""
    if isinstance(entry, ArrayRecord):
        return entry.stored
    document = documents.parse(entry.stored) if isinstance(entry, PlainArray) else None
    return document if document is not None and documents.complete(document) != document else None


def _owned(entry: Entry, path: str, relative: str) -> Owner | None:
    """Whose the key is, if it is this array's."""
    if entry is Plain.ARRAY or isinstance(entry, PlainArray):
        return Other()
    if not isinstance(entry, ArrayRecord):
        return None
    if entry.encoding.is_chunk_key(relative):
        return OwnedChunk(entry.chunk(path, relative), entry)
    for part in entry.parts.parts:
        suffix = part.key_suffix
        if suffix and relative.endswith(suffix) and entry.encoding.is_chunk_key(relative.removesuffix(suffix)):
            return Hidden(f"chunk {join(path, relative.removesuffix(suffix))!r}")
    if entry.placing is not Placing.BESIDE and is_default_key(relative):
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


def require_keepable(document: Document, path: str) -> None:
    """Raise if a session could not keep the chunks of this array."""
    try:
        encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), 0)
    except PartsConfigError as error:
        raise SessionError(join(path, DOCUMENT), str(error)) from error
    if (encoding.name, encoding.separator) != ("default", "/"):
        found = f"{encoding.name!r} with {encoding.separator!r}"
        problem = f"chunk_key_encoding: expected 'default' with '/', found {found}, whose chunks no session can keep"
        raise SessionError(join(path, DOCUMENT), problem)


def _consolidated(path: str, document: Document) -> Iterator[tuple[str, Document, Callable[[Document], None]]]:
    """The documents in a group's consolidated metadata, each with its path and the way to replace it."""
    consolidated = document.get("consolidated_metadata")
    members: Any = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if isinstance(members, dict):
        for name, member in list(members.items()):
            if isinstance(member, dict):
                yield join(path, name), member, lambda new, name=name: members.__setitem__(name, new)  # type: ignore[misc]
