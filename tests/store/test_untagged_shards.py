"""A shard that another program replaces between the index read and the data read is never read as a mixture."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from parts_store.errors import ConcurrentWriteError
from parts_store.store import chunk_reads
from tests.s3_server import Call, Flaws, S3Server

LAYOUTS: dict[str, list[ps.Part] | None] = {
    # Inner chunks lie in the header, in the data, and in both.
    "the index beside the data": [ps.Part(".header", size=40), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)],
    "the index with the data": [ps.Part(".header", size=40), ps.Part("")],
    "one part": [ps.Part("")],
    "no parts": None,
}
SERVERS = [Flaws(), Flaws(has_unique_etags=True), Flaws(ignores_if_match_on_get=True)]
SHAPE = (16, 16)
# Inner chunks of a size of their own, so that the index of one write does not fit the data of another.
OLD = np.random.default_rng(0).integers(1, 1000, SHAPE).astype("uint16")
NEW = np.repeat(np.arange(1, 17, dtype="uint16"), 16).reshape(SHAPE)
SELECTION = np.s_[1:10, 3:9]


@pytest.fixture(autouse=True)
def no_small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the index and the data of a shard without parts with two requests, as those of a large shard."""
    monkeypatch.setattr(chunk_reads, "_SMALL", 0)


@pytest.fixture(params=SERVERS, ids=["S3", "unique ETags", "If-Match ignored on GET"])
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with S3Server(request.param) as running:
        yield running


def chunks_of(parts: Sequence[ps.Part] | None, values: NDArray[Any], index_location: str = "end") -> dict[str, bytes]:
    """All objects of an array, as another program writes them: without tags."""
    objects = MemoryStore()
    arguments: dict[str, Any] = {"shape": SHAPE, "chunks": (4, 4), "dtype": "uint16"}
    arguments["shards"] = {"shape": SHAPE, "index_location": index_location}
    store = ps.PartsStore(objects)
    array = (
        zarr.create_array(store, name="a", **arguments)
        if parts is None
        else ps.create_array(store, "a", parts=parts, **arguments)
    )
    array[...] = values
    keys = [each["path"] for batch in obstore.list(objects) for each in batch]
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys if ".parts-txn" not in key}


