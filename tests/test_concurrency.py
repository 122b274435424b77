"""No read is a mixture of two writes, and no change is lost, whatever others do between any two requests."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import Backend
from parts_store.engine.steps import Lost, Put
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError
from tests.conftest import PIPELINES

PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHAPE = (16, 16)


@dataclass(slots=True)
class Interrupted:
    """A backend that lets somebody else act just before its `at`-th request, and counts its requests."""

    backend: Backend
    at: int
    act: Callable[[], None]
    made: int = 0

    @property
    def capabilities(self) -> Any:
        return self.backend.capabilities

    def lock(self, lock: Any) -> Any:
        return self.backend.lock(lock)

    def _step(self) -> None:
        self.made += 1
        if self.made == self.at + 1:
            self.act()

    async def perform(self, request: Any) -> Any:
        self._step()
        return self.backend.perform_sync(request)

    def perform_sync(self, request: Any) -> Any:
        self._step()
        return self.backend.perform_sync(request)


def backend_of(objects: Any) -> Backend:
    return LocalBackend(objects) if isinstance(objects, LocalStore) else ObjectBackend(objects)


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """A way to make an empty obstore store."""
    numbers = itertools.count()
    if request.param == "memory":
        return MemoryStore
    return lambda: LocalStore(tmp_path / str(next(numbers)), mkdir=True, automatic_cleanup=True)


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
    """The shard that zarr makes of the values, by way of a store that is not ours."""
    objects: dict[str, Any] = {}
    create(objects, compressed=compressed)[...] = drawn
    shard: cpu.Buffer = objects["c/0/0"]
    return shard


def scene(objects: Any, first: NDArray[Any], *, compressed: bool) -> Any:
    """The objects of an array in parts with these values."""
    create(ps.PartsStore(objects), compressed=compressed)[...] = first
    return objects


def reader(objects: Any, at: int, act: Callable[[], None]) -> tuple[zarr.Array[Any], Interrupted]:
    """An array that is interrupted before the `at`-th request that reading it makes."""
    array = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    backend = Interrupted(backend_of(objects), at, act)
    array.store._backend = backend  # type: ignore[attr-defined]
    return array, backend


def overwriting(objects: Any, shard: cpu.Buffer) -> Callable[[], None]:
    """Somebody else who writes the whole shard, with a store of his own and without zarr's event loop."""
    return lambda: ps.PartsStore(objects).set_sync("a/c/0/0", shard)


LEVELS = ["exclusive", "writers", "full"]
SELECTIONS: dict[str, Any] = {
    "whole": np.s_[:, :],
    "corner": np.s_[2:7, 2:7],
    "across": np.s_[5:12, 5:12],
    "end": np.s_[15, 15],
}


def outcomes(
    place: Callable[[], Any],
    selection: Any,
    act: Callable[[Any], Callable[[], None]],
    first: NDArray[Any],
    *,
    compressed: bool,
) -> Iterator[tuple[int, NDArray[Any] | Exception]]:
    """What a read gives if somebody acts before its first request, its second, and so on, until after its last."""
    for at in range(100):
        objects = scene(place(), first, compressed=compressed)
        array, backend = reader(objects, at, act(objects))
        try:
            yield at, np.asarray(array[selection])
        except (ConcurrentWriteError, IncompleteChunkError) as error:
            yield at, error
        if backend.made <= at:
            return
    pytest.fail("a read that does not end")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("compressed", [False, True], ids=["raw", "zstd"])
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_whole_write_between_any_two_requests_shows_before_or_after_and_only_with_holes_an_error(
    place: Callable[[], Any], selection: Any, pipeline: str, *, holes: bool, compressed: bool
) -> None:
    first, second = values(1, holes=holes), values(2, holes=holes)
    shard = encode(second, compressed=compressed)
    seen = set()
    for at, found in outcomes(
        place, selection, lambda objects: overwriting(objects, shard), first, compressed=compressed
    ):
        if isinstance(found, Exception):
            # What zarr has filled in nobody can put right; an index without holes is followed to the new data.
            assert holes, f"{found}, with the write before request {at}"
            assert isinstance(found, ConcurrentWriteError)
            continue
        is_old, is_new = np.array_equal(found, first[selection]), np.array_equal(found, second[selection])
        assert is_old or is_new, f"a mixture, with the write before request {at}"
        seen |= {"old"} if is_old else {"new"}
    assert {"old", "new"} <= seen


