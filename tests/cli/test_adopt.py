"""`parts-store adopt`: a file as Zarr in a repository, or copied into a store."""

import json
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.store.repositories import open_store
from tests.cli.places import LEFTOVERS, OK, call, contents, fails, make_file
from tests.virtual.adopting import settle
from tests.virtual.months import read, write_months


def test_adopt_creates_a_repository_and_commits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, into = make_file(tmp_path / "t.nc"), tmp_path / "repository"
    result = call(["adopt", file, into, "--path", "2026/may", "--message", "from May"], capsys)
    assert result.code == OK
    store = open_store(into, virtual=[tmp_path])
    assert np.asarray(zarr.open_array(store, path="2026/may/t", mode="r")[...]).tolist() == list(range(100))
    said = json.loads(call(["adopt", file, into, "--path", "again", "--json"], capsys).out)
    assert {each["path"] for each in said["arrays"]} == {"again/t", "again/x"}
    history = icechunk.Repository.open(icechunk.local_filesystem_storage(str(into))).ancestry(branch="main")
    messages = [each.message for each in history]
    assert messages[:2] == [f"adopt {file.resolve().as_uri()}", "from May"]


def test_adopt_copies_into_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.h5"
    with h5py.File(file, "w") as opened:
        opened.create_dataset("t", data=np.arange(100), chunks=(10,))
    settle(file)
    assert call(["adopt", file, tmp_path / "store", "--copy", "-q"], capsys).code == OK
    values = zarr.open_array(open_store(tmp_path / "store"), path="t", mode="r")[...]
    assert np.asarray(values).tolist() == list(range(100))


def test_adopt_exit_code_if_not_everything_is_adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.h5"
    with h5py.File(file, "w") as opened:
        opened.create_dataset("t", data=np.arange(100), chunks=(10,))
        opened.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
    settle(file)
    result = call(["adopt", file, tmp_path / "repository"], capsys)
    assert result.code == LEFTOVERS
    assert "skipped: lists: " in result.out
    assert "lists: " in fails(["adopt", file, tmp_path / "strict", "--strict"], capsys)


def test_adopt_creates_nothing_if_the_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("text")
    for name in ("nowhere", "text", "."):
        fails(["adopt", tmp_path / name, tmp_path / "repository"], capsys)
        fails(["adopt", tmp_path / name, tmp_path / "store", "--copy"], capsys)
    assert contents(tmp_path) == {tmp_path / "text": b"text"}
    assert [each.name for each in tmp_path.iterdir()] == ["text"]


def test_adopt_chooses_the_form_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_months(tmp_path / "data", "month", "2003-01", 3)
    into: dict[str, list[str | Path]] = {
        name: [tmp_path / name, "--concat-dim", "time"] for name in ("load", "rectilinear", "refuse")
    }
    copied = call(["adopt", *files[:2], *into["load"]], capsys)
    assert "copied values" in copied.out
    assert "`uneven='rectilinear'` to refer" in fails(
        ["adopt", *files[:2], *into["refuse"], "--uneven", "refuse"], capsys
    )
    referred = call(["adopt", *files[:2], *into["rectilinear"], "--uneven", "rectilinear"], capsys)
    assert "references on a rectilinear grid: 2 arrays, 4 references" in referred.out
    # The command allows the grid for itself alone.
    assert not zarr.config.get("array.rectilinear_chunks")
    assert call(["adopt", files[2], tmp_path / "rectilinear", "--append-dim", "time"], capsys).code == OK
    names: dict[str, Any] = {"ps": ps, "xr": xr, "zarr": zarr}
    with zarr.config.set({"array.rectilinear_chunks": False}):
        exec("\n".join(referred.out.splitlines()[-4:]), names)
        xr.testing.assert_identical(names["dataset"].load().drop_attrs(), read(files).drop_attrs())
    sharded = call(["adopt", *files[:1], tmp_path / "shards", "--shard-chunks", "1", "--json"], capsys)
    assert {each["form"] for each in json.loads(sharded.out)["arrays"]} <= {"plain", "values"}


