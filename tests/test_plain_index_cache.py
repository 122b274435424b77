"""The indexes of shards without parts are cached, too: where an object can be recognised, for every way to open it."""

import os
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import icechunk
import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import SuffixByteRequest
from zarr.errors import ZarrUserWarning
from zarr.storage import ObjectStore

import parts_store as ps
from parts_store.errors import PartSizeError
from parts_store.store import chunk_reads
from parts_store.transactions import journaled
from tests.conftest import PIPELINES
from tests.s3_server import Call, Flaws, S3Server
from tests.test_index_cache import SHAPE, Recording, asked, values

KEY = "a/c/0/0"
LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def largest_small_shard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shards of these tests count as large, except in the tests of small shards."""
    if "small" not in request.function.__name__:
        monkeypatch.setattr(chunk_reads, "_SMALL", 0)


@pytest.fixture(autouse=True)
def oldest_new_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of these tests count as old, except in the tests of new files: no program can make a file old."""
    if "new_file" not in request.function.__name__:
        monkeypatch.setattr(journaled, "_COARSEST_CLOCK_SECONDS", 0)


@pytest.fixture(params=sorted(PIPELINES))
def open_array(request: pytest.FixtureRequest) -> Callable[[ps.PartsStore], Any]:
    """Return a function that opens an array with one of the codec pipelines."""

    def opened(store: ps.PartsStore) -> Any:
        with zarr.config.set({"codec_pipeline.path": PIPELINES[request.param]}):
            return zarr.open_array(store, path="a")

    return opened


def write(objects: Any, drawn: NDArray[Any], *, time: int = LONG_AGO, **arguments: Any) -> None:
    """Write an array with zarr's own store, and set the time of its file if it is on a disk."""
    chosen: dict[str, Any] = {"name": "a", "chunks": (8, 8), "shards": SHAPE, "overwrite": True, **arguments}
    zarr.create_array(ObjectStore(objects), data=drawn, **chosen)
    if isinstance(objects, LocalStore):
        os.utime(Path(str(objects.prefix)) / KEY, (time, time))


def recording(array: Any) -> Recording:
    made = Recording(array.store._backend)
    array.store._backend = made
    return made


GET, HEAD = ("Get", KEY), ("Head", KEY)


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_random_read_of_a_known_shard_is_one_request(
    objects: Any, open_array: Callable[[ps.PartsStore], Any], index_location: str
) -> None:
    drawn = values(1)
    write(objects, drawn, shards={"shape": SHAPE, "index_location": index_location})
    store = ps.PartsStore(objects)
    array = open_array(store)
    made = recording(array)
    found, requests = asked(made, lambda: array[3:4, 3:4])
    assert found == drawn[3, 3]
    assert requests == [GET, GET]
    for row, column in ((3, 3), (3, 12), (12, 3), (12, 12), (0, 0), (15, 15)):
        region = np.s_[row : row + 1, column : column + 1]
        found, requests = asked(made, partial(array.__getitem__, region))
        assert found == drawn[region]
        assert requests == [GET]
    assert store.stats.saved_by_index_cache == 6


def test_known_shard_with_holes_costs_one_look_at_the_object(
    objects: Any, open_array: Callable[[ps.PartsStore], Any]
) -> None:
    drawn = values(1, holes=True)
    write(objects, drawn)
    array = open_array(ps.PartsStore(objects))
    made = recording(array)
    for expected in ([GET, GET], [GET, HEAD]):
        found, requests = asked(made, lambda: array[12:13, 3:4])
        assert found == drawn[12, 3]
        assert requests == expected
    found, requests = asked(made, lambda: array[3:4, 3:4])
    assert found == 0
    assert requests == [HEAD]
    # The inner chunk is there now: it is not answered from the cache.
    write(objects, values(2), time=LONG_AGO + 1)
    assert array[3:4, 3:4] == values(2)[3, 3]


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_small_shard_is_one_request_known_or_not(
    objects: Any, open_array: Callable[[ps.PartsStore], Any], index_location: str
) -> None:
    shards = {"shape": SHAPE, "index_location": index_location}
    for turn, holes in enumerate((False, True, False)):
        drawn = values(turn, holes=holes)
        write(objects, drawn, time=LONG_AGO + turn, shards=shards)
        array = open_array(ps.PartsStore(objects))
        made = recording(array)
        for region in (np.s_[3:4, 3:4], np.s_[2:11, 4:13], np.s_[12:13, 1:2]):
            found, requests = asked(made, partial(array.__getitem__, region))
            np.testing.assert_array_equal(found, drawn[region])
            assert requests == [GET]


@pytest.mark.parametrize(("shape", "dtype", "expected"), [(512, "uint8", 1), (512, "uint16", 2)])
def test_shard_is_small_up_to_256_kib(shape: int, dtype: str, expected: int) -> None:
    objects = MemoryStore()
    # The index counts, too.
    data = np.ones((shape - 1, shape), dtype)
    zarr.create_array(ObjectStore(objects), name="a", data=data, chunks=(shape - 1, 256), shards=data.shape)
    array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    made = recording(array)
    assert len(asked(made, lambda: array[0, 0])[1]) == expected


