"""Finishing a committed write on an object store, and removing the staged copies that no client needs any more."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Found, Outcome, Steps
from parts_store.format.tags import Tag
from parts_store.transactions import staging
from parts_store.transactions.part_writer import PartWriter
from parts_store.transactions.rules import Level
from parts_store.transactions.staging import Registry
from parts_store.transactions.versions import WHOSE


@dataclass(slots=True)
class Finisher(PartWriter):
    """A writer that finishes committed writes, its own and those of other writers, and removes staged copies."""

    def finish_committed(self) -> Steps[None]:
        """Bring all parts to the generation of the anchor, if its staged copy exists."""
        for repeat in range(steps.MAX_TRIES):
            if repeat > 1:
                yield (steps.Wait(repeat - 1),)
            tag, stale = yield from self._find_stale()
            if tag is None or not stale:
                return
            parts = yield from self._read_copy(tag)
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

    def _read_copy(self, tag: Tag) -> Steps[dict[int, Found] | None]:
        """Return the parts in the staged copy of a write, None if there is no such copy."""
        copy = yield from steps.get(staging.key_of(self.chunk, tag.generation), "staged copy")
        return None if copy is None else staging.unstage(self.chunk, copy, tag)

    def leave(self, registry: Registry | None, previous: str | None) -> Steps[None]:
        """Remove the staged copy after the commit, unless a client may still need it.

        `previous` is the staged write that was replaced.
        """
        if self.needs_copy:
            return
        if registry is None:
            yield from self._leave_unregistered(previous)
            return
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

    def settle(self, dead: Collection[str] = ()) -> Steps[bool]:
        """Finish the committed write, because a late request of this writer may have hit it, and remove copies.

        Of the other writers beside the chunk, `dead` are dead. Returns whether nothing of them or of this writer stays.
        """
        yield from self.finish_committed()
        if self._must_stay:
            return False
        (listed,) = yield (steps.List(self.chunk.side_folder, "which other writers are at work"),)
        registry = registry_in((listed,))
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

    def finish_dead(self, dead: Collection[str]) -> Steps[bool]:
        """Finish the committed write, then remove what dead writers have left; return whether nothing stays."""
        if self.rules.is_registered:
            yield from self.put_own(self.register("settle"))
        return (yield from self.settle(dead))

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


def registry_in(outcomes: tuple[Outcome, ...]) -> Registry | None:
    """Return the registry that a listing among these outcomes shows, None if there is no listing."""
    for outcome in outcomes:
        if isinstance(outcome, steps.Listed):
            return Registry.of(outcome.entries)
    return None
