"""The numbers of paths: every chunk has the number of its path, in the order in which paths first occur."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts_store.manifests.path_numbers import number_paths

PATHS = st.lists(st.sampled_from(["", "s3://b/a", "s3://b/b", "file:///a long path that is not kept in place"]))


@given(names=PATHS, is_matrix=st.booleans())
def test_paths_are_numbered_by_first_occurrence(names: list[str], is_matrix: bool) -> None:
    paths = np.array(names, np.dtypes.StringDType())
    grid = (len(names), 1) if is_matrix else (len(names),)
    known, numbers = number_paths(paths.reshape(grid))
    assert known == tuple(dict.fromkeys(names))
    assert numbers.shape == grid
    assert [known[number] for number in numbers.reshape(-1)] == names


@pytest.mark.parametrize("dtype", [np.dtypes.StringDType(), "U20"], ids=str)
def test_single_chunk_without_axes_has_a_number(dtype: object) -> None:
    known, numbers = number_paths(np.array("s3://b/a", dtype))  # type: ignore[call-overload]
    assert known == ("s3://b/a",)
    assert numbers.shape == ()
    assert int(numbers) == 0
