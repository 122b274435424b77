"""Find what is wrong with listed chunks, without changing anything.

A listing shows missing parts, orphans, wrong sizes, and objects beside a chunk. It shows no tags: whether the parts of
a chunk belong to one write takes a request for each part. A chunk that seems to be damaged is checked again, so that a
write in progress is not reported as damage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zarr.abc.store import RangeByteRequest

from parts_store.engine.steps import Found, Get, Head, Missing, Outcome, Steps, get, head, run_together
from parts_store.format.keys import Chunk, PartPlacement
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex
from parts_store.format.tags import Tag
from parts_store.maintenance.chunk_checksums import check_checksums
from parts_store.maintenance.file_seals import check_seals
from parts_store.maintenance.part_checks import (
    CHECK,
    check_index,
    check_index_part,
    find_problem,
    index_part,
    part_requests,
)
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions import staging
from parts_store.transactions.journal import NOT_VALID, Journal, journal_key, staged_keys
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import ReadSettings

# How often a chunk is checked that changes during the check.
_MAX_CHECKS = 3


def diagnose_chunks(
    listed: Sequence[ListedChunk],
    record: ArrayRecord,
    protocol: ChunkProtocol,
    settings: ReadSettings,
    *,
    with_bytes: bool,
) -> Steps[list[Finding]]:
    """Return what is wrong with listed chunks of one array.

    With `with_bytes`, chunks whose last codec is a checksum are read and compared with it.
    """
    if record.placement is PartPlacement.WHOLE:
        checks = yield from run_together([_diagnose_whole_chunk(each.chunk, record) for each in listed])
        findings = [each for each in checks if each is not None]
    else:
        findings = yield from _diagnose_parts(listed, record.shard_index, protocol)
    if record.ends is not None and record.shard_index is not None and record.placement is PartPlacement.BESIDE:
        sealed = _readable(listed, findings) if not protocol.has_tags else _untagged(listed, findings)
        findings += yield from check_seals(sealed, record.shard_index, protocol, settings)
    if with_bytes and record.placement is not PartPlacement.BESIDE:
        yield from _require_available(listed)
    if with_bytes and record.ends_in_checksum:
        findings += yield from check_checksums(_readable(listed, findings), protocol, settings)
    return findings + _find_leftovers(listed, findings)


def _require_available(listed: Sequence[ListedChunk]) -> Steps[None]:
    """Raise `SessionError` unless the bytes of all chunks are available: a session may list chunks without bytes."""
    stored = [entry for each in listed for entry in each.parts.values() if entry.nbytes]
    if stored:
        yield tuple(Get(entry.key, RangeByteRequest(0, 1), CHECK) for entry in stored)


def _readable(listed: Sequence[ListedChunk], findings: Sequence[Finding]) -> list[ListedChunk]:
    """Return the chunks that exist and are not damaged."""
    unreadable = {each.chunk_key for each in findings if each.problem.is_damage or each.problem is Problem.ORPHANS}
    return [each for each in listed if each.chunk.chunk_key not in unreadable]


def _untagged(listed: Sequence[ListedChunk], findings: Sequence[Finding]) -> list[ListedChunk]:
    """Return the chunks without tags, where only a seal shows that a file was changed."""
    untagged = {each.chunk_key for each in findings if each.problem is Problem.UNTAGGED}
    return [each for each in listed if each.chunk.chunk_key in untagged]


def _find_leftovers(listed: Sequence[ListedChunk], findings: Sequence[Finding]) -> list[Finding]:
    """Return what lies beside the chunks, except beside interrupted writes, which need it."""
    interrupted = {finding.chunk_key for finding in findings if finding.problem is Problem.INTERRUPTED}
    return [leftovers_beside(each) for each in listed if each.beside and each.chunk.chunk_key not in interrupted]


def leftovers_beside(listed: ListedChunk) -> Finding:
    """Return the finding for what lies beside a chunk."""
    keys = tuple(entry.key for entry in listed.beside)
    return Finding(Problem.LEFTOVERS, listed.chunk.chunk_key, keys, "beside the chunk")


# --- parts stored as one chunk ------------------------------------------------------------------------------------


def _diagnose_whole_chunk(chunk: Chunk, record: ArrayRecord) -> Steps[Finding | None]:
    """Return what is wrong with the size of a chunk whose parts are stored as one, or with its shard index."""
    key, index = chunk.chunk_key, record.shard_index
    if index is not None and not index.has_checksum:
        index = None
    (outcome,) = yield (Head(key, CHECK) if index is None else Get(key, index.request, CHECK),)
    if isinstance(outcome, Missing):
        return None
    wrong_size = _check_whole_size(chunk, record, outcome.nbytes if isinstance(outcome, Found) else 0)
    if wrong_size is not None or index is None or not isinstance(outcome, Found):
        return wrong_size
    return check_index(chunk, key, index, outcome)


def _check_whole_size(chunk: Chunk, record: ArrayRecord, nbytes: int) -> Finding | None:
    expected = sum(size for size in record.parts.sizes if size is not None)
    if nbytes == expected or (record.parts.unsized and nbytes > expected):
        return None
    least = "at least " if record.parts.unsized else ""
    detail = f"expected {least}{expected} bytes, found {nbytes}"
    return Finding(Problem.WRONG_SIZE, chunk.chunk_key, (chunk.chunk_key,), detail)


# --- parts stored as objects or chunks of their own ---------------------------------------------------------------


def _diagnose_parts(
    listed: Sequence[ListedChunk], index: ShardIndex | None, protocol: ChunkProtocol
) -> Steps[list[Finding]]:
    """Return what is wrong with chunks in parts: by the listing, and by requests for chunks that look complete."""
    suspects = [each for each in listed if not each.looks_complete]
    complete = [each for each in listed if each.looks_complete]
    first = yield from run_together([_diagnose_once(each.chunk, index, protocol) for each in complete])
    suspects += [each for each, finding in zip(complete, first, strict=True) if _is_suspicious(finding)]
    again = yield from run_together([diagnose_chunk(each.chunk, index, protocol) for each in suspects])
    findings = [each for each in first if each is not None and not _is_suspicious(each)]
    return findings + [each for each in again if each is not None]


def _is_suspicious(finding: Finding | None) -> bool:
    return finding is not None and finding.problem is not Problem.UNTAGGED


def _diagnose_once(chunk: Chunk, index: ShardIndex | None, protocol: ChunkProtocol) -> Steps[Finding | None]:
    """Return what is wrong with a chunk that looks complete in a listing; a write in progress may look wrong."""
    if protocol.has_tags and len(chunk.part_keys) > 1:
        return find_problem(chunk, (yield part_requests(chunk, index)), index)
    # Without tags, the listing shows everything but the checksum of the index.
    at = index_part(chunk, index)
    if at is None:
        return None
    requests = part_requests(chunk, index)
    # On a local disk, it costs nothing to look at the sizes of the other parts: the index may name more than there is.
    asked = range(len(requests)) if protocol.has_journal else (at,)
    outcomes = yield tuple(requests[part] for part in asked)
    return check_index_part(chunk, dict(zip(asked, outcomes, strict=True)), index)


def diagnose_chunk(chunk: Chunk, index: ShardIndex | None, protocol: ChunkProtocol) -> Steps[Finding | None]:
    """Return what is wrong with a chunk, if the chunk does not change during the check."""
    finding: Finding | None = None
    for _ in range(_MAX_CHECKS):
        before = yield from head(chunk.anchor_key, CHECK)
        if protocol.has_journal:
            finding = yield from _diagnose_journaled(chunk, index)
        else:
            finding = yield from _diagnose_tagged(chunk, index, before)
        if finding is None:
            return None
        if _is_same(before, (yield from head(chunk.anchor_key, CHECK))):
            return finding
    if finding is None or not _is_suspicious(finding):
        return finding
    return replace(finding, problem=Problem.INTERRUPTED, detail="it is being written")


def _is_same(before: Found | None, after: Found | None) -> bool:
    """Return whether two requests found the same write, or both found none."""
    return before is after if before is None or after is None else before.is_same(after)


def _diagnose_tagged(chunk: Chunk, index: ShardIndex | None, anchor: Found | None) -> Steps[Finding | None]:
    """Return what is wrong with a chunk by its parts, and by the staged copy that its anchor names."""
    # The copy is read first: a writer removes it after the parts belong to its write.
    copy = yield from _read_staged_copy(chunk, None if anchor is None else anchor.tag)
    outcomes = yield part_requests(chunk, index)
    finding = find_problem(chunk, outcomes, index)
    # Readers use the copy only if the parts do not belong to one write.
    if copy is None or finding is None or finding.problem is Problem.CHECKSUM or not finding.problem.is_damage:
        return finding
    if anchor is not None and anchor.tag is not None and any(staging.is_foreign(each, anchor.tag) for each in outcomes):
        return finding
    with_copy = find_problem(chunk, _replaced(outcomes, copy), None)
    is_embedded = anchor is not None and anchor.tag is not None and anchor.tag.embedded is not None
    place = "the tag of the anchor has" if is_embedded else "the staged copy has"
    return with_copy or replace(finding, problem=Problem.INTERRUPTED, detail=_interrupted(place))


def _interrupted(place: str) -> str:
    """Return what is wrong with a chunk whose committed write is not complete in place."""
    return f"an overwrite was interrupted, and software without parts_store may read a torn chunk; {place} all parts"


def _replaced(outcomes: Sequence[Outcome], staged: Mapping[int, Found]) -> list[Outcome]:
    """Return the responses for the parts, with staged parts in place of the parts themselves."""
    return [staged.get(part, outcome) for part, outcome in enumerate(outcomes)]


def _read_staged_copy(chunk: Chunk, tag: Tag | None) -> Steps[Mapping[int, Found] | None]:
    """Return the parts in the anchor's tag, or in the staged copy that it names; None if they are not there."""
    if tag is None or not tag.is_staged:
        return None
    return (yield from staging.read_copy(chunk, tag))


