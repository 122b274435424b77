"""A mutant: a mistake in a function of the package, and a scenario in which the model sees it."""

from dataclasses import dataclass, replace

from tests.model.checker import Checker
from tests.model.directed import Move, follow
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.vocabulary import patched


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the scenario in which it is seen."""

    scenario: Scenario
    # The run that sees it; empty if the scenario is explored completely.
    script: tuple[Move, ...] = ()

    @property
    def name(self) -> str:
        return self.scenario.name

    def find(self, limit: int) -> None:
        """Raise the counterexample that shows the mistake."""
        if self.script:
            follow(Checker(self.scenario), self.script)
        else:
            Checker(self.scenario).explore(limit=limit)

    @property
    def unmutated(self) -> Scenario:
        """Return the same scenario with the source as it is."""
        return replace(self.scenario, patches=())


def mutant(name: str, function: str, old: str, new: str, text: str, script: tuple[Move, ...] = ()) -> Mutant:
    """Return the mutant in which the code `old` of a function is replaced by `new`, in the scenario of a text."""
    return Mutant(patched(name, text, Patch(function, old, new)), script)
