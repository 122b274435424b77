"""`parts-store adopt` that is refused, or fails, leaves a repository and its configuration as they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.virtual.adopt import PreparedFiles
from tests.cli.places import CRASHED, OK, WRONG, call, contents, fails
from tests.virtual.adopting import settle
from tests.virtual.months import month, read, write, write_months


def folders_of(repository: Path) -> set[str]:
    """Return the folders that the stored configuration has."""
    config = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(str(repository)))
    assert config is not None
    return set(config.virtual_chunk_containers or {})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of the first two months, and further files in another folder."""
    folder = tmp_path_factory.mktemp("made").resolve()
    files = write_months(folder / "data", "day", "2003-01", 2)
    session = ps.open_repository(folder / "repository", virtual=[folder / "data"]).writable_session("main")
    ps.adopt(files, into=session, concat_dim="time")
    session.commit("two months")
    write_months(folder / "new", "day", "2003-02", 2)
    march = month(np.datetime64("2003-03"))
    write(march.assign(t=march["t"].assign_attrs(units="degC")), folder / "new/units.nc", "day")
    write(march.drop_vars("p"), folder / "new/incomplete.nc", "day")
    write(march.isel(x=slice(10)), folder / "new/narrow.nc", "day")
    (folder / "new/damaged.nc").write_bytes((folder / "new/2003-03.nc").read_bytes()[:3000])
    (folder / "new/text.nc").write_text("text")
    with h5py.File(folder / "new/lists.h5", "w") as file:
        file.create_dataset("ragged", (2,), h5py.vlen_dtype("i4"))
        file.create_dataset("v", data=np.arange(100), chunks=(1,))
    settle(folder / "new/lists.h5")
    return folder


REFUSED: dict[str, tuple[list[str], str]] = {
    "not free": (["2003-03.nc"], "expected a path with nothing there"),
    "below an array": (["2003-03.nc", "--path", "t"], "path"),
    "reserved path": (["2003-03.nc", "--path", "t/__parts__/x"], "path"),
    "overlap": (["2003-02.nc", "--append-dim", "time"], "expected values after 2003-02-28"),
    "units": (["units.nc", "--append-dim", "time"], "units"),
    "variable that is missing": (["incomplete.nc", "--append-dim", "time"], "'p'"),
    "other grid": (["narrow.nc", "--append-dim", "time"], "expected"),
    "unknown dimension": (["2003-03.nc", "--append-dim", "month"], "expected"),
    "nothing to append to": (["2003-03.nc", "--append-dim", "time", "--path", "other"], "path"),
    "overwrite and append": (["2003-03.nc", "--append-dim", "time", "--overwrite"], "overwrite"),
    "unknown branch": (["2003-03.nc", "--branch", "dev"], "branch"),
    "unknown variable": (["2003-03.nc", "--variable", "q"], "variables"),
    "strict": (["lists.h5", "--strict", "--path", "s"], "ragged"),
    "damaged": (["damaged.nc", "--path", "s"], "damaged"),
    "unknown format": (["text.nc", "--path", "s"], "format"),
    "missing": (["none.nc", "--path", "s"], "none.nc"),
    "wrong parser": (["2003-03.nc", "--parser", "NetCDF3Parser", "--path", "s"], "NetCDF3Parser"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_refused_adoption_leaves_the_repository_unchanged(
    made: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (name, *options), problem = REFUSED[case]
    before = contents(made / "repository")
    assert problem in fails(["adopt", made / "new" / name, made / "repository", *options], capsys)
    assert contents(made / "repository") == before


def test_dry_run_leaves_the_repository_unchanged(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(made / "repository")
    arguments: list[str | Path] = ["adopt", made / "new/2003-03.nc", made / "repository", "--append-dim", "time"]
    result = call([*arguments, "--dry-run"], capsys)
    assert result.code == OK
    # The stored area refers to a file in a folder that is not named.
    assert "not compared with what is stored" in result.out
    assert contents(made / "repository") == before


def test_stored_values_in_a_folder_that_is_named_are_compared(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments: list[str | Path] = ["adopt", made / "new/2003-03.nc", made / "repository", "--append-dim", "time"]
    result = call([*arguments, "--dry-run", "--virtual", made / "data"], capsys)
    assert result.code == OK
    assert "not compared" not in result.out
    assert "area: " in result.out


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A copy of the repository, to be changed."""
    for path, data in contents(made / "repository").items():
        place = tmp_path / "repository" / path.relative_to(made / "repository")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return tmp_path / "repository"


def commit_another(repository: Path) -> None:
    """Commit a change of the same array, so that the next commit is a conflict."""
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repository))).writable_session("main")
    xr.Dataset({"t": ((), 1)}).to_zarr(session.store, mode="w", consolidated=False)
    session.commit("another")


def fail(_: Path) -> None:
    raise OSError("no space left on device")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cause", [commit_another, fail], ids=["conflict", "fault"])
def test_failed_adoption_leaves_the_configuration_unchanged(
    made: Path,
    copied: Path,
    cause: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = PreparedFiles.write

    def write_then_fail(self: PreparedFiles, *args: Any, **options: Any) -> Any:
        report = inner(self, *args, **options)
        cause(copied)
        return report

    monkeypatch.setattr(PreparedFiles, "write", write_then_fail)
    before = folders_of(copied)
    result = call(["adopt", made / "new/2003-03.nc", copied, "--append-dim", "time"], capsys)
    assert result.code in (WRONG, CRASHED)
    assert folders_of(copied) == before == {f"{(made / 'data').as_uri()}/"}


@pytest.mark.slow
def test_adoption_stores_the_folder_of_the_files_with_its_commit(
    made: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = made / "new/2003-03.nc"
    assert call(["adopt", new, copied, "--append-dim", "time"], capsys).code == OK
    folders = {f"{(made / name).as_uri()}/" for name in ("data", "new")}
    assert folders_of(copied) == folders
    # A reader needs the permission alone, and no configuration.
    access: dict[str, Any] = dict.fromkeys(folders, icechunk.credentials.LocalFileSystemAccess)
    storage = icechunk.local_filesystem_storage(str(copied))
    session = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access).readonly_session("main")
    found = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False, chunks=None)
    xr.testing.assert_identical(found.load(), read([*sorted((made / "data").glob("*.nc")), new]))


def test_folders_that_cannot_be_stored_are_named_after_the_commit(
    made: Path, copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: icechunk.Repository) -> None:
        raise icechunk.IcechunkError("the server refused it")

    monkeypatch.setattr(icechunk.Repository, "save_config", refuse)
    result = call(["adopt", made / "new/2003-03.nc", copied, "--append-dim", "time"], capsys)
    assert result.code == WRONG
    assert "the files were adopted, but their folders are not stored" in result.err
    assert f"virtual=['{(made / 'new').as_uri()}/']" in result.err
