"""Nearby spans of one object, merged into fewer fetches."""

from collections.abc import Iterable

from parts_store.format.ranges import Span


def coalesce(spans: Iterable[Span], *, max_gap: int, max_nbytes: int) -> tuple[Span, ...]:
    """Spans that cover all of `spans`, each of them within one, in order.

    Two neighbours are merged if at most `max_gap` bytes lie between them and the result has at most `max_nbytes` bytes,
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
