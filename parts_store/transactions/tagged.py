"""The write of all parts of a chunk as steps: all of them or none, whatever crashes and whoever else writes.

The anchor is the commit record: whose generation it carries is the chunk's write. What the process leaves behind if it
ends after each step:

| create                        | what is there                     | what a reader says            |
|-------------------------------|-----------------------------------|-------------------------------|
| some parts but not the anchor | orphans                           | as before: no chunk           |
| the anchor                    | the whole chunk                   | the new chunk                 |

| overwrite                     | what is there                     | what a reader says            |
|-------------------------------|-----------------------------------|-------------------------------|
| the staged copy               | the old chunk, and a leftover     | as before                     |
| the anchor                    | new anchor, old parts, the copy   | the new chunk, from the copy  |
| some or all parts             | the same, with newer parts        | the new chunk                 |
| the staged copy removed       | the whole chunk                   | the new chunk                 |

| delete                        | what is there                     | what a reader says            |
|-------------------------------|-----------------------------------|-------------------------------|
| the anchor                    | orphans                           | no chunk                      |
| the other parts               | nothing                           | no chunk                      |

Orphans are hidden, overwritten by the next write, and collected by `upkeep`; so are leftovers. A local disk has neither
tags nor conditions: `journal` is its variant. In a session the commit is the transaction: `commits`.

Nothing is ever decided from a refusal alone: who is there is asked for, by the generation first and the ETag second.
A request without an answer may have been carried out, or be carried out at any later time. A cancelled one is the
same: its writer is gone, and the next one, or a reader, finds what a crash leaves behind.
"""

from collections.abc import Sequence

from parts_store.engine.backend import Means
from parts_store.engine.steps import MAX_TRIES, Steps, head, remove
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Mode, Tag
from parts_store.transactions import journaled, session
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.versions import NOT_AS_SEEN, Absent, Seen, Version, require_layout, require_still
from parts_store.transactions.writer import SLOW, WHOSE, End, Writer


def write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None = None) -> Steps[None]:
    """All parts of a chunk, over whatever is there.

    If `seen` tells what the chunk was when its new value was decided upon, it still is that when the value is written:
    `ConcurrentWriteError` if not.
    """
    if rules.means is Means.LOCKS:
        yield from journaled.write(chunk, data, rules, seen)
        return
    if rules.means is Means.SESSION:
        yield from session.write(chunk, data, rules, seen)
        return
    if len(data) == 1:
        end, error = yield from _write_single(chunk, data, rules, seen)
    else:
        end, error = yield from _write_parts(chunk, data, rules, seen)
    if end is End.UNKNOWN or (end is End.SUPERSEDED and seen is not None and error is not None):
        raise AmbiguousWriteError(chunk.chunk_key, f"no answer came, and another write is there; {SLOW}") from error
    # A write that nothing was read for comes just before the one that it lost to, and is finished.
    if end is End.CROWDED_OUT:
        raise ConcurrentWriteError(chunk.chunk_key, f"others changed it {MAX_TRIES} times while it was written")
    if end is End.SUPERSEDED and seen is not None:
        raise ConcurrentWriteError(chunk.chunk_key, NOT_AS_SEEN)


def write_if_absent(chunk: Chunk, data: Sequence[memoryview], rules: Rules) -> Steps[None]:
    """All parts of a chunk, unless there is one."""
    if rules.means is Means.LOCKS:
        yield from journaled.write_if_absent(chunk, data, rules)
    elif rules.means is Means.SESSION:
        yield from session.write_if_absent(chunk, data, rules)
    elif not rules.has_conditions and (yield from _exists(chunk)):
        return
    elif len(data) == 1:
        yield from _write_single(chunk, data, rules, Absent())
    else:
        # Whoever is there, was so before us or after us: both are what was asked for.
        yield from _write_parts(chunk, data, rules, Absent())


def delete(chunk: Chunk, rules: Rules, seen: Seen | None = None) -> Steps[None]:
    """The chunk, gone: the anchor first, for then there is none.

    Object stores know no conditional delete: `seen` is compared just before it, and what somebody writes between the
    two is gone too.
    """
    if rules.means is Means.LOCKS:
        yield from journaled.delete(chunk, rules, seen)
        return
    if rules.means is Means.SESSION:
        yield from session.delete(chunk, seen)
        return
    if seen is not None:
        require_still(seen, (yield from head(chunk.anchor_key, WHOSE)), chunk.chunk_key)
    for _ in range(MAX_TRIES):
        yield from remove((chunk.anchor_key,), "the chunk")
        # Where others may write, their parts are not ours to remove: an anchor alone cannot be half of something.
        if rules.level is not Level.WRITERS and chunk.other_keys:
            yield from remove(chunk.other_keys, "the rest of the chunk")
        if rules.level is not Level.FULL:
            return
        if (yield from head(chunk.anchor_key, "whether somebody wrote it meanwhile")) is None:
            return
    raise ConcurrentWriteError(chunk.chunk_key, f"it was written again {MAX_TRIES} times while it was deleted")


# What became of a write, and the error of a request of it that got no answer.
type _Ended = tuple[End, Exception | None]


def _write_single(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """A chunk of one part: one PUT is the transaction."""
    writer = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
    condition = None if seen is None or not rules.has_conditions else seen.condition
    return (yield from writer.commit(condition, seen)), writer.lost


def _write_parts(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    if rules.level is not Level.FULL and not isinstance(seen, Version):
        creation = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
        end = yield from creation.create()
        if end is not End.SUPERSEDED:
            return end, creation.lost
        try:
            return (yield from _write_over(chunk, data, rules, seen))
        except LayoutChangedError:
            # The array is another one now, and its listings would show what we have written. No writer of that array
            # writes over a part of another layout, so these parts are still ours.
            if creation.created:
                yield from remove(creation.created, "parts of another layout")
            raise
    return (yield from _write_over(chunk, data, rules, seen))


def _write_over(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """Write all parts of a chunk with a staged copy, over whatever is there."""
    if isinstance(seen, Absent) and (yield from _exists(chunk)):
        return End.SUPERSEDED, None
    # A generation of its own: what an attempt on another path left behind must not be taken for this one.
    writer = Writer(chunk, rules, _tag(chunk, data, rules, "s" if seen is None else "m"), dict(enumerate(data)))
    return (yield from writer.write_staged(seen)), writer.lost


def _exists(chunk: Chunk) -> Steps[bool]:
    """Return whether there is such a chunk; raise if it was written with another layout of the array."""
    anchor = yield from head(chunk.anchor_key, "whether the chunk exists")
    require_layout(chunk, anchor)
    return anchor is not None


def _tag(chunk: Chunk, data: Sequence[memoryview], rules: Rules, mode: Mode) -> Tag:
    return Tag(rules.new_generation(), mode, tuple(part.nbytes for part in data), chunk.layout)
