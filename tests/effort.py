"""How many random examples a test runs: all at night and in the soak, a third in `make test`, a tenth in `check`."""

import os

from hypothesis import settings

FULL = 99
"""The number of examples of a hypothesis test that names none, if all are run."""
RUNS_ALL = "PARTS_STORE_ALL_EXAMPLES" in os.environ
"""Whether all random examples are run."""


def examples(count: int) -> int:
    """Return `count` if all examples are run, otherwise the share of it that is run."""
    return max(count * settings().max_examples // FULL, 1)