def read_time(store: ps.PartsStore) -> list[str]:
    dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return [str(each)[:10] for each in dataset["time"].values]


@pytest.mark.slow
def test_adopt_joins_files_and_appends_the_next_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, into = write_months(tmp_path / "data", "day", "2003-01", 4), tmp_path / "repository"
    planned = call(["adopt", tmp_path / "data/*-0[12].nc", into, "--concat-dim", "time", "--dry-run"], capsys)
    assert planned.code == OK
    assert not into.exists()
    assert "t: int16[59, 24, 30], 59 chunks in" in planned.out
    assert planned.out.endswith("dry run: nothing was written\n")
    result = call(["adopt", tmp_path / "data/*-0[12].nc", into, "--concat-dim", "time", "--jobs", "2"], capsys)
    assert result.code == OK
    # The same, except for the last line, and how to open it, as Python.
    lines = result.out.splitlines()
    assert lines[:-3] == planned.out.splitlines()[:-1]
    names: dict[str, Any] = {"ps": ps, "xr": xr}
    exec("\n".join(lines[-3:]), names)
    xr.testing.assert_identical(names["dataset"].load(), read(files[:2]))
    # Files that the shell has found.
    assert call(["adopt", files[2], files[3], into, "--append-dim", "time", "--jobs", "1", "-q"], capsys).code == OK
    store = open_store(into, virtual=[tmp_path / "data"])
    assert read_time(store) == [str(each)[:10] for each in read(files)["time"].values]
    appended: list[str | Path] = ["adopt", files[3], into, "--append-dim", "time"]
    assert "expected values after 2003-04-30" in fails([*appended, "--dry-run"], capsys)
    assert "expected values after 2003-04-30" in fails(appended, capsys)


@pytest.mark.slow
def test_adopt_takes_parsers_variables_and_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, into = write_months(tmp_path / "data", "day", "2003-01", 2), tmp_path / "repository"
    (tmp_path / "data/2003-03.nc").write_text("text")
    everything: list[str | Path] = ["adopt", tmp_path / "data/*.nc", into, "--concat-dim", "time"]
    assert "2003-03.nc" in fails(everything, capsys)
    assert not into.exists()
    options: list[str | Path] = [
        "--skip-errors",
        "--variable",
        "p",
        "--load",
        "p",
        "--parser",
        "HDF5",
    ]
    result = call([*everything, *options, "--json"], capsys)
    assert result.code == LEFTOVERS
    report = json.loads(result.out)
    assert [each["name"].rpartition("/")[2] for each in report["failed"]] == ["2003-03.nc"]
    assert {each["path"] for each in report["arrays"]} == {"p", "time", "time_bnds", "x", "y", "height"}
    other: list[str | Path] = ["adopt", files[0], tmp_path / "other", "--parser"]
    assert "NetCDF3Parser failed" in fails([*other, "NetCDF3Parser"], capsys)
    assert "NetCDF3Parser failed" in fails([*other, "virtualizarr.parsers:NetCDF3Parser"], capsys)
    assert "--parser: expected HDF5" in fails([*other, "Unknown"], capsys)
    assert "--parser" in fails([*other, "no.such.module:Parser"], capsys)


@pytest.mark.slow
def test_adopt_creates_nothing_if_files_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_months(tmp_path / "data", "month", "2003-01", 2)
    into = tmp_path / "repository"
    wrong: list[list[str | Path]] = [
        ["adopt", tmp_path / "data/none*.nc", into],
        ["adopt", *files, into, "--append-dim", "time"],
        ["adopt", *files, into, "--concat-dim", "time", "--variable", "none"],
        ["adopt", *files, into, "--copy"],
        ["adopt", files[0], into, "--copy", "--concat-dim", "time"],
        ["adopt", *files, into, "--concat-dim", "x"],
    ]
    for arguments in wrong:
        fails(arguments, capsys)
        assert not into.exists()
