"""Shards: where the index is, how it is encoded, which inner chunk each row locates, and how two changes are merged."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.dtype import UInt64

from parts_store._compat.zarr import ArrayConfig, ArraySpec, RegularChunkGridMetadata, read_metadata
from parts_store.format.layout import Wanted

# The name of the codec that makes shards.
CODEC: Final = "sharding_indexed"
# The offset and the size of an inner chunk that does not exist.
NO_CHUNK: Final = np.iinfo(np.uint64).max
# An offset and a size, eight bytes each.
_ROW_NBYTES: Final = 16
# The members of a document that zarr needs to read the codecs.
_DECIDE_INDEX: Final = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "codecs",
    "fill_value",
)


type Table = NDArray[np.uint64]
"""The offset and the size of every inner chunk of a shard; `NO_CHUNK` twice for one that does not exist."""


def crc32c(data: bytes) -> bytes:
    """Return the checksum of `data` as zarr's codec `crc32c` stores it."""
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def has_valid_checksum(data: bytes) -> bool:
    """Return whether the last four bytes are the checksum of the bytes before them."""
    return data[-4:] == crc32c(data[:-4])


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The place and the encoding of the index in every shard of an array."""

    nbytes: int
    location: Literal["start", "end"]
    slots: int
    # The type of its numbers; None if codecs other than `bytes` and `crc32c` encode the index.
    dtype: str | None
    has_checksum: bool
    # The size of a shard whose inner chunks are not compressed, None if it is not known.
    shard_nbytes: int | None = None

    @property
    def request(self) -> ByteRequest:
        """The request by which zarr reads the index."""
        return SuffixByteRequest(self.nbytes) if self.location == "end" else RangeByteRequest(0, self.nbytes)

    @property
    def is_understood(self) -> bool:
        """Whether this module can decode the index."""
        return self.dtype is not None

    def is_sound(self, index: bytes) -> bool:
        """Return whether the index can be decoded and fits its checksum."""
        return self.decode(index) is not None

    def may_have_holes(self, index: bytes) -> bool:
        """Return whether an inner chunk is absent, or may be, because the index cannot be decoded."""
        return may_have_holes(self.decode(index))

    def slots_of(self, index: bytes, wanted: Sequence[Wanted]) -> tuple[int, ...] | None:
        """Return which inner chunks these ranges are.

        None if the index does not determine it: some inner chunk is absent, or two inner chunks share a range.
        """
        table = self.decode(index)
        if table is None or is_hole(table).any():
            return None
        slots = {(start, start + nbytes): slot for slot, (start, nbytes) in enumerate(table.tolist())}
        if len(slots) < self.slots:
            return None
        found = [slots.get((each.start, each.end)) if isinstance(each, RangeByteRequest) else None for each in wanted]
        return tuple(slot for slot in found if slot is not None) if None not in found else None

    def ranges_of(self, index: bytes, slots: Sequence[int]) -> tuple[RangeByteRequest | None, ...] | None:
        """Return the range of each of these inner chunks, None for an absent one; None if the index is not readable."""
        table = self.decode(index)
        if table is None:
            return None
        holes = is_hole(table)
        rows = table.tolist()
        return tuple(None if holes[slot] else RangeByteRequest(rows[slot][0], sum(rows[slot])) for slot in slots)

    def encode(self, places: Sequence[tuple[int, int] | None]) -> bytes:
        """Return the index for inner chunks with these offsets and sizes, None for an absent one."""
        if self.dtype is None:
            raise TypeError("an index with codecs other than `bytes` and `crc32c` cannot be encoded")
        table = np.array([(NO_CHUNK, NO_CHUNK) if place is None else place for place in places], self.dtype)
        return encode_table(table, has_checksum=self.has_checksum)

    def decode(self, index: bytes) -> Table | None:
        """Return the offset and the size of every inner chunk; None for unknown codecs and damaged indexes."""
        table = index[: self.slots * _ROW_NBYTES]
        if self.dtype is None or len(table) < self.slots * _ROW_NBYTES:
            return None
        if index[len(table) :] != (crc32c(table) if self.has_checksum else b""):
            return None
        return np.frombuffer(table, self.dtype).reshape(self.slots, 2)


def places_in(table: Table) -> list[tuple[int, int]]:
    """Return the offset and the size of every inner chunk that is stored and not empty."""
    # In Python, the sum of two of these numbers is never too large.
    return [(start, nbytes) for start, nbytes in table[~is_hole(table)].tolist() if nbytes]


def needed_nbytes(table: Table, index: ShardIndex) -> int:
    """Return how many bytes a shard with this index must have: all of its inner chunks, and the index."""
    stop = max([0, *(start + nbytes for start, nbytes in places_in(table))])
    return max(stop, index.nbytes) if index.location == "start" else stop + index.nbytes


def encode_table(table: Table, *, has_checksum: bool) -> bytes:
    """Return the bytes of an index whose offsets and sizes are in `table`, in its own byte order."""
    data = table.tobytes()
    return data + crc32c(data) if has_checksum else data


def may_have_holes(table: Table | None) -> bool:
    """Return whether an inner chunk is absent, or may be, because the index could not be decoded."""
    return table is None or bool(is_hole(table).any())


def is_hole(table: Table) -> NDArray[np.bool_]:
    """Return which inner chunks do not exist."""
    return np.all(table == NO_CHUNK, axis=1)


def is_sharded(document: Mapping[str, Any]) -> bool:
    """Return whether the first codec of an array makes shards."""
    codecs = document.get("codecs")
    first = codecs[0] if isinstance(codecs, list) and codecs else None
    return isinstance(first, dict) and first.get("name") == CODEC


def shard_index_of(served: Mapping[str, Any]) -> ShardIndex | None:
    """Return the index of the array's shards; None if the array has no shards that zarr reads in part."""
    if not is_sharded(served):
        return None
    try:
        # Reading a document takes zarr a third of a millisecond, and the arrays of a group often have the same shards.
        return _index_of_text(json.dumps({name: served[name] for name in _DECIDE_INDEX if name in served}))
    # zarr reports what is wrong with the document when it opens the array.
    except Exception:
        return None


