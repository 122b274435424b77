"""What a server knows of a store as a whole: its groups and arrays, and their documents."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from zarr.buffer import default_buffer_prototype

from parts_store.engine.concurrency import run_for_each
from parts_store.errors import PartsStoreError
from parts_store.format.keys import DOCUMENT, join
from parts_store.format.metadata import parse
from parts_store.store.inspection import Node, inspect
from parts_store.store.operations import VersionedValue
from parts_store.store.store import PartsStore

# How old the list of groups and arrays may be, in seconds, if the store may change.
_MAX_AGE: Final = 5.0
# How long a client waits for the metadata of all members of a group, in seconds. Later it is served without them.
_PATIENCE: Final = 10.0
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Listing:
    """The groups and arrays of a store, and the documents of those of Zarr v3, by their paths."""

    nodes: Sequence[Node] = ()
    documents: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def members(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the documents of all nodes below a group, by their paths relative to it."""
        below = join(path, "")
        return {
            name[len(below) :]: document
            for name, document in self.documents.items()
            if name.startswith(below) and name != path
        }


class Hierarchy:
    """The groups and arrays of a store, listed when they are needed."""

    def __init__(self, store: PartsStore, *, is_fixed: bool) -> None:
        self.store = store
        # Whether the store never changes: a snapshot of a repository.
        self.is_fixed = is_fixed
        self._task: asyncio.Task[Listing] | None = None
        self._valid_until = 0.0
        # The documents of groups that were served with the members of a listing, each with the stored document.
        self._served: dict[str, tuple[Listing, bytes, VersionedValue]] = {}

    async def listing(self) -> Listing:
        """Return the groups and arrays, as they were at most five seconds ago, or twice the time that it takes."""
        task = self._task
        is_old = task is None or (task.done() and not self.is_fixed and time.monotonic() > self._valid_until)
        if task is None or is_old or (task.done() and task.exception() is not None):
            task = self._task = asyncio.create_task(self._list())
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return await asyncio.shield(task)

    async def _list(self) -> Listing:
        began = time.monotonic()
        nodes = await asyncio.to_thread(inspect, self.store)
        paths = [node.path for node in nodes if node.zarr_format == 3 and node.problem is None]

        async def read(path: str) -> tuple[str, dict[str, Any] | None]:
            stored = await self.store.get(join(path, DOCUMENT), default_buffer_prototype())
            return path, None if stored is None else parse(stored.to_bytes())

        found = await run_for_each(paths, read, _AT_ONCE)
        ended = time.monotonic()
        # A list that takes longer must not be out of date before anyone reads it.
        self._served = {}
        self._valid_until = max(began + _MAX_AGE, ended + (ended - began))
        return Listing(nodes, {path: document for path, document in found if document is not None})

    async def with_members(self, path: str, stored: VersionedValue) -> VersionedValue:
        """Return the document of a group with the metadata of all its members, so that opening it is one request."""
        text = b"".join(stored.pieces)
        document = parse(text)
        if document is None or document.get("node_type") != "group" or document.get("consolidated_metadata"):
            return stored
        try:
            listing = await asyncio.wait_for(self.listing(), _PATIENCE)
        except (TimeoutError, PartsStoreError, OSError):
            # A store that cannot be listed, or a very large one.
            return stored
        known = self._served.get(path)
        if known is not None and known[0] is listing and known[1] == text:
            return known[2]
        members = listing.members(path)
        if not members:
            return stored
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": members}
        try:
            served = json.dumps(document).encode()
        except RecursionError:
            return stored
        value = VersionedValue((memoryview(served),), len(served), blake2b(served, digest_size=16).hexdigest())
        self._served[path] = listing, text, value
        return value
