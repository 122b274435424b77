"""Writers that do not come to their end, or are not alone: real requests in their real order, up to where they stop."""

from collections.abc import Callable
from enum import Enum

from zarr.core.buffer import cpu

from parts_store import PartsStore
from parts_store.engine.steps import Put, StepRequest, Steps
from parts_store.format.keys import Chunk, is_protocol_key
from parts_store.store.catalog import OwnedChunk
from parts_store.store.options import StoreOptions


class Death(Enum):
    """The request after which a writer dies."""

    # The parts of a new chunk but the anchor.
    PARTS = "parts"
    # The staged copy: nothing is committed.
    COPY = "copy"
    # The anchor: the chunk is written, and its other parts are old.
    ANCHOR = "anchor"
    # The other parts too: the staged copy is left over.
    ALL_PARTS = "all parts"


def abandon(store: PartsStore, key: str, value: bytes, after: Death) -> None:
    """Begin to write a chunk over whatever is there, and end with the batch of requests that is named."""
    store.carry_out(_cut(_write(store, key, value), chunk_of(store, key), after))


def disturb(store: PartsStore, key: str, value: bytes, *, before: Death, act: Callable[[], object]) -> None:
    """Write a chunk, and let something else happen just before the requests that are named."""
    store.carry_out(_disturbed(_write(store, key, value), chunk_of(store, key), before, act))


def _write(store: PartsStore, key: str, value: bytes) -> Steps[None]:
    # By a string of its own: it has nothing to do with what was read before.
    return store._operations.put(key[:1] + key[1:], memoryview(value), StoreOptions())


def chunk_of(store: PartsStore, key: str) -> Chunk:
    """Return the chunk at a key of an array with parts."""
    owner = store.carry_out(store.catalog.owner(key))
    assert isinstance(owner, OwnedChunk)
    return owner.chunk


def buffer(value: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(value)


def _is(after: Death, request: StepRequest, chunk: Chunk, *, is_committed: bool) -> bool:
    if not isinstance(request, Put):
        return False
    match after:
        case Death.COPY:
            return is_protocol_key(request.key)
        case Death.ANCHOR:
            return request.key == chunk.anchor_key
        case Death.PARTS:
            return request.key in chunk.other_keys
        case Death.ALL_PARTS:
            return request.key in chunk.other_keys and is_committed


def _cut(steps: Steps[None], chunk: Chunk, after: Death) -> Steps[None]:
    is_committed = False
    batch = next(steps)
    while True:
        outcomes = yield batch
        if any(_is(after, request, chunk, is_committed=is_committed) for request in batch):
            return
        is_committed |= any(_is(Death.ANCHOR, request, chunk, is_committed=False) for request in batch)
        batch = steps.send(outcomes)


def _disturbed(steps: Steps[None], chunk: Chunk, before: Death, act: Callable[[], object]) -> Steps[None]:
    is_committed = is_over = False
    batch = next(steps)
    while True:
        if not is_over and any(_is(before, request, chunk, is_committed=is_committed) for request in batch):
            is_over = True
            act()
        is_committed |= any(_is(Death.ANCHOR, request, chunk, is_committed=False) for request in batch)
        outcomes = yield batch
        try:
            batch = steps.send(outcomes)
        except StopIteration:
            return
