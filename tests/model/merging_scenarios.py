"""Partial writes of a shard that are merged with those of other clients, and mistakes in it."""

from tests.model.clients import Operation
from tests.model.mutant import Mutant, mutant
from tests.model.scenario import Scenario
from tests.model.values import SINGLE
from tests.model.vocabulary import (
    CONTENT_ETAGS,
    DELETE,
    FIRST,
    FULL,
    HOLE_AT_END,
    HOLE_AT_START,
    LATE_PUT,
    LOCAL,
    LOCAL_FEWER_ATTEMPTS,
    READ,
    READ_SHARD,
    REPEATED_WRITE,
    SECOND,
    THIRD,
    make,
    write,
)


def slot(mark: bytes) -> Operation:
    """Return a change of one inner chunk: its number, and a mark, `!` to remove it, or `~` on a local disk."""
    return Operation("change slot", mark=mark)


MERGES: list[Scenario] = [
    make("merge: slot || slot || read", [slot(b"0x")], [slot(b"1y")], [READ], layout=SINGLE, initial=THIRD),
    make("merge: slot || slot, with parts", [slot(b"0x")], [slot(b"1y")], initial=THIRD),
    make("merge: slot || slot x2 of one part", [slot(b"0x")], [slot(b"1y"), slot(b"1z")], layout=SINGLE, initial=THIRD),
    make("merge: the same slot", [slot(b"0x")], [slot(b"0y")], layout=SINGLE, initial=THIRD),
    make("merge: the same slot, with parts", [slot(b"0x")], [slot(b"0y")], initial=THIRD),
    make("merge: three clients", [slot(b"0x")], [slot(b"1y")], [slot(b"1z")], layout=SINGLE, initial=HOLE_AT_END),
    make("merge: two first writes", [slot(b"0x")], [slot(b"1y")]),
    make("merge: two first writes of one part", [slot(b"0x")], [slot(b"1y")], [READ], layout=SINGLE),
    make("merge: slot || sharded read", [slot(b"0x")], [READ_SHARD], initial=HOLE_AT_START),
    make("merge: slot || whole write", [slot(b"0x")], [write(SECOND)], [READ], layout=SINGLE, initial=THIRD),
    make("merge: slot || whole write, with parts", [slot(b"0x")], [write(SECOND)], initial=THIRD),
    make("merge: slot || delete", [slot(b"0x")], [DELETE], [READ], layout=SINGLE, initial=THIRD),
    make("merge: last inner chunk || slot", [slot(b"1!")], [slot(b"0x")], [READ], layout=SINGLE, initial=HOLE_AT_START),
    make("merge: last inner chunk || slot, with parts", [slot(b"1!")], [slot(b"0x")], initial=HOLE_AT_START),
    make("merge: both removed", [slot(b"1!")], [slot(b"0!")], [READ], layout=SINGLE, initial=THIRD),
    make("merge: slot || slot, lost answers", [slot(b"0x")], [slot(b"1y")], layout=SINGLE, initial=THIRD, faults=1),
    make("merge: crashes", [slot(b"0x"), slot(b"0z")], [slot(b"1y")], layout=SINGLE, initial=THIRD, crashes=(0,)),
    make("merge: crashes, with parts", [slot(b"0x")], [slot(b"1y")], initial=THIRD, crashes=(0,)),
    make(
        "merge: slot || slot, equal ETags", [slot(b"0x")], [slot(b"1y")], layout=SINGLE, initial=THIRD, **CONTENT_ETAGS
    ),
    make("merge: full", [slot(b"0x")], [slot(b"1y")], layout=SINGLE, initial=THIRD, **FULL),
    make("merge: local disk", [slot(b"0x")], [slot(b"1y")], initial=THIRD, **LOCAL_FEWER_ATTEMPTS),
    make("merge: local disk, one slot", [slot(b"0x")], [slot(b"0y")], initial=THIRD, **LOCAL_FEWER_ATTEMPTS),
    make("merge: local disk, removed", [slot(b"1~")], [slot(b"0x")], initial=HOLE_AT_START, **LOCAL_FEWER_ATTEMPTS),
]

