"""`parts-store inspect`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parts_store.cli.exits import DAMAGED, OK, NothingFoundError
from parts_store.cli.output import Output
from parts_store.cli.parameters import Prefix, ReadOptions, Url
from parts_store.cli.suggestions import did_you_mean
from parts_store.redaction import hide_in_url
from parts_store.text import printable

if TYPE_CHECKING:
    from rich.tree import Tree as RichTree

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
