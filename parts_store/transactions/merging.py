"""Partial writes of a shard that keep what other clients have written to its other inner chunks meanwhile.

A partial write has read the shard, changed some inner chunks, and writes all of them. If another client has written
the shard in between, the write is not refused at once (`ChunkProtocol.change`): the shard of the other client is read,
and the inner chunks that this writer changed are put in. The result is written on the condition that the shard is still
that of the other client, and so on. Each inner chunk is then as if both writes had been carried out one after the
other.

The write raises `ConcurrentWriteError`, and nothing is written, if both clients changed the same inner chunk, if a
shard is not as zarr writes it, if the array was resized, and if the shard that was read is not known any more. It
raises `LayoutChangedError` if the array was deleted, or created again with other chunks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parts_store.engine.steps import Steps
from parts_store.errors import ChunkSizeError, ConcurrentWriteError
from parts_store.format.keys import Chunk
from parts_store.format.shard_index import ShardIndex
from parts_store.format.shard_merge import NotMergedError, Shard, empty_shard, is_empty, merge_shards
from parts_store.transactions.reading import Read, require_unedited
from parts_store.transactions.versions import NOT_AS_SEEN


@dataclass(frozen=True, slots=True)
class Unknown:
    """A shard that was read, and whose bytes are not known any more."""


@dataclass(slots=True)
class Change:
    """A partial write of a shard: the shard that was read, and what is written instead."""

    chunk: Chunk
    index: ShardIndex
    base: Shard | Unknown
    # None if no inner chunk is left.
    mine: Shard
    # Cuts a shard into the parts of the chunk.
    cut: Callable[[memoryview], Sequence[memoryview]]
    # Raises an error if the array is not the same any more.
    confirm: Callable[[], Steps[None]]

    @property
    def parts(self) -> Sequence[memoryview] | None:
        """The parts to write, None if no inner chunk is left."""
        return None if self.mine is None else self.cut(self.mine)

    @property
    def empty_parts(self) -> Sequence[memoryview] | None:
        """The parts of a shard without inner chunks, None if such a shard does not fit the parts."""
        try:
            return self.cut(empty_shard(self.index))
        except ChunkSizeError:
            return None

    @property
    def has_no_effect(self) -> bool:
        """Whether no inner chunk is left, and there was none before."""
        return self.mine is None and not isinstance(self.base, Unknown) and is_empty(self.index, self.base)

    def follow(self, read: Read | None) -> bool:
        """Change what another client has stored instead of the base; return False if nothing is left to change.

        Raises
        ------
        ConcurrentWriteError
            If the changes of both cannot be kept.
        """
        if isinstance(self.base, Unknown):
            raise ConcurrentWriteError(self.chunk.chunk_key, NOT_AS_SEEN)
        require_unedited(self.chunk, self.index, read)
        theirs = None if read is None else memoryview(b"".join(read.values[0] or ()))
        try:
            merged = merge_shards(self.index, self.base, self.mine, theirs)
        except NotMergedError as error:
            raise ConcurrentWriteError(self.chunk.chunk_key, str(error)) from None
        self.base, self.mine = theirs, merged.shard
        return merged.differs
