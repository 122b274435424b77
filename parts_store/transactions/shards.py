"""Reading a shard: its index first, then the data where the index says, all of one write.

zarr reads the index, and asks for data only afterwards. So the version of the index is kept, and compared with the
version of the data:

- Data of the same write is returned as it is.
- Data of another write is where another index says. If the old index has a different place for every inner chunk, the
  range tells which inner chunk zarr wants. That inner chunk is read where the new index says.
- An untagged shard is another write if an object of it has another ETag. If the index is an object of its own, it is
  looked at again after the data.
- If the old index has a hole, zarr has already used the fill value there, and the read raises `ConcurrentWriteError`.

A shard whose main part is a range of an existing file may have other bytes between its inner chunks. A read of the
whole shard leaves them out: it returns the inner chunks one after the other, and a matching index.

A shard that is a file of another format may be changed by another program. Without tags, the end of the file is
compared with the index (`format/files/seal`), and is read with it.

An index that names bytes beyond the end of the shard is an error, because the data would be too short.

For a hole zarr sends no request for data that would tell an old index from a new one. Therefore an index with holes is
compared with the anchor before it is returned. An index without holes is not, and may be outdated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from parts_store.engine.steps import INDEX, Found, Steps, head
from parts_store.errors import CodecError, ConcurrentWriteError, PartSizeError
from parts_store.format.files import seal
from parts_store.format.files.seal import Ends
from parts_store.format.keys import Chunk
from parts_store.format.layout import Wanted, resolve
from parts_store.format.shard_index import ShardIndex, Table, may_have_holes
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import Outdated, Read, ReadSettings, Version, require_data, require_sealed


@dataclass(frozen=True, slots=True)
class VersionedIndex:
    """A shard's index, and the write that it belongs to: the data must belong to the same write."""

    index: bytes
    version: Version
    # Where the index is, and how it is encoded.
    index_of: ShardIndex
    # Whether an inner chunk is absent, or may be, because the index cannot be decoded.
    may_have_holes: bool
    # The index decoded, None if it cannot be. It needs no memory of its own.
    table: Table | None = field(default=None, compare=False, repr=False)
    # Whether the seal of a file was compared, so that the shard is a file.
    has_seal: bool = field(default=False, compare=False)

    @classmethod
    def decoded(cls, data: bytes, version: Version, index: ShardIndex, *, has_seal: bool = False) -> Self:
        """Return the index with these bytes, decoded once for all reads that follow."""
        table = index.decode(data)
        return cls(data, version, index, may_have_holes(table), table, has_seal)


@dataclass(frozen=True, slots=True)
class Remapped(Read):
    """The result of a read that found data of another write than the index, and the index of that write."""

    versioned: VersionedIndex = field(kw_only=True)


def read_index(
    protocol: ChunkProtocol,
    chunk: Chunk,
    index: ShardIndex,
    settings: ReadSettings,
    *,
    known: VersionedIndex | None,
    is_suspect: bool,
) -> Steps[VersionedIndex | None]:
    """Return a shard's index, which zarr relies on; None if there is no such chunk.

    `known` is an index that was read before. If the chunk `is_suspect`, an earlier index did not match the data.
    """
    if known is not None and not is_suspect:
        if not known.may_have_holes:
            return known
        anchor = yield from head(chunk.anchor_key, "whether the index is still that of the shard")
        if anchor is None:
            return None
        if _is_of(known.version, anchor):
            return known
        is_suspect = True
    return (yield from _read_new_index(protocol, chunk, index, settings, is_suspect=is_suspect))


def _read_new_index(
    protocol: ChunkProtocol, chunk: Chunk, index: ShardIndex, settings: ReadSettings, *, is_suspect: bool
) -> Steps[VersionedIndex | None]:
    """Read a shard's index; if it has holes, compare it with the anchor."""
    with_anchor = is_suspect or not protocol.has_tags
    versioned = yield from _read_versioned(protocol, chunk, index, settings, with_anchor=with_anchor)
    if versioned is None or versioned.version.condition is not None or not versioned.may_have_holes:
        return versioned
    anchor = yield from head(chunk.anchor_key, "whether the index is that of the shard")
    if anchor is None:
        return None
    if anchor.generation == versioned.version.generation:
        return versioned
    return (yield from _read_versioned(protocol, chunk, index, settings, with_anchor=True))


def read_data(
    protocol: ChunkProtocol,
    chunk: Chunk,
    index: ShardIndex,
    wanted: Sequence[Wanted],
    settings: ReadSettings,
    versioned: VersionedIndex,
) -> Steps[Read | None]:
    """Return the ranges that zarr found in a shard's index; None if there is no such chunk.

    If the shard was overwritten, the result is `Remapped`. A value is None if the shard does not have this inner chunk
    any more.
    """
    read = yield from protocol.read_version(chunk, wanted, settings, versioned.version)
    if not isinstance(read, Outdated):
        return _whole(chunk, index, wanted, read)
    slots = index.slots_of(versioned.index, wanted)
    for _ in range(max(settings.retries, 1)):
        # Raises an error if the index and the anchor permanently belong to different writes.
        now = yield from _read_versioned(protocol, chunk, index, settings, with_anchor=True)
        if now is None:
            return None
        ranges = None if slots is None else index.ranges_of(now.index, slots)
        if ranges is None:
            break
        present = [each for each in ranges if each is not None]
        read = yield from protocol.read_version(chunk, present, settings, now.version)
        if read is None:
            return None
        if not isinstance(read, Outdated):
            found = iter(_whole(chunk, index, present, read).values)
            values = tuple(None if each is None else next(found) for each in ranges)
            return Remapped(values, read.version, read.saved, versioned=now)
    raise ConcurrentWriteError(chunk.chunk_key, "its data does not belong to the same write as its index")


