"""Explain a read: a backend that makes the requests for metadata and only records the requests for data."""

from collections.abc import Callable
from dataclasses import dataclass, field

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.engine.backend import Backend, BackendRequest, Capabilities
from parts_store.engine.stats import Request, Requests
from parts_store.engine.steps import DATA, INDEX, Delete, Get, Head, List, Lock, Missing, Move, Outcome, Put, Refer
from parts_store.format.ranges import Wanted
from parts_store.format.shard_index import ShardIndex


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
    def capabilities(self) -> Capabilities:
        """The capabilities of the real backend."""
        return self.backend.capabilities

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
