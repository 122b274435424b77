"""Files with one compressed chunk each, of different lengths: copied, refused, or chunks of a rectilinear grid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.errors import AdoptionError, ManifestError, StoreConfigError
from tests.virtual.adopting import netcdf, repository, settle, stored
from tests.virtual.months import read, write_months
from tests.virtual.test_readers import adopt, read_elsewhere

SETTING = "array.rectilinear_chunks"


@pytest.fixture
def allowed() -> Iterator[None]:
    with zarr.config.set({SETTING: True}):
        yield


def forms(report: Any) -> dict[str, tuple[str, int]]:
    return {each.path: (each.form, each.references) for each in report.arrays if each.path in ("t", "p")}


def edges(session: icechunk.Session, path: str = "t") -> list[tuple[int, ...]]:
    array = zarr.open_array(session.store, path=path, mode="r")
    return [tuple(each) for each in array.write_chunk_sizes]


# --- by default -------------------------------------------------------------------------------------------------------


def test_by_default_values_are_copied_and_counted(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 3)
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files, into=session, concat_dim="time")
    copied = {each.path: each.nbytes_copied for each in report.arrays}
    # 90 days of 24 x 30 numbers: int16, and float32.
    assert (copied["t"], copied["p"]) == (90 * 720 * 2, 90 * 720 * 4)
    assert forms(report) == {"t": ("values", 0), "p": ("values", 0)}
    assert report.nbytes_copied == sum(copied.values())
    assert f", {report.nbytes_copied:,} bytes copied" in report.lines()[-1]
    assert "t: int16[90, 24, 30], 129.6 kB copied (the values are stored: loaded, because its compressed" in str(report)
    # The repository may refer to these folders for other arrays, and for earlier files of this one.
    assert str(report).splitlines()[-1].startswith("to open it: ps.open_repository(url, virtual=['file:///")
    # Everybody reads it, without a setting.
    expected = read(files)
    found = xr.open_zarr(session.store, consolidated=False).load()
    assert np.array_equal(found["t"].values, expected["t"].values, equal_nan=True)


def test_months_of_whole_chunks_stay_plain_with_a_shorter_last_file(tmp_path: Path) -> None:
    files, first = [], 0
    for number, days in enumerate((14, 28, 7, 3)):
        values = np.random.default_rng(number).random((days, 20, 30))
        dataset = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": np.arange(first, first + days)})
        chunks = {"chunksizes": (7, 20, 30), "zlib": True}
        path = tmp_path / f"{number}.nc"
        dataset.to_netcdf(path, engine="h5netcdf", encoding={"t": chunks}, unlimited_dims=["time"])
        settle(path)
        files.append(path)
        first += days
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files, into=session, concat_dim="time")
    assert {each.path: (each.form, each.references) for each in report.arrays}["t"] == ("plain", 8)
    assert np.array_equal(xr.open_zarr(session.store, consolidated=False)["t"], read(files)["t"])


def test_refuse_names_the_variable_and_what_would_work(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 2)
    session = repository(tmp_path).writable_session("main")
    message = r"2003-01\.nc.*variable 't': its compressed chunks .* `uneven='load'` .*`uneven='rectilinear'` to refer"
    with pytest.raises(AdoptionError, match=message):
        ps.adopt(files, into=session, concat_dim="time", uneven="refuse")
    assert not session.has_uncommitted_changes
    with pytest.raises(AdoptionError, match=r"max_loaded_nbytes.*`uneven='rectilinear'`"):
        ps.adopt(files, into=session, concat_dim="time", max_loaded_nbytes=1000)


def test_an_unknown_choice_and_a_missing_setting_are_refused(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 2)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(StoreConfigError, match="uneven: expected 'rectilinear', 'load' or 'refuse', found 'copy'"):
        ps.adopt(files, into=session, concat_dim="time", uneven="copy")  # type: ignore[arg-type]
    with pytest.raises(StoreConfigError, match=r"uneven: .*call zarr.config.set\(\{'array.rectilinear_chunks': True"):
        ps.adopt(files, into=session, concat_dim="time", uneven="rectilinear")


# --- rectilinear ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("allowed")
def test_chunks_of_a_rectilinear_grid_are_references(tmp_path: Path) -> None:
    files = write_months(tmp_path / "files", "month", "2003-01", 3)
    report = adopt(tmp_path, files, concat_dim="time", uneven="rectilinear")
    assert forms(report) == {"t": ("rectilinear", 3), "p": ("rectilinear", 3)}
    assert "readable with zarr and icechunk after zarr.config.set({'array.rectilinear_chunks': True})" in str(report)
    assert report.how_to_open("repository")[0] == "zarr.config.set({'array.rectilinear_chunks': True})"
    session = ps.open_repository(tmp_path / "repository", virtual=[tmp_path]).readonly_session("main")
    assert edges(session) == [(31, 28, 31), (24,), (30,)]
    expected = read(files)
    xr.testing.assert_identical(stored(session).drop_attrs(), expected.drop_attrs())
    source: Any = session
    with xr.open_dataset(source, engine="parts_store", chunks={}) as found:
        assert found["t"].chunks == ((31, 28, 31), (24,), (30,))
        xr.testing.assert_identical(found.load(), expected)
    # Other programs need the setting, and nothing of this package.
    out, refused = read_elsewhere(tmp_path, report, SETTING)
    assert refused == []
    assert np.array_equal(read([out / "dataset.nc"])["t"], expected["t"], equal_nan=True)


@pytest.mark.usefixtures("allowed")
def test_an_append_continues_the_grid(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 5)
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[:2], into=session, concat_dim="time", uneven="rectilinear")
    # The stored grid decides, whatever the option says.
    report = ps.adopt(files[2], into=session, append_dim="time")
    assert forms(report) == {"t": ("rectilinear", 1), "p": ("rectilinear", 1)}
    ps.adopt(files[3:], into=session, append_dim="time", uneven="rectilinear")
    assert edges(session)[0] == (31, 28, 31, 30, 31)
    xr.testing.assert_identical(stored(session).drop_attrs(), read(files).drop_attrs())


@pytest.mark.usefixtures("allowed")
def test_a_regular_grid_becomes_rectilinear_only_if_the_caller_says_so(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 3)
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    ps.adopt(files[0], into=session)
    session.commit("january")
    session = repo.writable_session("main")
    with pytest.raises(ManifestError, match=r"2003-02\.nc, array '[tp]': expected the chunk shape .*load it"):
        ps.adopt(files[1], into=session, append_dim="time", uneven="refuse")
    assert not session.has_uncommitted_changes
    ps.adopt(files[1], into=session, append_dim="time", uneven="rectilinear")
    ps.adopt(files[2], into=session, append_dim="time", uneven="rectilinear")
    assert edges(session)[0] == (31, 28, 31)
    xr.testing.assert_identical(stored(session).drop_attrs(), read(files).drop_attrs())


def test_appended_months_are_copied_behind_a_regular_grid_by_default(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 3)
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    for file in files[1:]:
        report = ps.adopt(file, into=session, append_dim="time")
        assert forms(report) == {"t": ("values", 0), "p": ("values", 0)}
        plan = {each.path: each.plan for each in report.arrays}["t"]
        assert "loaded, because its chunks do not continue the stored ones along 'time'" in plan
    # An ordinary array, with the first month as a reference.
    assert edges(session)[0] == (31, 31, 28)
    found = xr.open_zarr(session.store, consolidated=False).load()
    assert np.array_equal(found["t"].values, read(files)["t"].values, equal_nan=True)


def test_a_rectilinear_grid_without_the_setting_is_refused_by_name(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 3)
    session = repository(tmp_path).writable_session("main")
    with zarr.config.set({SETTING: True}):
        ps.adopt(files[:2], into=session, concat_dim="time", uneven="rectilinear")
    with pytest.raises(ps.PartsStoreError, match=r"array\.rectilinear_chunks"):
        ps.adopt(files[2], into=session, append_dim="time")


def lengths_file(folder: Path, number: int, rows: int, chunk: int) -> Path:
    values = np.random.default_rng(number).integers(1, 9, (rows, 400)).astype("i4")
    with h5py.File(folder / f"{number}.h5", "w") as file:
        dataset = file.create_dataset("v", data=values, chunks=(chunk, 400), maxshape=(None, 400), compression="gzip")
        for axis, name in enumerate("nx"):
            first = 100 * number if name == "n" else 0
            scale = file.create_dataset(name, data=np.arange(first, first + dataset.shape[axis]))
            scale.make_scale(name)
            dataset.dims[axis].attach_scale(scale)
    settle(folder / f"{number}.h5")
    return folder / f"{number}.h5"


def joined(files: list[Path]) -> Any:
    found = []
    for path in files:
        with h5py.File(path) as file:
            found.append(file["v"][()])
    return np.concatenate(found)


# The rows and the rows in a chunk of files that are joined at once, and of files that are appended one by one; and the
# edges of the chunks in the end.
LENGTHS: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], tuple[int, ...]]] = {
    "one chunk each": ([(4, 4), (3, 3)], [(5, 5)], (4, 3, 5)),
    "several chunks each": ([(4, 2), (3, 3)], [(6, 2), (1, 1)], (2, 2, 3, 2, 2, 2, 1)),
    "a last chunk beyond the end": ([(4, 4), (6, 3), (5, 4)], [], (4, 3, 3, 4, 4)),
    "a last file beyond the end": ([(4, 4), (6, 3)], [(5, 4)], (4, 3, 3, 4, 4)),
    "one file at first": ([(4, 2)], [(3, 3), (2, 2)], (2, 2, 3, 2)),
}


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("case", LENGTHS)
def test_files_of_any_lengths_are_the_concatenation(tmp_path: Path, case: str) -> None:
    at_once, more, expected = LENGTHS[case]
    files = [lengths_file(tmp_path, number, *each) for number, each in enumerate([*at_once, *more])]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[: len(at_once)], into=session, concat_dim="n", uneven="rectilinear")
    for number in range(len(at_once), len(files)):
        report = ps.adopt(files[number], into=session, append_dim="n", uneven="rectilinear")
        assert report.nbytes_copied < 400
    assert np.array_equal(stored(session)["v"], joined(files))
    document: Any = zarr.open_array(session.store, path="v", mode="r").metadata.to_dict()
    assert _expanded(document["chunk_grid"]["configuration"]["chunk_shapes"][0]) == expected


def _expanded(lengths: Any) -> tuple[int, ...]:
    """Return lengths, which zarr may write as pairs of a length and a number of repetitions."""
    pairs = [each if isinstance(each, list | tuple) else (each, 1) for each in lengths]
    return tuple(length for length, times in pairs for _ in range(times))


@pytest.mark.usefixtures("allowed")
def test_nothing_is_appended_behind_a_chunk_beyond_the_end(tmp_path: Path) -> None:
    files = [lengths_file(tmp_path, number, *each) for number, each in enumerate([(4, 4), (5, 3), (3, 3)])]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[:2], into=session, concat_dim="n", uneven="rectilinear")
    with pytest.raises(
        ManifestError, match=r"2\.h5, array 'v': expected a stored length .* multiple of the chunk length"
    ):
        ps.adopt(files[2], into=session, append_dim="n", uneven="rectilinear")


@pytest.mark.usefixtures("allowed")
def test_values_are_copied_behind_a_chunk_of_a_rectilinear_grid_that_is_not_full(tmp_path: Path) -> None:
    files = [lengths_file(tmp_path, number, *each) for number, each in enumerate([(4, 4), (5, 3), (3, 3)])]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[:2], into=session, concat_dim="n", uneven="rectilinear")
    ps.adopt(files[2], into=session, append_dim="n")
    assert np.array_equal(stored(session)["v"], joined(files))


@pytest.mark.usefixtures("allowed")
def test_what_a_rectilinear_grid_cannot_have_is_copied(tmp_path: Path) -> None:
    # Chunks of 10 rows in a file of 31, the last of which extends beyond its end; and chunks of other widths.
    over = [lengths_file(tmp_path, 0, 31, 10), lengths_file(tmp_path, 1, 28, 10)]
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(over, into=session, concat_dim="n", uneven="rectilinear")
    assert {each.path: each.form for each in report.arrays}["v"] == "values"
    assert np.array_equal(stored(session)["v"], joined(over))


@pytest.mark.usefixtures("allowed")
def test_a_grid_may_be_uneven_along_two_dimensions(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((10, 700))
    files = []
    for number, (y, x) in enumerate(
        [
            (slice(0, 4), slice(0, 300)),
            (slice(0, 4), slice(300, 700)),
            (slice(4, 10), slice(0, 300)),
            (slice(4, 10), slice(300, 700)),
        ]
    ):
        part = values[y, x]
        dataset = xr.Dataset(
            {"v": (("y", "x"), part)}, {"y": np.arange(y.start, y.stop), "x": np.arange(x.start, x.stop)}
        )
        files.append(netcdf(tmp_path / f"{number}.nc", dataset, v={"chunksizes": part.shape, "zlib": True}))
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(files, into=session, uneven="rectilinear")
    assert {each.path: (each.form, each.references) for each in report.arrays}["v"] == ("rectilinear", 4)
    assert edges(session, "v") == [(4, 6), (300, 400)]
    assert np.array_equal(stored(session)["v"], values)


@pytest.mark.usefixtures("allowed")
def test_regions_of_a_rectilinear_grid_are_refused(tmp_path: Path) -> None:
    files = write_months(tmp_path, "month", "2003-01", 2)
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files, into=session, concat_dim="time", uneven="rectilinear")
    february = ps.open_virtual_dataset(files[1])
    with pytest.raises(ManifestError, match="expected a regular grid of chunks, to write a region"):
        ps.to_icechunk(february[["t", "p", "time"]], session, region={"time": slice(31, 59)})
