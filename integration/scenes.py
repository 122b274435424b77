"""A chunk somewhere, what is done with it, and what must be true of it afterwards.

Knows how a store is given a backend that breaks, and how to tell the old value from the new one. Which of them it is
where, is the tests' to say.
"""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import obstore
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from integration.breaking import Breaking, ContentEtags, Crash, How, keys_of, read_plainly, remove_plainly, repair
from parts_store import Part, PartsStore
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Get, Head, List, Lock, Put
from parts_store.store.catalog import Catalog, CatalogEntry
from parts_store.store.options import Concurrency

PROTOTYPE = default_buffer_prototype()
LAYOUTS: dict[str, dict[str, int | None]] = {"three": {".h": 4, "": None, ".i": 6}, "one": {"": None}}

OLD = b"H-old" + b"o" * 30 + b"I-old-"
INTERRUPTED = b"H-int" + b"i" * 10 + b"I-int-"
NEW = b"H-new" + b"n" * 50 + b"I-new-"
NEXT = b"H-nxt" + b"x" * 20 + b"I-nxt-"

type Value = bytes | None
type Order = Literal["repair first", "write first"]


@dataclass(frozen=True)
class Scene:
    """A chunk of an array of its own, somewhere."""

    objects: Any
    has_digests: bool
    level: Concurrency
    layout: str
    array: str

    @property
    def key(self) -> str:
        return f"{self.array}/c/0"

    @property
    def suffixes(self) -> list[str]:
        return list(LAYOUTS[self.layout])

    def fresh(self) -> PartsStore:
        """A store that knows nothing, as of a process that has just begun."""
        store = PartsStore(self.objects, concurrency=self.level)
        # But for the array: to read the document each time would take longer than everything else.
        store._operations.catalog = Catalog(store.protocol, {self.array: record_of(self.layout)})
        if self.has_digests:
            self.replace_backend(store, ContentEtags(store._backend))
            rules = replace(store.protocol.rules, has_unique_etags=False)
            store._operations.reader.protocol = replace(store.protocol, rules=rules)
        return store

    def breaking(self, breaking: Breaking) -> PartsStore:
        """A store whose backend breaks."""
        store = self.fresh()
        breaking.inner = store._backend
        self.replace_backend(store, breaking)
        return store

    @staticmethod
    def replace_backend(store: PartsStore, backend: Any) -> None:
        store._backend = backend

    def create(self) -> None:
        obstore.put(self.objects, f"{self.array}/zarr.json", document_of(self.layout))

    def write(self, value: bytes) -> None:
        self.fresh().set_sync(self.key, PROTOTYPE.buffer.from_bytes(value))

    def expected_keys(self, value: Value) -> set[str]:
        parts = set() if value is None else {self.key + suffix for suffix in self.suffixes}
        return {f"{self.array}/zarr.json"} | parts

    def crash(self, value: bytes, at: int | Callable[[Any], bool], how: How) -> bool:
        """Write a value, and crash on the way; whether it did."""
        store = self.breaking(Breaking(None, at, how))
        return not ends(store.set(self.key, PROTOTYPE.buffer.from_bytes(value)))

    def remove(self) -> None:
        """All of it, so that the next one has a place of its own, and listings are short."""
        remove_plainly(self.objects, sorted(keys_of(self.objects, self.array)))

    def is_commit(self, request: Any) -> bool:
        """Whether from this request on, the chunk is the new one."""
        is_journal = isinstance(request, Put) and request.key.endswith(".journal")
        is_anchor = isinstance(request, Put) and request.key == self.key
        return is_journal or (is_anchor and not isinstance(self.objects, LocalStore))


@lru_cache
def document_of(layout: str) -> bytes:
    """Return the stored document of an array of this layout."""
    parts = [Part(suffix, size=size) for suffix, size in LAYOUTS[layout].items()]
    objects = MemoryStore()
    arguments: dict[str, Any] = {"shape": (100,), "chunks": (10,), "dtype": "uint8", "compressors": None}
    ps.create_array(PartsStore(objects), "a", parts=parts, **arguments)
    return bytes(obstore.get(objects, "a/zarr.json").bytes())


@lru_cache
def record_of(layout: str) -> CatalogEntry:
    """Return what a store knows about an array of this layout."""
    objects = MemoryStore()
    obstore.put(objects, "a/zarr.json", document_of(layout))
    store = PartsStore(objects)
    store.parts_of("a")
    return store.catalog.arrays()["a"]


def ends(operation: Awaitable[None]) -> bool:
    """Return whether an operation ends without a crash."""

    async def run() -> None:
        await operation

    try:
        sync(run())
    except Crash:
        return False
    return True


# --- what is done -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """What is there before, what is done, and what may be there if it is not done to the end, and if it is."""

    prepare: Callable[[Scene], None]
    act: Callable[[PartsStore, str], Awaitable[None]]
    before: Value
    after: Value
    # Whether what it sends can be told from what was sent later.
    has_conditions: bool = True


def nothing(_: Scene) -> None: ...


def old(scene: Scene) -> None:
    scene.write(OLD)


def orphans(scene: Scene) -> None:
    scene.write(OLD)
    remove_plainly(scene.objects, [scene.key])


