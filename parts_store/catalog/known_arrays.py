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

import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parts_store.catalog.owners import Hidden, Other, Owner, owner_in
from parts_store.catalog.records import Entry, PathRecord, Plain, PlainArray, Served, Source, Stamp, document_not_served
from parts_store.engine.steps import Get, Steps, content
from parts_store.errors import LayoutChangedError, PartsStoreError
from parts_store.format import metadata
from parts_store.format.keys import DOCUMENT, ancestors, candidates, is_protocol_key, join, split
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.transactions.protocol import ChunkProtocol

_OPEN_AGAIN = "open it again; if it was opened with consolidated metadata, that is out of date: consolidate again"
# How Python's JSON parser decodes bytes.
_ANY = "surrogatepass"


class Catalog:
    """The arrays that a store knows; in a session, those of one snapshot.

    Threads share a catalog. A record is replaced in one step, and a method that visits all records visits a copy.
    """

    def __init__(
        self,
        protocol: ChunkProtocol,
        entries: Mapping[str, Entry] | None = None,
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
        expected = replace(self._unknown, source=Source.EXPECTED)
        self._records = {path: replace(expected, entry=entry) for path, entry in (entries or {}).items()}
        self._lock = threading.Lock()

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

    def lasting(self) -> dict[str, Any]:
        """Return what a copy of the store in another process needs of the catalog.

        Arrays that were used are included whole. Of every other array that zarr was served, the digest is included, so
        that the other process can tell it from an array that was created again. Of an array without parts that has
        shards, the document is included, which says where the index of a shard is.
        """
        used, others = {}, {}
        for path, record in self._records.copy().items():
            is_needed_whole = document_not_served(record.entry) is not None
            if is_needed_whole and record.is_used:
                used[path] = record
            elif record.served_digest is not None and not (is_needed_whole and isinstance(record.entry, PlainArray)):
                stamp = [record.stamp] if record.is_used else []
                others[path] = [record.served_digest, record.source is Source.CONSOLIDATED, _sharded(record), *stamp]
        return {"used": used, "others": zlib.compress(json.dumps(others).encode())}

    def take_over(self, lasting: Mapping[str, Any]) -> None:
        """Learn what the catalog of another process has handed over."""
        for path, (digest, is_consolidated, sharded, *stamps) in json.loads(zlib.decompress(lasting["others"])).items():
            self._records[path] = PathRecord(
                entry=None if digest else _plain(sharded),
                source=Source.CONSOLIDATED if is_consolidated else Source.DOCUMENT,
                stamp=next((None if stamp is None else tuple(stamp) for stamp in stamps), self._unknown.stamp),
                served=Served(digest),
                is_used=bool(stamps),
            )
        self._records.update(lasting["used"])

    # --- learning and forgetting ----------------------------------------------------------------------------------

    def forget(self, path: str) -> None:
        """Forget what is at a path, and what zarr was served of it."""
        self.epoch += 1
        self.change(path, PathRecord.forgotten)

    def doubt(self, path: str) -> None:
        """Forget what is at a path, but not what zarr was served of it."""
        self.epoch += 1
        self.change(path, PathRecord.doubted)

    def forget_below(self, prefix: str) -> None:
        """Forget what is at and below a path."""
        self.epoch += 1
        for path, record in self._records.copy().items():
            # Where zarr was told that there is nothing, this is still so.
            is_known = record.entry is not None or record.served_digest is not None
            if is_known and (not prefix or path == prefix or path.startswith(f"{prefix}/")):
                self.forget(path)

    def learn(self, path: str, entry: Entry, since: int, stamp: Stamp | None = None) -> None:
        """Learn what the document at a path says, unless any document was changed since the epoch `since`."""
        if since == self.epoch:
            self.change(path, lambda record: record.learnt(entry, stamp))

    def learn_written(self, path: str, entry: Entry) -> None:
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
                self.change(member, lambda record: replace(record, source=Source.CONSOLIDATED))

    def expect(self, path: str, stored: bytes) -> None:
        """Learn of an array, of Zarr v3 or v2, from a document that will be written after the chunks."""
        self.forget(path)
        document = metadata.parse(stored)
        if document is not None and metadata.is_array(document):
            self.learn(path, self.understand(path, stored, document)[0], self.epoch)
        else:
            self.learn_plain(path)
        self.change(path, lambda record: replace(record, source=Source.EXPECTED))

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
            self._known_snapshot = now

    def rely_on(self, path: str, entry: Entry) -> None:
        """Learn that a caller uses what the store said of an array: from now on, another layout there is an error.

        This also protects callers that use the store's keys without a document from this store.
        """
        may_vanish = self.protocol.can_discard_changes
        record = self.record(path)
        # Nearly always the caller has used the array before.
        if record.relied_on(entry, may_vanish=may_vanish) is not record:
            self.change(path, lambda record: record.relied_on(entry, may_vanish=may_vanish))

    # --- reading documents ----------------------------------------------------------------------------------------

    def entry_of(self, document: Document, path: str, stored: bytes | None) -> Entry:
        """Return what the document of an array says; `stored` is kept of an array without parts, unless None."""
        record = self.protocol.read_array(document, path)
        if record is not None:
            return record
        return Plain.ARRAY if stored is None else PlainArray(stored)

    def understand(self, path: str, stored: bytes | None, document: Document | None) -> tuple[Entry, bytes | None]:
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
        served = metadata.serve(document)
        return entry, stored if served == document else metadata.dump_compact(served)

    def trusted(self, path: str, *, trust_consolidated: bool = False) -> Entry | None:
        """Return what is known of a path; None if nothing is known, or if the document has to be read first."""
        record = self.record(path)
        if record.entry is None or (record.source is Source.CONSOLIDATED and not trust_consolidated):
            return None
        is_current = record.source is Source.EXPECTED or self.stamp(path) == record.stamp
        return record.entry if is_current and record.is_as_served(record.entry) else None

    def read(self, path: str, *, trust_consolidated: bool = False) -> Steps[Entry]:
        """Return what is known of a path; read its document if nothing is known."""
        self.refresh()
        record = self.record(path)
        if record.entry is not None and (trust_consolidated or record.source is not Source.CONSOLIDATED):
            return record.entry
        return (yield from self.read_again(path))

    def read_again(self, path: str) -> Steps[Entry]:
        """Read the document at a path, and learn what it says."""
        since, stamp = self.epoch, self.stamp(path)
        (outcome,) = yield (Get(join(path, DOCUMENT), None, "which parts the array has"),)
        stored = content(outcome)
        entry, _ = self.understand(path, stored, None if stored is None else metadata.parse(stored))
        self.learn(path, entry, since, stamp)
        return entry

    def read_many(self, paths: Sequence[str]) -> Steps[dict[str, Entry]]:
        """Return what is known of these paths; read all documents of which nothing is known at the same time.

        An array whose document cannot be understood counts as no array: it must not prevent that others are listed.
        """
        self.refresh()
        records = {path: self.record(path) for path in paths}
        found = {
            path: record.entry
            for path, record in records.items()
            if record.entry is not None and record.source is not Source.CONSOLIDATED
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

    def confirm(self, path: str) -> Steps[Entry]:
        """Read the document at a path; raise `LayoutChangedError` if zarr was served that of another array.

        An array without parts that was deleted looks like one of Zarr v2, and is passed through.
        """
        entry = yield from self.read_again(path)
        if not self.record(path).is_as_served(entry):
            raise layout_changed(path, entry)
        return entry

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
            is_unconfirmed = self.record(path).source is Source.CONSOLIDATED
            if entry is not None and (owner := owner_in(entry, path, relative, is_unconfirmed=is_unconfirmed)):
                self.rely_on(path, entry)
                return owner
        for path, relative in candidates(key):
            entry = self.trusted(path, trust_consolidated=trust_consolidated) or (yield from self.confirm(path))
            if (owner := owner_in(entry, path, relative)) is not None:
                self.rely_on(path, entry)
                return owner
        return Other()


def _sharded(record: PathRecord) -> str | None:
    """Return the document of an array without parts that has shards, None for any other array."""
    entry = record.entry
    return entry.stored.decode(errors=_ANY) if isinstance(entry, PlainArray) and entry.is_sharded else None


def _plain(sharded: str | None) -> Entry:
    """Return an array without parts, which has shards if this is its document."""
    return Plain.ARRAY if sharded is None else PlainArray(sharded.encode(errors=_ANY))


def layout_changed(path: str, entry: Entry) -> LayoutChangedError:
    """Return the error for an array whose document now says this, which is not what zarr was served."""
    problem = "was deleted" if entry is Plain.NO_ARRAY else "was created again with another layout"
    return LayoutChangedError(path, f"it {problem} since it was opened; {_OPEN_AGAIN}")
