"""A mutant: a mistake in the source of a module, and a scenario in which the model sees it."""

from dataclasses import dataclass, replace
from typing import Any

from tests.model.clients import Operation
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.vocabulary import make


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the scenario in which it is seen."""

    scenario: Scenario
    # The number and the first seed of the random runs that see it; 0 if the scenario is explored completely.
    walks: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def unmutated(self) -> Scenario:
        """Return the same scenario with the source as it is."""
        return replace(self.scenario, patches=())


def mutant(
    name: str, module: str, old: str, new: str, *clients: list[Operation], walks: int = 0, seed: int = 0, **options: Any
) -> Mutant:
    """Return the mutant in which the text `old` of a module is replaced by `new`."""
    return Mutant(make(name, *clients, patches=(Patch(module, old, new),), **options), walks, seed)
