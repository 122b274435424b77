"""A part of a chunk is changed only if no other client has written the chunk since it was read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.errors import ConcurrentWriteError
from tests.store.interrupted import LEVELS, SHAPE, Overtaken, create, encode, values


def corner(value: int) -> NDArray[Any]:
    """Return a shard with values in one of its four inner chunks only."""
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
    """Create an array in a store that another client may interrupt."""
    array = create(ps.PartsStore(objects), compressed=False)
    if first is not None:
        array[...] = first
    store = Overtaken(objects, concurrency=concurrency)
    return zarr.open_array(store, path="a"), store


@pytest.mark.sampled(15)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("change", CHANGES)
def test_partial_write_without_other_writers_succeeds(
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


@pytest.mark.sampled(20)
@pytest.mark.parametrize("concurrency", LEVELS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("change", CHANGES)
def test_partial_write_after_another_write_is_refused_or_repeated(
    place: Callable[[], Any], pipeline: str, change: str, other: str, concurrency: Any
) -> None:
    first, value = CHANGES[change]
    theirs = OTHERS[other]
    if first is None and theirs is None:
        return
    objects = place()
    array, store = changing(objects, first, concurrency)
    others = ps.PartsStore(objects, concurrency=concurrency)
    shard = None if theirs is None else encode(theirs, compressed=False)
    expected = np.zeros(SHAPE, "uint16") if theirs is None else theirs.copy()

    def overtake() -> None:
        others.delete_sync("a/c/0/0") if shard is None else others.set_sync("a/c/0/0", shard)

    store.acts = iter([overtake])
    # Our pipeline reads again, and writes again. With those of zarr, the caller has to, unless both did the same.
    did_the_same = value == 0 and theirs is None and concurrency != "exclusive"
    if pipeline != "parts" and not did_the_same:
        with pytest.raises(ConcurrentWriteError, match="was changed after it was read for this write; read it again"):
            array[:8, :8] = value
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)
    array[:8, :8] = value
    expected[:8, :8] = value
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "plain"])
def test_whole_write_never_depends_on_earlier_reads(place: Callable[[], Any], pipeline: str, *, sharded: bool) -> None:
    # Threads of a pool keep for ever what they have seen: here they read chunks that others write, then write them.
    objects = place()
    shards: dict[str, Any] = {"chunks": (8, 8), "shards": SHAPE} if sharded else {"chunks": SHAPE}
    parts: Any = [ps.Part(".head", size=4), ""]
    with zarr.config.set({"codec_pipeline.max_workers": 2}):
        ps.create_array(
            ps.PartsStore(objects), "a", parts=parts, shape=(64, 16), dtype="uint16", compressors=None, **shards
        )
        array: Any = zarr.open_array(ps.PartsStore(objects), path="a")
        array[...] = 1
        others: Any = zarr.open_array(ps.PartsStore(objects), path="a")
        for value in range(2, 22, 2):
            np.testing.assert_array_equal(array[...], value - 1)
            others[...] = value
            array[...] = value + 1
            np.testing.assert_array_equal(others[...], value + 1)
