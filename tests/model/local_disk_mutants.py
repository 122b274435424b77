"""Mistakes in how a chunk on a local disk is read and written."""

from tests.model.mutant import mutant
from tests.model.vocabulary import (
    DELETE,
    FIRST,
    LOCAL,
    READ,
    READ_BYTE,
    SECOND,
    SIZE,
    THIRD,
    change,
    write,
)

LOCAL_DISKS = [
    mutant(
        "local: overwrite without journal",
        "journaled",
        "if is_new or len(keys) == 1:",
        "if True:",
        [write(FIRST)],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: journal removed before the parts are moved",
        "journaled",
        '    outcomes = yield from _move(chunk, generation)\n    yield from remove((journal_key(chunk),), "journal")\n',
        '    yield from remove((journal_key(chunk),), "journal")\n    outcomes = yield from _move(chunk, generation)\n',
        [write(FIRST)],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: anchor first on create",
        "journaled",
        "    others = (yield tuple(moves)) if moves else ()\n    last = yield (anchor,)\n",
        "    last = yield (anchor,)\n    others = (yield tuple(moves)) if moves else ()\n",
        [write(FIRST)],
        **LOCAL,
    ),
    mutant(
        "local: delete removes the other parts first",
        "journaled",
        '    yield from remove((chunk.anchor_key,), "the chunk")\n    if is_damaged:\n',
        '    yield from remove(chunk.other_keys, "the chunk")\n'
        '    yield from remove((chunk.anchor_key,), "the chunk")\n    if is_damaged:\n',
        [DELETE],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: writers without a lock",
        "journaled",
        "        yield from self.lock_chunk(chunk.side_folder)\n",
        "",
        [write(FIRST)],
        [write(SECOND)],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: writer does not finish what a dead one began",
        "journaled",
        "        yield from recover(chunk)\n        return",
        "        return",
        [write(FIRST)],
        [DELETE],
        initial=THIRD,
        crashes=(0,),
        **LOCAL,
    ),
    mutant(
        "local: update over what it did not read",
        "journaled",
        "        require_still(seen, anchor, chunk.chunk_key)\n        yield from _write(",
        "        yield from _write(",
        [change(b"x")],
        [write(SECOND)],
        **LOCAL,
    ),
    mutant(
        "local: reader does not look at the journal",
        "journaled",
        "journal = yield from _get_journal(task.chunk)\n        if journal is not None:",
        "journal = None\n        if journal is not None:",
        [write(FIRST)],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: reader looks once",
        "journaled",
        "if (yield from _is_unchanged(attempt, task.why)):",
        "if True:",
        [write(FIRST)],
        [READ],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: reader looks at the journal once",
        "journaled",
        "return attempt if after == journal and attempt.is_one_write else None",
        "return attempt if attempt.is_one_write else None",
        [write(FIRST), write(SECOND)],
        [READ],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: one part before the journal",
        "journaled",
        "        journal = yield from _get_journal(task.chunk)\n"
        "        if journal is not None:\n"
        "            if (whole := (yield from _read_staged(task, journal))) is not None:\n"
        "                return whole\n"
        "            continue\n"
        "        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)\n",
        "        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)\n"
        "        journal = yield from _get_journal(task.chunk)\n"
        "        if journal is not None:\n"
        "            if (whole := (yield from _read_staged(task, journal))) is not None:\n"
        "                return whole\n"
        "            continue\n",
        [write(FIRST)],
        [READ_BYTE, READ_BYTE],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: size before the journal",
        "journaled",
        "    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
        "    journal = Journal.parse(found, chunk)\n"
        "    anchor = yield from reading.find_anchor(chunk)\n",
        "    anchor = yield from reading.find_anchor(chunk)\n"
        "    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
        "    journal = Journal.parse(found, chunk)\n",
        [write(FIRST)],
        [SIZE, SIZE],
        initial=THIRD,
        **LOCAL,
    ),
    mutant(
        "local: damage is believed at first sight",
        "journaled",
        "require_undamaged(attempt, before, now, may_raise=repeat >= least)",
        "require_undamaged(attempt, now, now)",
        [DELETE, write(FIRST)],
        [READ],
        initial=THIRD,
        **LOCAL,
    ),
]
