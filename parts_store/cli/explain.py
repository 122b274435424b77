"""`parts-store explain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parts_store.cli.exits import OK, DamagedError, NothingFoundError
from parts_store.cli.output import Output
from parts_store.cli.parameters import ReadOptions, Url, parse_selection
from parts_store.cli.suggestions import did_you_mean
from parts_store.errors import StoreConfigError
from parts_store.text import count, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parts_store.engine.stats import Request


def explain(
    url: Url,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The path of the array.", show_default=False)],
    selection: Annotated[
        str, typer.Argument(metavar="SELECTION", help="The selection, as in Python: '0:64, 5, ...'.")
    ] = "...",
    *,
    read: ReadOptions,
    output: Output,
) -> int:
    """Show the requests that reading a selection makes.

    Metadata and shard indexes are read, data is not.
    """
    chosen = parse_selection(selection)
    from parts_store.inspection import find

    store = read.open(url)
    node = find(store, path)
    if node is None or node.kind == "group":
        found = "nothing" if node is None else "a group"
        raise NothingFoundError(
            f"PATH: expected the path of an array, found {found} at {path!r}{did_you_mean(store, path)}"
        )
    if node.problem is not None:
        raise DamagedError(f"array {path!r}: {node.problem}")
    try:
        requests = store.explain(path, chosen)
    except IndexError as error:
        raise StoreConfigError("SELECTION", "a selection inside the array", f"{selection!r} ({error})") from error
    names = ("kind", "key", "start", "stop", "why")
    document = [{name: getattr(each, name) for name in names} for each in requests]
    lines = [str(each) for each in requests]
    output.show(document, lines, lambda: _table(requests))
    return OK


def _table(requests: Sequence["Request"]) -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("request", no_wrap=True)
    table.add_column("key", overflow="fold")
    table.add_column("bytes", no_wrap=True)
    table.add_column("why", overflow="fold")
    for each in requests:
        cells = (each.kind.upper(), each.key, each.span, each.why)
        styles = ("cyan", "", "green", "dim")
        table.add_row(*(Text(printable(cell), style=style) for cell, style in zip(cells, styles, strict=True)))
    return [table, Text(count(len(requests), "request"), style="bold")]
