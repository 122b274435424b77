"""IndexCache: shard indexes kept in memory. The least recently used index is removed first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from parts_store.transactions.shards import VersionedIndex


@dataclass(slots=True)
class IndexCache:
    """A cache of shard indexes by the key of their chunk, of at most `max_nbytes` bytes in total."""

    max_nbytes: int
    # Whether the backend can currently tell whether a chunk has changed.
    is_usable: Callable[[], bool] = lambda: True
    nbytes: int = 0
    _indexes: OrderedDict[str, VersionedIndex] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, chunk_key: str) -> VersionedIndex | None:
        """Return the index of a chunk, None if it is not in the cache."""
        if not self.is_usable():
            return None
        with self._lock:
            versioned = self._indexes.get(chunk_key)
            if versioned is not None:
                self._indexes.move_to_end(chunk_key)
            return versioned

    def keep(self, chunk_key: str, versioned: VersionedIndex) -> None:
        """Add an index, unless it is larger than the whole cache may be."""
        with self._lock:
            self._drop(chunk_key)
            if len(versioned.index) > self.max_nbytes or not self.is_usable():
                return
            self._indexes[chunk_key] = versioned
            self.nbytes += len(versioned.index)
            while self.nbytes > self.max_nbytes:
                self._drop(next(iter(self._indexes)))

    def copy(self) -> "IndexCache":
        """Return an independent cache with the same indexes."""
        with self._lock:
            return IndexCache(self.max_nbytes, self.is_usable, self.nbytes, self._indexes.copy())

    def forget(self, chunk_key: str) -> None:
        """Remove the index of a chunk."""
        with self._lock:
            self._drop(chunk_key)

    def _drop(self, chunk_key: str) -> None:
        versioned = self._indexes.pop(chunk_key, None)
        if versioned is not None:
            self.nbytes -= len(versioned.index)
