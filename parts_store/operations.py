"""What zarr asks of a store, as steps: whose a key is decides what is done.

Decides between documents, chunks in parts, and everything else, which is passed through; and holds what a shard's index
was read from to the data that is read after it. Carries out nothing.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import assert_never

from zarr.abc.store import RangeByteRequest

from parts_store.catalog import Catalog, Hidden, Other, OwnedChunk
from parts_store.errors import ConcurrentWriteError, ReservedKeyError
from parts_store.plan import reading, transaction
from parts_store.plan.document import ShardIndex
from parts_store.plan.keys import DOCUMENT, Chunk, split
from parts_store.plan.layout import plan_split
from parts_store.plan.ranges import Wanted, require_byte_request, resolve
from parts_store.plan.reading import Knobs, Read, Version
from parts_store.plan.spec import ConcatParts
from parts_store.plan.steps import Delete, Found, Get, Head, Missing, Put, Steps, content
from parts_store.plan.why import DATA, INDEX
from parts_store.stats import Stats

type Pieces = tuple[memoryview, ...]
"""Bytes in the order in which they make up a value."""


@dataclass(frozen=True, slots=True)
class _Pin:
    """The write that a shard's index was read from: the data that follows must be of the same."""

    token: object
    chunk_key: str
    version: Version


# One place for the context of a read: zarr reads a shard's index and its data one after the other in the same context.
_pin: ContextVar[_Pin | None] = ContextVar("parts_store_pin", default=None)


