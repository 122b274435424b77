"""The protocol for object stores: all parts of a chunk are written or none, despite crashes and other writers.

The anchor is the commit record: the chunk is the write whose generation the anchor carries. If the process ends after a
step, this is what it leaves behind:

| create                        | what is stored                    | what a reader finds           |
|-------------------------------|-----------------------------------|-------------------------------|
| some parts but not the anchor | orphans                           | no chunk, as before           |
| the anchor                    | the whole chunk                   | the new chunk                 |

| overwrite                     | what is stored                    | what a reader finds           |
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

A refused request alone decides nothing: the writer then looks at the object, first at its generation, then at its ETag.
A request without a response may have been carried out, or may be carried out at any later time. The same holds for a
cancelled request: its writer has ended, and the next writer or reader finds what a crash leaves behind.
"""

from collections.abc import Buffer, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, override

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Found, Outcome, Steps
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.format.tags import Mode, Tag
from parts_store.transactions import reading, server_probe, tagged_reading
from parts_store.transactions.finisher import Finisher
from parts_store.transactions.part_writer import SLOW
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Attempt, ReadSettings, ReadTask
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.server_probe import Features
from parts_store.transactions.staging import Registry
from parts_store.transactions.versions import NOT_AS_SEEN, WHOSE, Absent, Seen, Version, require_still
from parts_store.transactions.writer import End, Writer


@dataclass(frozen=True, slots=True)
class TaggedProtocol(ChunkProtocol):
    """The protocol for object stores, which keep a tag with every object."""

    has_tags: ClassVar[bool] = True

    @override
    def write(self, chunk: Chunk, data: Sequence[memoryview], seen: Seen | None = None) -> Steps[None]:
        end, error = yield from _write(chunk, data, self.rules, seen)
        if end is End.UNKNOWN or (end is End.SUPERSEDED and seen is not None and error is not None):
            raise AmbiguousWriteError(chunk.chunk_key, f"no answer came, and another write is there; {SLOW}") from error
        # A write that depends on no earlier read counts as carried out just before the write that replaced it.
        if end is End.CROWDED_OUT:
            raise ConcurrentWriteError(
                chunk.chunk_key, f"other writers changed it {steps.MAX_TRIES} times while it was written"
            )
        if end is End.SUPERSEDED and seen is not None:
            raise ConcurrentWriteError(chunk.chunk_key, NOT_AS_SEEN)

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

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        return tagged_reading.read_tagged(task, with_anchor=with_anchor)

    @override
    def read_version(
        self, chunk: Chunk, wanted: Sequence[Wanted], settings: ReadSettings, version: Version
    ) -> Steps[Read | Outdated | None]:
        if version.tag is not None:
            return ChunkProtocol.read_version(self, chunk, wanted, settings, version)
        return tagged_reading.read_same_objects(ReadTask(chunk, wanted, settings, steps.DATA), version)

    @override
    def can_recognise(self, version: Version) -> bool:
        return version.tag is not None

    @override
    def _unchanged(self, found: Found) -> Condition | None:
        return found.unchanged if self.rules.has_conditions else None

    @override
    def put_if_absent(self, key: str, data: Buffer, why: str) -> Steps[None]:
        if self.rules.has_conditions:
            yield from steps.put_if_absent(key, data, why)
        elif (yield from steps.head(key, "whether it exists")) is None:
            yield (steps.Put(key, data, None, None, why),)

    @override
    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        return server_probe.probe(self.rules.new_generation, has_conditions=has_conditions, is_thorough=True)

    @override
    def without_conditions(self) -> "TaggedProtocol":
        return TaggedProtocol(replace(self.rules, has_conditions=False))

    @override
    def finish_write(
        self, chunk: Chunk, parts: Mapping[int, steps.Entry], beside: Sequence[steps.Entry]
    ) -> Steps[bool]:
        if not (yield from _can_be_finished(chunk, parts)):
            return False
        return (yield from _finisher(chunk, self.rules).finish_dead(Registry.of(beside).present))

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


# How a write ended, and the error of its last request without a response.
type _Ended = tuple[End, Exception | None]


def _write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    by_parts = _write_single if len(data) == 1 else _write_parts
    return (yield from by_parts(chunk, data, rules, seen))


def _write_single(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """Write a chunk of one part with one PUT request."""
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
            # Another array replaced this one, and its listings would show these parts. No writer of the new array
            # overwrites a part of another layout, so the parts still belong to this write.
            if creation.created:
                yield from steps.remove(creation.created, "parts of another layout")
            raise
    return (yield from _write_over(chunk, data, rules, seen))


def _write_over(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[_Ended]:
    """Write all parts of a chunk with a staged copy, over whatever is there."""
    if isinstance(seen, Absent) and (yield from reading.exists(chunk)):
        return End.SUPERSEDED, None
    # Every attempt has its own generation, so that parts of a failed create are not taken for parts of this write.
    writer = Writer(chunk, rules, _tag(chunk, data, rules, "s" if seen is None else "m"), dict(enumerate(data)))
    return (yield from writer.write_staged(seen)), writer.lost


def _tag(chunk: Chunk, data: Sequence[memoryview], rules: Rules, mode: Mode) -> Tag:
    return Tag(rules.new_generation(), mode, tuple(part.nbytes for part in data), chunk.layout)


def _finisher(chunk: Chunk, rules: Rules) -> Finisher:
    """Return a writer that finishes what other writers have left, and writes nothing of its own."""
    return Finisher(chunk, rules, Tag(rules.new_generation(), "s", (0,) * len(chunk.part_keys)), {})


def _can_be_finished(chunk: Chunk, parts: Mapping[int, steps.Entry]) -> Steps[bool]:
    """Return whether every listed part of the anchor's own write has the size that the anchor's tag says.

    A part of a wrong size has the right tag, so it would not be written again, and the staged copy may be the only
    intact copy.
    """
    doubtful = [part for part, entry in parts.items() if chunk.parts.sizes[part] != entry.nbytes]
    if not set(doubtful) - {chunk.parts.anchor}:
        return True
    keys = (chunk.anchor_key, *(chunk.part_keys[part] for part in doubtful))
    anchor, *others = yield tuple(steps.Head(key, WHOSE) for key in keys)
    tag = anchor.tag if isinstance(anchor, Found) else None
    if tag is None or len(tag.sizes) != len(chunk.part_keys):
        return True
    return not any(_has_wrong_size(each, tag, part) for part, each in zip(doubtful, others, strict=True))


def _has_wrong_size(outcome: Outcome, tag: Tag, part: int) -> bool:
    """Return whether a part carries the generation of a tag, but not the size that the tag says."""
    return isinstance(outcome, Found) and outcome.generation == tag.generation and outcome.nbytes != tag.sizes[part]
