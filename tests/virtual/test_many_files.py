"""Many files as one dataset: adopted in one call, continued by another file, skipped, changed meanwhile."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.errors import AdoptionError, StoreConfigError
from parts_store.virtual.parsers import file_parsers as parsers
from tests.virtual.adopting import repository, settle, stored
from tests.virtual.months import month, read, write, write_months


@pytest.fixture(scope="module")
def winter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of three months, from December to a February of 29 days."""
    folder = tmp_path_factory.mktemp("winter")
    write_months(folder, "day", "2003-12", 3)
    return folder


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.nc"))


@pytest.fixture
def copied(winter: Path, tmp_path: Path) -> Path:
    """The same folder, to be changed."""
    shutil.copytree(winter, tmp_path / "winter")
    return tmp_path / "winter"


@pytest.mark.slow
def test_months_are_joined_and_appended(winter: Path) -> None:
    first, second, third = files_in(winter)
    session = repository(winter).writable_session("main")
    report = ps.adopt([first, second], into=session, path="a/b", concat_dim="time")
    assert not report.failed
    assert report.folders == (f"{winter.resolve().as_uri()}/",)
    assert report.location == f"{first.resolve().as_uri()} and 1 other files"
    ps.adopt(third, into=session, path="a/b", append_dim="time")
    xr.testing.assert_identical(stored(session, "a/b"), read([first, second, third]))
    with pytest.raises(ps.PartsStoreError, match=r"coordinate 'a/b/time': expected values after 2004-02-29"):
        ps.adopt(third, into=session, path="a/b", append_dim="time")
    xr.testing.assert_identical(stored(session, "a/b"), read([first, second, third]))


@pytest.mark.slow
def test_a_dry_run_reports_the_same_and_writes_nothing(winter: Path) -> None:
    session = repository(winter).writable_session("main")
    options: Any = {"concat_dim": "time", "shard_chunks": 4095}
    planned = ps.adopt(winter / "*.nc", into=session, dry_run=True, **options)
    assert not session.has_uncommitted_changes
    assert ps.adopt(winter / "*.nc", into=session, **options) == planned
    (array,) = [each for each in planned.arrays if each.path == "t"]
    assert (array.shape, array.chunks) == ((91, 24, 30), 91)
    assert "shards" in array.plan
    session.commit("written")
    assert "to open it: ps.open_repository(url, virtual=['file://" in str(planned)


