"""The plan against the model: what is small enough to be explored by every test run, and what can be sampled in it.

`python -m tests.model --deep` explores the rest.
"""

import pytest

from tests.model import mutants, scenarios
from tests.model.checker import Checker, Counterexample
from tests.model.mutants import Mutant
from tests.model.patched import Patch, load
from tests.model.scenario import Scenario

pytestmark = pytest.mark.slow

WALKS = 84
# The code as it is has to pass where the mutants fail, as far as there is time for it here.
UNMUTATED_STATES = 12_000


@pytest.mark.parametrize("scenario", scenarios.EXHAUSTIVE, ids=lambda each: each.name)
def test_whatever_the_order_of_requests_every_operation_is_atomic(scenario: Scenario) -> None:
    checker = Checker(scenario)
    checker.explore()
    assert checker.is_complete


@pytest.mark.parametrize("scenario", scenarios.RANDOM, ids=lambda each: each.name)
def test_in_random_orders_every_operation_is_atomic(scenario: Scenario) -> None:
    checker = Checker(scenario)
    for seed in range(WALKS):
        checker.walk(seed)
    assert checker.walks == WALKS


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda each: each.name)
def test_a_mistake_is_seen(mutant: Mutant) -> None:
    with pytest.raises(Counterexample):
        Checker(mutant.scenario).explore(limit=200_000)
    Checker(mutant.unmutated).explore(limit=UNMUTATED_STATES)


@pytest.mark.parametrize("scenario", scenarios.LIMITS, ids=lambda each: each.name)
def test_what_is_not_promised_is_not_kept(scenario: Scenario) -> None:
    with pytest.raises(Counterexample):
        Checker(scenario).explore()


def test_a_mutant_of_code_that_is_no_more_is_refused() -> None:
    with pytest.raises(LookupError, match="occurs 0 times"):
        load((Patch("writer", "no such text", ""),))


def test_mutants_are_made_of_the_source_and_leave_it_as_it_is() -> None:
    before = load(())
    mutated = load((Patch("rules", 'EXCLUSIVE = "exclusive"', 'EXCLUSIVE = "another"'),))
    assert mutated.rules is not before.rules
    assert mutated.writer.Level is mutated.rules.Level
    assert load(()).rules.Level is before.writer.Level


def test_the_numbers_of_a_walk_are_the_same_for_the_same_seed() -> None:
    first, second = Checker(scenarios.RANDOM[0]), Checker(scenarios.RANDOM[0])
    for checker in (first, second):
        checker.walk(7)
    assert first.transitions == second.transitions
