"""`parts-store inspect`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parts_store.cli.exits import DAMAGED, OK, NothingFoundError
from parts_store.cli.output import Output
from parts_store.cli.parameters import Prefix, ReadOptions, Url
from parts_store.redaction import hide_in_url
from parts_store.text import count, printable

if TYPE_CHECKING:
    from rich.tree import Tree

    from parts_store.inspection import Node, Stored


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

    store = read.open(url)
    nodes = inspect_store(store, prefix, sizes=sizes)
    shown = hide_in_url(url)
    if not nodes:
        below = f" below {prefix!r}" if prefix else ""
        raise NothingFoundError(f"{shown}: no Zarr array or group was found there{below}")
    session = store.session
    document = {
        "url": shown,
        "store": "objects" if session is None else "icechunk",
        "snapshot": None if session is None else session.snapshot_id,
        "nodes": [node.to_json() for node in nodes],
    }
    title = shown if session is None else f"{shown} (Icechunk, snapshot {session.snapshot_id})"
    output.show(document, _lines(title, nodes), lambda: [_tree(title, nodes)])
    return DAMAGED if any(node.problem for node in nodes) else OK


def _lines(title: str, nodes: Sequence["Node"]) -> Iterator[str]:
    yield title
    for node in nodes:
        depth = len(node.path.split("/")) if node.path else 0
        yield f"{'  ' * depth}{_name(node)}: {', '.join(_facts(node))}"


def _name(node: "Node") -> str:
    return node.path.rpartition("/")[2] or "/"


def _facts(node: "Node") -> Iterator[str]:
    """Yield the facts about a node that are printed."""
    if node.problem is not None:
        yield f"damaged: {node.problem}"
        return
    if node.kind == "group":
        yield "group"
        return
    yield f"{node.dtype} {node.shape}"
    yield f"chunks {node.chunks}" + ("" if node.shards is None else f" in shards {node.shards}")
    if node.zarr_format != 3:
        yield f"Zarr v{node.zarr_format}"
    if node.parts is not None:
        parts = [
            repr(each.key_suffix) + ("" if each.size is None else f" ({each.size} bytes)") for each in node.parts.parts
        ]
        yield f"parts {' + '.join(parts)}"
    if node.stored is not None:
        yield _size(node.stored)


def _size(stored: "Stored") -> str:
    from rich.filesize import decimal

    return f"{count(stored.chunks, 'chunk')} in {count(stored.objects, 'object')}, {decimal(stored.nbytes)}"


def _tree(title: str, nodes: Sequence["Node"]) -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(printable(title), style="bold"), guide_style="dim")
    branches = {"": root}
    for node in nodes:
        style = "red" if node.problem else "cyan" if node.kind == "array" else "blue"
        facts = "" if node.kind == "group" else f"  {', '.join(_facts(node))}"
        label = Text.assemble(
            (printable(_name(node)), f"bold {style}"), (printable(facts), "red" if node.problem else "")
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
