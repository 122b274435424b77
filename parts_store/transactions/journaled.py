"""The protocol for a local disk, which has locks and renames, but neither tags nor conditional writes.

A writer holds the lock of the chunk during all of its steps. The operating system releases the lock if the process
ends. If it ends after a step, this is what it leaves behind, besides the lock file of the array:

| create                         | what is stored                  | what a reader finds           |
|--------------------------------|---------------------------------|-------------------------------|
| some or all parts staged       | leftovers                       | no chunk, as before           |
| some parts moved, no anchor    | orphans, leftovers              | no chunk                      |
| the anchor moved               | the whole chunk                 | the new chunk                 |

| overwrite                      | what is stored                  | what a reader finds           |
|--------------------------------|---------------------------------|-------------------------------|
| some or all parts staged       | the old chunk, leftovers        | the old chunk                 |
| the journal                    | the old chunk, the new one staged | the new chunk               |
| some or all parts moved        | new parts, the others staged    | the new chunk                 |
| the journal removed            | the whole chunk                 | the new chunk                 |

| delete                         | what is stored                  | what a reader finds           |
|--------------------------------|---------------------------------|-------------------------------|
| the anchor                     | orphans                         | no chunk                      |
| the other parts                | nothing                         | no chunk                      |

The next write or delete of the chunk first finishes the write that a journal describes. A journal that is not valid is
never carried out, and the chunk cannot be read: its parts may be those of two writes. The next write puts its own
journal in its place, and the next delete removes it after the anchor.

While there is a journal, a reader takes the chunk from what the journal's write has staged. Without one, it looks at
the parts a second time, and their ETags must not have changed.

The deletion of an array, or of a folder of its chunks, holds the lock of the array exclusively (`locking`). This
excludes every writer of the array:

- A writer of a chunk shares the lock of the array from before its first request until after its last one. A process
  that writes many chunks may keep it in between. It looks for a waiting deletion before each chunk, and then lets go.
- A lock file is removed only by a process that holds it exclusively and has compared it with the file at its path, or
  by a deletion, while no writer can hold the lock or wait for it.
- A process that has opened a lock file which was removed meanwhile finds another file at the path, or none, and starts
  again.
- A deletion first takes a second lock that stops new writers. Otherwise it might wait forever while other chunks are
  written.
- There are no deadlocks. A process that holds the lock of a chunk never waits for the lock of an array, and a deletion
  holds the locks of one array at a time.

By default, nothing is synchronised to the disk. A power failure may undo the latest changes of files, each of them or
not, in any order. A chunk that was written shortly before may then be the old one, absent, incomplete, or a mixture of
both writes.

With `durable=True`, the backend returns from each request when what it has changed is on the disk, so that the tables
above hold for a power failure as well. Two things are not on the disk at once: the name of a staged file, which the
journal's request synchronises before it makes the journal, and which a create does not need; and the removal of lock
files and empty folders. A process that was killed may not have synchronised its last change. So recovery first makes
the journal durable, a create makes it durable that there is no anchor, and a delete that there is no journal.
`tests/power_cuts/` replays all of this.

The journal is one file beside the chunk that names the write in progress (`Journal`). One that is cut off is never
valid: it is a JSON object, which ends with its last byte.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, override

from parts_store.engine.steps import (
    Done,
    Entry,
    Found,
    Head,
    IfAbsent,
    Missing,
    Move,
    Outcome,
    Put,
    Steps,
    Wait,
    get,
    head,
    remove,
    run_together,
)
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError
from parts_store.format.keys import JOURNAL, Chunk
from parts_store.format.layout import Encoded
from parts_store.format.tags import Tag
from parts_store.transactions import locking, reading
from parts_store.transactions.protocol import Change, ChunkProtocol
from parts_store.transactions.reading import Attempt, ReadSettings, ReadTask, Seen, Version, attempt_read, require_still
from parts_store.transactions.rules import Level, Rules

# The steps of the clock of the coarsest filesystem, FAT.
_COARSEST_CLOCK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class JournaledProtocol(ChunkProtocol):
    """The protocol for a local disk, which has locks and renames, but neither tags nor conditions."""

    has_journal: ClassVar[bool] = True
    locks_arrays: ClassVar[bool] = True

    @override
    def write(self, chunk: Chunk, data: Sequence[Encoded], seen: Seen | None = None) -> Steps[None]:
        anchor = yield from self._enter(chunk)
        require_still(seen, anchor, chunk.chunk_key)
        yield from _write(chunk, data, self.rules, is_new=anchor is None)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[Encoded]) -> Steps[None]:
        if (yield from self._enter(chunk)) is None:
            yield from _write(chunk, data, self.rules, is_new=True)

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        anchor = yield from self._enter(chunk)
        require_still(seen, anchor, chunk.chunk_key)
        yield from _remove(chunk)

    @override
    def change(self, change: Change, seen: Seen, settings: ReadSettings) -> Steps[None]:
        if change.has_no_effect:
            return
        anchor = yield from self._enter(change.chunk)
        if not seen.is_still(anchor):
            # The lock is held until the end, so the shard that is read now is the one that is replaced.
            reading_again = self.read(change.chunk, [None], settings, with_anchor=True)
            read, _ = yield from run_together([reading_again, change.confirm()])
            if not change.follow(read):
                return
        parts = change.parts
        if parts is None:
            yield from _remove(change.chunk)
        else:
            yield from _write(change.chunk, parts, self.rules, is_new=anchor is None)

    def _enter(self, chunk: Chunk) -> Steps[Found | None]:
        """Take the lock of a chunk, finish an interrupted write, and return the anchor."""
        yield from self.lock_chunk(chunk.side_folder)
        yield from recover(chunk)
        return (yield from head(chunk.anchor_key, reading.EXISTS))

    @override
    def lock_chunk(self, folder: str) -> Steps[None]:
        if self.knows_dead_writers:
            yield from locking.lock_chunk(folder, shares_array=True)

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        if len(task.chunk.part_keys) > 1:
            return read_journaled(task, with_anchor=with_anchor)
        return reading.read_untagged(task, with_anchor=with_anchor, compares_again=True)

    @override
    def can_recognise_object(self, version: Version) -> bool:
        anchor = version.parts[version.anchor]
        return anchor is not None and not _may_repeat(anchor.version, time.time())

    @property
    @override
    def expects_writers(self) -> bool:
        # Writers that take locks.
        return self.knows_dead_writers

    @override
    def size(self, chunk: Chunk) -> Steps[int | None]:
        return _size(chunk)

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
        if (yield from recover(chunk)):
            # One that is not valid is still there, and the caller says that it is to be removed.
            yield from remove((journal_key(chunk),), "journal")
        yield from self.remove_leftovers([entry.key for entry in beside])
        return True

    @override
    def drop(self, chunk: Chunk, why: str) -> Steps[None]:
        yield from remove((chunk.anchor_key,), why)
        yield from remove((journal_key(chunk),), why)
        if chunk.other_keys:
            yield from remove(chunk.other_keys, why)


def _may_repeat(version: str | None, now: float) -> bool:
    """Return whether a file that another program writes from now on may have this version.

    A version is a time of the kernel in nanoseconds. Its clock has steps: until the next one, a new file gets the same
    time as an earlier one. Files whose names only obstore understands have no version.
    """
    return version is None or now - int(version, 16) / 1e9 < _COARSEST_CLOCK_SECONDS


def recover(chunk: Chunk) -> Steps[bool]:
    """Finish the write that the journal of a dead writer describes; return whether there was a journal.

    A journal that is not valid stays: without it, parts of two writes could be read. The caller holds the lock of the
    chunk.
    """
    found = yield from get(journal_key(chunk), "whether a write was interrupted")
    journal = Journal.parse(found, chunk)
    if journal is not None:
        # This is refused, since there is a journal, and a durable store answers when that journal is on the disk. Its
        # writer may have been killed before it was, and no part may be moved earlier.
        tag = Tag(journal.generation, "s", journal.sizes)
        yield (Put(journal_key(chunk), journal.dump(), tag, IfAbsent(), "journal"),)
        yield from _apply(chunk, journal.generation)
    return found is not None


def _remove(chunk: Chunk) -> Steps[None]:
    """Delete a chunk, the anchor first: without an anchor there is no chunk."""
    if not chunk.other_keys:
        yield from remove((chunk.anchor_key,), "the chunk")
        return
    is_damaged = (yield from _get_journal(chunk)) is not None
    if not is_damaged:
        # A durable store answers when there is no journal on the disk either. A writer may have been killed before it
        # had synchronised the removal.
        yield from remove((journal_key(chunk),), "journal")
    yield from remove((chunk.anchor_key,), "the chunk")
    if is_damaged:
        yield from remove((journal_key(chunk),), "journal")
    yield from remove(chunk.other_keys, "the rest of the chunk")


def _write(chunk: Chunk, data: Sequence[Encoded], rules: Rules, *, is_new: bool) -> Steps[None]:
    """Stage all parts, write a journal unless the chunk is new or has one part, and move the parts."""
    tag = Tag(rules.new_generation(), "s", tuple(part.nbytes for part in data))
    keys = staged_keys(chunk, tag.generation)
    yield tuple(Put(key, part, tag, None, "part of a chunk") for key, part in zip(keys, data, strict=True))
    if is_new and chunk.other_keys:
        if (yield from _get_journal(chunk)) is not None:
            # It is not valid, and without an anchor there is no chunk.
            yield from remove((journal_key(chunk),), "journal")
        # A durable store answers when there is no anchor on the disk either. The other parts must not join one that
        # another process has deleted without synchronising that.
        yield from remove((chunk.anchor_key,), "the chunk")
    if is_new or len(keys) == 1:
        _require_moved(chunk, (yield from _move(chunk, tag.generation)))
        return
    record = Journal(chunk.relative, tag.generation, tag.sizes).dump()
    (outcome,) = yield (Put(journal_key(chunk), record, tag, IfAbsent(), "journal"),)
    if not isinstance(outcome, Done):
        yield from _replace_journal(chunk, record, tag)
    _require_moved(chunk, (yield from _apply(chunk, tag.generation)))


def _replace_journal(chunk: Chunk, record: bytes, tag: Tag) -> Steps[None]:
    """Put a journal in the place of one that is not valid; raise if there is a valid one."""
    found = yield from _get_journal(chunk)
    if found is None or Journal.parse(found, chunk) is not None:
        problem = "another client writes it, although concurrency='exclusive' promises a single writer"
        raise ConcurrentWriteError(chunk.chunk_key, problem)
    # The name of one more staged part.
    staged = f"{chunk.side_folder}.{tag.generation}.{len(chunk.part_keys)}"
    yield (Put(staged, record, tag, None, "journal"),)
    yield (Move(staged, journal_key(chunk), "journal"),)


def _apply(chunk: Chunk, generation: str) -> Steps[tuple[Outcome, ...]]:
    """Move the staged parts, then remove the journal."""
    outcomes = yield from _move(chunk, generation)
    yield from remove((journal_key(chunk),), "journal")
    return outcomes


def _require_moved(chunk: Chunk, outcomes: tuple[Outcome, ...]) -> None:
    """Raise `ConcurrentWriteError` if a part that this write had staged was missing."""
    if any(isinstance(outcome, Missing) for outcome in outcomes):
        raise ConcurrentWriteError(chunk.chunk_key, "the staged parts were removed before the write was finished")


def _move(chunk: Chunk, generation: str) -> Steps[tuple[Outcome, ...]]:
    """Move the staged parts to their own keys, the anchor last, because it commits a new chunk; return the outcomes.

    Parts that a dead writer has already moved are missing, which is expected.
    """
    moves = [
        Move(source, target, "part of a chunk")
        for source, target in zip(staged_keys(chunk, generation), chunk.part_keys, strict=True)
    ]
    anchor = moves.pop(chunk.parts.anchor)
    others = (yield tuple(moves)) if moves else ()
    last = yield (anchor,)
    return (*others, *last)


def read_journaled(task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
    """Read a chunk of several parts, repeatedly if it changes; return None if there is no chunk."""
    least = task.settings.least_repeats
    # A writer of small chunks on a local disk is as fast as a reader.
    attempts = 4 * least
    before: Found | None = None
    for repeat in range(attempts):
        if repeat:
            yield (Wait(min(repeat, least)),)
        journal = yield from _get_journal(task.chunk)
        if journal is not None:
            if (whole := (yield from _read_staged(task, journal))) is not None:
                return whole
            continue
        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
        if attempt.is_anchor_missing:
            return None
        if attempt.is_one_write:
            if (yield from _is_unchanged(attempt, task.why)):
                return attempt
            continue
        now = yield from head(task.chunk.anchor_key, reading.IS_WRITTEN)
        if now is None:
            return None
        reading.require_undamaged(attempt, before, now, may_raise=repeat >= least)
        before = now
    yield from _give_up(task.chunk, attempts)
    return None


def _read_staged(task: ReadTask, found: Found) -> Steps[Attempt | None]:
    """Read what a journal's write has staged; return None if the journal is not valid, or changes meanwhile."""
    journal = Journal.parse(found, task.chunk)
    if journal is None:
        return None
    staged = staged_keys(task.chunk, journal.generation)
    outcomes = yield tuple(Head(key, task.why) for key in staged)
    # A staged part that is missing was moved to its own key.
    keys = [
        key if isinstance(outcome, Found) else part_key
        for key, outcome, part_key in zip(staged, outcomes, task.chunk.part_keys, strict=True)
    ]
    attempt = yield from attempt_read(task, with_anchor=True, keys=keys)
    after = Journal.parse((yield from _get_journal(task.chunk)), task.chunk)
    return attempt if after == journal and attempt.is_one_write else None


