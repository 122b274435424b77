"""Writing parts of a chunk on an object store for `tagged`, and finishing committed writes.

A write that other writers have to know about is registered: it has an object beside the chunk. After a long stall, the
object may have been removed as that of a dead writer, so the writer registers again before it writes anything else.

A committed write is finished by its own writer, or by another writer or `repair` if its writer died. Then the staged
copies that no client needs any more are removed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Entry, Found, Outcome, Steps
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag
from parts_store.transactions import staging
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.staging import MAX_STALL, Registry
from parts_store.transactions.versions import WHOSE

SLOW: Final = "a slow link needs a longer time-out than 30 s: client_options={'timeout': '10 minutes'}"


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
class PartWriter:
    """A writer of parts of one chunk, all of one generation, that also finishes the writes of other writers."""

    chunk: Chunk
    rules: Rules
    tag: Tag
    data: Mapping[int, memoryview]
    # The error of the last request for a part without a response. The request may be carried out at any later time.
    lost: Exception | None = field(default=None)
    # A part could not be written although the anchor is of this generation. Readers need the staged copy.
    needs_copy: bool = field(default=False)
    # The generations that this writer may finish for other writers; None for all.
    finishable: Collection[str] | None = field(default=None)
    # None while this writer has no objects beside the chunk.
    registration: Registration | None = field(default=None)

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

    def register(self, kind: staging.Kind) -> steps.Put:
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
        outcome = yield from self._put_repeatedly(put)
        # Without a registration, nothing must be written any more: as if this process had ended here.
        self.needs_copy = not isinstance(outcome, steps.Done)
        return True

    def put_own(self, put: steps.Put) -> Steps[None]:
        """Write an object that no other writer writes; raise if the store never confirms it."""
        outcome = yield from self._put_repeatedly(put)
        if not isinstance(outcome, steps.Done):
            raise self.not_written(outcome)

    def _put_repeatedly(self, put: steps.Put) -> Steps[Outcome]:
        outcome: Outcome = steps.Missing()
        for repeat in range(steps.MAX_TRIES):
            if repeat:
                yield (steps.Wait(repeat),)
            (outcome,) = yield (put,)
            if isinstance(outcome, steps.Done):
                break
        return outcome

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
        helper = PartWriter(self.chunk, self.rules, tag, {part: memoryview(parts[part].data) for part in stale})
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


def _is_of(outcome: Outcome, tag: Tag) -> bool:
    return isinstance(outcome, Found) and outcome.generation == tag.generation


def _has_wrong_size(outcome: Outcome, tag: Tag, part: int) -> bool:
    """Return whether a part carries the generation of a tag, but not the size that the tag says."""
    return isinstance(outcome, Found) and outcome.generation == tag.generation and outcome.nbytes != tag.sizes[part]
