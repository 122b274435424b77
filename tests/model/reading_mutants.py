"""Mistakes in how a chunk with tags is read."""

from tests.model.mutant import mutant

READERS = [
    mutant(
        "reader trusts parts",
        "Attempt.is_one_write",
        "one_generation = len({each.generation for pieces in self.found.values() for each in pieces}) <= 1",
        "one_generation = True",
        "overwrite first || read; over third",
    ),
    mutant(
        "reader ignores staged copies",
        "tagged._read_staged",
        "tag is None or not tag.is_staged",
        "True",
        "overwrite first || read; over third",
    ),
    mutant(
        "reader takes a missing part for a short one",
        "Attempt.is_one_write",
        "not self.missing",
        "True",
        "delete, write first || read; over third, exclusive",
    ),
    mutant(
        "damage is believed at first sight",
        "read_tagged",
        "anchor and anchor[0].generation not in unstaged",
        "anchor and repeat == 0",
        "overwrite first, overwrite second || read; over third",
    ),
    mutant(
        "torn anchor is taken for a write",
        "read_tagged",
        "_is_torn(anchor)",
        "False",
        "overwrite first, overwrite second || sharded read; over third, two ranges",
    ),
    mutant(
        "data is not held to the index",
        "read_data",
        "protocol.read_version(chunk, wanted, settings, versioned.version)",
        "protocol.read(chunk, wanted, settings, with_anchor=True)",
        "overwrite first || sharded read; over third",
    ),
    mutant(
        "known index is not held to the data",
        "Version.fits",
        "return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])",
        "return True",
        "overwrite first || sharded read, sharded read; over third",
    ),
    mutant(
        "hole without a look at the anchor",
        "_read_new_index",
        "versioned is None or versioned.version.condition is not None or not versioned.may_have_holes",
        "True",
        "write first || sharded read; orphans hole-at-start",
    ),
    mutant(
        "known hole without a look at the anchor",
        "read_index",
        "not known.may_have_holes",
        "True",
        "overwrite first || read slot 0, read, read slot 0; over hole-at-start",
    ),
    mutant(
        "known hole of a chunk that is gone",
        "read_index",
        "_is_of(known.version, anchor)",
        "True",
        "overwrite first || read slot 0, read, read slot 0; over hole-at-start",
    ),
    mutant(
        "remap with holes",
        "ShardIndex.slots_of",
        "table is None or is_hole(table).any()",
        "table is None",
        "overwrite first || sharded read; over hole-at-start",
    ),
    mutant(
        "remap without a second validation",
        "read_data",
        "protocol.read_version(chunk, present, settings, now.version)",
        "protocol.read(chunk, present, settings, with_anchor=True)",
        "overwrite first, overwrite second || sharded read; over third",
    ),
]
