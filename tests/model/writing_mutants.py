"""Mistakes in how a chunk with tags is written, merged and deleted."""

from tests.model.mutant import mutant

WRITERS = [
    mutant(
        "overwrite without staging",
        "Writer._look",
        "outcomes = (yield (*copy, *heads)) if copy or heads else ()",
        "outcomes = (steps.Done(), *(yield heads))",
        "overwrite first; over third",
    ),
    mutant(
        "copy removed before the parts are written",
        "Writer._write_in_turn",
        "yield from self.write_others(conditions)",
        "yield from self.remove_copies((self.generation,))\nyield from self.write_others(conditions)",
        "overwrite first; over third",
    ),
    mutant(
        "unconditional PUTs of parts",
        "Writer.write_others",
        "tuple(self.put(part, conditions[part]) for part in parts)",
        "tuple(self.put(part, None) for part in parts)",
        "overwrite first || overwrite second; over third",
    ),
    mutant(
        "unconditional PUT of the anchor",
        "Writer._put_anchor",
        "(outcome,) = yield (self.put(self.chunk.parts.anchor, condition),)",
        "(outcome,) = yield (self.put(self.chunk.parts.anchor, None),)",
        "overwrite first || overwrite second; over third, late PUT",
    ),
    mutant(
        "anchor first on create",
        "Writer.create",
        "outcomes = yield tuple(puts)",
        "yield (self.put(self.chunk.parts.anchor, condition),)\noutcomes = yield tuple(puts)",
        "write first",
    ),
    mutant(
        "create over a part of another writer",
        "Writer._is_created",
        "if isinstance(outcome, steps.Refused):\n    return False",
        "if isinstance(outcome, steps.Refused):\n    return True",
        "write first || write second",
    ),
    mutant(
        "create over a part that was not looked at",
        "Writer._is_created",
        "return self.is_own(now)",
        "return True",
        "write first || write second; one fault",
    ),
    mutant(
        "refusal believed",
        "Writer.commit",
        "if condition is None:\n    continue",
        "if condition is None:\n    continue\nif isinstance(outcome, steps.Refused):\n    return End.SUPERSEDED",
        "overwrite first; over third, one fault",
    ),
    mutant(
        "own commit not recognised",
        "Writer.commit",
        "if self.is_own(now):\n    return End.COMMITTED",
        "",
        "overwrite first; over third, one fault",
    ),
    mutant(
        "part written without licence",
        "Writer._is_written",
        "if not self.is_own(anchor):\n    return False",
        "",
        "overwrite first || overwrite second; over third",
    ),
    mutant(
        "licence before the look at the part",
        "Writer._is_written",
        (
            "now = yield from steps.head(self.chunk.part_keys[part], WHOSE)\n"
            "if self.is_own(now):\n"
            "    return True\n"
            "anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)"
        ),
        (
            "anchor = yield from steps.head(self.chunk.anchor_key, WHOSE)\n"
            "now = yield from steps.head(self.chunk.part_keys[part], WHOSE)\n"
            "if self.is_own(now):\n"
            "    return True"
        ),
        "overwrite first || overwrite second; over third, one fault",
    ),
    mutant(
        "superseded by an update is finished",
        "Writer._lost_to",
        "not winner.tag.is_conditional",
        "True",
        "change x || overwrite second; over third",
    ),
    mutant(
        "superseded after a lost PUT tries again",
        "Writer._lost_to",
        "return End.UNKNOWN if self.lost is not None else End.CROWDED_OUT",
        "return End.CROWDED_OUT",
        "change x, read || overwrite second; over third, one fault",
    ),
    mutant(
        "update does not say that it is one",
        "_overwriter",
        '_tag(chunk, data, rules, "s" if seen is None else "m")',
        '_tag(chunk, data, rules, "s")',
        "change x || overwrite second; over third",
    ),
    mutant(
        "write if absent does not say that it is one",
        "_overwriter",
        '_tag(chunk, data, rules, "s" if seen is None else "m")',
        '_tag(chunk, data, rules, "s")',
        "write if absent first || write second; orphans third",
    ),
    mutant(
        "update commits blindly",
        "require_written",
        "end is End.SUPERSEDED and seen is not None",
        "False",
        "change x || change y; over third",
    ),
    mutant(
        "update over what it did not read",
        "Writer._look",
        "if seen is not None:\n    known = seen.conditions(self.chunk)",
        "seen = None",
        "change x || change y; over third",
    ),
    mutant(
        "update with a lost PUT says that nothing was written",
        "require_written",
        "end is End.UNKNOWN or (end is End.SUPERSEDED and seen is not None and error is not None)",
        "end is End.UNKNOWN",
        "read, overwrite second || change x; over third, one fault",
    ),
    mutant(
        "delete removes the other parts where others write",
        "TaggedProtocol.delete",
        "self.rules.level is not Level.WRITERS and chunk.other_keys",
        "chunk.other_keys",
        "write first || delete; over third",
    ),
    mutant(
        "delete removes the other parts first",
        "TaggedProtocol.delete",
        'yield from steps.remove((chunk.anchor_key,), "the chunk")',
        (
            'yield from steps.remove(chunk.other_keys, "the chunk")\n'
            'yield from steps.remove((chunk.anchor_key,), "the chunk")'
        ),
        "delete; over third, exclusive",
    ),
]

