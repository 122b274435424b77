"""All scenarios to their end: `python -m tests.model [--deep] [--scale X] [--trace NAME] [--only TEXT] [--states N]`.

Exits with 0 if the plan keeps its promises, every mutant is caught, and every limit is one.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field

from tests.model import mutants, scenarios
from tests.model.checker import Checker, Counterexample
from tests.model.mutant import Mutant
from tests.model.scenario import Scenario

# More take more memory than two gigabytes.
MAX_STATES = 2_000_000
WALKS = 400


@dataclass
class Totals:
    scenarios: int = 0
    states: int = 0
    transitions: int = 0
    walks: int = 0
    looked: int = 0
    incomplete: int = 0
    violations: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def add(self, checker: Checker) -> None:
        self.scenarios += 1
        self.states += checker.states
        self.transitions += checker.transitions
        self.walks += checker.walks
        self.looked += checker.looked


def explore(scenario: Scenario, totals: Totals, limit: int) -> None:
    start, checker = time.monotonic(), Checker(scenario)
    verdict = "ok"
    try:
        checker.explore(limit=limit)
        if not checker.is_complete:
            totals.incomplete += 1
            verdict = "ok so far"
    except Counterexample:
        totals.violations.append(scenario.name)
        verdict = f"VIOLATION\n    {shortest(scenario)}"
    totals.add(checker)
    numbers = f"{checker.states:8d} states {checker.transitions:8d} steps {checker.ends:5d} ends"
    print(f"  {scenario.name:56s} {numbers} {time.monotonic() - start:6.1f} s  {verdict}", flush=True)


def walk(scenario: Scenario, count: int, totals: Totals) -> None:
    start, checker = time.monotonic(), Checker(scenario)
    verdict = "ok"
    try:
        for seed in range(count):
            if seed % 2000 == 1999:
                # What it remembers of runs that have ended is not needed any more.
                totals.add(checker)
                totals.scenarios -= 1
                checker = Checker(scenario)
            checker.walk(seed)
    except Counterexample as counterexample:
        totals.violations.append(scenario.name)
        verdict = f"VIOLATION\n    {counterexample}"
    totals.add(checker)
    print(f"  {scenario.name:56s} {count:8d} runs {time.monotonic() - start:6.1f} s  {verdict}", flush=True)


def catch(mutant: Mutant, totals: Totals, limit: int, *, is_deep: bool) -> None:
    start = time.monotonic()
    found = counterexample_of(mutant)
    if found is None:
        totals.missed.append(mutant.name)
        verdict = "NOT CAUGHT"
    else:
        verdict = f"caught after {len(found.path)} steps: {found.violation}"
    print(f"  {mutant.name:60s} {time.monotonic() - start:6.1f} s  {verdict}", flush=True)
    if is_deep:
        explore(mutant.unmutated, totals, limit)


def counterexample_of(mutant: Mutant) -> Counterexample | None:
    try:
        mutant.find(MAX_STATES)
    except Counterexample as counterexample:
        return counterexample
    return None


def shortest(scenario: Scenario) -> Counterexample | None:
    try:
        Checker(scenario).explore(limit=MAX_STATES, shortest=True)
    except Counterexample as counterexample:
        return counterexample
    return None


def trace(name: str) -> int:
    """Print the shortest run that shows a mutant, a limit, or a violation."""
    known = {each.name: each for each in (*mutants.MUTANTS, *mutants.DEEP_MUTANTS)}
    for scenario in (
        *scenarios.EXHAUSTIVE,
        *scenarios.DEEP,
        *scenarios.LIMITS,
        *(each.scenario for each in known.values()),
    ):
        if scenario.name == name:
            mutant = known.get(name)
            print((counterexample_of(mutant) if mutant and mutant.script else shortest(scenario)) or "no violation")
            return 0
    print(f"no such scenario: {name}", file=sys.stderr)
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="also what takes minutes")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the random runs")
    parser.add_argument("--trace", metavar="NAME", help="print the shortest run to what goes wrong in a scenario")
    parser.add_argument("--only", metavar="TEXT", default="", help="only scenarios with this text in their name")
    parser.add_argument("--states", metavar="N", type=int, default=MAX_STATES, help="at most so many states of each")
    arguments = parser.parse_args()
    if arguments.trace:
        return trace(arguments.trace)
    start, totals = time.monotonic(), Totals()

    def selected[T: (Scenario, Mutant)](of: list[T]) -> list[T]:
        return [each for each in of if arguments.only in each.name]

    print("every order of requests; every state is a crash, after which a reader and a repair come")
    for scenario in selected(scenarios.EXHAUSTIVE + (scenarios.DEEP if arguments.deep else [])):
        explore(scenario, totals, arguments.states)
    print("random orders")
    for scenario in selected(scenarios.RANDOM):
        walk(scenario, int(WALKS * arguments.scale), totals)
    print("mutants, each of which has to be caught")
    for mutant in selected(mutants.MUTANTS + (mutants.DEEP_MUTANTS if arguments.deep else [])):
        catch(mutant, totals, arguments.states, is_deep=arguments.deep)
    print("limits, each of which has to be found")
    for scenario in selected(scenarios.LIMITS):
        found = shortest(scenario)
        if found is None:
            totals.missed.append(scenario.name)
        print(f"  {scenario.name:56s} {'NOT FOUND' if found is None else found.violation}", flush=True)
    print(
        f"{totals.scenarios} scenarios ({totals.incomplete} not to their end), {totals.states} states, "
        f"{totals.transitions} steps, {totals.walks} random runs, {totals.looked} states of the store looked at alone, "
        f"{time.monotonic() - start:.0f} s"
    )
    print(f"violations: {totals.violations or 'none'}; not caught: {totals.missed or 'none'}")
    return 1 if totals.violations or totals.missed else 0


if __name__ == "__main__":
    sys.exit(main())
