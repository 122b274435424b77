"""The scenarios in which the anchor of an overwrite contains the other parts, so that there is no staged copy."""

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
    change,
    make,
    overwrite,
    write,
)

EMBEDS: dict[str, Any] = {"embeds": True}
# Nothing is ever left beside a chunk.
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
    make(
        "again: three overwrites",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        **AGAIN,
    ),
]

EMBEDDING_MUTANTS = [
    mutant(
        "again: all parts at once over an anchor that needs the others",
        "Writer._write_embedded",
        "self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None",
        "True",
        [overwrite(FIRST)],
        [READ],
        initial=THIRD,
        **CONTENT,
    ),
    mutant(
        "again: parts of a write that was not committed stay",
        "Writer._write_at_once",
        "end is End.COMMITTED or not all(isinstance(each, steps.Refused) for each in others)",
        "end is End.COMMITTED and not all(isinstance(each, steps.Refused) for each in others)",
        [overwrite(FIRST)],
        [overwrite(SECOND)],
        initial=THIRD,
        **AGAIN,
    ),
    mutant(
        "embedded: readers do not look into the anchor",
        "read_copy",
        "tag.embedded is not None",
        "False",
        [overwrite(FIRST)],
        [READ],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: parts in the wrong order",
        "_others",
        "return [part for index, part in enumerate(data) if index != chunk.parts.anchor]",
        "return [part for index, part in enumerate(data) if index != chunk.parts.anchor][::-1]",
        [overwrite(FIRST_HEADED)],
        initial=THIRD_HEADED,
        layout=HEADED,
        **EMBEDS,
    ),
    mutant(
        "embedded: the other parts before the anchor",
        "Writer._write_in_turn",
        "end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)",
        (
            "yield from self.write_others(conditions)\n"
            "end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)"
        ),
        [overwrite(FIRST)],
        [overwrite(SECOND)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded, content: no look at the anchor after the last PUT",
        "Writer._write_embedded",
        "end is End.COMMITTED and self.rules.is_registered",
        "False",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT,
    ),
    mutant(
        "embedded, content: sees another anchor, and does not finish its write",
        "Writer._write_embedded",
        "if not self.is_own(anchor):\n    yield from self.finish_committed()",
        "if not self.is_own(anchor):\n    pass",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT,
    ),
    mutant(
        "embedded: repair does not finish a write",
        "TaggedProtocol.finish_write",
        "return (yield from helper.finish_dead(parts, dead))",
        "return True",
        [overwrite(FIRST)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: repair takes an unfinished write for damage",
        "_diagnose_tagged",
        "(yield from staging.read_copy(chunk, tag)) if tag is not None and tag.is_staged else None",
        "None",
        [overwrite(FIRST)],
        initial=THIRD,
        **EMBEDS,
    ),
    mutant(
        "embedded: a part without a tag is taken for one of another program",
        "Writer._write_embedded",
        "looked.has_untagged",
        "False",
        [overwrite(FIRST)],
        initial=THIRD,
        is_tagged=False,
        **EMBEDS,
    ),
]
