"""Reads and writes that another client, a crash or a lost response interrupts at any request."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Lost, Put
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError
from tests.store.interrupted import (
    LEVELS,
    SELECTIONS,
    Interrupted,
    backend_of,
    create,
    encode,
    overwriting,
    reader,
    scene,
    values,
)

pytestmark = pytest.mark.usefixtures("short_waits")


def outcomes(
    place: Callable[[], Any],
    selection: Any,
    act: Callable[[Any], Callable[[], None]],
    first: NDArray[Any],
    *,
    compressed: bool,
) -> Iterator[tuple[int, NDArray[Any] | Exception]]:
    """Yield what a read returns if another client acts before its first request, its second, and so on."""
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


@pytest.mark.sampled(69)
@pytest.mark.parametrize("compressed", [False, True], ids=["raw", "zstd"])
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_write_between_any_two_requests_of_a_read_gives_old_or_new(
    place: Callable[[], Any], selection: Any, pipeline: str, *, holes: bool, compressed: bool
) -> None:
    first, second = values(1, holes=holes), values(2, holes=holes)
    shard = encode(second, compressed=compressed)
    seen = set()
    for at, found in outcomes(
        place, selection, lambda objects: overwriting(objects, shard), first, compressed=compressed
    ):
        if isinstance(found, Exception):
            # Values that zarr has filled in cannot be corrected; with an index without holes, the new data is read.
            assert holes, f"{found}, with the write before request {at}"
            assert isinstance(found, ConcurrentWriteError)
            continue
        is_old, is_new = np.array_equal(found, first[selection]), np.array_equal(found, second[selection])
        assert is_old or is_new, f"a mixture, with the write before request {at}"
        seen |= {"old"} if is_old else {"new"}
    assert {"old", "new"} <= seen


@pytest.mark.sampled(92)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_delete_between_any_two_requests_of_a_read_gives_all_or_none(
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


@pytest.mark.sampled(40)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
def test_crash_after_any_request_leaves_the_old_or_the_new_chunk(
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
        # Read with a new store.
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


@pytest.mark.sampled(10)
@pytest.mark.parametrize("concurrency", LEVELS)
def test_crash_of_the_first_write_leaves_no_chunk_or_the_new_chunk(
    place: Callable[[], Any], pipeline: str, concurrency: Any
) -> None:
    value = values(1, holes=False)
    seen = []
    for dead_after in itertools.count():
        objects = place()
        store = ps.PartsStore(objects, concurrency=concurrency)
        create(store, compressed=True)
        array = zarr.open_array(store, path="a")
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


@pytest.mark.sampled(6)
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


def test_a_chunk_that_never_comes_to_rest_is_read_as_one_of_its_writes() -> None:
    shards = [encode(values(seed, holes=False), compressed=True) for seed in range(2, 6)]
    objects = scene(MemoryStore(), values(1, holes=False), compressed=True)
    turns = itertools.cycle(shards)

    class Restless(Interrupted):
        __slots__ = ()

        def before(self, request: Any) -> None:
            overwriting(objects, next(turns))()
            self.made += 1

    array = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    array.store._backend = restless = Restless(ObjectBackend(objects), 0, lambda: None)  # type: ignore[attr-defined]
    # The anchor of every overwrite contains the other parts.
    found = np.asarray(array[...])
    assert restless.made
    assert any(np.array_equal(found, values(seed, holes=False)) for seed in range(1, 6))


@pytest.mark.sampled(3)
def test_the_index_of_an_earlier_read_is_never_held_against_a_later_one(pipeline: str) -> None:
    # Holes, so that indexes are read and no data after them; threads of a pool, which keep what they have seen.
    store = ps.PartsStore(MemoryStore())
    create(store, compressed=False, shape=(64, 16))
    array: Any = zarr.open_array(store, path="a")
    array[:, :8] = 1
    with zarr.config.set({"codec_pipeline.max_workers": 2}):
        for value in range(2, 12):
            assert not np.asarray(array[[3, 19, 35, 51], 8:]).any()
            array[:, :8] = value
            np.testing.assert_array_equal(array[:, :8], value)
            np.testing.assert_array_equal(array[[3, 19, 35, 51], 2], value)


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", range(3))
def test_lost_response_is_resolved_by_another_request(lost: str, at: int) -> None:
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


def test_responses_that_are_always_lost_raise() -> None:
    class Deaf(Interrupted):
        __slots__ = ()

        def perform_sync(self, request: Any) -> Any:
            if isinstance(request, Put):
                return Lost(OSError("connection reset"))
            return self.backend.perform_sync(request)

    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store, compressed=True)
    store._backend = Deaf(ObjectBackend(objects), 0, lambda: None)  # type: ignore[assignment]
    with pytest.raises(OSError, match="connection reset"):
        array[...] = 1
