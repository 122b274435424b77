"""The options of a store, checked: what it cannot give is refused by name when it is opened, not found out later."""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from parts_store.engine.backend import Capabilities, Means
from parts_store.errors import PartsConfigError, StoreConfigError, describe
from parts_store.format.parts import ConcatParts, PartsLike
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.staging import FORGOTTEN_AFTER

# zarr's own defaults for merging ranges.
DEFAULT_GAP: Final = 1 << 20
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_RETRIES: Final = 3
DEFAULT_INDEX_CACHE: Final = 64 << 20
DEFAULT_MIN_AGE: Final = FORGOTTEN_AFTER

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
    return Rules(level, capabilities.means, has_conditions, has_unique_etags, _new_generation, _start_watch)


def _new_generation() -> str:
    return secrets.token_hex(16)


def _since_boot() -> float:
    """The seconds since the machine was started, with those in which it was suspended where the system counts them."""
    # On Linux, the monotonic clock stands still meanwhile.
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _start_watch() -> Callable[[], float]:
    """Start a watch, which tells how many seconds have passed since; too many rather than too few.

    No other clock than the wall's goes on while a virtual machine is paused.
    """
    booted, wall = _since_boot(), time.time()
    return lambda: max(_since_boot() - booted, time.time() - wall)


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
