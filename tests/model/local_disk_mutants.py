"""Mistakes in how a chunk on a local disk is read and written."""

from tests.model.mutant import mutants

LOCAL_DISKS = mutants("""
local: overwrite without journal
  write first; over third, local
  @ _write
  - is_new or len(keys) == 1
  + True
local: journal removed before the parts are moved
  write first; over third, local
  @ _apply
  - outcomes = yield from _move(chunk, generation)
  - yield from remove((journal_key(chunk),), "journal")
  + yield from remove((journal_key(chunk),), "journal")
  + outcomes = yield from _move(chunk, generation)
local: anchor first on create
  write first; local
  @ _move
  - others = (yield tuple(moves)) if moves else ()
  - last = yield (anchor,)
  + last = yield (anchor,)
  + others = (yield tuple(moves)) if moves else ()
local: delete removes the other parts first
  delete; over third, local
  @ journaled._remove
  - is_damaged = (yield from _get_journal(chunk)) is not None
  + is_damaged = (yield from _get_journal(chunk)) is not None
  + yield from remove(chunk.other_keys, "the chunk")
local: writers without a lock
  write first || write second; over third, local
  @ JournaledProtocol._enter
  - yield from self.lock_chunk(chunk.side_folder)
local: writer does not finish what a dead one began
  write first || delete; over third, local, crashes a
  @ JournaledProtocol._enter
  - yield from recover(chunk)
local: update over what it did not read
  change x || write second; local
  @ JournaledProtocol.write
  - require_still(seen, anchor, chunk.chunk_key)
local: reader does not look at the journal
  write first; over third, local
  @ read_journaled
  - journal = yield from _get_journal(task.chunk)
  + journal = None
local: reader looks once
  write first || read; over third, local
  @ read_journaled
  - (yield from _is_unchanged(attempt, task.why))
  + True
local: reader looks at the journal once
  write first, write second || read; over third, local
  @ journaled._read_staged
  - return attempt if after == journal and attempt.is_one_write else None
  + return attempt if attempt.is_one_write else None
local: one part before the journal
  write first || read byte, read byte; over third, local
  @ read_journaled
  - journal = yield from _get_journal(task.chunk)
  - if journal is not None:
  -     if (whole := (yield from _read_staged(task, journal))) is not None:
  -         return whole
  -     continue
  - attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
  + attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
  + journal = yield from _get_journal(task.chunk)
  + if journal is not None:
  +     if (whole := (yield from _read_staged(task, journal))) is not None:
  +         return whole
  +     continue
local: size before the journal
  write first || size, size; over third, local
  @ _size
  - found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None
  - journal = Journal.parse(found, chunk)
  - anchor = yield from reading.find_anchor(chunk)
  + anchor = yield from reading.find_anchor(chunk)
  + found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None
  + journal = Journal.parse(found, chunk)
local: damage is believed at first sight
  delete, write first || read; over third, local
  @ read_journaled
  - reading.require_undamaged(attempt, before, now, may_raise=repeat >= least)
  + reading.require_undamaged(attempt, now, now)
""")
