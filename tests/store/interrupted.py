"""Stores that another client interrupts before a chosen request."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import Place

PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHAPE = (16, 16)
# The parts and chunks of arrays that are one chunk or shard.
ONE_IN_PARTS: dict[str, Any] = {"no parts": None, "two parts": ["", ps.Part(".tail", size=4)]}
ONE_CHUNK: dict[str, dict[str, Any]] = {"plain": {"chunks": (32,)}, "sharded": {"chunks": (8,), "shards": (32,)}}


@dataclass(slots=True)
class Watched:
    """A backend whose `before` is called with each request before the request is made."""

    backend: Any

    def before(self, request: Any) -> None:
        """Do something before a request."""

    @property
    def capabilities(self) -> Any:
        return self.backend.capabilities

    @property
    def has_latency(self) -> Any:
        return self.backend.has_latency

    def require_writable(self) -> None:
        self.backend.require_writable()

    def lock(self, lock: Any) -> Any:
        return self.backend.lock(lock)

    def keep_lock(self, key: str) -> Any:
        return self.backend.keep_lock(key)

    async def perform(self, request: Any) -> Any:
        self.before(request)
        return await self.backend.perform(request)

    def perform_sync(self, request: Any) -> Any:
        self.before(request)
        return self.backend.perform_sync(request)


@dataclass(slots=True)
class Interrupted(Watched):
    """A backend that calls a function just before its `at`-th request, and counts its requests."""

    at: int
    act: Callable[[], None]
    made: int = 0

    def before(self, request: Any) -> None:
        self.made += 1
        if self.made == self.at + 1:
            self.act()

    async def perform(self, request: Any) -> Any:
        return self.perform_sync(request)


class Overtaken(ps.PartsStore):
    """A store in which another client acts between the read of a chunk and the write that depends on it."""

    # What the other client does before the next writes, one after the other.
    acts: Iterator[Callable[[], None]] = iter(())

    def overtake(self) -> None:
        """Let the other client act, in a thread, so that it has not the context of this call."""
        thread = threading.Thread(target=next(self.acts, lambda: None))
        thread.start()
        thread.join()

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(self.overtake)
        await super().set(key, value)

    def set_sync(self, key: str, value: Any) -> None:
        self.overtake()
        super().set_sync(key, value)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self.overtake)
        await super().delete(key)

    def delete_sync(self, key: str) -> None:
        self.overtake()
        super().delete_sync(key)


def backend_of(objects: Any) -> Place:
    return LocalBackend(objects) if isinstance(objects, LocalStore) else ObjectBackend(objects)


def values(seed: int, *, holes: bool) -> NDArray[Any]:
    drawn = np.random.default_rng(seed).integers(1, 2**16, SHAPE).astype("uint16")
    if holes:
        # Two of the four inner chunks are fill values, which ones depends on the seed.
        drawn[:, (seed % 2) * 8 : (seed % 2) * 8 + 8] = 0
    return drawn


def create(store: Any, *, compressed: bool, **options: Any) -> zarr.Array[Any]:
    arguments: dict[str, Any] = {"shape": SHAPE, "chunks": (8, 8), "shards": SHAPE, "dtype": "uint16", **options}
    compressors = [zarr.codecs.ZstdCodec()] if compressed else None
    if isinstance(store, ps.PartsStore):
        return ps.create_array(store, "a", parts=PARTS, compressors=compressors, **arguments)
    return zarr.create_array(store, compressors=compressors, **arguments)


def encode(drawn: NDArray[Any], *, compressed: bool) -> cpu.Buffer:
    """Return the shard that zarr makes of the values, with a plain store."""
    objects: dict[str, Any] = {}
    create(objects, compressed=compressed)[...] = drawn
    shard: cpu.Buffer = objects["c/0/0"]
    return shard


def create_one(store: ps.PartsStore, parts: str, **arguments: Any) -> Any:
    """Create an array of one chunk or shard, over any other array."""
    chosen: dict[str, Any] = {"shape": (32,), "dtype": "i4", "compressors": None, "fill_value": 0} | arguments
    if ONE_IN_PARTS[parts] is None:
        return zarr.create_array(store, name="a", overwrite=True, **chosen)
    return ps.create_array(store, "a", parts=ONE_IN_PARTS[parts], overwrite=True, **chosen)


def scene(objects: Any, first: NDArray[Any], *, compressed: bool) -> Any:
    """Create an array in parts with these values, and return its objects."""
    create(ps.PartsStore(objects), compressed=compressed)[...] = first
    return objects


def reader(objects: Any, at: int, act: Callable[[], None]) -> tuple[zarr.Array[Any], Interrupted]:
    """Open an array whose reads are interrupted before the `at`-th request."""
    array = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    backend = Interrupted(backend_of(objects), at, act)
    array.store._backend = backend  # type: ignore[attr-defined]
    return array, backend


def overwriting(objects: Any, shard: cpu.Buffer) -> Callable[[], None]:
    """Return a function that writes the whole shard with another store, without zarr's event loop."""
    return lambda: ps.PartsStore(objects).set_sync("a/c/0/0", shard)


LEVELS = ["exclusive", "writers", "full"]
SELECTIONS: dict[str, Any] = {
    "whole": np.s_[:, :],
    "corner": np.s_[2:7, 2:7],
    "across": np.s_[5:12, 5:12],
    "end": np.s_[15, 15],
}
