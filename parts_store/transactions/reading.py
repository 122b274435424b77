"""The read of a chunk as steps: never a mixture of two writes.

Decides when what came back is one write, when to look again, and when to give up:

- All parts that a read touches carry the same tag: it is one write. All untagged counts as the same, but data that
  follows an index must be in the objects that the index was read with.
- The anchor is missing: there is no chunk, whatever orphans lie about.
- The parts are not of the anchor's write: its staged copy has the rest. If there is none, the parts are read again; if
  they then are not of the anchor's write, and the anchor still is, the chunk is damaged.

Reading writes nothing, so that who may only read sees every committed write, also that of a dead writer.

A local disk has no tags, but a journal in the staged copy's place. There, and over plain HTTP, what was touched is
looked at a second time, and its ETags must not have changed. A session knows what was changed in it, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from parts_store.engine.backend import Means
from parts_store.engine.steps import DATA, Found, Head, Steps, Wait, get, head
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.transactions import journaled, staging
from parts_store.transactions.read_attempt import Attempt, Pieces, ReadSettings, assemble, look
from parts_store.transactions.versions import Version, is_of_layout, require_layout

_IS_THERE = "whether the chunk exists"
STILL: Final = "whether the index is still that of the shard"


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of each request, in pieces, all of one write; and how many requests merging saved.

    None in place of the pieces is for what the write does not have.
    """

    values: tuple[Pieces | None, ...]
    version: Version
    saved: int


@dataclass(frozen=True, slots=True)
class Outdated:
    """The chunk is not the write any more that it must be."""


def read(
    chunk: Chunk, wanted: Sequence[Wanted], *, settings: ReadSettings, with_anchor: bool = False, why: str = DATA
) -> Steps[Read | None]:
    """The bytes of every request, all of one write; None if there is no chunk.

    `with_anchor` makes the anchor part of the read where its bytes are not asked for, so that a part which outlived its
    chunk, or is not of the anchor's write, is found out.
    """
    by_means = _read_tagged if settings.means is Means.TAGS else _read_untagged
    attempt = yield from by_means(chunk, wanted, settings, why, with_anchor=with_anchor)
    if attempt is None:
        return None
    return Read(tuple(assemble(attempt, each) for each in wanted), attempt.version, attempt.saved)


def read_of(
    chunk: Chunk, wanted: Sequence[Wanted], version: Version, *, settings: ReadSettings
) -> Steps[Read | Outdated | None]:
    """The bytes of every request, of the write that an earlier read saw; `Outdated` if the chunk is another one now.

    The parts of an untagged chunk are held to the objects that they were: a GET of one that was touched before carries
    its ETag. If other parts are read now, one that was touched before is looked at again after them: only if it stayed
    the same all the time, all of them were there together.
    """
    if settings.means is not Means.TAGS or version.tag is not None:
        other = yield from read(chunk, wanted, settings=settings, with_anchor=True)
        return other if other is None or version.fits(other.version) else Outdated()
    attempt = yield from _read_tagged(chunk, wanted, settings, DATA, with_anchor=True, pinned=version)
    if attempt is None:
        return None
    if attempt.is_outdated or not version.fits(attempt.version):
        return Outdated()
    again = attempt.pinned.keys() - attempt.found.keys()
    if attempt.found.keys() - attempt.pinned.keys():
        again = again or set(attempt.pinned)
    parts = sorted(again)
    outcomes = (yield tuple(Head(chunk.part_keys[part], STILL) for part in parts)) if parts else ()
    for part, now in zip(parts, outcomes, strict=True):
        if not isinstance(now, Found) or now.unchanged != attempt.pinned[part]:
            return Outdated()
    return Read(tuple(assemble(attempt, each) for each in wanted), attempt.version, attempt.saved)


def _read_tagged(
    chunk: Chunk,
    wanted: Sequence[Wanted],
    settings: ReadSettings,
    why: str,
    *,
    with_anchor: bool,
    pinned: Version | None = None,
) -> Steps[Attempt | None]:
    anchor = chunk.parts.anchor
    # The writes whose parts have to do, since there is no staged copy of them.
    unstaged: set[str | None] = set()
    # At least twice: parts that were read before it was known that there is no copy do not count.
    attempts = 2 * max(settings.retries, 1) + 1
    for repeat in range(attempts):
        if repeat > 1:
            yield (Wait(repeat - 1),)
        attempt = yield from look(chunk, wanted, settings, why, with_anchor=with_anchor or repeat > 0, pinned=pinned)
        if anchor in attempt.missing:
            return None
        if attempt.is_one_write or attempt.is_outdated:
            return attempt
        seen = attempt.found.get(anchor)
        if seen is not None and not all(map(seen[0].is_same, seen)):
            # Replaced between two of its ranges: it is no write whose copy could be asked for.
            continue
        if seen is not None and seen[0].generation not in unstaged:
            unstaged.add(seen[0].generation)
            whole = yield from _read_staged(chunk, wanted, settings, why, seen)
            if whole is not None:
                return whole
            continue
        now = yield from head(chunk.anchor_key, "whether the chunk is being written")
        if now is None:
            return None
        if seen is not None and seen[0].is_same(now) and (damage := _damage(attempt, now)) is not None:
            raise damage
    raise ConcurrentWriteError(chunk.chunk_key, f"it changed {attempts} times while it was read")


