"""A selection touches the inner chunks that hold its elements, no others, and selects what NumPy selects."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parts_store.pipeline.selections import Gather, Region, plan_selection


def check(selection: Any, grid: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Region | Gather:
    shape = tuple(count * size for count, size in zip(grid, chunk_shape, strict=True))
    shard = np.arange(np.prod(shape)).reshape(shape)
    numbers = np.zeros(shape, int)
    blocks: list[NDArray[Any]] = []
    for number, position in enumerate(product(*map(range, grid))):
        place = tuple(slice(at * size, (at + 1) * size) for at, size in zip(position, chunk_shape, strict=True))
        numbers[place] = number
        blocks.append(shard[place])
    planned = plan_selection(selection, grid, chunk_shape)
    assert planned is not None
    assert sorted(planned.numbers.tolist()) == sorted(set(np.asarray(numbers[selection]).reshape(-1).tolist()))
    found = planned.select(np.stack([blocks[number] for number in planned.numbers]))
    np.testing.assert_array_equal(found, shard[selection])
    return planned


@pytest.mark.parametrize("grid", [(1,), (2,), (3,)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_slice_and_integer_along_one_axis(grid: tuple[int], size: int) -> None:
    total = grid[0] * size
    for start, stop, step in product(range(total), range(1, total + 1), range(1, total + 1)):
        if start < stop:
            assert isinstance(check((slice(start, stop, step),), grid, (size,)), Region if step == 1 else Gather)
    for at in range(total):
        assert isinstance(check((at,), grid, (size,)), Region)
        check((np.int64(at),), grid, (size,))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    ndim = draw(st.integers(1, 3))
    grid = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    chunk_shape = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    sizes = [count * size for count, size in zip(grid, chunk_shape, strict=True)]

    def indexes(size: int, count: int) -> NDArray[Any]:
        return np.array([draw(st.integers(0, size - 1)) for _ in range(count)])

    def of_slice(size: int) -> slice:
        start = draw(st.integers(0, size - 1))
        return slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3)))

    match draw(st.sampled_from(["points", "grid", "basic", "one array"])):
        case "points":
            count = draw(st.integers(1, 6))
            return tuple(indexes(size, count) for size in sizes), grid, chunk_shape
        case "grid":
            return np.ix_(*(indexes(size, draw(st.integers(1, 4))) for size in sizes)), grid, chunk_shape
        case "basic":
            entries = [of_slice(size) if draw(st.booleans()) else draw(st.integers(0, size - 1)) for size in sizes]
            return tuple(entries), grid, chunk_shape
        case _:
            where = draw(st.integers(0, ndim - 1))
            array = np.arange(sizes[where]) % 2 == 0 if draw(st.booleans()) else indexes(sizes[where], 3)
            return tuple(array if at == where else of_slice(size) for at, size in enumerate(sizes)), grid, chunk_shape


@given(case=cases())
def test_selections_are_those_of_numpy(case: tuple[Any, tuple[int, ...], tuple[int, ...]]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "selection",
    [
        np.array([1, 2]),
        (slice(0, 2),),
        (slice(0, 0), slice(0, 2)),
        (slice(3, 0, -1), slice(0, 2)),
        (np.array([1]), 3),
        (np.array([], int), np.array([], int)),
        (np.array([1.5]), slice(0, 2)),
        ("field", slice(0, 2)),
        (True, slice(0, 2)),
    ],
    ids=str,
)
def test_other_selections_are_left_to_zarr(selection: Any) -> None:
    assert plan_selection(selection, (2, 2), (2, 2)) is None
