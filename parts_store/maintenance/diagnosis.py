"""What is wrong with stored chunks: what a listing tells, and what a second look adds.

A listing shows what is missing, orphaned, of a wrong size, or beside a chunk. It shows no tags: whether the parts of a
chunk are of one write takes a look at each of them. What seems wrong is looked at again, so that a write under way is
not taken for damage. Changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

from zarr.abc.store import RangeByteRequest

from parts_store.engine.backend import Means
from parts_store.engine.steps import Entry, Found, Get, Head, Missing, Outcome, Request, Steps, get, head
from parts_store.errors import ConcurrentWriteError, PartsStoreError
from parts_store.format.keys import (
    PROTOCOL_FOLDER,
    Chunk,
    PartPlacement,
    candidates,
    is_probe_key,
    join,
    parse_node_key,
)
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex, has_valid_checksum
from parts_store.transactions import journaled, reading, staging
from parts_store.transactions.locking import array_locks
from parts_store.transactions.read_attempt import ReadSettings
from parts_store.transactions.versions import is_of_layout

_LOOK = "whether the chunk is whole"
# How often a chunk that changes under a look is looked at.
_MAX_LOOKS = 3
# How many bytes of chunks are compared with their checksums at once, beyond those of one chunk.
_MAX_NBYTES = 1 << 26


class Problem(Enum):
    """What can be wrong with a chunk."""

    # A part is missing, and nothing has its bytes.
    INCOMPLETE = "incomplete"
    # Its parts are of different writes, and nothing has the bytes that are missing.
    MIXTURE = "mixture"
    # A part has another size than it should.
    WRONG_SIZE = "wrong size"
    # Some parts are tagged, as one write, and some are not: another program wrote them, or a copy lost their tags.
    PARTLY_TAGGED = "partly tagged"
    # It was written with another layout than its array has, through a handle from before the array was created again.
    OTHER_LAYOUT = "other layout"
    # The checksum does not fit the bytes.
    CHECKSUM = "checksum"
    # It cannot be had: in a session, that it is there does not say that its bytes are.
    UNREADABLE = "unreadable"
    # A write was committed and not finished: readers see it, other programs may not.
    INTERRUPTED = "interrupted"
    # Parts of a chunk that does not exist.
    ORPHANS = "orphans"
    # What a writer keeps beside a chunk; it may be at work.
    LEFTOVERS = "leftovers"
    # Nodes of parts in a session, whose array is gone or another.
    STRAY_NODES = "stray nodes"
    # No part is tagged: another program wrote it. It is read as it is.
    UNTAGGED = "untagged"
    # An array whose document does not tell software without concat-parts to refuse it, which would misread it.
    UNMARKED = "unmarked"

    @property
    def is_damage(self) -> bool:
        """Whether reading fails for it."""
        return self in (
            Problem.INCOMPLETE,
            Problem.MIXTURE,
            Problem.WRONG_SIZE,
            Problem.PARTLY_TAGGED,
            Problem.OTHER_LAYOUT,
            Problem.CHECKSUM,
            Problem.UNREADABLE,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a chunk, and whether it was put right."""

    problem: Problem
    # Or the folder beside it, of a chunk that nothing else is there of.
    chunk_key: str
    # The objects that it is about.
    keys: tuple[str, ...]
    detail: str
    is_mended: bool = False


@dataclass(slots=True)
class Listing:
    """What a listing shows of one chunk: its parts, and what is beside it."""

    chunk: Chunk
    parts: dict[int, Entry] = field(default_factory=dict)
    beside: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """What a listing shows of all chunks in parts; and what is beside chunks of which nothing else is there."""

    chunks: dict[str, Listing] = field(default_factory=dict)
    # By the path of the array, and the folder beside the chunk.
    strays: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)
    objects: int = 0