@pytest.mark.sampled(7)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_delete_between_any_two_requests_shows_the_chunk_or_none(
    place: Callable[[], Any], selection: Any, pipeline: str, concurrency: Any, *, holes: bool
) -> None:
    first = values(1, holes=holes)

    def deleting(objects: Any) -> Callable[[], None]:
        return lambda: ps.PartsStore(objects, concurrency=concurrency).delete_sync("a/c/0/0")

    for at, found in outcomes(place, selection, deleting, first, compressed=False):
        assert not isinstance(found, Exception), f"{found}, with the delete before request {at}"
        whole = np.array_equal(found, first[selection]) or not found.any()
        assert whole, f"half a chunk, with the delete before request {at}"


class KilledError(Exception):
    """What happens to a process at the worst moment."""


def die() -> None:
    raise KilledError


@pytest.mark.sampled(5)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
def test_a_writer_that_dies_after_any_request_leaves_the_old_chunk_or_the_new_one(
    place: Callable[[], Any], pipeline: str, concurrency: Any, *, holes: bool
) -> None:
    first, second, third = (values(seed, holes=holes) for seed in (1, 2, 3))
    seen = []
    for dead_after in itertools.count():
        objects = scene(place(), first, compressed=True)
        array = zarr.open_array(ps.PartsStore(objects, concurrency=concurrency), path="a")
        backend = Interrupted(backend_of(objects), dead_after, die)
        array.store._backend = backend  # type: ignore[attr-defined]
        with contextlib.suppress(KilledError):
            array[...] = second
        # By whoever reads, with a store of his own, or with one that has seen the old one.
        fresh = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
        whole = np.asarray(fresh[...])
        assert any(np.array_equal(whole, each) for each in (first, second))
        for selection in SELECTIONS.values():
            np.testing.assert_array_equal(fresh[selection], whole[selection])
        seen.append(np.array_equal(whole, second))
        # And the next write is there, as if nothing had happened.
        zarr.open_array(ps.PartsStore(objects, concurrency=concurrency), path="a")[...] = third
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], third)
        if backend.made <= dead_after:
            break
    # One moment from which on it is the new one.
    assert seen == sorted(seen)
    assert {seen[0], seen[-1]} == {False, True}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("concurrency", LEVELS)
def test_a_first_write_that_dies_after_any_request_leaves_no_chunk_or_the_new_one(
    place: Callable[[], Any], pipeline: str, concurrency: Any
) -> None:
    value = values(1, holes=False)
    seen = []
    for dead_after in itertools.count():
        objects = place()
        store = ps.PartsStore(objects, concurrency=concurrency)
        array = create(store, compressed=True)
        store._backend = backend = Interrupted(backend_of(objects), dead_after, die)  # type: ignore[assignment]
        with contextlib.suppress(KilledError):
            array[...] = value
        found = np.asarray(zarr.open_array(ps.PartsStore(objects), path="a", mode="r")[...])
        assert np.array_equal(found, value) or not found.any()
        seen.append(bool(found.any()))
        if backend.made <= dead_after:
            break
    assert seen == sorted(seen)
    assert {seen[0], seen[-1]} == {False, True}


def test_a_read_that_was_refused_succeeds_when_it_is_repeated(place: Callable[[], Any], pipeline: str) -> None:
    first, second = values(1, holes=True), values(2, holes=True)
    objects = scene(place(), first, compressed=True)
    refused = 0
    for at in itertools.count():
        # Each time the chunk is the other one of the two, whose holes are elsewhere.
        was, becomes = (first, second) if at % 2 == 0 else (second, first)
        overwriting(objects, encode(was, compressed=True))()
        array, backend = reader(objects, at, overwriting(objects, encode(becomes, compressed=True)))
        try:
            array[2:7, 2:15]
        except ConcurrentWriteError as error:
            refused += "read it again" in str(error)
            np.testing.assert_array_equal(array[2:7, 2:15], becomes[2:7, 2:15])
        if backend.made <= at:
            break
    assert refused


def test_a_chunk_that_never_comes_to_rest_is_a_concurrent_write_error() -> None:
    shards = [encode(values(seed, holes=False), compressed=True) for seed in range(2, 6)]
    objects = scene(MemoryStore(), values(1, holes=False), compressed=True)
    turns = itertools.cycle(shards)

    class Restless(Interrupted):
        __slots__ = ()

        def _step(self) -> None:
            overwriting(objects, next(turns))()

    array = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    array.store._backend = Restless(ObjectBackend(objects), 0, lambda: None)  # type: ignore[attr-defined]
    with pytest.raises(ConcurrentWriteError, match="it changed 7 times while it was read"):
        array[...]


