"""The indexes of shards are read once, used only while they are those of their shard, and bounded in memory."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import ConcurrentWriteError
from parts_store.format.shard_index import ShardIndex
from parts_store.store.chunk_reads import IndexCache
from parts_store.transactions.reading import Version
from parts_store.transactions.shards import VersionedIndex
from tests.store.interrupted import Watched, backend_of

PARTS = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHAPE = (16, 16)
# Four inner chunks, each with an offset and a size, and a checksum.
INDEX_NBYTES = 4 * 16 + 4
INDEX_OF = ShardIndex(INDEX_NBYTES, "end", 4, "<u8", has_checksum=True)


# --- the cache itself ------------------------------------------------------------------------------------------------


def versioned(nbytes: int) -> VersionedIndex:
    return VersionedIndex(bytes(nbytes), Version(None, (None,), 0), INDEX_OF, may_have_holes=False)


@given(
    st.lists(st.tuples(st.sampled_from(["get", "keep", "forget", "copy"]), st.sampled_from("abc"), st.integers(0, 40)))
)
@example([("keep", "a", 10), ("keep", "b", 10), ("keep", "c", 10), ("get", "a", 0), ("keep", "d", 10)])
def test_cache_keeps_what_was_used_last_within_its_limit(calls: list[tuple[str, str, int]]) -> None:
    cache, model = IndexCache(30), dict[str, VersionedIndex]()
    for kind, key, nbytes in calls:
        match kind:
            case "keep":
                index = versioned(nbytes)
                model.pop(key, None)
                cache.keep(key, index)
                if nbytes <= 30:
                    model[key] = index
                while sum(len(each.index) for each in model.values()) > 30:
                    del model[next(iter(model))]
            case "forget":
                cache.forget(key)
                model.pop(key, None)
            case "copy":
                # What happens to the other cache changes nothing here.
                other, cache = cache, cache.copy()
                other.forget(key)
                other.keep(key, versioned(nbytes))
            case _:
                assert cache.get(key) is model.get(key)
                if key in model:
                    model[key] = model.pop(key)
        assert cache.nbytes == sum(len(each.index) for each in model.values())
    assert all(cache.get(key) is model.get(key) for key in "abcd")


def test_many_threads_never_exceed_the_bound() -> None:
    cache = IndexCache(100)
    counted: list[int] = []

    def work(number: int) -> None:
        for turn in range(2000):
            cache.keep(str((number * 7 + turn) % 20), versioned(turn % 40))
            cache.get(str(turn % 20))
            cache.forget(str((turn * 3) % 20))
            # Not during a change of another thread.
            with cache._lock:
                counted.append(cache.nbytes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(counted) <= 100
    for key in range(20):
        cache.forget(str(key))
    assert cache.nbytes == 0


# --- the cache of a store --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recording(Watched):
    """A backend that writes down the requests that are made to it."""

    requests: list[tuple[str, str]] = field(default_factory=list)

    def before(self, request: Any) -> None:
        # On a disk, a read checks for a writer: nothing else reads the objects beside a chunk.
        if ".parts-txn" not in getattr(request, "key", ""):
            self.requests.append((type(request).__name__, request.key))


def values(seed: int, *, holes: bool = False) -> NDArray[Any]:
    drawn = np.random.default_rng(seed).integers(1, 2**16, SHAPE).astype("uint16")
    if holes:
        drawn[:8, :8] = 0
    return drawn


def create(objects: Any, drawn: NDArray[Any], **arguments: Any) -> None:
    chosen: dict[str, Any] = {"shape": SHAPE, "chunks": (8, 8), "shards": SHAPE, "dtype": "uint16"}
    ps.create_array(ps.PartsStore(objects), "a", parts=PARTS, **(chosen | arguments))
    zarr.open_array(ps.PartsStore(objects), path="a")[...] = drawn


def recorded(objects: Any, **options: Any) -> tuple[Any, Recording, ps.PartsStore]:
    """The array, and what is asked of its objects."""
    array: Any = zarr.open_array(ps.PartsStore(objects, **options), path="a", mode="r")
    recording = Recording(backend_of(objects))
    array.store._backend = recording
    return array, recording, array.store


def asked(recording: Recording, read: Callable[[], Any]) -> tuple[Any, list[tuple[str, str]]]:
    """What is read, and the requests that it takes."""
    recording.requests.clear()
    found = read()
    return found, sorted(recording.requests)


INDEX, DATA = ("Get", "a/c/0/0.index"), ("Get", "a/c/0/0")


def test_random_read_of_a_known_dense_shard_is_one_request(objects: Any, pipeline: str) -> None:
    drawn = values(1)
    create(objects, drawn)
    array, recording, store = recorded(objects)
    found, requests = asked(recording, lambda: array[3, 3])
    assert found == drawn[3, 3]
    assert requests.count(INDEX) == 1
    for at in ((3, 3), (3, 12), (12, 3), (12, 12), (0, 0), (15, 15)):
        found, requests = asked(recording, partial(array.__getitem__, at))
        assert found == drawn[at]
        assert requests == [DATA]
    assert store.stats.saved_by_index_cache == 6


def test_known_shard_with_holes_costs_one_look_at_the_anchor(objects: Any, pipeline: str) -> None:
    drawn = values(1, holes=True)
    create(objects, drawn)
    array, recording, _ = recorded(objects)
    assert array[12, 12] == drawn[12, 12]
    found, requests = asked(recording, lambda: array[12, 3])
    assert found == drawn[12, 3]
    assert requests == [DATA, ("Head", "a/c/0/0")]
    found, requests = asked(recording, lambda: array[3, 3])
    assert found == 0
    assert requests == [("Head", "a/c/0/0")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("becomes", ["dense", "holes"])
@pytest.mark.parametrize("was", ["dense", "holes"])
def test_shard_changed_by_another_client_is_read_without_error(
    objects: Any, pipeline: str, was: str, becomes: str
) -> None:
    create(objects, values(1, holes=was == "holes"))
    array, recording, _ = recorded(objects)
    array[12, 12]
    other: Any = zarr.open_array(ps.PartsStore(objects), path="a")
    for seed in range(2, 6):
        drawn = values(seed, holes=becomes == "holes")
        other[...] = drawn
        for at in ((3, 3), (12, 12), (3, 12), (12, 3)):
            # Compressed, so that every inner chunk is elsewhere, and of another size.
            assert array[at] == drawn[at]
        _, requests = asked(recording, lambda: array[12, 12])
        assert INDEX not in requests


def test_shard_deleted_by_another_client_does_not_exist(objects: Any, pipeline: str) -> None:
    for holes in (False, True):
        create(objects, values(1, holes=holes), overwrite=True)
        array, _, _ = recorded(objects)
        assert array[12, 12] != 0
        ps.PartsStore(objects).delete_sync("a/c/0/0")
        assert array[12, 12] == array[3, 3] == 0
        zarr.open_array(ps.PartsStore(objects), path="a")[...] = values(2, holes=holes)
        assert array[12, 12] == values(2, holes=holes)[12, 12]


def test_own_writes_are_read_after_an_index_was_cached(objects: Any, pipeline: str) -> None:
    create(objects, values(1))
    store = ps.PartsStore(objects)
    array: Any = zarr.open_array(store, path="a")
    expected = values(1)
    for seed in range(2, 8):
        assert array[12, 12] == expected[12, 12]
        region = np.s_[:, :] if seed % 2 else np.s_[2:11, 2:11]
        expected[region] = values(seed, holes=seed % 3 == 0)[region]
        array[region] = expected[region]
        np.testing.assert_array_equal(array[10:13, 3:12], expected[10:13, 3:12])
    store.delete_sync("a/c/0/0")
    assert array[12, 12] == 0


@pytest.mark.sampled(3)
def test_recreated_array_does_not_use_old_indexes(objects: Any, pipeline: str) -> None:
    store = ps.PartsStore(objects)
    for seed, chunks in enumerate([(8, 8), (4, 4), (8, 8), (16, 8), (8, 16)]):
        ps.create_array(
            store, "a", parts=PARTS, shape=SHAPE, chunks=chunks, shards=SHAPE, dtype="uint16", overwrite=True
        )
        array: Any = zarr.open_array(store, path="a")
        drawn = values(seed)
        array[...] = drawn
        for at in ((0, 0), (15, 15), (3, 12)):
            assert array[at] == drawn[at]
            assert array[at] == drawn[at]


def test_cache_stays_within_its_memory_limit(objects: Any, pipeline: str) -> None:
    drawn = np.arange(1, 16 * 96 + 1, dtype="uint16").reshape(16, 96)
    create(objects, drawn, shape=(16, 96))
    array, recording, store = recorded(objects, index_cache_bytes=2 * INDEX_NBYTES + 1)
    for shard in range(6):
        assert array[12, 16 * shard + 12] == drawn[12, 16 * shard + 12]
        assert store._operations.reader.indexes.nbytes <= 2 * INDEX_NBYTES
    for shard, is_known in ((5, True), (4, True), (0, False)):
        _, requests = asked(recording, partial(array.__getitem__, (12, 16 * shard + 12)))
        assert (("Get", f"a/c/0/{shard}.index") not in requests) is is_known


def create_without_tags(objects: Any, drawn: NDArray[Any]) -> None:
    """Create an array whose parts have no tags, so that two writes of an index cannot be distinguished."""
    create(objects, drawn)
    for key in ("a/c/0/0", "a/c/0/0.index"):
        obstore.put(objects, key, obstore.get(objects, key).bytes())


def create_with_unknown_codecs(objects: Any, drawn: NDArray[Any]) -> None:
    codecs: Any = [zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec(), zarr.codecs.Crc32cCodec()]
    serializer = zarr.codecs.ShardingCodec(chunk_shape=(8, 8), index_codecs=codecs)
    create(objects, drawn, chunks=SHAPE, shards=None, serializer=serializer, compressors=None)


@pytest.mark.parametrize(
    ("create_array", "options"),
    [(create, {"index_cache_bytes": 0}), (create_without_tags, {}), (create_with_unknown_codecs, {})],
    ids=["no cache", "no tags", "unknown codecs"],
)
def test_index_that_cannot_be_cached_is_read_every_time(
    objects: Any, pipeline: str, create_array: Callable[..., None], options: dict[str, Any]
) -> None:
    if create_array is create_without_tags and isinstance(objects, LocalStore):
        # There, files are told apart without tags.
        return
    drawn = values(1)
    create_array(objects, drawn)
    array, recording, store = recorded(objects, **options)
    for _ in range(3):
        found, requests = asked(recording, lambda: array[12, 12])
        assert found == drawn[12, 12]
        assert requests.count(INDEX) == 1
    assert store.stats.saved_by_index_cache == 0
    assert store._operations.reader.indexes.nbytes == 0


def test_explain_does_not_change_the_cache(objects: Any, pipeline: str) -> None:
    create(objects, values(1))
    array, recording, store = recorded(objects)
    cold = [each.key for each in store.explain("a", np.s_[12, 12]) if ".parts-txn" not in each.key]
    assert sorted(set(cold)) == ["a/c/0/0", "a/c/0/0.index"]
    _, requests = asked(recording, lambda: array[12, 12])
    assert INDEX in requests
    for _ in range(2):
        known = [each.key for each in store.explain("a", np.s_[12, 12]) if ".parts-txn" not in each.key]
        assert known == ["a/c/0/0"]
        assert asked(recording, lambda: array[12, 12])[1] == [DATA]


def test_index_with_holes_that_changed_is_an_error_and_read_again(objects: Any, pipeline: str) -> None:
    first, second = values(1, holes=True), values(2, holes=True)
    create(objects, first)
    array, recording, _ = recorded(objects)
    array[12, 12]
    other: Any = zarr.open_array(ps.PartsStore(objects), path="a")
    other[...] = second
    changed: Any = ps.PartsStore(objects).get_sync("a/c/0/0")
    other[...] = first
    array[12, 12]

    class Meddling(Recording):
        """Write the shard with another store just before its data is read."""

        __slots__ = ()

        def before(self, request: Any) -> None:
            if (type(request).__name__, request.key) == DATA and not self.requests:
                self.requests.append(DATA)
                ps.PartsStore(objects).set_sync("a/c/0/0", changed)

    array.store._backend = Meddling(recording.backend)
    with pytest.raises(ConcurrentWriteError, match="its data does not belong to the same write as its index"):
        array[12, 12]
    assert array[12, 12] == second[12, 12]


@pytest.mark.sampled(2)
def test_many_threads_that_read_and_write_see_whole_writes_only(objects: Any) -> None:
    store = ps.PartsStore(objects, retries=10)
    drawn = [np.full(SHAPE, seed, "uint16") + np.arange(16, dtype="uint16") * 100 for seed in (1, 2, 3)]
    create(objects, drawn[0])
    array: Any = zarr.open_array(store, path="a")
    wrong: list[Any] = []
    end = threading.Event()

    def read() -> None:
        while not end.is_set():
            for at in ((3, 3), (12, 12)):
                try:
                    found = int(array[at])
                except ConcurrentWriteError:
                    continue
                if found not in [int(each[at]) for each in drawn]:
                    wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    writer: Any = zarr.open_array(ps.PartsStore(objects), path="a")
    for turn in range(30):
        (writer if turn % 2 else array)[...] = drawn[turn % 3]
    end.set()
    for thread in threads:
        thread.join()
    assert not wrong
