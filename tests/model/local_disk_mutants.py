"""Mistakes in how a chunk on a local disk is read and written."""

from tests.model.mutant import mutant

LOCAL_DISKS = [
    mutant(
        "local: overwrite without journal",
        "_write",
        "is_new or len(keys) == 1",
        "True",
        "write first; over third, local",
    ),
    mutant(
        "local: journal removed before the parts are moved",
        "_apply",
        'outcomes = yield from _move(chunk, generation)\nyield from remove((journal_key(chunk),), "journal")',
        'yield from remove((journal_key(chunk),), "journal")\noutcomes = yield from _move(chunk, generation)',
        "write first; over third, local",
    ),
    mutant(
        "local: anchor first on create",
        "_move",
        "others = (yield tuple(moves)) if moves else ()\nlast = yield (anchor,)",
        "last = yield (anchor,)\nothers = (yield tuple(moves)) if moves else ()",
        "write first; local",
    ),
    mutant(
        "local: delete removes the other parts first",
        "journaled._remove",
        "is_damaged = (yield from _get_journal(chunk)) is not None",
        'is_damaged = (yield from _get_journal(chunk)) is not None\nyield from remove(chunk.other_keys, "the chunk")',
        "delete; over third, local",
    ),
    mutant(
        "local: writers without a lock",
        "JournaledProtocol._enter",
        "yield from self.lock_chunk(chunk.side_folder)",
        "",
        "write first || write second; over third, local",
    ),
    mutant(
        "local: writer does not finish what a dead one began",
        "JournaledProtocol._enter",
        "yield from recover(chunk)",
        "",
        "write first || delete; over third, local, crashes a",
    ),
    mutant(
        "local: update over what it did not read",
        "JournaledProtocol.write",
        "require_still(seen, anchor, chunk.chunk_key)",
        "",
        "change x || write second; local",
    ),
    mutant(
        "local: reader does not look at the journal",
        "read_journaled",
        "journal = yield from _get_journal(task.chunk)",
        "journal = None",
        "write first; over third, local",
    ),
    mutant(
        "local: reader looks once",
        "read_journaled",
        "(yield from _is_unchanged(attempt, task.why))",
        "True",
        "write first || read; over third, local",
    ),
    mutant(
        "local: reader looks at the journal once",
        "journaled._read_staged",
        "return attempt if after == journal and attempt.is_one_write else None",
        "return attempt if attempt.is_one_write else None",
        "write first, write second || read; over third, local",
    ),
    mutant(
        "local: one part before the journal",
        "read_journaled",
        (
            "journal = yield from _get_journal(task.chunk)\n"
            "if journal is not None:\n"
            "    if (whole := (yield from _read_staged(task, journal))) is not None:\n"
            "        return whole\n"
            "    continue\n"
            "attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)"
        ),
        (
            "attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)\n"
            "journal = yield from _get_journal(task.chunk)\n"
            "if journal is not None:\n"
            "    if (whole := (yield from _read_staged(task, journal))) is not None:\n"
            "        return whole\n"
            "    continue"
        ),
        "write first || read byte, read byte; over third, local",
    ),
    mutant(
        "local: size before the journal",
        "_size",
        (
            "found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
            "journal = Journal.parse(found, chunk)\n"
            "anchor = yield from reading.find_anchor(chunk)"
        ),
        (
            "anchor = yield from reading.find_anchor(chunk)\n"
            "found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
            "journal = Journal.parse(found, chunk)"
        ),
        "write first || size, size; over third, local",
    ),
    mutant(
        "local: damage is believed at first sight",
        "read_journaled",
        "reading.require_undamaged(attempt, before, now, may_raise=repeat >= least)",
        "reading.require_undamaged(attempt, now, now)",
        "delete, write first || read; over third, local",
    ),
]
