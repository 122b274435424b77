"""Which earlier read a call of zarr continues: all that depends on how zarr calls a store.

zarr carries out two operations as two calls of the store, and does not tell the store that they belong together:

- To write a part of a chunk, zarr reads the whole chunk, changes it, and writes it. If another client writes the chunk
  in between, that write would be lost. So the store notes what it read, and the write is refused if the chunk changed.
- To read a part of a shard, zarr reads the index of the shard, then the byte ranges that the index names. If the shard
  is written in between, the ranges are wrong. So the store notes the index, and compares the data with it.

What was noted is found again under these assumptions about zarr. Each has a test of its name that runs zarr
(tests/test_partial_writes.py):

1. zarr makes both calls in the same context (`contextvars`), or the second in a copy of the first's. This holds for
   shards, and for chunks without shards in zarr's fused pipeline. zarr's batched pipeline reads and writes such
   chunks in two tasks, so there a partial write is not protected.
2. Both calls of a partial write get the same key object. zarr makes a new string for every operation, so the same
   object means the same operation, while an equal string may come from any other one. A thread of a pool keeps its
   context for as long as it lives, so that without this test a read would be taken for the begin of a later write.
3. The index of a shard is read with `ShardIndex.request`, and the data follows with `get_ranges` or `get_ranges_sync`.
4. zarr keeps the buffer of the shard that it read until it has written the shard. So a weak reference to the buffer is
   enough to merge the write with that of another client. If zarr breaks this, such a write is refused.

If zarr breaks the first or the second assumption, a partial write is no longer protected against lost updates. If it
breaks the third, the index and the data of a shard that is overwritten meanwhile are no longer compared, and neither
are a cached index and the data of a later write.
"""

import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field

from zarr.abc.buffer import Buffer

from parts_store.store.catalog import CatalogEntry
from parts_store.transactions.protocol import Unknown
from parts_store.transactions.reading import Absent, Seen, Version
from parts_store.transactions.shards import VersionedIndex


@dataclass(slots=True)
class _Note[T]:
    """Something that a call of one store has read, for one later call."""

    owner: object
    key: str
    # None if it was taken, in all contexts that share the note: a task that takes it cannot remove it from the context
    # that started the task.
    value: T | None

    def take(self, owner: object, key: str) -> T | None:
        """Return the value if it is for this key of this store, and was not taken before."""
        if self.owner is not owner or self.key != key:
            return None
        value, self.value = self.value, None
        return value


@dataclass(frozen=True, slots=True)
class IndexRead:
    """The index of a shard that was read, and the bytes of the shard if all of it was read with its index."""

    index: VersionedIndex
    shard: memoryview | None = None


@dataclass(slots=True)
class WholeRead:
    """What a chunk was when it was read whole."""

    seen: Seen
    # The path of the array, and what the store knew of the array, before the chunk was read; None if it is not known.
    array: tuple[str, CatalogEntry] | None = None
    # The buffer that zarr got, which zarr keeps until it has written the chunk. Other reads cost no memory.
    buffer: weakref.ref[Buffer] | None = None

    @property
    def content(self) -> memoryview | Unknown | None:
        """The bytes of the chunk, None if there was none; unknown if zarr does not keep them any more."""
        if isinstance(self.seen, Absent):
            return None
        buffer = None if self.buffer is None else self.buffer()
        return Unknown() if buffer is None else memoryview(buffer.as_buffer_like()).cast("B")


# One note of each kind per context is enough: zarr makes the two calls one directly after the other.
_index: ContextVar[_Note[IndexRead] | None] = ContextVar("parts_store_index", default=None)
_range: ContextVar[_Note[Version] | None] = ContextVar("parts_store_range", default=None)
_whole: ContextVar[_Note[WholeRead] | None] = ContextVar("parts_store_whole", default=None)


@dataclass(slots=True)
class EarlierReads:
    """What the calls of one store have read, until a later call in the same context continues them."""

    # Identifies the store. An `id` would not: it may be used again after an object was deleted.
    _owner: object = field(default_factory=object)

    def note_index(self, chunk_key: str, read: IndexRead | None) -> None:
        """Note that the index of a shard was read; None if there is no such shard."""
        _index.set(None if read is None else _Note(self._owner, chunk_key, read))

    def take_index(self, chunk_key: str) -> IndexRead | None:
        """Return and forget the index of this shard, if it was read last in this context."""
        note = _index.get()
        return None if note is None else note.take(self._owner, chunk_key)

    def note_range(self, key: str, version: Version) -> None:
        """Note that a range of an object without parts was read: it may be the index of a shard."""
        _range.set(_Note(self._owner, key, version))

    def take_range(self, key: str) -> Version | None:
        """Return and forget the version of this object, if a range of it was read last in this context."""
        note = _range.get()
        return None if note is None else note.take(self._owner, key)

    def note_whole(self, key: str, seen: Seen) -> None:
        """Note that a chunk was read whole: zarr may be about to change a part of it."""
        _whole.set(_Note(self._owner, key, WholeRead(seen)))

    def note_buffer(self, key: str, buffer: Buffer) -> None:
        """Note the bytes of the chunk that was just read whole, for as long as zarr keeps them."""
        if (read := self._just_read(key)) is not None:
            read.buffer = weakref.ref(buffer)

    def note_array(self, key: str, path: str, entry: CatalogEntry) -> None:
        """Note which array the chunk belonged to that was just read whole."""
        if (read := self._just_read(key)) is not None:
            read.array = (path, entry)

    def _just_read(self, key: str) -> WholeRead | None:
        note = _whole.get()
        return note.value if note is not None and note.key is key and note.owner is self._owner else None

    def take_whole(self, key: str) -> WholeRead | None:
        """Return and forget what a chunk was when zarr read it in order to write it now, None if zarr did not."""
        note = _whole.get()
        read = None if note is None else note.take(self._owner, key)
        # The second assumption above.
        return read if note is not None and note.key is key else None
