"""Exit codes, and how an error becomes an exit code and one line on standard error."""

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

from parts_store.errors import (
    CodecConfigError,
    CodecError,
    CopyMismatchError,
    IncompleteChunkError,
    PartsConfigError,
    PartSizeError,
    PartsStoreError,
    UnknownTransformerError,
)
from parts_store.redaction import hide_secrets, secrets_in, secrets_of_url
from parts_store.text import printable, wrapped

if TYPE_CHECKING:
    from parts_store.store.store import PartsStore

OK: Final = 0
DAMAGED: Final = 1
WRONG: Final = 2
LEFTOVERS: Final = 3
# EX_SOFTWARE of sysexits.h.
CRASHED: Final = 70
# The codes that shells report for a process that SIGINT or SIGPIPE has ended.
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141

EXIT_CODES: Final = {
    OK: "success, and no problems were found",
    DAMAGED: "something is damaged",
    WRONG: "the call is wrong, the store cannot be opened, or nothing was found",
    LEFTOVERS: "not damaged, but there are leftovers, or not all was adopted",
    CRASHED: "an unexpected error",
    INTERRUPTED: "interrupted with Ctrl-C",
    CLOSED_PIPE: "the reader of the output closed the pipe",
}

# Errors that mean that stored data is damaged.
_DAMAGE: Final = (IncompleteChunkError, PartSizeError, CopyMismatchError, UnknownTransformerError)
# The extra of parts_store that installs a package, by the name that is imported.
_EXTRAS: Final = {
    "rich": "cli",
    "typer": "cli",
    "dask": "dask",
    "distributed": "dask",
    "starlette": "serve",
    "uvicorn": "serve",
    "PIL": "demo",
    "h5netcdf": "demo",
    "h5py": "virtual",
    "hdf5plugin": "virtual",
    "virtualizarr": "virtual",
    "obspec_utils": "virtual",
}


class NothingFoundError(PartsStoreError):
    """An error for a URL without anything that the command can work on."""

    template = "{problem}"
    problem: str


class DamagedError(PartsStoreError):
    """An error for an array that cannot be read."""

    template = "{problem}"
    problem: str


def guard(command: Callable[[], int], arguments: Mapping[str, Any]) -> int:
    """Run a command, and return its exit code; print an error as one line.

    With `debug` among the arguments, the traceback is printed as well. Secrets in the arguments are never printed.
    """
    try:
        return command()
    except BrokenPipeError:
        return CLOSED_PIPE
    except KeyboardInterrupt:
        if "zarr" in sys.modules:
            from parts_store._compat.zarr import end_tasks

            end_tasks()
        # Coroutines that were interrupted are never awaited. asyncio and Python would report each of them.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        warnings.simplefilter("ignore", RuntimeWarning)
        print_error("interrupted")
        return INTERRUPTED
    # A panic of Rust code is not an `Exception`.
    except BaseException as error:
        secrets = _secrets(arguments)
        if arguments.get("debug"):
            print(hide_secrets("".join(traceback.format_exception(error)), secrets), file=sys.stderr, end="")
        code, message = exit_for(error)
        print_error(hide_secrets(message, secrets))
        return code


def exit_for(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an error."""
    message = first_line(str(error)) or type(error).__name__
    match error:
        case PartsConfigError() if error.array is not None:
            return DAMAGED, message
        case CodecError() if not isinstance(error, CodecConfigError):
            return DAMAGED, message
        case PartsStoreError():
            return DAMAGED if isinstance(error, (DamagedError, *_DAMAGE)) else WRONG, message
        case ImportError():
            return WRONG, _missing(error)
        case OSError():
            return WRONG, message
    if type(error).__module__.partition(".")[0] in ("obstore", "icechunk"):
        return WRONG, message
    return CRASHED, f"unexpected error: {type(error).__name__}: {message} (--debug shows where it happened)"


def _missing(error: ImportError) -> str:
    message = first_line(str(error))
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None or "pip install" in message:
        return message
    return f"this needs {error.name}: pip install 'parts_store[{extra}]'"


def did_you_mean(store: "PartsStore", path: str) -> str:
    """Return the end of an error message with a similar path that exists; nothing if there is none."""
    from parts_store.store.inspection import similar_path

    try:
        similar = similar_path(store, path)
    except PartsStoreError:
        # The message is about another error. A store that cannot be listed has no suggestions.
        return ""
    return "" if similar is None else f"; did you mean {similar!r}?"


def print_error(message: str, *, program: str = "parts-store") -> None:
    """Print one line on standard error."""
    text = f"{program}: {printable(hide_secrets(message))}"
    print(wrapped(text, get_terminal_size().columns) if sys.stderr.isatty() else text, file=sys.stderr)


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _secrets(arguments: Mapping[str, Any]) -> list[str]:
    """Return the secrets in the arguments of a command: those in URLs, and the values of options."""
    texts = [value for value in arguments.values() if isinstance(value, str)]
    lists = [value for value in arguments.values() if isinstance(value, list)]
    options = dict(each.partition("=")[::2] for values in lists for each in values if "=" in each)
    return [*(secret for text in texts for secret in secrets_of_url(text)), *secrets_in(options)]