@pytest.fixture(params=["threads", "processes", "serial", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | Any]:
    match request.param:
        case "threads":
            with ThreadPoolExecutor(3) as threads:
                yield threads
        case "processes":
            with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
                yield processes
        case "serial":
            yield False
        case _:
            from distributed import Client

            with Client(processes=False, dashboard_address=":0") as client:
                yield client


@pytest.mark.slow
def test_files_are_parsed_on_every_kind_of_executor(winter: Path, executor: Any) -> None:
    session = repository(winter).writable_session("main")
    seen: list[tuple[int, int]] = []
    ps.adopt(
        winter / "*.nc",
        into=session,
        concat_dim="time",
        executor=executor,
        progress=lambda done, count: seen.append((done, count)),
    )
    xr.testing.assert_identical(stored(session), read(files_in(winter)))
    # Three files, then all arrays.
    assert seen[:4] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert seen[-1] == (9, 9)


def test_an_unknown_executor_is_refused(winter: Path) -> None:
    session = repository(winter).writable_session("main")
    for wrong in ("Lithops", 3, ThreadPoolExecutor):
        with pytest.raises(StoreConfigError, match="executor"):
            ps.adopt(winter / "*.nc", into=session, concat_dim="time", executor=wrong)
    assert not session.has_uncommitted_changes


# --- files that cannot be parsed --------------------------------------------------------------------------------------


def small(path: Path, at: int) -> Path:
    with h5py.File(path, "w") as file:
        scale = file.create_dataset("at", data=np.array([at]))
        scale.make_scale("at")
        values = file.create_dataset("v", data=np.full((1, 300), at, "f4"), chunks=(1, 300))
        values.dims[0].attach_scale(scale)
    settle(path)
    return path


@pytest.mark.slow
def test_three_damaged_files_of_three_hundred_are_named_or_skipped(tmp_path: Path) -> None:
    files = [small(tmp_path / f"{at}.h5", at) for at in range(300)]
    files[7].write_bytes(b"not a file of any format")
    files[123].write_bytes(files[123].read_bytes()[:700])
    files[250].unlink()
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(ps.PartsStoreError, match=r"(7|123|250)\.h5"):
        ps.adopt(files, into=session, concat_dim="at")
    assert not session.has_uncommitted_changes
    report = ps.adopt(files, into=session, concat_dim="at", on_error="skip")
    assert [each.name.rpartition("/")[2] for each in report.failed] == ["7.h5", "123.h5", "250.h5"]
    reasons = [each.reason for each in report.failed]
    assert "found a format that is not known" in reasons[0]
    assert "it is truncated: expected" in reasons[1]
    assert "expected a file" in reasons[2]
    assert not report.is_complete
    assert "3 files failed" in str(report)
    assert len(report.to_json()["failed"]) == 3
    kept = [at for at in range(300) if at not in (7, 123, 250)]
    found = stored(session)
    assert found["at"].values.tolist() == kept
    assert np.array_equal(found["v"].values, np.repeat(kept, 300).reshape(297, 300))


def test_if_no_file_can_be_parsed_the_first_is_named(tmp_path: Path) -> None:
    for name in ("b.nc", "a.nc"):
        (tmp_path / name).write_text("text")
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match=r"a\.nc"):
        ps.adopt(tmp_path / "*.nc", into=session, concat_dim="time", on_error="skip")
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("what", ["changed", "deleted"])
def test_a_file_that_changes_or_disappears_during_parsing_is_named(
    copied: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = files_in(copied)[1]
    inner = parsers.HDF5.parse

    def parse(self: Any, source: Any) -> Any:
        found = inner(self, source)
        if source.url.endswith(victim.name):
            victim.unlink()
            if what == "changed":
                write(month(np.datetime64("2004-01")), victim, "month")
        return found

    monkeypatch.setattr(parsers.HDF5, "parse", parse)
    session = repository(copied).writable_session("main")
    with pytest.raises(AdoptionError, match=f"it was {what} while it was read") as caught:
        ps.adopt(copied / "*.nc", into=session, concat_dim="time")
    assert caught.value.location.endswith(victim.name)
    assert not session.has_uncommitted_changes


def test_a_file_that_was_just_written_is_looked_at_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Icechunk compares whole seconds: a change in the same second would not be noticed by readers."""
    victim = files_in(copied)[2]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        with victim.open("r+b") as file:
            file.write(b"\x89")
        os.utime(victim)

    monkeypatch.setattr("parts_store.virtual.existing_files.time.sleep", sleep)
    # On a busy machine, parsing takes longer than a second.
    monkeypatch.setattr("parts_store.virtual.existing_files._LAG", timedelta(minutes=5))
    os.utime(victim)
    session = repository(copied).writable_session("main")
    with pytest.raises(AdoptionError, match="it was changed while it was read"):
        ps.adopt(copied / "*.nc", into=session, concat_dim="time")
    assert len(waited) == 1


# --- groups, variables, arguments -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_of_files_are_joined(tmp_path: Path) -> None:
    datasets = [month(np.datetime64(each))[["p", "area"]].drop_vars("height") for each in ("2003-01", "2003-02")]
    files = []
    for at, dataset in enumerate(datasets):
        files.append(tmp_path / f"{at}.nc")
        tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "tree"}), "/in/days": dataset})
        encoding = {"/in/days": {"p": {"chunksizes": (1, 24, 30), "zlib": True}}}
        tree.to_netcdf(files[-1], engine="h5netcdf", encoding=encoding)
        settle(files[-1])
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files, into=session, path="x", concat_dim="time")
    xr.testing.assert_equal(stored(session, "x/in/days"), xr.concat(datasets, "time", data_vars="minimal"))
    assert stored(session, "x").attrs == {"title": "tree"}


@pytest.mark.slow
def test_chosen_variables_come_with_their_coordinates(winter: Path) -> None:
    session = repository(winter).writable_session("main")
    ps.adopt(winter / "*.nc", into=session, concat_dim="time", variables=["t"], loadable_variables=["t"])
    expected = read(files_in(winter))[["t", "time_bnds"]]
    xr.testing.assert_identical(stored(session), expected)
    unknown: list[dict[str, Any]] = [{"variables": ["q"]}, {"loadable_variables": ["q"]}]
    for wrong in unknown:
        with pytest.raises(StoreConfigError, match=f"{next(iter(wrong))}: expected names of variables"):
            ps.adopt(winter / "*.nc", into=session, path="x", concat_dim="time", **wrong)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"combine": "by_name"}, "combine"),
        ({"combine": "by_coords", "concat_dim": "time"}, "combine"),
        ({"parser": "HDF5"}, "parser"),
        ({"concat_dim": "time", "append_dim": "x"}, "append_dim"),
        ({"variables": [3]}, "variables"),
        ({"max_loaded_nbytes": -1}, "max_loaded_nbytes"),
        ({"copy": True}, "copy"),
        ({"append_dim": "time"}, "path"),
        ({"append_dim": "time", "overwrite": True}, "overwrite"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    winter: Path, arguments: dict[str, Any], problem: str
) -> None:
    session = repository(winter).writable_session("main")
    with pytest.raises(StoreConfigError, match=problem):
        ps.adopt(winter / "*.nc", into=session, **arguments)
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("wrong", [{"dryrun": True}, {"appenddim": "time"}, {"region": "us-east-1"}])
def test_an_argument_that_no_file_needs_is_refused(winter: Path, wrong: dict[str, Any]) -> None:
    session = repository(winter).writable_session("main")
    message = f"arguments: expected .*options of obstore, .*found {next(iter(wrong))}"
    with pytest.raises(StoreConfigError, match=message):
        ps.adopt(winter / "*.nc", into=session, concat_dim="time", **wrong)
    with pytest.raises(StoreConfigError, match=message):
        ps.open_virtual_mfdataset(str(winter / "*.nc"), concat_dim="time", combine="nested", **wrong)
    assert not session.has_uncommitted_changes
