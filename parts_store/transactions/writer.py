"""One attempt to write all parts of a chunk on an object store, from the first request to the last.

The promises, and what a crash leaves behind, are in `transaction`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from parts_store.engine.steps import (
    MAX_TRIES,
    Condition,
    Delete,
    Done,
    Found,
    Head,
    IfAbsent,
    List,
    Listed,
    Lost,
    Missing,
    Outcome,
    Put,
    Refused,
    Request,
    Steps,
    Wait,
    get,
    head,
    unchanged,
)
from parts_store.errors import AmbiguousWriteError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag
from parts_store.transactions import staging
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.staging import Registry
from parts_store.transactions.versions import WHOSE, Seen, Version, is_of_layout, require_layout

# After so many seconds, what tells that we are at work may have been removed as a dead writer's.
MAX_STALL: Final = 300.0
# How often a copy is staged again: where that takes longer than a stall may, it is no use to go on.
_MAX_STALLS = 3

SLOW = "a slow link needs a longer time-out than 30 s: client_options={'timeout': '10 minutes'}"


class End(Enum):
    """How an attempt to commit ended."""

    COMMITTED = "committed"
    # Somebody else committed after we looked.
    SUPERSEDED = "superseded"
    # Somebody else's write is there, and whether ours was before it nobody can know.
    UNKNOWN = "unknown"
    # Others kept committing what we had not seen: nothing of ours was written.
    CROWDED_OUT = "crowded out"


@dataclass(slots=True)
class Registration:
    """What tells the others that we are at work on a chunk: objects beside it, and how long the last one is there."""

    generations: tuple[str, ...]
    watch: Callable[[], float]

    @property
    def is_old(self) -> bool:
        """Whether somebody may have removed it as a dead writer's."""
        return self.watch() > MAX_STALL


