"""Reads and writes of one session at the same time, and what a read costs."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.icechunk_session import SessionBackend
from parts_store.engine.executor import run_sync
from parts_store.engine.stats import Stats
from parts_store.errors import ConcurrentWriteError
from tests.backends.icechunk_session.stores import (
    KINDS,
    LAYOUTS,
    PROTOTYPE,
    SHARDED,
    buffer,
    cut,
    in_threads,
    make_bytes,
    make_sharded,
    value_of,
)
from tests.conftest import PIPELINES


def test_random_read_of_a_whole_shard_is_two_requests(
    repository: icechunk.Repository, session: icechunk.Session, pipeline: str
) -> None:
    make_sharded(ps.PartsStore.from_session(session), split=False)
    session.commit("an array")
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = zarr.open_array(store, path="a")
    for expected, saved in ((2, 0), (1, 1), (1, 1)):
        planned = store.explain("a", np.s_[5])
        store.stats.reset()
        assert array[5] == 6
        assert {kind: count for kind, count in store.stats.calls.items() if count} == {"get": expected}
        assert store.stats.saved_by_index_cache == saved
        assert [request.kind for request in planned] == ["get"] * expected
        assert {request.key for request in planned} == {"a/c/0"}
    data = planned[-1]
    assert (data.start, data.stop) == (4, 6)


def test_random_read_of_a_split_shard_reads_the_index_node(
    repository: icechunk.Repository, session: icechunk.Session, pipeline: str
) -> None:
    make_sharded(ps.PartsStore.from_session(session), split=True)
    session.commit("an array")
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = zarr.open_array(store, path="a")
    planned = store.explain("a", np.s_[5])
    assert [request.key for request in planned if request.kind == "get"] == ["a/__parts__/.index/c/0", "a/c/0"]
    store.stats.reset()
    assert array[5] == 6
    assert store.stats.get == 2
    assert len(planned) == sum(store.stats.calls.values())
    store.stats.reset()
    assert array[6] == 7
    assert {kind: count for kind, count in store.stats.calls.items() if count} == {"get": 1}


def read_again(array: Any, selection: Any) -> Any:
    """Read until no write happens during the read."""
    for _ in range(1000):
        try:
            return array[selection]
        except ConcurrentWriteError:
            continue
    pytest.fail("never came to rest")


# zarr's batched pipeline does not tell for which write it reads a plain chunk.
@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(("chosen", "sharded"), [("batched", True), ("fused", True), ("fused", False)])
def test_threads_that_change_one_chunk_lose_no_update(
    store: ps.PartsStore, chosen: str, *, sharded: bool, split: bool
) -> None:
    chunks: dict[str, Any] = {"chunks": (2,), "shards": (8,)} if sharded else {"chunks": (8,), "shards": None}
    parts: Any = SHARDED if sharded else ["", ps.Part(".t", size=2)]
    options: dict[str, Any] = {"shape": (8,), "dtype": "uint8", "compressors": None, **chunks}
    ps.create_array(store, "a", parts=parts, split=split, **options)[:] = 1

    def writer(at: int) -> Callable[[], None]:
        def write() -> None:
            array = zarr.open_array(store, path="a")
            for value in range(2, 12):
                for _ in range(1000):
                    try:
                        array[at : at + 2] = value
                    except ConcurrentWriteError:
                        continue
                    break
                # There is no other writer: the value stays.
                np.testing.assert_array_equal(read_again(array, np.s_[at : at + 2]), [value] * 2)

        return write

    with zarr.config.set({"codec_pipeline.path": PIPELINES[chosen]}):
        in_threads(*(writer(at) for at in (0, 2, 4, 6)))
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], [11] * 8)
    assert store.verify().is_clean


@KINDS
def test_whole_write_waits_for_a_change_of_the_chunk(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    backend = store._backend
    assert isinstance(backend, SessionBackend)
    record = store.catalog.arrays()["a"]
    chunk = record.chunk("a", "c/0")
    parts = [b"x", b"changed", b"yz"] if split else [b"xchangedyz"]
    seen = run_sync(seen_of(chunk, store), backend, Stats())
    steps = store.protocol.write(chunk, [memoryview(part) for part in parts], seen)
    lock = next(steps)
    taken = backend.lock(lock[0])  # type: ignore[arg-type]  # the first step
    assert taken is not None
    done = threading.Event()

    def overwrite() -> None:
        store.set_sync("a/c/0", buffer(b"overwritten"))
        done.set()

    thread = threading.Thread(target=overwrite)
    thread.start()
    assert not done.wait(0.1)
    steps.close()
    taken()
    thread.join(300)
    assert done.is_set()
    assert value_of(store, "a/c/0") == b"overwritten"


def seen_of(chunk: Any, store: ps.PartsStore) -> Any:
    read = yield from store.protocol.read(chunk, [None], store._operations.reader.settings(), with_anchor=True)
    assert read is not None
    return read.version


@pytest.mark.slow
@KINDS
def test_range_read_beside_writers_returns_bytes_of_one_write(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    # Each value has its own size, and says at its end and everywhere else which one it is.
    values = [bytes([number]) * (4 + 7 * number % 40) for number in range(1, 200)]
    store.set_sync("a/c/0", buffer(values[0]))

    async def both() -> int:
        is_over = False
        reads = 0

        async def read(wanted: ByteRequest | None) -> None:
            nonlocal reads
            while not is_over:
                # Also where nothing has to be waited for, others get their turn.
                await asyncio.sleep(0)
                try:
                    found = await store.get("a/c/0", PROTOTYPE, wanted)
                except ConcurrentWriteError:
                    continue
                assert found is not None
                data = found.to_bytes()
                assert len(set(data)) == 1
                assert len(data) == len(cut(values[data[0] - 1], wanted))
                reads += 1

        wanted: list[ByteRequest | None] = [None, SuffixByteRequest(3), RangeByteRequest(1, 9), OffsetByteRequest(2)]
        readers = [asyncio.ensure_future(read(each)) for each in wanted]
        for value in values[1:]:
            await store.set("a/c/0", buffer(value))
        is_over = True
        await asyncio.gather(*readers)
        return reads

    assert sync(both()) > 0
    assert value_of(store, "a/c/0") == values[-1]


@pytest.mark.slow
@KINDS
def test_readers_of_a_shard_beside_its_writer_never_see_a_mixture(
    store: ps.PartsStore, pipeline: str, *, split: bool
) -> None:
    # Compressed, so that every inner chunk is elsewhere in every write.
    array = make_sharded(store, split=split, compressors=[zarr.codecs.GzipCodec(level=1)])
    array[:8] = 1
    is_over = threading.Event()

    def write() -> None:
        writing = zarr.open_array(store, path="a")
        try:
            for number in range(2, 40):
                # All of one write are alike modulo 50, and differ in how many bytes they take.
                writing[:8] = [number, number, number + 50, number, number, number + 50, number, number][:8]
        finally:
            is_over.set()

    reads = []

    def read(selection: Any) -> Callable[[], None]:
        def target() -> None:
            reading = zarr.open_array(store, path="a")
            while not is_over.is_set():
                try:
                    found = reading[selection]
                except ConcurrentWriteError:
                    continue
                assert len(set((np.asarray(found) % 50).tolist())) == 1, found
                reads.append(1)

        return target

    in_threads(write, read(np.s_[0:8]), read(np.s_[1:7:5]), read(np.s_[3:6]))
    assert reads
