"""What a command prints: JSON, plain lines in a pipe, or tables and colours on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parts_store.cli.exits import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parts_store.engine.stats import Progress


@dataclass(frozen=True, slots=True)
class Output:
    """How the results of a command are printed."""

    as_json: bool
    is_quiet: bool

    def show(
        self, document: Any, lines: Iterable[str], renderables: "Callable[[], Iterable[RenderableType]] | None" = None
    ) -> None:
        """Print a result in the form that was asked for: as JSON, as lines, or, on a terminal, as renderables."""
        if self.as_json:
            print(json.dumps(document, indent=2))
            return
        if self.is_quiet:
            return
        if renderables is None or not is_terminal():
            for line in lines:
                print(visible(line))
            return
        from rich.console import Console

        console = Console(highlight=False)
        for each in renderables():
            console.print(each)

    @contextmanager
    def progress(self, description: str, unit: str) -> "Iterator[Progress]":
        """Show a progress bar on standard error, if that is a terminal."""
        from parts_store.progress import progress_bar

        is_shown = not self.as_json and not self.is_quiet and sys.stderr.isatty()
        with progress_bar(description, unit, is_shown=is_shown) as progress:
            yield progress


def is_terminal() -> bool:
    """Return whether people read the output."""
    return sys.stdout.isatty()


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 chunk` or `2,000 chunks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
