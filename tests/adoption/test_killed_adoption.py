"""An adopting process that is killed at any moment leaves a repository as it was, or complete; the next one goes on."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import xarray as xr

import parts_store as ps
from tests.adoption.months import read, write_months

MONTHS, KILLS = 12, 8
ROOT = Path(__file__).parent.parent.parent


def run(folder: Path, killed_after: float | None = None) -> tuple[int, float]:
    """Run an adoption; kill it so many seconds after it begins with the files. Return its exit code and its seconds."""
    command = [sys.executable, "-m", "tests.adoption.killed_adoption", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        began = time.monotonic()
        if killed_after is not None:
            time.sleep(killed_after)
            process.kill()
        return process.wait(300), time.monotonic() - began


def parsed_files(folder: Path) -> list[str]:
    log = folder / "parsed.txt"
    return log.read_text().splitlines() if log.exists() else []


def kept(folder: Path) -> int:
    return len(list((folder / "kept").glob("*.npz")))


class Reader:
    """A repository as a reader opens it, again and again."""

    def __init__(self, folder: Path, expected: xr.Dataset) -> None:
        self.folder, self.expected = folder, expected
        self.create()

    def create(self) -> None:
        shutil.rmtree(self.folder / "repository", ignore_errors=True)
        self.empty = ps.open_repository(self.folder / "repository", virtual=[self.folder / "data"]).lookup_branch(
            "main"
        )

    def is_committed(self) -> bool:
        """Return whether the files were committed; fail if the repository is neither as it was nor complete."""
        opened = ps.open_repository(self.folder / "repository", virtual=[self.folder / "data"], create=False)
        if opened.lookup_branch("main") == self.empty:
            return False
        assert len(list(opened.ancestry(branch="main"))) == 2
        store = ps.PartsStore.from_session(opened.readonly_session("main"))
        found = xr.open_zarr(store, consolidated=False, chunks=None)
        xr.testing.assert_identical(found.load(), self.expected)
        return True


@pytest.mark.slow
def test_adoption_killed_at_random_moments_is_undone_or_complete_and_goes_on(tmp_path: Path) -> None:
    files = write_months(tmp_path / "data", "day", "2003-01", MONTHS)
    reader = Reader(tmp_path, read(files))
    # How long it takes from the first file to the commit, in another repository.
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").symlink_to(tmp_path / "data")
    code, length = run(other)
    assert code == 0
    chance = random.Random(16)
    for _ in range(KILLS):
        code, _ = run(tmp_path, chance.uniform(0, length))
        if reader.is_committed():
            # What was parsed is still there, so that the next one is killed while arrays are written or committed.
            reader.create()
        else:
            assert code == -signal.SIGKILL
    before, done = len(parsed_files(tmp_path)), kept(tmp_path)
    assert run(tmp_path)[0] == 0
    assert reader.is_committed()
    # Only what was not kept is parsed.
    assert len(parsed_files(tmp_path)) - before == MONTHS - done
    # A file may be parsed when the process is killed, before it is kept: at most once more for each kill.
    times = Counter(parsed_files(tmp_path))
    assert set(times) == {file.name for file in files}
    assert sum(times.values()) <= MONTHS + KILLS
