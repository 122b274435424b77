"""Files in several stores: what the backend returns, what it rejects, and which errors it raises."""

import asyncio
import itertools
from typing import Any

import pytest
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from parts_store.backends.registered_files import RegisteredFiles
from parts_store.engine.executor import run
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Found, Get, Head, Lock, Missing, Outcome, OutOfRange, StepRequest, Steps
from parts_store.errors import LocationError

DATA = b"abcdefgh"


def files(store: Any, *names: str) -> RegisteredFiles:
    return RegisteredFiles({f"s3://b/{name}": (store, name) for name in names})


def get(name: str, start: int, stop: int) -> Get:
    return Get(f"s3://b/{name}", RangeByteRequest(start, stop), "test")


def steps(*requests: StepRequest) -> Steps[tuple[Outcome, ...]]:
    return (yield requests)


@pytest.fixture
def memory() -> MemoryStore:
    store = MemoryStore()
    store.put("f", DATA)
    return store


def test_ranges_are_read_with_etag_and_time(memory: MemoryStore) -> None:
    meta = memory.head("f")
    for start, stop in itertools.combinations(range(len(DATA) + 1), 2):
        outcome = asyncio.run(files(memory, "f").perform(get("f", start, stop)))
        assert isinstance(outcome, Found)
        assert bytes(outcome.data) == DATA[start:stop]
        assert (outcome.nbytes, outcome.etag, outcome.modified) == (len(DATA), meta["e_tag"], meta["last_modified"])


def test_missing_file_and_range_beyond_end_are_outcomes(memory: MemoryStore) -> None:
    assert asyncio.run(files(memory, "x").perform(get("x", 0, 1))) == Missing()
    assert asyncio.run(files(memory, "f").perform(get("f", 100, 101))) == OutOfRange()


def test_other_requests_are_rejected(memory: MemoryStore) -> None:
    backend = files(memory, "f")
    for request in (Head("s3://b/f", "test"), Get("s3://b/f", None, "test"), Get("s3://b/f", SuffixByteRequest(1), "")):
        with pytest.raises(TypeError, match="can only be read"):
            asyncio.run(backend.perform(request))
    with pytest.raises(TypeError):
        backend.perform_sync(get("f", 0, 1))
    with pytest.raises(TypeError):
        backend.lock(Lock("l", "test"))


class Failing:
    """A store whose requests fail, and which counts them."""

    def __init__(self) -> None:
        self.requests = 0

    async def get_async(self, key: str, *, options: Any) -> Any:
        self.requests += 1
        raise ConnectionError(f"cannot read {options} of {key}")


def test_failed_read_is_a_location_error_and_stops_the_others() -> None:
    store = Failing()
    wanted = [get("f", start, start + 1) for start in range(100)]
    with pytest.raises(LocationError, match=r"'s3://b/f': the file could not be read: ConnectionError"):
        asyncio.run(run(steps(*wanted), files(store, "f"), Stats(), at_once=4))
    assert store.requests <= 4
