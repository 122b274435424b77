"""How much of the repetitive tests runs: all at night and in the soak, less in `make test`, least in `make check`.

| | cases of a test with several parameters | random examples | cases inside a test |
|---|---|---|---|
| `make check` | each value of each parameter, five cases at most | a tenth | every 33rd |
| `make test` | each two values of different parameters | a third | every third |
| at night | all | all | all |

Of the cases of a test that is marked `sampled(n, usual=m)`, `make check` runs every n-th and `make test` every m-th.
Cases that `make check` leaves out are marked `slow`, and those that `make test` leaves out are marked `nightly`, too.
"""

import gc
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings

FULL = 99
"""The number of examples of a hypothesis test that names none, if all are run."""
USUAL, QUICK = FULL // 3, FULL // 10
RUNS_ALL = "PARTS_STORE_ALL_EXAMPLES" in os.environ
"""Whether all random examples are run."""

_MOST_QUICK = 3

_COMMON = settings(
    deadline=None,
    print_blob=True,
    # The fixtures only set zarr's configuration, which all examples may share.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile("full", _COMMON, max_examples=FULL)
settings.register_profile("usual", _COMMON, max_examples=USUAL)
settings.register_profile("quick", _COMMON, max_examples=QUICK)


def examples(count: int) -> int:
    """Return `count` if all examples are run, otherwise the share of it that is run."""
    return max(count * settings().max_examples // FULL, 1)


def some[T](cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """Return what a test goes through by itself: all cases if all are run, a third of them, or every 33rd.

    The share begins with the case of the number `first`, so that several tests share the cases.
    """
    step = {FULL: 1, USUAL: 3}.get(settings().max_examples, 33)
    return cases[first % step :: step]


def spread(cases: Sequence[Sequence[object]], together: int, chosen: Iterable[int] = ()) -> set[int]:
    """Return the numbers of some cases, in which any `together` values of different parameters meet as in all cases.

    A case is the sequence of the values of its parameters. The cases `chosen` already are among those returned.
    """
    combinations = [{*itertools.combinations(enumerate(values), min(together, len(values)))} for values in cases]
    numbers = set(chosen)
    seen = set().union(*(combinations[number] for number in numbers))
    # First the cases that repeat nothing, then those that repeat little, so that few cases are enough.
    for least in range(max(map(len, combinations)), 0, -1):
        for number, found in enumerate(combinations):
            if len(found - seen) >= least:
                numbers.add(number)
                seen |= found
    return numbers


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of random examples."""
    usual = "quick" if "not slow" in config.option.markexpr else "usual"
    settings.load_profile("full" if RUNS_ALL else usual)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start half as many processes again as there are cores: many tests wait for a server, a lock or a process."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that `make check` or `make test` leaves out."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in tests.values():
        cases = [_values(item) for item in same]
        sampled = same[0].get_closest_marker("sampled")
        quick = {*range(0, len(cases), sampled.args[0])} if sampled else _few(spread(cases, 1))
        share = sampled.kwargs.get("usual") if sampled else None
        usual = {*range(0, len(cases), share)} if share else spread(cases, 2, quick)
        for number, item in enumerate(same):
            if number not in usual:
                item.add_marker(pytest.mark.nightly)
            if number not in quick or item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without the garbage collector, which would look at objects that stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _few(numbers: set[int]) -> set[int]:
    return {*sorted(numbers)[:: -(-len(numbers) // _MOST_QUICK)]}


def _values(test: pytest.Item) -> list[object]:
    """Return what a case of a test has for each parameter. Parameters that were given together count as one."""
    call = getattr(test, "callspec", None)
    values = {name: id(value) for name, value in call.params.items()} if call else {}
    together = []
    for mark in test.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        together.append(tuple(values.pop(name, None) for name in names))
    return [*together, *values.values()]
