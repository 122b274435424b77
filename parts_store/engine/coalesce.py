"""How byte ranges are merged: nearby ranges of one object become one request."""

from collections.abc import Iterable

from parts_store.format.ranges import Span


def coalesce(spans: Iterable[Span], *, max_gap: int, max_nbytes: int) -> tuple[Span, ...]:
    """Return merged spans in ascending order; each of `spans` is inside exactly one of them.

    Two neighbours are merged if at most `max_gap` bytes are between them and the result has at most `max_nbytes` bytes,
    or if one covers the other.
    """
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if merged:
            last = merged[-1]
            both = Span(last.start, max(last.stop, span.stop))
            if last.covers(span) or (span.start - last.stop <= max_gap and both.nbytes <= max_nbytes):
                merged[-1] = both
                continue
        merged.append(span)
    return tuple(merged)
