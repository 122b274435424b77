"""The scenarios in which a chunk is written together with other chunks, and mistakes in how that is done.

Each chunk of a batch is a transaction of its own, so one chunk is enough: the listings and the removal that it shares
with other chunks may come at any later time, as any request of a client may.
"""

from tests.model.mutant import mutant
from tests.model.vocabulary import (
    CONTENT_ETAGS,
    DELETE,
    FIRST,
    FULL,
    LATE_PUT,
    READ,
    READ_SHARD,
    REPAIR,
    REPEATED_WRITE,
    SECOND,
    THIRD,
    batch,
    change,
    make,
    overwrite,
    write,
)

# Explored completely by every test run.
BATCHES = [
    make("batch: overwrite || read", [batch(SECOND)], [READ], initial=FIRST, **CONTENT_ETAGS),
    make("batch: overwrite || sharded read", [batch(SECOND)], [READ_SHARD], initial=FIRST, **CONTENT_ETAGS),
    make("batch: overwrite || delete", [batch(SECOND)], [DELETE], initial=FIRST, **CONTENT_ETAGS),
    make("batch: create || read", [batch(SECOND)], [READ], **CONTENT_ETAGS),
    make("batch: over orphans || read", [batch(SECOND)], [READ], orphans=FIRST, **CONTENT_ETAGS),
    make("batch: create || create", [batch(FIRST)], [write(SECOND)], **CONTENT_ETAGS),
    make("batch: overwrite || overwrite", [batch(SECOND)], [overwrite(FIRST)], initial=FIRST, **CONTENT_ETAGS),
    make("batch: overwrite || batch", [batch(SECOND)], [batch(FIRST)], initial=FIRST, **CONTENT_ETAGS),
    make("batch: overwrite || change", [batch(SECOND)], [change(b"x")], initial=FIRST, **CONTENT_ETAGS),
    make("batch: overwrite alone, lost answers", [batch(SECOND)], initial=FIRST, faults=2, **CONTENT_ETAGS),
    make("batch: crashes, overwrite x2", [batch(SECOND), batch(FIRST)], initial=FIRST, crashes=(0,), **CONTENT_ETAGS),
    make("batch, stall: overwrite || repair", [batch(SECOND)], [REPAIR], initial=FIRST, stalls=1, **CONTENT_ETAGS),
    make("batch, full: overwrite || delete", [batch(SECOND)], [DELETE], initial=FIRST, **(FULL | CONTENT_ETAGS)),
    make("batch, full: create || delete", [batch(SECOND)], [DELETE], **(FULL | CONTENT_ETAGS)),
    make("batch, unique: overwrite || read", [batch(SECOND)], [READ], initial=THIRD),
]

# Explored completely, in minutes.
LARGE_BATCHES = [
    make(
        "batch: overwrite || overwrite || read",
        [batch(SECOND)],
        [overwrite(FIRST)],
        [READ],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    make(
        "batch: overwrite || overwrite, lost answers",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        faults=1,
        **CONTENT_ETAGS,
    ),
    make(
        "batch: overwrite || batch, late PUT",
        [batch(SECOND)],
        [batch(FIRST)],
        initial=FIRST,
        **LATE_PUT,
        **REPEATED_WRITE,
        **CONTENT_ETAGS,
    ),
    make(
        "batch: crashes, overwrite x2 || overwrite",
        [batch(SECOND), batch(FIRST)],
        [overwrite(FIRST)],
        initial=FIRST,
        crashes=(0,),
        **CONTENT_ETAGS,
    ),
]

BATCH_MUTANTS = [
    mutant(
        "batch: copies removed without a look at other writers",
        "batch",
        "        if writer.can_leave(registry):\n",
        "        if True:\n",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "batch: copies removed too early",
        "batch",
        "    end, _ = yield from writer.publish(None, known)\n",
        "    end, _ = yield from writer.publish(None, known)\n"
        "    yield from writer.remove_copies(writer.own_generations)\n",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **CONTENT_ETAGS,
    ),
    mutant(
        "batch: a copy is removed although a PUT may still come",
        "part_writer",
        "return not self.needs_copy and self.lost is None and",
        "return not self.needs_copy and",
        [batch(SECOND)],
        [overwrite(FIRST)],
        initial=FIRST,
        **LATE_PUT,
        **REPEATED_WRITE,
        **CONTENT_ETAGS,
    ),
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
]
