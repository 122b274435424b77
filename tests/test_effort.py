"""The tests that `make check` and `make test` run represent all of them."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import spread

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("together", [1, 2, 3])
@given(sizes=st.lists(st.integers(1, 5), max_size=4), data=st.data())
@settings(max_examples=20)
def test_some_cases_have_all_values_of_parameters_together(
    together: int, sizes: list[int], data: st.DataObject
) -> None:
    cases = [*itertools.product(*(range(size) for size in sizes))]
    already = data.draw(st.sets(st.integers(0, len(cases) - 1)))
    chosen = spread(cases, together, already)
    assert already <= chosen <= {*range(len(cases))}
    for places in itertools.combinations(range(len(sizes)), min(together, len(sizes))):
        wanted = {tuple(case[place] for place in places) for case in cases}
        assert {tuple(cases[number][place] for place in places) for number in chosen} == wanted


@pytest.mark.parametrize(("sizes", "least"), [((7,), 7), ((3, 4), 4), ((3, 3, 3), 3)])
def test_each_value_takes_as_few_cases_as_there_are_values(sizes: tuple[int, ...], least: int) -> None:
    assert len(spread([*itertools.product(*(range(size) for size in sizes))], 1)) == least


FILE = """
import pytest

@pytest.fixture(params="pq")
def letter(request): ...

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b, c", [(0, 0), (1, 1), (2, 2)])
def test_many(a, b, c, letter): ...

@pytest.mark.parametrize("a", range(21))
def test_long(a): ...

@pytest.mark.sampled(4)
@pytest.mark.parametrize("a", range(9))
def test_sampled(a): ...

@pytest.mark.sampled(4, usual=2)
@pytest.mark.parametrize("a", range(9))
def test_both(a): ...

def test_plain(): ...

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.nightly
def test_nightly(): ...
"""


SELECTED = {"not slow": [3, 3, 3, 3, 1], "not nightly": [9, 21, 9, 5, 1, 1], "": [18, 21, 9, 9, 1, 1, 1]}


@pytest.mark.slow
@pytest.mark.parametrize(("selected", "counts"), SELECTED.items())
def test_check_and_test_leave_out_repetitions(tmp_path: Path, selected: str, counts: list[int]) -> None:
    (tmp_path / "conftest.py").write_text("from tests.effort import pytest_collection_modifyitems\n")
    (tmp_path / "test_it.py").write_text(FILE)
    ini = f"--rootdir={tmp_path}", "-o", "markers=slow\nnightly\nsampled"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *ini, "-m", selected]
    shown = subprocess.run([*command, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [line.partition("::")[2].partition("[")[0] for line in shown.splitlines() if "::" in line]
    assert [len([*group]) for _, group in itertools.groupby(names)] == counts