def survey(entries: Iterable[Entry], arrays: Mapping[str, ArrayRecord]) -> Survey:
    """The chunks of these arrays, by the objects that are there."""
    result = Survey()
    beside: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if (found := _folder(entry.key)) is not None:
            # What a writer left that died while it asked the server belongs to no array.
            if found[0] in arrays or is_probe_key(entry.key):
                beside.setdefault(found, []).append(entry)
            continue
        if (place := _locate(entry.key, arrays)) is not None:
            path, relative, part = place
            chunk_key = join(path, relative)
            listing = result.chunks.get(chunk_key)
            if listing is None:
                listing = result.chunks[chunk_key] = Listing(arrays[path].chunk(path, relative))
            listing.parts[part] = entry
            result.objects += 1
    if beside:
        by_folder = {each.chunk.side_folder: each for each in result.chunks.values()}
        for (array, folder), of_folder in beside.items():
            if folder in by_folder:
                by_folder[folder].beside = of_folder
            else:
                result.strays[array, folder] = of_folder
    return result


def _folder(key: str) -> tuple[str, str] | None:
    """The path of the array, and the folder beside a chunk of it, that an object of the write protocol is in.

    What belongs to a folder without being in it, its lock, counts as in it.
    """
    segments = key.split("/")
    if PROTOCOL_FOLDER not in segments[:-1]:
        return None
    at = segments.index(PROTOCOL_FOLDER)
    array = "/".join(segments[:at])
    if key in array_locks(array):
        # Whoever changes the array next removes it.
        return None
    return array, join(array, f"{PROTOCOL_FOLDER}/{segments[at + 1].removesuffix('.lock')}")


def _locate(key: str, arrays: Mapping[str, ArrayRecord]) -> tuple[str, str, int] | None:
    """The array that an object belongs to, its chunk relative to that, and which part of it is there."""
    if (node := parse_node_key(key)) is not None:
        record = arrays.get(node.array)
        if (
            record is None
            or record.placement is not PartPlacement.SPLIT
            or not record.encoding.is_chunk_key(node.relative)
        ):
            return None
        numbers = [at for at, part in enumerate(record.parts.parts) if part.key_suffix == node.suffix]
        return (node.array, node.relative, numbers[0]) if numbers else None
    for path, relative in candidates(key):
        if path in arrays and (place := _place(arrays[path], relative)) is not None:
            return path, *place
    return None


def _place(record: ArrayRecord, relative: str) -> tuple[str, int] | None:
    """The chunk that an object belongs to, and which part of it is there."""
    if record.placement is not PartPlacement.BESIDE:
        part = record.parts.anchor if record.placement is PartPlacement.SPLIT else 0
        return (relative, part) if record.encoding.is_chunk_key(relative) else None
    for part, each in enumerate(record.parts.parts):
        chunk = relative.removesuffix(each.key_suffix)
        if relative.endswith(each.key_suffix) and record.encoding.is_chunk_key(chunk):
            return chunk, part
    return None


# --- looking ------------------------------------------------------------------------------------------------------


def check(
    listings: Sequence[Listing], record: ArrayRecord, settings: ReadSettings, *, with_bytes: bool
) -> Steps[list[Finding]]:
    """What is wrong with these chunks of one array; `with_bytes` reads those whose last codec is a checksum."""
    if record.placement is PartPlacement.WHOLE:
        looks = yield from _together([_look_at_whole(each.chunk, record) for each in listings])
        findings = [each for each in looks if each is not None]
    else:
        findings = yield from _check_parts(listings, record.shard_index, settings.means)
    if with_bytes and record.placement is not PartPlacement.BESIDE:
        # That a session has a chunk does not say that its bytes can be had. Raises if they cannot.
        stored = [entry for each in listings for entry in each.parts.values() if entry.nbytes]
        if stored:
            yield tuple(Get(entry.key, RangeByteRequest(0, 1), _LOOK) for entry in stored)
    if with_bytes and record.ends_in_checksum:
        # Damaged, or no chunk at all.
        without = {each.chunk_key for each in findings if each.problem.is_damage or each.problem is Problem.ORPHANS}
        readable = [each for each in listings if each.chunk.chunk_key not in without]
        for group in _groups(readable):
            found = yield from _together([_check_bytes(each.chunk, settings) for each in group])
            findings += [each for each in found if each is not None]
    interrupted = {finding.chunk_key for finding in findings if finding.problem is Problem.INTERRUPTED}
    for each in listings:
        if each.beside and each.chunk.chunk_key not in interrupted:
            keys = tuple(entry.key for entry in each.beside)
            findings.append(Finding(Problem.LEFTOVERS, each.chunk.chunk_key, keys, "beside the chunk"))
    return findings


