"""Uncompressed pages: a page of a stack costs its own bytes, in every format; large pages are cut into rows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr
from numpy.typing import NDArray
from scipy.io import netcdf_file

import parts_store as ps
from parts_store.errors import ManifestError, SessionError
from tests.virtual.adopting import adopted, joined, netcdf, repository, settle, stored
from tests.virtual.months import read

RNG = np.random.default_rng(1)


def numbers(*shape: int, dtype: str = "u2") -> NDArray[Any]:
    return RNG.integers(0, 60_000, shape).astype(dtype)


# --- one file ---------------------------------------------------------------------------------------------------------


def imagej(path: Path, values: NDArray[Any]) -> str:
    tifffile.imwrite(path, values, imagej=True, metadata={"axes": "TCYX"[-values.ndim :]})
    return "data"


def pages(path: Path, values: NDArray[Any]) -> str:
    """Pages with their directories in between, in strips."""
    with tifffile.TiffWriter(path) as file:
        for page in values:
            file.write(page, contiguous=False, rowsperstrip=16, metadata=None)
    return "data"


def colours(path: Path, values: NDArray[Any]) -> str:
    tifffile.imwrite(path, values, photometric="rgb", planarconfig="contig")
    return "data"


def planes(path: Path, values: NDArray[Any]) -> str:
    tifffile.imwrite(path, values, photometric="rgb", planarconfig="separate")
    return "data"


def hdf5(path: Path, values: NDArray[Any]) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("before", data=np.arange(7))
        file.create_dataset("stack", data=values)
    return "stack"


def virtual_hdf5(path: Path, values: NDArray[Any]) -> str:
    source = path.with_name("source.h5")
    hdf5(source, values)
    settle(source)
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(source, "stack", values.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("all", layout)
    return "all"


def netcdf3(path: Path, values: NDArray[Any], *, records: int = 0) -> str:
    """A variable of a fixed length, or one of several variables with records, which alternate in the file."""
    with netcdf_file(path, "w", version=2) as file:
        for axis, length in enumerate(values.shape):
            file.createDimension(f"d{axis}", None if records and not axis else length)
        for number in range(max(1, records)):
            made = file.createVariable(f"v{number}", values.dtype, tuple(f"d{axis}" for axis in range(values.ndim)))
            made[:] = values + number
    return "v0"


def one_record_variable(path: Path, values: NDArray[Any]) -> str:
    return netcdf3(path, values, records=1)


def two_record_variables(path: Path, values: NDArray[Any]) -> str:
    return netcdf3(path, values, records=2)


type Write = Callable[[Path, NDArray[Any]], str]
BIG, SMALL = 512 * 512 * 2, 64 * 100 * 2

# How a file is written, the shape and type of its values, and how many bytes one page along all axes but the last two
# (three with colours) costs: its own; those of a group of small pages; or those of the whole of a few small pages.
CASES: dict[str, tuple[Write, tuple[int, ...], str, int]] = {
    "ImageJ": (imagej, (60, 512, 512), "u2", BIG),
    "ImageJ, channels": (imagej, (5, 3, 512, 512), "u2", BIG),
    "ImageJ, small pages": (imagej, (600, 64, 100), "u2", 300 * SMALL),
    "ImageJ, few small pages": (imagej, (20, 64, 100), "u2", 20 * SMALL),
    "pages": (pages, (6, 512, 512), "u2", BIG),
    "small pages": (pages, (20, 64, 100), "u2", SMALL),
    "colours": (colours, (4, 400, 500, 3), "u1", 400 * 500 * 3),
    "planes": (planes, (4, 3, 600, 500), "u1", 600 * 500),
    "HDF5": (hdf5, (7, 512, 512), "u2", BIG),
    "HDF5, small pages": (hdf5, (600, 64, 100), "u2", 300 * SMALL),
    "virtual HDF5": (virtual_hdf5, (7, 512, 512), "u2", BIG),
    "netCDF3": (netcdf3, (7, 512, 512), "i2", BIG),
    "netCDF3, small pages": (netcdf3, (600, 64, 100), "i2", 300 * SMALL),
    "netCDF3, one record variable": (one_record_variable, (600, 64, 100), "i2", 300 * SMALL),
    "netCDF3, two record variables": (two_record_variables, (40, 64, 100), "i2", SMALL),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_a_page_costs_its_own_bytes_or_those_of_a_group_of_small_pages(case: str, tmp_path: Path) -> None:
    write, shape, dtype, nbytes = CASES[case]
    values = numbers(*shape, dtype="u1" if dtype == "u1" else "u2").astype(dtype)
    name = write(tmp_path / "a.file", values)
    report, store = adopted(tmp_path / "a.file")
    (found,) = [each for each in report.arrays if each.path == name]
    assert found.chunks == values.nbytes // nbytes
    array = zarr.open_array(store, path=name, mode="r")
    assert array.shape == shape
    axes = len(shape) - (3 if case == "colours" else 2)
    for page in (tuple(length // 2 for length in shape[:axes]), (0,) * axes, tuple(each - 1 for each in shape[:axes])):
        store.stats.reset()
        assert np.array_equal(np.asarray(array[page]), values[page])
        assert store.stats.bytes_read == nbytes
    assert np.array_equal(np.asarray(array[...]), values)


@pytest.mark.parametrize("write", [imagej, hdf5])
def test_rows_of_a_large_page_are_read_without_the_others(write: Write, tmp_path: Path) -> None:
    values = numbers(2400, 4000)
    name = write(tmp_path / "a.file", values)
    _, store = adopted(tmp_path / "a.file")
    array = zarr.open_array(store, path=name, mode="r")
    # 480 rows of 8,000 bytes are the most that divide the page and have up to 4 MiB.
    assert array.chunks == (480, 4000)
    store.stats.reset()
    assert np.array_equal(np.asarray(array[700:720]), values[700:720])
    assert store.stats.bytes_read == 480 * 8000
    assert np.array_equal(np.asarray(array[...]), values)


@pytest.mark.parametrize("order", ["C", "F"])
def test_pages_of_a_flat_file_are_chunks(order: Any, tmp_path: Path) -> None:
    shape = (5, 400, 500) if order == "C" else (400, 500, 5)
    values = numbers(*shape)
    (tmp_path / "a.raw").write_bytes(bytes(352) + values.tobytes(order))
    settle(tmp_path / "a.raw")
    parser = ps.parsers.Raw(offset=352, shape=shape, dtype="u2", order=order)
    session = repository(tmp_path).writable_session("main")
    ps.adopt(tmp_path / "a.raw", into=session, parser=parser)
    store = ps.PartsStore.from_session(session)
    array = zarr.open_array(store, path="data", mode="r")
    store.stats.reset()
    page = np.s_[3] if order == "C" else np.s_[..., 3]
    assert np.array_equal(np.asarray(array[page]), values[page])
    assert store.stats.bytes_read == 400 * 500 * 2


# --- several files ----------------------------------------------------------------------------------------------------


def days(path: Path, first: int, count: int, shape: tuple[int, ...] = (50, 40)) -> Path:
    """A file with an uncompressed variable, whose rows are too small to be chunks of their own."""
    values = np.random.default_rng(first).random((count, *shape))
    return netcdf(path, xr.Dataset({"v": (("time", "y", "x"), values)}, {"time": np.arange(first, first + count)}))


def archive(folder: Path, lengths: list[int], shape: tuple[int, ...] = (50, 40)) -> list[Path]:
    starts = np.cumsum([0, *lengths]).tolist()
    return [days(folder / f"{at}.nc", starts[at], count, shape) for at, count in enumerate(lengths)]


def chunk_length(session: Any) -> int:
    return int(zarr.open_array(ps.PartsStore.from_session(session), path="v", mode="r").chunks[0])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([24, 24, 24], 24),
        ([48, 24, 72], 24),
        ([31, 28, 31], 1),
        # 262 rows are 4 MiB: the common length of 300 is cut in two.
        ([300, 600], 150),
    ],
)
def test_chunks_of_joined_files_divide_all_their_lengths(lengths: list[int], expected: int, tmp_path: Path) -> None:
    files = archive(tmp_path, lengths)
    session = joined(files, "time")
    assert chunk_length(session) == expected == math.gcd(*lengths) // (2 if lengths[0] == 300 else 1)
    xr.testing.assert_equal(stored(session), read(files))


def test_pages_of_joined_files_are_chunks_whatever_their_lengths(tmp_path: Path) -> None:
    files = archive(tmp_path, [3, 1, 2], (200, 200))
    for at_once in (1, 3):
        session = joined(files, "time", at_once=at_once)
        assert chunk_length(session) == 1
        xr.testing.assert_equal(stored(session), read(files))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("shard_chunks", [1, 4095])
def test_a_file_of_another_length_is_appended_by_references(at_once: int, shard_chunks: int, tmp_path: Path) -> None:
    files = archive(tmp_path, [36, 36, 24, 31, 24])
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files[:at_once], into=session, concat_dim="time", shard_chunks=shard_chunks)
    lengths = [chunk_length(session)]
    for file in files[at_once:]:
        report = ps.adopt(file, into=session, append_dim="time", shard_chunks=shard_chunks)
        (found,) = [each for each in report.arrays if each.path == "v"]
        assert found.references > 0
        assert found.nbytes_copied == 0
        lengths.append(chunk_length(session))
    expected = [math.gcd(*[36, 36, 24, 31, 24][: at + 1]) for at in range(at_once - 1, 5)]
    assert lengths == expected
    xr.testing.assert_equal(stored(session), read(files))
    assert ps.PartsStore.from_session(session).verify().is_clean


@pytest.mark.slow
@pytest.mark.parametrize("shard_chunks", [1, 12])
def test_a_file_that_is_changed_right_after_its_array_was_cut_again_is_not_read(
    shard_chunks: int, tmp_path: Path
) -> None:
    files = archive(tmp_path, [360, 240])
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session, concat_dim="time", shard_chunks=shard_chunks)
    ps.adopt(files[1], into=session, append_dim="time")
    files[0].write_bytes(files[0].read_bytes()[::-1])
    array = zarr.open_array(ps.PartsStore.from_session(session), path="v", mode="r")
    with pytest.raises(SessionError, match="changed"):
        array[...]


def test_an_array_with_values_of_its_own_is_not_cut(tmp_path: Path) -> None:
    files = archive(tmp_path, [36, 24])
    session = joined(files[:1], "time")
    array = zarr.open_array(ps.PartsStore.from_session(session), path="v")
    assert array.chunks == (36, 50, 40)
    array[:] = values = np.zeros(array.shape)
    # The next values are stored like them.
    report = ps.adopt(files[1], into=session, append_dim="time")
    (found,) = [each for each in report.arrays if each.path == "v"]
    assert "loaded, because the values of the stored array are not in files" in found.plan
    expected = np.concatenate([values, read(files)["v"].values[36:]])
    assert np.array_equal(stored(session)["v"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(36, 24, 30, 31), (36, 8, 8, 4)])
@pytest.mark.parametrize("shard_chunks", [None, 1, 12, 4095])
def test_an_array_in_small_shards_stays_in_shards(
    shard_chunks: int | None, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    files = archive(tmp_path, [*lengths], (200, 200))
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session, shard_chunks=12)
    for file in files[1:]:
        report = ps.adopt(file, into=session, append_dim="time", shard_chunks=shard_chunks)
        assert {each.path: each.form for each in report.arrays}["v"] == "shards"
    xr.testing.assert_equal(stored(session), read(files))


def chunked(path: Path, first: int, count: int, chunk: int | None) -> Path:
    """A file with an uncompressed variable, in chunks or contiguous."""
    values = np.random.default_rng(first).random((count, 50, 40))
    dataset = xr.Dataset({"v": (("time", "y", "x"), values)}, {"time": np.arange(first, first + count)})
    return netcdf(path, dataset, v={} if chunk is None else {"chunksizes": (chunk, 50, 40)})


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 2, 4])
@pytest.mark.parametrize("shard_chunks", [None, 2])
def test_files_are_appended_behind_a_chunk_that_is_not_full(
    chunk: int | None, shard_chunks: int | None, tmp_path: Path
) -> None:
    files = [chunked(tmp_path / "0.nc", 0, 10, 4), chunked(tmp_path / "1.nc", 10, 6, chunk)]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session, shard_chunks=shard_chunks)
    report = ps.adopt(files[1], into=session, append_dim="time", shard_chunks=shard_chunks)
    (found,) = [each for each in report.arrays if each.path == "v"]
    assert (found.references > 0, found.nbytes_copied) == (True, 0)
    assert chunk_length(session) == math.gcd(4, 10, 6)
    xr.testing.assert_equal(stored(session), read(files))


@pytest.mark.parametrize("loaded", [7, 12])
def test_files_of_other_lengths_are_appended_behind_values_that_were_loaded(loaded: int, tmp_path: Path) -> None:
    files = archive(tmp_path, [12, loaded, 4])
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    ps.adopt(files[1], into=session, append_dim="time", loadable_variables=["v"])
    ps.adopt(files[2], into=session, append_dim="time")
    xr.testing.assert_equal(stored(session), read(files))


@pytest.mark.parametrize("lengths", [(100, 1024), (1024, 100)])
def test_files_are_appended_along_an_inner_dimension_whatever_their_lengths(
    lengths: tuple[int, int], tmp_path: Path
) -> None:
    # 1,024 rows of 2 KiB are a page of its own, and 100 are not.
    files: list[Path] = []
    first = 0
    for length in lengths:
        dataset = xr.Dataset({"v": (("y", "time", "x"), numbers(4, length, 256, dtype="f8"))})
        files.append(netcdf(tmp_path / f"{first}.nc", dataset.assign_coords(time=np.arange(first, first + length))))
        first += length
    session = joined(files, "time", at_once=1)
    xr.testing.assert_equal(stored(session), read(files))


def test_values_are_not_stored_with_codecs_that_would_change_them(tmp_path: Path) -> None:
    images = [numbers(100, 128, dtype="u1"), numbers(60, 128, dtype="u1")]
    files = [tmp_path / "0.tif", tmp_path / "1.tif"]
    for file, image in zip(files, images, strict=True):
        tifffile.imwrite(file, image, tile=(64, 64), compression="jpeg", photometric="minisblack")
        settle(file)
    session = joined(files[:1], "y")
    before = np.asarray(stored(session)["data"])
    assert np.array_equal(before, tifffile.imread(files[0]))
    # The last tile is not full: its pixels would be compressed again, with others.
    for names in (None, ["data"]):
        with pytest.raises(ManifestError, match=r"1\.tif, array 'data': expected codecs that keep all values.*jpeg"):
            ps.adopt(files[1], into=session, append_dim="y", loadable_variables=names)
        assert np.array_equal(np.asarray(stored(session)["data"]), before)
