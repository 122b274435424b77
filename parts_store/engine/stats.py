"""Counters of requests and bytes, and a request as `explain` shows it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

type Kind = Literal["get", "put", "head", "list", "delete", "copy"]
type Progress = Callable[[int, int], None]
"""Called with how much of something is done, and how much there is of it."""
KINDS: tuple[Kind, ...] = ("get", "put", "head", "list", "delete", "copy")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a read makes, of bytes `start <= i < stop` of a stored object; of all of it if both are None."""

    kind: Kind
    key: str
    start: int | None
    stop: int | None
    why: str


class Stats:
    """Counters of the calls made to the object store, of the bytes they moved, and of the calls that were saved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin to count from zero."""
        with self._lock:
            self._calls = dict.fromkeys(KINDS, 0)
            self.bytes_read = self.bytes_written = 0
            self.saved_by_coalescing = self.saved_by_index_cache = 0

    def count(self, kind: Kind, *, calls: int = 1, nbytes_read: int = 0, nbytes_written: int = 0) -> None:
        """Add calls, and the bytes that they moved."""
        with self._lock:
            self._calls[kind] += calls
            self.bytes_read += nbytes_read
            self.bytes_written += nbytes_written

    def count_saved(self, *, by_coalescing: int = 0, by_index_cache: int = 0) -> None:
        """Add calls that were not made."""
        with self._lock:
            self.saved_by_coalescing += by_coalescing
            self.saved_by_index_cache += by_index_cache

    @property
    def calls(self) -> dict[Kind, int]:
        """The number of calls of each kind."""
        with self._lock:
            return dict(self._calls)

    def __getattr__(self, name: str) -> int:
        if name in KINDS:
            return self.calls[name]
        raise AttributeError(name)

    def __repr__(self) -> str:
        calls = ", ".join(f"{kind}={count}" for kind, count in self.calls.items())
        return (
            f"Stats({calls}, bytes_read={self.bytes_read}, bytes_written={self.bytes_written}, "
            f"saved_by_coalescing={self.saved_by_coalescing}, saved_by_index_cache={self.saved_by_index_cache})"
        )
