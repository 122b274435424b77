"""Reading a chunk so that its bytes never mix two writes: what all protocols have in common.

- If the anchor is missing, there is no chunk, even if other parts exist.
- All parts that a read touches must belong to one write. If they do not, the read is repeated.
- If the anchor stays the same and the other parts still do not belong to its write, the chunk is damaged.

Reading writes nothing. A client with read-only access therefore sees every committed write, also that of a writer that
crashed after its commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from parts_store.engine.steps import Found, Head, Steps, Wait, head
from parts_store.errors import (
    CodecError,
    ConcurrentWriteError,
    IncompleteChunkError,
    PartSizeError,
    PartsStoreError,
    ShardFileError,
)
from parts_store.format.files import seal
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.format.shard_index import ShardIndex, places_in
from parts_store.transactions.read_attempt import Attempt, Pieces, ReadTask, assemble, attempt_read
from parts_store.transactions.versions import Version, is_of_layout, require_layout

EXISTS: Final = "whether the chunk exists"
IS_WRITTEN: Final = "whether the chunk is being written"


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of each byte request, in pieces, all of one write; and how many requests were saved by merging.

    None stands for a value that the write does not have.
    """

    values: tuple[Pieces | None, ...]
    version: Version
    saved: int
    # The size of the whole chunk, None if it is not known.
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outdated:
    """The result of a read that found another write than the expected one."""


def result_of(attempt: Attempt, wanted: Sequence[Wanted]) -> Read:
    """Return the bytes that an attempt found."""
    known = [size for size in attempt.sizes if size is not None]
    nbytes = sum(known) if len(known) == len(attempt.sizes) else None
    return Read(tuple(assemble(attempt, each) for each in wanted), attempt.version, attempt.saved, nbytes)


def require_inside(chunk: Chunk, index: ShardIndex | None, read: Read | None) -> None:
    """Raise `CodecError` if the index of a whole shard names bytes that are not data.

    The tags of its parts have their sizes, so only a shard without tags is looked at.
    """
    if read is None or index is None or read.version.tag is not None or read.nbytes is None:
        return
    pieces = read.values[0] or ()
    at = 0 if index.location == "start" else -1
    stored = pieces[at] if pieces and pieces[at].nbytes == index.nbytes else memoryview(b"".join(pieces))
    data = bytes(stored[: index.nbytes] if index.location == "start" else stored[-index.nbytes :])
    table = index.decode(data)
    if table is not None and (places := places_in(table)):
        require_data(chunk, index, min(places)[0], max(start + nbytes for start, nbytes in places), read.nbytes)


def require_data(chunk: Chunk, index: ShardIndex, start: int, stop: int, nbytes: int) -> None:
    """Raise `CodecError` if inner chunks between these positions are not in the data of a shard of `nbytes` bytes.

    If data was cut off, the bytes of the index would be taken for data.
    """
    first, last = (index.nbytes, nbytes) if index.location == "start" else (0, nbytes - index.nbytes)
    if start < first or stop > last:
        expected = f"inner chunks in bytes {first} to {last} of {chunk.chunk_key!r}, as its index must say"
        raise CodecError(
            "sharding_indexed", expected, f"bytes {start} to {stop}: data was cut off, or the index is wrong"
        )


def require_unedited(chunk: Chunk, index: ShardIndex | None, read: Read | None) -> None:
    """Raise `ShardFileError` if a whole shard is a file that another program has changed."""
    if read is None or index is None or chunk.ends is None:
        return
    pieces = read.values[0] or ()
    if len(pieces) != 2 or pieces[1].nbytes != index.nbytes:
        shard = memoryview(b"".join(pieces))
        pieces = (shard[: -index.nbytes], shard[-index.nbytes :])
    seal.require_sealed(chunk.anchor_key, pieces[0], pieces[0], bytes(pieces[1]))


def read_untagged(task: ReadTask, *, with_anchor: bool, compares_again: bool) -> Steps[Attempt | None]:
    """Read a chunk without tags or a journal; return None if there is no chunk.

    With `compares_again`, the parts are looked at a second time, and must be the same objects.
    """
    least = task.settings.least_repeats
    before: Found | None = None
    for repeat in range(least + 1):
        if repeat:
            yield (Wait(repeat),)
        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
        if attempt.is_anchor_missing:
            return None
        if attempt.is_one_write:
            if not compares_again or (yield from is_unchanged(attempt, task.why)):
                return attempt
            continue
        now = yield from head(task.chunk.anchor_key, IS_WRITTEN)
        if now is None:
            return None
        require_undamaged(attempt, before, now, may_raise=repeat == least)
        before = now
    raise changed_while_read(task.chunk, least + 1)


