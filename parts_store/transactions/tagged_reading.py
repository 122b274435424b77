"""Reading a chunk whose parts carry tags.

All parts that a read touches must carry the same tag. If they do not, the parts of the anchor's write are in its staged
copy. If there is no staged copy, the parts are read again. If they still are not of the anchor's write, and the anchor
is the same, the chunk is damaged.

A chunk without any tags was written by other software. Its parts count as one write. Data that is read after a shard's
index must come from the same objects as the index.
"""

from collections.abc import Sequence
from typing import Final

from parts_store.engine.steps import Found, Head, Steps, Wait, get, head
from parts_store.transactions import staging
from parts_store.transactions.read_attempt import Attempt, ReadTask, attempt_read
from parts_store.transactions.reading import (
    IS_WRITTEN,
    Outdated,
    Read,
    changed_while_read,
    require_undamaged,
    result_of,
)
from parts_store.transactions.versions import Version

STILL: Final = "whether the index is still that of the shard"


def read_tagged(task: ReadTask, *, with_anchor: bool, expected: Version | None = None) -> Steps[Attempt | None]:
    """Read a chunk, repeatedly if it changes; return None if there is no chunk.

    The parts that `expected` names must still be the same objects: otherwise the attempt is outdated.
    """
    # The writes that have no staged copy. Only the parts themselves can be read.
    unstaged: set[str | None] = set()
    # Parts that were read before the search for a copy do not count as damaged, so every write gets two attempts.
    attempts = 2 * task.settings.least_repeats + 1
    for repeat in range(attempts):
        if repeat > 1:
            yield (Wait(repeat - 1),)
        attempt = yield from attempt_read(task, with_anchor=with_anchor, expected=expected)
        # Repetitions always look at the anchor, which decides the write.
        with_anchor = True
        if attempt.is_anchor_missing:
            return None
        if attempt.is_conclusive:
            return attempt
        anchor = attempt.found.get(task.chunk.parts.anchor, [])
        if _is_torn(anchor):
            # The anchor was replaced between two of its ranges: it is not one write.
            continue
        if anchor and anchor[0].generation not in unstaged:
            unstaged.add(anchor[0].generation)
            if (whole := (yield from _read_staged(task, anchor))) is not None:
                return whole
        elif not (yield from _exists_undamaged(attempt, anchor)):
            return None
    raise changed_while_read(task.chunk, attempts)


def _is_torn(pieces: Sequence[Found]) -> bool:
    """Return whether pieces of a part come from different objects."""
    return not all(pieces[0].is_same(each) for each in pieces)


def _exists_undamaged(attempt: Attempt, anchor: Sequence[Found]) -> Steps[bool]:
    """Return whether the chunk still exists; raise if it is damaged, because its anchor is still the same."""
    now = yield from head(attempt.chunk.anchor_key, IS_WRITTEN)
    if now is not None:
        require_undamaged(attempt, next(iter(anchor), None), now)
    return now is not None


def _read_staged(task: ReadTask, anchor: Sequence[Found]) -> Steps[Attempt | None]:
    """Read the anchor's write from its staged copy; return None if there is no copy, or the anchor changes."""
    tag = anchor[0].tag
    if tag is None or not tag.is_staged:
        return None
    copy = yield from get(staging.key_of(task.chunk, tag.generation), "staged copy")
    parts = None if copy is None else staging.unstage(task.chunk, copy, tag)
    if parts is None:
        return None
    given = {part: (found,) for part, found in parts.items()} | {task.chunk.parts.anchor: tuple(anchor)}
    attempt = yield from attempt_read(task, with_anchor=True, given=given)
    return attempt if attempt.is_one_write else None


def read_same_objects(task: ReadTask, version: Version) -> Steps[Read | Outdated | None]:
    """Read an untagged chunk of which an earlier read saw this version; `Outdated` if it has changed since.

    A GET of a part that was read before carries its ETag. If other parts are read now, a part that was read before is
    looked at again after them: only if it is still the same, all of them existed together.
    """
    attempt = yield from read_tagged(task, with_anchor=True, expected=version)
    if attempt is None:
        return None
    if attempt.is_outdated or not version.fits(attempt.version):
        return Outdated()
    return result_of(attempt, task.wanted) if (yield from _is_still_there(attempt)) else Outdated()


def _is_still_there(attempt: Attempt) -> Steps[bool]:
    """Return whether the parts that were read earlier existed together with those that were read now."""
    again = attempt.expected.keys() - attempt.found.keys()
    if attempt.found.keys() - attempt.expected.keys():
        again = again or set(attempt.expected)
    parts = sorted(again)
    outcomes = (yield tuple(Head(attempt.chunk.part_keys[part], STILL) for part in parts)) if parts else ()
    found = zip(parts, outcomes, strict=True)
    return all(isinstance(now, Found) and now.unchanged == attempt.expected[part] for part, now in found)
