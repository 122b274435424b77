"""What a long run repeats: each scenario follows a seed, and returns its steps and what it found wrong.

The seed decides what every client does, where, and at which level. The order in which threads, processes and packets
run is not repeated, so a violation may take several runs of its seed to show again. A scenario that raises is a
violation, too.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
from obstore.store import LocalStore, MemoryStore

from integration import toxics
from integration.chaos import driver, network
from integration.chaos.driver import Report
from integration.chaos.plan import LANES, ROOT, Plan
from integration.conftest import new_bucket
from integration.server import Server
from integration.test_session_history import repository
from parts_store.store.options import Concurrency
from tests.backends import deletion_schedules
from tests.conftest import PIPELINES
from tests.histories import PARTS, record, violations
from tests.maintenance.test_mirrors import test_retag_never_makes_mixed_data_and_index_readable
from tests.model.checker import Checker
from tests.model.mutants import MUTANTS
from tests.model.scenarios import RANDOM
from tests.sessions.histories import INTERLEAVINGS, KINDS, OPERATIONS, SOLVERS
from tests.sessions.stage import Stage
from tests.store import schedules as catalog_schedules
from tests.transactions.test_leftovers import S3, test_writers_at_once_in_any_order_leave_few_objects

WALKS, SCHEDULES, CONFLICTS = 50, 50, 10
KILLS, KILLING_SECONDS, NETWORK_SECONDS = 30, 20.0, 6.0


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that run beside the scenarios; None if there is none on this machine."""

    s3: Server
    # The address of the API of Toxiproxy.
    toxiproxy: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a scenario did with one seed: how many steps, and what must not happen."""

    steps: int
    violations: tuple[str, ...] = ()


type Scenario = Callable[[int, Servers], Found]


def linearizability(seed: int, servers: Servers) -> Found:
    """Write, read and clear regions of one shard with four threads, and search for an order that explains it."""
    chance = random.Random(seed)
    pipeline, parts = chance.choice(sorted(PIPELINES)), chance.choice(sorted(PARTS))
    place, chosen = chance.choice(["memory", "disk", "s3"]), {"codec_pipeline.path": PIPELINES[pipeline]}
    with _objects(place, servers) as objects, zarr.config.set(chosen):
        histories = record(objects, PARTS[parts], seed)
    where = f"{place}, pipeline {pipeline}, {parts}"
    return Found(sum(map(len, histories)), tuple(f"{where}: {each}" for each in violations(histories)))


def model(seed: int, _servers: Servers) -> Found:
    """Walk through random orders of requests, faults and crashes of the model of the write protocol."""
    chance = random.Random(seed)
    checker = Checker(chance.choice([*RANDOM, *(mutant.unmutated for mutant in MUTANTS)]))
    for _ in range(WALKS):
        checker.walk(chance.getrandbits(32))
    return Found(checker.transitions)


def sessions(seed: int, servers: Servers) -> Found:
    """Let two sessions on S3 change one array, in parts and without: both must end in the same way."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, new_bucket(servers.s3) as bucket:
        names = iter(range(2))
        stage = Stage(Path(folder), lambda files: repository(bucket, f"repo-{next(names)}", files=files))
        kind = KINDS[chance.choice(sorted(KINDS))]
        for _ in range(CONFLICTS):
            first, second = chance.choice(sorted(OPERATIONS)), chance.choice(sorted(OPERATIONS))
            stage.require_as_plain(kind, first, second, chance.choice(sorted(SOLVERS)), chance.choice(INTERLEAVINGS))
    return Found(CONFLICTS)


def kills_on_disk(seed: int, _servers: Servers) -> Found:
    """Kill writers on a local disk while others read."""
    level = random.Random(seed).choice(sorted(LANES))
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(folder, {}, level, LANES[level], kills=KILLS, seconds=KILLING_SECONDS, seed=seed)
        return _found(level, driver.run(plan))


def kills_on_s3(seed: int, servers: Servers) -> Found:
    """Kill writers on S3 while others read."""
    chance = random.Random(seed)
    level: Concurrency = chance.choice(["writers", "full"])
    timing: dict[str, Any] = {"kills": KILLS, "seconds": KILLING_SECONDS, "pause": 0.2, "life": (0.05, 0.6)}
    with new_bucket(servers.s3) as bucket:
        plan = Plan(bucket.name, Plan.options_of(servers.s3), level, LANES[level], seed=seed, **timing)
        return _found(level, driver.run(plan))