FULL_LEVEL = [
    mutant(
        "full: bare create",
        "write_chunk",
        "may_create and rules.level is not Level.FULL and not isinstance(seen, Version)",
        "may_create and not isinstance(seen, Version)",
        "write first || delete; full",
    ),
    mutant(
        "full: forgets a lost PUT",
        "Writer._leave_unregistered",
        "self.lost is not None and self.rules.level is not Level.WRITERS",
        "False",
        "overwrite first || delete; over third, full, late PUT, repeated write",
    ),
    mutant(
        "full: delete without a second look",
        "TaggedProtocol.delete",
        "if self.rules.level is not Level.FULL:\n    return",
        "return",
        "write first || delete; over third, full",
    ),
]

# The anchor of an overwrite contains the other parts.
EMBEDDING = [
    mutant(
        "again: all parts at once over an anchor that needs the others",
        "Writer._write_embedded",
        "self.rules.is_registered and looked.tag is not None and looked.tag.embedded is not None",
        "True",
        "overwrite first || read; over third, embeds, equal ETags, leaves nothing",
    ),
    mutant(
        "again: parts of a write that was not committed stay",
        "Writer._write_at_once",
        "end is End.COMMITTED or not all(isinstance(each, steps.Refused) for each in others)",
        "end is End.COMMITTED and not all(isinstance(each, steps.Refused) for each in others)",
        "overwrite first || overwrite second; over embedded third, embeds, equal ETags, leaves nothing",
    ),
    mutant(
        "embedded: readers do not look into the anchor",
        "read_copy",
        "tag.embedded is not None",
        "False",
        "overwrite first || read; over third, embeds",
    ),
    mutant(
        "embedded: parts in the wrong order",
        "_others",
        "return [part for index, part in enumerate(data) if index != chunk.parts.anchor]",
        "return [part for index, part in enumerate(data) if index != chunk.parts.anchor][::-1]",
        "overwrite first; three parts, over third, embeds",
    ),
    mutant(
        "embedded: the other parts before the anchor",
        "Writer._write_in_turn",
        "end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)",
        (
            "yield from self.write_others(conditions)\n"
            "end = yield from self.commit(conditions[self.chunk.parts.anchor], seen)"
        ),
        "overwrite first || overwrite second; over third, embeds",
    ),
    mutant(
        "embedded, content: no look at the anchor after the last PUT",
        "Writer._write_embedded",
        "end is End.COMMITTED and self.rules.is_registered",
        "False",
        "overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing",
    ),
    mutant(
        "embedded, content: sees another anchor, and does not finish its write",
        "Writer._write_embedded",
        "if not self.is_own(anchor):\n    yield from self.finish_committed()",
        "if not self.is_own(anchor):\n    pass",
        "overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing",
    ),
    mutant(
        "embedded: repair does not finish a write",
        "TaggedProtocol.finish_write",
        "return (yield from helper.finish_dead(parts, dead))",
        "return True",
        "overwrite first; over third, embeds",
    ),
    mutant(
        "embedded: repair takes an unfinished write for damage",
        "_diagnose_tagged",
        "(yield from staging.read_copy(chunk, tag)) if tag is not None and tag.is_staged else None",
        "None",
        "overwrite first; over third, embeds",
    ),
    mutant(
        "embedded: a part without a tag is taken for one of another program",
        "Writer._write_embedded",
        "looked.has_untagged",
        "False",
        "overwrite first; over untagged third, embeds",
    ),
]

# Partial writes of a shard are merged with those of other clients.
MERGES = [
    mutant(
        "merge against the wrong base",
        "Change.follow",
        "merge_shards(self.index, self.base, self.mine, theirs)",
        "merge_shards(self.index, theirs, self.mine, theirs)",
        "change slot 0x || change slot 1y; one part, over third",
    ),
    mutant(
        "second merge against the first base",
        "Change.follow",
        "self.base, self.mine = theirs, merged.shard",
        "self.mine = merged.shard",
        "change slot 0x || change slot 1y, change slot 1!; one part, over hole-at-end",
    ),
    mutant(
        "our inner chunks with the other client's index",
        "merge_shards",
        "return Merged(_assemble(index, merged), differs=True)",
        (
            "data = bytes(_assemble(index, merged) or b'')[: -index.nbytes]\n"
            "return Merged(memoryview(data + bytes(theirs or mine)[-index.nbytes :]), differs=True)"
        ),
        "change slot 0x || change slot 1y; one part, over third",
    ),
    mutant(
        "another attempt with what was read first",
        "ChunkProtocol.change",
        "if not change.follow(read):\n    return",
        "",
        "change slot 0x || change slot 1y; one part, over third",
    ),
    mutant(
        "another attempt on the first condition's object",
        "ChunkProtocol.change",
        "seen = Absent() if read is None else read.version",
        (
            "read = yield from self.read(change.chunk, [None], settings)\n"
            "seen = Absent() if read is None else read.version"
        ),
        "change slot 0x || change slot 1y, change slot 1z; one part, over third",
    ),
    mutant(
        "an inner chunk that both changed is ours",
        "merge_shards",
        "others[slot] != was[slot]",
        "others[slot] != was[slot] and was[slot] is None",
        "change slot 0x || change slot 0y; one part, over third",
    ),
    mutant(
        "unconditional delete of a shard without inner chunks",
        "ChunkProtocol._write_change",
        "parts = change.parts or change.empty_parts",
        "parts = change.parts",
        "change slot 1! || change slot 0x; one part, over hole-at-start",
    ),
    mutant(
        "no merge under the lock",
        "JournaledProtocol.change",
        "not seen.is_still(anchor)",
        "anchor is None",
        "change slot 0x || change slot 1y; over first, local",
    ),
]
