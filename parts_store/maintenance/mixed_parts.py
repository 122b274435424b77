"""Whether parts that carry the tags of several writes are one value nevertheless.

A mirror that skips objects whose bytes did not change keeps their old tags, so that the parts of a chunk carry several.
So does one that was made while somebody wrote, and there the bytes are of several writes. Tags do not tell the two
apart. What tells are checksums, and what of the chunk has any influence on its values.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from parts_store.engine.steps import Found
from parts_store.format.metadata import ArrayRecord
from parts_store.format.ranges import Span
from parts_store.format.shard_index import ShardIndex, has_valid_checksum

_NO_EVIDENCE = "nothing tells whether its parts belong together: it has no checksum"


def doubt(record: ArrayRecord, parts: Sequence[Found]) -> str | None:
    """Why these parts, all of a chunk, whole and of the right sizes, may not belong together; None if they do."""
    sizes = tuple(part.nbytes for part in parts)
    if not any(part.tag is not None and part.tag.sizes == sizes for part in parts):
        return "the sizes of its parts are not those of any of the writes"
    whole = b"".join(bytes(memoryview(part.data)) for part in parts)
    before, after, codecs = _padding(record)
    payload = Span(before, max(len(whole) - after, before))
    if codecs and _name(codecs[-1]) == "crc32c":
        body = whole[payload.start : payload.stop]
        return None if has_valid_checksum(body) else "its bytes do not fit their checksum"
    index = record.shard_index
    if index is not None and index.has_checksum:
        return _doubt_shard(index, whole, parts)
    # What a program that knows the codecs skips has no influence on any value.
    return None if _writes(parts, [payload]) == 1 else _NO_EVIDENCE


def _doubt_shard(index: ShardIndex, whole: bytes, parts: Sequence[Found]) -> str | None:
    at = len(whole) - index.nbytes if index.location == "end" else 0
    stored = whole[max(at, 0) : max(at, 0) + index.nbytes]
    ranges = index.ranges_of(stored, range(index.slots))
    if ranges is None:
        return "its index does not fit its checksum"
    spans = sorted(Span(each.start, each.end) for each in ranges if each is not None)
    if any(span.stop > len(whole) for span in spans):
        return "its index does not fit its data"
    if _writes(parts, [Span(at, at + index.nbytes), *spans]) == 1:
        return None
    # The index, or some of the data, may be of another write. If so, the one hardly fits the other.
    if None in ranges:
        return "its index may be of another write than its data: not all inner chunks are there"
    start = index.nbytes if index.location == "start" else 0
    stops = [span.stop for span in spans]
    if [span.start for span in spans] != [start, *stops[:-1]] or stops[-1] != start + len(whole) - index.nbytes:
        return "its index does not fit its data"
    return None


def _writes(parts: Sequence[Found], spans: Sequence[Span]) -> int:
    """Of how many writes the parts are that these bytes of the chunk lie in."""
    stops = list(accumulate(part.nbytes for part in parts))
    touched = {
        part.generation
        for part, stop in zip(parts, stops, strict=True)
        for span in spans
        if max(span.start, stop - part.nbytes) < min(span.stop, stop)
    }
    return len(touched)


def _padding(record: ArrayRecord) -> tuple[int, int, list[object]]:
    """How many bytes readers skip at the start of a chunk and at its end, and the codecs without those that say so."""
    codecs = record.stored.get("codecs")
    left = list(codecs) if isinstance(codecs, list) else []
    before = after = 0
    for nbytes, is_at_start in _skipped(left):
        before, after = (before + nbytes, after) if is_at_start else (before, after + nbytes)
        left.pop()
    return before, after, left


def _skipped(codecs: Sequence[object]) -> Iterator[tuple[int, bool]]:
    """The bytes that each of the last codecs adds, and whether it does so at the start, from the last one on."""
    for codec in reversed(list(codecs)):
        given = codec.get("configuration") if isinstance(codec, dict) else None
        configuration = given if isinstance(given, dict) else {}
        nbytes = configuration.get({"pad": "nbytes", "offset": "offset"}.get(_name(codec) or "", ""))
        if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0:
            return
        yield nbytes, configuration.get("location", "start") == "start"


def _name(codec: object) -> str | None:
    name = codec.get("name") if isinstance(codec, dict) else codec
    return name if isinstance(name, str) else None
