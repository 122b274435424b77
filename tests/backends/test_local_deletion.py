"""Deletion on a local disk beside writers: a lock has one owner, and a chunk is one whole write or absent."""

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import parts_store as ps
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Lock, Move
from parts_store.errors import ConcurrentWriteError
from parts_store.transactions import locking
from parts_store.transactions.locking import array_locks
from tests.backends.deletion_schedules import files, mend_document, schedule
from tests.backends.pausing import Paused
from tests.certified import CHUNKS, create, is_whole, new_value, read, write

LOCK = Lock("g/a/.parts-txn/0123.lock", "test")
KEY = "g/a/c/0"


@pytest.fixture
def store(folder: Path) -> ps.PartsStore:
    store = ps.PartsStore.from_url(folder)
    create(store, "g/a")
    assert store.parts_of("g/a") is not None
    return store


def backend_of(store: ps.PartsStore) -> LocalBackend:
    backend = store._backend
    assert isinstance(backend, LocalBackend)
    return backend


def writing(store: ps.PartsStore, value: bytes, key: str = KEY) -> Paused[None]:
    """A write that does nothing by itself."""
    steps = store._operations.put(key, memoryview(value), store._options)
    return Paused(steps, backend_of(store))


def test_dead_deletion_does_not_block_writers(store: ps.PartsStore, folder: Path) -> None:
    for key in array_locks("g/a"):
        (folder / key).parent.mkdir(exist_ok=True)
        (folder / key).touch()
    write(store, KEY, new_value(random.Random(0)))
    assert not [each for each in files(folder) if each.endswith(".lock")]


# --- forced schedules -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(12)
@pytest.mark.parametrize("deleted", ["g/a", "g", "", "g/a/c", "g/a/.parts-txn"])
@pytest.mark.parametrize("pause", [1, 3, 4, 6])
def test_deletion_never_lets_two_writers_into_one_chunk(
    store: ps.PartsStore, folder: Path, deleted: str, pause: int
) -> None:
    numbers = random.Random(pause)
    write(store, KEY, new_value(numbers))
    document = (folder / "g/a/zarr.json").read_bytes()
    one, other = writing(store, new_value(numbers)), writing(store, new_value(numbers))

    async def race() -> None:
        for _ in range(pause):
            one.step()
        deletes = asyncio.create_task(ps.PartsStore.from_url(folder).delete_dir(deleted))
        await asyncio.wait({deletes}, timeout=0.05)
        # Without a lock, both would move their first parts, and their anchors in the other order.
        one.go_until(Move, 2)
        other.go_until(Move, 2)
        for each in (other, one, other):
            try:
                each.finish()
            except ConcurrentWriteError:
                continue
        await deletes
        other.finish()

    asyncio.run(race())
    again = mend_document(folder, document)
    value = read(again, KEY)
    assert value is None or is_whole(value)
    assert not again.verify().is_damaged
    assert not [each for each in files(folder) if each.endswith(".lock")]


def test_write_raises_if_its_staged_parts_are_removed(store: ps.PartsStore, folder: Path) -> None:
    paused = writing(store, new_value(random.Random(0)))
    paused.go_until(Move)
    for path in (folder / "g/a/.parts-txn").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(ConcurrentWriteError, match="the staged parts were removed"):
        paused.finish()


def test_killed_deletion_leaves_chunks_whole_or_absent(
    store: ps.PartsStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One file at a time, so that it can end after each of them.
    monkeypatch.setattr(locking, "_AT_ONCE", 1)
    numbers = random.Random(0)
    killed = 0
    while True:
        store = ps.PartsStore.from_url(folder)
        create(store, "g/a", overwrite=True)
        values = [new_value(numbers) for _ in range(CHUNKS)]
        for number, value in enumerate(values):
            write(store, f"g/a/c/{number}", value)
        paused = Paused(locking.delete_node("g/a", ("g/a", "g"), store.protocol.rules), backend_of(store))
        for _ in range(killed):
            paused.step()
        if paused.has_ended:
            break
        paused.kill()
        again = ps.PartsStore.from_url(folder)
        if again.parts_of("g/a") is not None:
            for number, value in enumerate(values):
                assert read(again, f"g/a/c/{number}") in (None, value)
        assert not again.verify().is_damaged
        killed += 1
    assert killed > 3 * CHUNKS
    assert files(folder) == ["g/zarr.json", "zarr.json"]


def test_deletion_is_not_kept_waiting_by_writers_without_a_pause(store: ps.PartsStore, folder: Path) -> None:
    stop = threading.Event()

    def keep_writing(number: int) -> None:
        numbers = random.Random(number)
        own = ps.PartsStore.from_url(folder)
        own.parts_of("g/a")
        while not stop.is_set():
            write(own, f"g/a/c/{number}", new_value(numbers))

    writers = [threading.Thread(target=keep_writing, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(5):
            asyncio.run(store.delete_dir("g/a/c"))
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_exclusive_takes_no_lock_and_deletes_old_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore.from_url(folder, concurrency="exclusive")
    create(store, "g/a")
    write(store, KEY, new_value(random.Random(0)))
    (folder / LOCK.key).parent.mkdir(exist_ok=True)
    (folder / LOCK.key).touch()
    monkeypatch.setattr(LocalBackend, "lock", None)
    asyncio.run(store.delete_dir("g/a"))
    assert files(folder) == ["g/zarr.json", "zarr.json"]


def test_deleting_a_group_locks_one_array_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore.from_url(folder)
    for number in range(20):
        create(store, f"g/{number}")
        write(store, f"g/{number}/c/0", new_value(random.Random(number)))
    held: Counter[str] = Counter()
    most = []
    lock = LocalBackend.lock

    def watched(backend: LocalBackend, wanted: Lock) -> Any:
        release = lock(backend, wanted)
        assert release is not None
        held["now"] += 1
        most.append(held["now"])

        def done() -> None:
            held["now"] -= 1
            release()

        return done

    monkeypatch.setattr(LocalBackend, "lock", watched)
    asyncio.run(store.delete_dir("g"))
    assert max(most) == 2
    assert files(folder) == ["zarr.json"]
    assert [each.name for each in folder.iterdir()] == ["zarr.json"]


# --- random schedules -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_random_schedules_of_several_processes_leave_no_damage(folder: Path, processes: int) -> None:
    assert schedule(folder, processes, count=150, seed=1) == Counter()
