"""How many requests a call makes, and that the chunks of a call are read at the same time."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from tests.conftest import PIPELINES
from tests.s3_server import Call, S3Server

POINTS = np.random.default_rng(0).integers(0, 64, (2, 64))
VALUES = np.arange(1, 64 * 64 + 1, dtype="uint16").reshape(64, 64)
LAYOUTS: dict[str, list[Any]] = {
    "one object": [""],
    "index beside the data": ["", ps.Part(".index", size=ps.SHARD_INDEX)],
}
SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "points": lambda array: array.vindex[tuple(POINTS)],
    "arrays along the axes": lambda array: array.oindex[POINTS[0, :8], POINTS[1, :8]],
    "a mask": lambda array: array.vindex[VALUES % 60 == 0],
    "an integer": lambda array: array[17],
    "an array and an integer": lambda array: array.oindex[POINTS[0, :8], 3],
    "steps": lambda array: array[::5, 1::7],
}

SHARD_NUMBERS = np.kron(np.arange(16).reshape(4, 4), np.ones((16, 16), int))


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def shard_of(call: Call) -> str:
    return call.key.removesuffix(".index")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_selection_of_many_shards_takes_two_round_trips_and_then_one(
    server: S3Server, layout: str, selection: str
) -> None:
    select = SELECTIONS[selection]
    store = ps.PartsStore(server.store(prefix="data"))
    shape: dict[str, Any] = {"shape": (64, 64), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
    ps.create_array(store, "a", parts=LAYOUTS[layout], compressors=None, **shape)[...] = VALUES
    array = ps.open_array(ps.PartsStore(server.store(prefix="data")), "a")
    # zarr's own store and pipeline.
    expected = select(zarr.array(VALUES))
    touched = len(np.unique(select(zarr.array(SHARD_NUMBERS))))
    for round_trips in (2, 1) if layout != "one object" else (2,):
        server.calls.clear()
        # No request is answered before that of every other shard has arrived: so all are made at the same time.
        barriers = [threading.Barrier(touched) for _ in range(round_trips)]
        counts = Counter[str]()
        lock = threading.Lock()

        def hold(
            call: Call,
            barriers: list[threading.Barrier] = barriers,
            counts: Counter[str] = counts,
            lock: threading.Lock = lock,
        ) -> None:
            if "/c/" in call.key:
                with lock:
                    counts[shard_of(call)] += 1
                    number = counts[shard_of(call)] - 1
                barriers[number].wait(300)

        server.before = hold
        np.testing.assert_array_equal(select(array), expected)
        server.before = None
        assert set(counts.values()) == {round_trips}
        assert len(counts) == touched


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_shards_at_the_end_of_the_array_are_read_before_a_write(server: S3Server, layout: str) -> None:
    """As by zarr: they may hold values from before the array was shrunk."""
    shape: dict[str, Any] = {"shape": (40, 40), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
    read: dict[str, list[Counter[str]]] = {"fused": [], "parts": []}
    for pipeline, counts in read.items():
        store = ps.PartsStore(server.store(prefix=pipeline))
        ps.create_array(store, "a", parts=LAYOUTS[layout], compressors=None, **shape)
        with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
            array: Any = zarr.open_array(store, path="a")
        for number in range(2):
            server.calls.clear()
            array[...] = VALUES[:40, :40] + number
            calls = [call for call in server.calls if call.method == "GET" and "/c/" in call.key]
            counts.append(Counter(call.key.partition("/")[2] for call in calls))
    assert read["parts"] == read["fused"]
    at_end = {f"a/c/{row}/{column}" for row in range(3) for column in range(3) if 2 in (row, column)}
    for requests in read["parts"]:
        assert {key.removesuffix(".index") for key in requests} == at_end
        assert set(requests.values()) == {1}
