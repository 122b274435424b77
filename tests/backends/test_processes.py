"""Forked processes, and calls that block an event loop: errors at once, and no waiting for ever."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock, Move
from parts_store.errors import ConcurrentWriteError
from tests.backends.pausing import Paused
from tests.certified import create, new_value, read, write

FORK = """
import asyncio, os, signal, sys, tempfile
import numpy as np, zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu
import parts_store as ps

kind, before, *after = sys.argv[1:]
store = ps.PartsStore(MemoryStore() if kind == "memory" else LocalStore(tempfile.mkdtemp(), automatic_cleanup=True))
one = cpu.Buffer.from_bytes(b"1")

async def names():
    return [key async for key in store.list()]

uses = {
    "nothing": lambda: None,
    "sync": lambda: store.set_sync("x", one),
    "async": lambda: asyncio.run(store.set("x", one)),
    "list": lambda: asyncio.run(names()),
    "zarr": lambda: zarr.create_array(store, name="a", shape=(4,), dtype="uint8", overwrite=True).__setitem__(..., 1),
}
uses[before]()
for use in after:
    child = os.fork()
    if not child:
        signal.alarm(600)
        try:
            uses[use]()
        except ps.errors.StoreConfigError as error:
            print(error, flush=True)
        else:
            print("worked", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, (use, status)
"""


def forked(kind: str, before: str, *after: str) -> list[str]:
    """What forks say that use a store in these ways, of a process that used it in another."""
    command = [sys.executable, "-W", "ignore", "-c", FORK, kind, before, *after]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_store_in_a_forked_process_raises_and_names_spawn(kind: str) -> None:
    said = forked(kind, "async", "sync", "async", "list", "zarr")
    assert len(said) == 4
    assert all("'spawn'" in each and "'forkserver'" in each for each in said)


@pytest.mark.slow
def test_a_fork_of_a_process_that_used_no_store_works() -> None:
    assert forked("local", "nothing", "zarr") == ["worked"]


HOLDER = """
import os, sys, time
from obstore.store import LocalStore
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock
release = LocalBackend(LocalStore(sys.argv[1])).lock(Lock("a/.parts-txn/0.lock", "test", "a/.parts-txn/array.lock"))
child = os.fork()
if not child:
    # Whatever a child does with what it has inherited, the lock is its parent's.
    release()
    os.write(1, b"x")
    time.sleep(600)
print(f" {child}", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_forked_child_does_not_share_the_lock_of_its_parent(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    backend = store._backend
    assert isinstance(backend, LocalBackend)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        said = b""
        while b"x" not in said or b"\n" not in said:
            said += os.read(parent.stdout.fileno(), 100)
        child = int(said.replace(b"x", b""))
        try:
            shared = "a/.parts-txn/array.lock"
            locks = (Lock("a/.parts-txn/0.lock", "test", shared), Lock(shared, "test"))
            assert (tmp_path / shared).exists()
            for lock in locks:
                assert backend.lock(lock) is None
            parent.kill()
            parent.wait()
            for lock in locks:
                release = backend.lock(lock)
                assert release is not None
                release()
        finally:
            os.kill(child, 9)
            parent.kill()


# --- event loops ------------------------------------------------------------------------------------------------------


def test_set_sync_does_not_wait_for_a_task_of_its_own_event_loop(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    create(store, "a")
    value = new_value(random.Random(0))

    async def blocked() -> list[str]:
        """Call `set_sync` on the thread of the loop while a task holds the lock of the chunk."""
        refused = []
        for pause in range(12):
            task = asyncio.create_task(store.set("a/c/0", cpu.Buffer.from_bytes(value)))
            for _ in range(pause):
                await asyncio.sleep(0)
            try:
                write(store, "a/c/0", value)
            except ConcurrentWriteError as error:
                refused.append(str(error))
            await task
        return refused

    refused = asyncio.run(blocked())
    assert refused
    assert all("await `set`" in each for each in refused)
    assert read(store, "a/c/0") == value


def test_set_sync_on_an_event_loop_thread_waits_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parts_store.engine.executor._MAX_SECONDS_ON_LOOP", 0.1)
    store = ps.PartsStore.from_url(tmp_path)
    create(store, "a")
    backend = store._backend
    assert isinstance(backend, LocalBackend)
    value = new_value(random.Random(0))
    holder = Paused(store._operations.put("a/c/0", memoryview(value), store._options), backend)
    holder.go_until(Move)

    async def blocked() -> None:
        with pytest.raises(ConcurrentWriteError, match="await `set`"):
            write(store, "a/c/0", value)

    asyncio.run(blocked())
    holder.finish()
    assert read(store, "a/c/0") == value
