"""Reading a chunk on a local disk, where a journal describes a write in progress.

While there is a journal, the chunk is what the journal's write has staged. Without one, the parts are looked at a
second time, and their ETags must not have changed.
"""

from parts_store.engine.steps import Found, Head, Steps, Wait, get, head
from parts_store.errors import IncompleteChunkError
from parts_store.format.keys import Chunk
from parts_store.transactions.journal import NOT_VALID, Journal, journal_key, staged_keys
from parts_store.transactions.read_attempt import Attempt, ReadTask, attempt_read
from parts_store.transactions.reading import (
    EXISTS,
    IS_WRITTEN,
    changed_while_read,
    find_anchor,
    has_several_reads,
    is_unchanged,
    require_undamaged,
    size_by_parts,
)


def read_journaled(task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
    """Read a chunk of several parts, repeatedly if it changes; return None if there is no chunk."""
    least = task.settings.least_repeats
    # A writer of small chunks on a local disk is as fast as a reader.
    attempts = 4 * least
    before: Found | None = None
    for repeat in range(attempts):
        if repeat:
            yield (Wait(min(repeat, least)),)
        journal = yield from _get_journal(task.chunk)
        if journal is not None:
            if (whole := (yield from _read_staged(task, journal))) is not None:
                return whole
            continue
        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
        if attempt.is_anchor_missing:
            return None
        if attempt.is_one_write:
            if (yield from _is_unchanged(attempt, task.why)):
                return attempt
            continue
        now = yield from head(task.chunk.anchor_key, IS_WRITTEN)
        if now is None:
            return None
        require_undamaged(attempt, before, now, may_raise=repeat >= least)
        before = now
    yield from _give_up(task.chunk, attempts)
    return None


def _read_staged(task: ReadTask, found: Found) -> Steps[Attempt | None]:
    """Read what a journal's write has staged; return None if the journal is not valid, or changes meanwhile."""
    journal = Journal.parse(found, task.chunk)
    if journal is None:
        return None
    staged = staged_keys(task.chunk, journal.generation)
    outcomes = yield tuple(Head(key, task.why) for key in staged)
    # A staged part that is missing was moved to its own key.
    keys = [
        key if isinstance(outcome, Found) else part_key
        for key, outcome, part_key in zip(staged, outcomes, task.chunk.part_keys, strict=True)
    ]
    attempt = yield from attempt_read(task, with_anchor=True, keys=keys)
    after = Journal.parse((yield from _get_journal(task.chunk)), task.chunk)
    return attempt if after == journal and attempt.is_one_write else None


def _is_unchanged(attempt: Attempt, why: str) -> Steps[bool]:
    """Look at the journal and the parts again, and return whether the parts are still the same objects."""
    if not has_several_reads(attempt):
        # A single part is what it was when there was no journal, or newer.
        return True
    # After the parts were read, and before they are looked at again: a write that was committed by then has begun.
    if (yield from _get_journal(attempt.chunk)) is not None:
        return False
    return (yield from is_unchanged(attempt, why))


def _give_up(chunk: Chunk, attempts: int) -> Steps[None]:
    """Raise the reason why a chunk could not be read; return if it does not exist."""
    found = yield from _get_journal(chunk)
    if found is None or Journal.parse(found, chunk) is not None:
        raise changed_while_read(chunk, attempts)
    if (yield from head(chunk.anchor_key, EXISTS)) is not None:
        # The journal may have described a committed write, which is not known any more.
        raise IncompleteChunkError(chunk.chunk_key, (), (), NOT_VALID)


def size(chunk: Chunk) -> Steps[int | None]:
    """Return the size of a chunk by its journal or by its parts; None if there is no chunk."""
    # The journal is read first: if there is none, the anchor is what it was then, or newer.
    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None
    journal = Journal.parse(found, chunk)
    anchor = yield from find_anchor(chunk)
    if anchor is None:
        return None
    return sum(journal.sizes) if journal is not None else (yield from size_by_parts(chunk, anchor))


def _get_journal(chunk: Chunk) -> Steps[Found | None]:
    return (yield from get(journal_key(chunk), IS_WRITTEN))
