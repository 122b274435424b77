"""How what is wrong with stored chunks is put right, as steps.

Decides what may be finished and what may be removed. Never removes the only copy of something unless asked to. What is
wrong is `findings`' to say.

A delete cannot be conditional: what somebody commits between the last look at a chunk and the removal of orphans, or of
a chunk that cannot be read, loses what is removed. On a local disk the lock keeps others away; where writers look for
each other, orphans are removed as one of them. Elsewhere, nobody may write the chunk meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parts_store.engine.backend import Means
from parts_store.engine.steps import Done, Entry, Found, Get, Head, Put, Steps, get, head, remove
from parts_store.errors import ConcurrentWriteError
from parts_store.format import metadata as documents
from parts_store.format.keys import DOCUMENT, Chunk, join
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex
from parts_store.format.tags import Tag
from parts_store.maintenance import mixed_parts
from parts_store.maintenance.diagnosis import Finding, Listing, Problem, Survey, check, judge, look_again, survey
from parts_store.transactions import journaled, staging, tagged
from parts_store.transactions.locking import lock_chunk
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.staging import Registry
from parts_store.transactions.versions import Version, is_of_layout
from parts_store.transactions.writer import WHOSE, Writer

__all__ = [
    "Finding",
    "Listing",
    "Problem",
    "RepairOptions",
    "Survey",
    "check",
    "chunk_beside",
    "discard",
    "look_again",
    "mark",
    "mend",
    "survey",
]


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What a repair may do beyond finishing what was committed."""

    # Remove chunks that cannot be read.
    drops_incomplete: bool
    # Give all parts of a chunk one tag, if some or all have none, or if they have several: they belong together, the
    # caller says.
    retags: bool
    # Tell software without concat-parts, in the documents of arrays that it would misread, to refuse them.
    marks: bool = False

    def are_about(self, problem: Problem) -> bool:
        """Whether a repair does anything about a problem."""
        match problem:
            case Problem.INTERRUPTED | Problem.ORPHANS | Problem.LEFTOVERS | Problem.STRAY_NODES:
                return True
            case Problem.UNTAGGED:
                return self.retags
            case Problem.UNMARKED:
                return self.marks
            case Problem.PARTLY_TAGGED | Problem.MIXTURE:
                return self.retags or self.drops_incomplete
            case _:
                return self.drops_incomplete


def mend(
    listing: Listing, finding: Finding, record: ArrayRecord, rules: Rules, options: RepairOptions
) -> Steps[Finding]:
    """The same finding, put right as far as it can be. Of the writers that it shows, none lives."""
    chunk, index = listing.chunk, record.shard_index
    if not options.are_about(finding.problem):
        return finding
    yield from _lock(chunk.side_folder, rules)
    match finding.problem:
        case Problem.INTERRUPTED | Problem.LEFTOVERS:
            is_mended = yield from _tidy(listing, rules)
        case Problem.ORPHANS:
            is_mended = yield from _collect(chunk, finding.keys, rules)
        case Problem.MIXTURE if options.retags:
            doubt = yield from _retag_mixture(chunk, record, rules)
            is_mended = doubt is None
            if not is_mended and options.drops_incomplete:
                is_mended = yield from _drop(chunk, index, rules)
            if not is_mended and doubt:
                return replace(finding, detail=f"{finding.detail}; left alone: {doubt}")
        case Problem.UNTAGGED | Problem.PARTLY_TAGGED if options.retags:
            is_mended = yield from _retag(chunk, rules)
        case _:
            is_mended = yield from _drop(chunk, index, rules)
    return replace(finding, is_mended=is_mended)


def mark(path: str, rules: Rules) -> Steps[bool]:
    """Add the member that plain readers have to understand to an array's document; return whether it was added.

    Where the store has conditions, a document that is changed meanwhile stays as it is.
    """
    key = join(path, DOCUMENT)
    (outcome,) = yield (Get(key, None, "the document to mark"),)
    document = documents.parse(bytes(outcome.data)) if isinstance(outcome, Found) else None
    in_session = rules.means is Means.SESSION
    record = None if document is None else documents.read_array(document, path, in_session=in_session)
    if not isinstance(outcome, Found) or record is None:
        return False
    marked = documents.with_mark(record.stored, record.parts, record.placement, must_understand=True)
    condition = outcome.unchanged if rules.means is Means.TAGS and rules.has_conditions else None
    (written,) = yield (Put(key, documents.dump(marked), None, condition, "the document, marked"),)
    return isinstance(written, Done)


def chunk_beside(entry: Entry, array: str, record: ArrayRecord) -> Steps[Chunk | None]:
    """The chunk that an object is beside, where nothing else of it is there; None if it does not say."""
    # A journal, or a staged copy; the part that a file is may be as large as a chunk, and says nothing.
    if "." in entry.key.rpartition("/")[2]:
        return None
    found = yield from get(entry.key, "whose leftovers these are")
    said = journaled.Record.parse(found)
    relative = said.key if said is not None else None if found is None else staging.chunk_of(found)
    # What is stored may say anything: only the key of a chunk is one.
    if relative is None or not record.encoding.is_chunk_key(relative):
        return None
    return Chunk(join(array, relative), record.parts, array)


def discard(folder: str, keys: tuple[str, ...], rules: Rules) -> Steps[bool]:
    """Remove what is beside a chunk that nobody can name: nothing was committed, for that would name it."""
    yield from _lock(folder, rules)
    yield from _remove_beside(keys, rules)
    return True


