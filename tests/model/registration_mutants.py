"""Mistakes in how writers find each other, stall, and remove what they leave behind; and in how `repair` does."""

from tests.model.directed import CARRIED_OUT, DELAYED, Move
from tests.model.mutant import mutant
from tests.model.vocabulary import (
    BOUNDED_LEFTOVERS,
    CONTENT_ETAGS,
    EXCLUSIVE,
    FIRST,
    LATE_PUT,
    LOCAL,
    REPAIR,
    REPEATED_WRITE,
    SECOND,
    THIRD,
    overwrite,
    write,
)

EQUAL_ETAGS = [
    mutant(
        "content: writers do not look at the registry",
        "rules",
        "return not self.has_unique_etags and self.level is not Level.EXCLUSIVE",
        "return False",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: others at work do not matter",
        "part_writer",
        "        if registry.others_at_work(self.own_generations):\n",
        "        if False:\n",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: leaves without a look at the anchor",
        "part_writer",
        "            if not self.is_own(anchor):\n                yield from self.settle()\n",
        "            if False:\n                yield from self.settle()\n",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: settles without helping",
        "part_writer",
        "        yield from self.finish_committed()\n"
        "        if self._must_stay:\n"
        "            return False\n"
        "        registry = ",
        "        registry = ",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: forgets a lost PUT of a helper",
        "part_writer",
        "        self.lost = self.lost or helper.lost\n",
        "",
        [overwrite(SECOND), overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=THIRD,
        # The first client finishes the write of the second, and its PUT is delayed until the index is that of the first
        # client again.
        script=(
            Move("a", "PUT a/c/0.index"),
            Move("b", "PUT a/c/0.index"),
            Move("a", "PUT a/c/0.index", CARRIED_OUT),
            Move("a", "PUT a/c/0.index", DELAYED),
            Move("a"),
            Move("b"),
            Move("a"),
            Move("", "PUT a/c/0.index"),
        ),
        **LATE_PUT,
        **REPEATED_WRITE,
        **CONTENT_ETAGS,
    ),
]

LEFTOVERS = [
    mutant(
        "content: traces of finished writers do not matter",
        "staging",
        "return bool((self.present.keys() | self.done) - set(ours))",
        "return bool(self.others_at_work(ours))",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: copies of finished writers stay",
        "part_writer",
        "        finished = registry.finished(self.own_generations)\n",
        "        finished = ()\n",
        [overwrite(FIRST), overwrite(SECOND), overwrite(FIRST)],
        initial=FIRST,
        registered=SECOND,
        **BOUNDED_LEFTOVERS,
    ),
    mutant(
        "content: a writer does not say that it has finished",
        "part_writer",
        "        outcome, *_ = yield (done, *",
        "        outcome, *_ = yield (steps.List(self.chunk.side_folder, ''), *",
        [overwrite(FIRST), overwrite(SECOND), overwrite(FIRST), overwrite(SECOND), overwrite(FIRST)],
        initial=FIRST,
        registered=SECOND,
        **BOUNDED_LEFTOVERS,
    ),
    mutant(
        "content: copies of writers at work are removed",
        "staging",
        "return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))",
        "return tuple(sorted(others - set(ours)))",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "content: the writer's own copy is removed with those before",
        "part_writer",
        "names += [each for each in self.own_generations if each != self.generation]",
        "names += self.own_generations",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
]

STALLS = [
    mutant(
        "stall: never stages again",
        "tagged",
        "            if self.registration is not None and self.registration.is_old:\n",
        "            if False:\n",
        [overwrite(FIRST)],
        [REPAIR],
        initial=THIRD,
        stalls=1,
    ),
    mutant(
        "stall: stages again under the same name",
        "tagged",
        "        self.tag = replace(self.tag, generation=self.rules.new_generation())\n"
        '        copy = self.register("write")\n'
        "        yield from self.put_own(copy)\n"
        "        if self.lost is None:\n",
        '        copy = self.register("write")\n        yield from self.put_own(copy)\n        if False:\n',
        [overwrite(FIRST)],
        [REPAIR],
        initial=THIRD,
        stalls=1,
    ),
    mutant(
        "stall, content: a create goes on with parts that may be gone",
        "tagged",
        "        if watch is not None and watch() > MAX_STALL:\n",
        "        if False:\n",
        [write(FIRST)],
        [REPAIR],
        stalls=1,
        **CONTENT_ETAGS,
    ),
    mutant(
        "stall, content: a writer that was taken for dead writes parts",
        "part_writer",
        "if self.registration is None or not self.registration.is_old or not self.rules.is_registered:",
        "if True:",
        [overwrite(FIRST)],
        [overwrite(SECOND)],
        initial=FIRST,
        stalls=1,
        **CONTENT_ETAGS,
    ),
]

UPKEEP = [
    mutant(
        "repair removes the copies of living writers",
        "staging",
        "            and name not in dead\n",
        "            and not dead\n",
        [REPAIR],
        [overwrite(SECOND)],
        initial=THIRD,
        interrupted=FIRST,
    ),
    mutant(
        "repair, exclusive, content: finishes a write beside its writer",
        "tagged",
        "return self.rules.level is not Level.EXCLUSIVE or is_unique or self.rules.embeds(chunk)",
        "return True",
        [overwrite(SECOND), overwrite(FIRST)],
        [REPAIR],
        initial=FIRST,
        **(EXCLUSIVE | CONTENT_ETAGS),
    ),
    mutant(
        "repair, local: without a lock",
        "repair",
        "    yield from protocol.lock_chunk(chunk.side_folder)\n    match",
        "    match",
        [REPAIR],
        [write(FIRST)],
        orphans=THIRD,
        **LOCAL,
    ),
    mutant(
        "repair removes the parts of a chunk that exists",
        "protocol",
        "if (yield from head(chunk.anchor_key, WHOSE)) is not None:",
        "if False:",
        [REPAIR],
        [write(FIRST)],
        orphans=FIRST,
        **CONTENT_ETAGS,
    ),
]

# These take longer than a test run may.
DEEP_REGISTRATION_MUTANTS = [
    mutant(
        "content: forgets a lost PUT",
        "part_writer",
        "        if self.lost is not None:\n            return\n        if registry.others_at_work",
        "        if registry.others_at_work",
        [overwrite(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **LATE_PUT,
        **REPEATED_WRITE,
        **CONTENT_ETAGS,
    ),
]
