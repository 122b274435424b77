"""ZarrMethods: the methods that zarr calls for a key, each translated into an operation that is carried out."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import override

import numpy as np
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.buffer import default_buffer_prototype

from parts_store.chunk_reads import Locate
from parts_store.engine.executor import run
from parts_store.folders import FolderMethods
from parts_store.format.shard_index import ShardIndex
from parts_store.options import DEFAULT_COALESCED, DEFAULT_GAP
from parts_store.transactions.read_attempt import Pieces


class ZarrMethods(FolderMethods):
    """A zarr store that carries out its operations against a backend: the methods for keys as well.

    zarr documents the methods. Every method exists in an event loop and, where zarr calls it so, without one.
    """

    @property
    def has_latency(self) -> bool:
        """Whether requests wait for a network, so that many of them should be made at the same time."""
        return self._backend.capabilities.is_remote

    # --- reading --------------------------------------------------------------------------------------------------

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        buffer = _buffer(await self._run(self._operations.get(key, byte_range)), prototype)
        if byte_range is None and buffer is not None:
            self._operations.reader.earlier.note_buffer(key, buffer)
        return buffer

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value as `get` does, without an event loop."""
        pieces = self.carry_out(self._operations.get(key, byte_range))
        buffer = _buffer(pieces, prototype or default_buffer_prototype())
        if byte_range is None and buffer is not None:
            self._operations.reader.earlier.note_buffer(key, buffer)
        return buffer

    def get_pieces_sync(self, key: str) -> Sequence[memoryview] | None:
        """Read a value as `get_sync` does, without joining its parts; for a codec pipeline that needs none joined."""
        return self.carry_out(self._operations.get(key, None))

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

    async def get_inner(
        self,
        key: str,
        index: ShardIndex,
        locate: Locate,
        *,
        max_gap_bytes: int = DEFAULT_GAP,
        max_coalesced_bytes: int = DEFAULT_COALESCED,
    ) -> Sequence[memoryview | None] | None:
        """Read inner chunks of a shard, for a codec pipeline that knows where the index of the shard is.

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
        Sequence or None
            The bytes of each byte range, all of one write; None for an inner chunk that was removed meanwhile. None if
            there is no such shard.
        """
        settings = self._operations.reader.settings(max_gap_bytes, max_coalesced_bytes)
        return _joined_all(await self._run(self._operations.get_inner(key, index, locate, settings)))

    def get_inner_sync(
        self,
        key: str,
        index: ShardIndex,
        locate: Locate,
        *,
        max_gap_bytes: int = DEFAULT_GAP,
        max_coalesced_bytes: int = DEFAULT_COALESCED,
    ) -> Sequence[memoryview | None] | None:
        """Read inner chunks of a shard as `get_inner` does, without an event loop."""
        settings = self._operations.reader.settings(max_gap_bytes, max_coalesced_bytes)
        return _joined_all(self.carry_out(self._operations.get_inner(key, index, locate, settings)))

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        places: dict[str, list[tuple[int, ByteRequest | None]]] = {}
        wanted = list(key_ranges)
        for place, (key, byte_range) in enumerate(wanted):
            places.setdefault(key, []).append((place, byte_range))
        settings = self._operations.reader.settings(DEFAULT_GAP, DEFAULT_COALESCED)
        values = await asyncio.gather(
            *(
                self._run(self._operations.get_many(key, [byte_range for _, byte_range in of_key], settings))
                for key, of_key in places.items()
            )
        )
        buffers: list[Buffer | None] = [None] * len(wanted)
        for of_key, of_values in zip(places.values(), values, strict=True):
            for (place, _), value in zip(of_key, of_values or (), strict=of_values is not None):
                buffers[place] = _buffer(value, prototype)
        return buffers

    @override
    async def exists(self, key: str) -> bool:
        return await self._run(self._operations.exists(key))

    @override
    async def getsize(self, key: str) -> int:
        nbytes = await self._run(self._operations.getsize(key))
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
        return self._backend.capabilities.is_writable

    @property
    @override
    def supports_deletes(self) -> bool:
        return self._backend.capabilities.is_writable

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self._run(self._operations.put(key, _view(value), self._options))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a value as `set` does, without an event loop."""
        self._check_writable()
        self.carry_out(self._operations.put(key, _view(value), self._options))

    def keep_lock(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager for many writes of chunks like this one, whose shared lock is then taken once."""
        lock = self.carry_out(self._operations.shared_lock(key))
        return nullcontext() if lock is None else self._backend.keep_lock(lock)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self._run(self._operations.put(key, _view(value), self._options, only_if_absent=True))

    @override
    async def delete(self, key: str) -> None:
        self._check_writable()
        await self._run(self._operations.delete(key))

    def delete_sync(self, key: str) -> None:
        """Delete a value as `delete` does, without an event loop."""
        self._check_writable()
        self.carry_out(self._operations.delete(key))


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
    whole = [each for each in pieces if each.nbytes]
    if len(whole) == 1:
        return whole[0]
    return memoryview(np.concatenate([np.frombuffer(each, "B") for each in whole])) if whole else memoryview(b"")


def _joined_all(values: Sequence[Pieces | None] | None) -> Sequence[memoryview | None] | None:
    return None if values is None else [None if each is None else _joined(each) for each in values]
