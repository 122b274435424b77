"""Repeat scenarios with new seeds until the time is over, and count seeds, steps and violations."""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from integration.soak.scenarios import Found, Scenario

# A seed that takes longer hangs. A module of unit tests takes some minutes on a slow machine.
MAX_SECONDS = 900.0


class Runs(Protocol):
    """Runs a scenario with a seed."""

    def run(self, scenario: Scenario, seed: int, seconds: float) -> Found | None:
        """Return what the scenario found, or None if it does not end in time."""


@dataclass(slots=True)
class Tally:
    """What became of the seeds of one scenario."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    # The seeds with violations, each with the texts.
    violations: list[tuple[int, str]] = field(default_factory=list)


type Tallies = dict[str, Tally]


def run(
    scenarios: Mapping[str, Scenario],
    worker: Runs,
    tallies: Tallies,
    *,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Repeat the scenarios with seeds from `seed` on until the time is over; the seed under way then does not count.

    The scenario that has had the least time comes next, so that slow and fast scenarios share the time. The tallies are
    filled as the run goes on, so that they can be shown when it is interrupted.
    """
    for name in scenarios:
        tallies.setdefault(name, Tally())
    deadline = time.monotonic() + seconds
    for number in itertools.count(seed):
        if (left := deadline - time.monotonic()) <= 0:
            return
        name = min(tallies, key=lambda each: tallies[each].seconds)
        once(name, scenarios[name], worker, tallies, seed=number, seconds=left, say=say)


def once(
    name: str,
    scenario: Scenario,
    worker: Runs,
    tallies: Tallies,
    *,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Run a scenario with one seed, and say what it found at once."""
    tally, begin = tallies.setdefault(name, Tally()), time.monotonic()
    found = worker.run(scenario, seed, min(seconds, MAX_SECONDS))
    tally.seconds += time.monotonic() - begin
    if found is None:
        if seconds < MAX_SECONDS:
            return
        found = Found(0, (f"no end after {MAX_SECONDS:.0f} s",))
    tally.seeds += 1
    tally.steps += found.steps
    for violation in found.violations:
        tally.violations.append((seed, violation))
        say(f"VIOLATION in {name}, seed {seed}: {violation}\n  again: {replay(name, seed)}")


def replay(name: str, seed: int) -> str:
    """Return the command that runs a seed of a scenario again."""
    return f"make soak ONLY={name} SEED={seed} TIMES=20"


def table(tallies: Tallies) -> str:
    """Return one line for each scenario, and one for all."""
    lines = [f"{'scenario':18}{'seeds':>8}{'steps':>12}{'seconds':>9}{'violations':>12}"]
    for name, tally in tallies.items():
        lines.append(_row(name, tally))
    total = Tally(
        sum(each.seeds for each in tallies.values()),
        sum(each.steps for each in tallies.values()),
        sum(each.seconds for each in tallies.values()),
        [violation for each in tallies.values() for violation in each.violations],
    )
    lines.append(_row("all", total))
    lines += [f"  {name}, seed {seed}: {replay(name, seed)}" for name, seed in _wrong_seeds(tallies)]
    return "\n".join(lines)


def _row(name: str, tally: Tally) -> str:
    return f"{name:18}{tally.seeds:8}{tally.steps:12}{tally.seconds:9.0f}{len(tally.violations):12}"


def _wrong_seeds(tallies: Tallies) -> list[tuple[str, int]]:
    return [(name, seed) for name, tally in tallies.items() for seed in dict(tally.violations)]