def _has_locks(rules: Rules) -> bool:
    return rules.means is Means.LOCKS and rules.level is not Level.EXCLUSIVE


def _lock(folder: str, rules: Rules) -> Steps[None]:
    """Where there are locks, be the only one at work on a chunk."""
    if _has_locks(rules):
        yield from lock_chunk(folder)


def _remove_beside(keys: Sequence[str], rules: Rules) -> Steps[None]:
    # The lock that we hold goes when we give it back; where nobody takes any, one is a leftover like others.
    gone = tuple(key for key in keys if not (_has_locks(rules) and key.endswith(".lock")))
    if gone:
        yield from remove(gone, "leftovers")


def _helper(chunk: Chunk, rules: Rules) -> Writer:
    """A writer that writes nothing of its own."""
    return Writer(chunk, rules, Tag(rules.new_generation(), "s", (0,) * len(chunk.part_keys)), {})


def _tidy(listing: Listing, rules: Rules) -> Steps[bool]:
    """Finish what was committed, then remove what was listed beside the chunk, whose writers are all dead."""
    chunk = listing.chunk
    if rules.means is Means.LOCKS:
        yield from journaled.recover(chunk)
        yield from _remove_beside([entry.key for entry in listing.beside], rules)
        return True
    if not (yield from _can_be_helped(listing)):
        return False
    return (yield from _helper(chunk, rules).tidy(Registry.of(listing.beside).present))


def _can_be_helped(listing: Listing) -> Steps[bool]:
    """Whether no part of the anchor's own write has a wrong size: its tag is right, so it would not be written anew.

    A staged copy may be all that there is of it.
    """
    chunk = listing.chunk
    doubtful = [part for part, entry in listing.parts.items() if chunk.parts.sizes[part] != entry.nbytes]
    if not set(doubtful) - {chunk.parts.anchor}:
        return True
    keys = (chunk.anchor_key, *(chunk.part_keys[part] for part in doubtful))
    anchor, *others = yield tuple(Head(key, WHOSE) for key in keys)
    tag = anchor.tag if isinstance(anchor, Found) else None
    if tag is None or len(tag.sizes) != len(chunk.part_keys):
        return True
    found = {part: each for part, each in zip(doubtful, others, strict=True) if isinstance(each, Found)}
    return all(each.generation != tag.generation or each.nbytes == tag.sizes[part] for part, each in found.items())


def _collect(chunk: Chunk, orphans: tuple[str, ...], rules: Rules) -> Steps[bool]:
    """Remove the parts of a chunk that does not exist."""
    helper = _helper(chunk, rules)
    if rules.means is Means.TAGS and rules.is_registered:
        # Whoever commits from now on sees us, and keeps a copy of what we may remove.
        (outcome,) = yield (helper.register("settle"),)
        if not isinstance(outcome, Done):
            return False
    is_absent = (yield from head(chunk.anchor_key, WHOSE)) is None
    if is_absent:
        yield from remove(orphans, "orphans")
    if rules.means is Means.TAGS:
        yield from helper.settle() if rules.is_registered else helper.help()
    return is_absent


def _retag(chunk: Chunk, rules: Rules) -> Steps[bool]:
    """Write the chunk again as it is, with one tag, if nobody changes it meanwhile."""
    if rules.means is not Means.TAGS:
        return False
    outcomes = yield tuple(Get(key, None, "part of a chunk") for key in chunk.part_keys)
    now = judge(chunk, outcomes, None)
    # Nothing of it is missing or of a wrong size, and no two parts are of different writes.
    if now is None or now.problem not in (Problem.UNTAGGED, Problem.PARTLY_TAGGED):
        return False
    return (yield from _write_again(chunk, [each for each in outcomes if isinstance(each, Found)], rules))


def _retag_mixture(chunk: Chunk, record: ArrayRecord, rules: Rules) -> Steps[str | None]:
    """The same for parts of several writes, if what can be checked of them fits; returns why not, None if done."""
    if rules.means is not Means.TAGS:
        return ""
    outcomes = yield tuple(Get(key, None, "part of a chunk") for key in chunk.part_keys)
    now = judge(chunk, outcomes, None)
    if now is None or now.problem is not Problem.MIXTURE:
        return ""
    found = [each for each in outcomes if isinstance(each, Found)]
    if not all(is_of_layout(each, chunk) for each in found):
        return "some of it was written with another layout than that of its array"
    doubt = mixed_parts.doubt(record, found)
    if doubt is not None:
        return doubt
    return None if (yield from _write_again(chunk, found, rules)) else ""


def _write_again(chunk: Chunk, found: Sequence[Found], rules: Rules) -> Steps[bool]:
    """Write what was found of each part, if nobody has changed the chunk meanwhile."""
    seen = Version(found[chunk.parts.anchor].tag, tuple(each.unchanged for each in found), chunk.parts.anchor)
    try:
        yield from tagged.write(chunk, [memoryview(each.data) for each in found], rules, seen)
    except ConcurrentWriteError:
        return False
    return True


def _drop(chunk: Chunk, index: ShardIndex | None, rules: Rules) -> Steps[bool]:
    """Remove a chunk that cannot be read, if it still cannot."""
    now = yield from look_again(chunk, index, rules.means)
    if now is None or not now.problem.is_damage:
        return False
    yield from remove((chunk.anchor_key,), "a chunk that cannot be read")
    if rules.means is Means.LOCKS:
        yield from remove((journaled.journal_key(chunk),), "a chunk that cannot be read")
    if chunk.other_keys:
        yield from remove(chunk.other_keys, "a chunk that cannot be read")
    return True
