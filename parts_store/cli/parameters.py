"""What several commands have in common: their parameters, how values are parsed, and how results are printed."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.errors import StoreConfigError
from parts_store.text import printable, wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from parts_store.engine.stats import Progress
    from parts_store.store.store import PartsStore

# Options of the store itself, which the commands set.
_OWN: Final = (
    *("read_only", "parts", "concurrency", "index_cache_bytes", "coalesce_gap", "retries", "must_understand"),
    *("durable", "url", "branch", "tag", "snapshot", "virtual", "create"),
)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PLACE: Final = "Where to look"
_OUTPUT: Final = "Output"


def new_option(help_text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option whose default value is not printed in the help."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)


def new_argument(metavar: str, help_text: str) -> Any:
    """Return a positional argument whose default value is not printed in the help."""
    return typer.Argument(metavar=metavar, help=help_text, show_default=False)


Url = Annotated[str, new_argument("URL", "A path, or s3://, gs://, az://, https:// or file://.")]
Prefix = Annotated[str, new_option("Only below this path.", panel=_PLACE)]
Options = Annotated[
    list[str] | None,
    new_option(
        "An option of obstore, such as endpoint=http://127.0.0.1:9000 or region=us-east-1; a value that begins "
        "with { is JSON. May be repeated.",
        *("-o", "--option"),
        metavar="NAME=VALUE",
        panel=_PLACE,
    ),
]
Branch = Annotated[str | None, new_option("The branch of an Icechunk repository; main if none is given.", panel=_PLACE)]
Message = Annotated[str | None, new_option("The message of the commit to an Icechunk repository.")]
Durable = Annotated[
    bool, new_option("Wait until every write is on the disk, so that it survives a power failure.", "--durable")
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options that say how a URL is opened for reading; a command that reads has them as a parameter."""

    option: Options = None
    branch: Branch = None
    tag: Annotated[str | None, new_option("The tag of an Icechunk repository.", panel=_PLACE)] = None
    snapshot: Annotated[str | None, new_option("The snapshot of an Icechunk repository, by its id.", panel=_PLACE)] = (
        None
    )
    virtual: Annotated[
        list[str] | None,
        new_option(
            "A folder with files that the chunks of an Icechunk repository may refer to. May be repeated.",
            metavar="FOLDER",
            panel=_PLACE,
        ),
    ] = None

    def open(self, url: str, *, options: Mapping[str, Any] | None = None, reads_chunks: bool = False) -> "PartsStore":
        """Open a URL for reading.

        `options` replaces the options of obstore. `reads_chunks` says whether chunks will be read, and not only
        metadata.
        """
        from parts_store.store.repositories import open_store

        return open_store(
            url,
            branch=self.branch,
            tag=self.tag,
            snapshot=self.snapshot,
            virtual=self.virtual or (),
            reads_chunks=reads_chunks,
            **(parse_options(self.option) if options is None else options),
        )


@dataclass(frozen=True, slots=True)
class Output:
    """A printer of results, with the options that say how; every command has it as a parameter."""

    as_json: Annotated[bool, new_option("Print JSON.", "--json", panel=_OUTPUT)] = False
    is_quiet: Annotated[
        bool, new_option("Print errors only; the exit code shows the result.", "-q", "--quiet", panel=_OUTPUT)
    ] = False
    debug: Annotated[bool, new_option("Print the traceback of an error.", "--debug", panel=_OUTPUT)] = False

    def show(
        self,
        document: Any,
        lines: Iterable[str],
        renderables: "Callable[[], Iterable[RenderableType]] | None" = None,
        *,
        code: Iterable[str] = (),
    ) -> None:
        """Print a result as JSON, as lines, or, on a terminal, as renderables of rich; lines of code as they are."""
        if self.as_json:
            print(json.dumps(document, indent=2))
            return
        if self.is_quiet:
            return
        if renderables is None or not sys.stdout.isatty():
            for line in lines:
                text = printable(line)
                print(wrapped(text, get_terminal_size().columns) if sys.stdout.isatty() else text)
            for line in code:
                print(printable(line))
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


def rectilinear_grids() -> Any:
    """Return a context in which zarr opens and writes arrays on rectilinear grids."""
    import zarr

    return zarr.config.set({"array.rectilinear_chunks": True})


def new_table(columns: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> "Table":
    """Return a table of rich with a text and a style in each cell."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, show_header=bool(columns), header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(text), style=style, overflow="fold") for text, style in row))
    return table


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """Return options of obstore from texts like NAME=VALUE. An error never contains a value."""
    options: dict[str, Any] = {}
    for text in given or ():
        name, is_given, value = text.partition("=")
        if not is_given or not name:
            raise StoreConfigError("option -o", "NAME=VALUE", "a text without a name or without '='")
        if name in _OWN:
            raise StoreConfigError("option -o", "an option of obstore", f"{name!r}, which a command sets itself")
        options[name] = _parse_value(name, value)
    return options


def _parse_value(name: str, value: str) -> Any:
    if not value.startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    # Outside the handler, so that no traceback shows the value.
    raise StoreConfigError(f"option -o {name}", "JSON, since the value begins with '{'", "something else")


def parse_age(text: str) -> timedelta:
    """Return the age that a number with a unit says: `90s`, `1.5m`, `24h`, `7d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    try:
        if found is not None:
            return timedelta(**{_UNITS[found[2] or "s"]: float(found[1])})
    except OverflowError:
        pass
    raise StoreConfigError("--min-age", "a number with s, m, h or d, such as 24h", repr(text))


def parse_selection(text: str) -> tuple[Any, ...]:
    """Return the selection that a text says, as in the brackets of Python: integers, slices and an ellipsis."""
    chosen: list[Any] = []
    for each in text.split(","):
        if each.strip() == "...":
            chosen.append(...)
            continue
        if not re.fullmatch(r"\s*(-?\d+|(-?\d+)?\s*(:\s*(-?\d+)?\s*){1,2})\s*", each, re.ASCII):
            raise StoreConfigError("SELECTION", "integers, slices or '...', separated by commas", repr(text))
        numbers = [int(number) if number.strip() else None for number in each.split(":")]
        chosen.append(slice(*numbers) if len(numbers) > 1 else numbers[0])
    return tuple(chosen)
