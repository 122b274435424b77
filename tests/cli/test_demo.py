"""`parts-store demo`."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from parts_store.demo.steps import STEPS
from tests.cli.places import DAMAGED, INTERRUPTED, call, fails

COMMAND = [sys.executable, "-W", "error", "-m", "parts_store.cli", "demo"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out all steps but the first one."""
    monkeypatch.setattr("parts_store.demo.steps.STEPS", STEPS[:1])


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_demo_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(["demo", tmp_path, "--json"], capsys)
    document = json.loads(result.out)
    assert (document["is_right"], document["page"]) == (True, str(tmp_path / "index.html"))
    assert [step["title"] for step in document["steps"]] == ["A Zarr array whose shards are TIFF files"]
    assert call(["demo", tmp_path, "--quiet"], capsys).out == ""


@pytest.mark.slow
def test_wrong_step_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    title, show = STEPS[0]
    monkeypatch.setattr("parts_store.demo.steps.STEPS", [(title, lambda folder: replace(show(folder), is_right=False))])
    result = call(["demo", tmp_path], capsys)
    assert result.code == DAMAGED
    assert "     WRONG: " in result.out
    assert "did not find what it should find" in result.err
    assert 'class="result wrong"' in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("package", ["PIL", "h5netcdf", "tifffile", "virtualizarr"])
def test_demo_names_a_missing_package_before_it_writes(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    err = fails(["demo", tmp_path / "out"], capsys)
    assert err == f"parts-store: the demo needs {package}: pip install 'parts_store[demo]'\n"
    assert not (tmp_path / "out").exists()


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)])
def test_end_of_the_demo_ends_its_processes(tmp_path: Path, number: signal.Signals, code: int) -> None:
    # A shell lets background jobs ignore SIGINT, so that the handler is restored.
    restore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", restore, *COMMAND, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The first step, which starts no process, is done: its title and its result, and the title of the second step.
        for _ in range(3):
            process.stdout.readline()
        end = time.monotonic() + 300
        while not (started := children(process.pid)) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(number)
        process.wait(300)
        while any(map(is_running, started)) and time.monotonic() < end:
            time.sleep(0.05)
        err = process.stderr.read()
    assert process.returncode == code
    assert started
    assert not any(map(is_running, started))
    assert err == ("parts-store: interrupted\n" if number == signal.SIGINT else "")