@dataclass(slots=True)
class Writer:
    """One attempt to write a chunk, under one generation."""

    chunk: Chunk
    rules: Rules
    tag: Tag
    data: Mapping[int, memoryview]
    # The last request of ours for a part without an answer: it may be carried out at any later time.
    lost: Exception | None = field(default=None)
    # A part could not be written although the anchor is ours: the staged copy has to serve.
    needs_copy: bool = field(default=False)
    # What we had seen was gone before we began to write.
    was_overtaken: bool = field(default=False)
    # None while there is nothing of ours beside the chunk.
    registration: Registration | None = field(default=None)
    # The keys of the parts that a create has written.
    created: tuple[str, ...] = field(default=())

    @property
    def generation(self) -> str:
        """Under which it writes."""
        return self.tag.generation

    @property
    def others(self) -> tuple[int, ...]:
        """The parts that are not the anchor."""
        return tuple(part for part in range(len(self.chunk.part_keys)) if part != self.chunk.parts.anchor)

    def put(self, part: int, condition: Condition | None) -> Put:
        """The write of a part."""
        return Put(self.chunk.part_keys[part], self.data[part], self.tag, condition, "part of a chunk")

    def take(self, outcome: Outcome) -> bool:
        """Whether a request was carried out, for all we know."""
        if isinstance(outcome, Lost):
            self.lost = outcome.error
        return isinstance(outcome, Done)

    def create(self) -> Steps[End]:
        """The other parts, then the anchor, each only if there is none."""
        condition: Condition | None = IfAbsent()
        watch = self.rules.start_watch()
        if not self.rules.has_conditions:
            anchor = yield from head(self.chunk.anchor_key, "whether the chunk exists")
            require_layout(self.chunk, anchor)
            if anchor is not None:
                return End.SUPERSEDED
            condition = None
        puts = [self.put(part, condition) for part in self.others]
        outcomes = yield tuple(puts)
        self.created = tuple(put.key for put, first in zip(puts, outcomes, strict=True) if isinstance(first, Done))
        for put, first in zip(puts, outcomes, strict=True):
            if not (yield from self._is_created(put, first)):
                # Whose it is does not matter: what is there is overwritten, staged.
                return End.SUPERSEDED
        # A part that comes late finds one there: only what becomes of the anchor can be unknown.
        self.lost = None
        return (yield from self.commit(condition, watch=watch))

    def _is_created(self, put: Put, outcome: Outcome) -> Steps[bool]:
        """Whether a part that is not the anchor is ours."""
        for repeat in range(MAX_TRIES):
            if repeat:
                yield (Wait(repeat),)
                (outcome,) = yield (put,)
            if self.take(outcome):
                return True
            if isinstance(outcome, Refused):
                return False
            now = yield from head(put.key, WHOSE)
            if now is not None:
                return now.generation == self.generation
        raise self._gave_up(outcome)

    def _gave_up(self, outcome: Outcome) -> Exception:
        """The error of a write of which nothing can be seen, now or later."""
        if isinstance(outcome, Lost):
            outcome.error.add_note(f"chunk {self.chunk.chunk_key!r} is not written; {SLOW}")
            return outcome.error
        return TypeError(f"a write was answered with {outcome}")

    def commit(
        self, condition: Condition | None, seen: Seen | None = None, *, watch: Callable[[], float] | None = None
    ) -> Steps[End]:
        """The anchor: from then on, the chunk is of this write.

        A `watch` tells how long the other parts may have been there alone.
        """
        for repeat in range(MAX_TRIES):
            if repeat > 1:
                yield (Wait(repeat - 1),)
            if not (yield from self._may_commit(seen, watch)):
                return self._lost_to(None)
            (outcome,) = yield (self.put(self.chunk.parts.anchor, condition),)
            if self.take(outcome):
                return End.COMMITTED
            if condition is None:
                continue
            now = yield from head(self.chunk.anchor_key, WHOSE)
            if now is not None and now.generation == self.generation:
                return End.COMMITTED
            is_unchanged = condition == unchanged(now)
            # On S3 the ETag comes back with the bytes, and only the generation tells that somebody wrote.
            if is_unchanged and not (
                isinstance(seen, Version) and now is not None and now.generation != seen.generation
            ):
                continue
            end = self._lost_to(now)
            if end is not End.CROWDED_OUT:
                return end
            condition = unchanged(now)
        if self.lost is None:
            return End.CROWDED_OUT
        problem = f"no answer came to {MAX_TRIES} requests; {SLOW}"
        raise AmbiguousWriteError(self.chunk.chunk_key, problem) from self.lost

    def _may_commit(self, seen: Seen | None, watch: Callable[[], float] | None) -> Steps[bool]:
        """Whether what goes with the anchor is still there, for all we know; after a stall, a copy is staged again."""
        if watch is not None and watch() > MAX_STALL:
            # Somebody may have removed the other parts as a dead writer's: all of them are to be written again, staged.
            return False
        for _ in range(_MAX_STALLS):
            if self.registration is not None and self.registration.is_old:
                yield from self._stage_again(seen)
        return not self.was_overtaken

    def _lost_to(self, winner: Found | None) -> End:
        """What it means that somebody else's commit is there, or a delete; `CROWDED_OUT` if we have to try again."""
        if not self.tag.is_staged:
            return End.UNKNOWN if self.lost is not None else End.SUPERSEDED
        # We come just before the winner and are finished, unless it says that it saw what was there: it did not see us.
        if self.tag.is_conditional or winner is None or winner.tag is None or not winner.tag.is_conditional:
            return End.SUPERSEDED
        return End.UNKNOWN if self.lost is not None else End.CROWDED_OUT

    def write_staged(self, seen: Seen | None) -> Steps[End]:
        """The staged copy; the anchor; the other parts; and the copy removed."""
        conditions, previous = yield from self._stage(seen)
        end = End.SUPERSEDED
        if not self.was_overtaken:
            end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
        if end is not End.COMMITTED:
            # What we sent may still come, and then this copy is the only one that there is.
            if self.lost is None or not (self.rules.is_registered or self.rules.level is Level.FULL):
                yield from self._remove_copies(self._ours)
            return end
        listing = (List(self.chunk.side_folder, "who else is writing"),) if self.rules.is_registered else ()
        listed = yield from self.sync(conditions, listing)
        yield from self._leave(_registry(listed), previous)
        return end

    def _stage(self, seen: Seen | None) -> Steps[tuple[list[Condition | None], str | None]]:
        """The staged copy, and under which conditions the parts are written; and the staged write that is there."""
        copy = self.register("write")
        known: list[Condition | None] = [None] * len(self.data)
        # Where there are no conditions, there is no other level than this one.
        if self.rules.level is Level.EXCLUSIVE:
            yield from self._put_anyway(copy)
            if seen is not None and self.rules.has_conditions:
                known[self.chunk.parts.anchor] = seen.condition
            return known, None
        if seen is not None:
            known = seen.conditions(self.chunk)
        unknown = [part for part, condition in enumerate(known) if condition is None]
        if isinstance(seen, Version) and not self.rules.has_unique_etags:
            unknown.append(self.chunk.parts.anchor)
        heads = tuple(Head(self.chunk.part_keys[part], WHOSE) for part in unknown)
        first, *found = yield (copy, *heads)
        if not isinstance(first, Done):
            yield from self._put_anyway(copy)
        others = [each for each in found if isinstance(each, Found)]
        if not all(is_of_layout(each, self.chunk) for each in others):
            # Nothing was committed: the copy is all that we have written.
            yield from self._remove_copies((self.generation,))
            require_layout(self.chunk, *others)
        tag = seen.tag if isinstance(seen, Version) else None
        for part, outcome in zip(unknown, found, strict=True):
            if part == self.chunk.parts.anchor and isinstance(seen, Version):
                self.was_overtaken = not isinstance(outcome, Found) or outcome.generation != seen.generation
                continue
            known[part] = unchanged(outcome)
            if part == self.chunk.parts.anchor and isinstance(outcome, Found):
                tag = outcome.tag
        return known, tag.generation if tag is not None and tag.is_staged else None

    def _stage_again(self, seen: Seen | None) -> Steps[None]:
        """Begin again with a new copy: the old one may be gone, or be removed at any moment, as a dead writer's.

        The copy has another name, and so the write another generation: who removes the old one cannot hit the new one.
        """
        old = self._ours
        self.tag = replace(self.tag, generation=self.rules.new_generation())
        copy = self.register("write")
        yield from self._put_anyway(copy)
        if self.lost is None:
            yield from self._remove_copies(old)
        elif self.registration is not None:
            # Our PUT under that generation may still come: its copy goes when this write has ended.
            self.registration.generations += old
        if isinstance(seen, Version) and not self.rules.has_unique_etags:
            now = yield from head(self.chunk.anchor_key, WHOSE)
            self.was_overtaken = now is None or now.generation != seen.generation

    def register(self, kind: staging.Kind) -> Put:
        """The object that tells that we are at work: it has to be there before anything else is written."""
        self.registration = Registration((self.generation,), self.rules.start_watch())
        data = [self.data[part] for part in range(len(self.data))]
        return staging.stage(self.chunk, data, self.tag, kind)

    @property
    def _ours(self) -> tuple[str, ...]:
        """The generations under which we are registered."""
        return () if self.registration is None else self.registration.generations

    def _is_unregistered(self) -> Steps[bool]:
        """Whether what we are about to write could hit what somebody wrote who did not know of us.

        If we stalled so long that he could take us for dead, we are registered anew.
        """
        if self.registration is None or not self.registration.is_old or not self.rules.is_registered:
            return False
        generation = self.rules.new_generation()
        self.registration.generations += (generation,)
        self.registration.watch = self.rules.start_watch()
        put = staging.stage(self.chunk, (), replace(self.tag, generation=generation), "settle")
        outcome = yield from self._put_repeatedly(put)
        # If it is not there, nothing must be written any more: as if we had ended here.
        self.needs_copy = not isinstance(outcome, Done)
        return True

    def _put_anyway(self, put: Put) -> Steps[None]:
        """An object of ours alone: written until it is."""
        outcome = yield from self._put_repeatedly(put)
        if not isinstance(outcome, Done):
            raise self._gave_up(outcome)

    def _put_repeatedly(self, put: Put) -> Steps[Outcome]:
        outcome: Outcome = Missing()
        for repeat in range(MAX_TRIES):
            if repeat:
                yield (Wait(repeat),)
            (outcome,) = yield (put,)
            if isinstance(outcome, Done):
                break
        return outcome

    def sync(
        self, conditions: Sequence[Condition | None], also: tuple[Request, ...] = ()
    ) -> Steps[tuple[Outcome, ...]]:
        """The other parts, brought to this generation for as long as the anchor is of it; and what `also` asks for."""
        parts = [part for part in self.others if part in self.data]
        if (yield from self._is_unregistered()):
            # Look again before each part.
            outcomes: tuple[Outcome, ...] = (*(Refused() for _ in parts), *((yield also) if also else ()))
        else:
            outcomes = yield (*(self.put(part, conditions[part]) for part in parts), *also)
        for outcome in outcomes[: len(parts)]:
            self.take(outcome)
        for part, outcome in zip(parts, outcomes, strict=False):
            if not (yield from self._is_synced(part, outcome)):
                break
        return outcomes[len(parts) :]

    def _is_synced(self, part: int, outcome: Outcome) -> Steps[bool]:
        """Whether the part is of this generation, or the staged copy has to serve; not if we are superseded."""
        for repeat in range(MAX_TRIES):
            if self.take(outcome):
                return True
            if self.needs_copy:
                return True
            if repeat:
                yield (Wait(repeat),)
            # In this order: the part, then the anchor as the licence to write it, then the write.
            now = yield from head(self.chunk.part_keys[part], WHOSE)
            if now is not None and now.generation == self.generation:
                return True
            anchor = yield from head(self.chunk.anchor_key, WHOSE)
            if anchor is None or anchor.generation != self.generation:
                return False
            if (yield from self._is_unregistered()):
                outcome = Refused()
                continue
            (outcome,) = yield (self.put(part, unchanged(now) if self.rules.has_conditions else None),)
        if self.take(outcome):
            return True
        # As if we had ended here: the write is committed, and everybody reads it.
        self.needs_copy = True
        return True

    def _leave(self, registry: Registry | None, previous: str | None) -> Steps[None]:
        """Remove the staged copy, if nobody can need it any more."""
        if self.needs_copy:
            return
        if registry is None:
            # A late PUT of ours may follow a delete at the one level, and another write at the other.
            if self.lost is not None and self.rules.level is not Level.WRITERS:
                return
            # What a dead writer left is superseded.
            yield from self._remove_copies((*self._ours, *([] if previous is None else [previous])))
            return
        anchor = yield from head(self.chunk.anchor_key, WHOSE)
        if anchor is None or anchor.generation != self.generation:
            yield from self.settle()
            return
        if self.lost is not None:
            return
        if registry.others_at_work(self._ours):
            yield from self._keep_copy(registry)
            return
        yield from self._remove_finished(registry)
        yield from self._remove_copies(self._ours)

    def _keep_copy(self, registry: Registry) -> Steps[None]:
        """Say that we have finished, and leave the copy to whomever a late PUT of somebody else hits.

        The copies of those who finished before us are not needed any more: the anchor is ours, and cannot become theirs
        again. That they have finished is removed by the next one, since it has to stay longer than the copy.
        """
        finished = registry.finished(self._ours)
        names = [each if each in registry.present else each + staging.DONE for each in finished]
        names += [each for each in self._ours if each != self.generation]
        gone = tuple(staging.key_of(self.chunk, each) for each in names)
        done = Put(staging.key_of(self.chunk, self.generation) + staging.DONE, b"", self.tag, None, "finished")
        outcome, *_ = yield (done, *([Delete(gone, "staged copies")] if gone else []))
        if isinstance(outcome, Lost):
            # Once more: a copy without it looks like a writer at work.
            yield (done,)

    def settle(self, dead: Collection[str] = ()) -> Steps[bool]:
        """Leave the chunk tidy: what we sent late may have hit a newer write.

        Of the others beside it, these are dead. Returns whether nothing stays of them, nor of us.
        """
        yield from self.help()
        # One of ours may still come: stay registered.
        if self.lost is not None or self.needs_copy:
            return False
        (listed,) = yield (List(self.chunk.side_folder, "who else is writing"),)
        registry = _registry((listed,))
        is_alone = registry is not None and not registry.others_at_work(self._ours, dead)
        if registry is not None and is_alone:
            # Nobody else can have anything under way; look once more, then tidy up.
            yield from self.help()
            if self.lost is not None or self.needs_copy:
                return False
            is_alone = yield from self._remove_finished(registry, dead)
        if self.rules.is_registered and not (yield from self._remove_copies(self._ours)):
            return False
        return is_alone

    def tidy(self, dead: Collection[str]) -> Steps[bool]:
        """Finish what was committed, then remove what dead writers have left; returns whether nothing stays."""
        if self.rules.is_registered:
            yield from self._put_anyway(self.register("settle"))
        return (yield from self.settle(dead))

    def help(self) -> Steps[None]:
        """Bring the parts to the committed generation, whoever wrote it, if its staged copy is there."""
        for repeat in range(MAX_TRIES):
            if repeat > 1:
                yield (Wait(repeat - 1),)
            # The parts first, then the anchor as the licence to write them.
            outcomes = yield tuple(Head(self.chunk.part_keys[part], WHOSE) for part in self.others)
            found = dict(zip(self.others, outcomes, strict=True))
            anchor = yield from head(self.chunk.anchor_key, WHOSE)
            if anchor is None or anchor.tag is None:
                return
            stale = {part: now for part, now in found.items() if not _is_of(now, anchor.tag)}
            if not stale:
                return
            copy = yield from get(staging.key_of(self.chunk, anchor.tag.generation), "staged copy")
            parts = None if copy is None else staging.unstage(self.chunk, copy, anchor.tag)
            if parts is None:
                after = yield from head(self.chunk.anchor_key, WHOSE)
                if after is not None and after.generation == anchor.generation:
                    return
                continue
            helper = Writer(self.chunk, self.rules, anchor.tag, {part: memoryview(parts[part].data) for part in stale})
            helper.registration = self.registration
            conditions: list[Condition | None] = [None] * len(self.chunk.part_keys)
            for part, now in stale.items():
                conditions[part] = unchanged(now)
            yield from helper.sync(conditions)
            # What it has under way, we have.
            self.lost = self.lost or helper.lost
            if helper.needs_copy:
                break
        self.needs_copy = True

    def _remove_copies(self, generations: Sequence[str], suffix: str = "") -> Steps[bool]:
        """Remove what is beside the chunk; returns whether it is known to be gone.

        If not, that does no harm: the chunk is written, and leftovers are collected some time.
        """
        keys = tuple(staging.key_of(self.chunk, each) + suffix for each in generations)
        (outcome,) = yield (Delete(keys, "staged copy"),)
        if isinstance(outcome, Lost):
            # Once more: MinIO closes connections after a refusal, and a copy that stays looks like a writer at work.
            (outcome,) = yield (Delete(keys, "staged copy"),)
        return not isinstance(outcome, Lost)

    def _remove_finished(self, registry: Registry, dead: Collection[str] = ()) -> Steps[bool]:
        """What finished writers have left; that one has finished goes last, or its copy would look alive."""
        finished = registry.finished(self._ours, dead)
        if not finished:
            return True
        if not (yield from self._remove_copies(finished)):
            return False
        return (yield from self._remove_copies(finished, staging.DONE))


def _is_of(outcome: Outcome, tag: Tag) -> bool:
    return isinstance(outcome, Found) and outcome.generation == tag.generation


def _registry(outcomes: tuple[Outcome, ...]) -> Registry | None:
    for outcome in outcomes:
        if isinstance(outcome, Listed):
            return Registry.of(outcome.entries)
    return None
