"""The indexes of shards that were read before, in memory, the least recently used of them forgotten first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from parts_store.plan.shards import Pin


@dataclass(slots=True)
class IndexCache:
    """Indexes by the key of their chunk, of up to `max_nbytes` bytes together."""

    max_nbytes: int
    # Whether what a pin says of its chunk is to be trusted just now.
    is_usable: Callable[[], bool] = lambda: True
    nbytes: int = 0
    _pins: OrderedDict[str, Pin] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, chunk_key: str) -> Pin | None:
        """The index of a chunk, if it is known."""
        if not self.is_usable():
            return None
        with self._lock:
            pin = self._pins.get(chunk_key)
            if pin is not None:
                self._pins.move_to_end(chunk_key)
            return pin

    def keep(self, chunk_key: str, pin: Pin) -> None:
        """Remember an index, if it is not larger than all of them may be."""
        with self._lock:
            self._drop(chunk_key)
            if len(pin.index) > self.max_nbytes or not self.is_usable():
                return
            self._pins[chunk_key] = pin
            self.nbytes += len(pin.index)
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
        pin = self._pins.pop(chunk_key, None)
        if pin is not None:
            self.nbytes -= len(pin.index)
