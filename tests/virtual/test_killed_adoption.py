"""An adopting process that is killed at any step leaves a repository as it was, or complete."""

import subprocess
import sys
from itertools import count
from pathlib import Path

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
