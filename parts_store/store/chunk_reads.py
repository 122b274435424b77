"""Reading the value of a key: of a chunk in parts, of a shard's index and data, or of a single object.

A `ChunkReader` keeps what makes the next read cheaper or safer: the cached indexes, the shards whose index did not fit
their data, and what an earlier call has read (`partial_writes`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from zarr.abc.store import RangeByteRequest

from parts_store.engine.stats import Stats
from parts_store.engine.steps import DATA, INDEX, Found, Get, Missing, Steps
from parts_store.errors import ConcurrentWriteError, PartsStoreError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Wanted, resolve
from parts_store.format.shard_index import ShardIndex, Table
from parts_store.format.tags import Tag
from parts_store.store.catalog import ONE_PART, Other, OwnedChunk
from parts_store.store.partial_writes import EarlierReads, IndexRead, WholeRead
from parts_store.transactions import shards
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import (
    Absent,
    Outdated,
    Pieces,
    Read,
    ReadSettings,
    Version,
    require_inside,
    require_unedited,
)
from parts_store.transactions.shards import Remapped, VersionedIndex


@dataclass(slots=True)
class IndexCache:
    """A cache of shard indexes by the key of their chunk, of at most `max_nbytes` bytes in total."""

    max_nbytes: int
    # Whether the backend can currently tell whether a chunk has changed.
    is_usable: Callable[[], bool] = lambda: True
    nbytes: int = 0
    _indexes: OrderedDict[str, VersionedIndex] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, chunk_key: str) -> VersionedIndex | None:
        """Return the index of a chunk, None if it is not in the cache."""
        if not self.is_usable():
            return None
        with self._lock:
            versioned = self._indexes.get(chunk_key)
            if versioned is not None:
                self._indexes.move_to_end(chunk_key)
            return versioned

    def keep(self, chunk_key: str, versioned: VersionedIndex) -> None:
        """Add an index, unless it is larger than the whole cache may be."""
        with self._lock:
            self._drop(chunk_key)
            if len(versioned.index) > self.max_nbytes or not self.is_usable():
                return
            self._indexes[chunk_key] = versioned
            self.nbytes += len(versioned.index)
            while self.nbytes > self.max_nbytes:
                self._drop(next(iter(self._indexes)))

    def copy(self) -> "IndexCache":
        """Return an independent cache with the same indexes."""
        with self._lock:
            return IndexCache(self.max_nbytes, self.is_usable, self.nbytes, self._indexes.copy())

    def forget(self, chunk_key: str) -> None:
        """Remove the index of a chunk."""
        with self._lock:
            self._drop(chunk_key)

    def _drop(self, chunk_key: str) -> None:
        versioned = self._indexes.pop(chunk_key, None)
        if versioned is not None:
            self.nbytes -= len(versioned.index)


type Values = tuple[Sequence[Pieces | None] | None, Tag | None]
"""The bytes of each range, None if there is no such key; and the tag of the object that they came from."""
type Locate = Callable[[Table | None], Sequence[Wanted]]
"""A function that returns the byte ranges of inner chunks, given the decoded index; None if it cannot be decoded."""

# How far apart inner chunks of a file may be to be read with one request, and how much one request may read.
_FILE_GAP: Final = 1 << 14
_FILE_COALESCED: Final = 1 << 24
# The size of a shard without parts that is read with one request, as long as its index is not known. Up to this size
# one request takes half as long as two: the time for the bytes is less than that for another request, on S3 in the same
# data centre as well as far away.
_SMALL: Final = 1 << 18


@dataclass(slots=True)
class ChunkReader:
    """The reads of one store, and what they have to remember from one to the next."""

    # Replaced by one without conditions when the server turns out to ignore them.
    protocol: ChunkProtocol
    stats: Stats
    indexes: IndexCache
    # Replaces the gap that zarr asks for, if not None.
    coalesce_gap: int | None
    retries: int
    earlier: EarlierReads = field(default_factory=EarlierReads)
    # Shards whose index did not fit the data that followed: the next index is compared with the anchor.
    _suspects: set[str] = field(default_factory=set)

    def rehearsal(self) -> "ChunkReader":
        """Return a reader that begins with what this one knows, and from which this one learns nothing."""
        return replace(
            self, stats=Stats(), indexes=self.indexes.copy(), earlier=EarlierReads(), _suspects=self._suspects.copy()
        )

    def settings(self, max_gap: int = 0, max_nbytes: int = 0) -> ReadSettings:
        """Return how ranges are coalesced, and how often a read is repeated."""
        return ReadSettings(max_gap if self.coalesce_gap is None else self.coalesce_gap, max_nbytes, self.retries)

    # --- objects without parts ------------------------------------------------------------------------------------

    def read_object(
        self,
        key: str,
        other: Other,
        wanted: Sequence[Wanted],
        settings: ReadSettings,
        *,
        follows_index: bool,
    ) -> Steps[Values]:
        """Read ranges of an object that is a value by itself."""
        index, chunk = other.shard_index, other.chunk(key)
        if index is not None:
            if _is_request_for(index, wanted):
                found = yield from self._find_plain_index(chunk, index, settings)
                self.earlier.note_index(key, found)
                return _index_values(found)
            noted = self.earlier.take_index(key)
            if noted is not None and follows_index:
                return self._values((yield from self._read_data(chunk, index, wanted, settings, noted)))
        before = self.earlier.take_range(key)
        is_empty_range = isinstance(wanted[0], RangeByteRequest) and wanted[0].end <= wanted[0].start
        if follows_index and before is not None and not is_empty_range:
            read = yield from self.protocol.read_version(chunk, wanted, settings, before)
            if isinstance(read, Outdated):
                raise ConcurrentWriteError(key, "it was replaced after its index was read")
            return self._values(read)
        if len(wanted) == 1 and not is_empty_range:
            values, tag = yield from self.read_range(key, wanted[0])
            if wanted[0] is None and index is not None and values is not None:
                require_unedited(chunk, index, values[0])
            return values, tag
        return self._values((yield from self.protocol.read(chunk, wanted, settings)))

    def _find_plain_index(self, chunk: Chunk, index: ShardIndex, settings: ReadSettings) -> Steps[IndexRead | None]:
        """Return the index of a shard without parts, and the whole shard if it is small and was not known."""
        key, known = chunk.chunk_key, self._known(chunk.chunk_key, index)
        is_small = index.shard_nbytes is not None and index.shard_nbytes <= _SMALL
        if not is_small or (known is not None and not known.may_have_holes):
            return (yield from self._find_index(chunk, index, settings))
        (outcome,) = yield (Get(key, None, INDEX),)
        if not isinstance(outcome, Found):
            self.indexes.forget(key)
            return None
        shard = memoryview(outcome.data)
        require_unedited(chunk, index, (shard,))
        span = resolve(index.request, shard.nbytes)
        version = Version(outcome.tag, (outcome.unchanged,), 0)
        versioned = VersionedIndex.decoded(bytes(shard[span.start : span.stop]), version, index)
        self._cache(chunk, index, versioned)
        return IndexRead(versioned, shard)

    def _known(self, key: str, index: ShardIndex) -> VersionedIndex | None:
        """Return the cached index of a shard, None if there is none."""
        known = self.indexes.get(key)
        # Otherwise the array was created again, with other shards.
        return known if known is None or known.index_of == index else None

    def read_range(self, key: str, wanted: Wanted) -> Steps[Values]:
        """Read one range of an object, or all of it, with one request."""
        (outcome,) = yield (Get(key, wanted, DATA),)
        match outcome:
            case Found(data, tag=tag):
                if self.protocol.compares_plain_objects:
                    version = Version(tag, (outcome.unchanged,), 0)
                    (self.earlier.note_whole if wanted is None else self.earlier.note_range)(key, version)
                return [(memoryview(data),)], tag
            case Missing():
                if wanted is None:
                    self.earlier.note_whole(key, Absent())
                return None, None
            case _:
                return [()], None

    # --- values with their version --------------------------------------------------------------------------------

    def read_versioned(self, key: str, owner: OwnedChunk | Other, wanted: Wanted) -> Steps[Read | None]:
        """Read one range of a chunk or an object, with the write that it is of; return None if there is none."""
        if isinstance(owner, OwnedChunk):
            chunk, index = owner.chunk, owner.record.shard_index
        else:
            chunk, index = owner.chunk(key), owner.shard_index
        read = yield from self.protocol.read(chunk, [wanted], self.settings(), with_anchor=True)
        if wanted is None:
            require_unedited(chunk, index, None if read is None else read.values[0])
            require_inside(chunk, index, read)
        if read is not None and read.nbytes is None:
            return replace(read, nbytes=(yield from self.protocol.size(chunk)))
        return read

    # --- chunks in parts ------------------------------------------------------------------------------------------

    def read_chunk(
        self, key: str, owned: OwnedChunk, wanted: Sequence[Wanted], settings: ReadSettings, *, follows_index: bool
    ) -> Steps[Values]:
        """Read ranges of a chunk in parts, all of one write."""
        chunk, index = owned.chunk, owned.record.shard_index
        if index is not None and _is_request_for(index, wanted):
            found = yield from self._find_index(chunk, index, settings)
            self.earlier.note_index(chunk.chunk_key, found)
            return _index_values(found)
        settings = self._settings_of(owned, settings)
        # Every read but that of the index ends what the index was noted for.
        noted = self.earlier.take_index(chunk.chunk_key)
        if index is not None and noted is not None and follows_index:
            return self._values((yield from self._read_data(chunk, index, wanted, settings, noted)))
        if index is not None and list(wanted) == [None] and owned.may_have_gaps:
            read = yield from shards.read_whole(self.protocol, chunk, index, self.settings(_FILE_GAP, _FILE_COALESCED))
        else:
            read = yield from self.protocol.read(chunk, wanted, settings, with_anchor=True)
        if list(wanted) == [None]:
            require_unedited(chunk, index, None if read is None else read.values[0])
            require_inside(chunk, index, read)
            self.earlier.note_whole(key, Absent() if read is None else read.version)
        return self._values(read)

    def read_inner(
        self, key: str, owner: OwnedChunk | Other, index: ShardIndex, locate: Locate, settings: ReadSettings
    ) -> Steps[Values]:
        """Read the inner chunks that `locate` finds in the index of a shard, all of one write."""
        if isinstance(owner, OwnedChunk):
            chunk, settings = owner.chunk, self._settings_of(owner, settings)
            found = yield from self._find_index(chunk, index, settings)
        else:
            chunk = owner.chunk(key)
            found = yield from self._find_plain_index(chunk, index, settings)
        if found is None:
            return None, None
        wanted = locate(found.index.table)
        if not wanted:
            return (), found.index.version.tag
        return self._values((yield from self._read_data(chunk, index, wanted, settings, found)))

    def _settings_of(self, owned: OwnedChunk, settings: ReadSettings) -> ReadSettings:
        """Return how the ranges of a chunk are coalesced."""
        if owned.may_have_gaps and self.coalesce_gap is None:
            # The bytes between the inner chunks of a file mostly belong to other arrays.
            return replace(settings, max_gap=min(settings.max_gap, _FILE_GAP))
        return settings

    def _find_index(self, chunk: Chunk, index: ShardIndex, settings: ReadSettings) -> Steps[IndexRead | None]:
        """Return the index of a shard, None if there is no such chunk."""
        known = self._known(chunk.chunk_key, index)
        is_suspect = chunk.chunk_key in self._suspects
        versioned = yield from shards.read_index(
            self.protocol, chunk, index, settings, known=known, is_suspect=is_suspect
        )
        self._suspects.discard(chunk.chunk_key)
        if versioned is None:
            self.indexes.forget(chunk.chunk_key)
        elif versioned is known:
            self.stats.count_saved(by_index_cache=1)
        else:
            self._cache(chunk, index, versioned)
        return None if versioned is None else IndexRead(versioned)

    def _read_data(
        self,
        chunk: Chunk,
        index: ShardIndex,
        wanted: Sequence[Wanted],
        settings: ReadSettings,
        found: IndexRead,
    ) -> Steps[Read | None]:
        """Read the inner chunks that an index named, from the whole shard if it was read with its index."""
        if found.shard is not None:
            return shards.take(chunk, wanted, found.index, found.shard)
        try:
            read = yield from shards.read_data(self.protocol, chunk, index, wanted, settings, found.index)
        except PartsStoreError:
            self._suspects.add(chunk.chunk_key)
            self.indexes.forget(chunk.chunk_key)
            raise
        if isinstance(read, Remapped):
            self._cache(chunk, index, read.versioned)
        elif read is None:
            self.indexes.forget(chunk.chunk_key)
        return read

    def _cache(self, chunk: Chunk, index: ShardIndex, versioned: VersionedIndex) -> None:
        """Keep an index for the next read, if that read can find out whether the index is still valid."""
        protocol = self.protocol
        can_recognise = protocol.can_recognise_object if chunk.parts is ONE_PART else protocol.can_recognise
        if index.is_understood and can_recognise(versioned.version):
            self.indexes.keep(chunk.chunk_key, versioned)
        else:
            self.indexes.forget(chunk.chunk_key)

    def _values(self, read: Read | None) -> Values:
        if read is None:
            return None, None
        if read.saved:
            self.stats.count_saved(by_coalescing=read.saved)
        return read.values, read.version.tag

    # --- writes ---------------------------------------------------------------------------------------------------

    def before_write(self, key: str, chunk_key: str) -> WholeRead | None:
        """Forget all that is remembered of a chunk; return what it was if zarr read it in order to write it now."""
        self.earlier.take_index(chunk_key)
        self.indexes.forget(chunk_key)
        return self.earlier.take_whole(key)

    def before_plain_write(self, key: str) -> WholeRead | None:
        """Forget all that is remembered of an object without parts; return what it was if zarr read it before."""
        self.earlier.take_range(key)
        return self.before_write(key, key)


def _index_values(found: IndexRead | None) -> Values:
    """Return the bytes of an index that zarr asked for."""
    return (None, None) if found is None else ([(memoryview(found.index.index),)], found.index.version.tag)


def _is_request_for(index: ShardIndex, wanted: Sequence[Wanted]) -> bool:
    """Return whether zarr asks for the index of a shard."""
    return len(wanted) == 1 and wanted[0] == index.request
