"""Merge two changes of one shard by its inner chunks: what each of two writers made of the shard that both had read."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from parts_store.format.shard_index import ShardIndex, is_hole

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
