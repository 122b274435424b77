"""NumPy and xarray functions of arrays of references: the right values, or an error that says to load them."""

import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parts_store.errors import ManifestError
from parts_store.manifests import PartsArray
from tests.virtual.manifests.making import FEW, Files, Kind, make, seeds

KINDS = {
    "f4": Kind("<f4", "zstd", 2, (2, 2)),
    "i4": Kind("<i4", "plain", 1, (2, 2)),
    "u1": Kind("u1", "plain", 1, (2, 2)),
}


def array_of(values: NDArray[Any], seed: int) -> PartsArray:
    """An array of references to new files with these values."""
    files = Files(np.random.default_rng(seed))
    array, _ = make(values, KINDS[values.dtype.str[1:]], files)
    return array.with_registry(files.registry())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays of small numbers, often NaN, which agree in most places."""
    kind = draw(st.sampled_from(list(KINDS)))
    random = np.random.default_rng(draw(seeds))
    one = random.integers(0, 4, (4, 3)).astype(kind)
    if kind == "f4":
        one[one == 0] = np.nan
    other = one.copy()
    if draw(st.booleans()):
        other[tuple(random.integers(0, (4, 3)))] = 2
    return one, other


def variables(values: NDArray[Any], seed: int) -> tuple[xr.DataArray, xr.DataArray]:
    """The values, and references to them."""
    one, other = (xr.DataArray(each, dims=("y", "x"), name="v") for each in (values, array_of(values, seed)))
    return one, other


FUNCTIONS: dict[str, Callable[[xr.DataArray], xr.DataArray]] = {
    "isnull": lambda array: array.isnull(),
    "notnull": lambda array: array.notnull(),
    "count": lambda array: array.count(),
    "fillna": lambda array: array.fillna(7),
    "where": lambda array: array.where(xr.DataArray([True, False, True], dims="x")),
    "where with itself": lambda array: array.where(array > 1),
    "where with a value": lambda array: array.where(array != 1, 5),
    "equal": lambda array: array == 2,
    "equal to itself": lambda array: array == array,  # noqa: PLR0124
    "less": lambda array: 2 < array,  # noqa: SIM300
    "full_like": lambda array: xr.full_like(array, 3),
    "full_like of another type": lambda array: xr.full_like(array, 0.5, dtype=float),
    "astype": lambda array: array.astype("f8"),
}


@FEW
@given(pairs(), st.sampled_from(list(FUNCTIONS)), seeds)
def test_functions_return_what_they_return_for_the_values(
    pair: tuple[NDArray[Any], NDArray[Any]], name: str, seed: int
) -> None:
    values, virtual = variables(pair[0], seed)
    expected, found = FUNCTIONS[name](values), FUNCTIONS[name](virtual)
    assert found.dtype == expected.dtype
    xr.testing.assert_identical(found.load(), expected)


@FEW
@given(pairs(), seeds)
def test_variables_are_equal_if_their_values_are(pair: tuple[NDArray[Any], NDArray[Any]], seed: int) -> None:
    (one, first), (other, second) = variables(pair[0], seed), variables(pair[1], seed + 1)
    for left, right in ((first, second), (first, other), (one, second)):
        assert left.equals(right) == one.equals(other)
        assert left.identical(right) == one.identical(other)
        for compare in (operator.eq, operator.ne):
            np.testing.assert_array_equal(compare(left, right).values, compare(one, other).values)
    assert first.equals(first.copy())
    np.testing.assert_array_equal(np.equal(first.data, first.copy().data), one.values == one.values)


COMPATS: list[Any] = ["equals", "identical", "no_conflicts", "broadcast_equals"]


@FEW
@given(pairs(), seeds, st.sampled_from(COMPATS))
def test_merge_agrees_with_xarray_about_conflicts(
    pair: tuple[NDArray[Any], NDArray[Any]], seed: int, compat: Any
) -> None:
    pairs = [variables(values, seed + number) for number, values in enumerate(pair)]
    loaded, virtual = ([each[kind].to_dataset(name="v") for each in pairs] for kind in (0, 1))
    try:
        expected = xr.merge(loaded, compat=compat)
    except xr.MergeError:
        with pytest.raises(xr.MergeError):
            xr.merge(virtual, compat=compat)
    else:
        xr.testing.assert_identical(xr.merge(virtual, compat=compat).load(), expected)


def test_a_function_that_needs_values_says_to_load_them() -> None:
    array = array_of(np.arange(4, dtype="f4").reshape(2, 2), 0)
    variable = xr.Variable(("y", "x"), array)
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: variable + 1,
        "subtract": lambda: np.ones((2, 2)) - array,
        "negative": lambda: -variable,
        "isfinite": lambda: np.isfinite(array),
        "zeros_like": variable.sum,
        "clip": lambda: np.clip(cast("Any", array), 0, 1),
        "isin": lambda: np.isin(array, [1]),
        "isnan": lambda: np.isnan(array, out=np.empty((2, 2), bool)),
        "equal": lambda: np.equal.outer(array, array),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"numpy.{name} needs the values of a PartsArray.* call `.load\(\)` first"):
            call()


def test_result_types_are_those_of_numpy() -> None:
    small = array_of(np.zeros((2, 2), "u1"), 0)
    assert np.result_type(small, np.nan) == np.float64
    assert np.result_type(small, 3) == np.uint8
    assert np.result_type(small, np.dtype("i4")) == np.int32
    assert np.result_type(small, small) == np.uint8
    with pytest.raises(ManifestError, match=r"the data type uint8, because references cannot be cast, found int32"):
        np.result_type(small, array_of(np.zeros((2, 2), "i4"), 0))
