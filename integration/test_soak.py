"""A long run finds planted mistakes, goes on after a scenario that fails, hangs or dies, and ends in time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from integration.chaos import driver
from integration.chaos.plan import ROOT
from integration.server import Server
from integration.soak import long_run, scenarios
from integration.soak.long_run import Tallies
from integration.soak.scenarios import Found, Scenario, Servers
from integration.soak.worker import Worker
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Put
from parts_store.transactions import journaled


@pytest.fixture
def worker(server: Server) -> Iterator[Worker]:
    with closing(Worker(Servers(server, None))) as worker:
        yield worker


# Nothing takes so long that is not hanging.
SECONDS = 500


def run_for(seconds: float, worker: Worker, **chosen: Scenario) -> tuple[Tallies, list[str]]:
    tallies: Tallies = {}
    said: list[str] = []
    long_run.run(chosen, worker, tallies, seconds=seconds, seed=1, say=said.append)
    return tallies, said


# --- planted mistakes -------------------------------------------------------------------------------------------------


def without_conditions(seed: int, servers: Servers) -> Found:
    """Plant a mistake: a write does not look whether another client has changed the object."""
    calls = ObjectBackend.calls

    def careless(backend: ObjectBackend, request: Any) -> Any:
        return calls(backend, replace(request, condition=None) if isinstance(request, Put) else request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectBackend, "calls", careless)
        return scenarios.linearizability(seed, servers)


def without_journal(seed: int, servers: Servers) -> Found:
    """Plant a mistake: a writer on a local disk moves the parts of a chunk without a journal."""
    write = journaled._write

    def careless(*arguments: Any, is_new: bool) -> Any:
        del is_new
        return write(*arguments, is_new=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journaled, "_write", careless)
        # The plan is carried out here, where the mistake is.
        patch.setattr(driver, "run", driver.main)
        return scenarios.kills_on_disk(seed, servers)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [without_conditions, without_journal])
def test_long_run_finds_a_planted_mistake_and_names_its_seed(worker: Worker, planted: Scenario) -> None:
    tallies: Tallies = {}
    said: list[str] = []
    for seed in range(30):
        long_run.once("planted", planted, worker, tallies, seed=seed, seconds=SECONDS, say=said.append)
        if said:
            break
    seeds = [seed for seed, _ in tallies["planted"].violations]
    assert seeds
    assert f"make soak ONLY=planted SEED={seeds[0]}" in said[0]
    assert f"make soak ONLY=planted SEED={seeds[0]}" in long_run.table(tallies)


def test_the_scenarios_with_planted_mistakes_find_nothing_without_them(worker: Worker) -> None:
    for scenario in (scenarios.linearizability, scenarios.kills_on_disk):
        found = worker.run(scenario, 1, SECONDS)
        assert found is not None
        assert found.violations == ()
        assert found.steps > 10


# --- scenarios that fail, hang or die ---------------------------------------------------------------------------------


def steps_of(seed: int, _servers: Servers) -> Found:
    return Found(seed % 10)


def fail(seed: int, _servers: Servers) -> Found:
    raise ValueError(f"seed {seed} is bad")


def die(_seed: int, _servers: Servers) -> Found:
    os.abort()


def hang(_seed: int, _servers: Servers) -> Found:
    # A process of its own, which must end too.
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)
    return Found(0)


class EnoughError(Exception):
    """Ends a run before its time is over."""


def test_run_goes_on_after_scenarios_that_fail_or_die(worker: Worker) -> None:
    tallies: Tallies = {}
    said: list[str] = []

    class Enough:
        def run(self, scenario: Scenario, seed: int, seconds: float) -> Found | None:
            if all(tally.seeds > 1 for tally in tallies.values()):
                raise EnoughError
            return worker.run(scenario, seed, seconds)

    chosen: dict[str, Scenario] = {"fine": steps_of, "fails": fail, "dies": die}
    with pytest.raises(EnoughError):
        long_run.run(chosen, Enough(), tallies, seconds=SECONDS, seed=1, say=said.append)
    assert {name: len(tally.violations) for name, tally in tallies.items()} == {
        "fine": 0,
        "fails": tallies["fails"].seeds,
        "dies": tallies["dies"].seeds,
    }
    assert len(said) == tallies["fails"].seeds + tallies["dies"].seeds
    for seed, text in tallies["fails"].violations:
        assert f"seed {seed} is bad" in text
    assert {text for _, text in tallies["dies"].violations} == {
        f"the process of the scenario ended with exit code {-signal.SIGABRT}"
    }


def test_seed_that_is_not_finished_in_time_is_killed_and_does_not_count(worker: Worker) -> None:
    begin = time.monotonic()
    tallies, said = run_for(8, worker, hangs=hang)
    assert 8 <= time.monotonic() - begin < SECONDS
    assert (tallies["hangs"].seeds, said) == (0, [])


def test_scenario_that_hangs_is_a_violation(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_run, "MAX_SECONDS", 8.0)
    tallies: Tallies = {}
    long_run.once("hangs", hang, worker, tallies, seed=3, seconds=SECONDS, say=lambda _: None)
    assert tallies["hangs"].violations == [(3, "no end after 8 s")]


def test_every_seed_of_a_run_is_another_one() -> None:
    seen: list[int] = []

    class Noting:
        def run(self, _scenario: Scenario, seed: int, _seconds: float) -> Found:
            if len(seen) == 200:
                raise EnoughError
            seen.append(seed)
            return Found(1)

    tallies: Tallies = {}
    with pytest.raises(EnoughError):
        long_run.run({"one": steps_of, "two": fail}, Noting(), tallies, seconds=SECONDS, seed=5, say=lambda _: None)
    assert len(set(seen)) == len(seen) == 200
    assert sum(tally.steps for tally in tallies.values()) == len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_prints_its_table(sent: signal.Signals) -> None:
    # A shell lets background jobs ignore SIGINT, so that the handler is restored.
    restore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    soak = [sys.executable, "-m", "integration.soak", "--only", "mirrors", "--minutes", "5"]
    command = [sys.executable, "-c", restore, *soak]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mirrors: 5 minutes\n"
        process.send_signal(sent)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert output.startswith("scenario")
    assert "mirrors" in output