def test_small_shard_that_is_absent_or_empty(objects: Any, open_array: Callable[[ps.PartsStore], Any]) -> None:
    write(objects, values(1))
    array = open_array(ps.PartsStore(objects))
    made = recording(array)
    obstore.put(objects, KEY, b"")
    with pytest.raises(Exception, match=r".") as raised:
        array[3:4, 3:4]
    assert not isinstance(raised.value, FileNotFoundError)
    obstore.delete(objects, KEY)
    assert asked(made, lambda: array[3:4, 3:4]) == (0, [GET])


def test_small_shard_whose_index_leads_beyond_its_end_is_an_error(
    objects: Any, open_array: Callable[[ps.PartsStore], Any]
) -> None:
    write(objects, values(1))
    shard = bytes(obstore.get(objects, KEY).bytes())
    # Without its first bytes, all inner chunks are elsewhere, and the last one ends beyond the end.
    obstore.put(objects, KEY, shard[100:])
    array = open_array(ps.PartsStore(objects))
    table = np.frombuffer(shard[-68:-4], "<u8").reshape(2, 2, 2)
    row, column = np.argwhere(table[..., 0] == table[..., 0].max())[0] * 8
    with pytest.raises(PartSizeError):
        array[row : row + 1, column : column + 1]


def test_whole_shards_cost_what_they_did(objects: Any, open_array: Callable[[ps.PartsStore], Any]) -> None:
    write(objects, values(1))
    array = open_array(ps.PartsStore(objects))
    made = recording(array)
    array[3:4, 3:4]
    found, requests = asked(made, lambda: array[...])
    np.testing.assert_array_equal(found, values(1))
    assert requests == [GET]
    assert asked(made, lambda: array.__setitem__(..., values(2)))[1] == [("Put", KEY)]


