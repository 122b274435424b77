"""Which values count as integers."""

from typing import Any

import numpy as np
import pytest

from parts_store.format.integers import parse_integer


@pytest.mark.parametrize("value", [0, 3, 2**70, np.int64(3), np.uint8(0)])
def test_integers_of_python_and_numpy_count(value: Any) -> None:
    found = parse_integer(value, 0)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, np.float64(1), "1", None, [1], np.array([1, 2])])
def test_other_values_do_not_count(value: Any) -> None:
    assert parse_integer(value, 0) is None


def test_limits_are_included() -> None:
    assert [parse_integer(value, 2, 4) for value in range(1, 6)] == [None, 2, 3, 4, None]
