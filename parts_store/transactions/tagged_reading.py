"""Reading a chunk with tags: from its parts, or from the anchor's tag or its staged copy while it is written."""

from collections.abc import Sequence

from parts_store.engine import steps
from parts_store.engine.steps import Found, Steps
from parts_store.transactions import reading, staging
from parts_store.transactions.read_attempt import Attempt, ReadTask, attempt_read
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.versions import Version


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
            yield (steps.Wait(repeat - 1),)
        attempt = yield from attempt_read(task, with_anchor=with_anchor, expected=expected)
        # Repetitions always look at the anchor, which decides the write.
        with_anchor = True
        if attempt.is_anchor_missing:
            return None
        if attempt.is_one_write or attempt.is_outdated:
            # A repetition would find nothing else.
            return attempt
        anchor = attempt.found.get(task.chunk.parts.anchor, [])
        if _is_torn(anchor):
            # The anchor was replaced between two of its ranges: it is not one write.
            continue
        if anchor and anchor[0].generation not in unstaged:
            unstaged.add(anchor[0].generation)
            if (whole := (yield from _read_staged(task, attempt))) is not None:
                return whole
        elif not (yield from _exists_undamaged(attempt, anchor)):
            return None
    raise reading.changed_while_read(task.chunk, attempts)


def _is_torn(pieces: Sequence[Found]) -> bool:
    """Return whether pieces of a part come from different objects."""
    return not all(pieces[0].is_same(each) for each in pieces)


def _exists_undamaged(attempt: Attempt, anchor: Sequence[Found]) -> Steps[bool]:
    """Return whether the chunk still exists; raise if it is damaged, because its anchor is still the same."""
    now = yield from steps.head(attempt.chunk.anchor_key, reading.IS_WRITTEN)
    if now is not None:
        reading.require_undamaged(attempt, next(iter(anchor), None), now)
    return now is not None


def _read_staged(task: ReadTask, torn: Attempt) -> Steps[Attempt | None]:
    """Read the anchor's write from its tag or its staged copy; return None if there is none, or the anchor changes."""
    anchor = torn.found[task.chunk.parts.anchor]
    tag = anchor[0].tag
    if tag is None or not tag.is_staged:
        return None
    if any(staging.is_foreign(each, tag) for pieces in torn.found.values() for each in pieces):
        return None
    parts = yield from staging.read_copy(task.chunk, tag)
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
    return reading.result_of(attempt, task.wanted) if (yield from _is_still_there(attempt)) else Outdated()


def _is_still_there(attempt: Attempt) -> Steps[bool]:
    """Return whether the parts that were read earlier existed together with those that were read now."""
    again = attempt.expected.keys() - attempt.found.keys()
    if attempt.found.keys() - attempt.expected.keys():
        again = again or set(attempt.expected)
    parts = sorted(again)
    why = "whether the index is still that of the shard"
    outcomes = (yield tuple(steps.Head(attempt.chunk.part_keys[part], why) for part in parts)) if parts else ()
    found = zip(parts, outcomes, strict=True)
    return all(isinstance(now, Found) and now.unchanged == attempt.expected[part] for part, now in found)
