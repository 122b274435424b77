"""Contiguous arrays of files as chunks of whole rows."""

import math

import pytest

from parts_store.adoption.described_group import rows_of_file

URL = "s3://bucket/file"


@pytest.mark.parametrize("rows", [1, 2, 12, 97, 4096, 4097, 2**20, 2**20 + 7, 10**7 + 19, 2**25 + 1])
@pytest.mark.parametrize("columns", [1, 3, 2**20, 2**26])
def test_contiguous_array_is_cut_into_equal_chunks(rows: int, columns: int) -> None:
    chunk_shape, columns_of_manifest = rows_of_file(URL, 100, (rows, columns), 1)
    found = chunk_shape[0]
    assert rows % found == 0
    assert rows // found <= 4096
    small = [count for count in range(1, 4097) if rows % count == 0 and rows // count * columns <= 2**25]
    # The largest that are not too large, if there are any; few enough in any case.
    assert rows // found == (small[0] if small else rows // found)
    if not small:
        assert rows // found in (1, rows)
    # One after the other, from the offset to the end.
    ranges = list(zip(columns_of_manifest.offsets.flat, columns_of_manifest.lengths.flat, strict=True))
    assert [int(offset) for offset, _ in ranges] == [100 + at * found * columns for at in range(len(ranges))]
    assert sum(int(length) for _, length in ranges) == rows * columns


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4)])
def test_arrays_of_any_number_of_axes_are_described(shape: tuple[int, ...]) -> None:
    chunk_shape, found = rows_of_file(URL, 5, shape, 8)
    assert len(chunk_shape) == found.paths.ndim == len(shape)
    assert int(found.lengths.sum()) == 8 * math.prod(shape)
    assert set(found.paths.flat) == {URL}