def _read_staged(
    chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, why: str, anchor: Sequence[Found]
) -> Steps[Attempt | None]:
    """The same from the anchor's write and its staged copy; None if there is none, or the anchor changes."""
    tag = anchor[0].tag
    if tag is None or not tag.is_staged:
        return None
    copy = yield from get(staging.key_of(chunk, tag.generation), "staged copy")
    parts = None if copy is None else staging.unstage(chunk, copy, tag)
    if parts is None:
        return None
    given = {part: (found,) for part, found in parts.items()} | {chunk.parts.anchor: tuple(anchor)}
    attempt = yield from look(chunk, wanted, settings, why, with_anchor=True, given=given)
    return attempt if attempt.is_one_write else None


def _read_untagged(
    chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, why: str, *, with_anchor: bool
) -> Steps[Attempt | None]:
    has_journal = settings.means is Means.LOCKS and len(chunk.part_keys) > 1
    # At least once with the anchor: without it, nobody can tell damage from a write under way. A writer of small chunks
    # on a local disk is as quick as a reader.
    least = max(settings.retries, 1)
    attempts = 4 * least if has_journal else least + 1
    # The anchor at the end of the look before: what is wrong while it stays the same is damage.
    before: Found | None = None
    for repeat in range(attempts):
        if repeat:
            yield (Wait(min(repeat, least)),)
        found = (yield from _journal(chunk)) if has_journal else None
        if found is not None:
            whole = yield from _read_journaled(chunk, wanted, settings, why, found)
            if whole is not None:
                return whole
            continue
        attempt = yield from look(chunk, wanted, settings, why, with_anchor=with_anchor or repeat > 0)
        if chunk.parts.anchor in attempt.missing:
            return None
        if attempt.is_one_write:
            if settings.means is Means.SESSION or (yield from _is_unchanged(attempt, why, has_journal=has_journal)):
                return attempt
            continue
        now = yield from head(chunk.anchor_key, "whether the chunk is being written")
        if now is None:
            return None
        is_stable = before is not None and repeat >= least and before.is_same(now)
        if is_stable and (damage := _damage(attempt, now)) is not None:
            raise damage
        before = now
    yield from _give_up(chunk, attempts, has_journal=has_journal)
    return None


def _give_up(chunk: Chunk, attempts: int, *, has_journal: bool) -> Steps[None]:
    """Raise what kept a chunk from being read: other writers, or a journal that says nothing; unless there is none."""
    found = (yield from _journal(chunk)) if has_journal else None
    if found is None or journaled.Record.parse(found, chunk) is not None:
        raise ConcurrentWriteError(chunk.chunk_key, f"it changed {attempts} times while it was read")
    if (yield from head(chunk.anchor_key, _IS_THERE)) is not None:
        # The writer may have committed what nobody can know any more.
        raise IncompleteChunkError(chunk.chunk_key, (), (), journaled.NOT_VALID)


def _journal(chunk: Chunk) -> Steps[Found | None]:
    return (yield from get(journaled.journal_key(chunk), "whether the chunk is being written"))


def _read_journaled(
    chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, why: str, found: Found
) -> Steps[Attempt | None]:
    """The same while a journal says that the chunk is what is staged; None if that changes, or it is not valid."""
    record = journaled.Record.parse(found, chunk)
    if record is None:
        return None
    staged = journaled.staged_keys(chunk, record.generation)
    looks = yield tuple(Head(key, why) for key in staged)
    keys = [
        key if isinstance(look, Found) else part_key
        for key, look, part_key in zip(staged, looks, chunk.part_keys, strict=True)
    ]
    attempt = yield from look(chunk, wanted, settings, why, with_anchor=True, keys=keys)
    after = journaled.Record.parse((yield from _journal(chunk)), chunk)
    return attempt if after == record and attempt.is_one_write else None


def size(chunk: Chunk, means: Means) -> Steps[int | None]:
    """The size of the whole chunk, None if there is none: from the anchor's tag, or else from the parts."""
    # The journal first: without one, the anchor is what it was then, or newer.
    has_journal = means is Means.LOCKS and len(chunk.part_keys) > 1
    record = journaled.Record.parse((yield from _journal(chunk)) if has_journal else None, chunk)
    anchor = yield from head(chunk.anchor_key, _IS_THERE)
    if anchor is None:
        return None
    require_layout(chunk, anchor)
    if record is not None:
        return sum(record.sizes)
    if anchor.tag is not None and len(anchor.tag.sizes) == len(chunk.part_keys):
        return sum(anchor.tag.sizes)
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


def exists(chunk: Chunk) -> Steps[bool]:
    """Whether there is such a chunk."""
    anchor = yield from head(chunk.anchor_key, _IS_THERE)
    require_layout(chunk, anchor)
    return anchor is not None


def _is_unchanged(attempt: Attempt, why: str, *, has_journal: bool) -> Steps[bool]:
    """Whether what was read is still there, where only a second look can tell."""
    # One part alone is what it was when there was no journal, or newer.
    if sum(len(pieces) for pieces in attempt.found.values()) < 2:
        return True
    # After the parts were read, and before they are looked at again: a write that was committed by then has begun.
    if has_journal and (yield from _journal(attempt.chunk)) is not None:
        return False
    parts = list(attempt.found)
    outcomes = yield tuple(Head(attempt.keys[part], why) for part in parts)
    return all(
        isinstance(now, Found) and attempt.found[part][0].is_same(now)
        for part, now in zip(parts, outcomes, strict=True)
    )


def _damage(attempt: Attempt, anchor: Found) -> IncompleteChunkError | PartSizeError | None:
    """What is wrong with the chunk of this anchor; None if a part of it was replaced between two of its ranges."""
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
    return IncompleteChunkError(attempt.chunk.chunk_key, missing, tuple(keys[part] for part in sorted(mixed)))