def _diagnose_journaled(chunk: Chunk, index: ShardIndex | None) -> Steps[Finding | None]:
    """Return what is wrong with a chunk by its parts, or by the staged files in their place if there is a journal."""
    found = yield from get(journal_key(chunk), "whether a write was interrupted")
    journal = Journal.parse(found, chunk)
    if journal is None:
        outcomes = yield part_requests(chunk, index)
        finding = find_problem(chunk, outcomes, index)
        if _is_suspicious(finding):
            return finding
        is_wrong = found is not None and any(isinstance(outcome, Found) for outcome in outcomes)
        return Finding(Problem.UNREADABLE, chunk.chunk_key, (journal_key(chunk),), NOT_VALID) if is_wrong else None
    # The staged files first: recovery moves them to where the parts belong.
    keys = staged_keys(chunk, journal.generation)
    heads = yield tuple(Head(key, CHECK) for key in keys)
    staged = {part: each for part, each in enumerate(heads) if isinstance(each, Found)}
    finding = find_problem(chunk, _replaced((yield part_requests(chunk, index)), staged), index)
    if finding is not None and _is_suspicious(finding):
        return _without_orphans(finding, chunk)
    if finding is None and not staged and (yield from _has_lost_all(chunk, journal)):
        return _lost(chunk)
    left = tuple(keys[part] for part in staged)
    return Finding(Problem.INTERRUPTED, chunk.chunk_key, left, _interrupted("the journal names")) if left else None


def _without_orphans(finding: Finding, chunk: Chunk) -> Finding:
    """Return the finding for a chunk with a journal, which says that the chunk exists: its parts are not orphans."""
    if finding.problem is not Problem.ORPHANS:
        return finding
    return _lost(chunk)


def _lost(chunk: Chunk) -> Finding:
    return Finding(Problem.INCOMPLETE, chunk.chunk_key, (chunk.anchor_key,), "no such object")


def _has_lost_all(chunk: Chunk, journal: Journal) -> Steps[bool]:
    """Return whether a journal says that a chunk exists of which there is nothing, neither staged nor in its place."""
    anchor = yield from head(chunk.anchor_key, CHECK)
    # Another client may have finished the write, and then deleted the chunk.
    again = yield from get(journal_key(chunk), "whether a write was interrupted")
    return anchor is None and Journal.parse(again, chunk) == journal