@lru_cache(maxsize=256)
def _index_of_text(document: str) -> ShardIndex | None:
    metadata = read_metadata(json.loads(document))
    codec = metadata.sharding_codec
    if codec is None or not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        return None
    shape = metadata.chunk_grid.chunk_shape
    index = index_of_codec(codec, shape)
    # Types of varying length have none.
    item_nbytes = getattr(metadata.data_type, "item_size", None)
    if index is None or item_nbytes is None:
        return index
    return replace(index, shard_nbytes=math.prod(shape) * item_nbytes + index.nbytes)


def index_of_codec(codec: ShardingCodec, shard_shape: Sequence[int]) -> ShardIndex | None:
    """Return the index of shards of this shape; None if its encoded size varies."""
    try:
        return _index_of_codec(codec, tuple(shard_shape))
    except TypeError:
        # A codec that cannot be hashed.
        return _index_of_codec.__wrapped__(codec, tuple(shard_shape))


@lru_cache(maxsize=64)
def _index_of_codec(codec: ShardingCodec, shard_shape: tuple[int, ...]) -> ShardIndex | None:
    # zarr refuses an index whose encoded size varies since 3.4.1; zarr 3.4.0 accepts it.
    if not all(each.is_fixed_size for each in codec.index_codecs):
        return None
    slots = math.prod(shard // chunk for shard, chunk in zip(shard_shape, codec.chunk_shape, strict=True))
    nbytes = slots * _ROW_NBYTES
    spec = ArraySpec(
        shape=(slots, 2),
        dtype=UInt64(endianness="little"),
        fill_value=NO_CHUNK,
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )
    for each in codec.index_codecs:
        nbytes = each.compute_encoded_size(nbytes, spec)
    dtype, has_checksum = _index_encoding(codec)
    return ShardIndex(nbytes, codec.index_location, slots, dtype, has_checksum)


def _index_encoding(codec: ShardingCodec) -> tuple[str | None, bool]:
    """Return the type of the numbers in the index, None if it is unknown, and whether a checksum follows them."""
    first, *rest = (each.to_dict() for each in codec.index_codecs)
    has_checksum = rest == [{"name": "crc32c"}]
    for endian, dtype in (("little", "<u8"), ("big", ">u8")):
        if first == {"name": "bytes", "configuration": {"endian": endian}} and (has_checksum or not rest):
            return dtype, has_checksum
    return None, False


type Shard = memoryview | None
"""The bytes of a shard; None if it does not exist, because it has no inner chunks."""
type _Chunks = list[bytes | None]

_NAMES: Final = ("the shard that was read", "the shard that is written", "the shard of another client")


class NotMergedError(Exception):
    """Two changes of a shard that cannot both be kept; its argument says why."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A shard with the changes of both writers, and whether it differs from what the other writer stored."""

    shard: Shard
    differs: bool


def merge_shards(index: ShardIndex, base: Shard, mine: Shard, theirs: Shard) -> Merged:
    """Return a shard with what both writers changed: `mine` and `theirs` were made from `base`.

    An inner chunk is changed if its encoded bytes are different, or if it was added or removed.

    Raises
    ------
    NotMergedError
        If both writers changed an inner chunk in different ways, or the bytes are not a shard as zarr writes it.
    """
    was, ours, others = (
        _inner_chunks(index, shard, name) for shard, name in zip((base, mine, theirs), _NAMES, strict=True)
    )
    merged = list(others)
    for slot, chunk in enumerate(ours):
        if chunk == was[slot] or chunk == others[slot]:
            continue
        if others[slot] != was[slot]:
            raise NotMergedError(f"inner chunk {slot} was changed after it was read for this write")
        merged[slot] = chunk
    if merged == others:
        return Merged(theirs, differs=False)
    return Merged(_assemble(index, merged), differs=True)


def empty_shard(index: ShardIndex) -> memoryview:
    """Return a shard without inner chunks."""
    return memoryview(index.encode([None] * index.slots))


def is_empty(index: ShardIndex, shard: Shard) -> bool:
    """Return whether a shard has no inner chunks; False if it is not valid."""
    return shard is None or _index_bytes(index, shard) == bytes(empty_shard(index))


def has_same_chunks(index: ShardIndex, one: memoryview, other: memoryview) -> bool:
    """Return whether two shards have the same inner chunks, wherever they are in the shards."""
    try:
        found, expected = (_inner_chunks(index, shard, "a shard") for shard in (one, other))
    except NotMergedError:
        return False
    return found == expected


def _inner_chunks(index: ShardIndex, shard: Shard, name: str) -> _Chunks:
    """Return the encoded inner chunks of a shard, None where there is none."""
    if shard is None:
        return [None] * index.slots
    table = index.decode(_index_bytes(index, shard))
    if table is None:
        raise NotMergedError(f"the index of {name} is not valid")
    offsets, lengths = table[:, 0].astype(np.uint64), table[:, 1].astype(np.uint64)
    missing = is_hole(table)
    _require_apart(index, shard.nbytes, offsets[~missing], lengths[~missing], name)
    rows = zip(missing.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
    return [None if hole else bytes(shard[start : start + nbytes]) for hole, start, nbytes in rows]


def _index_bytes(index: ShardIndex, shard: memoryview) -> bytes:
    if shard.nbytes < index.nbytes:
        return b""
    return bytes(shard[: index.nbytes] if index.location == "start" else shard[shard.nbytes - index.nbytes :])


def _require_apart(
    index: ShardIndex, nbytes: int, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], name: str
) -> None:
    """Raise unless all inner chunks are inside the data of a shard, and none of them overlap."""
    first = index.nbytes if index.location == "start" else 0
    last = np.uint64(nbytes - index.nbytes + first)
    # No sum of two of these numbers is too large after the first two comparisons.
    if np.any(offsets < first) or np.any(offsets > last) or np.any(lengths > last - offsets):
        raise NotMergedError(f"the index of {name} names bytes outside of its data")
    is_stored = lengths > 0
    starts, stops = offsets[is_stored], (offsets + lengths)[is_stored]
    order = np.argsort(starts)
    if np.any(starts[order][1:] < stops[order][:-1]):
        raise NotMergedError(f"inner chunks of {name} share bytes")


def _assemble(index: ShardIndex, chunks: _Chunks) -> Shard:
    """Return the shard of these inner chunks, one after the other; None if there are none."""
    if all(each is None for each in chunks):
        return None
    at = index.nbytes if index.location == "start" else 0
    places: list[tuple[int, int] | None] = []
    for each in chunks:
        places.append(None if each is None else (at, len(each)))
        at += len(each or b"")
    data, encoded = b"".join(each or b"" for each in chunks), index.encode(places)
    return memoryview(encoded + data if index.location == "start" else data + encoded)
