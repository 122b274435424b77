"""The protocol for object stores: all parts of a chunk are written or none, despite crashes and other writers.

The anchor is the commit record: the chunk is the write whose generation the anchor carries. If the process ends after a
step, this is what it leaves behind:

| create                        | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| some parts but not the anchor | orphans                           | no chunk, as before           |
| the anchor                    | the whole chunk                   | the new chunk                 |

| overwrite, small parts        | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| the anchor                    | new anchor, old parts             | the new chunk, from its tag   |
| some parts, not the anchor    | old anchor, newer parts           | the old chunk, from its tag   |
| the anchor and some parts     | new anchor, some old parts        | the new chunk                 |

| overwrite, large parts        | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| the staged copy               | the old chunk, and a leftover     | the old chunk                 |
| the anchor                    | new anchor, old parts, the copy   | the new chunk, from the copy  |
| some or all parts             | the same, with newer parts        | the new chunk                 |
| the staged copy removed       | the whole chunk                   | the new chunk                 |

| delete                        | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| the anchor                    | orphans                           | no chunk                      |
| the other parts               | nothing                           | no chunk                      |

Orphans and leftovers are hidden. The next write of the chunk overwrites them, or `repair` removes them.

`tagged_writing` has the writes, from create to overwrite, and `staging` the staged copies. This module has what is
left: deleting, reading, and finishing what a dead writer has left.

An anchor that contains the small parts in its tag is the whole chunk, so there is no staged copy, and what the other
objects contain matters only to other software. Every writer brings them to the write of the anchor: after its last PUT,
it looks at the anchor, and finishes that write if it is another one. So the last request for a part is always followed
by a look at the anchor. Where ETags never recur, a PUT that is not refused needs no such look.

A refused request alone decides nothing: the writer then looks at the object, first at its generation, then at its ETag.
A request without a response may have been carried out, or may be carried out at any later time. The same holds for a
cancelled request: its writer has ended, and the next writer or reader finds what a crash leaves behind.

All parts that a read touches must carry the same tag. If they do not, the parts of the anchor's write are in its tag or
its staged copy. If they are not there, the parts are read again. If they still are not of the anchor's write, and the
anchor is the same, the chunk is damaged.

A chunk without any tags was written by other software. Its parts count as one write. Data that is read after a shard's
index must come from the same objects as the index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, override

from parts_store.engine import steps
from parts_store.engine.steps import Found, Steps
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Encoded, Wanted
from parts_store.transactions import reading, server, staging
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import (
    WHOSE,
    Absent,
    Attempt,
    Outdated,
    Read,
    ReadSettings,
    ReadTask,
    Seen,
    Version,
    attempt_read,
    require_still,
)
from parts_store.transactions.rules import Level
from parts_store.transactions.server import Features
from parts_store.transactions.staging import Registry
from parts_store.transactions.tagged_writing import finisher, require_written, write_chunk

# How many chunks a protocol remembers to exist.
_MOST_REMEMBERED = 1 << 15


@dataclass(frozen=True, slots=True)
class TaggedProtocol(ChunkProtocol):
    """The protocol for object stores, which keep a tag with every object."""

    has_tags: ClassVar[bool] = True

    # The chunks that this client has read or written, by the hashes of their keys. A write of such a chunk does not try
    # to create it. If the chunk does not exist any more, the write takes more requests, and is as safe.
    existing: set[int] = field(default_factory=set, compare=False, repr=False)

    def _remember(self, chunk: Chunk) -> None:
        if len(self.existing) >= _MOST_REMEMBERED:
            self.existing.clear()
        self.existing.add(hash(chunk.chunk_key))

    # --- writing and deleting -------------------------------------------------------------------------------------

    @override
    def write(self, chunk: Chunk, data: Sequence[Encoded], seen: Seen | None = None) -> Steps[None]:
        may_create = seen is not None or hash(chunk.chunk_key) not in self.existing
        ended = yield from write_chunk(chunk, data, self.rules, seen, may_create=may_create)
        self._remember(chunk)
        require_written(chunk, ended, seen)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[Encoded]) -> Steps[None]:
        if not self.rules.has_conditions and (yield from reading.exists(chunk)):
            return
        # A chunk that exists by now was written before or after this write: either way the caller gets what it wants.
        yield from write_chunk(chunk, data, self.rules, Absent())

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        """Delete a chunk, the anchor first: without an anchor there is no chunk.

        Object stores have no conditional delete. The chunk is compared with `seen` just before, and what another client
        writes between the two requests is deleted, too.
        """
        self.existing.discard(hash(chunk.chunk_key))
        if seen is not None:
            require_still(seen, (yield from steps.head(chunk.anchor_key, WHOSE)), chunk.chunk_key)
        for _ in range(steps.MAX_TRIES):
            yield from steps.remove((chunk.anchor_key,), "the chunk")
            # Where other clients may write, the other parts may be theirs. A part without an anchor does no harm.
            if self.rules.level is not Level.WRITERS and chunk.other_keys:
                yield from steps.remove(chunk.other_keys, "the rest of the chunk")
            if self.rules.level is not Level.FULL:
                return
            if (yield from steps.head(chunk.anchor_key, "whether the chunk was written meanwhile")) is None:
                return
        raise ConcurrentWriteError(
            chunk.chunk_key, f"it was written again {steps.MAX_TRIES} times while it was deleted"
        )

    # --- finishing what a dead writer has left --------------------------------------------------------------------

    @override
    def can_finish_beside_writers(self, chunk: Chunk) -> bool:
        # At 'exclusive', a writer does not expect a PUT of another client. A late one damages the next write, unless
        # the ETag of what it replaces never recurs, or the next anchor contains the other parts.
        is_unique = self.rules.has_conditions and self.rules.has_unique_etags
        return self.rules.level is not Level.EXCLUSIVE or is_unique or self.rules.embeds(chunk)

    @override
    def finish_write(
        self, chunk: Chunk, parts: Mapping[int, steps.Entry], beside: Sequence[steps.Entry]
    ) -> Steps[bool]:
        dead = Registry.of(beside).present
        helper = finisher(chunk, self.rules)
        if not self.can_finish_beside_writers(chunk):
            # A write whose copy was not listed began later, so its writer may be alive.
            helper.finishable = dead
        return (yield from helper.finish_dead(parts, dead))

    @override
    def remove_orphans(self, chunk: Chunk, orphans: tuple[str, ...]) -> Steps[bool]:
        helper = finisher(chunk, self.rules)
        if self.rules.is_registered:
            # A client that commits from now on finds this registration, and keeps a copy of what may be removed.
            (outcome,) = yield (helper.register("settle"),)
            if not isinstance(outcome, steps.Done):
                return False
        is_absent = yield from ChunkProtocol.remove_orphans(self, chunk, orphans)
        yield from helper.settle() if self.rules.is_registered else helper.finish_committed()
        return is_absent

    # --- reading --------------------------------------------------------------------------------------------------

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        attempt = yield from read_tagged(task, with_anchor=with_anchor)
        if attempt is not None:
            self._remember(task.chunk)
        return attempt

    @override
    def read_version(
        self, chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, version: Version
    ) -> Steps[Read | Outdated | None]:
        if version.tag is not None:
            return ChunkProtocol.read_version(self, chunk, wanted, settings, version)
        return read_same_objects(ReadTask(chunk, wanted, settings, steps.DATA), version)

    @override
    def can_recognise(self, version: Version) -> bool:
        return version.tag is not None

    @override
    def can_recognise_object(self, version: Version) -> bool:
        # One object with the same strong ETag has the same bytes.
        return self.rules.has_conditions and version.strong_etag is not None

    # --- what the writers do --------------------------------------------------------------------------------------

    @override
    def writes_without_trace(self, chunk: Chunk) -> bool:
        return len(chunk.part_keys) > 1 and self.rules.embeds(chunk)

    @property
    @override
    def expects_writers(self) -> bool:
        return self.rules.has_conditions and self.rules.level is not Level.EXCLUSIVE

    @override
    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        return server.probe(self.rules.new_generation, has_conditions=has_conditions, is_thorough=True)


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
