"""Arrays behave like NumPy's: random parts, shards, data types, pipelines, and all that changes them, in any store."""

import pytest

from tests.array_machine import Arrays, ArraysInObjects, ArraysInSession
from tests.machines import run


class SplitArrays(ArraysInSession):
    is_split = True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("machine", "count"),
    [(ArraysInObjects, 60), (ArraysInSession, 18), (SplitArrays, 18)],
    ids=["objects", "whole", "split"],
)
def test_arrays_behave_like_those_of_numpy(machine: type[Arrays], count: int) -> None:
    run(machine, count, steps=15)
