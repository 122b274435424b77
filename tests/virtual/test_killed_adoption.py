"""An adoption that fails or is killed at any step leaves a session or a repository as it was, or complete."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import icechunk
import pytest
import xarray as xr

import parts_store as ps
from tests.virtual.months import read, write_months

ROOT = Path(__file__).parent.parent.parent


def run(folder: Path, steps: int) -> str:
    """Run an adoption, and kill it when it waits for this number of steps; return the name of the step."""
    command = [sys.executable, "-m", "tests.virtual.killed_adoption", str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(steps):
            assert process.stdout.readline()
            process.stdin.write("\n")
            process.stdin.flush()
        step = process.stdout.readline().strip()
        process.kill()
    return step


@pytest.mark.slow
def test_adoption_killed_at_any_step_is_undone_or_complete(tmp_path: Path) -> None:
    files = write_months(tmp_path / "data", "day", "2003-01", 2)
    repository = ps.open_repository(tmp_path / "repository", virtual=[tmp_path / "data"])
    empty, steps = repository.lookup_branch("main"), []
    for number in count():
        steps.append(run(tmp_path, number))
        if steps[-1] == "committed":
            break
        assert repository.lookup_branch("main") == empty, steps[-1]
    assert steps[-2] == "adopted"
    assert len(steps) > 6
    assert len(list(repository.ancestry(branch="main"))) == 2
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    found = xr.open_zarr(store, consolidated=False, chunks=None)
    xr.testing.assert_identical(found.load(), read(files))


class StoppedError(Exception):
    """What the caller's function raises."""


def interrupted(path: Path, session: icechunk.Session, at: int, **options: Any) -> bool:
    """Adopt a file, and stop before the array with this number; return whether there was such an array."""

    def stop(done: int, total: int) -> None:
        # Parsing reports one file of one; the number of arrays is larger.
        if total > 1 and done >= at and done < total:
            raise StoppedError

    try:
        ps.adopt(path, into=session, progress=stop, **options)
    except StoppedError:
        return True
    return False


def test_append_that_fails_at_any_array_leaves_no_longer_array_in_the_session(tmp_path: Path) -> None:
    first, second = write_months(tmp_path / "data", "day", "2003-01", 2)
    repository = ps.open_repository(tmp_path / "repository", virtual=[tmp_path / "data"])
    session = repository.writable_session("main")
    ps.adopt(first, into=session)
    session.commit("first")
    stops = 0
    for number in count():
        session = repository.writable_session("main")
        if not interrupted(second, session, number, append_dim="time"):
            break
        stops += 1
        assert not session.has_uncommitted_changes
        found = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False, chunks=None)
        xr.testing.assert_identical(found.load(), read([first]))
    assert stops > 2


def test_failed_append_keeps_earlier_changes_of_the_session_and_says_so(tmp_path: Path) -> None:
    first, second = write_months(tmp_path / "data", "day", "2003-01", 2)
    repository = ps.open_repository(tmp_path / "repository", virtual=[tmp_path / "data"])
    session = repository.writable_session("main")
    ps.adopt(first, into=session)

    def stop(done: int, total: int) -> None:
        if total > 1 and 0 < done < total:
            raise StoppedError

    with pytest.raises(StoppedError) as caught:
        ps.adopt(second, into=session, append_dim="time", progress=stop)
    assert caught.value.__notes__ == ["the session contains a part of what was being written: do not commit it"]
    assert session.has_uncommitted_changes
