"""The requests that a store has made (`store.stats`), and those that a read would make (`store.explain`)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store import notebook
from parts_store.engine.backend import Backend, BackendRequest
from parts_store.engine.steps import DATA, INDEX, Delete, Get, Head, List, Lock, Missing, Move, Outcome, Put, Refer
from parts_store.format.keys import is_protocol_key
from parts_store.format.layout import Wanted
from parts_store.format.shard_index import ShardIndex
from parts_store.text import count, printable, size

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

    @property
    def span(self) -> str:
        """The requested bytes as text, as in a slice; empty for the whole object."""
        if self.start is None:
            return ""
        return f"[{self.start}:{'' if self.stop is None else self.stop}]"

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.kind.upper():4}", self.key, self.span, f"({self.why})")))


class Requests(list[Request]):
    """The requests that a read makes: a list that shows itself as a table and, in a notebook, as a drawing, too.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(store, "a", shape=(4,), chunks=(4,), dtype="uint8", parts=["", ps.Part(".b", size=1)])
    >>> print(store.explain("a", np.s_[:]))
    GET  a/c/0 (data)
    GET  a/c/0.b (data)
    2 requests
    """

    def __str__(self) -> str:
        return "\n".join([*map(printable, self.lines()), count(len(self), "request")])

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the kind, the key, the bytes and the reason of each request.

        The requests for journals of a local disk, of which every read makes several, are the last row together.
        """
        rows = [(each.kind.upper(), each.key, each.span, each.why) for each in self if not is_protocol_key(each.key)]
        journals = [each for each in self if is_protocol_key(each.key)]
        if len(journals) > 1:
            rows.append((journals[0].kind.upper(), f"{len(journals)} journals", "", journals[0].why))
        elif journals:
            rows.append((journals[0].kind.upper(), journals[0].key, "", journals[0].why))
        return rows

    def lines(self) -> list[str]:
        """Return the rows as text."""
        return [" ".join(filter(None, (f"{kind:4}", key, span, f"({why})"))) for kind, key, span, why in self.rows()]

    def _repr_html_(self) -> str:
        rows = self.rows()
        shown = notebook.grid(count(len(self), "request"), ("request", "key", "bytes", "why"), rows)
        return shown + notebook.drawing("the bytes that are read of each object", self._bars())

    def _bars(self) -> list[tuple[str, int, list[notebook.Bar]]]:
        """Return the byte ranges of each object, and the size of the object as far as the ranges tell it."""
        by_key: dict[str, list[Request]] = {}
        for each in self:
            if each.kind == "get" and not is_protocol_key(each.key):
                by_key.setdefault(each.key, []).append(each)
        rows = []
        for key, requests in by_key.items():
            nbytes = max(
                [1, *(each.stop for each in requests if each.stop), *(-(each.start or 0) for each in requests)]
            )
            rows.append((key, nbytes, [_bar(each, nbytes) for each in requests]))
        return rows


def _bar(request: Request, nbytes: int) -> notebook.Bar:
    """Return the requested bytes of an object of this size, for a drawing."""
    start = request.start or 0
    stop = nbytes if request.stop is None else request.stop
    return notebook.Bar(start + nbytes if start < 0 else start, stop, request.why)


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

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {kind: f"{number:,}" for kind, number in self.calls.items() if number}
        rows |= {"read": size(self.bytes_read), "written": size(self.bytes_written)}
        rows["saved by merging ranges"] = f"{self.saved_by_coalescing:,} requests"
        rows["saved by cached indexes"] = f"{self.saved_by_index_cache:,} requests"
        return notebook.table("Stats", rows)


@dataclass(slots=True)
class DryBackend:
    """A backend that records every request, carries out those for documents and indexes, and finds no data."""

    backend: Backend
    requests: Requests = field(default_factory=Requests)
    # The request by which zarr reads the index of a shard, which decides what zarr requests next.
    index_request: Wanted = None

    def __str__(self) -> str:
        return str(self.backend)

    @property
    def has_latency(self) -> bool:
        """Whether requests of the real backend wait for a network."""
        return self.backend.has_latency

    def expect_index(self, index: ShardIndex | None) -> None:
        """Start again, for an array whose shards have this index."""
        self.requests.clear()
        self.index_request = None if index is None else index.request

    async def perform(self, request: BackendRequest) -> Outcome:
        """Record a request, and carry it out unless it is for data."""
        return Missing() if self._is_data(request) else await self.backend.perform(request)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Record a request, and carry it out without an event loop unless it is for data."""
        return Missing() if self._is_data(request) else self.backend.perform_sync(request)

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Raise: a read takes no lock."""
        raise TypeError(f"expected a read, found a lock: {lock}")

    def _is_data(self, request: BackendRequest) -> bool:
        match request:
            case Get(key, wanted, why):
                start, stop = _bounds(wanted)
                if wanted is not None and wanted == self.index_request:
                    why = INDEX
                self.requests.append(Request("get", key, start, stop, why))
                return why == DATA
            case Head(key, why):
                self.requests.append(Request("head", key, None, None, why))
                return why == DATA
            case Put() | Refer() | Delete() | List() | Move():
                raise TypeError(f"expected a read, found a write: {request}")


def _bounds(wanted: Wanted) -> tuple[int | None, int | None]:
    match wanted:
        case None:
            return None, None
        case RangeByteRequest(start=start, end=end):
            return start, end
        case OffsetByteRequest(offset=offset):
            return offset, None
        case SuffixByteRequest(suffix=suffix):
            return -suffix, None
