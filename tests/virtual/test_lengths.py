"""Files of unusual lengths: without steps along the dimension, with large variables, or contiguous."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import parts_store as ps
from parts_store.errors import AdoptionError
from parts_store.manifests import PartsArray
from parts_store.virtual.description import CannotBeReadError, Contiguous, Header, plain_chunk_shape, rows_of_file
from tests.virtual.adopting import joined, netcdf, repository, settle, stored
from tests.virtual.months import read

LAYOUTS: dict[str, dict[str, Any]] = {"contiguous": {}, "chunked": {"chunksizes": (1, 20, 30), "zlib": True}}
# A filter without a codec of Zarr, so that values are loaded.
LAYOUTS["loaded"] = {"chunksizes": (1, 20, 30), "compression": "lzf"}


# --- files without steps ----------------------------------------------------------------------------------------------


def write(path: Path, first: int, days: int, layout: str, dtype: str = "f8") -> Path:
    values = np.random.default_rng(first).random((days, 20, 30)).astype(dtype)
    dataset = xr.Dataset(
        {"t": (("day", "y", "x"), values, {"units": "K"}), "area": (("y", "x"), np.arange(600.0).reshape(20, 30))},
        {"day": np.datetime64("2020-01-01", "ns") + np.arange(first, first + days) * np.timedelta64(1, "D")},
    )
    units = {"units": "days since 2000-01-01", "dtype": "i4"}
    unlimited = [] if layout == "contiguous" else ["day"]
    dataset.to_netcdf(path, engine="h5netcdf", encoding={"t": LAYOUTS[layout], "day": units}, unlimited_dims=unlimited)
    settle(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_file_without_steps_adds_nothing(tmp_path: Path, layout: str, empty: int) -> None:
    days = [0 if at == empty else 2 for at in range(3)]
    files = [write(tmp_path / f"{at}.nc", 2 * at, each, layout) for at, each in enumerate(days)]
    expected = read([file for at, file in enumerate(files) if at != empty], "day")
    ordered = repository(tmp_path).writable_session("main")
    ps.adopt(files, into=ordered)
    for session in (joined(files, "day"), ordered, joined(files, "day", at_once=1)):
        xr.testing.assert_identical(stored(session), expected)


def test_files_that_are_all_without_steps_are_an_array_without_steps(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{at}.nc", 0, 0, "chunked") for at in range(2)]
    assert stored(joined(files, "day"))["t"].shape == (0, 20, 30)


def test_what_a_file_without_steps_contradicts_is_named(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{at}.nc", 2 * at, 2 * at, "contiguous", kind) for at, kind in enumerate(["f4", "f8"])]
    # The data type of no values does not matter.
    session = joined(files, "day")
    assert stored(session)["t"].dtype == np.float64
    with h5py.File(files[0], "r+") as file:
        file["t"].attrs["units"] = "degC"
    settle(files[0])
    message = r"0\.nc.*variable 't', attribute 'units': expected 'K', .*1\.nc', found 'degC'"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, path="b", concat_dim="day")


def test_arrays_without_values_are_copied_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=np.arange(6), chunks=(2,))
        file.create_dataset("none", (0, 3), "f4", chunks=(2, 3), maxshape=(None, 3), compression="gzip")
        file.create_dataset("nothing", (3, 0), "i2")
    store = ps.PartsStore.from_url(tmp_path / "copy.zarr")
    report = ps.adopt(tmp_path / "a.h5", into=store, copy=True)
    assert report.is_complete
    found = {name: zarr.open_array(store, path=name, mode="r") for name in ("v", "none", "nothing")}
    assert {name: each.shape for name, each in found.items()} == {"v": (6,), "none": (0, 3), "nothing": (3, 0)}
    assert found["none"].chunks == (2, 3)
    assert np.array_equal(np.asarray(found["v"][...]), np.arange(6))


# --- large variables of one dimension ---------------------------------------------------------------------------------


def series(path: Path, length: int) -> Path:
    """A file with one contiguous variable of one dimension, which has no coordinate."""
    values = np.random.default_rng(length).random(length)
    return netcdf(path, xr.Dataset({"v": ("n", values)}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lengths", [(600, 600, 600), (900, 300, 600), (1300, 650, 1950)])
def test_a_series_that_is_too_large_to_load_is_cut_into_blocks(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    files = [series(tmp_path / f"{at}.nc", length) for at, length in enumerate(lengths)]
    virtual = ps.open_virtual_mfdataset(files, combine="nested", concat_dim="n", max_loaded_nbytes=1000)
    assert isinstance(virtual["v"].data, PartsArray)
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files[:2], into=session, concat_dim="n", max_loaded_nbytes=1000)
    assert report.arrays[0].references > 0
    # The next file is cut in the same way, though it could be loaded.
    report = ps.adopt(files[2], into=session, append_dim="n")
    assert report.arrays[0].references > 0
    for found in (virtual.load(), stored(session)):
        xr.testing.assert_equal(found, read(files, "n"))
    other = series(tmp_path / "other.nc", 601)
    message = (
        r"other.nc.*variable 'v': its rows are small, the lengths of the files and of stored chunks have no common"
    )
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(other, into=session, append_dim="n", max_loaded_nbytes=1000)


def test_a_series_without_a_common_length_is_loaded_or_refused(tmp_path: Path) -> None:
    files = [series(tmp_path / f"{length}.nc", length) for length in (600, 601)]
    session = repository(tmp_path).writable_session("main")
    message = "variable 'v': its rows are small, the lengths of the files have no common divisor above 1, and its 9,608"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, concat_dim="n", max_loaded_nbytes=9607)
    ps.adopt(files, into=session, concat_dim="n", max_loaded_nbytes=9608)
    xr.testing.assert_equal(stored(session), read(files, "n"))


# --- the chunks of contiguous arrays ----------------------------------------------------------------------------------

URL = "s3://bucket/file"
PAGE, LARGE, SMALL = 1 << 18, 1 << 22, 1 << 12
LENGTHS = (1, 2, 3, 60, 97, 512, 1021, 8000)


def ranges_of_bytes(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """All shapes of chunks that divide an array, and are one range of its bytes; with their sizes."""
    for axis, length in enumerate(shape):
        for rows in range(1, length + 1):
            if length % rows == 0:
                found = (*[1] * axis, rows, *shape[axis + 1 :])
                yield math.prod(found) * itemsize, found


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("itemsize", [1, 2, 8])
def test_contiguous_array_is_cut_into_pages_or_groups_of_rows(axes: int, itemsize: int) -> None:
    for shape in itertools.product(LENGTHS, repeat=axes):
        whole = math.prod(shape) * itemsize
        slabs = [math.prod(shape[axis:]) * itemsize for axis in range(axes)]
        # The smallest slab that is worth a chunk of its own; a chunk is never more than one of them.
        page = min((nbytes for nbytes in slabs if nbytes >= PAGE), default=whole)
        sizes = [(nbytes, found) for nbytes, found in ranges_of_bytes(shape, itemsize) if nbytes <= page]
        fitting = max(sizes[at][0] for at in range(len(sizes)) if sizes[at][0] <= LARGE)
        if fitting < SMALL and fitting < whole:
            fitting = min(nbytes for nbytes, _ in sizes if nbytes > fitting)
        found = plain_chunk_shape(shape, itemsize)
        assert (math.prod(found) * itemsize, found) in sizes, shape
        assert math.prod(found) * itemsize == fitting, shape


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.integers(1, 1 << 24))
def test_rows_of_joined_files_divide_all_their_lengths(lengths: list[int], row: int) -> None:
    common = math.gcd(*lengths)
    (rows, _) = plain_chunk_shape((common, row), 1)
    assert all(length % rows == 0 for length in lengths)
    assert rows == 1 or row < PAGE
    others = [count for count in range(1, common + 1) if common % count == 0]
    # Few enough bytes, and no larger chunk has; or the next one after chunks that are too small.
    if rows * row <= LARGE:
        assert all(count <= rows or count * row > LARGE for count in others if row < PAGE)
    else:
        assert row >= PAGE or max(count for count in others if count < rows) * row < SMALL


@pytest.mark.parametrize(
    ("shape", "chunk_shape"),
    [
        # The stack of 60 pages of 512 KiB; with channels; with pages of 10 kB, of which many are a chunk.
        ((60, 512, 512), (1, 512, 512)),
        ((60, 3, 512, 512), (1, 1, 512, 512)),
        ((100_000, 50, 100), (400, 50, 100)),
        # Pages of 128 MB; a series; a series of a prime length; pages of a prime number.
        ((8000, 8000), (250, 8000)),
        ((5, 8000, 8000), (1, 250, 8000)),
        ((8_760_000,), (1_752_000,)),
        ((10_000_019,), (10_000_019,)),
        ((997, 100, 100), (1, 100, 100)),
    ],
)
def test_stacks_images_and_series_are_cut_as_the_page_says(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> None:
    assert plain_chunk_shape(shape, 2) == chunk_shape


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (3, 512, 512), (2, 3000, 3000), (3000, 50, 50)])
def test_chunks_of_a_contiguous_array_follow_each_other(shape: tuple[int, ...]) -> None:
    chunk_shape, found = rows_of_file(URL, 5, shape, 8)
    assert len(chunk_shape) == found.paths.ndim == len(shape)
    assert int(found.lengths.sum()) == 8 * math.prod(shape)
    assert set(found.paths.flat) == {URL}
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for place in np.ndindex(found.offsets.shape):
        region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, chunk_shape, strict=True))
        values = numbers[region].ravel()
        assert np.array_equal(values, np.arange(values[0], values[0] + len(values)))
        assert (int(found.offsets[place]), int(found.lengths[place])) == (5 + 8 * int(values[0]), 8 * len(values))


def test_array_of_too_many_chunks_is_refused() -> None:
    shape = (2**24, 512, 256)
    header = Header("v", shape, np.dtype("<i2"), 0, {}, ("z", "y", "x"))
    assert Contiguous(header, 0).header is header
    with pytest.raises(CannotBeReadError, match="16,777,217 chunks, and at most 16,777,216 can be listed"):
        Contiguous(replace(header, shape=(2**24 + 1, *shape[1:])), 0)