def take(chunk: Chunk, wanted: Sequence[Wanted], versioned: VersionedIndex, shard: memoryview) -> Read:
    """Return ranges of a shard that was read together with its index."""
    spans = [resolve(each, shard.nbytes) for each in wanted]
    values = tuple((shard[span.start : span.stop],) for span in spans)
    return _whole(chunk, versioned.index_of, wanted, Read(values, versioned.version, 0, shard.nbytes))


def read_whole(protocol: ChunkProtocol, chunk: Chunk, index: ShardIndex, settings: ReadSettings) -> Steps[Read | None]:
    """Return the whole shard, without the bytes between its inner chunks; None if there is no such chunk."""
    for _ in range(max(settings.retries, 1) + 1):
        versioned = yield from _read_versioned(protocol, chunk, index, settings, with_anchor=True)
        if versioned is None:
            return None
        ranges = index.ranges_of(versioned.index, range(index.slots))
        if ranges is None:
            raise TypeError("a shard index of an unknown format")
        present = [each for each in ranges if each is not None]
        read = yield from protocol.read(chunk, present, settings, with_anchor=True)
        if read is None:
            return None
        if read.version.fits(versioned.version):
            return _compacted(index, ranges, _whole(chunk, index, present, read))
    raise ConcurrentWriteError(chunk.chunk_key, "its data does not belong to the same write as its index")


def _compacted(index: ShardIndex, ranges: Sequence[RangeByteRequest | None], read: Read) -> Read:
    """Return inner chunks one after the other, in the order of their positions, followed by the index of that shard."""
    present = [(slot, each) for slot, each in enumerate(ranges) if each is not None]
    found = sorted(zip(present, read.values, strict=True), key=lambda each: each[0][1].start)
    pieces: list[memoryview] = []
    moved: list[tuple[int, int] | None] = [None] * len(ranges)
    at = 0
    for (slot, each), value in found:
        pieces += value or ()
        moved[slot] = (at, each.end - each.start)
        at += each.end - each.start
    return Read(((*pieces, memoryview(index.encode(moved))),), read.version, read.saved)


def _read_versioned(
    protocol: ChunkProtocol, chunk: Chunk, index: ShardIndex, settings: ReadSettings, *, with_anchor: bool
) -> Steps[VersionedIndex | None]:
    # Without tags, only the seal of a file tells that another program has changed the file.
    is_single = len(chunk.parts.parts) == 1
    ends = None if protocol.has_tags and not is_single else chunk.ends
    needed: Ends | None = None
    while True:
        wanted = _index_and_ends(index, ends)
        read = yield from protocol.read(chunk, wanted, settings, with_anchor=with_anchor, why=INDEX)
        if read is None:
            return None
        found, *head = (b"".join(pieces or ()) for pieces in read.values)
        data = found[-index.nbytes :] if ends else found
        if chunk.ends is None or (read.version.tag is not None and not is_single):
            break
        tail = found[: -index.nbytes] if ends else b""
        needed = seal.sealed_ends(tail) if ends else chunk.ends
        # The objects were copied without their tags, or more of the file than usual belongs to the seal.
        if needed is not None and (ends is None or not ends.covers(needed)):
            ends = needed
            continue
        require_sealed(chunk, index, b"".join(head), tail, data)
        break
    versioned = VersionedIndex.decoded(data, read.version, index, has_seal=needed is not None)
    # The index is a range of a file that other software may write. In other shards, zarr compares the checksum.
    if chunk.is_split and index.is_understood and not index.is_sound(versioned.index):
        expected = f"an index of {chunk.chunk_key!r} of {index.nbytes} bytes that fits its checksum"
        raise CodecError("sharding_indexed", expected, f"{len(versioned.index)} others")
    return versioned


def _index_and_ends(index: ShardIndex, ends: Ends | None) -> list[Wanted]:
    """Return the requests for an index; with the end and the start of the file, if they are compared with the seal."""
    if ends is None:
        return [index.request]
    head: list[Wanted] = [RangeByteRequest(0, ends.head)] if ends.head else []
    return [SuffixByteRequest(ends.tail + index.nbytes), *head]


def _whole[R: Read | None](chunk: Chunk, index: ShardIndex, wanted: Sequence[Wanted], read: R) -> R:
    """Return the result of a read of inner chunks; raise unless all of them are in the data of the shard.

    If data was cut off, the index names bytes beyond the end of the shard (`PartSizeError`), or bytes of the index
    itself (`CodecError`).
    """
    if read is None:
        return read
    for each, pieces in zip(wanted, read.values, strict=True):
        if not isinstance(each, RangeByteRequest) or pieces is None or each.end <= each.start:
            continue
        found = sum(piece.nbytes for piece in pieces)
        if found < each.end - each.start:
            raise PartSizeError(chunk.anchor_key, each.end, each.start + found)
        if read.nbytes is not None:
            require_data(chunk, index, each.start, each.end, read.nbytes)
    return read


def _is_of(version: Version, anchor: Found) -> bool:
    """Return whether an anchor belongs to a write, by its tag, or by its ETag if the write has no tag."""
    if version.tag is None:
        return version.is_still(anchor)
    return anchor.generation == version.generation
