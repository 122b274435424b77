"""Mistakes in how a chunk with tags is written, merged and deleted."""

from tests.model.mutant import mutants

WRITERS = mutants("""
overwrite without staging
  overwrite first; over third
  @ Writer._look
  - outcomes = (yield (*copy, *heads)) if copy or heads else ()
  + outcomes = (steps.Done(), *(yield heads))
copy removed before the parts are written
  overwrite first; over third
  @ Writer._write_in_turn
  - yield from self.write_others(conditions)
  + yield from self.remove_copies((self.generation,))
  + yield from self.write_others(conditions)
unconditional PUTs of parts
  overwrite first || overwrite second; over third
  @ Writer.write_others
  - tuple(self.put(part, conditions[part]) for part in parts)
  + tuple(self.put(part, None) for part in parts)
unconditional PUT of the anchor
  overwrite first || overwrite second; over third, late PUT
  @ Writer._put_anchor
  - (outcome,) = yield (self.put(self.chunk.parts.anchor, condition),)
  + (outcome,) = yield (self.put(self.chunk.parts.anchor, None),)
anchor first on create
  write first
  @ Writer.create
  - outcomes = yield tuple(puts)
  + yield (self.put(self.chunk.parts.anchor, condition),)
  + outcomes = yield tuple(puts)
create over a part of another writer
  write first || write second
  @ Writer._is_created
  - if isinstance(outcome, steps.Refused):
  -     return False
  + if isinstance(outcome, steps.Refused):
  +     return True
create over a part that was not looked at
  write first || write second; one fault
  @ Writer._is_created
  - return self.is_own(now)
  + return True
refusal believed
  overwrite first; over third, one fault
  @ Writer.commit
  - if condition is None:
  -     continue
  + if condition is None:
  +     continue
  + if isinstance(outcome, steps.Refused):
  +     return End.SUPERSEDED
own commit not recognised
  overwrite first; over third, one fault
  @ Writer.commit
  - if self.is_own(now):
  -     return End.COMMITTED
part written without licence
  overwrite first || overwrite second; over third
  @ Writer._is_written
  - if not self.is_own(anchor):
  -     return False
licence before the look at the part
  overwrite first || overwrite second; over third, one fault
  @ Writer._is_written
  - now = yield from steps.head(self.chunk.part_keys[part], WHOSE)
  - if self.is_own(now):
  -     return True
  - anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
  + anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)
  + now = yield from steps.head(self.chunk.part_keys[part], WHOSE)
  + if self.is_own(now):
  +     return True
superseded by an update is finished
  change x || overwrite second; over third
  @ Writer._lost_to
  - not winner.tag.is_conditional
  + True
superseded after a lost PUT tries again
  change x, read || overwrite second; over third, one fault
  @ Writer._lost_to
  - return End.UNKNOWN if self.lost is not None else End.CROWDED_OUT
  + return End.CROWDED_OUT
update does not say that it is one
  change x || overwrite second; over third
  @ _overwriter
  - _tag(chunk, data, rules, "s" if seen is None else "m")
  + _tag(chunk, data, rules, "s")
write if absent does not say that it is one
  write if absent first || write second; orphans third
  @ _overwriter
  - _tag(chunk, data, rules, "s" if seen is None else "m")
  + _tag(chunk, data, rules, "s")
update commits blindly
  change x || change y; over third
  @ require_written
  - end is End.SUPERSEDED and seen is not None
  + False
update over what it did not read
  change x || change y; over third
  @ Writer._look
  - if seen is not None:
  -     known = seen.conditions(self.chunk)
  + seen = None
update with a lost PUT says that nothing was written
  read, overwrite second || change x; over third, one fault
  @ require_written
  - end is End.UNKNOWN or (end is End.SUPERSEDED and seen is not None and error is not None)
  + end is End.UNKNOWN
delete removes the other parts where others write
  write first || delete; over third
  @ TaggedProtocol.delete
  - self.rules.level is not Level.WRITERS and chunk.other_keys
  + chunk.other_keys
delete removes the other parts first
  delete; over third, exclusive
  @ TaggedProtocol.delete
  - yield from steps.remove((chunk.anchor_key,), "the chunk")
  + yield from steps.remove(chunk.other_keys, "the chunk")
  + yield from steps.remove((chunk.anchor_key,), "the chunk")
""")

