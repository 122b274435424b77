"""A partial write never puts chunks of the array that it has read into an array that took its place meanwhile."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ConcurrentWriteError, LayoutChangedError
from tests.store.interrupted import ONE_CHUNK, ONE_IN_PARTS, Overtaken, create_one

type Act = Callable[[ps.PartsStore], None]


@pytest.fixture(params=["same store", "another store"])
def overtaken(request: pytest.FixtureRequest, objects: Any) -> tuple[Overtaken, ps.PartsStore]:
    """Return a store whose writes are overtaken, and the store through which they are."""
    store = Overtaken(objects)
    return store, store if request.param == "same store" else ps.PartsStore(objects)


def others(parts: str, chunks: str) -> dict[str, Act]:
    """Return what another client may do to the array, so that its chunks cannot be those that were read."""
    floats = encoded = ONE_CHUNK[chunks] | {"dtype": "f4"}
    if chunks == "sharded":
        big = zarr.codecs.ShardingCodec(chunk_shape=(8,), codecs=[zarr.codecs.BytesCodec(endian="big")])
        encoded = {"chunks": (32,), "shards": None, "serializer": big}
    return {
        "created with another data type": lambda store: create_one(store, parts, **floats),
        "created and written": lambda store: create_one(store, parts, **floats).__setitem__(slice(16, 24), 2.5),
        "created with another codec": lambda store: create_one(store, parts, **encoded),
        "deleted": lambda store: sync(store.delete_dir("a")),
    }


@pytest.mark.sampled(13)
@pytest.mark.parametrize("chunks", ONE_CHUNK)
@pytest.mark.parametrize("parts", ONE_IN_PARTS)
@pytest.mark.parametrize("act", others("no parts", "sharded"))
def test_partial_write_of_an_array_that_was_created_again_writes_nothing(
    objects: Any, overtaken: tuple[Overtaken, ps.PartsStore], pipeline: str, parts: str, chunks: str, act: str
) -> None:
    if (pipeline, chunks) == ("batched", "plain"):
        # zarr reads and writes such chunks in two tasks.
        return
    store, other = overtaken
    create_one(ps.PartsStore(objects), parts, **ONE_CHUNK[chunks])[0:8] = 1
    array: Any = zarr.open_array(store, path="a", mode="r+")
    stored: list[bytes | None] = []

    def overtake() -> None:
        others(parts, chunks)[act](other)
        stored.append(chunk_of(objects))

    store.acts = iter([overtake])
    with pytest.raises(LayoutChangedError, match=r"array 'a': it was (created again|deleted).*open it again"):
        array[8:16] = 7
    assert stored == [chunk_of(objects)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunks", ONE_CHUNK)
@pytest.mark.parametrize("parts", ONE_IN_PARTS)
def test_partial_write_of_an_array_that_was_resized_and_written_is_refused_or_repeated(
    objects: Any, overtaken: tuple[Overtaken, ps.PartsStore], pipeline: str, parts: str, chunks: str
) -> None:
    if (pipeline, chunks) == ("batched", "plain"):
        # zarr reads and writes such chunks in two tasks.
        return
    store, other = overtaken
    create_one(ps.PartsStore(objects), parts, **ONE_CHUNK[chunks])[0:8] = 1
    array: Any = zarr.open_array(store, path="a", mode="r+")

    def overtake() -> None:
        changed: Any = zarr.open_array(other, path="a", mode="r+")
        changed.resize((24,))
        changed[16:20] = 9

    store.acts = iter([overtake])
    if pipeline != "parts":
        with pytest.raises(ConcurrentWriteError, match="'a/c/0'"):
            array[8:16] = 7
    else:
        array[8:16] = 7
    expected = np.repeat(np.array([1, 7 if pipeline == "parts" else 0, 9, 0], "i4"), [8, 8, 4, 4])
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("change", ["resized", "new attributes"])
@pytest.mark.parametrize("parts", ONE_IN_PARTS)
def test_partial_write_of_a_shard_that_is_as_it_was_succeeds_after_a_change_of_the_document(
    objects: Any, overtaken: tuple[Overtaken, ps.PartsStore], pipeline: str, parts: str, change: str
) -> None:
    store, other = overtaken
    create_one(ps.PartsStore(objects), parts, **ONE_CHUNK["sharded"])[0:8] = 1
    array: Any = zarr.open_array(store, path="a", mode="r+")

    def overtake() -> None:
        changed: Any = zarr.open_array(other, path="a", mode="r+")
        changed.resize((40,)) if change == "resized" else changed.attrs.update(unit="K")

    store.acts = iter([overtake])
    array[8:16] = 7
    expected = np.repeat(np.array([1, 7, 0], "i4"), [8, 8, 24 if change == "resized" else 16])
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], expected)


def chunk_of(objects: Any) -> bytes | None:
    """Return the chunk as a new store reads it, None if there is none."""
    found = ps.PartsStore(objects).get_sync("a/c/0")
    return None if found is None else found.to_bytes()
