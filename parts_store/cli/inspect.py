"""`parts-store inspect` and `parts-store explain`: what is stored, and how it would be read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parts_store.cli.exits import DAMAGED, OK, DamagedError, NothingFoundError, did_you_mean
from parts_store.cli.parameters import Output, Prefix, ReadOptions, Url, new_argument, parse_selection
from parts_store.errors import StoreConfigError
from parts_store.redaction import hide_in_url
from parts_store.text import count, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree as RichTree

    from parts_store.engine.stats import Request
    from parts_store.nodes import Node


def inspect(
    url: Url,
    *,
    prefix: Prefix = "",
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Count chunks, objects and bytes, which needs a listing of all objects.")
    ] = False,
    read: ReadOptions,
    output: Output,
) -> int:
    """Show groups and arrays as a tree, with their parts."""
    from parts_store.inspection import inspect as inspect_store
    from parts_store.nodes import Tree

    store = read.open(url)
    with output.progress("inspect", "nodes") as progress:
        nodes = inspect_store(store, prefix, sizes=sizes, progress=progress)
    shown = hide_in_url(url)
    if not nodes:
        below = f" below {prefix!r}" if prefix else ""
        raise NothingFoundError(f"{shown}: no Zarr array or group was found there{below}{did_you_mean(store, prefix)}")
    session = store.session
    document = {
        "url": shown,
        "store": "objects" if session is None else "icechunk",
        "snapshot": None if session is None else session.snapshot_id,
        "nodes": [node.to_json() for node in nodes],
    }
    title = shown if session is None else f"{shown} (Icechunk, snapshot {session.snapshot_id})"
    output.show(document, str(Tree(title, nodes)).splitlines(), lambda: [_tree(title, nodes)])
    return DAMAGED if any(node.problem for node in nodes) else OK


def _tree(title: str, nodes: Sequence["Node"]) -> "RichTree":
    from rich.text import Text
    from rich.tree import Tree as RichTree

    root = RichTree(Text(printable(title), style="bold"), guide_style="dim")
    branches = {"": root}
    for node in nodes:
        style = "red" if node.problem else "cyan" if node.kind == "array" else "blue"
        facts = "" if node.kind == "group" else f"  {', '.join(node.facts)}"
        label = Text.assemble(
            (printable(node.name), f"bold {style}"), (printable(facts), "red" if node.problem else "")
        )
        if not node.path:
            if node.kind == "group":
                continue
            root.add(label)
            continue
        above = node.path.rpartition("/")[0]
        while above not in branches:
            above = above.rpartition("/")[0]
        branches[node.path] = branches[above].add(label)
    return root


def explain(
    url: Url,
    path: Annotated[str, new_argument("PATH", "The path of the array.")],
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
