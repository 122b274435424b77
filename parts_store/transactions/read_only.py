"""The protocol for plain HTTP, which can only be read: ETags show whether a chunk changed during a read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Never, override

from parts_store.engine.steps import Steps
from parts_store.errors import StoreConfigError
from parts_store.format.keys import Chunk
from parts_store.transactions import reading
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import Attempt, ReadTask
from parts_store.transactions.server_probe import Features
from parts_store.transactions.versions import Seen, Version


@dataclass(frozen=True, slots=True)
class ReadOnlyProtocol(ChunkProtocol):
    """A protocol that reads chunks, and compares the ETags of their parts."""

    @override
    def attempt(self, task: ReadTask, *, with_anchor: bool) -> Steps[Attempt | None]:
        return reading.read_untagged(task, with_anchor=with_anchor, compares_again=True)

    @override
    def can_recognise(self, version: Version) -> bool:
        # A server of plain HTTP may give weak ETags, or none.
        return False

    @override
    def check_server(self, *, has_conditions: bool) -> Steps[Features]:
        yield from ()
        return Features(serverless_levels=())

    @override
    def write(self, chunk: Chunk, data: Sequence[memoryview], seen: Seen | None = None) -> Steps[None]:
        _refuse(chunk)

    @override
    def write_if_absent(self, chunk: Chunk, data: Sequence[memoryview]) -> Steps[None]:
        _refuse(chunk)

    @override
    def delete(self, chunk: Chunk, seen: Seen | None = None) -> Steps[None]:
        _refuse(chunk)


def _refuse(chunk: Chunk) -> Never:
    raise StoreConfigError(chunk.chunk_key, "a store that can be written", "one that can only be read")
