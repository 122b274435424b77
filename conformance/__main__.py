"""Check a reader: `python -m conformance COMMAND...`. The exit code is 0 if all cases pass, and 1 if not."""

import argparse
import sys
from collections.abc import Sequence

from conformance.cases import load_cases
from conformance.runner import run_batch, run_each, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the reader that the arguments name, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the reader, called with FOLDER ARRAY OUT.npy")
    parser.add_argument("--batch", action="store_true", help="start the reader once, with --batch, for all cases")
    parser.add_argument("--only", action="append", default=[], help="names of cases, or how they begin: pad/")
    parser.add_argument("--without", action="append", default=[], help="a feature; cases that need it are left out")
    parser.add_argument("--short", action="store_true", help="print only the cases that fail, and the summary")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one array, or for 100 with --batch")
    options = parser.parse_args(arguments)
    command = [each for number, each in enumerate(options.command) if number or each != "--"]
    if not command:
        parser.error("name a reader: a command that is called with FOLDER ARRAY OUT.npy")
    cases = load_cases(only=options.only, without=options.without)
    if not cases:
        parser.error("no case has these names and features")
    if options.batch:
        results = run_batch(command, cases, options.timeout * (1 + len(cases) // 100))
    else:
        results = run_each(command, cases, options.timeout)
    print(table(results, is_short=options.short))
    return 0 if all(each.problem is None for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
