"""The write of a chunk in a session, whose commit is the transaction.

Within the session a chunk of one part is replaced at once. One whose parts are chunks of several nodes is not, and a
session may be committed after a write that failed: so the parts but the anchor are removed first. What a write leaves
behind that ends after each step:

| overwrite, of several nodes   | what is there                     | what a reader says            |
|-------------------------------|-----------------------------------|-------------------------------|
| the other parts removed       | the old anchor                    | the chunk is incomplete       |
| the anchor                    | the new anchor                    | the chunk is incomplete       |
| the other parts               | the whole chunk                   | the new chunk                 |

A new chunk gets its anchor last, as elsewhere. What was there before is in the session's snapshot.

Every write and every delete touches every node of the chunk. Two sessions that change one chunk therefore conflict in
all of its nodes, or in none, and whoever solves that decides the same for each: no commit holds parts of two writers.
So that this is true also of a new chunk whose write failed, and that was committed nevertheless, its anchor is removed
first, where there is none: otherwise the other session's anchor would meet its parts.
"""

from collections.abc import Sequence

from parts_store.engine.steps import Put, Refer, Request, Steps, head, remove
from parts_store.format.keys import Chunk
from parts_store.format.references import Reference
from parts_store.format.tags import Tag
from parts_store.transactions.locking import lock_folder
from parts_store.transactions.rules import Rules
from parts_store.transactions.versions import Seen, require_still

_EXISTS = "whether the chunk exists"

type PartData = memoryview | Reference
"""The bytes of a part, or where they are."""


def write(chunk: Chunk, data: Sequence[PartData], rules: Rules, seen: Seen | None = None) -> Steps[None]:
    """All parts of a chunk, over whatever is there; if it still is what was `seen`, or else `ConcurrentWriteError`."""
    # Also what is written at once: not between the look and the write of somebody who changes the chunk.
    yield from lock_folder(chunk.side_folder)
    if len(data) == 1 and seen is None:
        yield _requests(chunk, data, rules)
        return
    anchor = yield from head(chunk.anchor_key, _EXISTS)
    require_still(seen, anchor, chunk.chunk_key)
    yield from _write(chunk, data, rules, is_new=anchor is None)


def write_if_absent(chunk: Chunk, data: Sequence[PartData], rules: Rules) -> Steps[None]:
    """All parts of a chunk, unless there is one."""
    yield from lock_folder(chunk.side_folder)
    if (yield from head(chunk.anchor_key, _EXISTS)) is None:
        yield from _write(chunk, data, rules, is_new=True)


def delete(chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
    """The chunk, gone; if it still is what was `seen`, or else `ConcurrentWriteError`."""
    yield from lock_folder(chunk.side_folder)
    if seen is not None:
        require_still(seen, (yield from head(chunk.anchor_key, _EXISTS)), chunk.chunk_key)
    yield from remove((chunk.anchor_key, *chunk.other_keys), "the chunk")


def _write(chunk: Chunk, data: Sequence[PartData], rules: Rules, *, is_new: bool) -> Steps[None]:
    requests = list(_requests(chunk, data, rules))
    anchor = requests.pop(chunk.parts.anchor)
    if not requests:
        yield (anchor,)
    elif is_new:
        yield from remove((chunk.anchor_key,), "that there is no anchor")
        yield tuple(requests)
        yield (anchor,)
    else:
        yield from remove(chunk.other_keys, "the rest of the old chunk")
        yield (anchor,)
        yield tuple(requests)


def _requests(chunk: Chunk, data: Sequence[PartData], rules: Rules) -> tuple[Request, ...]:
    tag = Tag(rules.new_generation(), "c", tuple(part.nbytes for part in data))
    return tuple(
        Refer(key, part, tag, "part of a chunk")
        if isinstance(part, Reference)
        else Put(key, part, tag, None, "part of a chunk")
        for key, part in zip(chunk.part_keys, data, strict=True)
    )