def put_all(server: S3Server, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        server.put_object(f"data/{key}", data)


def is_chunk(call: Call) -> bool:
    return call.method in ("GET", "HEAD") and "/a/c/" in call.key


def replacing(server: S3Server, objects: dict[str, bytes], at: int) -> Callable[[Call], None]:
    """Return a hook that replaces all objects before the request with this number."""
    counts = Counter[str]()

    def before(call: Call) -> None:
        if is_chunk(call):
            counts["all"] += 1
            if counts["all"] == at:
                put_all(server, objects)

    return before


def reader(server: S3Server) -> zarr.Array[Any]:
    store = ps.PartsStore(server.store(prefix="data"), read_only=True)
    return zarr.open_array(store, path="a", mode="r")


@pytest.mark.sampled(44)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", range(2, 6))
def test_replaced_shard_is_old_or_new(server: S3Server, layout: str, at: int, pipeline: str) -> None:
    parts = LAYOUTS[layout]
    put_all(server, chunks_of(parts, OLD))
    array = reader(server)
    server.before = replacing(server, chunks_of(parts, NEW), at)
    # Where the index has no holes, there is no error: the new index is read.
    found = array[SELECTION]
    assert any(np.array_equal(found, values[SELECTION]) for values in (OLD, NEW))
    if at == 2:
        # It was replaced after the first request, that for the index: the data is read where the new index says.
        np.testing.assert_array_equal(found, NEW[SELECTION])
    server.before = None
    # A repeated read is what is there.
    stored = NEW if at <= sum(map(is_chunk, server.calls)) else OLD
    np.testing.assert_array_equal(array[SELECTION], stored[SELECTION])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shard_with_holes_that_is_replaced_is_old_or_an_error(layout: str, pipeline: str) -> None:
    """What is a hole in the old index is filled in already: nothing can be put right."""
    old = OLD.copy()
    old[:4, :4] = 0
    parts = LAYOUTS[layout]
    for at in range(2, 6):
        with S3Server() as server:
            put_all(server, chunks_of(parts, old))
            array = reader(server)
            server.before = replacing(server, chunks_of(parts, NEW), at)
            try:
                found = array[:9, :9]
            except ConcurrentWriteError:
                continue
            assert any(np.array_equal(found, values[:9, :9]) for values in (old, NEW))


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_the_data_of_a_plain_shard_is_asked_for_by_the_etag_of_its_index(index_location: str, pipeline: str) -> None:
    with S3Server() as server:
        put_all(server, chunks_of(None, OLD, index_location))
        array = reader(server)
        server.calls.clear()
        np.testing.assert_array_equal(array[SELECTION], OLD[SELECTION])
        index, *data = [call for call in server.calls if is_chunk(call)]
        etag = server.buckets["bucket"]["data/a/c/0/0"].etag
        assert index.conditions == ()
        assert {call.headers.get("if-match") for call in data} == {etag}
        # As many requests as without a condition: the ranges lie close.
        assert len(data) == 1
        # A known shard: the data alone. Replaced, the data is refused; then the new index, and the data by its ETag.
        server.calls.clear()
        np.testing.assert_array_equal(array[SELECTION], OLD[SELECTION])
        assert [call.headers.get("if-match") for call in server.calls] == [etag]
        put_all(server, chunks_of(None, NEW, index_location))
        new_etag = server.buckets["bucket"]["data/a/c/0/0"].etag
        server.calls.clear()
        np.testing.assert_array_equal(array[SELECTION], NEW[SELECTION])
        assert [call.headers.get("if-match") for call in server.calls] == [etag, None, new_etag]


REQUESTS = {
    "the index beside the data": [("GET", ".index"), ("GET", ""), ("GET", ".header"), ("HEAD", ".index")],
    "the index with the data": [("GET", ""), ("GET", ""), ("GET", ".header"), ("HEAD", "")],
    "one part": [("GET", ""), ("GET", "")],
    "no parts": [("GET", ""), ("GET", "")],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_untagged_shard_costs_one_head_more_for_several_objects(layout: str, pipeline: str) -> None:
    with S3Server() as server:
        put_all(server, chunks_of(LAYOUTS[layout], OLD))
        array = reader(server)
        server.calls.clear()
        # The first two inner chunks are in the header and behind it.
        np.testing.assert_array_equal(array[:2, :6], OLD[:2, :6])
        seen = [(call.method, call.key.removeprefix("data/a/c/0/0")) for call in server.calls if is_chunk(call)]
        assert Counter(seen) == Counter(REQUESTS[layout])
        assert seen[0] == REQUESTS[layout][0]
        assert seen[-1][0] == REQUESTS[layout][-1][0]


def test_a_tagged_shard_costs_what_it_did_and_carries_no_condition(pipeline: str) -> None:
    with S3Server() as server:
        store = ps.PartsStore(server.store(prefix="data"))
        parts = LAYOUTS["the index beside the data"]
        assert parts is not None
        array = ps.create_array(store, "a", parts=parts, shape=SHAPE, chunks=(4, 4), shards=SHAPE, dtype="uint16")
        array[...] = OLD
        server.calls.clear()
        np.testing.assert_array_equal(reader(server)[:2, :6], OLD[:2, :6])
        seen = [call for call in server.calls if is_chunk(call)]
        assert Counter(call.method for call in seen) == {"GET": 3}
        assert not any(call.conditions for call in seen)


def test_a_range_that_was_read_for_its_own_sake_holds_nothing_up() -> None:
    """Only the ranges that follow in the same context are held to it, once, and not after a write."""
    prototype = default_buffer_prototype()
    store = ps.PartsStore(MemoryStore())
    new = prototype.buffer.from_bytes(b"0123456789")
    ranges = [RangeByteRequest(0, 2), RangeByteRequest(8, 10)]

    def read() -> list[bytes]:
        return [
            buffer.to_bytes()
            for _, buffer in store.get_ranges_sync("k", ranges, prototype=prototype)
            if buffer is not None
        ]

    store.set_sync("k", prototype.buffer.from_bytes(b"abcdefghij"))
    store.get_sync("k", byte_range=SuffixByteRequest(2))
    store.set_sync("k", new)
    assert read() == [b"01", b"89"]
    store.get_sync("k", byte_range=SuffixByteRequest(2))
    obstore.put(store.store, "k", b"abcdefghij")
    with pytest.raises(ConcurrentWriteError):
        read()
    assert read() == [b"ab", b"ij"]
