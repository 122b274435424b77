"""Node and Tree: the groups and arrays of a store as values, as text, as JSON and as HTML."""

from dataclasses import dataclass
from typing import Any, Literal

from parts_store import notebook
from parts_store.format.parts import ConcatParts
from parts_store.text import count, printable, size


@dataclass(frozen=True, slots=True)
class Stored:
    """The number of chunks of an array, of the objects that store them, and of their bytes."""

    chunks: int
    objects: int
    nbytes: int

    @property
    def line(self) -> str:
        """The numbers as text."""
        return f"{count(self.chunks, 'chunk')} in {count(self.objects, 'object')}, {size(self.nbytes)}"


@dataclass(frozen=True, slots=True)
class Node:
    """A group or an array in a store. If it cannot be opened, `problem` says why."""

    path: str
    kind: Literal["group", "array", "unknown"]
    zarr_format: int | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    chunks: tuple[int, ...] = ()
    shards: tuple[int, ...] | None = None
    parts: ConcatParts | None = None
    stored: Stored | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        """The last name of the path; `/` for the root."""
        return self.path.rpartition("/")[2] or "/"

    @property
    def facts(self) -> tuple[str, ...]:
        """What is printed of the node."""
        if self.problem is not None:
            return (f"damaged: {self.problem}",)
        if self.kind == "group":
            return ("group",)
        shards = "" if self.shards is None else f" in shards {self.shards}"
        facts = [f"{self.dtype} {self.shape}", f"chunks {self.chunks}{shards}"]
        if self.zarr_format != 3:
            facts.append(f"Zarr v{self.zarr_format}")
        if self.parts is not None:
            parts = [
                repr(each.key_suffix) + ("" if each.size is None else f" ({each.size} bytes)")
                for each in self.parts.parts
            ]
            facts.append(f"parts {' + '.join(parts)}")
        if self.stored is not None:
            facts.append(self.stored.line)
        return tuple(facts)

    def to_json(self) -> dict[str, Any]:
        """Return the node as JSON values."""
        document: dict[str, Any] = {"path": self.path, "kind": self.kind}
        if self.problem is not None:
            return {**document, "problem": self.problem}
        document["zarr_format"] = self.zarr_format
        if self.kind == "group":
            return document
        parts = None if self.parts is None else self.parts.to_json()["configuration"]["parts"]
        shards = None if self.shards is None else list(self.shards)
        document |= {"shape": list(self.shape), "dtype": self.dtype, "chunks": list(self.chunks), "shards": shards}
        document["parts"] = parts
        if self.stored is not None:
            document["stored"] = {
                "chunks": self.stored.chunks,
                "objects": self.stored.objects,
                "bytes": self.stored.nbytes,
            }
        return document


@dataclass(frozen=True, slots=True, repr=False)
class Tree:
    """A tree of groups and arrays, which shows itself as text and, in a notebook, as HTML."""

    title: str
    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        lines = [f"{'  ' * _depth(node)}{node.name}: {', '.join(node.facts)}" for node in self.nodes]
        return "\n".join(map(printable, [self.title, *lines]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.tree(self.title, ((_depth(node), node.name, ", ".join(node.facts)) for node in self.nodes))


def _depth(node: Node) -> int:
    return len(node.path.split("/")) if node.path else 0
