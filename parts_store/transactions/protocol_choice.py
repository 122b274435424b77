"""The choice of a protocol by what a backend can do: made once, when a store is opened."""

from typing import Final

from parts_store.engine.backend import Capabilities, WriteIdentity
from parts_store.errors import StoreConfigError, describe
from parts_store.transactions.journaled import JournaledProtocol
from parts_store.transactions.protocol import ChunkProtocol, ReadOnlyProtocol
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.session import SessionProtocol
from parts_store.transactions.tagged import TaggedProtocol

_PROTOCOLS: Final[dict[WriteIdentity, type[ChunkProtocol]]] = {
    WriteIdentity.TAGS: TaggedProtocol,
    WriteIdentity.JOURNAL: JournaledProtocol,
    WriteIdentity.ETAGS: ReadOnlyProtocol,
    WriteIdentity.SESSION: SessionProtocol,
}


def choose_protocol(capabilities: Capabilities, rules: Rules, *, is_read_only: bool) -> ChunkProtocol:
    """Return the protocol of a backend; raise `StoreConfigError` if the backend cannot keep the rules."""
    if not is_read_only and rules.level is not Level.EXCLUSIVE:
        _require_level(capabilities, rules.level)
    return _PROTOCOLS[capabilities.identifies_writes_by](rules)


def _require_level(capabilities: Capabilities, level: Level) -> None:
    """Raise unless several clients can write a chunk at the same time."""
    identity, problem = capabilities.identifies_writes_by, None
    if identity is WriteIdentity.TAGS and not capabilities.has_conditions:
        problem = "this store has conditional PUTs disabled"
    if identity is WriteIdentity.JOURNAL and not capabilities.has_locks:
        problem = "this system has no locks that end with their process"
    if problem is not None:
        raise StoreConfigError("concurrency", f"'exclusive', since {problem}", describe(level.value))