def _look_at_whole(chunk: Chunk, record: ArrayRecord) -> Steps[Finding | None]:
    """What is wrong with a chunk whose parts are stored as one: its size, and the index of a shard."""
    key, index = chunk.chunk_key, record.shard_index
    reads_index = index is not None and index.has_checksum
    (outcome,) = yield (Get(key, index.request, _LOOK) if index is not None and reads_index else Head(key, _LOOK),)
    if isinstance(outcome, Missing):
        return None
    nbytes = outcome.nbytes if isinstance(outcome, Found) else 0
    sizes = [size for size in record.parts.sizes if size is not None]
    if nbytes < sum(sizes) or (not record.parts.unsized and nbytes != sum(sizes)):
        least = "at least " if record.parts.unsized else ""
        detail = f"expected {least}{sum(sizes)} bytes, found {nbytes}"
        return Finding(Problem.WRONG_SIZE, key, (key,), detail)
    if index is not None and reads_index and isinstance(outcome, Found):
        return None if index.is_sound(bytes(memoryview(outcome.data))) else _unsound(chunk, key)
    return None


def _check_parts(listings: Sequence[Listing], index: ShardIndex | None, means: Means) -> Steps[list[Finding]]:
    """What is wrong with chunks in parts: what a listing tells, and what a look at those that seem whole adds."""
    suspects = [each for each in listings if not _seems_whole(each)]
    whole = [each for each in listings if _seems_whole(each)]
    glances = yield from _together([_glance(each.chunk, index, means) for each in whole])
    suspects += [each for each, finding in zip(whole, glances, strict=True) if _is_suspicious(finding)]
    looks = yield from _together([look_again(each.chunk, index, means) for each in suspects])
    findings = [each for each in glances if each is not None and not _is_suspicious(each)]
    return findings + [each for each in looks if each is not None]


