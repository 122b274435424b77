"""The commands together: their names, their help, and how they are run."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal

import typer

from parts_store.cli.adopt import adopt, adopt_in_place
from parts_store.cli.bench import bench, demo
from parts_store.cli.copy import copy
from parts_store.cli.exits import CLOSED_PIPE, EXIT_CODES, INTERRUPTED, OK, WRONG, guard, print_error
from parts_store.cli.inspect import check, explain, inspect
from parts_store.cli.maintenance import repair, verify
from parts_store.cli.serve import serve
from parts_store.cli.view import view
from parts_store.redaction import HIDDEN

COMMANDS: tuple[Callable[..., int], ...] = (
    *(inspect, explain, verify, repair, copy, view, serve, adopt, adopt_in_place, check, bench, demo),
)
PROGRAM = "parts-store"
# An argument that may be shown: it is too simple for a secret, and may be a mistyped command.
_WORD = re.compile("[a-z-]{1,20}")
# The first character keeps the lines as they are.
_EPILOG = "\b\n" + "\n".join(["Exit codes:", *(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())])


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and return the exit code."""
    # A command makes one commit. Icechunk and this package would warn of several at once on a local disk.
    os.environ.setdefault("ICECHUNK_LOG", "error")
    logging.getLogger("parts_store.repositories").setLevel(logging.ERROR)
    if not sys.warnoptions and "--debug" not in arguments:
        # Python warnings are for developers.
        warnings.simplefilter("ignore")
    try:
        code = _run(arguments)
        # An error when the interpreter flushes at its end would be a traceback, and the exit code 120.
        sys.stdout.flush()
    except SystemExit as error:
        # typer ends the process with 1 when the pipe is closed.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        code = CLOSED_PIPE
    except BrokenPipeError:
        code = CLOSED_PIPE
    if code == CLOSED_PIPE:
        _discard_output()
    return code


def _run(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(_app())
    try:
        result = command.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = PROGRAM if context is None else context.command_path
        message = _without_arguments(error.format_message().rstrip("."), arguments)
        print_error(f"{message} (see {path} --help)", program=path)
        return WRONG
    except typer.Abort:
        return INTERRUPTED
    return result if isinstance(result, int) else OK


def _without_arguments(message: str, arguments: Sequence[str]) -> str:
    """Return an error message of typer without the arguments in it that may be secrets."""
    values = [text.partition("=")[2] if text.startswith("-") else text for text in arguments]
    spellings = {spelling for value in values for spelling in (value, repr(value)[1:-1])}
    for spelling in sorted(spellings, key=len, reverse=True):
        if spelling and not _WORD.fullmatch(spelling):
            message = message.replace(spelling, HIDDEN)
    return message


def _app() -> typer.Typer:
    """Return the typer application. Its help has boxes and colours on a terminal only."""
    markup: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
    app = typer.Typer(
        name=PROGRAM,
        rich_markup_mode=markup,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=_EPILOG,
        no_args_is_help=False,
    )
    app.callback()(_root)
    for command in COMMANDS:
        app.command(epilog=_EPILOG)(_guarded(command))
    return app


def _guarded(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with exit codes in place of exceptions, and single options in place of groups of options.

    A group is a dataclass, such as `Output`, whose fields are annotated as options. typer does not know groups.
    """
    parameters = signature(command).parameters.values()
    groups = {
        each.name: each.annotation
        for each in parameters
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    def run_command(**arguments: Any) -> int:
        own = dict(arguments)
        for name, group in groups.items():
            own[name] = group(**{each.name: own.pop(each.name) for each in fields(group)})
        return guard(lambda: command(**own), arguments)

    flat: list[Parameter] = []
    for each in parameters:
        flat += _options_of(groups[each.name]) if each.name in groups else [each]
    run_command.__name__, run_command.__doc__ = command.__name__, command.__doc__
    run_command.__signature__ = Signature(flat)  # type: ignore[attr-defined] # `inspect.signature` and typer read it
    return run_command


def _options_of(group: type[Any]) -> list[Parameter]:
    """Return the fields of a group of options as parameters of a function."""
    return [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(group)
    ]


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"{PROGRAM} {version('parts_store')}")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit."),
    ] = False,
) -> None:
    """Inspect, verify, repair and copy Zarr arrays whose chunks are several objects.

    URL is a path, or s3://, gs://, az://, https:// or file://. An Icechunk
    repository is recognised as such.

    Credentials are found as obstore finds them. Pass them in environment
    variables, since other users of the machine can read the arguments of a
    command: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://,
    GOOGLE_APPLICATION_CREDENTIALS for gs://, AZURE_STORAGE_ACCOUNT_NAME and
    AZURE_STORAGE_ACCOUNT_KEY for az://.
    """


def _discard_output() -> None:
    """Redirect standard output to nowhere, so that the interpreter writes nothing at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