def require_undamaged(attempt: Attempt, before: Found | None, now: Found, *, may_raise: bool = True) -> None:
    """Raise the damage of a chunk whose anchor is the same before and after an attempt to read it."""
    is_same = before is not None and before.is_same(now)
    if may_raise and is_same and (damage := damage_of(attempt, now)) is not None:
        raise damage


def changed_while_read(chunk: Chunk, attempts: int) -> ConcurrentWriteError:
    """Return the error of a read that never found a single write."""
    return ConcurrentWriteError(chunk.chunk_key, f"it changed {attempts} times while it was read")


def is_unchanged(attempt: Attempt, why: str) -> Steps[bool]:
    """Look at the parts of an attempt again, and return whether they are still the same objects."""
    # A single read of a single object cannot be mixed.
    if not has_several_reads(attempt):
        return True
    parts = list(attempt.found)
    outcomes = yield tuple(Head(attempt.keys[part], why) for part in parts)
    return all(
        isinstance(now, Found) and attempt.found[part][0].is_same(now)
        for part, now in zip(parts, outcomes, strict=True)
    )


def has_several_reads(attempt: Attempt) -> bool:
    """Return whether an attempt made more than one request, so that its results may be of several writes."""
    return sum(len(pieces) for pieces in attempt.found.values()) > 1


def damage_of(attempt: Attempt, anchor: Found) -> PartsStoreError | None:
    """Return what is wrong with the chunk of this anchor; None if only a part was replaced between two ranges."""
    if attempt.damage is not None:
        return attempt.damage
    keys = attempt.chunk.part_keys
    mixed = [
        part
        for part, pieces in attempt.found.items()
        if pieces[0].generation != anchor.generation or not is_of_layout(pieces[0], attempt.chunk)
    ]
    missing = tuple(keys[part] for part in sorted(attempt.missing))
    if not missing and not mixed:
        return None
    if attempt.chunk.ends is not None and anchor.tag is None and not missing:
        # Another program has stored the file again, without its tag.
        return ShardFileError(attempt.chunk.anchor_key)
    return IncompleteChunkError(attempt.chunk.chunk_key, missing, tuple(keys[part] for part in sorted(mixed)))


def exists(chunk: Chunk) -> Steps[bool]:
    """Return whether a chunk exists; raise if it was written with another layout of the array."""
    return (yield from find_anchor(chunk)) is not None


def find_anchor(chunk: Chunk) -> Steps[Found | None]:
    """Return the anchor of a chunk, None if there is no chunk; raise if it was written with another layout."""
    anchor = yield from head(chunk.anchor_key, EXISTS)
    require_layout(chunk, anchor)
    return anchor


def size(chunk: Chunk) -> Steps[int | None]:
    """Return the size of a chunk by its anchor's tag or by its parts; None if there is no chunk."""
    anchor = yield from find_anchor(chunk)
    if anchor is None:
        return None
    if anchor.tag is not None and len(anchor.tag.sizes) == len(chunk.part_keys):
        return sum(anchor.tag.sizes)
    return (yield from size_by_parts(chunk, anchor))


def size_by_parts(chunk: Chunk, anchor: Found) -> Steps[int]:
    """Return the sum of the sizes of all parts; parts without a declared size are looked at."""
    sizes = list(chunk.parts.sizes)
    declared = sizes[chunk.parts.anchor]
    if declared is not None and declared != anchor.nbytes:
        raise PartSizeError(chunk.anchor_key, declared, anchor.nbytes)
    sizes[chunk.parts.anchor] = anchor.nbytes
    unknown = [part for part, each in enumerate(sizes) if each is None]
    heads = tuple(Head(chunk.part_keys[part], "size of a part") for part in unknown)
    outcomes = (yield heads) if heads else ()
    for part, outcome in zip(unknown, outcomes, strict=True):
        if not isinstance(outcome, Found):
            raise IncompleteChunkError(chunk.chunk_key, (chunk.part_keys[part],), ())
        sizes[part] = outcome.nbytes
    return sum(each for each in sizes if each is not None)
