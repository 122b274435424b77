"""The indexes of shards that were read before, in memory, the least recently used of them forgotten first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from parts_store.transactions.shards import VersionedIndex


@dataclass(slots=True)
class IndexCache:
    """Indexes by the key of their chunk, of up to `max_nbytes` bytes together."""

    max_nbytes: int
    # Whether what an index says of its chunk is to be trusted just now.
    is_usable: Callable[[], bool] = lambda: True
    nbytes: int = 0
    _pins: OrderedDict[str, VersionedIndex] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, chunk_key: str) -> VersionedIndex | None:
        """The index of a chunk, if it is known."""
        if not self.is_usable():
            return None
        with self._lock:
            versioned = self._pins.get(chunk_key)
            if versioned is not None:
                self._pins.move_to_end(chunk_key)
            return versioned

    def keep(self, chunk_key: str, versioned: VersionedIndex) -> None:
        """Remember an index, if it is not larger than all of them may be."""
        with self._lock:
            self._drop(chunk_key)
            if len(versioned.index) > self.max_nbytes or not self.is_usable():
                return
            self._pins[chunk_key] = versioned
            self.nbytes += len(versioned.index)
            while self.nbytes > self.max_nbytes:
                self._drop(next(iter(self._pins)))

    def copy(self) -> "IndexCache":
        """Another one that holds the same, and can forget it."""
        with self._lock:
            return IndexCache(self.max_nbytes, self.is_usable, self.nbytes, self._pins.copy())

    def forget(self, chunk_key: str) -> None:
        """Forget the index of a chunk."""
        with self._lock:
            self._drop(chunk_key)

    def _drop(self, chunk_key: str) -> None:
        versioned = self._pins.pop(chunk_key, None)
        if versioned is not None:
            self.nbytes -= len(versioned.index)
