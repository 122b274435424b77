"""The scenarios in which the anchor of an overwrite contains the other parts, so that there is no staged copy.

Chunks that are written together share the mark of their batch, and nothing else: no client reads data from it, and it
is removed after the last request for all chunks. So for each chunk, one chunk is enough: what the batch does for its
other chunks only makes the mark stay longer.
"""

from typing import Any

from tests.model.mutant import mutant
from tests.model.values import HEADED
from tests.model.vocabulary import (
    DELETE,
    EXCLUSIVE,
    FIRST,
    FIRST_HEADED,
    FULL,
    HOLE_AT_END,
    HOLE_AT_START,
    LATE_PUT,
    READ,
    READ_SHARD,
    REPAIR,
    REPEATED_WRITE,
    SAME_INDEX,
    SECOND,
    SECOND_HEADED,
    THIRD,
    THIRD_HEADED,
    batch,
    change,
    make,
    overwrite,
    write,
)

EMBEDS: dict[str, Any] = {"embeds": True}
# Nothing is ever left beside a chunk by writers that write it alone.
CONTENT: dict[str, Any] = EMBEDS | {"has_unique_etags": False}

# Explored completely by every test run.
EMBEDDED = [
    make("embedded: overwrite || read", [overwrite(FIRST)], [READ], initial=THIRD, **EMBEDS),
    make("embedded: overwrite || sharded read", [overwrite(FIRST)], [READ_SHARD], initial=THIRD, **EMBEDS),
    make("embedded: overwrite || overwrite", [overwrite(FIRST)], [overwrite(SECOND)], initial=THIRD, **EMBEDS),
    make("embedded: write || overwrite || read", [write(FIRST)], [overwrite(SECOND)], [READ], orphans=THIRD, **EMBEDS),
    make("embedded: overwrite || change", [overwrite(SECOND)], [change(b"x")], initial=FIRST, **EMBEDS),
    make("embedded: overwrite || delete", [overwrite(SECOND)], [DELETE], initial=FIRST, **EMBEDS),
    make("embedded: lost answers", [overwrite(FIRST)], [READ], initial=THIRD, faults=2, **EMBEDS),
    make(
        "embedded: crash, overwrite || read",
        [overwrite(FIRST), overwrite(SECOND)],
        [READ],
        initial=THIRD,
        crashes=(0,),
        **EMBEDS,
    ),
    make(
        "embedded: interrupted, repair || overwrite",
        [REPAIR],
        [overwrite(SECOND)],
        initial=THIRD,
        interrupted=FIRST,
        **EMBEDS,
    ),
    make(
        "embedded, exclusive: overwrite || read",
        [overwrite(FIRST)],
        [READ],
        initial=THIRD,
        faults=1,
        **(EXCLUSIVE | EMBEDS),
    ),
    make("embedded, full: write || delete", [write(FIRST)], [DELETE], initial=THIRD, **(FULL | EMBEDS)),
    make("embedded, full: create || delete", [write(FIRST)], [DELETE], **(FULL | EMBEDS)),
    make(
        "embedded, content: overwrite || overwrite", [overwrite(SECOND)], [overwrite(FIRST)], initial=FIRST, **CONTENT
    ),
    make("embedded, content: same index", [overwrite(SAME_INDEX)], [overwrite(SECOND)], initial=FIRST, **CONTENT),
    make("embedded, content: overwrite || change", [overwrite(SECOND)], [change(b"x")], initial=FIRST, **CONTENT),
    make(
        "embedded, content: overwrite x2 || overwrite",
        [overwrite(SECOND), overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT,
    ),
    make(
        "embedded, content: crash",
        [overwrite(SECOND), overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        crashes=(0,),
        **CONTENT,
    ),
    make("embedded, content: stall, repair", [overwrite(SECOND)], [REPAIR], initial=FIRST, stalls=1, **CONTENT),
    make(
        "embedded, content, full: overwrite || delete", [overwrite(SECOND)], [DELETE], initial=FIRST, **(FULL | CONTENT)
    ),
    make(
        "embedded, content: late PUT",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **LATE_PUT,
        **REPEATED_WRITE,
        **CONTENT,
    ),
    make(
        "embedded: three parts",
        [overwrite(FIRST_HEADED)],
        [overwrite(SECOND_HEADED)],
        initial=THIRD_HEADED,
        layout=HEADED,
        **EMBEDS,
    ),
]

# The chunk was written over before, so that all parts are written at the same time.
AGAIN: dict[str, Any] = CONTENT | {"is_embedded": True}
EMBEDDED += [
    make("again: overwrite || read", [overwrite(FIRST)], [READ], initial=THIRD, **AGAIN),
    make("again: overwrite || sharded read", [overwrite(FIRST)], [READ_SHARD], initial=THIRD, **AGAIN),
    make("again: overwrite || sharded read x2", [overwrite(FIRST)], [READ_SHARD, READ_SHARD], initial=THIRD, **AGAIN),
    make("again: holes || sharded read", [overwrite(HOLE_AT_END)], [READ_SHARD], initial=HOLE_AT_START, **AGAIN),
    make("again: overwrite || overwrite", [overwrite(SECOND)], [overwrite(FIRST)], initial=FIRST, **AGAIN),
    make("again: same index || overwrite", [overwrite(SAME_INDEX)], [overwrite(SECOND)], initial=FIRST, **AGAIN),
    make("again: overwrite || change", [overwrite(SECOND)], [change(b"x")], initial=FIRST, **AGAIN),
    make("again: holes || change", [overwrite(HOLE_AT_END)], [change(b"-")], initial=HOLE_AT_START, **AGAIN),
    make("again: change || change", [change(b"y")], [change(b"x")], initial=THIRD, **AGAIN),
    make("again: overwrite || delete", [overwrite(SECOND)], [DELETE], initial=FIRST, **AGAIN),
    make("again: lost answers", [overwrite(FIRST)], [READ], initial=THIRD, faults=2, **AGAIN),
    make("again: crash", [overwrite(FIRST), overwrite(SECOND)], [READ], initial=THIRD, crashes=(0,), **AGAIN),
    make("again, full: write || delete", [write(FIRST)], [DELETE], initial=THIRD, **(FULL | AGAIN)),
]

# Chunks that are written together have one mark, and clients leave notes beside it.
MARKED: dict[str, Any] = CONTENT | {"leaves_nothing": False}
MARKED_BATCHES = [
    make("marked: overwrite || read", [batch(SECOND)], [READ], initial=FIRST, **CONTENT),
    make("marked: overwrite || sharded read", [batch(SECOND)], [READ_SHARD], initial=FIRST, **CONTENT),
    make("marked: overwrite || delete", [batch(SECOND)], [DELETE], initial=FIRST, **CONTENT),
    make("marked: create || read", [batch(SECOND)], [READ], **CONTENT),
    make("marked: over orphans || read", [batch(SECOND)], [READ], orphans=FIRST, **CONTENT),
    make("marked: create || create", [batch(FIRST)], [write(SECOND)], **MARKED),
    make("marked: overwrite || overwrite", [batch(SECOND)], [overwrite(FIRST)], initial=FIRST, **MARKED),
    make("marked: same index || overwrite", [batch(SAME_INDEX)], [overwrite(SECOND)], initial=FIRST, **MARKED),
    make("marked: overwrite || same index", [batch(SECOND)], [overwrite(SAME_INDEX)], initial=FIRST, **MARKED),
    make("marked: overwrite || change", [batch(SECOND)], [change(b"x")], initial=FIRST, **MARKED),
    make("marked: lost answers", [batch(SECOND)], initial=FIRST, faults=2, **MARKED),
    make("marked: crashes, overwrite x2", [batch(SECOND), batch(FIRST)], initial=FIRST, crashes=(0,), **MARKED),
    make("marked, full: overwrite || delete", [batch(SECOND)], [DELETE], initial=FIRST, **(FULL | MARKED)),
    make("marked, full: create || delete", [batch(SECOND)], [DELETE], **(FULL | MARKED)),
    make(
        "marked: holes, batch || overwrite",
        [batch(HOLE_AT_END)],
        [overwrite(HOLE_AT_START)],
        initial=HOLE_AT_START,
        **MARKED,
    ),
]

MARKED_AGAIN: dict[str, Any] = MARKED | {"is_embedded": True}
MARKED_BATCHES += [
    make("marked again: overwrite", [batch(SECOND)], [overwrite(FIRST)], initial=FIRST, **MARKED_AGAIN),
    make(
        "marked again: holes", [batch(HOLE_AT_END)], [overwrite(HOLE_AT_START)], initial=HOLE_AT_START, **MARKED_AGAIN
    ),
    make("marked again: crash", [batch(SECOND), batch(FIRST)], initial=FIRST, crashes=(0,), **MARKED_AGAIN),
]

# Explored in minutes, the largest of them not to their end.
LARGE_EMBEDDED = [
    make("again: stall, repair", [overwrite(SECOND)], [REPAIR], initial=FIRST, stalls=1, **AGAIN),
    make(
        "again: crash || overwrite",
        [overwrite(SECOND), overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        crashes=(0,),
        **AGAIN,
    ),
    make(
        "again: late PUT", [overwrite(SECOND)], [overwrite(FIRST)], initial=FIRST, **LATE_PUT, **REPEATED_WRITE, **AGAIN
    ),
    make("marked again: same index", [batch(SAME_INDEX)], [overwrite(SECOND)], initial=FIRST, **MARKED_AGAIN),
    make("marked again: same", [batch(SECOND)], [overwrite(SAME_INDEX)], initial=FIRST, **MARKED_AGAIN),
    make("marked again: change", [batch(SECOND)], [change(b"x")], initial=FIRST, **MARKED_AGAIN),
    make(
        "marked again: overwrite || overwrite",
        [batch(SECOND)],
        [overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED_AGAIN,
    ),
    make(
        "marked again: three overwrites",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED_AGAIN,
    ),
    make(
        "marked again: batch || batch",
        [batch(SECOND)],
        [batch(FIRST)],
        initial=FIRST,
        **MARKED_AGAIN,
    ),
    make("marked: overwrite || batch", [batch(SECOND)], [batch(FIRST)], initial=FIRST, **MARKED),
    make("marked: lost answers || overwrite", [batch(SECOND)], [overwrite(FIRST)], initial=FIRST, faults=1, **MARKED),
    make("marked, stall: overwrite || repair", [batch(SECOND)], [REPAIR], initial=FIRST, stalls=1, **MARKED),
    make(
        "marked, stall: overwrite || overwrite", [batch(SECOND)], [overwrite(FIRST)], initial=FIRST, stalls=1, **MARKED
    ),
    make(
        "marked: holes, batch || batch", [batch(HOLE_AT_END)], [batch(HOLE_AT_START)], initial=HOLE_AT_START, **MARKED
    ),
    make(
        "marked: holes, batch || overwrite || other",
        [batch(HOLE_AT_END)],
        [overwrite(HOLE_AT_START)],
        [overwrite(FIRST)],
        initial=HOLE_AT_START,
        **MARKED,
    ),
    make(
        "marked: batch || overwrite || overwrite",
        [batch(SECOND)],
        [overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    make(
        "marked: batch || batch || overwrite",
        [batch(SECOND)],
        [batch(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    make("marked: batch || batch || batch", [batch(SECOND)], [batch(FIRST)], [batch(SECOND)], initial=FIRST, **MARKED),
    make(
        "marked: batch || overwrite x2 || overwrite",
        [batch(SECOND)],
        [overwrite(FIRST), overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    make("marked: batch || delete || write", [batch(SECOND)], [DELETE], [write(FIRST)], initial=FIRST, **MARKED),
    make(
        "marked: batch || delete, write || overwrite",
        [batch(SECOND)],
        [DELETE, write(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    make("marked: over orphans || delete || write", [batch(SECOND)], [DELETE], [write(FIRST)], orphans=FIRST, **MARKED),
    make(
        "marked: crash || overwrite, read",
        [batch(SECOND), batch(FIRST)],
        [overwrite(FIRST)],
        [READ],
        initial=FIRST,
        crashes=(0,),
        **MARKED,
    ),
]

EMBEDDING_MUTANTS = [
    mutant(
        "again: all parts at once over an anchor that needs the others",
        "embedded_writer",
        "        if self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None:\n",
        "        if True:\n",
        [overwrite(FIRST)],
        [READ],
        initial=THIRD,
        **CONTENT,
    ),
    mutant(
        "again: parts of a write that was not committed stay",
        "embedded_writer",
        "        if end is End.COMMITTED or not all(",
        "        if end is End.COMMITTED and not all(",
        [overwrite(FIRST)],
        [overwrite(SECOND)],
        initial=THIRD,
        **AGAIN,
    ),
    mutant(
        "embedded: readers do not look into the anchor",
        "staging",
        "    if tag.embedded is not None:\n        return _cut",
        "    if False:\n        return _cut",
        [overwrite(FIRST)],
        [READ],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: parts in the wrong order",
        "staging",
        "    return [part for index, part in enumerate(data) if index != chunk.parts.anchor]\n",
        "    return [part for index, part in enumerate(data) if index != chunk.parts.anchor][::-1]\n",
        [overwrite(FIRST_HEADED)],
        initial=THIRD_HEADED,
        layout=HEADED,
        **EMBEDS,
    ),
    mutant(
        "embedded: the other parts before the anchor",
        "embedded_writer",
        "        end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)\n",
        "        yield from self.write_others(conditions)\n"
        "        end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)\n",
        [overwrite(FIRST)],
        [overwrite(SECOND)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded, content: no look at the anchor after the last PUT",
        "embedded_writer",
        "        if self.rules.is_registered and not self.is_own(",
        "        if False and not self.is_own(",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT,
    ),
    mutant(
        "embedded, content: sees another anchor, and does not finish its write",
        "embedded_writer",
        "self.chunk.anchor_key, WHOSE))):\n            yield from self.finish_committed()\n",
        "self.chunk.anchor_key, WHOSE))):\n            pass\n",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT,
    ),
    mutant(
        "embedded: repair does not finish a write",
        "tagged",
        "        return (yield from _finisher(chunk, self.rules).finish_dead(Registry.of(beside).present))\n",
        "        return True\n",
        [overwrite(FIRST)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: repair takes an unfinished write for damage",
        "diagnosis",
        "    return (yield from staging.read_copy(chunk, tag))\n",
        "    yield from ()\n    return None\n",
        [overwrite(FIRST)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: a part without a tag is taken for one of another program",
        "embedded_writer",
        "        if looked.has_untagged:\n",
        "        if False:\n",
        [overwrite(FIRST)],
        initial=THIRD,
        is_tagged=False,
        **EMBEDS,
    ),
    mutant(
        "marked: parts without tags are taken for those of another program",
        "batch",
        "        writer.replaces(conditions)\n",
        "        pass\n",
        [batch(SECOND)],
        initial=FIRST,
        is_tagged=False,
        **MARKED,
    ),
    mutant(
        "marked: no mark",
        "batch_marks",
        "    yield from _put(key, body)\n",
        "    yield from ()\n",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked: the mark is removed too early",
        "batch",
        "    pairs = zip(writers, known, strict=True)\n"
        "    ended = yield from steps.run_together([attempt(writer.write_all(conditions)) for",
        "    pairs = zip(writers, known, strict=True)\n"
        "    yield from remove_copies([mark.key])\n"
        "    ended = yield from steps.run_together([attempt(writer.write_all(conditions)) for",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked: notes are not looked at",
        "batch",
        "or marks.has_note(writer.chunk, mark))",
        "or False)",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked: a client leaves no note",
        "embedded_writer",
        "        if looked.is_mixed:\n",
        "        if False:\n",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked: a client that finds no anchor leaves no note",
        "batch_marks",
        "        if generation in (None, name):\n",
        "        if generation == name:\n",
        [batch(SECOND)],
        [DELETE],
        [write(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked: an anchor that keeps its ETag is not checked",
        "writer",
        "    return isinstance(condition, steps.IfMatch) and condition.etag != outcome.etag\n",
        "    return True\n",
        [batch(HOLE_AT_END)],
        [overwrite(HOLE_AT_START)],
        initial=HOLE_AT_START,
        **MARKED,
    ),
    mutant(
        "marked: a batch does not see another batch",
        "batch_marks",
        "            shared |= {chunk.chunk_key for chunk in chunks if named is None or chunk.relative in named}\n",
        "            pass\n",
        [batch(FIRST)],
        [batch(SECOND)],
        initial=FIRST,
        **MARKED,
    ),
    mutant(
        "marked, stall: a batch that was taken for dead checks nothing",
        "batch",
        "    checks_all = checks_all or mark.is_old\n",
        "",
        [batch(SECOND)],
        [REPAIR, overwrite(FIRST)],
        initial=FIRST,
        stalls=1,
        **MARKED,
    ),
    mutant(
        "marked: a PUT without an answer is not followed by a check",
        "part_writer",
        "        self.is_disturbed |= not is_done\n",
        "",
        [batch(HOLE_AT_END)],
        [overwrite(HOLE_AT_START)],
        initial=HOLE_AT_START,
        faults=1,
        **MARKED,
    ),
]

# These take longer than a test run may.
DEEP_EMBEDDING_MUTANTS = [
    mutant(
        "marked: a client that finishes the write of a batch leaves no note",
        "part_writer",
        "            yield from self.announce(tag.generation)\n",
        "",
        [batch(SECOND)],
        [overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **MARKED,
    ),
]
