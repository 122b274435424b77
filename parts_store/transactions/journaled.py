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

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from parts_store.engine.steps import Done, Found, IfAbsent, Missing, Move, Outcome, Put, Steps, get, head, remove
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag
from parts_store.transactions.locking import lock_chunk
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.versions import Seen, require_still

_GENERATION: Final = re.compile("[0-9a-f]{32}")
JOURNAL: Final = "journal"
NOT_VALID: Final = "its journal was not written by parts_store, or is damaged; write the chunk again"


def journal_key(chunk: Chunk) -> str:
    """The key of the journal: while it is there, the chunk is what is staged."""
    return f"{chunk.side_folder}/{JOURNAL}"


def staged_keys(chunk: Chunk, generation: str) -> tuple[str, ...]:
    """The keys under which a write stages its parts, in their order: its own, for a cancelled one may go on."""
    return tuple(f"{chunk.side_folder}/{generation}.{part}" for part in range(len(chunk.part_keys)))


@dataclass(frozen=True, slots=True)
class Record:
    """What a journal says: the chunk, relative to its array, is the write of this generation."""

    key: str
    generation: str
    sizes: tuple[int, ...]

    @classmethod
    def parse(cls, found: Found | None, chunk: Chunk | None = None) -> "Record | None":
        """Return the record in a journal; None if there is none, or this is no journal, or not one of this chunk.

        What is stored may be damaged, or somebody else's: the names of files are made from it.
        """
        try:
            data = None if found is None else json.loads(bytes(memoryview(found.data)))
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, dict):
            return None
        key, generation, sizes = data.get("key"), data.get("gen"), data.get("sizes")
        if not isinstance(key, str) or not isinstance(generation, str) or _GENERATION.fullmatch(generation) is None:
            return None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            return None
        if chunk is not None and (key != chunk.relative or len(sizes) != len(chunk.part_keys)):
            return None
        return cls(key, generation, tuple(sizes))

    def dump(self) -> bytes:
        """The bytes of the journal."""
        return json.dumps({"key": self.key, "gen": self.generation, "sizes": list(self.sizes)}).encode()


def write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, seen: Seen | None) -> Steps[None]:
    """All parts of a chunk, over whatever is there; if it still is what was `seen`, or else `ConcurrentWriteError`."""
    anchor = yield from _enter(chunk, rules)
    require_still(seen, anchor, chunk.chunk_key)
    yield from _write(chunk, data, rules, is_new=anchor is None)


def write_if_absent(chunk: Chunk, data: Sequence[memoryview], rules: Rules) -> Steps[None]:
    """All parts of a chunk, unless there is one."""
    if (yield from _enter(chunk, rules)) is None:
        yield from _write(chunk, data, rules, is_new=True)


def delete(chunk: Chunk, rules: Rules, seen: Seen | None) -> Steps[None]:
    """The chunk, gone; if it still is what was `seen`, or else `ConcurrentWriteError`."""
    anchor = yield from _enter(chunk, rules)
    require_still(seen, anchor, chunk.chunk_key)
    yield from remove((chunk.anchor_key,), "the chunk")
    if chunk.other_keys:
        yield from remove(chunk.other_keys, "the rest of the chunk")


def recover(chunk: Chunk) -> Steps[bool]:
    """What a dead writer's journal says, brought to its end; returns whether there was one. Needs the lock."""
    found = yield from get(journal_key(chunk), "whether a write was interrupted")
    record = Record.parse(found, chunk)
    if record is not None:
        yield from _apply(chunk, record.generation)
    elif found is not None:
        # What a machine that lost its power may leave: it says nothing, and is in the way.
        yield from remove((journal_key(chunk),), "journal")
    return found is not None


def _enter(chunk: Chunk, rules: Rules) -> Steps[Found | None]:
    """Be the only writer, of a chunk that is in order; returns its anchor."""
    if rules.level is not Level.EXCLUSIVE:
        yield from lock_chunk(chunk.side_folder)
    yield from recover(chunk)
    return (yield from head(chunk.anchor_key, "whether the chunk exists"))


def _write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, *, is_new: bool) -> Steps[None]:
    tag = Tag(rules.new_generation(), "s", tuple(part.nbytes for part in data))
    keys = staged_keys(chunk, tag.generation)
    yield tuple(Put(key, part, tag, None, "part of a chunk") for key, part in zip(keys, data, strict=True))
    if is_new or len(keys) == 1:
        _require_moved(chunk, (yield from _move(chunk, tag.generation)))
        return
    record = Record(chunk.relative, tag.generation, tag.sizes).dump()
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
