"""StoreOptions: all options of a store in one value, validated when it is made."""

import fnmatch
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Final, Literal

import zarr

from parts_store.engine.backend import Place
from parts_store.errors import PartsConfigError, StoreConfigError, describe
from parts_store.format.files.description import FileFormat
from parts_store.format.parts import ConcatParts, PartsLike, parse_integer
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.protocol_choice import choose_protocol
from parts_store.transactions.rules import Level
from parts_store.transactions.staging import FORGOTTEN_AFTER

# zarr's own defaults for merging ranges.
DEFAULT_GAP: Final = 1 << 20
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_RETRIES: Final = 3
DEFAULT_INDEX_CACHE: Final = 64 << 20
DEFAULT_MIN_AGE: Final = FORGOTTEN_AFTER

# An environment variable: "0" leaves zarr's configuration alone.
FAST: Final = "PARTS_STORE_FAST"

type Concurrency = Literal["exclusive", "writers", "full"]
"""What the writers of a chunk promise."""

type Patterns = tuple[tuple[str, ConcatParts], ...]
"""The parts of new arrays, by patterns of their paths."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """All options of a `PartsStore`, whose documentation explains them.

    Raises `StoreConfigError` for a value that is invalid by itself. `protocol_of` checks what depends on the backend.
    """

    read_only: bool = False
    parts: Patterns = ()
    concurrency: Concurrency = "writers"
    # Two stores that differ only in how they read are equal.
    index_cache_bytes: int = field(default=DEFAULT_INDEX_CACHE, compare=False)
    coalesce_gap: int | None = field(default=None, compare=False)
    retries: int = field(default=DEFAULT_RETRIES, compare=False)
    must_understand: bool = True
    # In a session, whether each part of a new array is stored as a chunk of its own.
    split: bool = False
    # The format of the files that the shards of a new array are, None if they are not files.
    shard_file: FileFormat | None = None
    # Whether a write is on the disk when it returns.
    durable: bool = False
    # Whether arrays that zarr opens get the pipeline of this package.
    fast: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        """Raise `StoreConfigError` for the first option with an invalid value."""
        for option in ("must_understand", "durable", "fast"):
            if not isinstance(getattr(self, option), bool):
                raise StoreConfigError(option, "True or False", describe(getattr(self, option)))
        levels = [level.value for level in Level]
        if self.concurrency not in levels:
            raise StoreConfigError("concurrency", f"one of {', '.join(map(repr, levels))}", describe(self.concurrency))
        object.__setattr__(self, "read_only", bool(self.read_only))
        for option in ("retries", "index_cache_bytes", "coalesce_gap"):
            if (found := getattr(self, option)) is not None or option != "coalesce_gap":
                # A NumPy integer becomes one of Python, which does not overflow.
                object.__setattr__(self, option, parse_count(option, found))

    @property
    def is_fast(self) -> bool:
        """Whether arrays that zarr opens get the pipeline of this package."""
        return self.fast and os.environ.get(FAST) != "0"

    def parts_of(self, path: str) -> ConcatParts | None:
        """Return the parts of a new array at a path, by the first pattern that matches; None if none does."""
        return next((parts for pattern, parts in self.parts if fnmatch.fnmatchcase(path, pattern)), None)


# The keyword arguments of `PartsStore`. The other options are those of the method `with_parts`.
OPTIONS: Final = tuple(each.name for each in fields(StoreOptions) if each.name not in ("split", "shard_file"))


def choose_pipeline(options: StoreOptions) -> None:
    """Let zarr give arrays on a `PartsStore` the pipeline of this package, unless its configuration names another one.

    zarr asks the configured class for the pipeline of an array. `zarr.config.reset()` names zarr's default again, so
    every new store looks.
    """
    default = zarr.config.defaults[0]["codec_pipeline"]["path"]
    if options.is_fast and zarr.config.get("codec_pipeline.path") == default:
        # Registers the class.
        import_module("parts_store.pipeline.codec_pipeline")
        zarr.config.set({"codec_pipeline.path": "parts_store.pipeline.codec_pipeline.AutomaticPipeline"})


def protocol_of(options: StoreOptions, backend: Place) -> ChunkProtocol:
    """Return the protocol of a store with these options; raise `StoreConfigError` if the backend cannot keep it."""
    level = Level(options.concurrency)
    return choose_protocol(backend, level, _new_generation, _start_watch, is_read_only=options.read_only)


def _new_generation() -> str:
    return secrets.token_hex(16)


def _since_boot() -> float:
    """Return the seconds since the machine started, including time suspended where the system counts it."""
    # On Linux, the monotonic clock stands still while the machine is suspended.
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _start_watch() -> Callable[[], float]:
    """Return a function that tells how many seconds have passed since this call: too many rather than too few."""
    # While a virtual machine is paused, only the wall clock goes on.
    booted, wall = _since_boot(), time.time()
    return lambda: max(_since_boot() - booted, time.time() - wall)


def parse_count(option: str, found: object, *, least: int = 0) -> int:
    """Return an option as an integer; raise `StoreConfigError` unless it is one that is not less than the least."""
    if (number := parse_integer(found, least)) is None:
        raise StoreConfigError(option, f"an integer from {least}", describe(found))
    return number


def parse_patterns(parts: Mapping[str, PartsLike] | None) -> Patterns:
    """Return the parts of new arrays by patterns of their paths, in the order in which they are tried."""
    if parts is None:
        return ()
    if not isinstance(parts, Mapping):
        raise PartsConfigError("parts", "patterns of paths, each with its parts", describe(parts))
    return tuple((pattern, ConcatParts.parse(each)) for pattern, each in parts.items())
