"""The write of all parts of a chunk on a local disk, which has neither tags nor conditions, but locks and renames.

All of it happens under the chunk's lock, which the kernel takes from a process that ends. What it leaves behind if it
ends after each step:

| create                         | what is there                   | what a reader says            |
|--------------------------------|---------------------------------|-------------------------------|
| some or all parts staged       | leftovers                       | as before: no chunk           |
| some parts moved, no anchor    | orphans, leftovers              | no chunk                      |
| the anchor moved               | the whole chunk                 | the new chunk                 |

| overwrite                      | what is there                   | what a reader says            |
|--------------------------------|---------------------------------|-------------------------------|
| some or all parts staged       | the old chunk, leftovers        | as before                     |
| the journal                    | the old chunk, the new one staged | the new chunk               |
| some or all parts moved        | new parts, the others staged    | the new chunk                 |
| the journal removed            | the whole chunk                 | the new chunk                 |

| delete                         | what is there                   | what a reader says            |
|--------------------------------|---------------------------------|-------------------------------|
| the anchor                     | orphans                         | no chunk                      |
| the other parts                | nothing                         | no chunk                      |

The next write or delete of the chunk finishes what a journal says first. A journal that is not valid is never carried
out: the next write removes it, and until then the chunk cannot be read.

Deleting an array, or a folder of its chunks, holds the lock of the array alone (`locking`, `deletion`). This excludes
every writer, for these reasons. Whoever changes a chunk shares the lock of the array from before its first request to
after its last one. Nobody removes a lock file but its holder, who has it alone then and compares the file with the
path; and deletion, which removes those of chunks while no writer can hold one or wait for one. A process that opened a
lock file which was removed meanwhile finds another file at its path, or none, and begins again. A deletion first takes
a second lock at which new writers stop, so that it does not wait for ever while chunks are written all the time. The
kernel takes all of these locks from a process that ends. Nobody waits for the lock of an array while holding the lock
of a chunk, and a deletion holds the locks of one array at a time: no two wait for each other.

A machine that loses its power may lose what
its file system had not yet written, in any order: nothing is synchronised here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, override

from parts_store.engine.steps import Done, Entry, Found, IfAbsent, Missing, Move, Outcome, Put, Steps, get, head, remove
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag
from parts_store.transactions import journaled_reading, locking, reading
from parts_store.transactions.journal import Journal, journal_key, staged_keys
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Attempt, ReadTask
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.versions import Seen, require_still


@dataclass(frozen=True, slots=True)
class JournaledProtocol(ChunkProtocol):
    """The protocol for a local disk, which has locks and renames, but neither tags nor conditions."""

    has_journal: ClassVar[bool] = True
    locks_arrays: ClassVar[bool] = True

    @override
    def write(self, chunk: Chunk, data: Sequence[memoryview], seen: Seen | None = None) -> Steps[None]:
        anchor = yield from self._enter(chunk)
        require_still(seen, anchor, chunk.chunk_key)
        yield from _write(chunk, data, self.rules, is_new=anchor is None)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[memoryview]) -> Steps[None]:
        if (yield from self._enter(chunk)) is None:
            yield from _write(chunk, data, self.rules, is_new=True)

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        anchor = yield from self._enter(chunk)
        require_still(seen, anchor, chunk.chunk_key)
        yield from remove((chunk.anchor_key,), "the chunk")
        if chunk.other_keys:
            yield from remove(chunk.other_keys, "the rest of the chunk")

    def _enter(self, chunk: Chunk) -> Steps[Found | None]:
        """Take the lock of a chunk, finish an interrupted write, and return the anchor."""
        yield from self.lock_chunk(chunk.side_folder)
        yield from recover(chunk)
        return (yield from head(chunk.anchor_key, reading.EXISTS))

    @override
    def lock_chunk(self, folder: str) -> Steps[None]:
        if self.knows_dead_writers:
            yield from locking.lock_chunk(folder)

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        if len(task.chunk.part_keys) > 1:
            return journaled_reading.read_journaled(task, with_anchor=with_anchor)
        return reading.read_untagged(task, with_anchor=with_anchor, compares_again=True)

    @override
    def size(self, chunk: Chunk) -> Steps[int | None]:
        return journaled_reading.size(chunk)

    @override
    def put_document(self, key: str, data: bytes) -> Steps[None]:
        # With a tag, the file gets a time that no earlier file had, by which a later document is recognised.
        yield (Put(key, data, Tag(self.rules.new_generation(), "c", (len(data),)), None, "document"),)

    @property
    @override
    def knows_dead_writers(self) -> bool:
        # The operating system releases the locks of a writer that ends. At this level, writers take no locks.
        return self.rules.level is not Level.EXCLUSIVE

    @property
    @override
    def can_collect(self) -> bool:
        return True

    @override
    def remove_leftovers(self, keys: Sequence[str]) -> Steps[None]:
        # A lock file that this process holds is removed when the lock is released.
        gone = [key for key in keys if not (self.knows_dead_writers and key.endswith(".lock"))]
        return ChunkProtocol.remove_leftovers(self, gone)

    @override
    def finish_write(self, chunk: Chunk, parts: Mapping[int, Entry], beside: Sequence[Entry]) -> Steps[bool]:
        yield from recover(chunk)
        yield from self.remove_leftovers([entry.key for entry in beside])
        return True

    @override
    def drop(self, chunk: Chunk, why: str) -> Steps[None]:
        yield from remove((chunk.anchor_key,), why)
        yield from remove((journal_key(chunk),), why)
        if chunk.other_keys:
            yield from remove(chunk.other_keys, why)


def recover(chunk: Chunk) -> Steps[bool]:
    """What a dead writer's journal says, brought to its end; returns whether there was one. Needs the lock."""
    found = yield from get(journal_key(chunk), "whether a write was interrupted")
    record = Journal.parse(found, chunk)
    if record is not None:
        yield from _apply(chunk, record.generation)
    elif found is not None:
        # What a machine that lost its power may leave: it says nothing, and is in the way.
        yield from remove((journal_key(chunk),), "journal")
    return found is not None


