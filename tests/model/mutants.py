"""The plan with one thing wrong each, and a scenario in which that shows.

A mutant is a text in the source of a module, and what takes its place. If the text is not there any more, the mutant
has to follow the code; that it is caught shows that the model would see such a mistake.
"""

from dataclasses import dataclass, replace
from typing import Any

from tests.model.clients import Operation
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.scenarios import (
    AGAIN,
    BOUNDED,
    CONTENT,
    DEL,
    EXCLUSIVE,
    FIX,
    FULL,
    LATE,
    LOCAL,
    S0,
    A,
    B,
    C,
    H,
    M,
    N,
    O,
    P,
    R,
    S,
    W,
    Z,
    make,
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and where it shows."""

    scenario: Scenario
    # It is looked for in random runs, so many of them from this seed on, if it takes more than can be explored.
    walks: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def unmutated(self) -> Scenario:
        """The same scenario with the code as it is."""
        return replace(self.scenario, patches=())


def mutant(
    name: str, module: str, old: str, new: str, *clients: list[Operation], walks: int = 0, seed: int = 0, **options: Any
) -> Mutant:
    return Mutant(make(name, *clients, patches=(Patch(module, old, new),), **options), walks, seed)


READERS = [
    mutant(
        "reader trusts parts",
        "read_attempt",
        "one_generation = len({each.generation for each in everything}) <= 1",
        "one_generation = True",
        [O(A)],
        [R],
        initial=C,
    ),
    mutant(
        "reader ignores staged copies",
        "tagged_reading",
        "if tag is None or not tag.is_staged:",
        "if True:",
        [O(A)],
        [R],
        initial=C,
    ),
    mutant(
        "reader takes a missing part for a short one",
        "read_attempt",
        "return not self.missing and self.damage is None",
        "return self.damage is None",
        [DEL, W(A)],
        [R],
        initial=C,
        **EXCLUSIVE,
    ),
    mutant(
        "damage is believed at first sight",
        "tagged_reading",
        "if anchor and anchor[0].generation not in unstaged:",
        "if anchor and repeat == 0:",
        [O(A), O(B)],
        [R],
        initial=C,
    ),
    mutant(
        "torn anchor is taken for a write",
        "tagged_reading",
        "if not all(anchor[0].is_same(each) for each in anchor):",
        "if False:",
        [O(A), O(B)],
        [S],
        initial=C,
        merges_ranges=False,
    ),
    mutant(
        "data is not held to the index",
        "shards",
        "protocol.read_version(chunk, wanted, settings, versioned.version)",
        "protocol.read(chunk, wanted, settings, with_anchor=True)",
        [O(A)],
        [S],
        initial=C,
    ),
    mutant(
        "known index is not held to the data",
        "versions",
        "return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])",
        "return True",
        [O(A)],
        [S, S],
        initial=C,
    ),
    mutant(
        "hole without a look at the anchor",
        "shards",
        "if versioned is None or versioned.version.condition is not None or not index.may_have_holes(versioned.index):",
        "if True:",
        [W(A)],
        [S],
        orphans=H,
    ),
    mutant(
        "known hole without a look at the anchor",
        "shards",
        "if not index.may_have_holes(known.index):",
        "if True:",
        [O(A)],
        [S0, R, S0],
        initial=H,
    ),
    mutant(
        "known hole of a chunk that is gone",
        "shards",
        "if _is_of(known.version, anchor):",
        "if True:",
        [O(A)],
        [S0, R, S0],
        initial=H,
    ),
    mutant(
        "remap with holes",
        "shard_index",
        "if table is None or _is_hole(table).any():",
        "if table is None:",
        [O(A)],
        [S],
        initial=H,
    ),
    mutant(
        "remap without a second validation",
        "shards",
        "protocol.read_version(chunk, present, settings, now.version)",
        "protocol.read(chunk, present, settings, with_anchor=True)",
        [O(A), O(B)],
        [S],
        initial=C,
    ),
]

WRITERS = [
    mutant(
        "overwrite without staging",
        "writer",
        "first, *found = yield (copy, *heads)",
        "first, *found = (Done(), *(yield heads))",
        [O(A)],
        initial=C,
    ),
    mutant(
        "copy removed before the parts are written",
        "writer",
        "        listed = yield from self.sync(conditions, listing)\n",
        "        yield from self._remove_copies((self.generation,))\n"
        "        listed = yield from self.sync(conditions, listing)\n",
        [O(A)],
        initial=C,
    ),
    mutant(
        "unconditional PUTs of parts",
        "writer",
        "*(self.put(part, conditions[part]) for part in parts)",
        "*(self.put(part, None) for part in parts)",
        [O(A)],
        [O(B)],
        initial=C,
    ),
    mutant(
        "unconditional PUT of the anchor",
        "writer",
        "(outcome,) = yield (self.put(self.chunk.parts.anchor, condition),)",
        "(outcome,) = yield (self.put(self.chunk.parts.anchor, None),)",
        [O(A)],
        [O(B)],
        initial=C,
        **LATE,
    ),
    mutant(
        "anchor first on create",
        "writer",
        "        outcomes = yield tuple(puts)\n",
        "        yield (self.put(self.chunk.parts.anchor, condition),)\n        outcomes = yield tuple(puts)\n",
        [W(A)],
    ),
    mutant(
        "create over a part of somebody else",
        "writer",
        "            if isinstance(outcome, Refused):\n                return False\n",
        "            if isinstance(outcome, Refused):\n                return True\n",
        [W(A)],
        [W(B)],
    ),
    mutant(
        "create over a part that was not looked at",
        "writer",
        "                return now.generation == self.generation\n",
        "                return True\n",
        [W(A)],
        [W(B)],
        faults=1,
    ),
    mutant(
        "refusal believed",
        "writer",
        "            if condition is None:\n                continue\n",
        "            if condition is None:\n                continue\n"
        "            if isinstance(outcome, Refused):\n                return End.SUPERSEDED\n",
        [O(A)],
        initial=C,
        faults=1,
    ),
    mutant(
        "own commit not recognised",
        "writer",
        "            if now is not None and now.generation == self.generation:\n                return End.COMMITTED\n",
        "",
        [O(A)],
        initial=C,
        faults=1,
    ),
    mutant(
        "part written without licence",
        "writer",
        "            if anchor is None or anchor.generation != self.generation:\n                return False\n",
        "",
        [O(A)],
        [O(B)],
        initial=C,
    ),
    mutant(
        "licence before the look at the part",
        "writer",
        "            now = yield from head(self.chunk.part_keys[part], WHOSE)\n"
        "            if now is not None and now.generation == self.generation:\n"
        "                return True\n"
        "            anchor = yield from head(self.chunk.anchor_key, WHOSE)\n",
        "            anchor = yield from head(self.chunk.anchor_key, WHOSE)\n"
        "            now = yield from head(self.chunk.part_keys[part], WHOSE)\n"
        "            if now is not None and now.generation == self.generation:\n"
        "                return True\n",
        [O(A)],
        [O(B)],
        initial=C,
        faults=1,
    ),
    mutant(
        "superseded by an update is finished",
        "writer",
        "or winner.tag is None or not winner.tag.is_conditional:",
        "or True:",
        [M(b"x")],
        [O(B)],
        initial=C,
    ),
    mutant(
        "superseded after a lost PUT tries again",
        "writer",
        "return End.UNKNOWN if self.lost is not None else End.CROWDED_OUT",
        "return End.CROWDED_OUT",
        [M(b"x"), R],
        [O(B)],
        initial=C,
        faults=1,
    ),
    mutant(
        "update does not say that it is one",
        "tagged",
        '_tag(chunk, data, rules, "s" if seen is None else "m")',
        '_tag(chunk, data, rules, "s")',
        [M(b"x")],
        [O(B)],
        initial=C,
    ),
    mutant(
        "write if absent does not say that it is one",
        "tagged",
        '_tag(chunk, data, rules, "s" if seen is None else "m")',
        '_tag(chunk, data, rules, "s")',
        [N(A)],
        [W(B)],
        orphans=C,
    ),
    mutant(
        "update commits blindly",
        "tagged",
        "        if end is End.SUPERSEDED and seen is not None:\n",
        "        if False:\n",
        [M(b"x")],
        [M(b"y")],
        initial=C,
    ),
    mutant(
        "update over what it did not read",
        "writer",
        "        if seen is not None:\n            known = seen.conditions(self.chunk)\n",
        "        seen = None\n",
        [M(b"x")],
        [M(b"y")],
        initial=C,
    ),
    mutant(
        "update with a lost PUT says that nothing was written",
        "tagged",
        " or (end is End.SUPERSEDED and seen is not None and error is not None)",
        "",
        [R, O(B)],
        [M(b"x")],
        initial=C,
        faults=1,
    ),
    mutant(
        "delete removes the other parts where others write",
        "tagged",
        "if self.rules.level is not Level.WRITERS and chunk.other_keys:",
        "if chunk.other_keys:",
        [W(A)],
        [DEL],
        initial=C,
    ),
    mutant(
        "delete removes the other parts first",
        "tagged",
        '            yield from remove((chunk.anchor_key,), "the chunk")\n',
        '            yield from remove(chunk.other_keys, "the chunk")\n'
        '            yield from remove((chunk.anchor_key,), "the chunk")\n',
        [DEL],
        initial=C,
        **EXCLUSIVE,
    ),
]

CONTENT_ETAGS = [
    mutant(
        "content: nobody looks at the registry",
        "rules",
        "return not self.has_unique_etags and self.level is not Level.EXCLUSIVE",
        "return False",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
    mutant(
        "content: others at work do not matter",
        "writer",
        "        if registry.others_at_work(self._ours):\n",
        "        if False:\n",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
    mutant(
        "content: leaves without a look at the anchor",
        "writer",
        "        if anchor is None or anchor.generation != self.generation:\n            yield from self.settle()\n",
        "        if False:\n            yield from self.settle()\n",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
    mutant(
        "content: settles without helping",
        "writer",
        "        yield from self.help()\n        # One of ours may still come",
        "        # One of ours may still come",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
]

LEFTOVERS = [
    mutant(
        "content: copies of finished writers stay",
        "writer",
        "        finished = registry.finished(self._ours)\n",
        "        finished = ()\n",
        [O(A), O(B), O(A)],
        initial=A,
        registered=B,
        **BOUNDED,
    ),
    mutant(
        "content: a writer does not say that it has finished",
        "writer",
        "        outcome, *_ = yield (done, *",
        "        outcome, *_ = yield (List(self.chunk.side_folder, ''), *",
        [O(A), O(B), O(A), O(B), O(A)],
        initial=A,
        registered=B,
        **BOUNDED,
    ),
    mutant(
        "content: copies of writers at work are removed",
        "staging",
        "return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))",
        "return tuple(sorted(others - set(ours)))",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
    mutant(
        "content: the writer's own copy is removed with those before",
        "writer",
        "names += [each for each in self._ours if each != self.generation]",
        "names += self._ours",
        [O(B)],
        [O(A)],
        initial=A,
        **CONTENT,
    ),
]

STALLS = [
    mutant(
        "stall: never stages again",
        "writer",
        "            if self.registration is not None and self.registration.is_old:\n",
        "            if False:\n",
        [O(A)],
        [FIX],
        initial=C,
        stalls=1,
    ),
    mutant(
        "stall: stages again under the same name",
        "writer",
        "        self.tag = replace(self.tag, generation=self.rules.new_generation())\n"
        '        copy = self.register("write")\n'
        "        yield from self._put_anyway(copy)\n"
        "        if self.lost is None:\n",
        '        copy = self.register("write")\n        yield from self._put_anyway(copy)\n        if False:\n',
        [O(A)],
        [FIX],
        initial=C,
        stalls=1,
    ),
    mutant(
        "stall, content: a create goes on with parts that may be gone",
        "writer",
        "        if watch is not None and watch() > MAX_STALL:\n",
        "        if False:\n",
        [W(A)],
        [FIX],
        stalls=1,
        **CONTENT,
    ),
    mutant(
        "stall, content: parts are written by one who was taken for dead",
        "writer",
        "if self.registration is None or not self.registration.is_old or not self.rules.is_registered:",
        "if True:",
        [O(A)],
        [O(B)],
        initial=A,
        stalls=1,
        **CONTENT,
    ),
]

FULL_LEVEL = [
    mutant(
        "full: bare create",
        "tagged",
        "if rules.level is not Level.FULL and not isinstance(seen, Version):",
        "if not isinstance(seen, Version):",
        [W(A)],
        [DEL],
        **FULL,
    ),
    mutant(
        "full: forgets a lost PUT",
        "writer",
        "if self.lost is not None and self.rules.level is not Level.WRITERS:",
        "if False:",
        [O(A)],
        [DEL],
        initial=C,
        **LATE,
        **AGAIN,
        **FULL,
    ),
    mutant(
        "full: delete without a second look",
        "tagged",
        "            if self.rules.level is not Level.FULL:\n                return\n",
        "            return\n",
        [W(A)],
        [DEL],
        initial=C,
        **FULL,
    ),
]

LOCAL_DISKS = [
    mutant(
        "local: overwrite without journal",
        "journaled",
        "if is_new or len(keys) == 1:",
        "if True:",
        [W(A)],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: journal removed before the parts are moved",
        "journaled",
        '    outcomes = yield from _move(chunk, generation)\n    yield from remove((journal_key(chunk),), "journal")\n',
        '    yield from remove((journal_key(chunk),), "journal")\n    outcomes = yield from _move(chunk, generation)\n',
        [W(A)],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: anchor first on create",
        "journaled",
        "    others = (yield tuple(moves)) if moves else ()\n    last = yield (anchor,)\n",
        "    last = yield (anchor,)\n    others = (yield tuple(moves)) if moves else ()\n",
        [W(A)],
        **LOCAL,
    ),
    mutant(
        "local: delete removes the other parts first",
        "journaled",
        '        yield from remove((chunk.anchor_key,), "the chunk")\n',
        '        yield from remove(chunk.other_keys, "the chunk")\n'
        '        yield from remove((chunk.anchor_key,), "the chunk")\n',
        [DEL],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: writers without a lock",
        "journaled",
        "        yield from self.lock_chunk(chunk.side_folder)\n",
        "",
        [W(A)],
        [W(B)],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: writer does not finish what a dead one began",
        "journaled",
        "        yield from recover(chunk)\n        return",
        "        return",
        [W(A)],
        [DEL],
        initial=C,
        crashes=(0,),
        **LOCAL,
    ),
    mutant(
        "local: update over what it did not read",
        "journaled",
        "        require_still(seen, anchor, chunk.chunk_key)\n        yield from _write(",
        "        yield from _write(",
        [M(b"x")],
        [W(B)],
        **LOCAL,
    ),
    mutant(
        "local: reader does not look at the journal",
        "journaled_reading",
        "journal = yield from _get_journal(task.chunk)\n        if journal is not None:",
        "journal = None\n        if journal is not None:",
        [W(A)],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: reader looks once",
        "journaled_reading",
        "if (yield from _is_unchanged(attempt, task.why)):",
        "if True:",
        [W(A)],
        [R],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: reader looks at the journal once",
        "journaled_reading",
        "return attempt if after == journal and attempt.is_one_write else None",
        "return attempt if attempt.is_one_write else None",
        [W(A), W(B)],
        [R],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: one part before the journal",
        "journaled_reading",
        "        journal = yield from _get_journal(task.chunk)\n"
        "        if journal is not None:\n"
        "            whole = yield from _read_staged(task, journal)\n"
        "            if whole is not None:\n"
        "                return whole\n"
        "            continue\n"
        "        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)\n",
        "        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)\n"
        "        journal = yield from _get_journal(task.chunk)\n"
        "        if journal is not None:\n"
        "            whole = yield from _read_staged(task, journal)\n"
        "            if whole is not None:\n"
        "                return whole\n"
        "            continue\n",
        [W(A)],
        [P, P],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: size before the journal",
        "journaled_reading",
        "    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
        "    journal = Journal.parse(found, chunk)\n"
        "    anchor = yield from find_anchor(chunk)\n",
        "    anchor = yield from find_anchor(chunk)\n"
        "    found = (yield from _get_journal(chunk)) if len(chunk.part_keys) > 1 else None\n"
        "    journal = Journal.parse(found, chunk)\n",
        [W(A)],
        [Z, Z],
        initial=C,
        **LOCAL,
    ),
    mutant(
        "local: damage is believed at first sight",
        "journaled_reading",
        "require_undamaged(attempt, before if repeat >= least else None, now)",
        "require_undamaged(attempt, now, now)",
        [DEL, W(A)],
        [R],
        initial=C,
        **LOCAL,
    ),
]

UPKEEP = [
    mutant(
        "repair removes the copies of living writers",
        "staging",
        "            and name not in dead\n",
        "            and not dead\n",
        [FIX],
        [O(B)],
        initial=C,
        interrupted=A,
    ),
    mutant(
        "repair, local: without a lock",
        "repair",
        "    yield from protocol.lock_chunk(chunk.side_folder)\n    match",
        "    match",
        [FIX],
        [W(A)],
        orphans=C,
        **LOCAL,
    ),
    mutant(
        "repair removes the parts of a chunk that exists",
        "protocol",
        "if (yield from head(chunk.anchor_key, WHOSE)) is not None:",
        "if False:",
        [FIX],
        [W(A)],
        orphans=A,
        **CONTENT,
    ),
]

MUTANTS = [*READERS, *WRITERS, *CONTENT_ETAGS, *LEFTOVERS, *STALLS, *FULL_LEVEL, *LOCAL_DISKS, *UPKEEP]

# Take longer than a test run may.
DEEP_MUTANTS = [
    mutant(
        "content: forgets a lost PUT",
        "writer",
        "        if self.lost is not None:\n            return\n        if registry.others_at_work",
        "        if registry.others_at_work",
        [O(B)],
        [O(A)],
        initial=A,
        walks=200,
        seed=5_000,
        **LATE,
        **AGAIN,
        **CONTENT,
    ),
    mutant(
        "content: forgets a lost PUT of a helper",
        "writer",
        "            self.lost = self.lost or helper.lost\n",
        "",
        [O(B)],
        [O(A), O(A)],
        [O(A)],
        initial=A,
        faults=2,
        has_late_puts=True,
        # One in fifty thousand of them shows it; if the code changes, another one does.
        walks=100,
        seed=47_600,
        **AGAIN,
        **CONTENT,
    ),
]
