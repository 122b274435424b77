"""Merged spans: nothing is left out, nothing exceeds the limits, and no two results remain that may be one."""

import itertools
from collections.abc import Sequence

from parts_store.format.layout import Span, coalesce

SPANS = [Span(start, stop) for start, stop in itertools.combinations(range(7), 2)]
LIMITS = list(itertools.product([0, 1, 3], [1, 2, 4, 100]))
# All sets of one to three spans, and all orders of two.
INPUTS: list[tuple[Span, ...]] = [
    *((span,) for span in SPANS),
    *itertools.permutations(SPANS, 2),
    *itertools.combinations(SPANS, 3),
]


def within(span: Span, other: Span) -> bool:
    return other.start <= span.start and span.stop <= other.stop


def gaps(result: Span, spans: Sequence[Span]) -> list[int]:
    """Return the lengths of the gaps in a result that no span covers."""
    asked = {at for span in spans for at in range(span.start, span.stop)}
    runs = itertools.groupby(range(result.start, result.stop), key=lambda at: at in asked)
    return [len(list(run)) for is_asked, run in runs if not is_asked]


def test_merged_spans_contain_all_spans_within_the_limits() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        results = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
        case = (spans, gap, nbytes, results)
        assert list(results) == sorted(results), case
        assert all(any(within(span, result) for result in results) for span in spans), case
        for result in results:
            inside = [span for span in spans if within(span, result)]
            assert result.start in {span.start for span in inside}, case
            assert result.stop in {span.stop for span in inside}, case
            assert all(each <= gap for each in gaps(result, spans)), case
            assert result.nbytes <= nbytes or result in spans, case
        for one, other in itertools.pairwise(results):
            is_too_large = max(one.stop, other.stop) - one.start > nbytes
            assert other.start - one.stop > gap or is_too_large, case
        assert not any(within(one, other) for one, other in itertools.permutations(results, 2)), case
        if all(one.stop <= other.start for one, other in itertools.pairwise(sorted(spans))):
            assert all(sum(within(span, result) for result in results) == 1 for span in spans), case


def test_limits_decide_which_spans_are_merged() -> None:
    for spans in INPUTS:
        whole = Span(min(span.start for span in spans), max(span.stop for span in spans))
        assert coalesce(spans, max_gap=100, max_nbytes=100) == (whole,)
        runs = coalesce(spans, max_gap=0, max_nbytes=100)
        asked = {at for span in spans for at in range(span.start, span.stop)}
        assert [at for run in runs for at in range(run.start, run.stop)] == sorted(asked)
    assert coalesce([], max_gap=5, max_nbytes=5) == ()


def test_order_and_repetition_of_spans_do_not_matter() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS[:600], LIMITS):
        once = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
        assert coalesce(reversed(spans), max_gap=gap, max_nbytes=nbytes) == once
        assert coalesce(spans * 2, max_gap=gap, max_nbytes=nbytes) == once