def _together[T](several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Steps that have nothing to do with each other, side by side: a batch of all of them at a time."""
    results: dict[int, T] = {}
    outcomes: dict[int, tuple[Outcome, ...] | None] = dict.fromkeys(range(len(several)))
    while outcomes:
        batches: dict[int, tuple[Request, ...]] = {}
        for number, given in outcomes.items():
            try:
                batches[number] = next(several[number]) if given is None else several[number].send(given)
            except StopIteration as done:
                results[number] = done.value
        requests = tuple(request for batch in batches.values() for request in batch)
        answers = iter((yield requests) if requests else ())
        outcomes = {number: tuple(islice(answers, len(batch))) for number, batch in batches.items()}
    return [results[number] for number in range(len(several))]


def _is_suspicious(finding: Finding | None) -> bool:
    return finding is not None and finding.problem is not Problem.UNTAGGED


def _seems_whole(listing: Listing) -> bool:
    chunk = listing.chunk
    sizes = {part: entry.nbytes for part, entry in listing.parts.items()}
    is_right = all(size is None or sizes.get(part) == size for part, size in enumerate(chunk.parts.sizes))
    # A staged copy or a journal may have the rest.
    return len(sizes) == len(chunk.part_keys) and is_right and not listing.beside


def _groups(listings: Sequence[Listing]) -> Iterator[list[Listing]]:
    """So many chunks that they fit into memory together."""
    group: list[Listing] = []
    total = 0
    for each in listings:
        nbytes = sum(entry.nbytes for entry in each.parts.values())
        if group and total + nbytes > _MAX_NBYTES:
            yield group
            group, total = [], 0
        group.append(each)
        total += nbytes
    if group:
        yield group


def _check_bytes(chunk: Chunk, settings: ReadSettings) -> Steps[Finding | None]:
    """Whether a chunk fits the checksum at its end."""
    try:
        read = yield from reading.read(chunk, [None], settings=settings, with_anchor=True)
    except ConcurrentWriteError:
        # Whoever writes it knows what he writes.
        return None
    except PartsStoreError as error:
        return Finding(Problem.INCOMPLETE, chunk.chunk_key, chunk.part_keys, str(error))
    whole = b"".join(read.values[0] or ()) if read is not None else b""
    if read is None or has_valid_checksum(whole):
        return None
    return Finding(Problem.CHECKSUM, chunk.chunk_key, chunk.part_keys, "the bytes do not fit their checksum")


def _glance(chunk: Chunk, index: ShardIndex | None, means: Means) -> Steps[Finding | None]:
    """What is wrong with a chunk that a listing shows whole, as far as one look tells."""
    at = _index_part(chunk, index)
    if means is Means.TAGS and len(chunk.part_keys) > 1:
        return judge(chunk, (yield _looks(chunk, index)), index)
    # Without tags, there is nothing that a listing does not show, but the bytes.
    if at is None:
        return None
    outcomes = yield (_looks(chunk, index)[at],)
    return _judge_index(chunk, outcomes[0], index)


def look_again(chunk: Chunk, index: ShardIndex | None, means: Means) -> Steps[Finding | None]:
    """What is wrong with a chunk, and stays so while it is looked at."""
    finding: Finding | None = None
    for _ in range(_MAX_LOOKS):
        before = yield from head(chunk.anchor_key, _LOOK)
        if means in (Means.TAGS, Means.SESSION):
            finding = yield from _look_by_tags(chunk, index, before)
        else:
            finding = yield from _look_by_journal(chunk, index)
        if finding is None:
            return None
        if _is_same(before, (yield from head(chunk.anchor_key, _LOOK))):
            return finding
    if finding is None or not _is_suspicious(finding):
        return finding
    return replace(finding, problem=Problem.INTERRUPTED, detail="it is being written")


def _is_same(before: Found | None, after: Found | None) -> bool:
    """Whether two looks saw the same write, or none."""
    return before is after if before is None or after is None else before.is_same(after)


def _look_by_tags(chunk: Chunk, index: ShardIndex | None, anchor: Found | None) -> Steps[Finding | None]:
    """What is wrong with a chunk by its parts, or else by its anchor and the staged copy."""
    copy = None
    # The copy first: it stays until the parts are of its write.
    if anchor is not None and anchor.tag is not None and anchor.tag.is_staged:
        found = yield from get(staging.key_of(chunk, anchor.tag.generation), "staged copy")
        copy = None if found is None else staging.unstage(chunk, found, anchor.tag)
    outcomes = yield _looks(chunk, index)
    finding = judge(chunk, outcomes, index)
    # Nobody looks for a copy of what is of one write.
    if copy is None or finding is None or finding.problem is Problem.CHECKSUM or not finding.problem.is_damage:
        return finding
    mended = judge(chunk, [copy.get(part, outcome) for part, outcome in enumerate(outcomes)], None)
    if mended is not None:
        return mended
    return replace(finding, problem=Problem.INTERRUPTED, detail="the staged copy has what is missing")


def _look_by_journal(chunk: Chunk, index: ShardIndex | None) -> Steps[Finding | None]:
    """What is wrong with a chunk by its parts, or by what is staged in their place while there is a journal."""
    found = yield from get(journaled.journal_key(chunk), "whether a write was interrupted")
    record = journaled.Record.parse(found, chunk)
    keys = () if record is None else journaled.staged_keys(chunk, record.generation)
    # What is staged first: it goes to where the part belongs.
    looks = (yield tuple(Head(key, _LOOK) for key in keys)) if keys else ()
    staged = {part: each for part, each in enumerate(looks) if isinstance(each, Found)}
    outcomes = yield _looks(chunk, index)
    finding = judge(chunk, [staged.get(part, outcome) for part, outcome in enumerate(outcomes)], index)
    if record is not None and finding is not None and finding.problem is Problem.ORPHANS:
        # The journal says that there is a chunk.
        return Finding(Problem.INCOMPLETE, chunk.chunk_key, (chunk.anchor_key,), "no such object")
    if _is_suspicious(finding):
        return finding
    if found is not None and record is None and any(isinstance(outcome, Found) for outcome in outcomes):
        return Finding(Problem.UNREADABLE, chunk.chunk_key, (journaled.journal_key(chunk),), journaled.NOT_VALID)
    if staged:
        left = tuple(keys[part] for part in staged)
        return Finding(Problem.INTERRUPTED, chunk.chunk_key, left, "the journal says how it goes on")
    return None


def _looks(chunk: Chunk, index: ShardIndex | None) -> tuple[Request, ...]:
    """A look at each part: at its tag, and at the bytes where they are a shard's index with a checksum."""
    at = _index_part(chunk, index)
    return tuple(Get(key, None, _LOOK) if part == at else Head(key, _LOOK) for part, key in enumerate(chunk.part_keys))


def _index_part(chunk: Chunk, index: ShardIndex | None) -> int | None:
    """The part that is the shard's index and nothing else."""
    if index is None or not index.has_checksum:
        return None
    part = len(chunk.part_keys) - 1 if index.location == "end" else 0
    return part if chunk.parts.sizes[part] == index.nbytes and part != chunk.parts.anchor else None


# --- judging ------------------------------------------------------------------------------------------------------


def judge(chunk: Chunk, outcomes: Sequence[Outcome], index: ShardIndex | None) -> Finding | None:
    """What is wrong with the parts of a chunk, as far as they tell: the worst of it."""
    key, keys = chunk.chunk_key, chunk.part_keys
    found = {part: each for part, each in enumerate(outcomes) if isinstance(each, Found)}
    if chunk.parts.anchor not in found:
        orphans = tuple(keys[part] for part in found)
        return Finding(Problem.ORPHANS, key, orphans, "parts of a chunk that does not exist") if orphans else None
    if not is_of_layout(found[chunk.parts.anchor], chunk):
        detail = "written with another layout than that of its array"
        return Finding(Problem.OTHER_LAYOUT, key, (chunk.anchor_key,), detail)
    missing = tuple(keys[part] for part in range(len(keys)) if part not in found)
    if missing:
        return Finding(Problem.INCOMPLETE, key, missing, "no such object")
    damage = _judge_sizes(chunk, found) or _judge_tags(chunk, found)
    at = _index_part(chunk, index)
    if damage is None and at is not None:
        damage = _judge_index(chunk, found[at], index)
    if damage is None and len(keys) > 1 and all(each.tag is None for each in found.values()):
        return Finding(Problem.UNTAGGED, key, keys, "written by another program")
    return damage


def _judge_sizes(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    """The first part that has another size than the array says, or its own tag."""
    for part, each in sorted(found.items()):
        expected = [chunk.parts.sizes[part]]
        if each.tag is not None and len(each.tag.sizes) == len(chunk.part_keys):
            expected.append(each.tag.sizes[part])
        for nbytes in expected:
            if nbytes is not None and each.nbytes != nbytes:
                detail = f"expected {nbytes} bytes, found {each.nbytes}"
                return Finding(Problem.WRONG_SIZE, chunk.chunk_key, (chunk.part_keys[part],), detail)
    return None


def _judge_tags(chunk: Chunk, found: Mapping[int, Found]) -> Finding | None:
    """Parts of more than one write, or of one write and of no known one."""
    key, keys, anchor = chunk.chunk_key, chunk.part_keys, found[chunk.parts.anchor]
    if len({each.generation for each in found.values() if each.tag is not None}) > 1:
        others = tuple(keys[part] for part, each in found.items() if each.generation != anchor.generation)
        return Finding(Problem.MIXTURE, key, others, "of another write than the anchor")
    untagged = tuple(keys[part] for part, each in found.items() if each.tag is None)
    if 0 < len(untagged) < len(keys):
        return Finding(Problem.PARTLY_TAGGED, key, untagged, "no tag")
    return None


def _judge_index(chunk: Chunk, outcome: Outcome, index: ShardIndex | None) -> Finding | None:
    """A shard's index that does not fit its checksum."""
    part = _index_part(chunk, index)
    # What is staged was looked at without its bytes.
    if part is None or index is None or not isinstance(outcome, Found) or outcome.span.nbytes < outcome.nbytes:
        return None
    if index.is_sound(bytes(memoryview(outcome.data))):
        return None
    return _unsound(chunk, chunk.part_keys[part])


def _unsound(chunk: Chunk, key: str) -> Finding:
    return Finding(Problem.CHECKSUM, chunk.chunk_key, (key,), "the index does not fit its checksum")
