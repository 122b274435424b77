"""Listing, measuring and deleting what is below a folder."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from parts_store.catalog.known_arrays import Catalog
from parts_store.catalog.owners import OwnedChunk
from parts_store.catalog.records import Entry as ArrayEntry
from parts_store.engine.backend import Place
from parts_store.engine.executor import run
from parts_store.engine.steps import Entry, Steps, remove
from parts_store.errors import ReservedKeyError, StoreConfigError
from parts_store.forks import require_own_process
from parts_store.format.keys import DOCUMENT, is_protocol_key, join, split
from parts_store.operations import Operations
from parts_store.transactions import folder_deletion


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one store, as zarr sees them. A folder is given without a slash at its end."""

    backend: Place
    operations: Operations

    @property
    def _catalog(self) -> Catalog:
        return self.operations.catalog

    async def _run[T](self, steps: Steps[T]) -> T:
        return await run(steps, self.backend, self.operations.reader.stats)

    def require_listable(self) -> None:
        """Raise `StoreConfigError` unless the store can be listed."""
        if not self.backend.capabilities.is_listable:
            name = f"parts_store://{self.backend}"
            raise StoreConfigError(name, "a store that can be listed", "one that can only be read, by key")

    def _begin_listing(self) -> None:
        self.require_listable()
        require_own_process()
        self.operations.reader.stats.count("list")

    async def objects(self, folder: str) -> AsyncIterator[Entry]:
        """Yield every stored object below a folder."""
        self._begin_listing()
        async for entry in self.backend.list(folder):
            yield entry

    async def keys(self, folder: str) -> AsyncIterator[str]:
        """Yield every key below a folder: a chunk in parts has one key."""
        asked: dict[str, ArrayEntry] = {}
        async for entry in self.objects(folder):
            if (shown := await self._run(self._catalog.shown(entry.key, asked))) is not None:
                yield shown

    async def names(self, folder: str) -> AsyncIterator[str]:
        """Yield the names of the keys and folders directly in a folder."""
        self._begin_listing()
        folders, keys = await self.backend.list_folder(folder)
        start = len(folder) + 1 if folder else 0
        # A folder of an array's chunks may hold nothing but parts that remained after their chunks were deleted.
        in_array = any(f"{folder}/".startswith(join(path, "")) for path in self._catalog.arrays())
        for path in folders:
            if not is_protocol_key(path) and (not in_array or await self._has_keys(path)):
                yield path[start:]
        asked: dict[str, ArrayEntry] = {}
        for key in keys:
            shown = await self._run(self._catalog.shown(key, asked)) if key != folder else None
            if shown is not None:
                yield shown[start:]

    async def _has_keys(self, folder: str) -> bool:
        async for _ in self.keys(folder):
            return True
        return False

    async def nbytes(self, folder: str) -> int:
        """Return the total size of what is stored below a folder."""
        stored = [entry async for entry in self.objects(folder) if not is_protocol_key(entry.key)]
        documents = [entry.key for entry in stored if split(entry.key)[1] == DOCUMENT]
        if self.operations.protocol.has_part_nodes and not documents:
            # The folder is inside an array, whose parts may be stored in other nodes.
            sizes = [await self._run(self.operations.getsize(entry.key)) for entry in stored]
            return sum(nbytes for nbytes in sizes if nbytes is not None)
        hidden = {key for key in documents if self._catalog.is_hidden(key)}
        return sum(entry.nbytes for entry in stored if entry.key not in hidden)

    async def delete(self, folder: str) -> None:
        """Delete everything at and below a folder."""
        protocol = self.operations.protocol
        if protocol.is_part_node(folder):
            raise ReservedKeyError(folder, "the parts of an array")
        if protocol.locks_arrays:
            self._catalog.forget_below(folder)
            await self._delete_under_locks(folder)
        else:
            keys = [entry.key async for entry in self.objects(folder)]
            self._catalog.forget_below(folder)
            await self._run(_delete_keys(self.operations, keys))
        # Another thread may have read a document before it was deleted.
        self._catalog.forget_below(folder)

    async def _delete_under_locks(self, folder: str) -> None:
        """Delete a folder one array or group at a time, each while its writers are locked out."""
        rules = self.operations.protocol.rules
        nodes = await self._run(folder_deletion.find_nodes(folder))
        for path in nodes:
            await self._run(folder_deletion.delete_node(path, nodes, rules))
        await self._run(folder_deletion.delete_rest(folder, nodes, rules))


def _delete_keys(operations: Operations, keys: Sequence[str]) -> Steps[None]:
    """Delete the objects with these keys, which are all objects below a folder."""
    # Documents are deleted last, so that an interruption leaves no chunks without an array.
    documents = sorted((key for key in keys if split(key)[1] == DOCUMENT), key=_depth, reverse=True)
    others = [key for key in keys if split(key)[1] != DOCUMENT]
    if operations.protocol.has_part_nodes:
        # Chunks are deleted with their array. Without a document, the folder is inside one array.
        others = [] if documents else (yield from _stored_keys(operations.catalog, others))
    for batch in (others, documents):
        if batch:
            yield from remove(tuple(batch), "everything below")


def _stored_keys(catalog: Catalog, keys: Sequence[str]) -> Steps[list[str]]:
    """Return the keys of all parts of these chunks."""
    stored: list[str] = []
    for key in keys:
        owner = yield from catalog.owner(key)
        stored += owner.chunk.part_keys if isinstance(owner, OwnedChunk) else [key]
    return stored


def _depth(key: str) -> int:
    return key.count("/")
