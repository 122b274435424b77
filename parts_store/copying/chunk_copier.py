"""Copy chunks from one store to another, in this process or on workers."""

import pickle
from dataclasses import dataclass, replace
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.buffer import cpu

from parts_store._compat.zarr import sync
from parts_store.catalog.owners import OwnedChunk
from parts_store.copying.plan import Batch
from parts_store.engine.concurrency import run_for_each
from parts_store.errors import ConcurrentWriteError, CopyMismatchError, StoreConfigError
from parts_store.format.keys import join, split
from parts_store.format.shard_merge import has_same_chunks
from parts_store.store import PartsStore


@dataclass(frozen=True, slots=True)
class ChunkCopier:
    """What copies chunks below a path of one store to a path of another store. Workers get a copy of it."""

    source: PartsStore
    destination: PartsStore
    path: str
    to: str
    # Whether each chunk is read back and compared.
    verify: bool
    # How many chunks are copied at the same time.
    max_concurrency: int

    async def copy(self, key: str) -> int:
        """Copy the chunk at a key below the path, and return its size."""
        value = await self.source.get(join(self.path, key), cpu.buffer_prototype)
        if value is None:
            raise ConcurrentWriteError(join(self.path, key), "it was deleted during the copy")
        target = join(self.to, key)
        await self.destination.set(target, value)
        if self.verify:
            found = await self.destination.get(target, cpu.buffer_prototype)
            if found is None or not self._is_copy(target, _view(found), _view(value)):
                raise CopyMismatchError(target, len(value), None if found is None else len(found))
        return len(value)

    def _is_copy(self, key: str, found: memoryview, value: memoryview) -> bool:
        """Return whether what was found at a key of the destination is the chunk that was written.

        If shards are files, they are written as files, with the same inner chunks.
        """
        if found == value:
            return True
        # The destination has just written the chunk, so this sends no request.
        owner = self.destination.carry_out(self.destination.catalog.owner(key))
        if not isinstance(owner, OwnedChunk) or owner.record.ends is None or owner.record.shard_index is None:
            return False
        return has_same_chunks(owner.record.shard_index, found, value)

    def for_workers(self) -> "ChunkCopier":
        """Return a copier that can be pickled, if both stores allow that, and that writes to a fork of a session."""
        session = self.destination.session
        if session is not None and session.branch is None:
            found = "a fork of a session"
            raise StoreConfigError("destination", "a session that can be committed, for an executor", found)
        return replace(self, source=self.source.for_workers(), destination=self.destination.for_workers())

    def copy_batch(self, batch: Batch) -> tuple[int, Any]:
        """Copy some chunks; return their size, and the fork of the session that they were written to, if any."""
        if self.destination.session is not None:
            # Every task needs a fork of its own, also in threads of this process.
            destination: PartsStore = pickle.loads(pickle.dumps(self.destination))  # noqa: S301
        else:
            # The documents of the arrays are written after the chunks.
            destination = self.destination.with_own_catalog()
            for key, document in batch.arrays.items():
                destination.catalog.expect(split(join(self.to, key))[0], document)
        sizes: list[int] = []
        copier = replace(self, destination=destination)

        async def copy(key: str) -> None:
            sizes.append(await copier.copy(key))

        sync(run_for_each(batch.chunks, copy, self.max_concurrency))
        return sum(sizes), destination.session


def _view(buffer: Buffer) -> memoryview:
    return memoryview(buffer.as_buffer_like()).cast("B")
