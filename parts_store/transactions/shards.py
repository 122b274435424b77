"""The read of a shard as steps: its index first, then the data where the index says; all of one write.

zarr reads the index, and asks for data only afterwards. So what the index was read from is kept, and held to the data:

- Data of the same write is handed out as it is.
- Data of another write is where another index says. If the old index names every inner chunk at a place of its own, a
  range asked for tells which inner chunk it means, and that one is read where the new index says.
- An untagged shard is another write if an object of it has another ETag. If the index is an object by itself, it is
  looked at again after the data.
- If the old index has a hole, zarr has already filled it in, and nothing can be put right: `ConcurrentWriteError`.

A shard whose main part is a span of an existing file may have others' bytes between its own. Read whole, it comes
without them: the inner chunks one after the other, and an index that says so.

An index that names bytes beyond the shard is an error: what came back would be short.

For a hole zarr makes no data request that would tell an old index from a new one. An index with holes is therefore
compared with the anchor before it is handed out; one without is not, and may be as old as it likes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zarr.abc.store import RangeByteRequest

from parts_store.engine.steps import INDEX, Found, Steps, head
from parts_store.errors import CodecError, ConcurrentWriteError, PartSizeError
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.format.shard_index import ShardIndex
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Pieces, ReadSettings
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.versions import Version


@dataclass(frozen=True, slots=True)
class VersionedIndex:
    """A shard's index, and the write that it is of: the data that follows must be of the same."""

    index: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Remapped(Read):
    """Data of another write than the index that was read before it, and the index of that write."""

    versioned: VersionedIndex


def read_index(
    protocol: ChunkProtocol,
    chunk: Chunk,
    index: ShardIndex,
    settings: ReadSettings,
    *,
    known: VersionedIndex | None,
    is_suspect: bool,
) -> Steps[VersionedIndex | None]:
    """A shard's index, which zarr will trust; None if there is no such chunk.

    `known` is one that was read before. If the chunk `is_suspect`, an index did not fit the data that followed.
    """
    if known is not None and not is_suspect:
        if not index.may_have_holes(known.index):
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
    if versioned is None or versioned.version.condition is not None or not index.may_have_holes(versioned.index):
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
    """The ranges that zarr found in a shard's index; `Remapped` where it was overwritten; None if it is gone.

    A value is None where the shard has no such inner chunk any more.
    """
    read = yield from protocol.read_version(chunk, wanted, settings, versioned.version)
    if not isinstance(read, Outdated):
        return _whole(chunk, wanted, read)
    slots = index.slots_of(versioned.index, wanted)
    for _ in range(max(settings.retries, 1)):
        # Raises if the index and the anchor do not fit together, and stay so.
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
            return Remapped(_in_slots(ranges, read.values), read.version, read.saved, now)
    raise ConcurrentWriteError(chunk.chunk_key, "its data is not of the write that its index is of")


def _in_slots(ranges: Sequence[RangeByteRequest | None], values: Sequence[Pieces | None]) -> tuple[Pieces | None, ...]:
    """Return the values of the ranges that are not None, in their places."""
    present = iter(values)
    return tuple(None if each is None else next(present) for each in ranges)


def read_whole(protocol: ChunkProtocol, chunk: Chunk, index: ShardIndex, settings: ReadSettings) -> Steps[Read | None]:
    """The whole shard, without what is between its inner chunks; None if there is no such chunk."""
    for _ in range(max(settings.retries, 1) + 1):
        versioned = yield from _read_versioned(protocol, chunk, index, settings, with_anchor=True)
        if versioned is None:
            return None
        ranges = index.ranges_of(versioned.index, range(index.slots))
        if ranges is None:
            raise TypeError("an index that we do not understand")
        present = [each for each in ranges if each is not None]
        read = yield from protocol.read(chunk, present, settings, with_anchor=True)
        if read is None:
            return None
        if read.version.fits(versioned.version):
            return _compacted(index, ranges, _whole(chunk, present, read))
    raise ConcurrentWriteError(chunk.chunk_key, "its data is not of the write that its index is of")


def _compacted(index: ShardIndex, ranges: Sequence[RangeByteRequest | None], read: Read) -> Read:
    """The same inner chunks one after the other, in the order in which they lie, and the index of that."""
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
    read = yield from protocol.read(chunk, [index.request], settings, with_anchor=with_anchor, why=INDEX)
    if read is None:
        return None
    versioned = VersionedIndex(b"".join(read.values[0] or ()), read.version)
    # Of a file that others may write. Elsewhere that is zarr's to say, which compares it too.
    if chunk.is_split and index.is_understood and not index.is_sound(versioned.index):
        expected = f"an index of {chunk.chunk_key!r} of {index.nbytes} bytes that fits its checksum"
        raise CodecError("sharding_indexed", expected, f"{len(versioned.index)} others")
    return versioned


def _whole[R: Read | None](chunk: Chunk, wanted: Sequence[Wanted], read: R) -> R:
    """The same; raises if there are fewer bytes than a range says: the index names more than the shard has."""
    for each, pieces in zip(wanted, read.values, strict=True) if read is not None else ():
        found = sum(piece.nbytes for piece in pieces or ())
        if isinstance(each, RangeByteRequest) and pieces is not None and found < each.end - each.start:
            raise PartSizeError(chunk.anchor_key, each.end, each.start + found)
    return read


def _is_of(version: Version, anchor: Found) -> bool:
    """Whether the anchor is that of a write; by its tag, or else by its ETag."""
    if version.tag is None:
        return version.is_still(anchor)
    return anchor.generation == version.generation
