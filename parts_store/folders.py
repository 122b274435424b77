"""FolderMethods: the methods by which zarr lists, measures and deletes what is below a folder."""

from collections.abc import AsyncIterator, Sequence
from typing import Final, override

from zarr.abc.store import Store

from parts_store.catalog.known_arrays import Catalog
from parts_store.catalog.owners import OwnedChunk
from parts_store.catalog.shown_keys import ShownKeys
from parts_store.engine.backend import LIST_PAGE, Place
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.executor import run, run_sync
from parts_store.engine.steps import Steps, remove
from parts_store.errors import ReservedKeyError, StoreConfigError
from parts_store.forks import require_own_process
from parts_store.format.keys import DOCUMENT, is_protocol_key, split
from parts_store.operations import Operations
from parts_store.options import StoreOptions
from parts_store.transactions import folder_deletion

# How many folders are looked into at the same time.
_FOLDERS_AT_ONCE: Final = 32
# How many keys are asked for at once to find out whether a folder holds any.
_FEW: Final = 50


class FolderMethods(Store):
    """A zarr store that carries out its operations against a backend: the methods for folders.

    zarr documents the methods.
    """

    def __init__(self, backend: Place, options: StoreOptions, operations: Operations) -> None:
        super().__init__(read_only=options.read_only)
        self._backend = backend
        self._options = options
        self._operations = operations

    @property
    def catalog(self) -> Catalog:
        """The arrays that the store knows."""
        return self._operations.catalog

    def carry_out[T](self, steps: Steps[T]) -> T:
        """Carry out steps against the backend, without an event loop."""
        return run_sync(steps, self._backend, self._operations.reader.stats)

    async def _run[T](self, steps: Steps[T]) -> T:
        return await run(steps, self._backend, self._operations.reader.stats)

    # --- listing --------------------------------------------------------------------------------------------------

    @property
    @override
    def supports_listing(self) -> bool:
        return self._backend.capabilities.is_listable

    def require_listable(self) -> None:
        """Raise `StoreConfigError` unless the store can be listed."""
        if not self.supports_listing:
            raise StoreConfigError(str(self), "a store that can be listed", "one that can only be read, by key")

    def _begin_listing(self) -> None:
        self.require_listable()
        require_own_process()
        self._operations.reader.stats.count("list")

    def _keys(self, folder: str, page: int = LIST_PAGE) -> AsyncIterator[Sequence[str]]:
        self._begin_listing()
        return self._backend.list_keys(folder, page=page)

    @override
    def list(self) -> AsyncIterator[str]:
        return self.list_prefix("")

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        shown = ShownKeys(self.catalog)
        async for keys in self._keys(prefix.rstrip("/")):
            for key in await self._run(shown.of(keys)):
                yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = prefix.rstrip("/")
        self._begin_listing()
        folders, keys = await self._backend.list_folder(folder)
        start = len(folder) + 1 if folder else 0
        folders = [path for path in folders if not is_protocol_key(path)]
        if self.catalog.is_in_parts(folder):
            # A folder of an array's chunks may hold nothing but parts that remained after their chunks were deleted.
            has_keys = await run_for_each(folders, self._has_keys, _FOLDERS_AT_ONCE)
            folders = [path for path, is_shown in zip(folders, has_keys, strict=True) if is_shown]
        for path in folders:
            yield path[start:]
        # The object of a folder itself, as some programs create it, is not in the folder.
        for key in await self._run(ShownKeys(self.catalog).of([key for key in keys if key != folder])):
            yield key[start:]

    @override
    async def is_empty(self, prefix: str) -> bool:
        return not await self._has_keys(prefix.rstrip("/"))

    async def _has_keys(self, folder: str) -> bool:
        shown = ShownKeys(self.catalog)
        async for keys in self._keys(folder, _FEW):
            if await self._run(shown.of(keys)):
                return True
        return False

    @override
    async def getsize_prefix(self, prefix: str) -> int:
        self._begin_listing()
        total, stored = 0, []
        async for sizes in self._backend.list_sizes(prefix.rstrip("/")):
            if self._operations.protocol.has_part_nodes:
                stored += [(key, nbytes) for key, nbytes in sizes.items() if not is_protocol_key(key)]
            else:
                total += sum(nbytes for key, nbytes in sizes.items() if not is_protocol_key(key))
        return total + await self._size_in_session(stored)

    async def _size_in_session(self, stored: Sequence[tuple[str, int]]) -> int:
        """Return the size of what a listing of a session has found."""
        if not any(split(key)[1] == DOCUMENT for key, _ in stored):
            # The folder is inside an array, whose parts may be stored in other nodes.
            found = [await self._run(self._operations.getsize(key)) for key, _ in stored]
            return sum(nbytes for nbytes in found if nbytes is not None)
        is_hidden = self.catalog.is_hidden
        return sum(nbytes for key, nbytes in stored if not (split(key)[1] == DOCUMENT and is_hidden(key)))

    # --- deleting -------------------------------------------------------------------------------------------------

    @override
    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        folder, protocol = prefix.rstrip("/"), self._operations.protocol
        if protocol.is_part_node(folder):
            raise ReservedKeyError(folder, "the parts of an array")
        if protocol.locks_arrays:
            self.catalog.forget_below(folder)
            await self._delete_under_locks(folder)
        else:
            keys = [key async for page in self._keys(folder) for key in page]
            self.catalog.forget_below(folder)
            await self._run(_delete_keys(self._operations, keys))
        # Another thread may have read a document before it was deleted.
        self.catalog.forget_below(folder)

    async def _delete_under_locks(self, folder: str) -> None:
        """Delete a folder one array or group at a time, each while its writers are locked out."""
        rules = self._operations.protocol.rules
        nodes = await self._run(folder_deletion.find_nodes(folder))
        for path in nodes:
            await self._run(folder_deletion.delete_node(path, nodes, rules))
        await self._run(folder_deletion.delete_rest(folder, nodes, rules))


def _delete_keys(operations: Operations, keys: Sequence[str]) -> Steps[None]:
    """Delete the objects with these keys, which are all objects below a folder."""
    # Documents are deleted last, so that an interruption leaves no chunks without an array.
    documents = sorted((key for key in keys if split(key)[1] == DOCUMENT), key=lambda key: key.count("/"), reverse=True)
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
