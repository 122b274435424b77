"""`parts-store inspect`, `explain` and `check`: what is stored, how it would be read, and what the server supports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parts_store.cli.exits import DAMAGED, OK, DamagedError, NothingFoundError, did_you_mean
from parts_store.cli.parameters import (
    Options,
    Output,
    Prefix,
    ReadOptions,
    Url,
    new_argument,
    new_table,
    parse_options,
    parse_selection,
)
from parts_store.errors import StoreConfigError
from parts_store.redaction import hide_in_url
from parts_store.text import count, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree as RichTree

    from parts_store.engine.stats import Requests
    from parts_store.store.inspection import Node


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
    from parts_store.store.inspection import Tree
    from parts_store.store.inspection import inspect as inspect_store

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
    from parts_store.store.inspection import find

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
    output.show(document, requests.lines(), lambda: _requests_table(requests))
    return OK


def _requests_table(requests: "Requests") -> "list[RenderableType]":
    from rich.text import Text

    styles = ("cyan", "", "green", "dim")
    rows = [list(zip(row, styles, strict=True)) for row in requests.rows()]
    table = new_table(("request", "key", "bytes", "why"), rows)
    return [table, Text(count(len(requests), "request"), style="bold")]


def check(
    url: Url,
    *,
    option: Options = None,
    output: Output,
) -> int:
    """Check whether a server supports what writing needs.

    A small object is written and deleted again. The exit code is 1 if the
    server does not support the default level of concurrency.
    """
    from parts_store.store.repositories import open_writable

    # This level needs nothing of the server. The others refuse a store whose conditional PUT requests are disabled.
    features = open_writable(url, concurrency="exclusive", **parse_options(option)).check()
    styles = {"yes": "green", "no": "red"}
    rows = [[(name, ""), (answer, styles.get(answer, ""))] for name, answer in features.rows.items()]
    tables = None if features.serverless_levels is not None else lambda: [new_table((), rows)]
    output.show(features.to_json(), str(features).splitlines(), tables)
    return OK if features.supports_default else DAMAGED
