"""What zarr asks of a store, as steps: whose a key is decides what is done.

Decides between documents, chunks in parts, and everything else, which is passed through. Remembers from one operation
to the next, in the context that zarr runs both in, what a shard's index was read from, for the data that is read after
it; and what a chunk was when it was read whole, for the write that may follow from it. Carries out nothing.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import assert_never

from zarr.abc.store import RangeByteRequest

from parts_store.catalog import documents
from parts_store.catalog.known_arrays import Catalog
from parts_store.catalog.owners import Hidden, Other, OwnedChunk
from parts_store.engine.stats import Stats
from parts_store.engine.steps import DATA, Found, Get, Head, Missing, Put, Steps, content, remove
from parts_store.errors import (
    ConcurrentWriteError,
    LayoutChangedError,
    PartsStoreError,
    ReservedKeyError,
    ServerFeatureError,
    SessionError,
)
from parts_store.format.keys import DOCUMENT, Chunk, PartPlacement, split
from parts_store.format.layout import require_fit, require_no_empty
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts
from parts_store.format.ranges import Wanted, require_byte_request, resolve
from parts_store.format.shard_index import ShardIndex
from parts_store.format.tags import Tag
from parts_store.index_cache import IndexCache
from parts_store.options import StoreOptions
from parts_store.transactions import part_nodes, reading, shards
from parts_store.transactions.protocol import ChunkProtocol, PartData
from parts_store.transactions.read_attempt import Pieces, ReadSettings
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.server import Server
from parts_store.transactions.server_probe import Features, require_features
from parts_store.transactions.shards import Remapped, VersionedIndex
from parts_store.transactions.versions import Absent, Seen, Version


@dataclass(slots=True)
class _Remembered[T]:
    """Something to remember of a chunk of one store, for one operation."""

    token: object
    key: str
    value: T
    # For all contexts that have it: what a task takes is still there in the context that it was started from.
    is_taken: bool = False

    def take(self, token: object, key: str) -> T | None:
        """The value, if it is of this chunk, and nobody took it before."""
        if self.is_taken or self.token is not token or self.key != key:
            return None
        self.is_taken = True
        return self.value


# The values of ranges, None if there is nothing; and the tag of what they were read from, if it has one.
type _Values = tuple[Sequence[Pieces | None] | None, Tag | None]

_FOREIGN = (
    "through a handle from before the array was created again; `store.repair(drop_incomplete=True)` removes the chunk"
)

# How far apart inner chunks of a file may be to be read together, and how much is read at once.
_GAP = 1 << 14
_COALESCED = 1 << 24

# One place each in a context: zarr reads a shard's index and its data, or a chunk and writes it, one after the other.
_versioned_index: ContextVar[_Remembered[VersionedIndex] | None] = ContextVar("parts_store_pin", default=None)
_ranged: ContextVar[_Remembered[Version] | None] = ContextVar("parts_store_ranged", default=None)
_seen: ContextVar[_Remembered[Seen] | None] = ContextVar("parts_store_seen", default=None)


@dataclass(slots=True)
class Operations:
    """The operations on one store, and what they have to remember from one to the next."""

    catalog: Catalog
    stats: Stats
    protocol: ChunkProtocol
    indexes: IndexCache
    # In place of what zarr says, if not None.
    coalesce_gap: int | None
    retries: int
    # What may lack features that writing needs; None where nothing does: memory, a local disk, a session.
    server: Server | None = None
    # Chunks whose index did not fit the data that followed: the next index is not trusted by itself.
    _suspects: set[str] = field(default_factory=set)
    # By this an index is known to be ours: the address of an object may come back.
    _token: object = field(default_factory=object)

    def rehearsal(self) -> "Operations":
        """The same operations, of which these learn nothing but documents: neither counts nor indexes."""
        suspects, indexes = self._suspects.copy(), self.indexes.copy()
        return replace(self, stats=Stats(), indexes=indexes, _suspects=suspects, _token=object())

    def settings(self, max_gap: int = 0, max_nbytes: int = 0) -> ReadSettings:
        """How reads are merged and repeated."""
        gap = max_gap if self.coalesce_gap is None else self.coalesce_gap
        return ReadSettings(gap, max_nbytes, self.retries)

    def get(self, key: str, wanted: Wanted) -> Steps[Pieces | None]:
        """A value, or a range of it; None if there is no such value."""
        values = yield from self.get_many(key, [wanted], self.settings())
        return None if values is None else values[0]

    def get_ranges(self, key: str, wanted: Sequence[Wanted], settings: ReadSettings) -> Steps[Sequence[Pieces | None]]:
        """Ranges of a value, all of one write; that of the shard's index where zarr read it just before."""
        if not wanted:
            return ()
        values = yield from self.get_many(key, wanted, settings, follows_index=True)
        if values is None:
            # What zarr expects of a key that is not there, and turns into fill values.
            raise BaseExceptionGroup("no such key", [FileNotFoundError(key)])
        return values

    def get_many(
        self, key: str, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool = False
    ) -> Steps[Sequence[Pieces | None] | None]:
        """Ranges of a value, all of one write; None if there is no such value."""
        for each in wanted:
            require_byte_request(each)
        if self._is_document(key):
            return (yield from self._get_document(key, split(key)[0], wanted))
        # Where chunks have tags, these tell whether consolidated metadata is out of date.
        match (yield from self.catalog.owner(key, trust_consolidated=self.protocol.has_tags)):
            case OwnedChunk() as owned:
                return (yield from self._get_owned(key, owned, wanted, settings, follows_index=follows_index))
            case Hidden():
                return None
            case Other(array, is_unconfirmed):
                values, tag = yield from self._get_plain(key, wanted, settings, follows_index=follows_index)
                is_part = tag is not None and tag.layout is not None
                if array is not None and (is_part or (is_unconfirmed and values is None)):
                    # A part of a chunk, or no chunk: the array may have parts by now.
                    yield from self.catalog.confirm(array)
                return values
            case never:
                assert_never(never)

    def _is_document(self, key: str) -> bool:
        return split(key)[1] == DOCUMENT and not self.catalog.is_hidden(key)

    def _get_document(self, key: str, path: str, wanted: Sequence[Wanted]) -> Steps[Sequence[Pieces] | None]:
        since, stamp = self.catalog.epoch, self.catalog.stamp(path)
        (outcome,) = yield (Get(key, None, "document"),)
        served = documents.serve(self.catalog, path, content(outcome), since=since, stamp=stamp)
        if served is None:
            return None
        view = memoryview(served)
        spans = [resolve(each, len(view)) for each in wanted]
        return [(view[span.start : span.stop],) for span in spans]

    def _get_plain(
        self, key: str, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool
    ) -> Steps[_Values]:
        """An object that is a value by itself: read as a chunk of one part. Returns its tag, too, if it has one."""
        folder, name = split(key)
        before = self._end_of_plain(key)
        is_empty_range = isinstance(wanted[0], RangeByteRequest) and wanted[0].end <= wanted[0].start
        if follows_index and before is not None and not is_empty_range:
            return (yield from self._get_plain_data(key, wanted, settings, before))
        if len(wanted) == 1 and not is_empty_range:
            (outcome,) = yield (Get(key, wanted[0], DATA),)
            if wanted[0] is not None and isinstance(outcome, Found) and self.protocol.compares_plain_objects:
                # It may be the index of a shard, of which zarr reads ranges next.
                _ranged.set(_Remembered(self._token, key, Version(outcome.tag, (outcome.unchanged,), 0)))
            if name == ".zarray" and isinstance(outcome, Found):
                self.catalog.learn_plain(folder)
            if name == ".zmetadata" and isinstance(outcome, Found):
                self.catalog.learn_consolidated_v2(folder, bytes(memoryview(outcome.data)))
            match outcome:
                case Found(data, tag=tag):
                    return [(memoryview(data),)], tag
                case Missing():
                    return None, None
                case _:
                    return [()], None
        read = yield from self.protocol.read(_single(key), wanted, settings)
        if read is None:
            return None, None
        self.stats.count_saved(by_coalescing=read.saved)
        return read.values, read.version.tag

    def _get_owned(
        self, key: str, owned: OwnedChunk, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool
    ) -> Steps[Sequence[Pieces | None] | None]:
        """Ranges of a chunk in parts, read with the layout of the array that zarr was served."""
        steps = self._get_chunk(key, owned, wanted, settings, follows_index=follows_index)
        values, tag = yield from self._on_chunk(owned.chunk, steps)
        if owned.is_unconfirmed and (tag is None or tag.layout != owned.record.layout):
            # Nothing but consolidated metadata says that the chunk is to be read like this.
            yield from self.catalog.confirm(owned.chunk.array)
        return values

    def _explain_layout(self, chunk: Chunk, error: LayoutChangedError) -> Steps[LayoutChangedError]:
        """Return the error of a chunk that was written with another layout than the array has that zarr was served.

        Raises it if it is the array that was created again since.
        """
        yield from self.catalog.confirm(chunk.array)
        return LayoutChangedError(error.array, f"{error.problem}; {_FOREIGN}")

    def _get_plain_data(
        self, key: str, wanted: Sequence[Wanted], settings: ReadSettings, before: Version
    ) -> Steps[_Values]:
        """Ranges of the object of which a range was read before: of the same object, or an error."""
        read = yield from self.protocol.read_version(_single(key), wanted, settings, before)
        if isinstance(read, Outdated):
            raise ConcurrentWriteError(key, "it was replaced after its index was read")
        if read is None:
            return None, None
        self.stats.count_saved(by_coalescing=read.saved)
        return read.values, read.version.tag

    def _end_of_plain(self, key: str) -> Version | None:
        """What an object was when a range of it was read in this context, which is then forgotten."""
        noted = _ranged.get()
        return None if noted is None else noted.take(self._token, key)

    def _get_chunk(
        self, key: str, owned: OwnedChunk, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool
    ) -> Steps[_Values]:
        chunk, index = owned.chunk, owned.record.shard_index
        if index is not None and list(wanted) == [index.request]:
            return (yield from self._get_index(chunk, index, settings))
        if index is not None and self.coalesce_gap is None and _has_gaps(owned, index):
            # What lies between the inner chunks of a file is mostly not of this array.
            settings = replace(settings, max_gap=min(settings.max_gap, _GAP))
        # A read that needs no index before it, and every write, ends what an earlier index was good for.
        versioned = self._take_pin(chunk)
        if index is not None and versioned is not None and follows_index:
            read = yield from self._get_data(chunk, index, wanted, settings, versioned)
        elif index is not None and list(wanted) == [None] and _has_gaps(owned, index):
            read = yield from shards.read_whole(self.protocol, chunk, index, self.settings(_GAP, _COALESCED))
        else:
            read = yield from self.protocol.read(chunk, wanted, settings, with_anchor=True)
        if list(wanted) == [None]:
            # zarr writes a part of a chunk by reading the whole, in the same context and by the same path.
            _seen.set(_Remembered(self._token, key, Absent() if read is None else read.version))
        if read is None:
            return None, None
        self.stats.count_saved(by_coalescing=read.saved)
        return read.values, read.version.tag

    def _get_index(self, chunk: Chunk, index: ShardIndex, settings: ReadSettings) -> Steps[_Values]:
        known = self.indexes.get(chunk.chunk_key)
        is_suspect = chunk.chunk_key in self._suspects
        versioned = yield from shards.read_index(
            self.protocol, chunk, index, settings, known=known, is_suspect=is_suspect
        )
        self._suspects.discard(chunk.chunk_key)
        if versioned is None:
            self.indexes.forget(chunk.chunk_key)
            _versioned_index.set(None)
            return None, None
        if versioned is known:
            self.stats.count_saved(by_index_cache=1)
        else:
            self._remember(chunk, index, versioned)
        _versioned_index.set(_Remembered(self._token, chunk.chunk_key, versioned))
        return [(memoryview(versioned.index),)], versioned.version.tag

    def _get_data(
        self,
        chunk: Chunk,
        index: ShardIndex,
        wanted: Sequence[Wanted],
        settings: ReadSettings,
        versioned: VersionedIndex,
    ) -> Steps[Read | None]:
        """Data where an index said that it is."""
        try:
            read = yield from shards.read_data(self.protocol, chunk, index, wanted, settings, versioned)
        except PartsStoreError:
            # The next index is not trusted by itself.
            self._suspects.add(chunk.chunk_key)
            self.indexes.forget(chunk.chunk_key)
            raise
        if isinstance(read, Remapped):
            self._remember(chunk, index, read.versioned)
        elif read is None:
            self.indexes.forget(chunk.chunk_key)
        return read

    def _remember(self, chunk: Chunk, index: ShardIndex, versioned: VersionedIndex) -> None:
        """Keep an index for the next read, if there is a way to tell whether it is still good."""
        if index.is_understood and self.protocol.can_recognise(versioned.version):
            self.indexes.keep(chunk.chunk_key, versioned)
        else:
            self.indexes.forget(chunk.chunk_key)

    def _take_pin(self, chunk: Chunk) -> VersionedIndex | None:
        """The index of this chunk that was read in this context, which is then forgotten."""
        noted = _versioned_index.get()
        return None if noted is None else noted.take(self._token, chunk.chunk_key)

    def _end_of(self, key: str, chunk: Chunk) -> Seen | None:
        """What the chunk was when it was read to be changed, if it was; and the end of all that is remembered of it."""
        self._take_pin(chunk)
        self.indexes.forget(chunk.chunk_key)
        noted = _seen.get()
        seen = None if noted is None else noted.take(self._token, key)
        # The threads of a pool keep their context for ever, and what they have read for its own sake says nothing of
        # what they write later. zarr reads and writes a chunk by one and the same string, and makes one for each call.
        return seen if noted is not None and noted.key is key else None

    def exists(self, key: str) -> Steps[bool]:
        """Whether there is such a value."""
        if not self._is_document(key):
            match (yield from self.catalog.owner(key)):
                case OwnedChunk(chunk):
                    return (yield from self._on_chunk(chunk, reading.exists(chunk)))
                case Hidden():
                    return False
        (outcome,) = yield (Head(key, "whether it exists"),)
        if isinstance(outcome, Missing) and self._is_document(key):
            # zarr was told that there is no array.
            self.catalog.forget(split(key)[0])
        return isinstance(outcome, Found)

    def _on_chunk[T](self, chunk: Chunk, steps: Steps[T]) -> Steps[T]:
        """Carry out steps on a chunk; if it was written with another layout, say why."""
        try:
            return (yield from steps)
        except LayoutChangedError as error:
            raise (yield from self._explain_layout(chunk, error)) from None

    def getsize(self, key: str) -> Steps[int | None]:
        """The size of a value, None if there is none."""
        if self._is_document(key):
            # What zarr is served may be larger or smaller than what is stored.
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
        """All parts of a chunk of a split array, each of them bytes or a reference."""
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk, ArrayRecord(placement=PartPlacement.SPLIT)):
                self._end_of(key, chunk)
                sizes = [value.nbytes for value in values]
                require_fit(chunk.parts, sizes, key)
                require_no_empty(chunk.parts, sizes, key)
                yield from self.protocol.write_references(chunk, values)
            case Other() if len(values) == 1:
                # An array without parts: its chunk is one.
                yield from self.protocol.write_references(_single(key), values)
            case _:
                raise SessionError(key, "expected a chunk of an array created with `split=True`, found another key")

    def put(self, key: str, value: memoryview, options: StoreOptions, *, only_if_absent: bool = False) -> Steps[None]:
        """Write a value; `options` says which parts a new array gets."""
        path, name = split(key)
        if self._is_document(key):
            yield from self._put_document(key, value, options, only_if_absent=only_if_absent)
            return
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk) as owned:
                yield from self.require_server(chunk.array, owned.record.parts)
                seen = self._end_of(key, chunk)
                data = owned.cut(value)
                if only_if_absent:
                    yield from self._on_chunk(chunk, self.protocol.write_if_absent(chunk, data))
                else:
                    yield from self._on_chunk(chunk, self.protocol.write(chunk, data, seen))
            case Hidden(owner):
                raise ReservedKeyError(key, owner)
            case Other():
                self._end_of_plain(key)
                if only_if_absent:
                    yield from self.protocol.put_if_absent(key, value, "data")
                else:
                    yield (Put(key, value, None, None, "data"),)
                if name == ".zarray":
                    self.catalog.learn_plain(path)
            case never:
                assert_never(never)

    def _put_document(self, key: str, value: memoryview, options: StoreOptions, *, only_if_absent: bool) -> Steps[None]:
        path, _ = split(key)
        try:
            stored = yield from documents.accept(self.catalog, path, bytes(value), options)
            # It is known now, unless it is a group or a document that nobody understands.
            if path in (arrays := self.catalog.arrays()):
                yield from self.require_server(path, arrays[path].parts)
            if only_if_absent:
                yield from self.protocol.put_if_absent(key, stored, "document")
            else:
                yield from self.protocol.put_document(key, stored)
            if (record := self.catalog.arrays().get(path)) is not None:
                yield from self.protocol.sync_part_nodes(path, record)
        except BaseException:
            # What was about to be true may not have become so.
            self.catalog.doubt(path)
            raise
        if only_if_absent:
            self.catalog.doubt(path)

    def require_server(self, path: str, *parts: ConcatParts) -> Steps[None]:
        """Raise unless the server supports writing arrays with these parts; the first call asks it, below a path."""
        if self.server is None or not parts:
            return
        most = max(len(each.parts) for each in parts)
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
            # Conditions that the server ignores must not be taken for kept.
            self.protocol = self.protocol.without_conditions()

    def check(self) -> Steps[Features]:
        """Ask the server for everything that can be known of it."""
        has_conditions = self.protocol.rules.has_conditions if self.server is None else self.server.has_conditions
        features = yield from self.protocol.check_server(has_conditions=has_conditions)
        if self.server is not None:
            self.server.learn(features)
        return features

    def delete(self, key: str) -> Steps[None]:
        """A value, gone."""
        path, _ = split(key)
        if self._is_document(key):
            if self.protocol.has_part_nodes:
                yield from self._delete_nodes(path)
            yield from remove((key,), "document")
            self.catalog.forget(path)
            return
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk):
                yield from self.protocol.delete(chunk, self._end_of(key, chunk))
            case Hidden(owner):
                raise ReservedKeyError(key, owner)
            case Other():
                self._end_of_plain(key)
                yield from remove((key,), "data")
            case never:
                assert_never(never)

    def _delete_nodes(self, path: str) -> Steps[None]:
        """The nodes of an array's parts, gone before it is."""
        entry = yield from self.catalog.read(path)
        keys = part_nodes.keys_of(path, entry) if isinstance(entry, ArrayRecord) else ()
        if keys:
            yield from remove(keys, "nodes of parts")

    def delete_all(self, keys: Sequence[str]) -> Steps[None]:
        """Everything that is stored under these keys, which are all that there are below a folder, gone."""
        # What makes an array an array goes last, so that an interruption leaves no chunks that nobody owns.
        metadata_keys = sorted((key for key in keys if split(key)[1] == DOCUMENT), key=_depth, reverse=True)
        others = [key for key in keys if split(key)[1] != DOCUMENT]
        if self.protocol.has_part_nodes:
            # An array's chunks go with it; if none goes, they are a part of one array's.
            others = [] if metadata_keys else (yield from self._stored_keys(others))
        for batch in (others, metadata_keys):
            if batch:
                yield from remove(tuple(batch), "everything below")

    def _stored_keys(self, keys: Sequence[str]) -> Steps[list[str]]:
        """The keys of all parts of these chunks."""
        stored: list[str] = []
        for key in keys:
            owner = yield from self.catalog.owner(key)
            stored += owner.chunk.part_keys if isinstance(owner, OwnedChunk) else [key]
        return stored


def _has_gaps(owned: OwnedChunk, index: ShardIndex) -> bool:
    """Whether a shard may be a span of a file with others' bytes between its own: of two parts, one its index."""
    sizes = owned.record.parts.sizes
    is_apart = len(sizes) == 2 and index.location == "end" and sizes[-1] == index.nbytes
    return owned.record.placement is PartPlacement.SPLIT and is_apart and index.is_understood


def _depth(key: str) -> int:
    return key.count("/")


def _single(key: str) -> Chunk:
    """An object that is a value by itself, as a chunk of one part."""
    return Chunk(key, ConcatParts([""]))