def test_the_index_of_an_earlier_read_is_never_held_against_a_later_one(pipeline: str) -> None:
    # Holes, so that indexes are read and no data after them; threads of a pool, which keep what they have seen.
    store = ps.PartsStore(MemoryStore())
    array: Any = ps.create_array(
        store, "a", parts=PARTS, shape=(64, 16), chunks=(8, 8), shards=SHAPE, dtype="uint16", compressors=None
    )
    array[:, :8] = 1
    with zarr.config.set({"codec_pipeline.max_workers": 2}):
        for value in range(2, 12):
            assert not np.asarray(array[[3, 19, 35, 51], 8:]).any()
            array[:, :8] = value
            np.testing.assert_array_equal(array[:, :8], value)
            np.testing.assert_array_equal(array[[3, 19, 35, 51], 2], value)


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "of another size"])
def test_orphans_of_a_chunk_that_is_gone_are_not_read(pipeline: str, *, damaged: bool) -> None:
    objects = scene(MemoryStore(), values(1, holes=False), compressed=False)
    obstore.delete(objects, "a/c/0/0")
    if damaged:
        obstore.put(objects, "a/c/0/0.header", b"x")
        obstore.put(objects, "a/c/0/0.index", b"x")
    array = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    for selection in SELECTIONS.values():
        assert not np.asarray(array[selection]).any()
    # An inner chunk whose bytes are all in the header.
    assert ps.PartsStore(objects).get_sync("a/c/0/0", byte_range=RangeByteRequest(0, 10)) is None


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", range(3))
def test_an_answer_that_is_lost_is_asked_for(lost: str, at: int) -> None:
    objects = MemoryStore()
    first = values(1, holes=False)

    class Lossy(Interrupted):
        """Loses the answer to one PUT, or the PUT itself."""

        __slots__ = ()

        def perform_sync(self, request: Any) -> Any:
            if isinstance(request, Put) and request.tag is not None:
                self.made += 1
                if self.made == self.at + 1:
                    if lost == "after":
                        self.backend.perform_sync(request)
                    return Lost(OSError("connection reset"))
            return self.backend.perform_sync(request)

        async def perform(self, request: Any) -> Any:
            return self.perform_sync(request)

    store = ps.PartsStore(objects)
    array = create(store, compressed=True)
    store._backend = Lossy(ObjectBackend(objects), at, lambda: None)  # type: ignore[assignment]
    array[...] = first
    tags = {
        str(obstore.get(objects, f"a/c/0/0{suffix}").attributes["partsgen"]) for suffix in ("", ".header", ".index")
    }
    assert len(tags) == 1
    assert ";c;" in tags.pop()
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], first)


def test_answers_that_are_always_lost_are_the_callers_error() -> None:
    class Deaf(Interrupted):
        __slots__ = ()

        async def perform(self, request: Any) -> Any:
            if isinstance(request, Put):
                return Lost(OSError("connection reset"))
            return self.backend.perform_sync(request)

    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store, compressed=True)
    store._backend = Deaf(ObjectBackend(objects), 0, lambda: None)  # type: ignore[assignment]
    with pytest.raises(OSError, match="connection reset"):
        array[...] = 1


# --- what was read to be changed -------------------------------------------------------------------------------------


class Overtaken(ps.PartsStore):
    """A store in which somebody else acts between the read of a chunk and the write that follows from it."""

    act: Callable[[], None] = staticmethod(lambda: None)

    async def set(self, key: str, value: Any) -> None:
        self.act()
        await super().set(key, value)

    def set_sync(self, key: str, value: Any) -> None:
        self.act()
        super().set_sync(key, value)

    async def delete(self, key: str) -> None:
        self.act()
        await super().delete(key)

    def delete_sync(self, key: str) -> None:
        self.act()
        super().delete_sync(key)


def corner(value: int) -> NDArray[Any]:
    """A shard with values in one of its four inner chunks alone, and none if the value is that of the fill."""
    drawn = np.zeros(SHAPE, "uint16")
    drawn[:8, :8] = value
    return drawn


# What is there, and what is written to a part of it: of a chunk, of none, and so that there is none any more.
CHANGES: dict[str, tuple[NDArray[Any] | None, int]] = {
    "changed": (values(1, holes=False), 7),
    "created": (None, 7),
    "deleted": (corner(5), 0),
}
OTHERS: dict[str, NDArray[Any] | None] = {"writes": values(2, holes=False), "deletes": None}


def changing(objects: Any, first: NDArray[Any] | None, concurrency: Any) -> tuple[zarr.Array[Any], Overtaken]:
    """An array in a store in which others may act."""
    array = create(ps.PartsStore(objects), compressed=False)
    if first is not None:
        array[...] = first
    store = Overtaken(objects, concurrency=concurrency)
    return zarr.open_array(store, path="a"), store


