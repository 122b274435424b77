"""Tell what is wrong with a chunk from the responses for all of its parts."""

from collections.abc import Mapping, Sequence

from parts_store.engine.steps import Found, Get, Head, Outcome, Request
from parts_store.format.keys import Chunk
from parts_store.format.shard_index import ShardIndex, needed_nbytes
from parts_store.maintenance.report import Finding, Problem
from parts_store.transactions.versions import is_of_layout

CHECK = "whether the chunk is whole"


def part_requests(chunk: Chunk, index: ShardIndex | None) -> tuple[Request, ...]:
    """Return a HEAD request for each part, and a GET request for a part that is a shard index with a checksum."""
    at = index_part(chunk, index)
    return tuple(Get(key, None, CHECK) if part == at else Head(key, CHECK) for part, key in enumerate(chunk.part_keys))


def index_part(chunk: Chunk, index: ShardIndex | None) -> int | None:
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
        or check_index_part(chunk, found, index)
        or _find_untagged(chunk, found)
    )


def check_index_part(chunk: Chunk, outcomes: Mapping[int, Outcome], index: ShardIndex | None) -> Finding | None:
    """Return a finding if the part that is the shard index does not match its checksum."""
    part = index_part(chunk, index)
    outcome = None if part is None else outcomes[part]
    # The response for a staged file is without its bytes.
    if part is None or index is None or not isinstance(outcome, Found) or outcome.span.nbytes < outcome.nbytes:
        return None
    return check_index(chunk, chunk.part_keys[part], index, outcome) or _find_short_data(
        chunk, index, outcome, outcomes
    )


def check_index(chunk: Chunk, key: str, index: ShardIndex, outcome: Found) -> Finding | None:
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
