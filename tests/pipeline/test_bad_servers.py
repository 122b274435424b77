"""A server that stalls or refuses requests: bounded requests, one error, an early end after Ctrl-C, no torn chunks."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.errors import PartsStoreError, StoreConfigError
from tests.s3_server import Call, Reply, S3Server

SECONDS = 300
WORKERS = 4
PARTS: dict[str, list[Any]] = {
    "one object": [""],
    "three parts": [ps.Part(".head", size=2), "", ps.Part(".tail", size=2)],
}
CHUNKED: dict[str, Any] = {"shape": (64, 4), "chunks": (2, 4), "dtype": "uint16", "compressors": None}
SHARDED: dict[str, Any] = {**CHUNKED, "chunks": (1, 2), "shards": (2, 4)}
VALUES = np.arange(1, 257, dtype="uint16").reshape(64, 4)


class Stall:
    """Holds requests for chunks back until it is over, and counts how many are held back at the same time."""

    def __init__(self, server: S3Server, method: str = "GET") -> None:
        self.is_over = threading.Event()
        self.at_once = 0
        self.changed = threading.Condition()
        self.method = method
        server.calls.clear()
        server.before = self._hold

    def _hold(self, call: Call) -> Reply | None:
        if call.method == self.method and "/c/" in call.key:
            with self.changed:
                self.at_once += 1
                self.changed.notify_all()
            assert self.is_over.wait(2 * SECONDS)
        return None

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.at_once >= count, SECONDS)


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(autouse=True)
def workers() -> Iterator[None]:
    with zarr.config.set({"codec_pipeline.max_workers": WORKERS}):
        yield


def create(server: S3Server, parts: list[Any], **arguments: Any) -> zarr.Array[Any]:
    store = ps.PartsStore(server.store(prefix="data"))
    array = ps.create_array(store, "a", parts=parts, **(arguments or CHUNKED))
    array[...] = VALUES
    return array


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", PARTS)
def test_requests_in_flight_are_bounded_by_the_workers(server: S3Server, parts: str) -> None:
    array = create(server, PARTS[parts])
    stall = Stall(server)
    with ThreadPoolExecutor(1) as caller:
        reading = caller.submit(lambda: array[...])
        stall.wait_for(WORKERS)
        # A further request would be made within this time.
        threading.Event().wait(0.2)
        assert stall.at_once == WORKERS
        stall.is_over.set()
        np.testing.assert_array_equal(reading.result(SECONDS), VALUES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("nbytes", "at_once"), [(1 << 18, 128), ((1 << 18) + 8, 32)])
def test_many_small_chunks_are_read_at_the_same_time(server: S3Server, nbytes: int, at_once: int) -> None:
    rows = nbytes // 8
    store = ps.PartsStore(server.store(prefix="data"))
    zarr.create_array(store, shape=(132 * rows, 4), chunks=(rows, 4), dtype="uint16", compressors=None, fill_value=0)
    array = ps.open_array(store)
    stall = Stall(server)
    with zarr.config.set({"codec_pipeline.max_workers": None}), ThreadPoolExecutor(1) as caller:
        reading = caller.submit(lambda: array[...])
        stall.wait_for(at_once)
        threading.Event().wait(0.2)
        assert stall.at_once == at_once
        stall.is_over.set()
        assert not np.any(reading.result(SECONDS))


@pytest.mark.parametrize("layout", ["chunks", "shards"])
async def test_a_cancelled_read_makes_no_further_request(server: S3Server, layout: str) -> None:
    create(server, PARTS["one object"], **(CHUNKED if layout == "chunks" else SHARDED))
    # A store that knows no index.
    array = ps.open_array(ps.PartsStore(server.store(prefix="data")), "a").async_array
    stall = Stall(server)
    # Of every shard, the index is read first.
    reading = asyncio.ensure_future(array.getitem(np.s_[:, :2]))
    await asyncio.to_thread(stall.wait_for, WORKERS)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    made = len(server.calls)
    stall.is_over.set()
    # What was under way ends; then the threads have time for another call.
    server.before = None
    found = await array.getitem(np.s_[0, 0])
    assert found == VALUES[0, 0]
    chunk_calls = [call for call in server.calls[made:] if "/c/" in call.key and not call.key.endswith("c/0/0")]
    assert chunk_calls == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", PARTS)
async def test_a_cancelled_write_ends_what_is_under_way_and_begins_nothing(server: S3Server, parts: str) -> None:
    created = create(server, PARTS[parts])
    array = created.async_array
    stall = Stall(server, "PUT")
    writing = asyncio.ensure_future(array.setitem(np.s_[...], VALUES + 1000))
    await asyncio.to_thread(stall.wait_for, WORKERS)
    writing.cancel()
    await asyncio.wait([writing], timeout=0.1)
    # A request that continues after the call has ended could overwrite a later write.
    assert not writing.done()
    stall.is_over.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    made = len(server.calls)
    found = np.asarray(zarr.open_array(ps.PartsStore(server.store(prefix="data")), path="a")[...])
    is_new = [bool(np.array_equal(found[at : at + 2], VALUES[at : at + 2] + 1000)) for at in range(0, 64, 2)]
    is_old = [bool(np.array_equal(found[at : at + 2], VALUES[at : at + 2])) for at in range(0, 64, 2)]
    assert all(new != old for new, old in zip(is_new, is_old, strict=True))
    assert 0 < sum(is_new) <= WORKERS
    assert not any(call.method == "PUT" for call in server.calls[made:])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_refused_request_is_one_error_with_its_key(server: S3Server, parts: str, method: str) -> None:
    array = create(server, PARTS[parts])

    def refuse(call: Call) -> Reply | None:
        return Reply(403) if call.method == method and "/c/17/0" in call.key else None

    server.before = refuse
    before = set(threading.enumerate())
    with pytest.raises(PartsStoreError, match="a/c/17/0") as raised:
        array[...] if method == "GET" else array.__setitem__(..., VALUES + 1000)
    assert not isinstance(raised.value, BaseExceptionGroup)
    # The server has a thread for each connection as well.
    begun = [each for each in set(threading.enumerate()) - before if each.name.startswith("parts_store")]
    assert len(begun) <= 2 * WORKERS + 32
    server.before = None
    found = np.asarray(ps.open_array(ps.PartsStore(server.store(prefix="data")), "a")[...])
    np.testing.assert_array_equal(found[34:36], VALUES[34:36])
    for at in range(0, 64, 2):
        assert found[at : at + 2].tolist() in (VALUES[at : at + 2].tolist(), (VALUES[at : at + 2] + 1000).tolist())


@pytest.mark.slow
def test_many_threads_read_many_arrays_with_few_workers(server: S3Server) -> None:
    array = create(server, PARTS["three parts"])
    with zarr.config.set({"codec_pipeline.max_workers": 1}), ThreadPoolExecutor(16) as callers:
        for found in callers.map(lambda _: np.asarray(array[...]), range(48)):
            np.testing.assert_array_equal(found, VALUES)


def test_a_codec_may_read_another_array_while_all_workers_wait_for_theirs() -> None:
    store = ps.PartsStore(MemoryStore())
    other = ps.create_array(store, "other", parts=[""], **CHUNKED)
    other[...] = VALUES

    def read_other(chunk: bytes) -> bytes:
        return np.asarray(other[...]).tobytes()[:4]

    codec = ps.codecs.pad_codec(4, padding_func=read_other)
    array = ps.create_array(store, "a", parts=[""], **{**CHUNKED, "compressors": [codec]})
    array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)


CHILD = """
import sys, numpy, signal, zarr
from obstore.store import S3Store
import parts_store as ps
def once(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, once)
options = {options!r}
array = ps.open_array(ps.PartsStore(S3Store("bucket", prefix="data", **options)), "a", mode="r+")
print("open", flush=True)
try:
    {statement}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("statement", ["array[...]", "array[3, 1]", "array[...] = 7"])
def test_ctrl_c_ends_a_call_and_its_process_while_the_server_stalls(
    server: S3Server, parts: str, statement: str
) -> None:
    create(server, PARTS[parts])
    stall = Stall(server, "PUT" if "=" in statement else "GET")
    script = CHILD.format(options=server.options(), statement=statement)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            stall.wait_for(1)
            # Python forgets an interrupt that arrives just before the main thread begins to wait: then the next one
            # counts. The server responds only after the process has ended.
            end = time.monotonic() + SECONDS
            while process.poll() is None and time.monotonic() < end:
                process.send_signal(signal.SIGINT)
                time.sleep(0.1)
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            stall.is_over.set()
            process.kill()
    assert output.split() == ["open", "interrupted"]
    assert process.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_refused_and_does_not_hang(server: S3Server) -> None:
    array = create(server, PARTS["three parts"])
    np.testing.assert_array_equal(array[...], VALUES)
    child = os.fork()
    if child == 0:
        try:
            array[...]
        except StoreConfigError:
            os._exit(42)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
