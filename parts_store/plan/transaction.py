"""The write of all parts of a chunk as steps, in an order in which a crash never shows as a whole chunk.

Decides the order. Where the process ends after each step:

| create, after                | what is there            | what a reader says               |
|------------------------------|--------------------------|----------------------------------|
| some parts but not the anchor| orphans                  | no chunk                         |
| the anchor                   | the whole chunk          | the chunk                        |

| overwrite, after             | what is there            | what a reader says               |
|------------------------------|--------------------------|----------------------------------|
| (no tags: the old parts)     | old anchor alone         | `IncompleteChunkError`           |
| the anchor                   | new anchor, old or no parts | `IncompleteChunkError`        |
| all parts                    | the whole chunk          | the chunk                        |

| delete, after                | what is there            | what a reader says               |
|------------------------------|--------------------------|----------------------------------|
| the anchor                   | orphans                  | no chunk                         |
| all parts                    | nothing                  | no chunk                         |
"""

from collections.abc import Callable, Sequence

from parts_store.plan.keys import Chunk
from parts_store.plan.reading import head
from parts_store.plan.steps import AlreadyExists, Delete, Found, Head, Lost, Put, Steps
from parts_store.plan.tags import Mode, Tag

# How often in a row an answer may be lost before the error is the caller's.
MAX_LOST = 4


def write(chunk: Chunk, data: Sequence[memoryview], *, generation: Callable[[], str], has_tags: bool) -> Steps[None]:
    """All parts of a chunk, over whatever is there."""
    # Without tags a create that finds some parts missing would fill them in, and nobody could tell.
    is_new = has_tags or (yield from head(chunk)) is None
    if is_new and (yield from create(chunk, data, generation=generation(), has_tags=has_tags)):
        return
    anchor, others = _puts(chunk, data, generation(), "s", has_tags=has_tags, create=False)
    if others and not has_tags:
        # Without tags nobody could tell the old parts from the new: better none than a mixture.
        yield (Delete(chunk.other_keys, "the old parts"),)
    # The anchor first: until it is there, the chunk is the old one.
    yield (anchor,)
    if others:
        yield others


def write_if_absent(
    chunk: Chunk, data: Sequence[memoryview], *, generation: Callable[[], str], has_tags: bool
) -> Steps[None]:
    """All parts of a chunk, unless there is one."""
    if not has_tags and (yield from head(chunk)) is not None:
        return
    if (yield from create(chunk, data, generation=generation(), has_tags=has_tags)):
        return
    if (yield from head(chunk)) is not None:
        return
    # Orphans of a chunk that was not finished, or is gone, are in the way.
    if not has_tags:
        yield (Delete(chunk.other_keys, "orphans"),)
        yield from create(chunk, data, generation=generation(), has_tags=has_tags)
        return
    tagged = generation()
    # The anchor decides who is first; only who was may touch the parts.
    anchor, _ = _puts(chunk, data, tagged, "s", has_tags=True, create=True)
    if (yield from _create_all((anchor,))):
        _, others = _puts(chunk, data, tagged, "s", has_tags=True, create=False)
        yield others


def create(chunk: Chunk, data: Sequence[memoryview], *, generation: str, has_tags: bool) -> Steps[bool]:
    """All parts of a chunk, if none of them is there; returns whether they were written."""
    anchor, others = _puts(chunk, data, generation, "c", has_tags=has_tags, create=True)
    for batch in (others, (anchor,)):
        if batch and not (yield from _create_all(batch)):
            return False
    return True


def _create_all(puts: tuple[Put, ...]) -> Steps[bool]:
    """Whether all of these objects are ours: an answer that was lost is asked for."""
    outcomes = yield puts
    for _ in range(MAX_LOST):
        lost = [put for put, outcome in zip(puts, outcomes, strict=True) if isinstance(outcome, Lost)]
        if any(isinstance(outcome, AlreadyExists) for outcome in outcomes):
            return False
        if not lost:
            return True
        found = yield tuple(Head(put.key, "whether it was written") for put in lost)
        again = []
        for put, now in zip(lost, found, strict=True):
            if not isinstance(now, Found):
                again.append(put)
            elif put.tag is None or now.generation != put.tag.generation:
                return False
        if not again:
            return True
        puts = tuple(again)
        outcomes = yield puts
    raise next(outcome.error for outcome in outcomes if isinstance(outcome, Lost))


def delete(chunk: Chunk) -> Steps[None]:
    """All parts of a chunk, gone: the anchor first, for then there is no chunk."""
    yield (Delete((chunk.anchor_key,), "the chunk"),)
    if chunk.other_keys:
        yield (Delete(chunk.other_keys, "the rest of the chunk"),)


def _puts(
    chunk: Chunk, data: Sequence[memoryview], generation: str, mode: Mode, *, has_tags: bool, create: bool
) -> tuple[Put, tuple[Put, ...]]:
    """The write of the anchor, and those of the other parts."""
    tag = Tag(generation, mode, tuple(each.nbytes for each in data)) if has_tags else None
    puts = [Put(key, each, tag, create, "part of a chunk") for key, each in zip(chunk.part_keys, data, strict=True)]
    return puts.pop(chunk.parts.anchor), tuple(puts)