@pytest.mark.sampled(5)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_of_a_shard_is_changed_where_nobody_else_writes(
    place: Callable[[], Any], pipeline: str, change: str, concurrency: Any
) -> None:
    first, value = CHANGES[change]
    objects = place()
    array, _ = changing(objects, first, concurrency)
    expected = np.zeros(SHAPE, "uint16") if first is None else first.copy()
    for region in (np.s_[:8, :8], np.s_[2:5, 3:6], np.s_[0:3, 9:12]):
        array[region] = value
        expected[region] = value
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)
    assert ps.PartsStore(objects).get_sync("a/c/0/0") is not None or not expected.any()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_of_a_shard_that_somebody_else_wrote_meanwhile_is_not_changed_and_his_write_stays(
    place: Callable[[], Any], pipeline: str, change: str, other: str, concurrency: Any
) -> None:
    first, value = CHANGES[change]
    theirs = OTHERS[other]
    if first is None and theirs is None:
        return
    objects = place()
    array, store = changing(objects, first, concurrency)
    others = ps.PartsStore(objects, concurrency=concurrency)
    if theirs is None:
        store.act = lambda: others.delete_sync("a/c/0/0")
    else:
        shard = encode(theirs, compressed=False)
        store.act = lambda: others.set_sync("a/c/0/0", shard)
    with pytest.raises(ConcurrentWriteError, match="not what it was when it was read to be changed; read it again"):
        array[:8, :8] = value
    expected = np.zeros(SHAPE, "uint16") if theirs is None else theirs.copy()
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)
    # Read again, then write again.
    store.act = lambda: None
    array[:8, :8] = value
    expected[:8, :8] = value
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)


def test_with_the_fused_pipeline_a_part_of_a_plain_chunk_is_not_changed_either(place: Callable[[], Any]) -> None:
    objects = place()
    with zarr.config.set({"codec_pipeline.path": PIPELINES["fused"]}):
        parts: Any = [ps.Part(".head", size=4), ""]
        shape: dict[str, Any] = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
        ps.create_array(ps.PartsStore(objects), "a", parts=parts, **shape)[...] = 1
        store = Overtaken(objects)
        store.act = lambda: ps.PartsStore(objects).set_sync("a/c/0", cpu.Buffer.from_bytes(bytes([3] * 8)))
        array: Any = zarr.open_array(store, path="a")
        with pytest.raises(ConcurrentWriteError):
            array[2:4] = 2
        assert np.asarray(zarr.open_array(ps.PartsStore(objects), path="a")[...]).tolist() == [3] * 8
        store.act = lambda: None
        array[2:4] = 2
        assert np.asarray(array[...]).tolist() == [3, 3, 2, 2, 3, 3, 3, 3]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "plain"])
def test_a_whole_write_is_never_held_to_what_was_read_before(
    place: Callable[[], Any], pipeline: str, *, sharded: bool
) -> None:
    # Threads of a pool keep for ever what they have seen: here they read chunks that others write, then write them.
    objects = place()
    shards: dict[str, Any] = {"chunks": (8, 8), "shards": SHAPE} if sharded else {"chunks": SHAPE}
    parts: Any = [ps.Part(".head", size=4), ""]
    with zarr.config.set({"codec_pipeline.max_workers": 2}):
        array: Any = ps.create_array(
            ps.PartsStore(objects), "a", parts=parts, shape=(64, 16), dtype="uint16", compressors=None, **shards
        )
        array[...] = 1
        others: Any = zarr.open_array(ps.PartsStore(objects), path="a")
        for value in range(2, 22, 2):
            np.testing.assert_array_equal(array[...], value - 1)
            others[...] = value
            array[...] = value + 1
            np.testing.assert_array_equal(others[...], value + 1)


def test_of_many_who_count_in_one_shard_none_is_lost(place: Callable[[], Any], pipeline: str) -> None:
    objects = place()
    create(ps.PartsStore(objects), compressed=False)[...] = 1
    counts = [0, 0]

    def count(number: int) -> None:
        array: Any = zarr.open_array(ps.PartsStore(objects), path="a")
        for _ in range(10):
            for _ in range(1000):
                with contextlib.suppress(ConcurrentWriteError):
                    # Each has an element of its own, in one and the same shard.
                    array[number, number] = counts[number] + 2
                    break
            else:
                pytest.fail("never succeeded")
            counts[number] += 1

    threads = [threading.Thread(target=count, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = np.asarray(zarr.open_array(ps.PartsStore(objects), path="a")[...])
    assert counts == [10, 10]
    assert (found[0, 0], found[1, 1]) == (11, 11)
    found[0, 0] = found[1, 1] = 1
    assert (found == 1).all()
