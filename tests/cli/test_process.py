"""`parts-store` as a process: exit codes, interrupts, closed pipes, missing packages, and what help imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.places import CLOSED_PIPE, DAMAGED, OK, WRONG, lose_part, require_one_line

PROGRAM = [sys.executable, "-W", "error", "-m", "parts_store.cli"]
# Packages that are slow to import.
HEAVY = ("zarr", "numpy", "icechunk", "obstore", "h5py", "xarray", "dask", "rich")


def run(*arguments: str | Path, program: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*(program or PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_program_has_exit_codes_and_no_tracebacks(folder: Path) -> None:
    lose_part(folder)
    installed = str(Path(sys.executable).parent / "parts-store")
    damaged = run("verify", folder, program=[installed])
    assert (damaged.returncode, damaged.stderr) == (DAMAGED, "")
    expected = "incomplete: a/c/0: no such object: a/c/0.tail -> write the chunk again"
    assert damaged.stdout.splitlines()[1].startswith(expected)
    wrong = run("verify", "ftp://x")
    assert (wrong.returncode, wrong.stdout) == (WRONG, "")
    require_one_line(wrong.stderr)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_no_slow_packages(arguments: list[str]) -> None:
    program = (
        "import sys; from parts_store.cli import main; code = main(sys.argv[1:]); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr); sys.exit(code)"
    )
    result = run(*arguments, program=[sys.executable, "-c", program])
    assert result.returncode == OK
    assert not set(HEAVY) & set(result.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_cli_packages_name_the_extra(package: str, folder: Path) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from parts_store.cli import main; sys.exit(main())"
    result = run("verify", folder, program=[sys.executable, "-c", program])
    assert result.returncode == WRONG
    assert "pip install 'parts_store[cli]'" in result.stderr
    require_one_line(result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "is_buffered"),
    [(["inspect", "{}"], True), (["inspect", "{}", "--json"], False), (["--help"], True), (["nonsense"], True)],
)
def test_closed_pipe_ends_without_a_traceback(folder: Path, arguments: list[str], is_buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [*PROGRAM, *(each.replace("{}", str(folder)) for each in arguments)]
    result = subprocess.run(
        command,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environ | ({} if is_buffered else {"PYTHONUNBUFFERED": "1"}),
    )
    os.close(writing)
    if arguments == ["nonsense"]:
        # Nothing is printed on standard output.
        assert result.returncode == WRONG
        require_one_line(result.stderr)
    else:
        assert (result.returncode, result.stderr) == (CLOSED_PIPE, "")


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "is_damaged"), [(">&-", False), ("2>&-", False), ("<&- >&- 2>&-", True)])
def test_exit_code_is_right_if_the_output_is_closed(folder: Path, closed: str, is_damaged: bool) -> None:
    if is_damaged:
        lose_part(folder)
    result = run("verify", folder, program=["sh", "-c", f'"$@" {closed}', "sh", *PROGRAM])
    assert result.returncode == (DAMAGED if is_damaged else OK)
    assert result.stderr == ""
