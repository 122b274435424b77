"""The options of a store, checked: what it cannot give is refused by name when it is opened, not found out later."""

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from parts_store.backends import Capabilities
from parts_store.errors import PartsConfigError, StoreConfigError, describe
from parts_store.plan.rules import Level, Means, Rules
from parts_store.plan.spec import ConcatParts, PartsLike

# zarr's own defaults for merging ranges.
DEFAULT_GAP: Final = 1 << 20
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_RETRIES: Final = 3
DEFAULT_INDEX_CACHE: Final = 64 << 20
DEFAULT_MIN_AGE: Final = timedelta(hours=24)

type Concurrency = Literal["exclusive", "writers", "full"]
"""What the writers of a chunk promise."""


def rules_of(concurrency: Concurrency, capabilities: Capabilities, *, has_locks: bool, is_read_only: bool) -> Rules:
    """The rules for writing at this level, if the backend can keep them."""
    levels = [level.value for level in Level]
    if concurrency not in levels:
        raise StoreConfigError("concurrency", f"one of {', '.join(map(repr, levels))}", describe(concurrency))
    level = Level(concurrency)
    if not is_read_only and level is not Level.EXCLUSIVE:
        if capabilities.means is Means.TAGS and not capabilities.has_conditions:
            expected = "'exclusive', since this store has conditional PUTs disabled"
            raise StoreConfigError("concurrency", expected, describe(concurrency))
        if capabilities.means is Means.LOCKS and not has_locks:
            expected = "'exclusive', since this system has no locks that end with their process"
            raise StoreConfigError("concurrency", expected, describe(concurrency))
    has_unique_etags, has_conditions = capabilities.has_unique_etags, capabilities.has_conditions
    return Rules(level, capabilities.means, has_conditions, has_unique_etags, _new_generation)


def _new_generation() -> str:
    return secrets.token_hex(16)


def require_count(option: str, found: object, *, least: int = 0) -> None:
    """Raise unless this is a whole number, and not less than the least."""
    if isinstance(found, bool) or not isinstance(found, int) or found < least:
        raise StoreConfigError(option, f"an integer from {least}", describe(found))


def parse_patterns(parts: Mapping[str, PartsLike] | None) -> dict[str, ConcatParts]:
    """The parts of arrays by patterns of their paths."""
    if parts is None:
        return {}
    if not isinstance(parts, Mapping):
        raise PartsConfigError("parts", "patterns of paths, each with its parts", describe(parts))
    return {pattern: ConcatParts.parse(each) for pattern, each in parts.items()}
