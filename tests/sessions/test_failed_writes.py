"""Writes that fail or are cancelled leave no mixture of two writes, also if they are committed."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import Repository as Icechunk
from icechunk import Session
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps
from parts_store.engine.executor import run
from parts_store.errors import IncompleteChunkError
from tests.sessions.failing import fail_at
from tests.sessions.histories import CHUNK, Kind, commit, marked, repository
from tests.sessions.steps import FILL, at, begin, by_split, is_clean, started, values, write_chunk

pytestmark = pytest.mark.slow


def writes_of(number: int) -> dict[str, tuple[Callable[[ps.PartsStore], object], list[int]]]:
    """Return ways to write a chunk, each with the resulting values."""
    span = slice(number * CHUNK, (number + 1) * CHUNK)
    partly = np.arange(number * CHUNK, (number + 1) * CHUNK) if number < 3 else FILL.copy()
    partly[::2] = marked(1000)[::2]
    data = marked(1000).tobytes()

    def write_partly(store: ps.PartsStore) -> None:
        zarr.open_array(store, path="a")[span.start : span.stop : 2] = marked(1000)[::2]

    def write_parts(store: ps.PartsStore) -> None:
        found = store.parts_of("a")
        assert found is not None
        has_header = len(found.parts) == 3
        parts = [data[:8], data[8:-8], data[-8:]] if has_header else [data[:-8], data[-8:]]
        store.set_parts(f"a/c/{number}", parts)

    return {
        "whole": (lambda store: write_chunk(store, number, 1000), marked(1000).tolist()),
        "partly": (write_partly, partly.tolist()),
        "by parts": (write_parts, marked(1000).tolist()),
        "deleted": (lambda store: sync(store.delete(f"a/c/{number}")), FILL.tolist()),
    }


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
@pytest.mark.parametrize("how", ["whole", "partly", "by parts", "deleted"])
def test_committed_write_that_failed_at_any_call_leaves_no_mixture(kind: Kind, number: int, how: str) -> None:
    write, new = writes_of(number)[how]
    repo = repository()
    start = started(kind, repo)
    old = values(at(repo, start))[number * CHUNK :][:CHUNK]
    for failing in itertools.count():
        repo.reset_branch("main", start)
        session, store = begin(repo)
        if not fail_at(store, failing, write):
            break
        _require_old_or_new(session, store, number, old, new)
        _require_discardable(repo, failing, write, number, old)
        session.commit("nevertheless", allow_empty=True)
        done = repo.readonly_session("main")
        _require_old_or_new(done, ps.PartsStore.from_session(done), number, old, new)
        _require_healing(repo, number)
    assert failing >= (1 if how == "deleted" else 2)


def _require_old_or_new(session: Session, store: ps.PartsStore, number: int, old: list[int], new: list[int]) -> None:
    """Check that the chunk and all its ranges have the old or the new values, or raise `IncompleteChunkError`."""
    array = zarr.open_array(store, path="a", mode="r")
    try:
        found: Any = array[number * CHUNK : (number + 1) * CHUNK]
    except IncompleteChunkError:
        # In the main part, which does not need the others.
        with pytest.raises(IncompleteChunkError):
            array[number * CHUNK + 4]
        return
    assert found.tolist() in (old, new)


def _require_discardable(
    repo: Icechunk, failing: int, write: Callable[[ps.PartsStore], object], number: int, old: list[int]
) -> None:
    """Check that the chunk is the old one after the failed write was discarded, and can be written."""
    session, store = begin(repo)
    assert fail_at(store, failing, write)
    session.discard_changes()
    array, span = zarr.open_array(store, path="a"), slice(number * CHUNK, (number + 1) * CHUNK)
    assert np.array_equal(array[span], old)
    write_chunk(store, number, 2000)
    assert np.array_equal(array[span], marked(2000))


def _require_healing(repo: Icechunk, number: int) -> None:
    session, store = begin(repo)
    write_chunk(store, number, 3000)
    done = at(repo, commit(session))
    assert values(done)[number * CHUNK :][:CHUNK] == marked(3000).tolist()
    assert is_clean(done)


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_committed_write_cancelled_at_any_step_leaves_no_mixture(kind: Kind, number: int) -> None:
    repo = repository()
    start = started(kind, repo)
    old = values(at(repo, start))[number * CHUNK :][:CHUNK]
    cancelled = 0
    for turns in itertools.count():
        repo.reset_branch("main", start)
        session, store = begin(repo)
        zarr.open_array(store, path="a")
        if not asyncio.run(_cancelled_after(turns, store, number)):
            break
        cancelled += 1
        _require_old_or_new(session, store, number, old, marked(1000).tolist())
        session.commit("nevertheless", allow_empty=True)
        done = repo.readonly_session("main")
        _require_old_or_new(done, ps.PartsStore.from_session(done), number, old, marked(1000).tolist())
        _require_healing(repo, number)
    assert cancelled >= 3


async def _cancelled_after(requests: int, store: ps.PartsStore, number: int) -> bool:
    """Write a chunk, and be cancelled while so many requests were begun; whether it made so many."""
    backend: Any = store._backend
    begun = itertools.count()

    class Counting:
        has_latency = backend.has_latency

        def lock(self, lock: Any) -> Any:
            return backend.lock(lock)

        async def perform(self, request: Any) -> Any:
            if next(begun) == requests:
                task.cancel()
                await asyncio.sleep(0)
            return await backend.perform(request)

    value = cpu.Buffer.from_bytes(marked(1000).tobytes())
    steps = store._operations.put(f"a/c/{number}", memoryview(value.to_bytes()), store._options)
    counting: Any = Counting()
    task = asyncio.ensure_future(run(steps, counting, store.stats))
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@by_split
def test_a_failed_creation_or_resize_of_an_array_can_be_done_again(kind: Kind) -> None:
    repo = repository()
    start = started(kind, repo)
    for create in (True, False):
        for failing in itertools.count():
            repo.reset_branch("main", start)
            session, store = begin(repo)
            if not fail_at(store, failing, partial(_create_or_resize, kind=kind, create=create)):
                break
            session.commit("nevertheless", allow_empty=True)
            session, store = begin(repo)
            array = _create_or_resize(store, kind, create)
            array[:] = marked(500, array.shape[0])
            done = at(repo, commit(session))
            assert values(done, array.path) == marked(500, array.shape[0]).tolist()
            assert is_clean(done)
        assert failing >= 2


def _create_or_resize(store: ps.PartsStore, kind: Kind, create: bool) -> zarr.Array[Any]:
    if create:
        return kind.create(store, "n", overwrite=True)
    array = zarr.open_array(store, path="a")
    array.resize((16,))
    array.resize((40,))
    return array