def test_shard_of_consolidated_metadata_is_known_without_its_document() -> None:
    objects = MemoryStore()
    write(objects, values(1))
    with pytest.warns(ZarrUserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(ObjectStore(objects))
    store = ps.PartsStore(objects)
    array: Any = zarr.open_group(store, mode="r", use_consolidated=True)["a"]
    made = recording(array)
    for expected in ([GET, GET], [GET], [GET]):
        found, requests = asked(made, lambda: array[3, 3])
        assert found == values(1)[3, 3]
        assert requests == expected


@pytest.mark.parametrize("is_used", [False, True])
def test_pickled_store_knows_where_the_index_is(tmp_path: Path, *, is_used: bool) -> None:
    objects = LocalStore(tmp_path)
    write(objects, values(1))
    array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    if is_used:
        array[3, 3]
    copy = pickle.loads(pickle.dumps(array))
    made = recording(copy)
    counted = []
    for _ in range(3):
        found, requests = asked(made, lambda: copy[3, 3])
        assert found == values(1)[3, 3]
        counted.append(requests.count(GET))
    assert counted == [2, 1, 1]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with S3Server(getattr(request, "param", Flaws())) as running:
        yield running


def chunk_calls(server: S3Server, read: Callable[[], Any]) -> list[Call]:
    server.calls.clear()
    read()
    return [call for call in server.calls if "/c/" in call.key]


def test_data_is_asked_for_by_etag_after_an_own_write(server: S3Server) -> None:
    array: Any = zarr.create_array(
        ps.PartsStore(server.store(prefix="d")), name="a", data=values(1), chunks=(8, 8), shards=SHAPE
    )
    for seed in (2, 3):
        assert len(chunk_calls(server, lambda: array[3, 3])) == 2
        (known,) = chunk_calls(server, lambda: array[3, 3])
        assert known.headers["if-match"] == server.buckets["bucket"]["d/a/c/0/0"].etag
        array[...] = values(seed)
        assert array[3, 3] == values(seed)[3, 3]
        array.store.delete_sync(KEY)
        assert array[3, 3] == 0
        array[...] = values(seed)


def test_nothing_is_cached_without_conditions(server: S3Server) -> None:
    write(server.store(prefix="d"), values(1))
    store = ps.PartsStore(server.store(prefix="d", conditional_put="disabled"), concurrency="exclusive")
    array: Any = zarr.open_array(store, path="a")
    for _ in range(3):
        assert len(chunk_calls(server, lambda: array[3, 3])) == 2


def test_nothing_is_cached_over_http(server: S3Server) -> None:
    # Any file server: its ETags may be made of a time in seconds and the size.
    write(server.store(prefix="d"), values(1))
    array: Any = zarr.open_array(
        ps.PartsStore.from_url(f"{server.endpoint}/bucket/d", client_options={"allow_http": True}), path="a", mode="r"
    )
    for _ in range(3):
        assert len(chunk_calls(server, lambda: array[3, 3])) == 2


@pytest.mark.parametrize("time", [None, LONG_AGO])
def test_new_file_is_not_recognised_by_its_time(tmp_path: Path, time: int | None) -> None:
    """Two files that are written within one step of the clock may have the same inode, times and size."""
    objects = LocalStore(tmp_path)
    write(objects, values(1))
    os.utime(tmp_path / KEY, None if time is None else (time, time))
    array: Any = zarr.open_array(ps.PartsStore(objects), path="a", mode="r")
    made = recording(array)
    for _ in range(2):
        assert asked(made, lambda: array[3, 3])[1] == [GET, GET]


@pytest.mark.parametrize(("age", "expected"), [(-5, True), (0, True), (1.9, True), (2.1, False), (1e6, False)])
def test_version_of_a_new_file_may_repeat_until_the_clock_has_moved_on(age: float, *, expected: bool) -> None:
    now = 1_800_000_000.0
    assert journaled._may_repeat(f"{int((now - age) * 1e9):x}", now) is expected


def test_recreated_shard_is_not_read_with_the_index_of_the_old_one(
    tmp_path: Path, open_array: Callable[[ps.PartsStore], Any]
) -> None:
    """The new shard has the inode, the modification time and the size of the other one, and another index."""
    drawn = values(1)
    drawn[:8, :8] = 1
    write(LocalStore(tmp_path), drawn)
    array = open_array(ps.PartsStore(LocalStore(tmp_path)))
    np.testing.assert_array_equal(array[1:7, 1:7], drawn[1:7, 1:7])
    path = tmp_path / KEY
    shard, before = path.read_bytes(), path.stat()
    # The same inner chunks in another order.
    table = np.frombuffer(shard[-68:-4], "<u8").reshape(4, 2).copy()
    chunks = [shard[start : start + nbytes] for start, nbytes in table.tolist()]
    order = np.argsort(table[:, 0])[::-1]
    table[order, 0] = np.cumsum(table[order, 1]) - table[order, 1]
    data = b"".join(chunks[slot] for slot in order) + table.tobytes()
    again = data + np.array(google_crc32c.value(data[-64:]), "<u4").tobytes()
    assert (len(again), again != shard) == (len(shard), True)
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(again)
        os.utime(path, (LONG_AGO, LONG_AGO))
    now = path.stat()
    assert (now.st_ino, now.st_mtime_ns, now.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    np.testing.assert_array_equal(array[1:7, 1:7], drawn[1:7, 1:7])


@pytest.mark.parametrize("key", ["a/c/0", "a/c/0/0/0", "a/notes", "a/c/0/0.tmp"])
def test_object_that_is_no_shard_is_read_every_time(key: str) -> None:
    objects = MemoryStore()
    write(objects, values(1))
    store = ps.PartsStore(objects)
    zarr.open_array(store, path="a", mode="r")
    index = bytes(obstore.get(objects, KEY).bytes())[-68:]
    for content in (index, bytes(68)):
        obstore.put(objects, key, content)
        found = store.get_sync(key, byte_range=SuffixByteRequest(68))
        assert found is not None
        assert found.to_bytes() == content


def test_shard_of_a_session_is_known_until_the_next_snapshot(tmp_path: Path) -> None:
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=values(1), chunks=(8, 8), shards=SHAPE)
    session.commit("first")
    session = repo.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array: Any = zarr.open_array(store, path="a")
    made = recording(array)
    for expected in ([GET, GET], [GET]):
        found, requests = asked(made, lambda: array[3, 3])
        assert found == values(1)[3, 3]
        assert requests == expected
    # A change, by the session's own store: the cache is not used any more.
    zarr.open_array(session.store, path="a")[...] = values(2)
    assert array[3, 3] == values(2)[3, 3]
    assert asked(made, lambda: array[3, 3])[1] == [GET, GET]
    session.discard_changes()
    assert array[3, 3] == values(1)[3, 3]
    zarr.open_array(session.store, path="a")[...] = values(3)
    session.commit("second")
    assert array[3, 3] == values(3)[3, 3]
    assert asked(made, lambda: array[3, 3])[1] == [GET]


def test_index_of_other_shards_at_the_same_key_is_not_used(objects: Any) -> None:
    """Only the document is replaced: the object is still the same, and its index has another size."""
    write(objects, values(1))
    store = ps.PartsStore(objects)
    array: Any = zarr.open_array(store, path="a", mode="r")
    array[3, 3]
    other = MemoryStore()
    write(other, values(1), chunks=(4, 4))
    obstore.put(objects, "a/zarr.json", obstore.get(other, "a/zarr.json").bytes())
    zarr.open_array(store, path="a", mode="r")
    shard = obstore.get(objects, KEY).bytes()
    found = store.get_sync(KEY, byte_range=SuffixByteRequest(16 * 16 + 4))
    assert found is not None
    assert found.to_bytes() == bytes(shard)[-260:]
