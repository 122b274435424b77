"""A missing, damaged or foreign part is an error, never fill values and never a mixture."""

from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import RangeByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError
from tests.store.arrays import SELECTIONS, VALUES, collect, content, create, create_sharded, get

pytestmark = pytest.mark.usefixtures("short_waits")


in_memory = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture
def array(objects: Any, pipeline: str) -> zarr.Array[Any]:
    """Return an array of four shards in three parts, opened by zarr with each of the pipelines."""
    create_sharded(ps.PartsStore(objects))[...] = VALUES
    return zarr.open_array(ps.PartsStore(objects), path="a")


def damage(objects: Any, key: str, data: bytes) -> None:
    """Replace the bytes of an object, and keep its tag."""
    options: Any = {} if isinstance(objects, LocalStore) else {"attributes": obstore.get(objects, key).attributes}
    obstore.put(objects, key, data, **options)


def test_a_chunk_of_which_no_part_exists_does_not_exist(objects: Any, array: zarr.Array[Any]) -> None:
    store = ps.PartsStore(objects)
    store.delete_sync("a/c/0/0")
    assert get(store, "a/c/0/0") is None
    assert not sync(store.exists("a/c/0/0"))
    assert (np.asarray(array[:32, :32]) == 0).all()
    assert array[3, 3] == 0
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0/0"))


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "of another size"])
def test_chunk_with_orphans_and_no_anchor_does_not_exist(
    objects: Any, array: zarr.Array[Any], *, damaged: bool
) -> None:
    store = ps.PartsStore(objects)
    obstore.delete(objects, "a/c/0/0")
    if damaged:
        obstore.put(objects, "a/c/0/0.header", b"x")
        obstore.put(objects, "a/c/0/0.index", b"x")
    assert get(store, "a/c/0/0") is None
    # Bytes that are all in the header.
    assert get(store, "a/c/0/0", RangeByteRequest(0, 10)) is None
    assert not sync(store.exists("a/c/0/0"))
    assert "a/c/0/0" not in sync(collect(store.list()))
    np.testing.assert_array_equal(array[:32, :32], 0)
    assert array[3, 3] == 0
    np.testing.assert_array_equal(array[32:], VALUES[32:])
    array[:32, :32] = VALUES[:32, :32]
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("suffix", [".header", ".index"])
def test_a_missing_part_is_an_error_and_never_fill_values(objects: Any, array: zarr.Array[Any], suffix: str) -> None:
    obstore.delete(objects, f"a/c/0/0{suffix}")
    for selection in SELECTIONS:
        # The header holds the first inner chunk's first bytes: only reads of those miss it.
        touches = suffix == ".index" or selection != np.s_[0:9, 30:40]
        if touches:
            with pytest.raises(IncompleteChunkError, match=rf"no object at 'a/c/0/0{suffix}'"):
                array[selection]
    np.testing.assert_array_equal(array[32:], VALUES[32:])


@in_memory
@pytest.mark.parametrize("suffix", ["", ".header", ".index"])
def test_a_part_of_another_write_is_an_error_and_never_a_mixture(
    objects: Any, array: zarr.Array[Any], suffix: str
) -> None:
    # Each chunk is a write of its own.
    other = obstore.get(objects, f"a/c/1/0{suffix}")
    obstore.put(objects, f"a/c/0/0{suffix}", bytes(other.bytes()), attributes=other.attributes)
    with pytest.raises(IncompleteChunkError, match="an object of another write at"):
        array[:32, :32]
    with pytest.raises((IncompleteChunkError, ConcurrentWriteError)):
        array[0:9, 0:9]
    # A write of the whole chunk mends it.
    array[:32, :32] = VALUES[:32, :32]
    np.testing.assert_array_equal(array[...], VALUES)


@in_memory
@pytest.mark.parametrize("suffix", [".header", ".index"])
@pytest.mark.parametrize("is_missing", [False, True], ids=["older", "missing"])
def test_small_parts_of_an_overwrite_are_read_from_its_anchor(
    objects: Any, array: zarr.Array[Any], suffix: str, *, is_missing: bool
) -> None:
    old = obstore.get(objects, f"a/c/0/0{suffix}")
    data, attributes = bytes(old.bytes()), old.attributes
    array[:32, :32] = VALUES[:32, :32] + 7
    if is_missing:
        obstore.delete(objects, f"a/c/0/0{suffix}")
    else:
        obstore.put(objects, f"a/c/0/0{suffix}", data, attributes=attributes)
    expected = VALUES.copy()
    expected[:32, :32] += 7
    for selection in SELECTIONS:
        np.testing.assert_array_equal(array[selection], expected[selection])


def test_part_that_another_program_wrote_after_an_overwrite_is_an_error() -> None:
    objects = MemoryStore()
    array = create(ps.PartsStore(objects), ["", ps.Part(".tail", size=4)])
    array[...] = VALUES
    array[...] = VALUES
    obstore.put(objects, "a/c/0/0.tail", b"abcd")
    with pytest.raises(IncompleteChunkError, match=r"an object of another write at 'a/c/0/0.tail'"):
        array[:32, :32]
    assert [each.problem.value for each in ps.PartsStore(objects).verify().findings] == ["partly tagged"]
    assert not ps.PartsStore(objects).repair(min_age=0).is_clean
    assert content(objects, "a/c/0/0.tail") == b"abcd"


def test_a_tagged_and_an_untagged_part_are_of_different_writes() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store, ["", ps.Part(".tail", size=4)])
    array[...] = VALUES
    obstore.put(objects, "a/c/0/0.tail", content(objects, "a/c/0/0.tail"))
    with pytest.raises(IncompleteChunkError, match=r"an object of another write at 'a/c/0/0.tail'"):
        array[:32, :32]
    obstore.put(objects, "a/c/0/0", content(objects, "a/c/0/0"))
    # All untagged: another program wrote them.
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("change", [-1, 1, -64, 100])
@pytest.mark.parametrize(("suffix", "size"), [(".header", 64), (".index", 260)])
def test_part_of_a_wrong_size_is_an_error_with_both_sizes(
    objects: Any, array: zarr.Array[Any], suffix: str, size: int, change: int
) -> None:
    data = content(objects, f"a/c/0/0{suffix}")
    damage(objects, f"a/c/0/0{suffix}", data[:change] if change < 0 else data + bytes(change))
    message = rf"part 'a/c/0/0{suffix}': expected {size} bytes, found {len(data) + change}"
    with pytest.raises(PartSizeError, match=message):
        array[:32, :32]
    with pytest.raises(PartSizeError, match=message):
        array[0, 0]


def test_main_part_of_a_wrong_size_is_an_error() -> None:
    objects = MemoryStore()
    array = create(ps.PartsStore(objects), ["", ps.Part(".tail", size=4)])
    array[...] = VALUES
    damage(objects, "a/c/0/0", content(objects, "a/c/0/0")[:-2])
    with pytest.raises(PartSizeError, match="part 'a/c/0/0': expected 2044 bytes, found 2042"):
        array[:32, :32]
