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

This module is the protocol from create to delete. What `part_writer` does for it: register a writer beside the chunk,
write the parts that are not the anchor, finish a committed write, and remove staged copies.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, NamedTuple, override

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Found, Outcome, Steps
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.format.tags import Mode, Tag
from parts_store.transactions import reading, server, staging
from parts_store.transactions.part_writer import SLOW, PartWriter
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Attempt, ReadSettings, ReadTask
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.server import Features
from parts_store.transactions.staging import MAX_STALL, Registry
from parts_store.transactions.tagged_reading import read_same_objects, read_tagged
from parts_store.transactions.versions import (
    NOT_AS_SEEN,
    WHOSE,
    Absent,
    Seen,
    Version,
    is_of_layout,
    require_layout,
    require_still,
)

# How many chunks a protocol remembers to exist.
_MOST_REMEMBERED = 1 << 15
# How often a copy is staged again. If staging takes longer than a stall may, the write cannot succeed.
_MAX_STALLS = 3

type Conditions = list[Condition | None]
"""The condition under which each part is written; None if the part is written unconditionally."""


class Looked(NamedTuple):
    """What a writer has found before it writes."""

    conditions: Conditions
    # The tag of the anchor; None if it has none, or does not exist.
    tag: Tag | None
    # Other software has written some of the parts.
    has_untagged: bool


class End(Enum):
    """How an attempt to write a chunk ended."""

    COMMITTED = "committed"
    # Another writer committed after this one looked.
    SUPERSEDED = "superseded"
    # Another write is there, and it is not known whether this one was committed before it.
    UNKNOWN = "unknown"
    # Other writers kept committing values that this one had not seen. Nothing of this write was committed.
    CROWDED_OUT = "crowded out"


