"""Repair a chunk or an array, as steps: finish committed writes, and remove what is left over.

Chunks that cannot be read are removed only if the caller asks for it.

A DELETE request cannot be conditional. If another client commits a chunk between the last check of the chunk and the
removal of its orphans, or of a chunk that cannot be read, the new write loses what is removed. On a local disk a lock
prevents this. On object stores whose writers are registered, the repair is registered as well. Elsewhere, no client may
write the chunk during the repair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from parts_store.engine.steps import Entry, Found, Get, Steps, get
from parts_store.errors import ConcurrentWriteError
from parts_store.format import metadata
from parts_store.format.keys import DOCUMENT, Chunk, join
from parts_store.format.layout import Span
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import parse_integer
from parts_store.format.shard_index import ShardIndex, has_valid_checksum
from parts_store.maintenance.diagnosis import diagnose_chunk, find_problem
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions import staging
from parts_store.transactions.journaled import Journal, is_journal, journal_key
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings, Version, is_of_layout, read_around

UNKNOWN_JOURNAL: Final = (
    "there is a journal that this version does not understand, and that may belong to a committed write; "
    "drop_incomplete=True removes it"
)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """The repairs to make besides finishing committed writes and removing leftovers."""

    # Remove chunks that cannot be read.
    drops_incomplete: bool
    # Give all parts of a chunk one tag, although some or all have none, or have the tags of several writes. The caller
    # says that they belong together.
    retags: bool
    # Write into the documents of arrays that other software would misread that such software must refuse them.
    marks: bool = False

    def handles(self, problem: Problem) -> bool:
        """Return whether a repair changes anything about a problem."""
        match problem:
            case Problem.INTERRUPTED | Problem.ORPHANS | Problem.LEFTOVERS | Problem.STRAY_NODES | Problem.NO_FILE:
                return True
            case Problem.UNTAGGED:
                return self.retags
            case Problem.UNMARKED:
                return self.marks
            case Problem.PARTLY_TAGGED | Problem.MIXTURE:
                return self.retags or self.drops_incomplete
            case _:
                return self.drops_incomplete


def objects_of_writer(listed: ListedChunk, problem: Problem) -> list[Entry]:
    """Return the objects of a chunk whose age tells whether its writer may still be active."""
    if problem in (Problem.LEFTOVERS, Problem.INTERRUPTED) and listed.beside:
        return listed.beside
    return [*listed.beside, *listed.parts.values()]


def repair_chunk(
    listed: ListedChunk, finding: Finding, record: ArrayRecord, protocol: ChunkProtocol, options: RepairOptions
) -> Steps[Finding]:
    """Repair a chunk if possible, and return the finding with the result.

    Every writer whose objects are listed beside the chunk must be dead.
    """
    chunk = listed.chunk
    if not options.handles(finding.problem):
        return finding
    if finding.problem is Problem.NO_FILE:
        # A write takes the lock itself.
        return replace(finding, is_repaired=(yield from _make_file(chunk, record, protocol)))
    yield from protocol.lock_chunk(chunk.side_folder)
    match finding.problem:
        case Problem.INTERRUPTED | Problem.LEFTOVERS:
            if not options.drops_incomplete and (yield from _has_unknown_journal(listed)):
                return not_repaired(finding, UNKNOWN_JOURNAL)
            is_repaired = yield from protocol.finish_write(chunk, listed.parts, listed.beside)
        case Problem.ORPHANS:
            is_repaired = yield from protocol.remove_orphans(chunk, finding.keys)
        case Problem.UNTAGGED | Problem.PARTLY_TAGGED | Problem.MIXTURE if options.retags:
            return (yield from _repair_tags(chunk, finding, record, protocol, options))
        case _:
            return (yield from _drop_chunk(chunk, finding, record, protocol))
    return replace(finding, is_repaired=is_repaired)


def _has_unknown_journal(listed: ListedChunk) -> Steps[bool]:
    """Return whether a journal beside a chunk cannot be carried out, and may be that of a committed write."""
    for key in (entry.key for entry in listed.beside if is_journal(entry.key)):
        found = yield from get(key, "whether a write was interrupted")
        is_known = key == journal_key(listed.chunk) and Journal.parse(found, listed.chunk) is not None
        if found is not None and not is_known:
            return True
    return False


def _repair_tags(
    chunk: Chunk, finding: Finding, record: ArrayRecord, protocol: ChunkProtocol, options: RepairOptions
) -> Steps[Finding]:
    """Give all parts of a chunk one tag; drop parts of several writes that are not one value, if that is asked for."""
    obstacle = yield from _retag(chunk, finding.problem, record, protocol)
    result = replace(finding, is_repaired=obstacle is None)
    if obstacle is not None and finding.problem is Problem.MIXTURE and options.drops_incomplete:
        result = yield from _drop_chunk(chunk, finding, record, protocol)
    return not_repaired(finding, obstacle) if obstacle and not result.is_repaired else result


def not_repaired(finding: Finding, why: str) -> Finding:
    """Return a finding that also says why the problem was not repaired."""
    return replace(finding, detail=f"{finding.detail}; not repaired: {why}")


def mark_array(path: str, protocol: ChunkProtocol) -> Steps[bool]:
    """Tell software without concat-parts in the document of an array to refuse it; return whether it was written.

    If the store has conditional requests, a document that another client changes meanwhile is not overwritten.
    """
    key = join(path, DOCUMENT)
    (outcome,) = yield (Get(key, None, "the document to mark"),)
    document = metadata.parse(bytes(outcome.data)) if isinstance(outcome, Found) else None
    record = None if document is None else protocol.read_array(document, path)
    if not isinstance(outcome, Found) or record is None:
        return False
    marked = metadata.with_mark(record.stored, record.parts, record.placement, must_understand=True)
    return (yield from protocol.replace_document(key, metadata.dump(marked), outcome))


def find_chunk_beside(entry: Entry, array: str, record: ArrayRecord) -> Steps[Chunk | None]:
    """Return the chunk that a journal or a staged copy belongs to; None for other objects."""
    # Any other name with a dot is that of a staged part, which may be as large as a chunk and does not name the chunk.
    if "." in entry.key.rpartition("/")[2] and not is_journal(entry.key):
        return None
    found = yield from get(entry.key, "whose leftovers these are")
    journal = Journal.parse(found)
    relative = journal.key if journal is not None else None if found is None else staging.chunk_of(found)
    # The object may hold anything, so the key is checked.
    if relative is None or not record.encoding.is_chunk_key(relative):
        return None
    return Chunk(join(array, relative), record.parts, array)


def discard_leftovers(folder: str, keys: tuple[str, ...], protocol: ChunkProtocol) -> Steps[bool]:
    """Remove what lies beside an unknown chunk. Nothing that this version understands was committed."""
    yield from protocol.lock_chunk(folder)
    yield from protocol.remove_leftovers(keys)
    return True


def _retag(chunk: Chunk, problem: Problem, record: ArrayRecord, protocol: ChunkProtocol) -> Steps[str | None]:
    """Write a chunk again with one tag, if its parts belong together.

    Returns None if it was written, otherwise why not; an empty text if the chunk has changed.
    """
    if not protocol.has_tags:
        return ""
    outcomes = yield tuple(Get(key, None, "part of a chunk") for key in chunk.part_keys)
    now = find_problem(chunk, outcomes, None)
    expected = (Problem.MIXTURE,) if problem is Problem.MIXTURE else (Problem.UNTAGGED, Problem.PARTLY_TAGGED)
    if now is None or now.problem not in expected:
        return ""
    found = [each for each in outcomes if isinstance(each, Found)]
    if problem is Problem.MIXTURE:
        if not all(is_of_layout(each, chunk) for each in found):
            return "some parts were written with another layout than that of the array"
        if (inconsistency := find_inconsistency(record, found)) is not None:
            return inconsistency
    return None if (yield from _write_again(chunk, found, protocol)) else ""


def _write_again(chunk: Chunk, found: Sequence[Found], protocol: ChunkProtocol) -> Steps[bool]:
    """Write the parts that were found with one tag; return False if another client has changed the chunk meanwhile."""
    seen = Version(found[chunk.parts.anchor].tag, tuple(each.unchanged for each in found), chunk.parts.anchor)
    try:
        yield from protocol.write(chunk, [memoryview(each.data) for each in found], seen)
    except ConcurrentWriteError:
        return False
    return True


def _make_file(chunk: Chunk, record: ArrayRecord, protocol: ChunkProtocol) -> Steps[bool]:
    """Write a shard again as a file; return False if another client has changed or deleted it meanwhile."""
    read = yield from protocol.read(chunk, [None], ReadSettings(0, 0, 0), with_anchor=True)
    if read is None:
        return False
    value = memoryview(b"".join(read.values[0] or ()))
    around = yield from read_around(chunk.array, record.stored)
    try:
        yield from protocol.write(chunk, [record.as_stored(chunk, value, around)], read.version)
    except ConcurrentWriteError:
        return False
    return True


def _drop_chunk(chunk: Chunk, finding: Finding, record: ArrayRecord, protocol: ChunkProtocol) -> Steps[Finding]:
    """Remove a chunk that cannot be read, unless it can be read by now; return the finding with the result."""
    now = yield from diagnose_chunk(chunk, record.shard_index, protocol)
    if now is None or not now.problem.is_damage:
        return finding
    yield from protocol.drop(chunk, "a chunk that cannot be read")
    return replace(finding, is_repaired=True, is_deleted=True)


# --- parts with the tags of several writes --------------------------------------------------------------------------
#
# A mirror that skips objects whose bytes did not change keeps their old tags, so that the parts of a chunk have
# different tags and are one value. A mirror that was made during a write also has parts with different tags, and they
# are not one value. Tags cannot tell the two cases apart. Checksums can, and so can the fact that only parts of one
# write have bytes that influence the values.


def find_inconsistency(record: ArrayRecord, parts: Sequence[Found]) -> str | None:
    """Return why the parts of a chunk may not be one value; None if they are.

    `parts` are all parts of the chunk with their bytes, in the right sizes.
    """
    if not _has_sizes_of_a_write(parts):
        return "the sizes of its parts are not those of any of the writes"
    before, after, codecs = _padding(record)
    whole = b"".join(bytes(memoryview(part.data)) for part in parts)
    payload = Span(before, max(len(whole) - after, before))
    if codecs and _name(codecs[-1]) == "crc32c":
        is_valid = has_valid_checksum(whole[payload.start : payload.stop])
        return None if is_valid else "its bytes do not match their checksum"
    index = record.shard_index
    if index is not None and index.has_checksum:
        return _find_inconsistency_of_shard(index, whole, parts)
    # Bytes that the codecs skip have no influence on the values.
    if _count_writes(parts, [payload]) == 1:
        return None
    return "it has no checksum that shows whether its parts belong together"


def _has_sizes_of_a_write(parts: Sequence[Found]) -> bool:
    """Return whether the parts have the sizes that the tag of one of them says."""
    sizes = tuple(part.nbytes for part in parts)
    return any(part.tag is not None and part.tag.sizes == sizes for part in parts)


def _find_inconsistency_of_shard(index: ShardIndex, whole: bytes, parts: Sequence[Found]) -> str | None:
    at = max(len(whole) - index.nbytes, 0) if index.location == "end" else 0
    ranges = index.ranges_of(whole[at : at + index.nbytes], range(index.slots))
    if ranges is None:
        return "its index does not match its checksum"
    spans = sorted(Span(each.start, each.end) for each in ranges if each is not None)
    if any(span.stop > len(whole) for span in spans):
        return "its index does not match its data"
    if _count_writes(parts, [Span(at, at + index.nbytes), *spans]) == 1:
        return None
    # The index may be of another write than some of the data. In that case the ranges hardly ever cover the data.
    if None in ranges:
        return "its index may be of another write than its data: not all inner chunks exist"
    return None if _is_covered(spans, index, len(whole)) else "its index does not match its data"


def _is_covered(spans: Sequence[Span], index: ShardIndex, nbytes: int) -> bool:
    """Return whether sorted spans cover all bytes of a shard except its index, without gaps."""
    start = index.nbytes if index.location == "start" else 0
    stops = [span.stop for span in spans]
    return [span.start for span in spans] == [start, *stops[:-1]] and stops[-1] == start + nbytes - index.nbytes


def _count_writes(parts: Sequence[Found], spans: Sequence[Span]) -> int:
    """Return the number of writes that the parts with these bytes of the chunk belong to."""
    stops = list(accumulate(part.nbytes for part in parts))
    touched = {
        part.generation
        for part, stop in zip(parts, stops, strict=True)
        for span in spans
        if max(span.start, stop - part.nbytes) < min(span.stop, stop)
    }
    return len(touched)


def _padding(record: ArrayRecord) -> tuple[int, int, list[object]]:
    """Return how many bytes the last codecs skip at the start and at the end of a chunk, and the codecs before them."""
    codecs = record.stored.get("codecs")
    left = list(codecs) if isinstance(codecs, list) else []
    before = after = 0
    for nbytes, is_at_start in _skipped(left):
        before, after = (before + nbytes, after) if is_at_start else (before, after + nbytes)
        left.pop()
    return before, after, left


def _skipped(codecs: Sequence[object]) -> Iterator[tuple[int, bool]]:
    """Yield how many bytes each of the last codecs adds, and whether at the start, beginning with the last codec."""
    for codec in reversed(list(codecs)):
        given = codec.get("configuration") if isinstance(codec, dict) else None
        configuration = given if isinstance(given, dict) else {}
        member = {"pad": "nbytes", "offset": "offset"}.get(_name(codec) or "", "")
        nbytes = parse_integer(configuration.get(member), 0)
        if nbytes is None:
            return
        yield nbytes, configuration.get("location", "start") == "start"


def _name(codec: object) -> str | None:
    name = codec.get("name") if isinstance(codec, dict) else codec
    return name if isinstance(name, str) else None
