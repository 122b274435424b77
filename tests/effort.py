"""How many random examples a test runs: all in `make test`, a tenth in `make check`."""

from hypothesis import settings

FULL = 100
"""The number of examples of a hypothesis test that names none, in `make test`."""


def examples(count: int) -> int:
    """Return `count` in `make test`, and a tenth of it in `make check`."""
    return max(count * settings().max_examples // FULL, 1)