# Explored in random orders only: they have too many.
LARGE_MERGES: list[Scenario] = [
    make("merge: local disk and a reader", [slot(b"0x")], [slot(b"1y")], [READ], initial=THIRD, **LOCAL),
    make(
        "merge: local disk, crashes",
        [slot(b"0x")],
        [slot(b"1y")],
        initial=THIRD,
        crashes=(0,),
        **LOCAL_FEWER_ATTEMPTS,
    ),
    make("merge: four clients", [slot(b"0x")], [slot(b"1y")], [slot(b"0z")], [READ], initial=THIRD),
    make("merge: late PUTs", [slot(b"0x")], [slot(b"1y"), slot(b"1z")], initial=THIRD, **(LATE_PUT | REPEATED_WRITE)),
    make("merge: equal ETags, with parts", [slot(b"0x")], [slot(b"1y")], [READ], initial=THIRD, **CONTENT_ETAGS),
]

MERGE_MUTANTS: list[Mutant] = [
    mutant(
        "merge against the wrong base",
        "Change.follow",
        "merge_shards(self.index, self.base, self.mine, theirs)",
        "merge_shards(self.index, theirs, self.mine, theirs)",
        [slot(b"0x")],
        [slot(b"1y")],
        layout=SINGLE,
        initial=THIRD,
    ),
    mutant(
        "second merge against the first base",
        "Change.follow",
        "self.base, self.mine = theirs, merged.shard",
        "self.mine = merged.shard",
        [slot(b"0x")],
        [slot(b"1y"), slot(b"1!")],
        layout=SINGLE,
        initial=HOLE_AT_END,
    ),
    mutant(
        "our inner chunks with the other client's index",
        "merge_shards",
        "return Merged(_assemble(index, merged), differs=True)",
        (
            "data = bytes(_assemble(index, merged) or b'')[: -index.nbytes]\n"
            "return Merged(memoryview(data + bytes(theirs or mine)[-index.nbytes :]), differs=True)"
        ),
        [slot(b"0x")],
        [slot(b"1y")],
        layout=SINGLE,
        initial=THIRD,
    ),
    mutant(
        "another attempt with what was read first",
        "ChunkProtocol.change",
        "if not change.follow(read):\n    return",
        "",
        [slot(b"0x")],
        [slot(b"1y")],
        layout=SINGLE,
        initial=THIRD,
    ),
    mutant(
        "another attempt on the first condition's object",
        "ChunkProtocol.change",
        "seen = Absent() if read is None else read.version",
        (
            "read = yield from self.read(change.chunk, [None], settings)\n"
            "seen = Absent() if read is None else read.version"
        ),
        [slot(b"0x")],
        [slot(b"1y"), slot(b"1z")],
        layout=SINGLE,
        initial=THIRD,
    ),
    mutant(
        "an inner chunk that both changed is ours",
        "merge_shards",
        "others[slot] != was[slot]",
        "others[slot] != was[slot] and was[slot] is None",
        [slot(b"0x")],
        [slot(b"0y")],
        layout=SINGLE,
        initial=THIRD,
    ),
    mutant(
        "unconditional delete of a shard without inner chunks",
        "ChunkProtocol._write_change",
        "parts = change.parts or change.empty_parts",
        "parts = change.parts",
        [slot(b"1!")],
        [slot(b"0x")],
        layout=SINGLE,
        initial=HOLE_AT_START,
    ),
    mutant(
        "no merge under the lock",
        "JournaledProtocol.change",
        "not seen.is_still(anchor)",
        "anchor is None",
        [slot(b"0x")],
        [slot(b"1y")],
        initial=FIRST,
        **LOCAL,
    ),
]
