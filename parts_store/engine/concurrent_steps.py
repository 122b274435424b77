"""Run several independent steps together, so that their requests go out in the same batches."""

from collections.abc import Sequence
from itertools import islice

from parts_store.engine.steps import Outcome, Request, Steps


def run_together[T](several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run steps that do not depend on each other, and return their results in order.

    Each batch has the next requests of all steps that have not ended.
    """
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
