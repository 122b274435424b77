"""Mistakes in how writers find each other, stall, and remove what they leave behind; and in how `repair` does."""

from tests.model.directed import CARRIED_OUT, DELAYED, Move
from tests.model.mutant import mutant

EQUAL_ETAGS = [
    mutant(
        "content: writers do not look at the registry",
        "Rules.is_registered",
        "return not self.has_unique_etags and self.level is not Level.EXCLUSIVE",
        "return False",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: others at work do not matter",
        "Writer._leave_registered",
        "registry.others_at_work(self.own_generations)",
        "False",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: leaves without a look at the anchor",
        "Writer._leave_registered",
        "not self.is_own(anchor)",
        "False",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: settles without helping",
        "Writer.settle",
        (
            "yield from self.finish_committed()\n"
            "if self._must_stay:\n"
            "    return False\n"
            "registry = yield from self._look_for_others()"
        ),
        "registry = yield from self._look_for_others()",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: forgets a lost PUT of a helper",
        "Writer._write_stale",
        "self.lost = self.lost or helper.lost",
        "",
        "overwrite second, overwrite second || overwrite first; over third, equal ETags, late PUT, repeated write",
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
    ),
]

LEFTOVERS = [
    mutant(
        "content: traces of finished writers do not matter",
        "Registry.has_others",
        "return bool((self.present.keys() | self.done) - set(ours))",
        "return bool(self.others_at_work(ours))",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: copies of finished writers stay",
        "Writer._keep_copy",
        "finished = registry.finished(self.own_generations)",
        "finished = ()",
        "overwrite first, overwrite second, overwrite first; "
        "over first, dead writer second, equal ETags, few leftovers",
    ),
    mutant(
        "content: a writer does not say that it has finished",
        "Writer._keep_copy",
        "(done, *([steps.Delete(gone, 'staged copies')] if gone else []))",
        "(steps.List(self.chunk.side_folder, ''), *([steps.Delete(gone, 'staged copies')] if gone else []))",
        "overwrite first, overwrite second, overwrite first, overwrite second, overwrite first; "
        "over first, dead writer second, equal ETags, few leftovers",
    ),
    mutant(
        "content: copies of writers at work are removed",
        "Registry.finished",
        "return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))",
        "return tuple(sorted(others - set(ours)))",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
    mutant(
        "content: the writer's own copy is removed with those before",
        "Writer._keep_copy",
        "names += [each for each in self.own_generations if each != self.generation]",
        "names += self.own_generations",
        "overwrite second || overwrite first; over first, equal ETags",
    ),
]

STALLS = [
    mutant(
        "stall: never stages again",
        "Writer._may_commit",
        "self.registration is not None and self.registration.is_old",
        "False",
        "overwrite first || repair; over third, stall",
    ),
    mutant(
        "stall: stages again under the same name",
        "Writer._stage_again",
        (
            "self.tag = replace(self.tag, generation=self.rules.new_generation())\n"
            'copy = self.register("write")\n'
            "yield from self.put_own(copy)\n"
            "if self.lost is None:\n"
            "    yield from self.remove_copies(old)\n"
            "elif self.registration is not None:\n"
            "    self.registration.generations += old"
        ),
        (
            'copy = self.register("write")\n'
            "yield from self.put_own(copy)\n"
            "if self.registration is not None:\n"
            "    self.registration.generations += old"
        ),
        "overwrite first || repair; over third, stall",
    ),
    mutant(
        "stall, content: a create goes on with parts that may be gone",
        "Writer._may_commit",
        "watch is not None and watch() > MAX_STALL",
        "False",
        "write first || repair; equal ETags, stall",
    ),
    mutant(
        "stall, content: a writer that was taken for dead writes parts",
        "Writer._registers_again",
        "self.registration is None or not self.registration.is_old or not self.rules.is_registered",
        "True",
        "overwrite first || overwrite second; over first, equal ETags, stall",
    ),
]

UPKEEP = [
    mutant(
        "repair removes the copies of living writers",
        "Registry.others_at_work",
        "name not in dead",
        "not dead",
        "repair || overwrite second; over third, interrupted first",
    ),
    mutant(
        "repair, exclusive, content: finishes a write beside its writer",
        "TaggedProtocol.can_finish_beside_writers",
        "return self.rules.level is not Level.EXCLUSIVE or is_unique or self.rules.embeds(chunk)",
        "return True",
        "overwrite second, overwrite first || repair; over first, exclusive, equal ETags",
    ),
    mutant(
        "repair, local: without a lock",
        "repair_chunk",
        "yield from protocol.lock_chunk(chunk.side_folder)",
        "",
        "repair || write first; orphans third, local",
    ),
    mutant(
        "repair removes the parts of a chunk that exists",
        "ChunkProtocol.remove_orphans",
        "(yield from head(chunk.anchor_key, WHOSE)) is not None",
        "False",
        "repair || write first; orphans first, equal ETags",
    ),
]

# These take longer than a test run may.
DEEP_REGISTRATION_MUTANTS = [
    mutant(
        "content: forgets a lost PUT",
        "Writer._leave_registered",
        "if self.lost is not None:\n    return",
        "",
        "overwrite second || overwrite first; over first, equal ETags, late PUT, repeated write",
    ),
]
