"""Counters of requests and bytes (`store.stats`), and requests as `store.explain` returns them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

type Kind = Literal["get", "put", "head", "list", "delete", "copy"]
type Progress = Callable[[int, int], None]
"""A callback for progress: called with the amount that is done, and the total amount."""
KINDS: tuple[Kind, ...] = ("get", "put", "head", "list", "delete", "copy")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a read makes, as `store.explain` returns it.

    Parameters
    ----------
    kind
        The kind of the request: `"get"` or `"head"`.
    key
        The key of the object.
    start, stop
        The requested bytes `start <= i < stop`; the whole object if both are None. A negative `start` counts from the
        end of the object.
    why
        What the request is for.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(store, "a", shape=(4,), chunks=(4,), dtype="uint8", parts=["", ps.Part(".b", size=1)])
    >>> [request.key for request in store.explain("a", np.s_[:])]
    ['a/c/0', 'a/c/0.b']
    """

    kind: Kind
    key: str
    start: int | None
    stop: int | None
    why: str


class Stats:
    """A set of counters: calls to the object store, transferred bytes, and calls that were saved.

    `stats.get`, `stats.put`, `stats.head`, `stats.list`, `stats.delete` and `stats.copy` are the numbers of calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set all counters to zero."""
        with self._lock:
            self._calls = dict.fromkeys(KINDS, 0)
            self.bytes_read = self.bytes_written = 0
            self.saved_by_coalescing = self.saved_by_index_cache = 0

    def count(self, kind: Kind, *, calls: int = 1, nbytes_read: int = 0, nbytes_written: int = 0) -> None:
        """Add calls, and the bytes that they transferred."""
        with self._lock:
            self._calls[kind] += calls
            self.bytes_read += nbytes_read
            self.bytes_written += nbytes_written

    def count_saved(self, *, by_coalescing: int = 0, by_index_cache: int = 0) -> None:
        """Add calls that were saved."""
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