def bad_network(seed: int, servers: Servers) -> Found:
    """Write and read through a network with two faults, one after the other."""
    if servers.toxiproxy is None:
        raise LookupError("Toxiproxy is missing")
    chance = random.Random(seed)
    names = chance.sample(sorted(network.TOXICS), 2)
    level: Concurrency = chance.choice(["writers", "full"])
    pause = max(network.TOXICS[name][1] for name in names)
    with new_bucket(servers.s3) as bucket, toxics.proxied(servers.toxiproxy, servers.s3) as proxy:
        retries = chance.choice([0, 2])
        plan = network.plan_through(
            proxy, bucket, level, retries, names, seconds=NETWORK_SECONDS, seed=seed, pause=pause
        )
        return _found(f"{level}, {' and '.join(names)}", network.run_through(proxy, plan, names))


def catalog(seed: int, _servers: Servers) -> Found:
    """Create, change and delete one array with two stores, in memory, on a disk, or in two processes."""
    chance = random.Random(seed)
    first = chance.getrandbits(40)
    seeds = range(first, first + SCHEDULES)
    with tempfile.TemporaryDirectory() as folder:
        match chance.choice(["memory", "disk", "processes"]):
            case "memory":
                result = catalog_schedules.run_in_memory(seeds)
            case "disk":
                result = catalog_schedules.run_on_disk(seeds, Path(folder))
            case _:
                result = catalog_schedules.run_in_processes(seeds, Path(folder))
    return Found(result.steps, tuple(result.wrong))


def deletion(seed: int, _servers: Servers) -> Found:
    """Write, read and delete chunks, folders and arrays on a disk with several processes."""
    chance = random.Random(seed)
    processes, count = chance.randint(2, 4), 150
    with tempfile.TemporaryDirectory() as folder:
        wrong = deletion_schedules.schedule(Path(folder) / "objects", processes, count, seed)
    return Found(processes * count, tuple(f"{processes} processes: {what}, {n} times" for what, n in wrong.items()))


def leftovers(seed: int, _servers: Servers) -> Found:
    """Overwrite a chunk by several writers in any order: few objects stay, and the value is one of theirs."""
    test_writers_at_once_in_any_order_leave_few_objects(random.Random(seed).choice(S3), seed)
    # Four writers, thirty times.
    return Found(120)


def mirrors(seed: int, _servers: Servers) -> Found:
    """Mix the parts of two writes as a mirror does, and repair them: no mixture can be read."""
    test_retag_never_makes_mixed_data_and_index_readable(seed)
    return Found(1)


def random_tests(seed: int, _servers: Servers) -> Found:
    """Run a module of unit tests that draws random examples, with other ones and another order of sets."""
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    is_random = re.compile(r"hypothesis|tests\.machines")
    module = random.Random(seed).choice([path for path in modules if is_random.search(path.read_text())])
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", f"--hypothesis-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *options, str(module)]
    environ = {**os.environ, "PYTHONHASHSEED": str(seed % 2**32), "PARTS_STORE_ALL_EXAMPLES": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", ended.stdout)
    wrong = (f"{module.name}: {ended.stdout[-3000:]}{ended.stderr[-1000:]}",) if ended.returncode else ()
    return Found(int(passed[1]) if passed else 0, wrong)


SCENARIOS: dict[str, Scenario] = {
    "linearizability": linearizability,
    "model": model,
    "sessions": sessions,
    "kills-disk": kills_on_disk,
    "kills-s3": kills_on_s3,
    "network": bad_network,
    "catalog": catalog,
    "deletion": deletion,
    "leftovers": leftovers,
    "mirrors": mirrors,
    "random-tests": random_tests,
}
"""The scenarios by the names that `--only` takes."""


@contextmanager
def _objects(place: str, servers: Servers) -> Iterator[Any]:
    """Yield an empty obstore store."""
    if place == "s3":
        with new_bucket(servers.s3) as bucket:
            yield bucket.store()
    elif place == "disk":
        with tempfile.TemporaryDirectory() as folder:
            yield LocalStore(folder)
    else:
        yield MemoryStore()


def _found(where: str, report: Report) -> Found:
    wrong = [f"{where}: {' '.join(map(str, each))}" for each in report.violations]
    if not report.reads + report.conflicts + report.errors:
        wrong.append(f"{where}: no read ended")
    return Found(report.kills + report.writes + report.unresolved + report.reads, tuple(wrong))
