"""The command `parts-store`: calls of the library from a shell, printed for people or as JSON."""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

_WRONG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; the process's own arguments if None.

    Returns
    -------
    int
        The exit code.
    """
    _open_closed_streams()
    try:
        from parts_store.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        message = f"parts-store: the command line needs {error.name}: pip install 'parts_store[cli]'"
        print(message, file=sys.stderr)
        return _WRONG
    return run(sys.argv[1:] if arguments is None else arguments)


def _open_closed_streams() -> None:
    """Print to nowhere if the process was started without standard output or standard error, as by `>&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", closefd=False))
