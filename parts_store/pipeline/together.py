"""Write many small chunks of a selection together, so that their transactions share requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from zarr.abc.buffer import Buffer
from zarr.storage import StorePath

from parts_store._compat.zarr import ArraySpec
from parts_store.pipeline.threads import run

type ChunkItem = tuple[Any, ArraySpec, Any, Any, bool]
"""What zarr says of a chunk: where it is, its shape and data type, the selection of the chunk, that of the whole
result, and whether all of the chunk is selected."""

# How many chunks are written together, and how many bytes each of them may have: encoded chunks wait in memory.
_LEAST: Final = 8
_MOST: Final = 256
_MOST_NBYTES: Final = 1 << 18


class _ReadError(Exception):
    """A chunk that is to be written whole, and that a codec reads nevertheless."""


@dataclass(slots=True)
class _Kept:
    """A place for a chunk that keeps the encoded chunk in memory."""

    path: StorePath
    value: Buffer | None = None

    def get_sync(self, **_: Any) -> Buffer | None:
        """Raise: a chunk that depends on what was read cannot be written together with others."""
        raise _ReadError

    def set_sync(self, value: Buffer) -> None:
        """Keep the encoded chunk."""
        self.value = value

    def delete_sync(self) -> None:
        """Delete the chunk at once."""
        self.path.delete_sync()


async def write_together(batch: Sequence[ChunkItem], write: Callable[[ChunkItem], None]) -> list[ChunkItem]:
    """Write chunks that exist with shared requests, and return the chunks that are still to be written one by one.

    `write` encodes a chunk and writes it to its place. A chunk that it reads before is written alone, such as a shard
    that extends beyond the end of the array.
    """
    if len(batch) < _LEAST or not batch[0][0].store.shares_writes(batch[0][0].path):
        return list(batch)
    shared: list[ChunkItem] = []
    others: list[ChunkItem] = []
    for item in batch:
        (shared if _is_shareable(item) else others).append(item)
    if len(shared) < _LEAST:
        return list(batch)
    path = shared[0][0]
    if path.store.has_found(path.path) is None:
        # The first write finds out whether the chunks exist. New chunks have nothing to share.
        await run([partial(write, shared.pop(0))], finishes=True)
        if not path.store.has_found(path.path):
            return shared + others
    for start in range(0, len(shared), _MOST):
        others += await _write_batch(shared[start : start + _MOST], write)
    return others


async def _write_batch(batch: Sequence[ChunkItem], write: Callable[[ChunkItem], None]) -> list[ChunkItem]:
    """Write chunks together, and return those that cannot be written so."""
    kept = [_Kept(item[0]) for item in batch]
    tasks = [partial(_is_encoded, write, (each, *item[1:])) for each, item in zip(kept, batch, strict=True)]
    are_encoded = await run(tasks, finishes=True)
    values = [(each.path.path, each.value) for each in kept if each.value is not None]
    if values:
        await run([partial(batch[0][0].store.set_many_sync, values)], finishes=True)
    return [item for item, is_encoded in zip(batch, are_encoded, strict=True) if not is_encoded]


def _is_encoded(write: Callable[[ChunkItem], None], item: ChunkItem) -> bool:
    """Encode a chunk; return False if it has to be read before."""
    try:
        write(item)
    except _ReadError:
        return False
    return True


def _is_shareable(item: ChunkItem) -> bool:
    """Return whether a chunk is written whole and is small."""
    return item[4] and is_small(item[1])


def is_small(spec: ArraySpec) -> bool:
    """Return whether a chunk is so small that many of them can be in memory at the same time."""
    return prod(spec.shape) * spec.dtype.to_native_dtype().itemsize <= _MOST_NBYTES
