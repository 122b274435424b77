"""Decide whether parts with the tags of several writes are one value nevertheless.

A mirror that skips objects whose bytes did not change keeps their old tags, so that the parts of a chunk have different
tags and are one value. A mirror that was made during a write also has parts with different tags, and they are not one
value. Tags cannot tell the two cases apart. Checksums can, and so can the fact that only parts of one write have bytes
that influence the values.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from parts_store.engine.steps import Found
from parts_store.format.integers import parse_integer
from parts_store.format.metadata import ArrayRecord
from parts_store.format.ranges import Span
from parts_store.format.shard_index import ShardIndex, has_valid_checksum


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
