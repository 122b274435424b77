"""ZarrMethods: the methods that zarr calls, each translated into an operation that is carried out."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Final, override

import numpy as np
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import default_buffer_prototype

from parts_store.engine.backend import LIST_PAGE, Place
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.executor import run, run_sync
from parts_store.engine.steps import Steps, remove
from parts_store.errors import ReservedKeyError, StoreConfigError
from parts_store.forks import require_own_process
from parts_store.format.keys import DOCUMENT, is_protocol_key, split
from parts_store.format.shard_index import ShardIndex
from parts_store.store.catalog import Catalog, OwnedChunk
from parts_store.store.chunk_reads import Locate
from parts_store.store.operations import Operations, VersionedValue
from parts_store.store.options import DEFAULT_COALESCED, DEFAULT_GAP, StoreOptions, choose_pipeline
from parts_store.store.shown_keys import ShownKeys
from parts_store.store.stored_views import remove_views
from parts_store.transactions import locking
from parts_store.transactions.reading import Pieces

# How many folders are looked into at the same time.
_FOLDERS_AT_ONCE: Final = 32
# How many keys are read at the same time.
_KEYS_AT_ONCE: Final = 64
# How many keys are asked for at once to find out whether a folder holds any.
_FEW: Final = 50


class ZarrMethods(Store):
    """A zarr store that carries out its operations against a backend.

    zarr documents the methods. Every method exists in an event loop and, where zarr calls it so, without one.
    """

    def __init__(self, backend: Place, options: StoreOptions, operations: Operations) -> None:
        super().__init__(read_only=options.read_only)
        self._backend = backend
        self._options = options
        self._operations = operations
        choose_pipeline(options)

    @property
    def catalog(self) -> Catalog:
        """The arrays that the store knows."""
        return self._operations.catalog

    def carry_out[T](self, steps: Steps[T]) -> T:
        """Carry out steps against the backend, without an event loop."""
        return run_sync(steps, self._backend, self._operations.reader.stats)

    async def carry_out_async[T](self, steps: Steps[T]) -> T:
        """Carry out steps against the backend, in an event loop."""
        return await run(steps, self._backend, self._operations.reader.stats)

    @property
    def has_latency(self) -> bool:
        """Whether requests wait for a network, so that many of them should be made at the same time."""
        return self._backend.has_latency

    # --- reading --------------------------------------------------------------------------------------------------

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return self._noted(
            key, byte_range, _buffer(await self.carry_out_async(self._operations.get(key, byte_range)), prototype)
        )

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value as `get` does, without an event loop."""
        pieces = self.carry_out(self._operations.get(key, byte_range))
        return self._noted(key, byte_range, _buffer(pieces, prototype or default_buffer_prototype()))

    def _noted(self, key: str, byte_range: ByteRequest | None, buffer: Buffer | None) -> Buffer | None:
        """Return a buffer for zarr; note it if it is a whole value, of which zarr may be about to change a part."""
        if byte_range is None and buffer is not None:
            self._operations.reader.earlier.note_buffer(key, buffer)
        return buffer

    async def get_versioned(self, key: str, byte_range: ByteRequest | None = None) -> VersionedValue | None:
        """Read a document or a chunk as `get` does, with its size and a label of its write, for a server of the store.

        Returns None for any other key.
        """
        return await self.carry_out_async(self._operations.get_versioned(key, byte_range))

    def get_pieces_sync(self, key: str) -> Sequence[memoryview] | None:
        """Read a value as `get_sync` does, without joining its parts; for a codec pipeline that needs none joined."""
        return self.carry_out(self._operations.get(key, None))

    async def chunk_getter(self, key: str) -> Callable[[str], Sequence[memoryview] | None] | None:
        """Return a function that reads this and other chunks of its array as `get_pieces_sync` does.

        Which array that is, and whether its chunks are single objects, is looked up once, and not for each chunk. A
        chunk that is written next, depending on what was read, has to be read with `get_sync`. Returns None for a store
        with another `get_sync`, which has to be called for each chunk.
        """
        if getattr(self.get_sync, "__func__", None) is not ZarrMethods.get_sync:
            return None
        owner = await self.carry_out_async(self._operations.plain_owner(key))
        if owner is None:
            return self.get_pieces_sync
        return lambda key: self.carry_out(self._operations.get_plain(owner, key))

    @override
    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_concurrency: int = 10,
        max_gap_bytes: int = DEFAULT_GAP,
        max_coalesced_bytes: int = DEFAULT_COALESCED,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        settings = self._operations.reader.settings(max_gap_bytes, max_coalesced_bytes)
        steps = self._operations.get_ranges(key, byte_ranges, settings)
        values = await run(steps, self._backend, self._operations.reader.stats, at_once=max_concurrency)
        if values:
            # One batch: no value is returned before all of them are known to be of one write.
            yield [(index, _buffer(value, prototype)) for index, value in enumerate(values)]

    @override
    def get_ranges_sync(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_gap_bytes: int = DEFAULT_GAP,
        max_coalesced_bytes: int = DEFAULT_COALESCED,
    ) -> Sequence[tuple[int, Buffer | None]]:
        settings = self._operations.reader.settings(max_gap_bytes, max_coalesced_bytes)
        values = self.carry_out(self._operations.get_ranges(key, byte_ranges, settings))
        return [(index, _buffer(value, prototype)) for index, value in enumerate(values)]

    def get_inner(
        self, key: str, index: ShardIndex, locate: Locate, *, max_gap_bytes: int, max_coalesced_bytes: int
    ) -> Steps[Sequence[memoryview | None] | None]:
        """Return the steps that read inner chunks of a shard, for a codec pipeline that knows where its index is.

        Parameters
        ----------
        key
            The key of the shard.
        index
            Where the index of the shard is, and how it is encoded.
        locate
            A function that returns the byte ranges of the inner chunks, given the decoded index, or None for one that
            cannot be decoded.
        max_gap_bytes, max_coalesced_bytes
            As for `get_ranges`.

        Returns
        -------
        Steps
            Steps for `carry_out` or `carry_out_async`. They return the bytes of each byte range, all of one write; None
            for an inner chunk that was removed meanwhile. They return None if there is no such shard.
        """
        settings = self._operations.reader.settings(max_gap_bytes, max_coalesced_bytes)
        values = yield from self._operations.get_inner(key, index, locate, settings)
        return None if values is None else [None if pieces is None else _joined(pieces) for pieces in values]

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        wanted = list(key_ranges)
        ranges: dict[str, list[ByteRequest | None]] = {}
        for key, byte_range in wanted:
            ranges.setdefault(key, []).append(byte_range)
        settings = self._operations.reader.settings(DEFAULT_GAP, DEFAULT_COALESCED)

        async def read(key: str) -> Iterator[Pieces | None]:
            values = await self.carry_out_async(self._operations.get_many(key, ranges[key], settings))
            return repeat(None) if values is None else iter(values)

        found = dict(zip(ranges, await run_for_each(ranges, read, _KEYS_AT_ONCE), strict=True))
        return [_buffer(next(found[key]), prototype) for key, _ in wanted]

    @override
    async def exists(self, key: str) -> bool:
        return await self.carry_out_async(self._operations.exists(key))

    @override
    async def getsize(self, key: str) -> int:
        nbytes = await self.carry_out_async(self._operations.getsize(key))
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    @override
    def supports_consolidated_metadata(self) -> bool:
        return self._operations.protocol.supports_consolidated_metadata

    @property
    @override
    def supports_writes(self) -> bool:
        return self._operations.protocol.can_write

    @property
    @override
    def supports_deletes(self) -> bool:
        return self._operations.protocol.can_write

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self.carry_out_async(self._operations.put(key, _view(value), self._options))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a value as `set` does, without an event loop."""
        self._check_writable()
        self.carry_out(self._operations.put(key, _view(value), self._options))

    def before_writes(self, key: str) -> Steps[None]:
        """Return the steps that read what many writes of chunks like this one need, so that none of them reads it."""
        return self._operations.before_writes(key)

    def keep_lock(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager for many writes of chunks like this one, whose shared lock is then taken once."""
        lock = self.carry_out(self._operations.shared_lock(key))
        return nullcontext() if lock is None else self._backend.keep_lock(lock)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self.carry_out_async(self._operations.put(key, _view(value), self._options, only_if_absent=True))

    @override
    async def delete(self, key: str) -> None:
        self._check_writable()
        await self.carry_out_async(self._operations.delete(key))

    def delete_sync(self, key: str) -> None:
        """Delete a value as `delete` does, without an event loop."""
        self._check_writable()
        self.carry_out(self._operations.delete(key))

    # --- listing --------------------------------------------------------------------------------------------------

    @property
    @override
    def supports_listing(self) -> bool:
        return self._operations.protocol.can_write

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
            for key in await self.carry_out_async(shown.of(keys)):
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
        for key in await self.carry_out_async(ShownKeys(self.catalog).of([key for key in keys if key != folder])):
            yield key[start:]

    @override
    async def is_empty(self, prefix: str) -> bool:
        return not await self._has_keys(prefix.rstrip("/"))

    async def _has_keys(self, folder: str) -> bool:
        shown = ShownKeys(self.catalog)
        async for keys in self._keys(folder, _FEW):
            if await self.carry_out_async(shown.of(keys)):
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
            found = [await self.carry_out_async(self._operations.getsize(key)) for key, _ in stored]
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
        if not protocol.has_part_nodes:
            await self.carry_out_async(remove_views(self.catalog, folder))
        if protocol.locks_arrays:
            self.catalog.forget_below(folder)
            await self._delete_under_locks(folder)
        else:
            keys = [key async for page in self._keys(folder) for key in page]
            self.catalog.forget_below(folder)
            await self.carry_out_async(_delete_keys(self._operations, keys))
        # Another thread may have read a document before it was deleted.
        self.catalog.forget_below(folder)

    async def _delete_under_locks(self, folder: str) -> None:
        """Delete a folder one array or group at a time, each while its writers are locked out."""
        rules = self._operations.protocol.rules
        nodes = await self.carry_out_async(locking.find_nodes(folder))
        for path in nodes:
            await self.carry_out_async(locking.delete_node(path, nodes, rules))
        await self.carry_out_async(locking.delete_rest(folder, nodes, rules))


def _view(value: Buffer) -> memoryview:
    return memoryview(value.as_buffer_like()).cast("B")


def _buffer(pieces: Pieces | None, prototype: BufferPrototype) -> Buffer | None:
    """Return bytes as a buffer of zarr.

    The bytes are read-only, because a partial write compares them with what is written.
    """
    if pieces is None:
        return None
    joined = _joined(pieces)
    return prototype.buffer.from_bytes(joined.toreadonly()) if joined.nbytes else prototype.buffer.create_zero_length()


def _joined(pieces: Pieces) -> memoryview:
    """Return pieces of bytes as one: without a copy if they are one piece, else with one copy."""
    whole = [piece for piece in pieces if piece.nbytes]
    if len(whole) == 1:
        return whole[0]
    return memoryview(np.concatenate([np.frombuffer(piece, "B") for piece in whole])) if whole else memoryview(b"")


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