def _write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, *, is_new: bool) -> Steps[None]:
    tag = Tag(rules.new_generation(), "s", tuple(part.nbytes for part in data))
    keys = staged_keys(chunk, tag.generation)
    yield tuple(Put(key, part, tag, None, "part of a chunk") for key, part in zip(keys, data, strict=True))
    if is_new or len(keys) == 1:
        _require_moved(chunk, (yield from _move(chunk, tag.generation)))
        return
    record = Journal(chunk.relative, tag.generation, tag.sizes).dump()
    (outcome,) = yield (Put(journal_key(chunk), record, tag, IfAbsent(), "journal"),)
    if not isinstance(outcome, Done):
        problem = "somebody else writes it, although its writers promise to be 'exclusive'"
        raise ConcurrentWriteError(chunk.chunk_key, problem)
    _require_moved(chunk, (yield from _apply(chunk, tag.generation)))


def _apply(chunk: Chunk, generation: str) -> Steps[tuple[Outcome, ...]]:
    outcomes = yield from _move(chunk, generation)
    yield from remove((journal_key(chunk),), "journal")
    return outcomes


def _require_moved(chunk: Chunk, outcomes: tuple[Outcome, ...]) -> None:
    """Raise if something was missing of what this write itself had staged."""
    if any(isinstance(outcome, Missing) for outcome in outcomes):
        raise ConcurrentWriteError(chunk.chunk_key, "what this write had staged was removed before it was finished")


def _move(chunk: Chunk, generation: str) -> Steps[tuple[Outcome, ...]]:
    """Move what is staged to where it belongs, the anchor last, for it makes a new chunk; return the outcomes.

    What a dead writer has moved already is missing, and no matter.
    """
    moves = [
        Move(source, target, "part of a chunk")
        for source, target in zip(staged_keys(chunk, generation), chunk.part_keys, strict=True)
    ]
    anchor = moves.pop(chunk.parts.anchor)
    others = (yield tuple(moves)) if moves else ()
    last = yield (anchor,)
    return (*others, *last)
