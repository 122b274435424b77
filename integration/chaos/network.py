"""Carry out a plan through a network that is slow, breaks, or cuts answers off."""

import itertools
from collections.abc import Sequence
from typing import Any

from integration.chaos import driver
from integration.chaos.driver import Report
from integration.chaos.plan import Kind, Plan
from integration.conftest import Bucket
from integration.toxics import Proxy, Toxic, toxic
from parts_store.store.options import Concurrency

LANES: tuple[Kind, ...] = ("blind", "compared", "created", "shard", "inner")
# Toxiproxy draws lots for every connection: so each is for one request. On a busy machine, any request may take long.
PATIENT = {"timeout": "300s", "connect_timeout": "300s", "pool_max_idle_per_host": "0"}
IMPATIENT = PATIENT | {"timeout": "1s"}


# What is wrong, how long it takes until all that was sent has arrived, and whether answers fail to come.
TOXICS: dict[str, tuple[tuple[Toxic, ...], float, bool]] = {
    "slow": ((toxic("latency", "downstream", latency=30, jitter=30),), 0.3, False),
    "late answers": ((toxic("latency", "downstream", 0.1, latency=1500),), 2, True),
    "late requests": ((toxic("latency", "upstream", 0.1, latency=1500),), 2, True),
    "resets": ((toxic("reset_peer", "downstream", 0.2),), 0.3, True),
    "no answers": ((toxic("timeout", "downstream", 0.1, timeout=300),), 0.5, True),
    "answers cut off": ((toxic("limit_data", "downstream", 0.2, bytes=100),), 0.3, True),
    "requests cut off": ((toxic("limit_data", "upstream", 0.2, bytes=900),), 0.3, True),
    "narrow": ((toxic("bandwidth", "upstream", rate=100), toxic("bandwidth", "downstream", rate=100)), 0.5, False),
}


def plan_through(
    bad_network: Proxy, bucket: Bucket, level: Concurrency, retries: int, names: Sequence[str], **arguments: Any
) -> Plan:
    """Return a plan whose writers and readers reach the bucket through the bad network; it ends without it."""
    retry = {"max_retries": retries, "retry_timeout": 2.0}
    # What comes late is not waited for.
    client = IMPATIENT if any(name.startswith("late") for name in names) else PATIENT
    options = Plan.options_of(bad_network.server, client_options=client, retry_config=retry)
    direct = Plan.options_of(bucket.server)
    return Plan(bucket.name, options, level, LANES, kills=0, direct=direct, **arguments)


def run_through(bad_network: Proxy, plan: Plan, names: Sequence[str]) -> Report:
    """Carry out a plan while the network has the given faults, one after the other, until the plan is carried out."""
    with driver.under_way(plan) as report_within:
        for name in itertools.cycle(names):
            bad_network.poison(*TOXICS[name][0])
            if (report := report_within(plan.seconds / len(names))) is not None:
                return report
    raise AssertionError("unreachable: the names are not empty")
