"""Find what is wrong with listed chunks, without changing anything.

A listing shows missing parts, orphans, wrong sizes, and objects beside a chunk. It shows no tags: whether the parts of
a chunk belong to one write takes a request for each part. A chunk that seems to be damaged is checked again, so that a
write in progress is not reported as damage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from zarr.abc.store import RangeByteRequest

from parts_store.engine.steps import Found, Get, Head, Missing, Outcome, StepRequest, Steps, get, head, run_together
from parts_store.errors import ConcurrentWriteError, PartsStoreError, ShardFileError
from parts_store.format.keys import Chunk, PartPlacement
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex, has_valid_checksum, needed_nbytes
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions import shards, staging
from parts_store.transactions.journaled import NOT_VALID, Journal, journal_key, staged_keys
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings, is_of_layout

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
        findings = yield from _run_checks([_diagnose_whole_chunk(each.chunk, record) for each in listed])
    else:
        findings = yield from _diagnose_parts(listed, record.shard_index, protocol)
    if record.ends is not None and record.shard_index is not None and record.placement is PartPlacement.BESIDE:
        # Where there are tags, they show that a file was changed; without tags, only a seal does.
        has_tags = protocol.has_tags and len(record.parts.parts) > 1
        sealed = _untagged(listed, findings) if has_tags else _readable(listed, findings)
        seals = [_check_seal(each.chunk, record.shard_index, protocol, settings) for each in sealed]
        findings += yield from _run_checks(seals)
    if with_bytes and record.placement is not PartPlacement.BESIDE:
        yield from _require_available(listed)
    if with_bytes and record.ends_in_checksum:
        for group in _groups(_readable(listed, findings)):
            findings += yield from _run_checks([_check_checksum(each.chunk, protocol, settings) for each in group])
    # An interrupted write needs what lies beside its chunk.
    interrupted = {finding.chunk_key for finding in findings if finding.problem is Problem.INTERRUPTED}
    beside = [each for each in listed if each.beside and each.chunk.chunk_key not in interrupted]
    return findings + [leftovers_beside(each) for each in beside]


def _run_checks(checks: Sequence[Steps[Finding | None]]) -> Steps[list[Finding]]:
    """Run checks at the same time, and return what they find."""
    found = yield from run_together(checks)
    return [finding for finding in found if finding is not None]


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
    """Return the chunks whose parts have no tags."""
    untagged = {each.chunk_key for each in findings if each.problem is Problem.UNTAGGED}
    return [each for each in listed if each.chunk.chunk_key in untagged]


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
    nbytes = outcome.nbytes if isinstance(outcome, Found) else 0
    expected, unsized = sum(size for size in record.parts.sizes if size is not None), record.parts.unsized
    if nbytes < expected or (nbytes > expected and not unsized):
        detail = f"expected {'at least ' if unsized else ''}{expected} bytes, found {nbytes}"
        return Finding(Problem.WRONG_SIZE, key, (key,), detail)
    return None if index is None or not isinstance(outcome, Found) else _check_index(chunk, key, index, outcome)


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
    at = _index_part(chunk, index)
    if at is None:
        return None
    requests = part_requests(chunk, index)
    # On a local disk, it costs nothing to look at the sizes of the other parts: the index may name more than there is.
    asked = range(len(requests)) if protocol.has_journal else (at,)
    outcomes = yield tuple(requests[part] for part in asked)
    return _check_index_part(chunk, dict(zip(asked, outcomes, strict=True)), index)


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
    tag = None if anchor is None else anchor.tag
    copy = (yield from staging.read_copy(chunk, tag)) if tag is not None and tag.is_staged else None
    outcomes = yield part_requests(chunk, index)
    finding = find_problem(chunk, outcomes, index)
    # Readers use the copy only if the parts do not belong to one write.
    if tag is None or copy is None or finding is None:
        return finding
    if finding.problem is Problem.CHECKSUM or not finding.problem.is_damage:
        return finding
    if any(staging.is_foreign(each, tag) for each in outcomes):
        return finding
    with_copy = find_problem(chunk, _replaced(outcomes, copy), None)
    place = "the staged copy has" if tag.embedded is None else "the tag of the anchor has"
    return with_copy or replace(finding, problem=Problem.INTERRUPTED, detail=_interrupted(place))


def _interrupted(place: str) -> str:
    """Return what is wrong with a chunk whose committed write is not complete in place."""
    return f"an overwrite was interrupted, and software without parts_store may read a torn chunk; {place} all parts"


def _replaced(outcomes: Sequence[Outcome], staged: Mapping[int, Found]) -> list[Outcome]:
    """Return the responses for the parts, with staged parts in place of the parts themselves."""
    return [staged.get(part, outcome) for part, outcome in enumerate(outcomes)]


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
        # The journal says that the chunk exists, so that its parts are not orphans.
        return _lost(chunk) if finding.problem is Problem.ORPHANS else finding
    if finding is None and not staged and (yield from _has_lost_all(chunk, journal)):
        return _lost(chunk)
    left = tuple(keys[part] for part in staged)
    return Finding(Problem.INTERRUPTED, chunk.chunk_key, left, _interrupted("the journal names")) if left else None


def _lost(chunk: Chunk) -> Finding:
    return Finding(Problem.INCOMPLETE, chunk.chunk_key, (chunk.anchor_key,), "no such object")


def _has_lost_all(chunk: Chunk, journal: Journal) -> Steps[bool]:
    """Return whether a journal says that a chunk exists of which there is nothing, neither staged nor in its place."""
    anchor = yield from head(chunk.anchor_key, CHECK)
    # Another client may have finished the write, and then deleted the chunk.
    again = yield from get(journal_key(chunk), "whether a write was interrupted")
    return anchor is None and Journal.parse(again, chunk) == journal


CHECK = "whether the chunk is whole"


def part_requests(chunk: Chunk, index: ShardIndex | None) -> tuple[StepRequest, ...]:
    """Return a HEAD request for each part, and a GET request for a part that is a shard index with a checksum."""
    at = _index_part(chunk, index)
    return tuple(Get(key, None, CHECK) if part == at else Head(key, CHECK) for part, key in enumerate(chunk.part_keys))


def _index_part(chunk: Chunk, index: ShardIndex | None) -> int | None:
    """Return the number of the part that is the shard index and nothing else, if the index has a checksum."""
    if index is None or not index.has_checksum:
        return None
    part = len(chunk.part_keys) - 1 if index.location == "end" else 0
    return part if chunk.parts.sizes[part] == index.nbytes and part != chunk.parts.anchor else None


def find_problem(chunk: Chunk, outcomes: Sequence[Outcome], index: ShardIndex | None) -> Finding | None:
    """Return the worst problem that the responses for the parts of a chunk show; None if there is none."""
    found = {part: each for part, each in enumerate(outcomes) if isinstance(each, Found)}
    if chunk.parts.anchor not in found:
        return _find_orphans(chunk, found)
    if not is_of_layout(found[chunk.parts.anchor], chunk):
        detail = "written with another layout than that of its array"
        return Finding(Problem.OTHER_LAYOUT, chunk.chunk_key, (chunk.anchor_key,), detail)
    missing = tuple(key for part, key in enumerate(chunk.part_keys) if part not in found)
    if missing:
        return Finding(Problem.INCOMPLETE, chunk.chunk_key, missing, "no such object")
    return (
        _find_wrong_size(chunk, found)
        or _find_mixed_tags(chunk, found)
        or _check_index_part(chunk, found, index)
        or _find_untagged(chunk, found)
    )


def _check_index_part(chunk: Chunk, outcomes: Mapping[int, Outcome], index: ShardIndex | None) -> Finding | None:
    """Return a finding if the part that is the shard index does not match its checksum."""
    part = _index_part(chunk, index)
    outcome = None if part is None else outcomes[part]
    # The response for a staged file is without its bytes.
    if part is None or index is None or not isinstance(outcome, Found) or outcome.span.nbytes < outcome.nbytes:
        return None
    return _check_index(chunk, chunk.part_keys[part], index, outcome) or _find_short_data(
        chunk, index, outcome, outcomes
    )


def _check_index(chunk: Chunk, key: str, index: ShardIndex, outcome: Found) -> Finding | None:
    """Return a finding if the bytes of a shard index do not match their checksum."""
    if index.is_sound(bytes(memoryview(outcome.data))):
        return None
    return Finding(Problem.CHECKSUM, chunk.chunk_key, (key,), "the index does not match its checksum")


def _find_short_data(chunk: Chunk, index: ShardIndex, found: Found, outcomes: Mapping[int, Outcome]) -> Finding | None:
    """Return a finding if the index of a shard names bytes behind the end of its data."""
    table = index.decode(bytes(memoryview(found.data)))
    sizes = [each.nbytes for each in outcomes.values() if isinstance(each, Found)]
    if (
        table is None
        or len(sizes) != len(chunk.part_keys)
        or (missing := needed_nbytes(table, index) - sum(sizes)) <= 0
    ):
        return None
    detail = f"the index names {missing} bytes more than there are"
    return Finding(Problem.WRONG_SIZE, chunk.chunk_key, (chunk.anchor_key,), detail)


def _find_orphans(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    orphans = tuple(chunk.part_keys[part] for part in found)
    if not orphans:
        return None
    return Finding(Problem.ORPHANS, chunk.chunk_key, orphans, "parts of a chunk that does not exist")


def _find_wrong_size(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    """Return the first part that has another size than its array or its own tag says."""
    for part, each in sorted(found.items()):
        expected = [chunk.parts.sizes[part]]
        if each.tag is not None and len(each.tag.sizes) == len(chunk.part_keys):
            expected.append(each.tag.sizes[part])
        for nbytes in expected:
            if nbytes is not None and each.nbytes != nbytes:
                detail = f"expected {nbytes} bytes, found {each.nbytes}"
                return Finding(Problem.WRONG_SIZE, chunk.chunk_key, (chunk.part_keys[part],), detail)
    return None


def _find_mixed_tags(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    """Return the parts of another write than the anchor, or the parts without a tag if others have one."""
    key, keys, anchor = chunk.chunk_key, chunk.part_keys, found[chunk.parts.anchor]
    if len({each.generation for each in found.values() if each.tag is not None}) > 1:
        others = tuple(keys[part] for part, each in found.items() if each.generation != anchor.generation)
        return Finding(Problem.MIXTURE, key, others, "of another write than the anchor")
    untagged = tuple(keys[part] for part, each in found.items() if each.tag is None)
    if 0 < len(untagged) < len(keys):
        return Finding(Problem.PARTLY_TAGGED, key, untagged, "no tag")
    return None


def _find_untagged(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    if len(chunk.part_keys) == 1 or any(each.tag is not None for each in found.values()):
        return None
    return Finding(Problem.UNTAGGED, chunk.chunk_key, chunk.part_keys, "written by another program")


# How many bytes are read at once, unless a single chunk is larger.
_MAX_NBYTES = 1 << 26


def _groups(listed: Sequence[ListedChunk]) -> Iterator[list[ListedChunk]]:
    """Yield groups of chunks that fit into memory together."""
    group: list[ListedChunk] = []
    total = 0
    for each in listed:
        nbytes = sum(entry.nbytes for entry in each.parts.values())
        if group and total + nbytes > _MAX_NBYTES:
            yield group
            group, total = [], 0
        group.append(each)
        total += nbytes
    if group:
        yield group


def _check_checksum(chunk: Chunk, protocol: ChunkProtocol, settings: ReadSettings) -> Steps[Finding | None]:
    try:
        read = yield from protocol.read(chunk, [None], settings, with_anchor=True)
    except ConcurrentWriteError:
        # The chunk is being written, so what was listed is gone.
        return None
    except PartsStoreError as error:
        return Finding(Problem.INCOMPLETE, chunk.chunk_key, chunk.part_keys, str(error))
    if read is None or has_valid_checksum(b"".join(read.values[0] or ())):
        return None
    return Finding(Problem.CHECKSUM, chunk.chunk_key, chunk.part_keys, "the bytes do not match their checksum")


def _check_seal(
    chunk: Chunk, index: ShardIndex, protocol: ChunkProtocol, settings: ReadSettings
) -> Steps[Finding | None]:
    try:
        versioned = yield from shards.read_index(protocol, chunk, index, settings, known=None, is_suspect=True)
    except ShardFileError:
        return Finding(Problem.UNREADABLE, chunk.chunk_key, (chunk.anchor_key,), "changed by another program")
    except PartsStoreError:
        # The chunk is being written. Other damage is found without the seal.
        return None
    if versioned is None or versioned.has_seal or len(chunk.part_keys) > 1:
        return None
    detail = "written by software that does not write files"
    return Finding(Problem.NO_FILE, chunk.chunk_key, (chunk.anchor_key,), detail)
