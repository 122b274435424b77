"""Find the groups and arrays of a store, with and without parts, and count what is stored of each array."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final, Literal

import zarr
from zarr.api import asynchronous
from zarr.errors import NodeNotFoundError

from parts_store._compat.zarr import sync
from parts_store.engine.stats import Progress
from parts_store.errors import PartsStoreError, SessionError, StorageError
from parts_store.format.keys import DOCUMENT, METADATA_NAMES, is_metadata, is_protocol_key, join, splits
from parts_store.maintenance.survey import group_by_chunk, list_entries
from parts_store.nodes import Node, Stored
from parts_store.progress import ProgressLike, report_progress
from parts_store.store import PartsStore

# How many nodes are opened at once.
_MAX_CONCURRENCY: Final = 16


def inspect(
    store: PartsStore, path: str = "", *, sizes: bool = False, progress: ProgressLike = None
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
    >>> from parts_store.inspection import inspect
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
        walked = sync(_Walk(store, update).below(start))
    found = sorted(walked, key=lambda node: node.path.split("/") if node.path else [])
    # Opening an array with zarr has added its parts to the catalog of the store.
    nodes = [replace(node, parts=store.parts_of(node.path)) if node.kind == "array" else node for node in found]
    return tuple(_with_sizes(store, start, nodes)) if sizes and nodes else tuple(nodes)


def find(store: PartsStore, path: str) -> Node | None:
    """Return the group or array at a path; None if there is none."""
    return sync(_Walk(store).open(path.strip("/")))


def similar_path(store: PartsStore, path: str) -> str | None:
    """Return the path of a group or array that is spelled almost like `path`; None if there is none.

    Each name in the path is compared with the names in one folder, so that a large store is not searched.
    """
    walk = _Walk(store)
    found = ""
    for name in filter(None, path.split("/")):
        names = [each for each in sync(walk.names(found)) if each not in METADATA_NAMES]
        # An exact match is the closest one.
        closest = get_close_matches(name, names, 1)
        if not closest:
            return None
        found = join(found, closest[0])
    return None if found == path.strip("/") or sync(walk.open(found)) is None else found


class _Walk:
    """A search for the nodes at and below a path, several at once."""

    def __init__(self, store: PartsStore, progress: Progress | None = None) -> None:
        self.store = store
        self.progress = progress
        self.known, self.opened = 1, 0
        self.limit = asyncio.Semaphore(_MAX_CONCURRENCY)

    async def below(self, path: str) -> list[Node]:
        """Return the node at a path and the nodes below it."""
        async with self.limit:
            node = await self.open(path)
            names = [] if node is not None and node.kind != "group" else await self.names(path)
        if node is None and DOCUMENT in names:
            node = Node(path, "unknown", problem=f"{join(path, DOCUMENT)!r} describes neither an array nor a group")
        children = [join(path, name) for name in names if name not in METADATA_NAMES]
        self.known, self.opened = self.known + len(children), self.opened + 1
        if self.progress is not None:
            self.progress(self.opened, self.known)
        found = await asyncio.gather(*map(self.below, children))
        return [*([] if node is None else [node]), *(each for nodes in found for each in nodes)]

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
            chunks=opened.chunks,
            shards=opened.shards,
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


def _with_sizes(store: PartsStore, start: str, nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes, with what is stored of the arrays."""
    store.require_listable()
    entries = store.carry_out(list_entries(start))
    listed = group_by_chunk(entries, store.catalog.arrays())
    chunks_in_parts = Counter(each.chunk.array for each in listed.chunks.values())
    arrays = {node.path for node in nodes if node.kind == "array"}
    objects: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for entry in entries:
        owner = None if is_protocol_key(entry.key) or is_metadata(entry.key) else _owner(entry.key, arrays)
        if owner is not None:
            objects[owner] += 1
            nbytes[owner] += entry.nbytes
    for node in nodes:
        if node.path in arrays:
            chunks = objects[node.path] if node.parts is None else chunks_in_parts[node.path]
            yield replace(node, stored=Stored(chunks, objects[node.path], nbytes[node.path]))
        else:
            yield node


def _owner(key: str, arrays: set[str]) -> str | None:
    """Return the path of the array that an object belongs to; None if it belongs to none."""
    return next((path for path, _ in splits(key) if path in arrays), None)
