"""The choice of a protocol by what a backend can do: made once, when a store is opened."""

from collections.abc import Callable
from typing import Final

from parts_store.engine.backend import Capabilities, Place, WriteIdentity
from parts_store.errors import StoreConfigError, describe
from parts_store.transactions.journaled import JournaledProtocol
from parts_store.transactions.protocol import ChunkProtocol, ReadOnlyProtocol
from parts_store.transactions.rules import MAX_EMBEDDED, Level, Rules
from parts_store.transactions.session import SessionProtocol
from parts_store.transactions.tagged import TaggedProtocol

_PROTOCOLS: Final[dict[WriteIdentity, type[ChunkProtocol]]] = {
    WriteIdentity.TAGS: TaggedProtocol,
    WriteIdentity.JOURNAL: JournaledProtocol,
    WriteIdentity.ETAGS: ReadOnlyProtocol,
    WriteIdentity.SESSION: SessionProtocol,
}


def choose_protocol(
    backend: Place,
    level: Level,
    new_generation: Callable[[], str],
    start_watch: Callable[[], Callable[[], float]],
    *,
    is_read_only: bool,
) -> ChunkProtocol:
    """Return the protocol of a backend; raise `StoreConfigError` if several clients cannot write at this level."""
    can = backend.capabilities
    if not is_read_only and level is not Level.EXCLUSIVE:
        _require_level(can, level)
    rules = Rules(level, can.has_conditions, can.has_unique_etags, new_generation, start_watch, MAX_EMBEDDED)
    return _PROTOCOLS[can.identifies_writes_by](rules)


def _require_level(can: Capabilities, level: Level) -> None:
    identity, problem = can.identifies_writes_by, None
    if identity is WriteIdentity.TAGS and not can.has_conditions:
        problem = "this store has conditional PUTs disabled"
    if identity is WriteIdentity.JOURNAL and not can.has_locks:
        problem = "this system has no locks that end with their process"
    if problem is not None:
        raise StoreConfigError("concurrency", f"'exclusive', since {problem}", describe(level.value))
