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
from typing import ClassVar, NamedTuple, override

from parts_store.engine import steps
from parts_store.engine.steps import Found, Outcome, Steps
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Wanted
from parts_store.format.tags import Mode, Tag
from parts_store.transactions import reading, server, staging
from parts_store.transactions.embedded_writer import EmbeddedWriter
from parts_store.transactions.part_writer import SLOW, Finisher
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Attempt, ReadSettings, ReadTask
from parts_store.transactions.reading import Outdated, Read
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.server import Features
from parts_store.transactions.staging import Registry
from parts_store.transactions.tagged_reading import read_same_objects, read_tagged
from parts_store.transactions.versions import NOT_AS_SEEN, WHOSE, Absent, Seen, Version, require_still
from parts_store.transactions.writer import End, Writer

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

    @override
    def writes_without_trace(self, chunk: Chunk) -> bool:
        return len(chunk.part_keys) > 1 and self.rules.embeds(chunk)

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

    @property
    @override
    def expects_writers(self) -> bool:
        return self.rules.has_conditions and self.rules.level is not Level.EXCLUSIVE

    @override
    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        return server.probe(self.rules.new_generation, has_conditions=has_conditions, is_thorough=True)

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
    """Write all parts of a chunk with a staged copy, over whatever is there."""
    if isinstance(seen, Absent) and (yield from reading.exists(chunk)):
        return _Ended(End.SUPERSEDED, None)
    writer = _staged_writer(chunk, data, rules, seen)
    return _Ended((yield from writer.write_staged(seen)), writer.lost)


def _staged_writer(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Writer:
    # Every attempt has its own generation, so that parts of a failed create are not taken for parts of this write.
    tag = _tag(chunk, data, rules, "s" if seen is None else "m")
    if rules.embeds(chunk):
        return EmbeddedWriter(chunk, rules, staging.embed(chunk, data, tag), dict(enumerate(data)))
    return Writer(chunk, rules, tag, dict(enumerate(data)))


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
