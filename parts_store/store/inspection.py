"""Find the groups and arrays of a store, count what is stored of each array, and show them as a tree."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

import zarr
from zarr.api import asynchronous
from zarr.errors import NodeNotFoundError

from parts_store import notebook
from parts_store._compat.zarr import largest_chunk, largest_shard, sync
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.stats import Progress
from parts_store.errors import PartsStoreError, SessionError, StorageError
from parts_store.format.keys import DOCUMENT, METADATA_NAMES, is_metadata, is_protocol_key, join, splits
from parts_store.format.parts import ConcatParts
from parts_store.format.view_keys import ROOT_VIEWS
from parts_store.maintenance.survey import group_by_chunk, list_entries
from parts_store.progress import ProgressLike, report_progress
from parts_store.text import count, printable, size

if TYPE_CHECKING:
    from parts_store.store.store import PartsStore


@dataclass(frozen=True, slots=True)
class StoredSizes:
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
    """A group or an array in a store. If it cannot be opened, `problem` says why.

    If the chunks of an array have several lengths along an axis, `chunks` and `shards` have the largest.
    """

    path: str
    kind: Literal["group", "array", "unknown"]
    zarr_format: int | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    chunks: tuple[int, ...] = ()
    shards: tuple[int, ...] | None = None
    parts: ConcatParts | None = None
    stored: StoredSizes | None = None
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


# How many nodes are opened at once.
_MAX_CONCURRENCY: Final = 16


def inspect(
    store: "PartsStore", path: str = "", *, sizes: bool = False, progress: ProgressLike = None
) -> tuple[Node, ...]:
    """Return the groups and arrays at and below a path, in the order of their paths.

    Parameters
    ----------
    store
        The store.
    path
        The path to start from; the root of the store if empty.
    sizes
        Whether to count chunks, objects and bytes, which needs a listing of all objects. Without it, only the folders
        of groups are listed.
    progress
        True for a progress bar, or a function of the number of groups, arrays and folders that are opened and of those
        that are known so far.

    Returns
    -------
    tuple of Node
        The nodes; empty if there is neither a group nor an array.

    Examples
    --------
    >>> from parts_store.store.inspection import inspect
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(
    ...     store, "a", parts=[ps.Part("", size=4), ps.Part(".tail")], shape=(8,), chunks=(4,), dtype="int32"
    ... )
    >>> array[:] = 7
    >>> [(node.path, node.kind) for node in inspect(store)]
    [('', 'group'), ('a', 'array')]
    >>> inspect(store, "a", sizes=True)[0].stored.objects
    4
    """
    start = path.strip("/")
    with report_progress(progress, "inspect", "nodes") as update:
        walked = sync(_StoreWalk(store, update).below(start))
    found = sorted(walked, key=lambda node: node.path.split("/") if node.path else [])
    # Opening an array with zarr has added its parts to the catalog of the store.
    nodes = [replace(node, parts=store.parts_of(node.path)) if node.kind == "array" else node for node in found]
    return tuple(_with_sizes(store, start, nodes)) if sizes and nodes else tuple(nodes)


def find(store: "PartsStore", path: str) -> Node | None:
    """Return the group or array at a path; None if there is none."""
    return sync(_StoreWalk(store).open(path.strip("/")))


def similar_path(store: "PartsStore", path: str) -> str | None:
    """Return the path of a group or array that is spelled almost like `path`; None if there is none.

    Each name in the path is compared with the names in one folder, so that a large store is not searched.
    """
    walk = _StoreWalk(store)
    found = ""
    for name in filter(None, path.split("/")):
        names = [each for each in sync(walk.names(found)) if each not in METADATA_NAMES]
        # An exact match is the closest one.
        closest = get_close_matches(name, names, 1)
        if not closest:
            return None
        found = join(found, closest[0])
    return None if found == path.strip("/") or sync(walk.open(found)) is None else found


class _StoreWalk:
    """A search for the nodes at and below a path, several at once."""

    def __init__(self, store: "PartsStore", progress: Progress | None = None) -> None:
        self.store = store
        self.progress = progress
        self.known, self.opened = 1, 0

    async def below(self, path: str) -> list[Node]:
        """Return the node at a path and the nodes below it."""
        nodes, level = [], [path]
        while level:
            found = await run_for_each(level, self._look, _MAX_CONCURRENCY)
            nodes += [node for node, _ in found if node is not None]
            level = [child for _, children in found for child in children]
        return nodes

    async def _look(self, path: str) -> tuple[Node | None, list[str]]:
        """Return the node at a path, if there is one, and the paths of what is in its folder."""
        node = await self.open(path)
        names = [] if node is not None and node.kind != "group" else await self.names(path)
        if node is None and DOCUMENT in names:
            node = Node(path, "unknown", problem=f"{join(path, DOCUMENT)!r} describes neither an array nor a group")
        children = [join(path, name) for name in names if name not in METADATA_NAMES]
        self.known, self.opened = self.known + len(children), self.opened + 1
        if self.progress is not None:
            self.progress(self.opened, self.known)
        return node, children

    async def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        names = {name.strip("/") async for name in self.store.list_dir(path)}
        return sorted(names - {""})

    async def open(self, path: str) -> Node | None:
        """Return the node at a path; None if there is none."""
        try:
            opened = await self._open_format(path, 3) or await self._open_format(path, 2)
        except (SessionError, StorageError):
            raise
        except Exception as error:
            # zarr raises errors of many types for a document that is not JSON or does not follow the specification.
            if isinstance(error, OSError) or type(error).__module__.startswith("obstore"):
                raise
            return Node(path, "unknown", problem=_problem(error))
        if opened is None or isinstance(opened, zarr.AsyncGroup):
            return None if opened is None else Node(path, "group", opened.metadata.zarr_format)
        return Node(
            path,
            "array",
            opened.metadata.zarr_format,
            shape=opened.shape,
            dtype=str(opened.dtype),
            chunks=largest_chunk(opened),
            shards=largest_shard(opened),
        )

    async def _open_format(self, path: str, zarr_format: Literal[2, 3]) -> Any:
        try:
            return await asynchronous.open(store=self.store, path=path, mode="r", zarr_format=zarr_format)
        except NodeNotFoundError:
            return None


def _problem(error: Exception) -> str:
    said = " ".join(str(error).split()) or "it cannot be read"
    return (
        said if isinstance(error, PartsStoreError) else f"the metadata cannot be read: {type(error).__name__}: {said}"
    )


def _with_sizes(store: "PartsStore", start: str, nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes, with what is stored of the arrays."""
    store.require_listable()
    entries = store.carry_out(list_entries(start))
    listed = group_by_chunk(entries, store.catalog.arrays())
    chunks_in_parts = Counter(each.chunk.array for each in listed.chunks.values())
    arrays = {node.path for node in nodes if node.kind == "array"}
    objects: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for entry in entries:
        is_data = not (is_protocol_key(entry.key) or is_metadata(entry.key) or entry.key in ROOT_VIEWS)
        owner = _owner(entry.key, arrays) if is_data else None
        if owner is not None:
            objects[owner] += 1
            nbytes[owner] += entry.nbytes
    for node in nodes:
        if node.path in arrays:
            chunks = objects[node.path] if node.parts is None else chunks_in_parts[node.path]
            yield replace(node, stored=StoredSizes(chunks, objects[node.path], nbytes[node.path]))
        else:
            yield node


def _owner(key: str, arrays: set[str]) -> str | None:
    """Return the path of the array that an object belongs to; None if it belongs to none."""
    return next((path for path, _ in splits(key) if path in arrays), None)
