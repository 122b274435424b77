"""A chunk on S3 or in memory, the calls that use it, and the table of what they cost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import obstore
from obstore.store import MemoryStore, S3Store
from zarr.abc.store import ByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from integration.proxy import CountingProxy
from integration.request_counts.counting import LAYOUTS, counted, create_chunk
from integration.writers import buffer
from parts_store import PartsStore
from parts_store.store.options import Concurrency
from parts_store.transactions.tagged import TaggedProtocol

type Costs = dict[str, int]
LEVELS: tuple[Concurrency, ...] = ("exclusive", "writers", "full")
KEY = "a/c/0/0"
NBYTES = 64 * 64
OLD, NEW = bytes(NBYTES), b"\x01" * NBYTES


@dataclass(frozen=True, slots=True)
class Place:
    """Objects of which every request is counted: by the proxy where there is one, and always by the store."""

    objects: Any
    # The same, not counted on the wire.
    uncounted: Any
    proxy: CountingProxy | None

    @property
    def has_unique_etags(self) -> bool:
        return self.proxy is None

    def column(self, level: Concurrency) -> str:
        """The column of the table."""
        if level == "exclusive":
            return level
        return f"{level}, {'unique' if self.has_unique_etags else 'content'}"

    def below(self, name: str) -> "Place":
        """A place of its own, as empty as this one was."""
        if self.proxy is None:
            memory = MemoryStore()
            return Place(memory, memory, None)
        objects, uncounted = (S3Store(prefix=name, **_options_of(each)) for each in (self.objects, self.uncounted))
        return Place(objects, uncounted, self.proxy)

    def cost(self, store: PartsStore, act: Callable[[], object]) -> Costs:
        """The requests of each kind that an act takes."""
        if not store.read_only:
            # The first write through a store asks the server what it supports: that is counted in `test_server_check`.
            store.check()
        if self.proxy is not None:
            with counted(self.proxy, store):
                act()
        else:
            store.stats.reset()
            act()
        return {kind: count for kind, count in store.stats.calls.items() if count}


def _options_of(store: S3Store) -> dict[str, Any]:
    return {**store.config, "client_options": store.client_options}


@dataclass(frozen=True, slots=True)
class Caller:
    """What zarr does with a store: in the event loop, or without one."""

    store: PartsStore
    is_async: bool

    def get(self, wanted: ByteRequest | None = None) -> bytes | None:
        prototype = default_buffer_prototype()
        if self.is_async:
            found = sync(self.store.get(KEY, prototype, wanted))
        else:
            found = self.store.get_sync(KEY, prototype=prototype, byte_range=wanted)
        return None if found is None else found.to_bytes()

    def set(self, value: bytes) -> None:
        if self.is_async:
            sync(self.store.set(KEY, buffer(value)))
        else:
            self.store.set_sync(KEY, buffer(value))

    def forget(self) -> "Caller":
        """Let the store be as one that has neither read nor written a chunk."""
        assert isinstance(self.store.protocol, TaggedProtocol)
        self.store.protocol.existing.clear()
        return self

    def set_if_absent(self, value: bytes) -> None:
        sync(self.store.set_if_not_exists(KEY, buffer(value)))

    def change(self, value: bytes) -> None:
        """Read the chunk, then write it, like a partial write."""
        if self.is_async:
            sync(self._change(value))
        else:
            self.get()
            self.set(value)

    async def _change(self, value: bytes) -> None:
        await self.store.get(KEY, default_buffer_prototype())
        await self.store.set(KEY, buffer(value))

    def change_to_nothing(self) -> None:
        """Read the chunk, then delete it, like a write of the fill value."""
        if self.is_async:
            sync(self._change_to_nothing())
        else:
            self.get()
            self.delete()

    async def _change_to_nothing(self) -> None:
        await self.store.get(KEY, default_buffer_prototype())
        await self.store.delete(KEY)

    def delete(self) -> None:
        if self.is_async:
            sync(self.store.delete(KEY))
        else:
            self.store.delete_sync(KEY)

    def exists(self) -> None:
        sync(self.store.exists(KEY))


def caller(place: Place, level: Concurrency, k: int, *, is_async: bool) -> Caller:
    store = PartsStore(place.objects, concurrency=level)
    create_chunk(store, LAYOUTS[k])
    return Caller(store, is_async)


def stored_parts(place: Place) -> set[str]:
    return {entry["path"] for batch in obstore.list(place.objects) for entry in batch} - {"zarr.json", "a/zarr.json"}


# Each with whether the chunk is there before.
ACTS: dict[str, tuple[bool, Callable[[Caller], object]]] = {
    "create": (False, lambda caller: caller.set(NEW)),
    "overwrite": (True, lambda caller: caller.set(NEW)),
    "overwrite by a client that has neither read nor written it": (True, lambda caller: caller.forget().set(NEW)),
    "change": (True, lambda caller: caller.change(NEW)),
    "change of nothing": (False, lambda caller: caller.change(NEW)),
    "create if absent": (False, lambda caller: caller.set_if_absent(NEW)),
    "create if absent, and it is not": (True, lambda caller: caller.set_if_absent(NEW)),
    "read": (True, lambda caller: caller.get()),
    "read of nothing": (False, lambda caller: caller.get()),
    "delete": (True, lambda caller: caller.delete()),
    "change to nothing": (True, lambda caller: caller.change_to_nothing()),
    "exists": (True, lambda caller: caller.exists()),
    "exists not": (False, lambda caller: caller.exists()),
}
COLUMNS = ("exclusive", "writers, unique", "writers, content", "full, unique", "full, content")


def table(k: int, *, embeds: bool) -> dict[str, tuple[Costs, ...]]:
    """Return the costs of each act, in the order of the columns; for small parts, which the anchor contains, or not."""
    return _unchanging(k) | (_embedded(k) if embeds else _staged(k))


def _embedded(k: int) -> dict[str, tuple[Costs, ...]]:
    """Return the costs of writes of small parts."""
    bare = {"put": k}
    # A look at each part before. Where ETags come back, also a look at the anchor after, or at all parts if the chunk
    # was written over before.
    looked = {"put": k, "head": k}
    checked, checked_all = {"put": k, "head": k + 1}, {"put": k, "head": 2 * k}
    # What is there is found by k - 1 refusals.
    refused = k - 1
    known = {"get": k, "put": k}
    return {
        "create": (bare, bare, bare, looked, checked),
        "overwrite": (bare, looked, checked, looked, checked_all),
        "overwrite by a client that has neither read nor written it": (
            {"put": k + refused},
            {**looked, "put": k + refused},
            {**checked, "put": k + refused},
            looked,
            checked_all,
        ),
        # A writer that has read all parts checks only the anchor before, and only if its ETag may recur.
        "change": (known, known, {**known, "head": 1 + 1}, known, {**known, "head": 1 + k}),
        # The anchor of nothing is known, its orphans are not.
        "change of nothing": (*[known] * 3, {**known, "head": k}, {**known, "head": k + 1}),
        "create if absent": (bare, bare, bare, looked, checked),
    }


def _staged(k: int) -> dict[str, tuple[Costs, ...]]:
    """Return the costs of writes of large parts."""
    bare = {"put": k}
    # The staged copy and k parts, and a look at each part before. Where ETags come back, also a look at the other
    # writers.
    staged = {"put": k + 1, "head": k, "delete": 1}
    looked = {**staged, "list": 1}
    # What is there is found by k - 1 refusals.
    refused = k - 1
    # A writer that has read all parts checks only the anchor, and only if its ETag may recur.
    known = {"get": k, "put": k + 1, "delete": 1}
    known_by_content = {**known, "head": 1, "list": 1}
    # The anchor of nothing is known, its orphans are not.
    new = {"get": k, "put": k + 1, "head": 1 + (k - 1), "delete": 1}
    return {
        "create": (bare, bare, bare, staged, looked),
        "overwrite": ({"put": k + 1, "delete": 1}, staged, looked, staged, looked),
        "overwrite by a client that has neither read nor written it": (
            {"put": k + 1 + refused, "delete": 1},
            {**staged, "put": k + 1 + refused},
            {**looked, "put": k + 1 + refused},
            staged,
            looked,
        ),
        "change": (known, known, known_by_content, known, known_by_content),
        "change of nothing": (
            *[{"get": k, "put": k}] * 3,
            new,
            {**new, "list": 1},
        ),
        "create if absent": (bare, bare, bare, staged, looked),
    }


def _unchanging(k: int) -> dict[str, tuple[Costs, ...]]:
    """Return the costs that do not depend on the sizes of the parts."""
    refused = k - 1
    return {
        "create if absent, and it is not": (*[{"put": refused, "head": 1}] * 3, *[{"head": 1}] * 2),
        "read": ({"get": k},) * 5,
        "read of nothing": ({"get": k},) * 5,
        "delete": ({"delete": 2}, *[{"delete": 1}] * 2, *[{"delete": 2, "head": 1}] * 2),
        # There is no conditional delete: whether the chunk is what was read is asked for before.
        "change to nothing": (
            {"get": k, "delete": 2, "head": 1},
            *[{"get": k, "delete": 1, "head": 1}] * 2,
            *[{"get": k, "delete": 2, "head": 2}] * 2,
        ),
        "exists": ({"head": 1},) * 5,
        "exists not": ({"head": 1},) * 5,
    }
