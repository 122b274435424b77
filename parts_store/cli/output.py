"""Print the results of a command: as JSON, as plain lines in a pipe, or with tables and colours on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parts_store.engine.stats import Progress

_PANEL: Final = "Output"


@dataclass(frozen=True, slots=True)
class Output:
    """A printer of results, with the options that say how; every command has it as a parameter."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_PANEL)] = False
    is_quiet: Annotated[
        bool,
        typer.Option(
            *("-q", "--quiet"), help="Print errors only; the exit code shows the result.", rich_help_panel=_PANEL
        ),
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.", rich_help_panel=_PANEL)] = (
        False
    )

    def show(
        self, document: Any, lines: Iterable[str], renderables: "Callable[[], Iterable[RenderableType]] | None" = None
    ) -> None:
        """Print a result as JSON, as lines, or, on a terminal, as renderables of rich."""
        if self.as_json:
            print(json.dumps(document, indent=2))
            return
        if self.is_quiet:
            return
        if renderables is None or not is_terminal():
            for line in lines:
                print(printable(line))
            return
        from rich.console import Console

        console = Console(highlight=False)
        for each in renderables():
            console.print(each)

    @contextmanager
    def progress(self, description: str, unit: str) -> "Iterator[Progress]":
        """Show a progress bar on standard error, if that is a terminal."""
        from parts_store.progress_bar import progress_bar

        is_shown = not self.as_json and not self.is_quiet and sys.stderr.isatty()
        with progress_bar(description, unit, is_shown=is_shown) as progress:
            yield progress


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()