def interrupted(scene: Scene) -> None:
    """Let a writer commit and end before it has finished."""
    scene.write(OLD)
    if len(scene.suffixes) > 1:
        assert scene.crash(INTERRUPTED, scene.is_commit, How.IT_ARRIVES)
    else:
        scene.write(INTERRUPTED)


async def put(store: PartsStore, key: str) -> None:
    await store.set(key, PROTOTYPE.buffer.from_bytes(NEW))


async def put_if_absent(store: PartsStore, key: str) -> None:
    await store.set_if_not_exists(key, PROTOTYPE.buffer.from_bytes(NEW))


async def delete(store: PartsStore, key: str) -> None:
    await store.delete(key)


async def modify(store: PartsStore, key: str) -> None:
    """As zarr does it: read whole, and written by the same key."""
    await store.get(key, PROTOTYPE)
    await store.set(key, PROTOTYPE.buffer.from_bytes(NEW))


async def modify_away(store: PartsStore, key: str) -> None:
    await store.get(key, PROTOTYPE)
    await store.delete(key)


OPERATIONS = {
    "create": Operation(nothing, put, None, NEW),
    "create over orphans": Operation(orphans, put, None, NEW),
    "overwrite": Operation(old, put, OLD, NEW),
    "overwrite what is interrupted": Operation(interrupted, put, INTERRUPTED, NEW),
    "set if absent": Operation(nothing, put_if_absent, None, NEW),
    "set if absent over orphans": Operation(orphans, put_if_absent, None, NEW),
    "set if absent, and it is not": Operation(old, put_if_absent, OLD, OLD),
    "delete": Operation(old, delete, OLD, None, has_conditions=False),
    "delete what is interrupted": Operation(interrupted, delete, INTERRUPTED, None, has_conditions=False),
    "modify": Operation(old, modify, OLD, NEW),
    "modify what is interrupted": Operation(interrupted, modify, INTERRUPTED, NEW),
    "modify nothing": Operation(nothing, modify, None, NEW),
    "modify away": Operation(old, modify_away, OLD, None, has_conditions=False),
}


def changes(request: BackendRequest | Lock) -> bool:
    """Return whether a request would change something."""
    return not isinstance(request, Get | Head | List)


# --- what is checked --------------------------------------------------------------------------------------------------


def read_every_way(scene: Scene) -> Value:
    """Read with a new store, and check that ranges, size and existence agree."""
    store = scene.fresh()
    found = store.get_sync(scene.key)
    whole = None if found is None else found.to_bytes()
    ranges: list[ByteRequest | None] = [RangeByteRequest(2, 9), OffsetByteRequest(3), SuffixByteRequest(8)]
    if whole is None:
        assert store.get_sync(scene.key, byte_range=ranges[0]) is None
    else:
        values = store.get_ranges_sync(scene.key, ranges, prototype=PROTOTYPE)
        in_order = sorted(values, key=lambda each: each[0])
        expected = [whole[2:9], whole[3:], whole[-8:]]
        assert [None if value is None else value.to_bytes() for _, value in in_order] == expected
        assert store.carry_out(store._operations.getsize(scene.key)) == len(whole)
    assert store.carry_out(store._operations.exists(scene.key)) == (whole is not None)
    return whole


def check_repair(scene: Scene, value: Value) -> None:
    """Check that a repair leaves the chunk and no objects beside it, and that all readers read it."""
    report = repair(scene.fresh(), scene.array)
    assert report.is_clean, report
    assert read_every_way(scene) == value
    left = keys_of(scene.objects, scene.array)
    assert left == scene.expected_keys(value), left
    assert read_plainly(scene.objects, scene.key, scene.suffixes) == value
    assert scene.fresh().verify(scene.array).findings == ()


def check(scene: Scene, allowed: tuple[Value, ...], order: Order) -> None:
    """Check that the chunk has an allowed value, can be repaired, and can be written before and after that."""
    value = read_every_way(scene)
    assert value in allowed, value
    if order == "write first":
        scene.write(NEXT)
    check_repair(scene, NEXT if order == "write first" else value)
    if order == "repair first":
        scene.write(NEXT)
        assert read_plainly(scene.objects, scene.key, scene.suffixes) == NEXT


class Stage:
    """Makes scenes, at one place and level."""

    def __init__(self, objects: Any, place: str, level: Concurrency) -> None:
        self.objects, self.place, self.level = objects, place, level
        self._numbers = itertools.count()

    @property
    def is_slow(self) -> bool:
        """Whether every request takes its time, as on a real server: then what memory can tell is left to it."""
        return self.place == "minio"

    def scene(self, operation: Operation, layout: str = "three") -> Scene:
        has_digests = self.place == "memory with digests"
        scene = Scene(self.objects, has_digests, self.level, layout, f"a{next(self._numbers)}")
        scene.create()
        operation.prepare(scene)
        return scene

    def requests(self, operation: Operation, layout: str = "three") -> list[BackendRequest | Lock]:
        """The requests that an operation makes when it comes to its end."""
        scene, breaking = self.scene(operation, layout), Breaking(None)
        assert ends(operation.act(scene.breaking(breaking), scene.key))
        check(scene, (operation.after,), "repair first")
        scene.remove()
        return breaking.seen
