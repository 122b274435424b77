"""No read returns a mixture of two writes, whatever a writer does between any two of its requests."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from parts_store.backends.objects import ObjectBackend
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError
from parts_store.plan.steps import Lost, Put

PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHAPE = (16, 16)


@dataclass(slots=True)
class Interrupted:
    """A backend that lets somebody else act just before its `at`-th request, and counts its requests."""

    backend: ObjectBackend
    at: int
    act: Callable[[], None]
    made: int = 0

    @property
    def capabilities(self) -> Any:
        return self.backend.capabilities

    def _step(self) -> None:
        if self.made == self.at:
            self.act()
        self.made += 1

    async def perform(self, request: Any) -> Any:
        self._step()
        return self.backend.perform_sync(request)

    def perform_sync(self, request: Any) -> Any:
        self._step()
        return self.backend.perform_sync(request)


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
    backend = Interrupted(ObjectBackend(objects), at, act)
    array.store._backend = backend  # type: ignore[attr-defined]
    return array, backend


def overwriting(objects: Any, shard: cpu.Buffer) -> Callable[[], None]:
    """Somebody else who writes the whole shard, with a store of his own and without zarr's event loop."""
    return lambda: ps.PartsStore(objects).set_sync("a/c/0/0", shard)


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


@pytest.mark.parametrize("compressed", [False, True], ids=["raw", "zstd"])
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_whole_write_between_any_two_requests_shows_before_or_after_or_an_error(
    selection: Any, pipeline: str, *, holes: bool, compressed: bool
) -> None:
    first, second = values(1, holes=holes), values(2, holes=holes)
    shard = encode(second, compressed=compressed)
    seen = set()
    for at, found in outcomes(
        MemoryStore, selection, lambda objects: overwriting(objects, shard), first, compressed=compressed
    ):
        if isinstance(found, Exception):
            seen.add("error")
            continue
        is_old, is_new = np.array_equal(found, first[selection]), np.array_equal(found, second[selection])
        assert is_old or is_new, f"a mixture, with the write before request {at}"
        seen |= {"old"} if is_old else {"new"}
    assert {"old", "new"} <= seen


@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_delete_between_any_two_requests_shows_the_chunk_or_none_or_an_error(
    selection: Any, pipeline: str, *, holes: bool
) -> None:
    first = values(1, holes=holes)

    def deleting(objects: Any) -> Callable[[], None]:
        return lambda: ps.PartsStore(objects).delete_sync("a/c/0/0")

    for at, found in outcomes(MemoryStore, selection, deleting, first, compressed=False):
        if not isinstance(found, Exception):
            whole = np.array_equal(found, first[selection]) or not found.any()
            assert whole, f"half a chunk, with the delete before request {at}"


def test_on_disk_too_a_whole_write_between_any_two_requests_is_never_a_mixture(tmp_path: Any, pipeline: str) -> None:
    first, second = values(1, holes=False), values(2, holes=False)
    numbers = iter(range(10**6))
    shard = encode(second, compressed=True)

    def place() -> LocalStore:
        return LocalStore(tmp_path / str(next(numbers)), mkdir=True)

    for selection in SELECTIONS.values():
        for at, found in outcomes(
            place, selection, lambda objects: overwriting(objects, shard), first, compressed=True
        ):
            if not isinstance(found, Exception):
                matches = [np.array_equal(found, each[selection]) for each in (first, second)]
                assert any(matches), f"a mixture, with the write before request {at}"


@pytest.mark.parametrize("dead_after", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_writer_that_dies_after_any_request_leaves_the_old_chunk_or_an_error(
    selection: Any, dead_after: int, pipeline: str
) -> None:
    first, second = values(1, holes=False), values(2, holes=False)
    objects = scene(MemoryStore(), first, compressed=True)

    class KilledError(Exception):
        pass

    def die() -> None:
        raise KilledError

    array = zarr.open_array(ps.PartsStore(objects), path="a")
    array.store._backend = Interrupted(ObjectBackend(objects), dead_after, die)  # type: ignore[attr-defined]
    # The creates of two parts are refused, then come the anchor and the two parts again.
    if dead_after < 5:
        with pytest.raises(KilledError):
            array[...] = second
    else:
        array[...] = second
    fresh = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    try:
        found = np.asarray(fresh[selection])
    except (IncompleteChunkError, ConcurrentWriteError):
        assert 2 < dead_after < 5
    else:
        assert np.array_equal(found, (first if dead_after <= 2 else second)[selection])


def test_a_read_that_was_refused_succeeds_when_it_is_repeated(pipeline: str) -> None:
    first, second = values(1, holes=False), values(2, holes=False)
    objects = scene(MemoryStore(), first, compressed=True)
    # The first request is for the index, the second for the data.
    array, _ = reader(objects, 1, overwriting(objects, encode(second, compressed=True)))
    with pytest.raises(ConcurrentWriteError, match="read it again"):
        array[2:7, 2:7]
    np.testing.assert_array_equal(array[2:7, 2:7], second[2:7, 2:7])


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
    with pytest.raises(ConcurrentWriteError, match="it changed 4 times while it was read"):
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


@pytest.mark.parametrize("dead_after", range(8))
def test_on_disk_a_writer_that_dies_leaves_a_whole_chunk_or_an_error(tmp_path: Any, dead_after: int) -> None:
    first, second = values(1, holes=False), values(2, holes=False)
    objects = scene(LocalStore(tmp_path, mkdir=True), first, compressed=True)

    class KilledError(Exception):
        pass

    def die() -> None:
        raise KilledError

    array = zarr.open_array(ps.PartsStore(objects), path="a")
    array.store._backend = Interrupted(ObjectBackend(objects), dead_after, die)  # type: ignore[attr-defined]
    with contextlib.suppress(KilledError):
        array[...] = second
    fresh = zarr.open_array(ps.PartsStore(objects), path="a")
    for selection in SELECTIONS.values():
        try:
            found = np.asarray(fresh[selection])
        except IncompleteChunkError:
            continue
        assert any(np.array_equal(found, each[selection]) for each in (first, second))
    # And the next write mends it.
    fresh[...] = second
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], second)


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
            if isinstance(request, Put) and request.create:
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