FULL_LEVEL = mutants("""
full: bare create
  write first || delete; full
  @ write_chunk
  - may_create and rules.level is not Level.FULL and not isinstance(seen, Version)
  + may_create and not isinstance(seen, Version)
full: forgets a lost PUT
  overwrite first || delete; over third, full, late PUT, repeated write
  @ Writer._leave_unregistered
  - self.lost is not None and self.rules.level is not Level.WRITERS
  + False
full: delete without a second look
  write first || delete; over third, full
  @ TaggedProtocol.delete
  - if self.rules.level is not Level.FULL:
  -     return
  + return
""")

# The anchor of an overwrite contains the other parts.
EMBEDDING = mutants("""
again: all parts at once over an anchor that needs the others
  overwrite first || read; over third, embeds, equal ETags, leaves nothing
  @ Writer._write_embedded
  - self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None
  + True
again: parts of a write that was not committed stay
  overwrite first || overwrite second; over embedded third, embeds, equal ETags, leaves nothing
  @ Writer._write_at_once
  - end is End.COMMITTED or not all(isinstance(each, steps.Refused) for each in others)
  + end is End.COMMITTED and not all(isinstance(each, steps.Refused) for each in others)
embedded: readers do not look into the anchor
  overwrite first || read; over third, embeds
  @ read_copy
  - tag.embedded is not None
  + False
embedded: parts in the wrong order
  overwrite first; three parts, over third, embeds
  @ _others
  - return [part for index, part in enumerate(data) if index != chunk.parts.anchor]
  + return [part for index, part in enumerate(data) if index != chunk.parts.anchor][::-1]
embedded: the other parts before the anchor
  overwrite first || overwrite second; over third, embeds
  @ Writer._write_in_turn
  - end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
  + yield from self.write_others(conditions)
  + end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)
embedded, content: no look at the anchor after the last PUT
  overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing
  @ Writer._write_embedded
  - end is End.COMMITTED and self.rules.is_registered
  + False
embedded, content: sees another anchor, and does not finish its write
  overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing
  @ Writer._write_embedded
  - if not self.is_own(anchor):
  -     yield from self.finish_committed()
  + if not self.is_own(anchor):
  +     pass
embedded: repair does not finish a write
  overwrite first; over third, embeds
  @ TaggedProtocol.finish_write
  - return (yield from helper.finish_dead(parts, dead))
  + return True
embedded: repair takes an unfinished write for damage
  overwrite first; over third, embeds
  @ _diagnose_tagged
  - (yield from staging.read_copy(chunk, tag)) if tag is not None and tag.is_staged else None
  + None
embedded: a part without a tag is taken for one of another program
  overwrite first; over untagged third, embeds
  @ Writer._write_embedded
  - looked.has_untagged
  + False
""")

# Partial writes of a shard are merged with those of other clients.
MERGES = mutants("""
merge against the wrong base
  change slot 0x || change slot 1y; one part, over third
  @ Change.follow
  - merge_shards(self.index, self.base, self.mine, theirs)
  + merge_shards(self.index, theirs, self.mine, theirs)
second merge against the first base
  change slot 0x || change slot 1y, change slot 1!; one part, over hole-at-end
  @ Change.follow
  - self.base, self.mine = theirs, merged.shard
  + self.mine = merged.shard
our inner chunks with the other client's index
  change slot 0x || change slot 1y; one part, over third
  @ merge_shards
  - return Merged(_assemble(index, merged), differs=True)
  + data = bytes(_assemble(index, merged) or b'')[: -index.nbytes]
  + return Merged(memoryview(data + bytes(theirs or mine)[-index.nbytes :]), differs=True)
another attempt with what was read first
  change slot 0x || change slot 1y; one part, over third
  @ ChunkProtocol.change
  - if not change.follow(read):
  -     return
another attempt on the first condition's object
  change slot 0x || change slot 1y, change slot 1z; one part, over third
  @ ChunkProtocol.change
  - seen = Absent() if read is None else read.version
  + read = yield from self.read(change.chunk, [None], settings)
  + seen = Absent() if read is None else read.version
an inner chunk that both changed is ours
  change slot 0x || change slot 0y; one part, over third
  @ merge_shards
  - others[slot] != was[slot]
  + others[slot] != was[slot] and was[slot] is None
unconditional delete of a shard without inner chunks
  change slot 1! || change slot 0x; one part, over hole-at-start
  @ ChunkProtocol._write_change
  - parts = change.parts or change.empty_parts
  + parts = change.parts
no merge under the lock
  change slot 0x || change slot 1y; over first, local
  @ JournaledProtocol.change
  - not seen.is_still(anchor)
  + anchor is None
""")