def _is_unchanged(attempt: Attempt, why: str) -> Steps[bool]:
    """Look at the journal and the parts again, and return whether the parts are still the same objects."""
    if not reading.has_several_reads(attempt):
        # A single part is what it was when there was no journal, or newer.
        return True
    # After the parts were read, and before they are looked at again: a write that was committed by then has begun.
    if (yield from _get_journal(attempt.chunk)) is not None:
        return False
    return (yield from reading.is_unchanged(attempt, why))


def _give_up(chunk: Chunk, attempts: int) -> Steps[None]:
    """Raise the reason why a chunk could not be read; return if it does not exist."""
    found = yield from _get_journal(chunk)
    if found is None or Journal.parse(found, chunk) is not None:
        raise reading.changed_while_read(chunk, attempts)
    if (yield from head(chunk.anchor_key, reading.EXISTS)) is not None:
        # The journal may have described a committed write, which is not known any more.
        raise IncompleteChunkError(chunk.chunk_key, (), (), NOT_VALID)


def _size(chunk: Chunk) -> Steps[int | None]:
    """Return the size of a chunk by its journal or by its parts; None if there is no chunk."""
    # The journal is read first: if there is none, the anchor is what it was then, or newer.
    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None
    journal = Journal.parse(found, chunk)
    anchor = yield from reading.find_anchor(chunk)
    if anchor is None:
        return None
    return sum(journal.sizes) if journal is not None else (yield from reading.size_by_parts(chunk, anchor))


