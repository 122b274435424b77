"""A long run: histories, kills, network faults and random tests with new seeds, until the time is over.

    make soak MINUTES=30                                # all scenarios, for half an hour
    make soak ONLY=kills-disk,kills-s3                  # these alone, for ten minutes
    make soak ONLY=linearizability SEED=7 TIMES=20      # one seed again, twenty times

Prints every violation with its seed when it is found, and a table at the end. Exits with 0 if there was none, with 1 if
there was one, and with 130 after Ctrl-C.
"""

import argparse
import math
import secrets
import signal
import sys
from contextlib import ExitStack, closing

from integration import server, toxics
from integration.soak.long_run import Tallies, Tally, once, run, table
from integration.soak.scenarios import SCENARIOS, Scenario, Servers
from integration.soak.worker import Worker


def main(arguments: list[str]) -> int:
    """Run what the arguments say, and return the exit code."""
    options = _parser().parse_args(arguments)
    tallies: Tallies = {}
    is_interrupted = False
    with ExitStack() as stack:
        try:
            servers = Servers(stack.enter_context(server.supervised()), stack.enter_context(toxics.supervised()))
            worker = stack.enter_context(closing(Worker(servers)))
            _run(options, _chosen(options.only, servers), worker, tallies)
        except KeyboardInterrupt:
            is_interrupted = True
        print(table(tallies), flush=True)
    if any(tally.violations for tally in tallies.values()):
        return 1
    return 130 if is_interrupted else 0


def _run(options: argparse.Namespace, chosen: dict[str, Scenario], worker: Worker, tallies: Tallies) -> None:
    if options.seed is None:
        seed = secrets.randbits(32)
        # The line says that an interrupt ends the run with its table.
        tallies.update({name: Tally() for name in chosen})
        print(f"{', '.join(chosen)}: {options.minutes:g} minutes", flush=True)
        run(chosen, worker, tallies, seconds=options.minutes * 60, seed=seed, say=_say)
        return
    for name, scenario in chosen.items():
        for _ in range(options.times):
            once(name, scenario, worker, tallies, seed=options.seed, seconds=math.inf, say=_say)


def _chosen(names: list[str], servers: Servers) -> dict[str, Scenario]:
    chosen = {name: SCENARIOS[name] for name in names}
    if servers.toxiproxy is None and chosen.pop("network", None) is not None:
        _say("the scenario network is left out: there is no Go to build Toxiproxy with")
    return chosen


def _say(text: str) -> None:
    print(text, flush=True)


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name] or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return names


def _minutes(text: str) -> float:
    if not 0 < (minutes := float(text)) < math.inf:
        raise ValueError(text)
    return minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="how long, 10 unless given")
    parser.add_argument("--only", type=_names, default=list(SCENARIOS), help="scenarios, separated by commas")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--times", type=int, default=1, help="run the seed so many times")
    return parser


if __name__ == "__main__":
    # As Ctrl-C, so that a stopped job prints its table.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
