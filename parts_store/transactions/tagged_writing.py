"""Writing a chunk on an object store: create, commit, overwrite, and finishing committed writes (see `tagged`).

A write that other writers have to know about is registered: it has an object beside the chunk. After a long stall, the
object may have been removed as that of a dead writer, so the writer registers again before it writes anything else.

A committed write is finished by its own writer, or by another writer or `repair` if its writer died. Then the staged
copies that no client needs any more are removed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Entry, Found, Outcome, Steps
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Encoded
from parts_store.format.tags import Mode, Tag
from parts_store.transactions import reading, staging
from parts_store.transactions.reading import NOT_AS_SEEN, WHOSE, Absent, Seen, Version, is_of_layout, require_layout
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.staging import MAX_STALL, Registry

SLOW: Final = "a slow link needs a longer time-out than 30 s: client_options={'timeout': '10 minutes'}"
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


class Ended(NamedTuple):
    """How a write ended."""

    end: End
    # The error of its last request without a response.
    error: Exception | None


def require_written(chunk: Chunk, ended: Ended, seen: Seen | None) -> None:
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


def write_chunk(
    chunk: Chunk, data: Sequence[Encoded], rules: Rules, seen: Seen | None, *, may_create: bool = True
) -> Steps[Ended]:
    """Write all parts of a chunk; return how the last attempt ended."""
    if len(data) > 1:
        creates = may_create and rules.level is not Level.FULL and not isinstance(seen, Version)
        return (yield from (_write_parts if creates else _write_over)(chunk, data, rules, seen))
    # One PUT request writes a chunk of one part.
    writer = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
    condition = None if seen is None or not rules.has_conditions else seen.condition
    return Ended((yield from writer.commit(condition, seen)), writer.lost)


def _write_parts(chunk: Chunk, data: Sequence[Encoded], rules: Rules, seen: Seen | None) -> Steps[Ended]:
    """Create a chunk; write over it if it exists."""
    creation = Writer(chunk, rules, _tag(chunk, data, rules, "c" if seen is None else "u"), dict(enumerate(data)))
    end = yield from creation.create()
    if end is not End.SUPERSEDED:
        return Ended(end, creation.lost)
    try:
        return (yield from _write_over(chunk, data, rules, seen))
    except LayoutChangedError:
        # Another array replaced this one, and its listings would show these parts. No writer of the new array
        # overwrites a part of another layout, so the parts still belong to this write.
        if creation.created:
            yield from steps.remove(creation.created, "parts of another layout")
        raise


def _write_over(chunk: Chunk, data: Sequence[Encoded], rules: Rules, seen: Seen | None) -> Steps[Ended]:
    """Write all parts of a chunk over whatever is there."""
    if isinstance(seen, Absent) and (yield from reading.exists(chunk)):
        return Ended(End.SUPERSEDED, None)
    writer = _overwriter(chunk, data, rules, seen)
    return Ended((yield from writer.overwrite(seen)), writer.lost)


def _overwriter(chunk: Chunk, data: Sequence[Encoded], rules: Rules, seen: Seen | None) -> "Writer":
    # Every attempt has its own generation, so that parts of a failed create are not taken for parts of this write.
    tag = _tag(chunk, data, rules, "s" if seen is None else "m")
    if rules.embeds(chunk):
        tag = staging.embed(chunk, data, tag)
    return Writer(chunk, rules, tag, dict(enumerate(data)))


def _tag(chunk: Chunk, data: Sequence[Encoded], rules: Rules, mode: Mode) -> Tag:
    return Tag(rules.new_generation(), mode, tuple(part.nbytes for part in data), chunk.layout)


def finisher(chunk: Chunk, rules: Rules) -> "Writer":
    """Return a writer that finishes what other writers have left, and writes nothing of its own."""
    return Writer(chunk, rules, Tag(rules.new_generation(), "s", (0,) * len(chunk.part_keys)), {})


@dataclass(slots=True)
class Registration:
    """The objects beside a chunk that show other writers that this one is at work."""

    generations: tuple[str, ...]
    # Tells the seconds since the last object was written.
    watch: Callable[[], float]

    @property
    def is_old(self) -> bool:
        """Return whether the objects may have been removed as those of a dead writer."""
        return self.watch() > MAX_STALL


@dataclass(slots=True)
class Writer:
    """One attempt to write a chunk, under one generation; or a helper that finishes the writes of other writers."""

    chunk: Chunk
    rules: Rules
    tag: Tag
    data: Mapping[int, Encoded]
    # The error of the last request for a part without a response. The request may be carried out at any later time.
    lost: Exception | None = field(default=None)
    # A part could not be written although the anchor is of this generation. Readers need the staged copy.
    needs_copy: bool = field(default=False)
    # The generations that this writer may finish for other writers; None for all.
    finishable: Collection[str] | None = field(default=None)
    # None while this writer has no objects beside the chunk.
    registration: Registration | None = field(default=None)
    # The chunk had changed before this writer began to write.
    was_overtaken: bool = field(default=False)
    # The keys of the parts that a create has written.
    created: tuple[str, ...] = field(default=())

    @property
    def generation(self) -> str:
        """Return the generation of this write."""
        return self.tag.generation

    @property
    def others(self) -> tuple[int, ...]:
        """Return the parts that are not the anchor."""
        return tuple(part for part in range(len(self.chunk.part_keys)) if part != self.chunk.parts.anchor)

    @property
    def own_generations(self) -> tuple[str, ...]:
        """Return the generations under which this writer is registered."""
        return () if self.registration is None else self.registration.generations

    def put(self, part: int, condition: Condition | None) -> steps.Put:
        """Return the request that writes a part."""
        tag = self.tag
        if tag.embedded is not None and part != self.chunk.parts.anchor:
            tag = replace(tag, embedded=None, replaced=None)
        return steps.Put(self.chunk.part_keys[part], self.data[part], tag, condition, "part of a chunk")

    def record(self, outcome: Outcome) -> bool:
        """Return whether a request was carried out; remember that it got no response."""
        if isinstance(outcome, steps.Lost):
            self.lost = outcome.error
        return isinstance(outcome, steps.Done)

    def is_own(self, found: Found | None) -> bool:
        """Return whether an object was written by this writer."""
        return found is not None and found.generation == self.generation

    def not_written(self, outcome: Outcome) -> Exception:
        """Return the error of a write that left nothing behind that other clients can see."""
        if isinstance(outcome, steps.Lost):
            outcome.error.add_note(f"chunk {self.chunk.chunk_key!r} is not written; {SLOW}")
            return outcome.error
        return TypeError(f"a write was answered with {outcome}")

    # --- registering ----------------------------------------------------------------------------------------------

    def register(self, kind: staging.StagingKind) -> steps.Put:
        """Return the request that registers this writer. It must be carried out before anything else is written."""
        self.registration = Registration((self.generation,), self.rules.start_watch())
        data = [self.data[part] for part in range(len(self.data))]
        return staging.stage(self.chunk, data, self.tag, kind)

    def _registers_again(self) -> Steps[bool]:
        """Register again if another writer may have taken this one for dead; return whether that was necessary.

        A writer that does not know of this one might lose what this one overwrites.
        """
        if self.registration is None or not self.registration.is_old or not self.rules.is_registered:
            return False
        generation = self.rules.new_generation()
        self.registration.generations += (generation,)
        self.registration.watch = self.rules.start_watch()
        put = staging.stage(self.chunk, (), replace(self.tag, generation=generation), "settle")
        outcome = yield from steps.until_answered(put)
        # Without a registration, nothing must be written any more: as if this process had ended here.
        self.needs_copy = not isinstance(outcome, steps.Done)
        return True

    def put_own(self, put: steps.Put) -> Steps[None]:
        """Write an object that no other writer writes; raise if the store never confirms it."""
        outcome = yield from steps.until_answered(put)
        if not isinstance(outcome, steps.Done):
            raise self.not_written(outcome)

    def remove_copies(self, generations: Sequence[str], suffix: str = "") -> Steps[bool]:
        """Remove objects beside the chunk; return whether the store confirmed it.

        Objects that stay do no harm: the chunk is written, and `repair` removes leftovers.
        """
        removal = steps.Delete(tuple(staging.key_of(self.chunk, each) + suffix for each in generations), "staged copy")
        (outcome,) = yield (removal,)
        if isinstance(outcome, steps.Lost):
            # MinIO closes connections after a refusal, and a copy that stays looks like a writer at work.
            (outcome,) = yield (removal,)
        return not isinstance(outcome, steps.Lost)

    # --- writing the other parts ----------------------------------------------------------------------------------

    def write_others(
        self, conditions: Sequence[Condition | None], answers: Sequence[Outcome] | None = None
    ) -> Steps[None]:
        """Write the other parts while the anchor is of this generation.

        `answers` are the outcomes of the first requests for all other parts, if they were already made.
        """
        parts = [part for part in self.others if part in self.data]
        outcomes: Sequence[Outcome]
        if answers is not None:
            outcomes = answers
        elif (yield from self._registers_again()):
            # The parts may have changed, so each is looked at before it is written.
            outcomes = [steps.Refused() for _ in parts]
        else:
            outcomes = yield tuple(self.put(part, conditions[part]) for part in parts)
        for outcome in outcomes:
            self.record(outcome)
        for part, outcome in zip(parts, outcomes, strict=True):
            if not (yield from self._is_written(part, outcome)):
                break

    def _is_written(self, part: int, outcome: Outcome) -> Steps[bool]:
        """Write a part until it is of this generation; return False if another write has replaced this one.

        If the part cannot be written, readers need the staged copy.
        """
        put = self.put(part, None)
        for repeat in range(steps.MAX_TRIES):
            if self.record(outcome) or self.needs_copy:
                return True
            if repeat:
                yield (steps.wait_after(put, outcome, repeat),)
            # In this order: the part, then the anchor, which permits the write, then the write.
            now = yield from steps.head(self.chunk.part_keys[part], WHOSE)
            if self.is_own(now):
                return True
            anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
            if not self.is_own(anchor):
                return False
            if (yield from self._registers_again()):
                outcome = steps.Refused()
                continue
            put = self.put(part, steps.unchanged(now) if self.rules.has_conditions else None)
            (outcome,) = yield (put,)
        # As if this process had ended here: the write is committed, and readers use the staged copy.
        if not self.record(outcome):
            self.needs_copy = True
        return True

    # --- finishing a committed write ------------------------------------------------------------------------------

    def finish_committed(self) -> Steps[None]:
        """Bring all parts to the generation of the anchor, if its staged copy exists."""
        for repeat in range(steps.MAX_TRIES):
            if repeat > 1:
                yield (steps.Wait(repeat - 1),)
            tag, stale = yield from self._find_stale()
            if tag is None or not stale or any(staging.is_foreign(each, tag) for each in stale.values()):
                return
            if self.finishable is not None and tag.generation not in self.finishable:
                return
            parts = yield from staging.read_copy(self.chunk, tag)
            if parts is None:
                after = yield from steps.head(self.chunk.anchor_key, WHOSE)
                if after is not None and after.generation == tag.generation:
                    return
                continue
            if not (yield from self._write_stale(tag, stale, parts)):
                break
        self.needs_copy = True

    def _write_stale(self, tag: Tag, stale: Mapping[int, Outcome], parts: Mapping[int, Found]) -> Steps[bool]:
        """Write stale parts with the bytes of a staged copy; return False if readers still need the copy."""
        helper = Writer(self.chunk, self.rules, tag, {part: memoryview(parts[part].data) for part in stale})
        helper.registration = self.registration
        conditions: list[Condition | None] = [None] * len(self.chunk.part_keys)
        for part, now in stale.items():
            conditions[part] = steps.unchanged(now)
        yield from helper.write_others(conditions)
        # A request of the helper without a response may still be carried out.
        self.lost = self.lost or helper.lost
        return not helper.needs_copy

    def _find_stale(self) -> Steps[tuple[Tag | None, dict[int, Outcome]]]:
        """Return the tag of the anchor, None if it has none, and the parts that do not belong to its write."""
        # The parts first, then the anchor, which permits to write them.
        outcomes = yield tuple(steps.Head(self.chunk.part_keys[part], WHOSE) for part in self.others)
        anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
        tag = None if anchor is None else anchor.tag
        found = zip(self.others, outcomes, strict=True)
        return tag, {part: now for part, now in found if tag is not None and not _is_of(now, tag)}

    # --- removing staged copies -----------------------------------------------------------------------------------

    def leave(self, previous: str | None) -> Steps[None]:
        """Remove the staged copy after the commit, unless a client may still need it.

        `previous` is the staged write that was replaced.
        """
        if self.needs_copy:
            return
        if not self.rules.is_registered:
            yield from self._leave_unregistered(previous)
            return
        registry = yield from self._look_for_others()
        if registry is not None:
            yield from self._leave_registered(registry)

    def _leave_registered(self, registry: Registry) -> Steps[None]:
        """Remove the staged copy after the commit, unless one of these writers may still need it.

        A writer that replaces this write while this one is registered stays registered, or is replaced by another
        writer that does. So if a listing after the last PUT has no trace of other writers, the anchor and all parts are
        still of this write.
        """
        if registry.has_others(self.own_generations):
            anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
            if not self.is_own(anchor):
                yield from self.settle()
                return
        if self.lost is not None:
            return
        if registry.others_at_work(self.own_generations):
            yield from self._keep_copy(registry)
            return
        yield from self._remove_finished(registry)
        yield from self.remove_copies(self.own_generations)

    def _look_for_others(self) -> Steps[Registry | None]:
        """Return the writers of the chunk, None if the store does not list them."""
        (listed,) = yield (steps.List(self.chunk.side_folder, "which other writers are at work"),)
        return Registry.of(listed.entries) if isinstance(listed, steps.Listed) else None

    def _leave_unregistered(self, previous: str | None) -> Steps[None]:
        # A late PUT of this writer may follow a delete at one of these levels, and another write at the other.
        if self.lost is not None and self.rules.level is not Level.WRITERS:
            return
        # The copy of a dead writer is not needed any more, because its write was replaced.
        yield from self.remove_copies((*self.own_generations, *([] if previous is None else [previous])))

    def _keep_copy(self, registry: Registry) -> Steps[None]:
        """Mark this write as finished, and keep its copy, because a late PUT of another writer may hit a part.

        The copies of writers that finished earlier are removed: the anchor is of this write, and cannot become theirs
        again. Their marks are removed by the next writer, since a mark has to exist longer than its copy.
        """
        finished = registry.finished(self.own_generations)
        names = [each if each in registry.present else each + staging.DONE for each in finished]
        names += [each for each in self.own_generations if each != self.generation]
        gone = tuple(staging.key_of(self.chunk, each) for each in names)
        done = steps.Put(staging.key_of(self.chunk, self.generation) + staging.DONE, b"", self.tag, None, "finished")
        outcome, *_ = yield (done, *([steps.Delete(gone, "staged copies")] if gone else []))
        if isinstance(outcome, steps.Lost):
            # A copy without a mark looks like a writer at work.
            yield (done,)

    # --- finishing what other writers have left -------------------------------------------------------------------

    def settle(self, dead: Collection[str] = ()) -> Steps[bool]:
        """Finish the committed write, because a late request of this writer may have hit it, and remove copies.

        Of the other writers beside the chunk, `dead` are dead. Returns whether nothing of them or of this writer stays.
        """
        yield from self.finish_committed()
        if self._must_stay:
            return False
        registry = yield from self._look_for_others()
        is_alone = registry is not None and not registry.others_at_work(self.own_generations, dead)
        if registry is not None and is_alone:
            # No other writer can have a request under way, so the chunk does not change after this look.
            yield from self.finish_committed()
            if self._must_stay:
                return False
            is_alone = yield from self._remove_finished(registry, dead)
        if self.rules.is_registered and not (yield from self.remove_copies(self.own_generations)):
            return False
        return is_alone

    @property
    def _must_stay(self) -> bool:
        """Return whether this writer must stay registered, because one of its requests may still be carried out."""
        return self.lost is not None or self.needs_copy

    def finish_dead(self, parts: Mapping[int, Entry], dead: Collection[str]) -> Steps[bool]:
        """Finish the committed write, then remove what dead writers have left; return whether nothing stays.

        `parts` are the parts that were listed.
        """
        if not (yield from self._can_be_finished(parts)):
            return False
        if self.rules.is_registered:
            yield from self.put_own(self.register("settle"))
        return (yield from self.settle(dead))

    def _can_be_finished(self, parts: Mapping[int, Entry]) -> Steps[bool]:
        """Return whether every listed part of the anchor's own write has the size that the anchor's tag says.

        A part of a wrong size has the right tag, so it would not be written again, and the staged copy may be the only
        intact copy.
        """
        chunk = self.chunk
        doubtful = [part for part, entry in parts.items() if chunk.parts.sizes[part] != entry.nbytes]
        if not set(doubtful) - {chunk.parts.anchor}:
            return True
        keys = (chunk.anchor_key, *(chunk.part_keys[part] for part in doubtful))
        anchor, *others = yield tuple(steps.Head(key, WHOSE) for key in keys)
        tag = anchor.tag if isinstance(anchor, Found) else None
        if tag is None or len(tag.sizes) != len(chunk.part_keys):
            return True
        return not any(_has_wrong_size(found, tag, part) for part, found in zip(doubtful, others, strict=True))

    def _remove_finished(self, registry: Registry, dead: Collection[str] = ()) -> Steps[bool]:
        """Remove the copies of finished writers, then their marks; without a mark, a copy looks like one in use."""
        finished = registry.finished(self.own_generations, dead)
        if not finished:
            return True
        if not (yield from self.remove_copies(finished)):
            return False
        return (yield from self.remove_copies(finished, staging.DONE))

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


def _is_of(outcome: Outcome, tag: Tag) -> bool:
    return isinstance(outcome, Found) and outcome.generation == tag.generation


def _has_wrong_size(outcome: Outcome, tag: Tag, part: int) -> bool:
    """Return whether a part carries the generation of a tag, but not the size that the tag says."""
    return isinstance(outcome, Found) and outcome.generation == tag.generation and outcome.nbytes != tag.sizes[part]
