"""The protocols against the model: small scenarios are explored completely, large ones are sampled.

`python -m tests.model --deep` explores the rest.
"""

import sys

import pytest

from tests.model import mutants, scenarios
from tests.model.checker import Checker, Counterexample
from tests.model.directed import follow
from tests.model.mutant import Mutant
from tests.model.patched import Patch, load
from tests.model.scenario import Scenario

pytestmark = pytest.mark.slow

# `make soak` walks more often, also through the scenarios of mutants.
WALKS = 20
# Without its mistake, the scenario of a mutant has to pass. This many of its states are explored.
UNMUTATED_STATES = 3_000


@pytest.mark.parametrize("scenario", scenarios.EXHAUSTIVE, ids=lambda each: each.name)
def test_operations_are_atomic_in_every_order_of_requests(scenario: Scenario) -> None:
    checker = Checker(scenario)
    checker.explore()
    assert checker.is_complete


@pytest.mark.parametrize("scenario", scenarios.RANDOM, ids=lambda each: each.name)
def test_operations_are_atomic_in_random_orders(scenario: Scenario) -> None:
    checker = Checker(scenario)
    for seed in range(WALKS):
        checker.walk(seed)
    assert checker.walks == WALKS


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda each: each.name)
def test_mistakes_are_seen(mutant: Mutant) -> None:
    with pytest.raises(Counterexample):
        mutant.find(200_000)
    Checker(mutant.unmutated).explore(limit=UNMUTATED_STATES)
    follow(Checker(mutant.unmutated), mutant.script)


@pytest.mark.parametrize("scenario", scenarios.LIMITS, ids=lambda each: each.name)
def test_limits_of_the_promises_are_reached(scenario: Scenario) -> None:
    with pytest.raises(Counterexample):
        Checker(scenario).explore()


def test_a_mutant_of_code_that_does_not_exist_is_refused() -> None:
    before = dict(sys.modules)
    with pytest.raises(LookupError, match="occurs 0 times"):
        load((Patch("TaggedProtocol.delete", "no_such_name", ""),))
    assert sys.modules == before


def test_mutants_do_not_change_the_imported_modules() -> None:
    before = load(())
    mutated = load((Patch("Rules.is_registered", "self.level", "self.other_level"),))
    assert mutated.rules is not before.rules
    assert mutated.tagged.Level is mutated.rules.Level
    assert load(()).rules.Level is before.tagged.Level


def test_a_walk_depends_on_its_seed_alone() -> None:
    first, second = Checker(scenarios.RANDOM[0]), Checker(scenarios.RANDOM[0])
    for checker in (first, second):
        checker.walk(7)
    assert first.transitions == second.transitions