@dataclass(slots=True)
class Writer(PartWriter):
    """One attempt to write a chunk, under one generation."""

    # The chunk had changed before this writer began to write.
    was_overtaken: bool = field(default=False)
    # The keys of the parts that a create has written.
    created: tuple[str, ...] = field(default=())

    # --- create ---------------------------------------------------------------------------------------------------

    def create(self) -> Steps[End]:
        """Write the other parts, then the anchor, each only if it does not exist."""
        condition: Condition | None = steps.IfAbsent()
        watch = self.rules.start_watch()
        if not self.rules.has_conditions:
            anchor = yield from steps.head(self.chunk.anchor_key, "whether the chunk exists")
            require_layout(self.chunk, anchor)
            if anchor is not None:
                return End.SUPERSEDED
            condition = None
        puts = [self.put(part, condition) for part in self.others]
        outcomes = yield tuple(puts)
        self.created = tuple(
            put.key for put, first in zip(puts, outcomes, strict=True) if isinstance(first, steps.Done)
        )
        for put, first in zip(puts, outcomes, strict=True):
            if not (yield from self._is_created(put, first)):
                # Parts of any other write are overwritten with a staged copy.
                return End.SUPERSEDED
        # A late PUT of a part finds the part there, so only the anchor's fate can be unknown.
        self.lost = None
        return (yield from self.commit(condition, watch=watch))

    def _is_created(self, put: steps.Put, outcome: Outcome) -> Steps[bool]:
        """Return whether a part that is not the anchor belongs to this write."""
        for repeat in range(steps.MAX_TRIES):
            if repeat:
                yield (steps.wait_after(put, outcome, repeat),)
                (outcome,) = yield (put,)
            if self.record(outcome):
                return True
            if isinstance(outcome, steps.Refused):
                return False
            now = yield from steps.head(put.key, WHOSE)
            if now is not None:
                return self.is_own(now)
        raise self.not_written(outcome)

    # --- commit ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        condition: Condition | None,
        seen: Seen | None = None,
        *,
        watch: Callable[[], float] | None = None,
        answer: Outcome | None = None,
    ) -> Steps[End]:
        """Write the anchor: from then on, the chunk is this write.

        A `watch` tells how long the other parts may have existed without an anchor. `answer` is the outcome of the
        first request, if it was already made.
        """
        outcome: Outcome | None = None
        for repeat in range(steps.MAX_TRIES):
            if repeat > 1 and outcome is not None:
                yield (steps.wait_after(self.put(self.chunk.parts.anchor, condition), outcome, repeat - 1),)
            outcome, answer = answer or (yield from self._put_anchor(condition, seen, watch)), None
            if outcome is None:
                return self._lost_to(None)
            if self.record(outcome):
                return End.COMMITTED
            if condition is None:
                continue
            now = yield from steps.head(self.chunk.anchor_key, WHOSE)
            if self.is_own(now):
                return End.COMMITTED
            if _is_as_seen(now, condition, seen):
                continue
            end = self._lost_to(now)
            if end is not End.CROWDED_OUT:
                return end
            condition = steps.unchanged(now)
        if self.lost is None:
            return End.CROWDED_OUT
        problem = f"no answer came to {steps.MAX_TRIES} requests; {SLOW}"
        raise AmbiguousWriteError(self.chunk.chunk_key, problem) from self.lost

    def _put_anchor(
        self, condition: Condition | None, seen: Seen | None, watch: Callable[[], float] | None
    ) -> Steps[Outcome | None]:
        """Write the anchor once; return None if it must not be written any more."""
        if not (yield from self._may_commit(seen, watch)):
            return None
        (outcome,) = yield (self.put(self.chunk.parts.anchor, condition),)
        return outcome

    def _may_commit(self, seen: Seen | None, watch: Callable[[], float] | None) -> Steps[bool]:
        """Return whether the other parts or their staged copy still exist; after a stall, stage the copy again."""
        if watch is not None and watch() > MAX_STALL:
            # The other parts may have been removed as those of a dead writer: all parts are written again, staged.
            return False
        for _ in range(_MAX_STALLS):
            if self.registration is not None and self.registration.is_old:
                yield from self._stage_again(seen)
        return not self.was_overtaken

    def _lost_to(self, winner: Found | None) -> End:
        """Return how this attempt ends after another commit or a delete; `CROWDED_OUT` if it has to be repeated."""
        if not self.tag.is_staged:
            return End.UNKNOWN if self.lost is not None else End.SUPERSEDED
        # This write comes just before the winner, and is finished, unless the winner read the chunk without this write.
        if self.tag.is_conditional or winner is None or winner.tag is None or not winner.tag.is_conditional:
            return End.SUPERSEDED
        return End.UNKNOWN if self.lost is not None else End.CROWDED_OUT

    # --- overwrite ------------------------------------------------------------------------------------------------

    def overwrite(self, seen: Seen | None) -> Steps[End]:
        """Write all parts over whatever is there."""
        # A commit must not depend on parts that only this process has, so the anchor or a copy contains them.
        return (yield from (self._stage_and_write(seen) if self.tag.embedded is None else self._write_embedded(seen)))

    def _write_in_turn(self, conditions: Conditions, seen: Seen | None) -> Steps[End]:
        """Write the anchor, and then the other parts, under these conditions."""
        end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
        if end is End.COMMITTED:
            yield from self.write_others(conditions)
        return end

    def _conditions_alone(self, seen: Seen | None) -> Conditions:
        """Return the conditions for the parts of a chunk that no other client writes."""
        conditions: Conditions = [None] * len(self.data)
        if seen is not None and self.rules.has_conditions:
            conditions[self.chunk.parts.anchor] = seen.condition
        return conditions

    # --- overwrite with small parts -------------------------------------------------------------------------------

    def _write_embedded(self, seen: Seen | None) -> Steps[End]:
        """Write the anchor, which contains the other parts, and then the other parts."""
        if self.rules.level is Level.EXCLUSIVE:
            self.tag = staging.with_replaced(self.tag, None)
            return (yield from self._write_in_turn(self._conditions_alone(seen), seen))
        looked = yield from self._look(seen)
        if self.was_overtaken:
            return End.SUPERSEDED
        if looked.has_untagged:
            self.tag = staging.with_replaced(self.tag, self._replaced_etags(looked.conditions))
        if self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None:
            return (yield from self._write_at_once(looked.conditions, seen))
        end = yield from self._write_in_turn(looked.conditions, seen)
        if end is End.COMMITTED and self.rules.is_registered:
            # Because ETags can recur, a request of this writer may have hit the write of another one.
            anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
            if not self.is_own(anchor):
                yield from self.finish_committed()
        return end

    def _write_at_once(self, conditions: Conditions, seen: Seen | None) -> Steps[End]:
        """Write all parts at the same time, because the anchor that is replaced needs none of the other parts."""
        answer, *others = yield tuple(
            self.put(part, conditions[part]) for part in (self.chunk.parts.anchor, *self.others)
        )
        end = yield from self.commit(conditions[self.chunk.parts.anchor], seen, answer=answer)
        if end is End.COMMITTED:
            yield from self.write_others(conditions, others)
        if end is End.COMMITTED or not all(isinstance(each, steps.Refused) for each in others):
            # Another writer may have replaced a part before the anchor was written, so all parts are looked at.
            found = yield tuple(steps.Head(key, WHOSE) for key in self.chunk.part_keys)
            if len({each.generation if isinstance(each, Found) else "missing" for each in found}) > 1:
                yield from self.finish_committed()
        return end

    def _replaced_etags(self, conditions: Conditions) -> list[str | None]:
        """Return the ETags of the parts that this write replaces: readers have to know them, if they have no tags."""
        others = [conditions[part] for part in self.others]
        return [each.etag for each in others if isinstance(each, steps.IfMatch)]

    # --- overwrite with large parts -------------------------------------------------------------------------------

    def _stage_and_write(self, seen: Seen | None) -> Steps[End]:
        """Write the staged copy, the anchor and the other parts, then remove the copy."""
        conditions, previous = yield from self._stage(seen)
        end = End.SUPERSEDED
        if not self.was_overtaken:
            end = yield from self._write_in_turn(conditions, seen)
        if end is End.COMMITTED:
            yield from self.leave(previous)
        # A late PUT of the anchor may still be carried out, and then this copy is the only one.
        elif self.lost is None or not (self.rules.is_registered or self.rules.level is Level.FULL):
            yield from self.remove_copies(self.own_generations)
        return end

    def _stage(self, seen: Seen | None) -> Steps[tuple[Conditions, str | None]]:
        """Write the staged copy; return the conditions for the parts, and the staged write that is replaced."""
        # Without conditional requests, 'exclusive' is the only level.
        if self.rules.level is Level.EXCLUSIVE:
            yield from self.put_own(self.register("write"))
            return self._conditions_alone(seen), None
        looked = yield from self._look(seen, self.register("write"))
        return looked.conditions, looked.tag.generation if looked.tag is not None and looked.tag.is_staged else None

    def _stage_again(self, seen: Seen | None) -> Steps[None]:
        """Write a new copy, because the old one may be removed at any time as that of a dead writer.

        The new copy has another generation, so that a client that removes the old copy cannot hit the new one.
        """
        old = self.own_generations
        self.tag = replace(self.tag, generation=self.rules.new_generation())
        copy = self.register("write")
        yield from self.put_own(copy)
        if self.lost is None:
            yield from self.remove_copies(old)
        elif self.registration is not None:
            # A PUT with the old generation may still be carried out: its copy is removed when this write has ended.
            self.registration.generations += old
        if isinstance(seen, Version) and self._must_compare(seen):
            now = yield from steps.head(self.chunk.anchor_key, WHOSE)
            self.was_overtaken = _is_overtaken(now, seen)

    # --- looking at the parts -------------------------------------------------------------------------------------

    def _look(self, seen: Seen | None, *copy: steps.Put) -> Steps[Looked]:
        """Look at every part whose ETag is not known, and write the staged copy, if there is one, at the same time."""
        known: Conditions = [None] * len(self.data)
        if seen is not None:
            known = seen.conditions(self.chunk)
        unknown = [part for part, condition in enumerate(known) if condition is None]
        if self._must_compare(seen):
            unknown.append(self.chunk.parts.anchor)
        heads = tuple(steps.Head(self.chunk.part_keys[part], WHOSE) for part in unknown)
        outcomes = (yield (*copy, *heads)) if copy or heads else ()
        found = outcomes[len(copy) :]
        for put, outcome in zip(copy, outcomes, strict=False):
            if not isinstance(outcome, steps.Done):
                yield from self.put_own(put)
        yield from self._require_layout(found)
        looked = dict(zip(unknown, found, strict=True))
        anchor = looked.pop(self.chunk.parts.anchor, None)
        for part, outcome in looked.items():
            known[part] = steps.unchanged(outcome)
        has_untagged = any(isinstance(each, Found) and each.tag is None for each in found)
        if isinstance(seen, Version):
            self.was_overtaken = anchor is not None and _is_overtaken(anchor, seen)
            return Looked(known, seen.tag, has_untagged or seen.tag is None)
        if anchor is None:
            # The caller has seen that there is no anchor.
            return Looked(known, None, has_untagged)
        known[self.chunk.parts.anchor] = steps.unchanged(anchor)
        tag = anchor.tag if isinstance(anchor, Found) else None
        return Looked(known, tag, has_untagged)

    def _must_compare(self, seen: Seen | None) -> bool:
        """Return whether only the anchor's tag tells that the chunk has changed, because ETags can occur twice."""
        return isinstance(seen, Version) and not self.rules.has_unique_etags

    def _require_layout(self, found: Sequence[Outcome]) -> Steps[None]:
        """Raise `LayoutChangedError` if a part was written with another layout; then nothing of this write stays."""
        parts = [each for each in found if isinstance(each, Found)]
        if not all(is_of_layout(each, self.chunk) for each in parts):
            if self.own_generations:
                yield from self.remove_copies(self.own_generations)
            require_layout(self.chunk, *parts)


