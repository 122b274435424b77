"""Mistakes in how a chunk with tags is read."""

from tests.model.mutant import mutants

READERS = mutants("""
reader trusts parts
  overwrite first || read; over third
  @ Attempt.is_one_write
  - one_generation = len({each.generation for pieces in self.found.values() for each in pieces}) <= 1
  + one_generation = True
reader ignores staged copies
  overwrite first || read; over third
  @ tagged._read_staged
  - tag is None or not tag.is_staged
  + True
reader takes a missing part for a short one
  delete, write first || read; over third, exclusive
  @ Attempt.is_one_write
  - not self.missing
  + True
damage is believed at first sight
  overwrite first, overwrite second || read; over third
  @ read_tagged
  - anchor and anchor[0].generation not in unstaged
  + anchor and repeat == 0
torn anchor is taken for a write
  overwrite first, overwrite second || sharded read; over third, two ranges
  @ read_tagged
  - _is_torn(anchor)
  + False
data is not held to the index
  overwrite first || sharded read; over third
  @ read_data
  - protocol.read_version(chunk, wanted, settings, versioned.version)
  + protocol.read(chunk, wanted, settings, with_anchor=True)
known index is not held to the data
  overwrite first || sharded read, sharded read; over third
  @ Version.fits
  - return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])
  + return True
hole without a look at the anchor
  write first || sharded read; orphans hole-at-start
  @ _read_new_index
  - versioned is None or versioned.version.condition is not None or not versioned.may_have_holes
  + True
known hole without a look at the anchor
  overwrite first || read slot 0, read, read slot 0; over hole-at-start
  @ read_index
  - not known.may_have_holes
  + True
known hole of a chunk that is gone
  overwrite first || read slot 0, read, read slot 0; over hole-at-start
  @ read_index
  - _is_of(known.version, anchor)
  + True
remap with holes
  overwrite first || sharded read; over hole-at-start
  @ ShardIndex.slots_of
  - table is None or is_hole(table).any()
  + table is None
remap without a second validation
  overwrite first, overwrite second || sharded read; over third
  @ read_data
  - protocol.read_version(chunk, present, settings, now.version)
  + protocol.read(chunk, present, settings, with_anchor=True)
""")
