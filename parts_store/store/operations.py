"""What each call of zarr does, depending on what its key is: a document, a chunk in parts, or anything else.

Every operation is a generator of steps. It decides, and carries out nothing itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import assert_never

from parts_store.engine.steps import Failed, Found, Get, Head, Missing, Outcome, Put, Steps, Trial, content, remove
from parts_store.errors import (
    ConcurrentWriteError,
    LayoutChangedError,
    ReservedKeyError,
    ServerFeatureError,
    SessionError,
    StoreConfigError,
)
from parts_store.format import metadata
from parts_store.format.keys import (
    ARRAY_V2,
    DOCUMENT,
    Chunk,
    PartPlacement,
    candidates,
    is_metadata,
    is_node_key,
    is_protocol_key,
    join,
    may_be_chunk,
    split,
)
from parts_store.format.layout import Encoded, Wanted, require_byte_request, require_fit, require_no_empty, resolve
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts
from parts_store.format.shard_index import ShardIndex
from parts_store.format.tags import Tag
from parts_store.store import documents
from parts_store.store.catalog import (
    Catalog,
    CatalogEntry,
    Hidden,
    Other,
    OwnedChunk,
    Owner,
    Plain,
    described,
    described_files,
    is_created_again,
    layout_changed,
)
from parts_store.store.chunk_reads import ChunkReader, Locate, Values
from parts_store.store.options import StoreOptions
from parts_store.store.partial_writes import WholeRead
from parts_store.transactions import reading, session
from parts_store.transactions.locking import array_locks
from parts_store.transactions.protocol import Change, ChunkProtocol, PartData
from parts_store.transactions.reading import Absent, Pieces, ReadSettings, Seen, Version
from parts_store.transactions.server import Features, ProbedServer, require_features


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """A range of a value, in pieces, with the size of the whole value and a label of the write that it is of."""

    pieces: Pieces
    nbytes: int
    # None if the backend cannot tell one write from another.
    label: str | None


_FOREIGN = (
    "through a handle from before the array was created again; `store.repair(drop_incomplete=True)` removes the chunk"
)


@dataclass(slots=True)
class Operations:
    """The operations on one store."""

    catalog: Catalog
    reader: ChunkReader
    # A server that may lack features that writing needs; None for memory, a local disk and a session.
    server: ProbedServer | None = None

    @property
    def protocol(self) -> ChunkProtocol:
        """The protocol that makes chunks atomic."""
        return self.reader.protocol

    def rehearsal(self) -> "Operations":
        """Return operations that count their requests apart, and share only the catalog with these."""
        return replace(self, reader=self.reader.rehearsal())

    def get(self, key: str, wanted: Wanted) -> Steps[Pieces | None]:
        """Read a value, or a range of it; return None if there is no such key."""
        values = yield from self.get_many(key, [wanted], self.reader.settings())
        return None if values is None else values[0]

    def get_ranges(self, key: str, wanted: Sequence[Wanted], settings: ReadSettings) -> Steps[Sequence[Pieces | None]]:
        """Read ranges of a value, all of one write: the write of the index, if zarr read the index of a shard before.

        Raises what zarr expects for a key that does not exist, and turns into fill values.
        """
        if not wanted:
            return ()
        values = yield from self.get_many(key, wanted, settings, follows_index=True)
        if values is None:
            raise BaseExceptionGroup("no such key", [FileNotFoundError(key)])
        return values

    def get_many(
        self, key: str, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool = False
    ) -> Steps[Sequence[Pieces | None] | None]:
        """Read ranges of a value, all of one write; return None if there is no such key."""
        for each in wanted:
            require_byte_request(each)
        if not key:
            # The root is a folder. Some backends refuse to look for an object there.
            return None
        if self._is_document(key):
            return (yield from self._get_document(key, split(key)[0], wanted))
        owner = yield from self._owner_to_read(key)
        return (yield from self._get_of(owner, key, wanted, settings, follows_index=follows_index))

    def get_versioned(self, key: str, wanted: Wanted) -> Steps[VersionedValue | None]:
        """Read a document or a chunk, or a range of it, with its version; return None if the key is of neither.

        What is not part of the hierarchy, such as a file that lies beside it, is not read.
        """
        if not key or is_protocol_key(key) or is_node_key(key):
            return None
        if is_metadata(key):
            values = yield from self.get_many(key, [None], self.reader.settings())
            if values is None or values[0] is None:
                return None
            document = memoryview(b"".join(values[0]))
            span = resolve(wanted, document.nbytes)
            digest = blake2b(document, digest_size=16).hexdigest()
            return VersionedValue((document[span.start : span.stop],), document.nbytes, digest)
        owner = yield from self._owner_to_read(key)
        if owner == Other():
            # The client may have read the metadata from another server, and takes a missing chunk for fill values.
            yield from self._look_for_v2(key)
            owner = yield from self._owner_to_read(key)
        match owner:
            case OwnedChunk(chunk):
                read = yield from self._on_chunk(chunk, self.reader.read_versioned(key, owner, wanted))
            case Other(str()) if owner.is_of_chunk(key):
                read = yield from self.reader.read_versioned(key, owner, wanted)
            case _:
                return None
        values, tag = (None, None) if read is None else (read.values, read.version.tag)
        yield from self._confirm(owner, values, tag)
        if read is None or read.values[0] is None or read.nbytes is None:
            return None
        return VersionedValue(read.values[0], read.nbytes, _label_of(read.version))

    def _look_for_v2(self, key: str) -> Steps[None]:
        """Learn of an array of Zarr v2 that a key may belong to; raise for a document that does not say what it is."""
        for path in [path for path, relative in candidates(key) if may_be_chunk(relative)]:
            keys = [join(path, name) for name in (DOCUMENT, ARRAY_V2)]
            found = yield tuple(Get(each, None, "which array this is") for each in keys)
            stored, stored_v2 = [content(outcome) for outcome in found]
            document = None if stored is None else metadata.parse(stored)
            if stored is not None and (document is None or document.get("node_type") not in ("array", "group")):
                raise StoreConfigError(f"{keys[0]!r}", "the metadata of an array or a group", "something else")
            if stored_v2 is not None:
                self.catalog.learn_plain(path)

    def get_inner(
        self, key: str, index: ShardIndex, locate: Locate, settings: ReadSettings
    ) -> Steps[Sequence[Pieces | None] | None]:
        """Read inner chunks of a shard: the index, and the ranges that `locate` finds in it, all of one write.

        Returns None if there is no such shard. A value is None if its inner chunk was removed meanwhile.
        """
        owner = yield from self._owner_to_read(key)
        match owner:
            case OwnedChunk(record=ArrayRecord(shard_index=ShardIndex() as known)) if known.request == index.request:
                return (yield from self._of_chunk(owner, self.reader.read_inner(key, owner, known, locate, settings)))
            case Other(shard_index=ShardIndex() as known) if known.request == index.request:
                return (yield from self._of_object(owner, self.reader.read_inner(key, owner, known, locate, settings)))
        # The store does not know that the key is that of a shard, or of one with this index.
        found = yield from self._get_of(owner, key, [index.request], settings, follows_index=False)
        if found is None:
            return None
        wanted = locate(index.decode(b"".join(found[0] or ())))
        if not wanted:
            return ()
        return (yield from self._get_of(owner, key, wanted, settings, follows_index=True))

    def _owner_to_read(self, key: str) -> Steps[Owner]:
        # Where chunks have tags, these tell whether consolidated metadata is out of date.
        return (yield from self.catalog.owner(key, trust_consolidated=self.protocol.has_tags))

    def plain_owner(self, key: str) -> Steps[Other | None]:
        """Return what a chunk is whose array has neither parts nor shards, and other chunks too; None for any other."""
        owner = yield from self._owner_to_read(key)
        return owner if isinstance(owner, Other) and owner.array is not None and owner.layout is None else None

    def get_plain(self, owner: Other, key: str) -> Steps[Pieces | None]:
        """Read a chunk of an array without parts and shards; return None if there is no such key."""
        values = yield from self._of_object(owner, self.reader.read_range(key, None))
        return None if values is None else values[0]

    def _get_of(
        self, owner: Owner, key: str, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool
    ) -> Steps[Sequence[Pieces | None] | None]:
        """Read ranges of a key that belongs to this owner; return None if there is no such key."""
        match owner:
            case OwnedChunk(chunk):
                steps = self.reader.read_chunk(key, owner, wanted, settings, follows_index=follows_index)
                found = yield from self._of_chunk(owner, steps)
                self._note_array(key, chunk.array, owner)
                return found
            case Hidden():
                return None
            case Other(array):
                steps = self.reader.read_object(key, owner, wanted, settings, follows_index=follows_index)
                values = yield from self._of_object(owner, steps)
                self._note_array(key, array, owner)
                self._learn_v2(key, values)
                return values
            case never:
                assert_never(never)

    def _note_array(self, key: str, path: str | None, owner: OwnedChunk | Other) -> None:
        """Note which array a chunk belonged to when it was read, for a write that depends on the read."""
        if path is not None and owner.record is not None and not owner.is_unconfirmed:
            self.reader.earlier.note_array(key, path, owner.record)

    def _is_document(self, key: str) -> bool:
        return key.endswith(DOCUMENT) and split(key)[1] == DOCUMENT and not self.catalog.is_hidden(key)

    def _get_document(self, key: str, path: str, wanted: Sequence[Wanted]) -> Steps[Sequence[Pieces] | None]:
        since, stamp = self.catalog.epoch, self.catalog.stamp(path)
        (outcome,) = yield (Get(key, None, "document"),)
        served = documents.serve(self.catalog, path, content(outcome), since=since, stamp=stamp)
        if served is None:
            return None
        # As after a document was written.
        yield from self.catalog.attributes_around(path, described_files(self.catalog.record(path).entry))
        view = memoryview(served)
        spans = [resolve(each, len(view)) for each in wanted]
        return [(view[span.start : span.stop],) for span in spans]

    def _learn_v2(self, key: str, values: Sequence[Pieces | None] | None) -> None:
        """Learn of arrays of Zarr v2 from their metadata, if this is it."""
        path, name = split(key)
        if not values or name not in (".zarray", ".zmetadata"):
            return
        if name == ".zarray":
            self.catalog.learn_plain(path)
        else:
            self.catalog.learn_consolidated_v2(path, b"".join(values[0] or ()))

    def _of_object(self, other: Other, steps: Steps[Values]) -> Steps[Sequence[Pieces | None] | None]:
        """Return what a read of an object has found, if the array still has no parts."""
        values, tag = yield from steps
        yield from self._confirm(other, values, tag)
        return values

    def _of_chunk(self, owned: OwnedChunk, steps: Steps[Values]) -> Steps[Sequence[Pieces | None] | None]:
        """Return what a read of a chunk in parts has found, if the array has the layout that zarr was served."""
        values, tag = yield from self._on_chunk(owned.chunk, steps)
        yield from self._confirm(owned, values, tag)
        return values

    def _confirm(
        self, owner: OwnedChunk | Other, values: Sequence[Pieces | None] | None, tag: Tag | None
    ) -> Steps[None]:
        """Raise if the array is not the one that zarr was served; look only if what was read does not show that."""
        match owner:
            case OwnedChunk(chunk, record, is_unconfirmed=is_unconfirmed):
                # If the chunk does not confirm the layout, only consolidated metadata mentions it.
                if is_unconfirmed and (tag is None or tag.layout != record.layout):
                    yield from self.catalog.confirm(chunk.array)
            case Other(str(path), is_unconfirmed):
                # If the object is a part of a chunk, or missing, the array may have parts by now.
                if (tag is not None and tag.layout is not None) or (is_unconfirmed and values is None):
                    yield from self.catalog.confirm(path)

    def exists(self, key: str) -> Steps[bool]:
        """Return whether a key exists."""
        if not key:
            return False
        if not self._is_document(key):
            match (yield from self.catalog.owner(key)):
                case OwnedChunk(chunk):
                    return (yield from self._on_chunk(chunk, reading.exists(chunk)))
                case Hidden():
                    return False
        (outcome,) = yield (Head(key, "whether it exists"),)
        if isinstance(outcome, Missing) and self._is_document(key):
            # Now zarr knows that there is no array.
            self.catalog.forget(split(key)[0])
        return isinstance(outcome, Found)

    def _on_chunk[T](self, chunk: Chunk, steps: Steps[T]) -> Steps[T]:
        """Carry out steps on a chunk; if it has another layout than its array, raise an error that says why."""
        try:
            return (yield from steps)
        except LayoutChangedError as error:
            yield from self.catalog.confirm(chunk.array)
            raise LayoutChangedError(error.array, f"{error.problem}; {_FOREIGN}") from None

    def getsize(self, key: str) -> Steps[int | None]:
        """Return the size of a value, None if there is no such key."""
        if not key:
            return None
        if self._is_document(key):
            # The document that zarr is served has another size than the stored one.
            values = yield from self._get_document(key, split(key)[0], [None])
            return None if values is None else len(values[0][0])
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk):
                return (yield from self._on_chunk(chunk, self.protocol.size(chunk)))
            case Hidden():
                return None
        (outcome,) = yield (Head(key, "size"),)
        return outcome.nbytes if isinstance(outcome, Found) else None

    def put_parts(self, key: str, values: Sequence[PartData]) -> Steps[None]:
        """Write all parts of a chunk of a split array, each of them as bytes or as a reference."""
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk, ArrayRecord(placement=PartPlacement.SPLIT)):
                self.reader.before_write(key, chunk.chunk_key)
                sizes = [value.nbytes for value in values]
                require_fit(chunk.parts, sizes, key)
                require_no_empty(chunk.parts, sizes, key)
                yield from self.protocol.write_references(chunk, values)
            case Other() as owner if len(values) == 1:
                # The chunk of an array without parts is a single part.
                self.reader.before_plain_write(key)
                yield from self.protocol.write_references(owner.chunk(key), values)
            case _:
                raise SessionError(key, "expected a chunk of an array created with `split=True`, found another key")

    def put(self, key: str, value: memoryview, options: StoreOptions, *, only_if_absent: bool = False) -> Steps[None]:
        """Write a value; `options` says which parts a new array gets."""
        path, name = split(key)
        if self._is_document(key):
            yield from self._put_document(key, value, options, only_if_absent=only_if_absent)
            return
        yield from self._replace(key, value, only_if_absent=only_if_absent)
        if name == ".zarray":
            self.catalog.learn_plain(path)

    def _replace(self, key: str, value: memoryview | None, *, only_if_absent: bool = False) -> Steps[None]:
        """Write a value that is no document, or delete it if `value` is None."""
        owner = yield from self.catalog.owner(key)
        try:
            yield from self._replace_of(owner, key, value, only_if_absent=only_if_absent)
        finally:
            if not isinstance(owner, Hidden):
                self.catalog.expect_values(owner.path)

    def _replace_of(self, owner: Owner, key: str, value: memoryview | None, *, only_if_absent: bool) -> Steps[None]:
        match owner:
            case OwnedChunk(chunk) as owned:
                owned = yield from self._with_around(owned)
                if value is not None:
                    yield from self.require_server(chunk.array, owned.record.parts)
                read = _require_array(self.reader.before_write(key, chunk.chunk_key), owned)
                if only_if_absent and value is not None:
                    steps = self.protocol.write_if_absent(chunk, owned.cut(value))
                else:
                    steps = self._write(chunk, owned.record.shard_index, owned.cut, value, read)
                yield from self._on_chunk(chunk, steps)
            case Hidden(of):
                raise ReservedKeyError(key, of)
            case Other() as other:
                other = yield from self._with_around(other)
                read = _require_array(self.reader.before_plain_write(key), other)
                if only_if_absent and value is not None:
                    yield from self.protocol.put_if_absent(key, other.as_stored(key, value), "data")
                elif not (yield from self._write_plain(key, other, value, read)):
                    yield from remove((key,), "data") if value is None else _put(key, other.as_stored(key, value))
            case never:
                assert_never(never)

    def _with_around[T: (OwnedChunk, Other)](self, owner: T) -> Steps[T]:
        """Return what a key is that is written, with what other nodes say about its array if shards are files."""
        document = described_files(owner.record)
        if document is None:
            return owner
        return replace(owner, around=(yield from self.catalog.around(owner.path, document)))

    def before_writes(self, key: str) -> Steps[None]:
        """Read what the files of all shards of an array depend on, before many of them are written at the same time."""
        match (yield from self.catalog.owner(key)):
            case OwnedChunk() as owned:
                yield from self._with_around(owned)
            case Other() as other:
                yield from self._with_around(other)

    def shared_lock(self, key: str) -> Steps[str | None]:
        """Return the key of the lock that writes of chunks like this one share, None if they share none."""
        if not (self.protocol.locks_arrays and self.protocol.knows_dead_writers):
            return None
        owner = yield from self.catalog.owner(key)
        return array_locks(owner.chunk.array)[1] if isinstance(owner, OwnedChunk) else None

    def _write(
        self,
        chunk: Chunk,
        index: ShardIndex | None,
        cut: Callable[[memoryview], Sequence[Encoded]],
        value: memoryview | None,
        read: WholeRead | None,
    ) -> Steps[None]:
        """Write or delete a chunk; if it is a shard that zarr read before, keep what other clients wrote since."""
        if read is None:
            yield from self.protocol.delete(chunk) if value is None else self.protocol.write(chunk, cut(value))
            return
        before = self.catalog.record(chunk.array).entry if read.array is None else read.array[1]
        if index is not None and index.is_understood and self.protocol.expects_writers:
            confirm = partial(self._require_same_array, chunk, before)
            change = Change(chunk, index, read.content, value, cut, confirm)
            yield from self.protocol.change(change, read.seen, self.reader.settings())
        elif value is None and isinstance(read.seen, Absent) and self.protocol.expects_writers:
            # There was nothing to delete when zarr read the chunk. What is there now is newer.
            return
        else:
            yield from self._write_as_seen(chunk, None if value is None else cut(value), read.seen, before)

    def _write_as_seen(
        self, chunk: Chunk, data: Sequence[Encoded] | None, seen: Seen, before: CatalogEntry | None
    ) -> Steps[None]:
        """Write or delete a chunk on the condition that it has not changed.

        Raises `LayoutChangedError` if it has, because its array was created again: to repeat the write would be wrong.
        """
        try:
            yield from self.protocol.delete(chunk, seen) if data is None else self.protocol.write(chunk, data, seen)
        except ConcurrentWriteError:
            if described(before) is not None:
                yield from self._require_same_array(chunk, before)
            raise

    def _write_plain(self, key: str, other: Other, value: memoryview | None, read: WholeRead | None) -> Steps[bool]:
        """Write or delete an object without parts that zarr read before, on the condition that it has not changed.

        Returns False if nothing was done: zarr did not read the object, or the server has no conditions. The server is
        not asked beforehand, so that arrays without parts cost the same as with any other store.
        """
        known = None if self.server is None else self.server.known
        if other.array is None or read is None or not self.protocol.expects_writers:
            return False
        if known is not None and not known.has_conditions:
            return False
        steps = self._write(other.chunk(key), other.shard_index, lambda each: [other.as_stored(key, each)], value, read)
        if self.server is None or known is not None:
            yield from steps
            return True
        is_done = yield from _unless_unsupported(steps)
        if not is_done:
            self.reader.protocol = self.protocol.without_conditions()
        return is_done

    def _require_same_array(self, chunk: Chunk, before: CatalogEntry | None) -> Steps[None]:
        """Raise an error if the document of an array says something else than before, attributes excepted.

        `ConcurrentWriteError` if the chunk can be read again, and `LayoutChangedError` if the array has to be opened
        again.
        """
        now = yield from self.catalog.confirm(chunk.array)
        if is_created_again(before, now):
            raise layout_changed(chunk.array, now)
        if described(before) is None or described(now) != described(before):
            raise ConcurrentWriteError(chunk.chunk_key, "its array was resized or created again")

    def _put_document(self, key: str, value: memoryview, options: StoreOptions, *, only_if_absent: bool) -> Steps[None]:
        path, _ = split(key)
        try:
            stored = yield from documents.accept(self.catalog, path, bytes(value), options)
            # The catalog knows the array now, unless the document is a group's or cannot be understood.
            if isinstance(entry := self.catalog.record(path).entry, ArrayRecord):
                yield from self.require_server(path, entry.parts)
            if only_if_absent:
                yield from self.protocol.put_if_absent(key, stored, "document")
            else:
                yield from self.protocol.put_document(key, stored)
            if isinstance(entry := self.catalog.record(path).entry, ArrayRecord):
                yield from session.follow_array(path, entry)
        except BaseException:
            # It is unknown whether the document was written.
            self.catalog.doubt(path)
            raise
        entry = self.catalog.record(path).entry
        if only_if_absent:
            self.catalog.doubt(path)
        elif entry is None:
            self.catalog.note_attributes(path, metadata.parse(stored))
        # Shards are written at the same time, and none of them has to read what the files of all depend on.
        yield from self.catalog.attributes_around(path, described_files(entry))

    def require_server(self, path: str, parts: ConcatParts) -> Steps[None]:
        """Raise `ServerFeatureError` unless the server supports writing arrays with these parts.

        The first call asks the server, with an object below the path.
        """
        if self.server is None:
            return
        most = len(parts.parts)
        features = yield from self.server.features(self.protocol.rules.new_generation, path)
        try:
            require_features(features, self.protocol.rules.level, most, self.server.address)
        except ServerFeatureError:
            if self.server.is_confirmed or features.has_conditional_puts is False:
                raise
            # A lost response looks like a missing feature, so the server is asked a second time.
            self.server.forget(features)
            features = yield from self.server.features(self.protocol.rules.new_generation, path)
            self.server.confirm()
            require_features(features, self.protocol.rules.level, most, self.server.address)
        if self.protocol.rules.has_conditions and not features.has_conditions:
            # The write protocol must not rely on conditions that the server ignores.
            self.reader.protocol = self.protocol.without_conditions()

    def check(self) -> Steps[Features]:
        """Find out everything that can be known of the server."""
        has_conditions = self.protocol.rules.has_conditions if self.server is None else self.server.has_conditions
        features = yield from self.protocol.check_server(has_conditions=has_conditions)
        if self.server is not None:
            self.server.learn(features)
        return features

    def delete(self, key: str) -> Steps[None]:
        """Delete a value."""
        if not key:
            return
        path, _ = split(key)
        if self._is_document(key):
            if self.protocol.has_part_nodes:
                yield from self._delete_nodes(path)
            yield from remove((key,), "document")
            self.catalog.forget(path)
            return
        yield from self._replace(key, None)

    def _delete_nodes(self, path: str) -> Steps[None]:
        """Delete the nodes of an array's parts, before the array is deleted."""
        entry = yield from self.catalog.read(path)
        keys = session.part_node_keys(path, entry) if isinstance(entry, ArrayRecord) else ()
        if keys:
            yield from remove(keys, "nodes of parts")


def _label_of(version: Version) -> str | None:
    """Return a text that is another one for every write of a chunk, None if the backend cannot tell."""
    seen = version.generation or version.parts[version.anchor]
    return None if seen is None else blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def _unless_unsupported(steps: Steps[None]) -> Steps[bool]:
    """Carry out steps; return False if the server answers that it does not implement conditional PUTs."""
    outcomes: tuple[Outcome, ...] | None = None
    while True:
        try:
            batch = next(steps) if outcomes is None else steps.send(outcomes)
        except StopIteration:
            return True
        outcomes = yield tuple(Trial(each) if isinstance(each, Put) else each for each in batch)
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                steps.close()
                if isinstance(outcome.error, ServerFeatureError):
                    return False
                raise outcome.error


def _require_array(read: WholeRead | None, owner: OwnedChunk | Other) -> WholeRead | None:
    """Return what zarr read before a write; raise `LayoutChangedError` if the array was created again since."""
    if read is not None and read.array is not None:
        path, before = read.array
        if is_created_again(before, owner.record):
            raise layout_changed(path, owner.record or Plain.NO_ARRAY)
    return read


def _put(key: str, value: Encoded) -> Steps[None]:
    yield (Put(key, value, None, None, "data"),)