def _is_overtaken(anchor: Outcome | None, seen: Version) -> bool:
    """Return whether an anchor does not belong to the write that was seen."""
    return not isinstance(anchor, Found) or anchor.generation != seen.generation


def _is_as_seen(now: Found | None, condition: Condition, seen: Seen | None) -> bool:
    """Return whether an anchor still meets a condition, and belongs to the write that was seen.

    On S3, an anchor of another write has the same ETag if its bytes are the same.
    """
    if isinstance(seen, Version) and now is not None and now.generation != seen.generation:
        return False
    return condition == steps.unchanged(now)


# --- the protocol -------------------------------------------------------------------------------------------------


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
    def write(self, chunk: Chunk, data: Sequence[memoryview], seen: Seen | None = None) -> Steps[None]:
        may_create = seen is not None or hash(chunk.chunk_key) not in self.existing
        ended = yield from _write(chunk, data, self.rules, seen, may_create=may_create)
        self._remember(chunk)
        _require_written(chunk, ended, seen)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[memoryview]) -> Steps[None]:
        if not self.rules.has_conditions and (yield from reading.exists(chunk)):
            return
        # A chunk that exists by now was written before or after this write: either way the caller gets what it wants.
        yield from _write(chunk, data, self.rules, Absent())

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
        finisher = _finisher(chunk, self.rules)
        if not self.can_finish_beside_writers(chunk):
            # A write whose copy was not listed began later, so its writer may be alive.
            finisher.finishable = dead
        return (yield from finisher.finish_dead(parts, dead))

    @override
    def remove_orphans(self, chunk: Chunk, orphans: tuple[str, ...]) -> Steps[bool]:
        helper = _finisher(chunk, self.rules)
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