def _get_journal(chunk: Chunk) -> Steps[Found | None]:
    return (yield from get(journal_key(chunk), reading.IS_WRITTEN))


_GENERATION: Final = re.compile("[0-9a-f]{32}")
# The name of a journal in a folder beside the chunk, which is not understood any more.
_EARLIER: Final = "journal"
NOT_VALID: Final = "its journal was not written by parts_store, or is damaged; write the chunk again"


def journal_key(chunk: Chunk) -> str:
    """Return the key of the journal. While it exists, the chunk is what its write has staged."""
    return f"{chunk.side_folder}{JOURNAL}"


def is_journal(key: str) -> bool:
    """Return whether an object of the write protocol is a journal, also one of an earlier version of this library."""
    name = key.rpartition("/")[2]
    return name == _EARLIER or name.endswith(JOURNAL)


def staged_keys(chunk: Chunk, generation: str) -> tuple[str, ...]:
    """Return the keys at which a write stages the parts, in their order.

    Every write has keys of its own, because requests of a cancelled write may still be carried out. They are in the
    folder of all chunks: to make and remove a folder takes longer than to write a small chunk.
    """
    return tuple(f"{chunk.side_folder}.{generation}.{part}" for part in range(len(chunk.part_keys)))


@dataclass(frozen=True, slots=True)
class Journal:
    """The content of a journal: the chunk, relative to its array, is the write of this generation."""

    key: str
    generation: str
    sizes: tuple[int, ...]

    @classmethod
    def parse(cls, found: Found | None, chunk: Chunk | None = None) -> "Journal | None":
        """Return the journal in a file; None if there is no file, or it is not a valid journal of this chunk.

        The file may be damaged or written by other software, and file names are made from its content.
        """
        try:
            data = None if found is None else json.loads(bytes(memoryview(found.data)))
        except (ValueError, RecursionError):
            return None
        journal = cls._from_json(data)
        if journal is None or chunk is None:
            return journal
        is_of_chunk = journal.key == chunk.relative and len(journal.sizes) == len(chunk.part_keys)
        return journal if is_of_chunk else None

    @classmethod
    def _from_json(cls, data: object) -> "Journal | None":
        if not isinstance(data, dict):
            return None
        key, generation, sizes = data.get("key"), data.get("gen"), data.get("sizes")
        if not isinstance(key, str) or not isinstance(generation, str) or _GENERATION.fullmatch(generation) is None:
            return None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            return None
        return cls(key, generation, tuple(sizes))

    def dump(self) -> bytes:
        """Return the bytes of the journal."""
        return json.dumps({"key": self.key, "gen": self.generation, "sizes": list(self.sizes)}).encode()
