"""Clients that write the same chunks at the same time, many chunks in each call: every chunk is of one write."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from integration.conftest import Bucket
from parts_store import Part, PartsStore

SIDE, CHUNK = 8, 4
PARTS = [Part(".head", size=3), Part(""), Part(".tail", size=4)]
ALL = np.s_[:, :]
# Chunks of both regions, and of one of them.
REGIONS = (ALL, np.s_[: 5 * CHUNK, :], np.s_[:, 2 * CHUNK :])
CALLS = 6


def values_in(array: Any) -> list[set[int]]:
    """The values in each chunk."""
    found = np.asarray(array[...]).reshape(SIDE, CHUNK, SIDE, CHUNK).transpose(0, 2, 1, 3).reshape(SIDE**2, -1)
    return [set(each.tolist()) for each in found]


def opened(bucket: Bucket) -> Any:
    return ps.open_array(PartsStore(bucket.store()), path="a", mode="r+")


def test_chunks_that_clients_write_together_are_never_mixed(bucket: Bucket) -> None:
    shape = (SIDE * CHUNK, SIDE * CHUNK)
    made: dict[str, Any] = {"shape": shape, "chunks": (CHUNK, CHUNK), "dtype": "uint8", "compressors": None}
    array = ps.create_array(PartsStore(bucket.store()), "a", parts=PARTS, fill_value=255, **made)
    array[...] = 0
    has_ended = Event()

    def write(client: int) -> None:
        own = opened(bucket)
        for call in range(CALLS):
            # Equal values of different clients have equal ETags.
            own[REGIONS[client % 3]] = 1 + (client + call) % 4

    def write_one() -> None:
        store = PartsStore(bucket.store())
        for call in range(3 * CALLS):
            value = default_buffer_prototype().buffer.from_bytes(bytes([1 + call % 4]) * CHUNK**2)
            store.set_sync(f"a/c/{call % SIDE}/3", value)

    def read() -> int:
        reads = 0
        while not has_ended.is_set():
            assert all(len(each) == 1 for each in values_in(opened(bucket)))
            reads += 1
        return reads

    with ThreadPoolExecutor(6) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, client) for client in range(3)] + [pool.submit(write_one)]
        try:
            for each in writers:
                each.result()
        finally:
            has_ended.set()
        assert reader.result() > 0
    chunks = values_in(opened(bucket))
    assert all(len(each) == 1 for each in chunks)
    # What is stored is what is read, also for other programs: nothing depends on what lies beside the chunks.
    report = PartsStore(bucket.store()).verify()
    assert not report.is_damaged
    assert {each.problem.value for each in report.findings} <= {"leftovers"}
    assert PartsStore(bucket.store()).repair(min_age=0).is_clean
    assert values_in(opened(bucket)) == chunks
    # A single writer leaves nothing.
    opened(bucket)[...] = 7
    assert PartsStore(bucket.store()).verify().is_clean
