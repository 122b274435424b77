"""The exit code and the line on standard error for each kind of error."""

import pickle
from typing import Any

import pytest

from parts_store import errors
from parts_store.cli.exits import exit_for, first_line, guard
from parts_store.text import printable
from tests.cli.places import CLOSED_PIPE, CRASHED, DAMAGED, INTERRUPTED, OK, WRONG, require_one_line

SECRET = "wJalrXUtnFEMI/K7MDENG"

ERRORS: list[tuple[BaseException, int]] = [
    (errors.StoreConfigError("url", "a path", "nothing"), WRONG),
    (errors.SessionError("a/c/0", "no answer"), WRONG),
    (errors.AdoptionError("t.nc", (("t", "no"),)), WRONG),
    (errors.ConcurrentWriteError("a/c/0", "it changed"), WRONG),
    (errors.PartsConfigError("size", "a number", "'x'"), WRONG),
    (errors.PartsConfigError("size", "a number", "'x'", "a"), DAMAGED),
    (errors.UnknownTransformerError("a", "'x'"), DAMAGED),
    (errors.IncompleteChunkError("a/c/0", ("a/c/0.tail",), ()), DAMAGED),
    (errors.PartSizeError("a/c/0.tail", 2, 3), DAMAGED),
    (errors.CopyMismatchError("a/c/0", 2, 3), DAMAGED),
    (errors.CodecError("pad", "2 bytes", "1"), DAMAGED),
    (errors.CodecConfigError("pad", "nbytes", "a number", "'x'"), WRONG),
    (PermissionError(13, "Permission denied", "/data"), WRONG),
    (ModuleNotFoundError("No module named 'h5py'", name="h5py"), WRONG),
    (KeyError("a"), CRASHED),
    (ValueError("a\nb"), CRASHED),
    (AssertionError(), CRASHED),
    (ExceptionGroup("several", [ValueError("a")]), CRASHED),
    (pickle.PicklingError("no"), CRASHED),
    (BaseException("a panic"), CRASHED),
    (KeyboardInterrupt(), INTERRUPTED),
]


def raising(error: BaseException) -> Any:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("debug", [False, True])
def test_error_is_one_line_with_an_exit_code(
    error: BaseException, code: int, debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(raising(error), {"debug": debug}) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    is_traced = debug and code != INTERRUPTED
    assert ("Traceback" in printed.err) == is_traced
    require_one_line(printed.err.splitlines(keepends=True)[-1])
    if not is_traced:
        require_one_line(printed.err)
    assert ("--debug shows where it happened" in printed.err) == (code == CRASHED)


def test_successful_command_prints_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(lambda: OK, {}) == OK
    assert guard(raising(BrokenPipeError()), {}) == CLOSED_PIPE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("debug", [False, True])
def test_secrets_in_arguments_are_never_printed(debug: bool, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "url": f"https://user:{SECRET}@host/data?sig={SECRET}",
        "option": [f"secret_access_key={SECRET}", f'client_options={{"default_headers": {{"x": "{SECRET}"}}}}'],
        "debug": debug,
    }
    text = f"{arguments['url']} with {SECRET} failed"
    for error in (ValueError(text), errors.StoreConfigError("url", "a path", text), OSError(text)):
        guard(raising(error), arguments)
        printed = capsys.readouterr()
        assert SECRET not in printed.err
        assert "***" in printed.err


@pytest.mark.parametrize(
    ("name", "extra"),
    [("h5py", "virtual"), ("PIL.Image", "demo"), ("distributed", "dask"), ("rich.table", "cli")],
)
def test_missing_package_error_names_the_extra(name: str, extra: str) -> None:
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert exit_for(error) == (WRONG, f"this needs {name}: pip install 'parts_store[{extra}]'")
    # The messages of Python for other packages, and of this package, stay as they are.
    for other in (ModuleNotFoundError("No module named 'x'", name="x"), ImportError("pip install 'y'", name=name)):
        assert exit_for(other) == (WRONG, str(other))


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2J\n\u202eé") == r"a\x1b[2J\n\u202eé"
    assert first_line("\n\n  a \n b") == "a"
    assert first_line(" \n") == ""
