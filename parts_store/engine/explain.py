"""What a read would do: a backend that makes the requests for metadata, and only notes those for data."""

from collections.abc import Callable
from dataclasses import dataclass, field

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.engine.backend import Backend, BackendRequest, Capabilities
from parts_store.engine.stats import Request
from parts_store.engine.steps import DATA, INDEX, Delete, Get, Head, List, Lock, Missing, Move, Outcome, Put, Refer
from parts_store.format.ranges import Wanted
from parts_store.format.shard_index import ShardIndex


@dataclass(slots=True)
class DryBackend:
    """Notes every request, carries out those for documents and indexes, and says of data that it is missing."""

    backend: Backend
    requests: list[Request] = field(default_factory=list)
    # How zarr asks for the index of a shard, which tells it what to ask for next.
    index_request: Wanted = None

    def __str__(self) -> str:
        return str(self.backend)

    @property
    def capabilities(self) -> Capabilities:
        """What the real backend can do."""
        return self.backend.capabilities

    def expect_index(self, index: ShardIndex | None) -> None:
        """Begin anew, with an array whose shards have this index."""
        self.requests.clear()
        self.index_request = None if index is None else index.request

    async def perform(self, request: BackendRequest) -> Outcome:
        """Note a request, and carry it out unless it is for data."""
        return Missing() if self._is_data(request) else await self.backend.perform(request)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """The same, without an event loop."""
        return Missing() if self._is_data(request) else self.backend.perform_sync(request)

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """A read takes no lock."""
        raise TypeError(f"a read that writes: {lock}")

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
                raise TypeError(f"a read that writes: {request}")


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
