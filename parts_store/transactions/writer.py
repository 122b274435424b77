"""One attempt to write all parts of a chunk on an object store, from the first request to the last.

`tagged` describes what a crash leaves behind after each step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Found, Outcome, Steps
from parts_store.errors import AmbiguousWriteError
from parts_store.format.tags import Tag
from parts_store.transactions.part_writer import SLOW, Finisher
from parts_store.transactions.rules import Level
from parts_store.transactions.staging import MAX_STALL
from parts_store.transactions.versions import WHOSE, Seen, Version, is_of_layout, require_layout

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
class Writer(Finisher):
    """One attempt to write a chunk, under one generation."""

    # The chunk had changed before this writer began to write.
    was_overtaken: bool = field(default=False)
    # The keys of the parts that a create has written.
    created: tuple[str, ...] = field(default=())

    # --- creating -------------------------------------------------------------------------------------------------

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

    # --- committing -----------------------------------------------------------------------------------------------

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

    # --- overwriting ----------------------------------------------------------------------------------------------

    def write_staged(self, seen: Seen | None) -> Steps[End]:
        """Write the staged copy, the anchor and the other parts, then remove the copy."""
        conditions, previous = yield from self._stage(seen)
        end = End.SUPERSEDED
        if not self.was_overtaken:
            end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
        if end is End.COMMITTED:
            yield from self.write_others(conditions)
            yield from self.leave(previous)
        # A late PUT of the anchor may still be carried out, and then this copy is the only one.
        elif self.lost is None or not (self.rules.is_registered or self.rules.level is Level.FULL):
            yield from self.remove_copies(self.own_generations)
        return end

    def _stage(self, seen: Seen | None) -> Steps[tuple[Conditions, str | None]]:
        """Write the staged copy; return the conditions for the parts, and the staged write that is replaced."""
        # Without conditional requests, 'exclusive' is the only level.
        if self.rules.level is not Level.EXCLUSIVE:
            return (yield from self._stage_beside_others(seen))
        conditions: Conditions = [None] * len(self.data)
        yield from self.put_own(self.register("write"))
        if seen is not None and self.rules.has_conditions:
            conditions[self.chunk.parts.anchor] = seen.condition
        return conditions, None

    def _stage_beside_others(self, seen: Seen | None) -> Steps[tuple[Conditions, str | None]]:
        """Write the staged copy, and look at every part whose ETag is not known."""
        looked = yield from self.look(seen, self.register("write"))
        return looked.conditions, looked.tag.generation if looked.tag is not None and looked.tag.is_staged else None

    def look(self, seen: Seen | None, *copy: steps.Put) -> Steps[Looked]:
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