@dataclass(slots=True)
class Operations:
    """The operations on one store, and what they have to remember from one to the next."""

    catalog: Catalog
    stats: Stats
    has_tags: bool
    # In place of what zarr says, if not None.
    coalesce_gap: int | None
    retries: int
    # Chunks whose index did not fit the data that followed: the next index is not trusted by itself.
    _suspects: set[str] = field(default_factory=set)
    # By this a pin is known to be ours: the address of an object may come back.
    _token: object = field(default_factory=object)

    def knobs(self, max_gap: int = 0, max_nbytes: int = 0) -> Knobs:
        """How reads are merged and repeated."""
        gap = max_gap if self.coalesce_gap is None else self.coalesce_gap
        return Knobs(gap, max_nbytes, self.retries, self.has_tags)

    def get(self, key: str, wanted: Wanted) -> Steps[Pieces | None]:
        """A value, or a range of it; None if there is no such value."""
        values = yield from self.get_many(key, [wanted], self.knobs())
        return None if values is None else values[0]

    def get_ranges(self, key: str, wanted: Sequence[Wanted], knobs: Knobs) -> Steps[Sequence[Pieces]]:
        """Ranges of a value, all of one write; that of the shard's index where zarr read it just before."""
        if not wanted:
            return ()
        values = yield from self.get_many(key, wanted, knobs, follows_index=True)
        if values is None:
            # What zarr expects of a key that is not there, and turns into fill values.
            raise BaseExceptionGroup("no such key", [FileNotFoundError(key)])
        return values

    def get_many(
        self, key: str, wanted: Sequence[Wanted], knobs: Knobs, *, follows_index: bool = False
    ) -> Steps[Sequence[Pieces] | None]:
        """Ranges of a value, all of one write; None if there is no such value."""
        for each in wanted:
            require_byte_request(each)
        folder, name = split(key)
        if name == DOCUMENT:
            return (yield from self._get_document(key, folder, wanted))
        match (yield from self.catalog.owner(key)):
            case OwnedChunk() as owned:
                return (yield from self._get_chunk(owned, wanted, knobs, follows_index=follows_index))
            case Hidden():
                return None
            case Other():
                return (yield from self._get_plain(key, wanted, knobs))
            case never:
                assert_never(never)

    def _get_document(self, key: str, path: str, wanted: Sequence[Wanted]) -> Steps[Sequence[Pieces] | None]:
        since = self.catalog.epoch
        (outcome,) = yield (Get(key, None, "document"),)
        served = self.catalog.serve(path, content(outcome), since=since)
        if served is None:
            return None
        view = memoryview(served)
        spans = [resolve(each, len(view)) for each in wanted]
        return [(view[span.start : span.stop],) for span in spans]

    def _get_plain(self, key: str, wanted: Sequence[Wanted], knobs: Knobs) -> Steps[Sequence[Pieces] | None]:
        """An object that is a value by itself: read as a chunk of one part."""
        folder, name = split(key)
        is_empty_range = isinstance(wanted[0], RangeByteRequest) and wanted[0].end <= wanted[0].start
        if len(wanted) == 1 and not is_empty_range:
            (outcome,) = yield (Get(key, wanted[0], DATA),)
            if name == ".zarray" and isinstance(outcome, Found):
                self.catalog.learn_plain(folder)
            match outcome:
                case Found(data):
                    return [(memoryview(data),)]
                case Missing():
                    return None
                case _:
                    return [()]
        read = yield from reading.read(_single(key), wanted, knobs=knobs)
        if read is None:
            return None
        self.stats.count_saved(by_coalescing=read.saved)
        return read.values

    def _get_chunk(
        self, owned: OwnedChunk, wanted: Sequence[Wanted], knobs: Knobs, *, follows_index: bool
    ) -> Steps[Sequence[Pieces] | None]:
        index = owned.record.shard_index
        if index is not None and list(wanted) == [index.request]:
            read = yield from self._read_index(owned.chunk, index, knobs)
            _pin.set(None if read is None else _Pin(self._token, owned.chunk.chunk_key, read.version))
        else:
            # A read that needs no index before it, and every write, ends what an earlier index was good for.
            pin = self._take_pin(owned.chunk)
            read = yield from reading.read(owned.chunk, wanted, knobs=knobs, with_anchor=True)
            if index is not None and follows_index and pin is not None and read is not None and not _fits(pin, read):
                yield from self._refuse_unpinned(owned.chunk, index, knobs)
        if read is None:
            return None
        self.stats.count_saved(by_coalescing=read.saved)
        return read.values

    def _take_pin(self, chunk: Chunk) -> _Pin | None:
        """The pin of this chunk's index, which is then no more."""
        pin = _pin.get()
        if pin is None or pin.token is not self._token or pin.chunk_key != chunk.chunk_key:
            return None
        _pin.set(None)
        return pin

    def _read_index(self, chunk: Chunk, index: ShardIndex, knobs: Knobs) -> Steps[Read | None]:
        """A shard's index, which zarr will trust: of the chunk's own write where no data read will show it."""
        wanted = [index.request]
        suspect = chunk.chunk_key in self._suspects
        read = yield from reading.read(chunk, wanted, knobs=knobs, with_anchor=suspect or not knobs.has_tags, why=INDEX)
        if read is None:
            return None
        if read.version.anchor_etag is None and index.may_have_holes(_joined(read.values[0])):
            # zarr makes no data request for a hole, so nothing would tell that the index is an old one.
            anchor = yield from reading.head(chunk)
            if anchor is None:
                return None
            if anchor.generation != read.version.generation:
                read = yield from reading.read(chunk, wanted, knobs=knobs, with_anchor=True, why=INDEX)
        self._suspects.discard(chunk.chunk_key)
        return read

    def _refuse_unpinned(self, chunk: Chunk, index: ShardIndex, knobs: Knobs) -> Steps[None]:
        """Data that is not of the write that the index is of: the chunk is damaged, or being written."""
        self._suspects.add(chunk.chunk_key)
        # Raises if the index and the anchor do not fit together, and stay so.
        yield from reading.read(chunk, [index.request], knobs=knobs, with_anchor=True, why=INDEX)
        raise ConcurrentWriteError(chunk.chunk_key, "its data is not of the write that its index is of")

    def exists(self, key: str) -> Steps[bool]:
        """Whether there is such a value."""
        if split(key)[1] != DOCUMENT:
            match (yield from self.catalog.owner(key)):
                case OwnedChunk(chunk):
                    return (yield from reading.head(chunk)) is not None
                case Hidden():
                    return False
        (outcome,) = yield (Head(key, "whether it exists"),)
        return isinstance(outcome, Found)

    def getsize(self, key: str) -> Steps[int | None]:
        """The size of a value, None if there is none."""
        path, name = split(key)
        if name == DOCUMENT:
            # What zarr is served may be larger or smaller than what is stored.
            values = yield from self._get_document(key, path, [None])
            return None if values is None else len(values[0][0])
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk):
                return (yield from reading.size(chunk))
            case Hidden():
                return None
        (outcome,) = yield (Head(key, "size"),)
        return outcome.nbytes if isinstance(outcome, Found) else None

    def put(
        self, key: str, value: memoryview, patterns: Mapping[str, ConcatParts], *, only_if_absent: bool = False
    ) -> Steps[None]:
        """A value, written whole; `patterns` are the parts of arrays that come into being by it."""
        path, name = split(key)
        if name == DOCUMENT:
            yield from self._put_document(key, value, patterns, only_if_absent=only_if_absent)
            return
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk):
                self._take_pin(chunk)
                spans = plan_split(chunk.parts, value.nbytes, chunk.chunk_key)
                data = [value[span.start : span.stop] for span in spans]
                write = transaction.write_if_absent if only_if_absent else transaction.write
                yield from write(chunk, data, generation=_new_generation, has_tags=self.has_tags)
            case Hidden(owner):
                raise ReservedKeyError(key, owner)
            case Other():
                yield (Put(key, value, None, only_if_absent, "data"),)
                if name == ".zarray":
                    self.catalog.learn_plain(path)
            case never:
                assert_never(never)

    def _put_document(
        self, key: str, value: memoryview, patterns: Mapping[str, ConcatParts], *, only_if_absent: bool
    ) -> Steps[None]:
        path, _ = split(key)
        try:
            stored = yield from self.catalog.accept(path, bytes(value), patterns)
            yield (Put(key, stored, None, only_if_absent, "document"),)
        except BaseException:
            # What was about to be true may not have become so.
            self.catalog.forget(path)
            raise
        if only_if_absent:
            self.catalog.forget(path)

    def delete(self, key: str) -> Steps[None]:
        """A value, gone."""
        path, name = split(key)
        if name == DOCUMENT:
            yield (Delete((key,), "document"),)
            self.catalog.forget(path)
            return
        match (yield from self.catalog.owner(key)):
            case OwnedChunk(chunk):
                self._take_pin(chunk)
                yield from transaction.delete(chunk)
            case Hidden(owner):
                raise ReservedKeyError(key, owner)
            case Other():
                yield (Delete((key,), "data"),)
            case never:
                assert_never(never)


def delete_all(keys: Sequence[str]) -> Steps[None]:
    """Every one of these objects, gone."""
    # What makes an array an array goes last, so that an interruption leaves no chunks that nobody owns.
    documents = tuple(key for key in keys if split(key)[1] == DOCUMENT)
    others = tuple(key for key in keys if split(key)[1] != DOCUMENT)
    for batch in (others, documents):
        if batch:
            yield (Delete(batch, "everything below"),)


def _fits(pin: _Pin, read: Read) -> bool:
    """Whether data is of the write that the index is of."""
    etags = (pin.version.anchor_etag, read.version.anchor_etag)
    return pin.version.generation == read.version.generation and (None in etags or etags[0] == etags[1])


def _single(key: str) -> Chunk:
    """An object that is a value by itself, as a chunk of one part."""
    return Chunk(key, ConcatParts([""]))


def _new_generation() -> str:
    return secrets.token_hex(16)


def _joined(pieces: Pieces) -> memoryview:
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