class _Ended(NamedTuple):
    """How a write ended."""

    end: End
    # The error of its last request without a response.
    error: Exception | None


def _require_written(chunk: Chunk, ended: _Ended, seen: Seen | None) -> None:
    """Raise unless a chunk was written, or counts as written just before the write that replaced it."""
    end, error = ended
    if end is End.UNKNOWN or (end is End.SUPERSEDED and seen is not None and error is not None):
        raise AmbiguousWriteError(chunk.chunk_key, f"no answer came, and another write is there; {SLOW}") from error
    # A write that depends on no earlier read counts as carried out just before the write that replaced it.
    if end is End.CROWDED_OUT:
        raise ConcurrentWriteError(
            chunk.chunk_key, f"other writers changed it {steps.MAX_TRIES} times while it was written"
        )
    if end is End.SUPERSEDED and seen is not None:
        raise ConcurrentWriteError(chunk.chunk_key, NOT_AS_SEEN)


def _write(
    chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None, *, may_create: bool = True
) -> Steps[_Ended]:
    if len(data) > 1:
        creates = may_create and rules.level is not Level.FULL and not isinstance(seen, Version)
        return (yield from (_write_parts if creates else _write_over)(chunk, data, rules, seen))
    # One PUT request writes a chunk of one part.
    writer = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
    condition = None if seen is None or not rules.has_conditions else seen.condition
    return _Ended((yield from writer.commit(condition, seen)), writer.lost)


def _write_parts(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """Create a chunk; write over it if it exists."""
    creation = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
    end = yield from creation.create()
    if end is not End.SUPERSEDED:
        return _Ended(end, creation.lost)
    try:
        return (yield from _write_over(chunk, data, rules, seen))
    except LayoutChangedError:
        # Another array replaced this one, and its listings would show these parts. No writer of the new array
        # overwrites a part of another layout, so the parts still belong to this write.
        if creation.created:
            yield from steps.remove(creation.created, "parts of another layout")
        raise


def _write_over(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """Write all parts of a chunk over whatever is there."""
    if isinstance(seen, Absent) and (yield from reading.exists(chunk)):
        return _Ended(End.SUPERSEDED, None)
    writer = _overwriter(chunk, data, rules, seen)
    return _Ended((yield from writer.overwrite(seen)), writer.lost)


def _overwriter(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Writer:
    # Every attempt has its own generation, so that parts of a failed create are not taken for parts of this write.
    tag = _tag(chunk, data, rules, "s" if seen is None else "m")
    if rules.embeds(chunk):
        tag = staging.embed(chunk, data, tag)
    return Writer(chunk, rules, tag, dict(enumerate(data)))


def _tag(chunk: Chunk, data: Sequence[memoryview], rules: Rules, mode: Mode) -> Tag:
    return Tag(rules.new_generation(), mode, tuple(part.nbytes for part in data), chunk.layout)


def _finisher(chunk: Chunk, rules: Rules) -> PartWriter:
    """Return a writer that finishes what other writers have left, and writes nothing of its own."""
    return PartWriter(chunk, rules, Tag(rules.new_generation(), "s", (0,) * len(chunk.part_keys)), {})
