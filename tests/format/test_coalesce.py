"""Merged spans: nothing is left out, nothing goes over the limits, and nothing is fetched apart that need not be."""

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


def owned(result: Span, spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if within(span, result)]


def gaps(result: Span, spans: Sequence[Span]) -> list[int]:
    """Return the lengths of the gaps in a result that no span covers."""
    asked = {at for span in spans for at in range(span.start, span.stop)}
    runs = itertools.groupby(range(result.start, result.stop), key=lambda at: at in asked)
    return [len(list(run)) for is_asked, run in runs if not is_asked]


def test_every_result_begins_and_ends_with_a_span() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        results = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
        assert list(results) == sorted(results)
        assert all(any(within(span, result) for result in results) for span in spans), (spans, gap, nbytes, results)
        for result in results:
            inside = owned(result, spans)
            assert result.start in {span.start for span in inside}
            assert result.stop in {span.stop for span in inside}


def test_spans_that_do_not_overlap_are_each_within_exactly_one_result() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        ordered = sorted(spans)
        if all(one.stop <= other.start for one, other in itertools.pairwise(ordered)):
            results = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
            assert all(len([result for result in results if within(span, result)]) == 1 for span in spans)


def test_results_respect_the_limits_of_gap_and_size() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        for result in coalesce(spans, max_gap=gap, max_nbytes=nbytes):
            assert all(each <= gap for each in gaps(result, spans)), (spans, gap, nbytes, result)
            assert result.nbytes <= nbytes or result in spans, (spans, gap, nbytes, result)


def test_neighbours_that_may_be_merged_are() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        for one, other in itertools.pairwise(coalesce(spans, max_gap=gap, max_nbytes=nbytes)):
            too_far = other.start - one.stop > gap
            too_large = max(one.stop, other.stop) - one.start > nbytes
            assert too_far or too_large, (spans, gap, nbytes)


def test_a_result_that_another_covers_is_not_fetched_for_itself() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS, LIMITS):
        results = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
        assert not any(within(one, other) for one, other in itertools.permutations(results, 2)), (spans, gap, nbytes)


def test_limits_decide_which_spans_are_merged() -> None:
    for spans in INPUTS:
        whole = Span(min(span.start for span in spans), max(span.stop for span in spans))
        assert coalesce(spans, max_gap=100, max_nbytes=100) == (whole,)
        runs = coalesce(spans, max_gap=0, max_nbytes=100)
        asked = {at for span in spans for at in range(span.start, span.stop)}
        assert [at for run in runs for at in range(run.start, run.stop)] == sorted(asked)


def test_the_order_and_the_repetition_of_the_spans_do_not_matter() -> None:
    for spans, (gap, nbytes) in itertools.product(INPUTS[:600], LIMITS):
        once = coalesce(spans, max_gap=gap, max_nbytes=nbytes)
        assert coalesce(reversed(spans), max_gap=gap, max_nbytes=nbytes) == once
        assert coalesce(spans * 2, max_gap=gap, max_nbytes=nbytes) == once


def test_no_spans_give_no_fetches() -> None:
    assert coalesce([], max_gap=5, max_nbytes=5) == ()
