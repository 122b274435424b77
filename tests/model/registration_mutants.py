"""Mistakes in how writers find each other, stall, and remove what they leave behind; and in how `repair` does."""

from tests.model.directed import CARRIED_OUT, DELAYED, Move
from tests.model.mutant import mutants

# The first client finishes the write of the second, and its PUT is delayed until the index is that of the first client
# again.
DELAYED_HELP = (
    Move("a", "PUT a/c/0.index"),
    Move("b", "PUT a/c/0.index"),
    Move("a", "PUT a/c/0.index", CARRIED_OUT),
    Move("a", "PUT a/c/0.index", DELAYED),
    Move("a"),
    Move("b"),
    Move("a"),
    Move("", "PUT a/c/0.index"),
)

EQUAL_ETAGS = mutants(
    """
content: writers do not look at the registry
  overwrite second || overwrite first; over first, equal ETags
  @ Rules.is_registered
  - return not self.has_unique_etags and self.level is not Level.EXCLUSIVE
  + return False
content: others at work do not matter
  overwrite second || overwrite first; over first, equal ETags
  @ Writer._leave_registered
  - registry.others_at_work(self.own_generations)
  + False
content: leaves without a look at the anchor
  overwrite second || overwrite first; over first, equal ETags
  @ Writer._leave_registered
  - not self.is_own(anchor)
  + False
content: settles without helping
  overwrite second || overwrite first; over first, equal ETags
  @ Writer.settle
  - yield from self.finish_committed()
  - if self._must_stay:
  -     return False
  - registry = yield from self._look_for_others()
  + registry = yield from self._look_for_others()
content: forgets a lost PUT of a helper
  overwrite second, overwrite second || overwrite first; over third, equal ETags, late PUT, repeated write
  @ Writer._write_stale
  - self.lost = self.lost or helper.lost
""",
    {"content: forgets a lost PUT of a helper": DELAYED_HELP},
)

LEFTOVERS = mutants("""
content: traces of finished writers do not matter
  overwrite second || overwrite first; over first, equal ETags
  @ Registry.has_others
  - return bool((self.present.keys() | self.done) - set(ours))
  + return bool(self.others_at_work(ours))
content: copies of finished writers stay
  overwrite first, overwrite second, overwrite first; over first, dead writer second, equal ETags, few leftovers
  @ Writer._keep_copy
  - finished = registry.finished(self.own_generations)
  + finished = ()
content: a writer does not say that it has finished
  overwrite first, overwrite second, overwrite first, overwrite second, overwrite first; over first, dead writer
  second, equal ETags, few leftovers
  @ Writer._keep_copy
  - (done, *([steps.Delete(gone, 'staged copies')] if gone else []))
  + (steps.List(self.chunk.side_folder, ''), *([steps.Delete(gone, 'staged copies')] if gone else []))
content: copies of writers at work are removed
  overwrite second || overwrite first; over first, equal ETags
  @ Registry.finished
  - return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))
  + return tuple(sorted(others - set(ours)))
content: the writer's own copy is removed with those before
  overwrite second || overwrite first; over first, equal ETags
  @ Writer._keep_copy
  - names += [each for each in self.own_generations if each != self.generation]
  + names += self.own_generations
""")

STALLS = mutants("""
stall: never stages again
  overwrite first || repair; over third, stall
  @ Writer._may_commit
  - self.registration is not None and self.registration.is_old
  + False
stall: stages again under the same name
  overwrite first || repair; over third, stall
  @ Writer._stage_again
  - self.tag = replace(self.tag, generation=self.rules.new_generation())
  - copy = self.register("write")
  - yield from self.put_own(copy)
  - if self.lost is None:
  -     yield from self.remove_copies(old)
  - elif self.registration is not None:
  -     self.registration.generations += old
  + copy = self.register("write")
  + yield from self.put_own(copy)
  + if self.registration is not None:
  +     self.registration.generations += old
stall, content: a create goes on with parts that may be gone
  write first || repair; equal ETags, stall
  @ Writer._may_commit
  - watch is not None and watch() > MAX_STALL
  + False
stall, content: a writer that was taken for dead writes parts
  overwrite first || overwrite second; over first, equal ETags, stall
  @ Writer._registers_again
  - self.registration is None or not self.registration.is_old or not self.rules.is_registered
  + True
""")

UPKEEP = mutants("""
repair removes the copies of living writers
  repair || overwrite second; over third, interrupted first
  @ Registry.others_at_work
  - name not in dead
  + not dead
repair, exclusive, content: finishes a write beside its writer
  overwrite second, overwrite first || repair; over first, exclusive, equal ETags
  @ TaggedProtocol.can_finish_beside_writers
  - return self.rules.level is not Level.EXCLUSIVE or is_unique or self.rules.embeds(chunk)
  + return True
repair, local: without a lock
  repair || write first; orphans third, local
  @ repair_chunk
  - yield from protocol.lock_chunk(chunk.side_folder)
repair removes the parts of a chunk that exists
  repair || write first; orphans first, equal ETags
  @ ChunkProtocol.remove_orphans
  - (yield from head(chunk.anchor_key, WHOSE)) is not None
  + False
""")

# These take longer than a test run may.
DEEP_REGISTRATION_MUTANTS = mutants("""
content: forgets a lost PUT
  overwrite second || overwrite first; over first, equal ETags, late PUT, repeated write
  @ Writer._leave_registered
  - if self.lost is not None:
  -     return
""")
