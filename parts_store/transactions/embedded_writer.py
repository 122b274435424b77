"""Writing a chunk whose anchor contains the other parts in its tag, so that the anchor alone is the whole chunk.

Readers take the other parts from the tag if these are not of the anchor's write. So there is no staged copy, and what
the other objects contain matters only to other software. Every writer brings them to the write of the anchor: after its
last PUT, it looks at the anchor, and if that is of another write, it finishes that write. So the last request for a
part is always followed by a look at the anchor. Where ETags never recur, a PUT that is not refused needs no such look.
"""

from dataclasses import dataclass
from typing import override

from parts_store.engine import steps
from parts_store.engine.steps import Found, Steps
from parts_store.transactions import staging
from parts_store.transactions.rules import Level
from parts_store.transactions.versions import WHOSE, Seen
from parts_store.transactions.writer import Conditions, End, Writer


@dataclass(slots=True)
class EmbeddedWriter(Writer):
    """One attempt to write a chunk whose anchor contains the other parts."""

    @override
    def write_staged(self, seen: Seen | None) -> Steps[End]:
        """Write the anchor, which contains the other parts, and then the other parts."""
        if self.rules.level is Level.EXCLUSIVE:
            return (yield from self._write_unseen(seen))
        looked = yield from self.look(seen)
        if self.was_overtaken:
            return End.SUPERSEDED
        if looked.has_untagged:
            self.replaces(looked.conditions)
        if self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None:
            return (yield from self._write_at_once(looked.conditions, seen))
        end = yield from self.write_all(looked.conditions, seen)
        if end is End.COMMITTED:
            yield from self.check()
        return end

    def _write_unseen(self, seen: Seen | None) -> Steps[End]:
        """Write a chunk that no other client writes."""
        conditions: Conditions = [None] * len(self.data)
        if seen is not None and self.rules.has_conditions:
            conditions[self.chunk.parts.anchor] = seen.condition
        self.tag = staging.with_replaced(self.tag, None)
        return (yield from self.write_all(conditions, seen))

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

    def replaces(self, conditions: Conditions) -> None:
        """Tell readers which parts this write replaces, because they may have no tags."""
        others = [conditions[part] for part in self.others]
        self.tag = staging.with_replaced(self.tag, [each.etag for each in others if isinstance(each, steps.IfMatch)])

    def write_all(self, conditions: Conditions, seen: Seen | None = None) -> Steps[End]:
        """Write the anchor, and then the other parts, under these conditions."""
        end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
        if end is End.COMMITTED:
            yield from self.write_others(conditions)
        return end

    def check(self) -> Steps[None]:
        """Finish the write of another writer that a request of this one may have hit, because ETags can recur."""
        if self.rules.is_registered and not self.is_own((yield from steps.head(self.chunk.anchor_key, WHOSE))):
            yield from self.finish_committed()
