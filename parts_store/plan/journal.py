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

The next write or delete of the chunk finishes what a journal says first. A machine that loses its power may lose what
its file system had not yet written, in any order: nothing is synchronised here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from parts_store.errors import ConcurrentWriteError
from parts_store.plan.keys import Chunk
from parts_store.plan.locking import lock_folder
from parts_store.plan.rules import Level, Rules
from parts_store.plan.steps import Done, Found, IfAbsent, Move, Put, Steps, get, head, remove
from parts_store.plan.tags import Tag
from parts_store.plan.versions import Seen, require_still


def journal_key(chunk: Chunk) -> str:
    """The key of the journal: while it is there, the chunk is what is staged."""
    return f"{chunk.side_folder}/journal"


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
    def parse(cls, found: Found | None) -> "Record | None":
        """The record in a journal, None if there is none, or this is no journal."""
        try:
            data = None if found is None else json.loads(bytes(memoryview(found.data)))
            return None if data is None else cls(data["key"], data["gen"], tuple(data["sizes"]))
        except (ValueError, KeyError, TypeError):
            return None

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
    record = Record.parse(found)
    if record is not None:
        yield from _apply(chunk, record.generation)
    elif found is not None:
        # What a machine that lost its power may leave: it says nothing, and is in the way.
        yield from remove((journal_key(chunk),), "journal")
    return found is not None


def _enter(chunk: Chunk, rules: Rules) -> Steps[Found | None]:
    """Be the only writer, of a chunk that is in order; returns its anchor."""
    if rules.level is not Level.EXCLUSIVE:
        yield from lock_folder(chunk.side_folder)
    yield from recover(chunk)
    return (yield from head(chunk.anchor_key, "whether the chunk exists"))


def _write(chunk: Chunk, data: Sequence[memoryview], rules: Rules, *, is_new: bool) -> Steps[None]:
    tag = Tag(rules.new_generation(), "s", tuple(part.nbytes for part in data))
    keys = staged_keys(chunk, tag.generation)
    yield tuple(Put(key, part, tag, None, "part of a chunk") for key, part in zip(keys, data, strict=True))
    if is_new or len(keys) == 1:
        yield from _move(chunk, tag.generation)
        return
    record = Record(chunk.relative, tag.generation, tag.sizes).dump()
    (outcome,) = yield (Put(journal_key(chunk), record, tag, IfAbsent(), "journal"),)
    if not isinstance(outcome, Done):
        problem = "somebody else writes it, although its writers promise to be 'exclusive'"
        raise ConcurrentWriteError(chunk.chunk_key, problem)
    yield from _apply(chunk, tag.generation)


def _apply(chunk: Chunk, generation: str) -> Steps[None]:
    yield from _move(chunk, generation)
    yield from remove((journal_key(chunk),), "journal")


def _move(chunk: Chunk, generation: str) -> Steps[None]:
    """What is staged, to where it belongs: the anchor last, for it makes a new chunk."""
    moves = [
        Move(source, target, "part of a chunk")
        for source, target in zip(staged_keys(chunk, generation), chunk.part_keys, strict=True)
    ]
    anchor = moves.pop(chunk.parts.anchor)
    if moves:
        yield tuple(moves)
    yield (anchor,)
