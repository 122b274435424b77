"""A mutant: a mistake in a function of the package, and a scenario in which the model sees it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tests.model.checker import Checker
from tests.model.directed import Move, follow
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.vocabulary import scenario


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


def mutants(text: str, scripts: Mapping[str, tuple[Move, ...]] = MappingProxyType({})) -> list[Mutant]:
    """Return the mutants of a text: the name of each and, indented, its scenario and its change of the source.

    A change is the function after `@`, the code that it has after `-`, and what takes the place of this code after `+`.
    """
    return [
        Mutant(replace(scenario(" ".join(lines[""])), name=name, patches=(_patch(lines),)), scripts.get(name, ()))
        for name, lines in _blocks(text)
    ]


def _blocks(text: str) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the name of each mutant, and its lines by the signs before them."""
    for block in text.strip().replace("\n  ", "\0").splitlines():
        name, *rest = block.split("\0")
        lines: dict[str, list[str]] = {sign: [] for sign in ("", "@", "-", "+")}
        for line in rest:
            sign = line[0] if line[:2] in ("@ ", "- ", "+ ") else ""
            lines[sign].append(line[2:] if sign else line)
        yield name, lines


def _patch(lines: dict[str, list[str]]) -> Patch:
    (function,) = lines["@"]
    return Patch(function, "\n".join(lines["-"]), "\n".join(lines["+"]))
