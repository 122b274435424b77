"""Repairs of real stores: after interrupted writes, of damage, and beside locks."""

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore
from zstandard import ZstdError

import parts_store as ps
from conformance.readers import minimal
from conformance.readers.protocol import UnreadableError
from parts_store.engine.steps import Done, Lock, Outcome, Steps, Trial, Wait
from parts_store.errors import StoreConfigError
from parts_store.maintenance.report import Problem
from parts_store.store.options import StoreOptions
from parts_store.transactions.locking import array_locks
from tests.maintenance.stores import (
    TWO,
    VALUES,
    change,
    contents,
    create,
    create_indexed,
    disk,
    flip,
    side_folder,
)


def steps_of(store: ps.PartsStore, key: str, value: bytes | None) -> Steps[None]:
    """Return the steps that write a chunk, or delete it if `value` is None."""
    operations = store._operations
    return operations.delete(key) if value is None else operations.put(key, memoryview(value), StoreOptions())


def stop_after(store: ps.PartsStore, steps: Steps[None], count: int) -> bool:
    """Carry out a number of requests, and return whether there were more. Locks end with the process."""
    outcomes: tuple[Outcome, ...] | None = None
    while True:
        try:
            batch = next(steps) if outcomes is None else steps.send(outcomes)
        except StopIteration:
            return False
        answers: list[Outcome] = []
        for request in batch:
            if count == 0:
                return True
            count -= 1
            assert not isinstance(request, Trial), "only a probe makes trials"
            answers.append(Done() if isinstance(request, Lock | Wait) else store._backend.perform_sync(request))
        outcomes = tuple(answers)


def interrupt(objects: Any, key: str, value: bytes) -> None:
    """Commit a new value of a chunk, and stop the writer right after the commit."""
    for count in itertools.count():
        store = ps.PartsStore(objects)
        assert stop_after(store, steps_of(store, key, value), count)
        found = ps.PartsStore(objects).get_sync(key)
        if found is not None and found.to_bytes() == value:
            return


def chunk_read(objects: Any, key: str) -> bytes | None:
    found = ps.PartsStore(objects).get_sync(key)
    return None if found is None else found.to_bytes()


def test_marks_and_notes_of_older_versions_are_removed_by_their_age() -> None:
    objects = MemoryStore()
    create(ps.PartsStore(objects))
    before = contents(objects)
    mark = "a/.parts-txn/batches/0123456789abcdef0123456789abcdef"
    note = f"{mark}.fedcba9876543210fedcba9876543210"
    objects.put(mark, b'{"chunks": ["c/0", "c/1"]}')
    objects.put(note, b"")
    (finding,) = ps.PartsStore(objects).verify().findings
    assert (finding.problem, finding.keys) == (Problem.LEFTOVERS, (mark, note))
    assert finding.detail == "from chunks that an older version wrote together"
    # An older version may still be writing these chunks.
    (finding,) = ps.PartsStore(objects).repair().findings
    assert "younger than min_age" in finding.detail
    assert contents(objects).keys() == before.keys() | {mark, note}
    assert ps.PartsStore(objects).repair(min_age=0).is_clean
    assert contents(objects) == before


# The other parts are in the tag of the anchor, or in a staged copy.
HEADERS = {"small": 8, "large": 1500}
SHARD = np.random.default_rng(1).integers(0, 1 << 16, (2, 4096)).astype("uint16") & [[0x0FFF], [0xFFFF]]


def create_shard(store: ps.PartsStore, header: int, values: Any) -> zarr.Array[Any]:
    """Write an array of one compressed shard, whose index is another one for other values."""
    parts = [ps.Part(".header", size=header), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    chosen: dict[str, Any] = {"shape": (4096,), "chunks": (512,), "shards": (4096,), "dtype": "uint16"}
    array = ps.create_array(store, "a", parts=parts, **chosen)
    array[...] = values
    return array


def read_by_others(objects: Any, folder: Path) -> int | None:
    """Return which of the values software without parts_store reads; None if it reads neither."""
    for key, data in contents(objects).items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    try:
        found = minimal.read(folder, "a")
    except (UnreadableError, ZstdError):
        return None
    return next((number for number, values in enumerate(SHARD) if np.array_equal(found, values)), None)


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize(
    ("place", "level"), [(place, level) for place in ("memory", "disk") for level in ("writers", "full")]
)
def test_repair_at_once_lets_other_software_read_a_whole_chunk(
    tmp_path: Path, place: str, level: Any, header: int
) -> None:
    scratch = ps.PartsStore(MemoryStore())
    create_shard(scratch, header, SHARD[1])
    new = scratch.get_sync("a/c/0")
    assert new is not None
    was_torn, seen = False, set()
    for count in itertools.count():
        objects = MemoryStore() if place == "memory" else disk(tmp_path / str(count))
        store = ps.PartsStore(objects, concurrency=level)
        create_shard(store, header, SHARD[0])
        goes_on = stop_after(store, steps_of(store, "a/c/0", new.to_bytes()), count)
        if read_by_others(objects, tmp_path / f"{count} before") is None:
            was_torn = True
            report = ps.PartsStore(objects).verify()
            (finding,) = report.findings
            assert finding.problem is Problem.INTERRUPTED
            assert "software without parts_store may read a torn chunk" in finding.detail
            assert str(report).endswith("nothing is damaged; `repair` would complete interrupted overwrites")
        report = ps.PartsStore(objects, concurrency=level).repair()
        assert all(each.is_repaired for each in report.findings if each.problem is Problem.INTERRUPTED), report
        number = read_by_others(objects, tmp_path / f"{count} after")
        assert number is not None
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], SHARD[number])
        seen.add(number)
        if not goes_on:
            break
    assert was_torn
    assert seen == {0, 1}


@pytest.mark.parametrize("min_age", [-1, float("nan"), True, "24h", None])
def test_min_age_must_be_a_timedelta_or_seconds(min_age: Any) -> None:
    store = ps.PartsStore(MemoryStore())
    create(store)
    with pytest.raises(StoreConfigError, match="min_age: expected a timedelta or seconds"):
        store.repair(min_age=min_age)


def test_repair_with_a_prefix_inside_an_array() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    shape: dict[str, Any] = {"shape": (4, 4), "chunks": (2, 2), "dtype": "uint16", "compressors": None}
    array = ps.create_array(store, "a", parts=TWO, **shape)
    array[...] = VALUES.reshape(4, 4)
    for relative in ("c/0/1", "c/1/0"):
        interrupt(objects, f"a/{relative}", b"ABCDEFGH")
    before = contents(objects)
    report = store.repair("a/c/0", min_age=0)
    mended = [(each.problem, each.chunk_key, each.is_repaired) for each in report.findings]
    assert mended == [(Problem.INTERRUPTED, "a/c/0/1", True)]
    assert contents(objects) == before | {"a/c/0/1.tail": b"GH"}
    assert store.verify("a/c/0").is_clean
    assert not store.verify("a/c/1").is_clean
    assert (len(store.repair("a/c/1/0", min_age=0).findings), store.verify().is_clean) == (1, True)


def test_drop_incomplete_removes_unreadable_chunks_only(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    create_indexed(store)
    change(objects, "a/c/0.tail", None)
    change(objects, "a/c/2.tail", b"longer")
    flip(objects, "shards/c/1.index")
    before = contents(objects)
    assert store.repair(min_age=0).is_damaged
    assert contents(objects) == before
    report = store.repair(min_age=0, drop_incomplete=True)
    assert [each.chunk_key for each in report.findings] == ["a/c/0", "a/c/2", "shards/c/1"]
    assert report.is_clean
    gone = ("a/c/0", "a/c/2", "shards/c/1")
    assert contents(objects) == {key: data for key, data in before.items() if not key.startswith(gone)}
    fresh = ps.PartsStore(objects)
    assert fresh.verify().findings == ()
    expected = VALUES.copy()
    expected[:4] = expected[8:12] = 0
    np.testing.assert_array_equal(zarr.open_array(fresh, path="a")[...], expected)


def test_retag_tags_chunks_of_another_program() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    create(store)
    before = contents(objects)
    for key, data in before.items():
        if key.startswith(("a/c/0", "a/c/1.tail")):
            change(objects, key, data)
    assert [each.problem for each in store.verify().findings] == [Problem.UNTAGGED, Problem.PARTLY_TAGGED]
    assert store.repair(min_age=0).is_damaged
    report = store.repair(min_age=0, retag=True)
    assert report.is_clean
    assert contents(objects) == before
    assert ps.PartsStore(objects).verify().findings == ()
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], VALUES)


@pytest.mark.slow
def test_many_leftovers_are_removed_and_the_report_stays_short(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    before = contents(objects)
    for number in range(300):
        change(objects, f"{side_folder('a', f'c/{number}')}/{number:032x}.done", b"")
    report = store.verify()
    assert len(report.findings) == 300
    lines = str(report).splitlines()
    assert "300 leftovers" in lines[-2]
    assert len(lines) == 103
    assert store.repair(min_age=0).is_clean
    assert contents(objects) == before


# --- locks -----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import parts_store as ps
from parts_store.engine.steps import Put

store = ps.PartsStore.from_url(sys.argv[1])
perform = type(store._backend).perform_sync

def perform_and_die(self, request):
    outcome = perform(self, request)
    if isinstance(request, Put) and sys.argv[2] in request.key:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome

type(store._backend).perform_sync = perform_and_die
store.carry_out(store._operations.put("a/c/1", memoryview(b"ABCDEFGH"), {}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", ["journal", ".0"])
def test_repair_after_a_process_was_killed_with_its_lock(tmp_path: Path, last: str) -> None:
    objects = disk(tmp_path)
    create(ps.PartsStore(objects))
    before = contents(objects)
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "objects"), last], check=False)
    assert process.returncode == -signal.SIGKILL
    assert array_locks("a")[1] in contents(objects)
    store = ps.PartsStore(objects)
    (finding,) = store.verify().findings
    assert finding.problem is (Problem.INTERRUPTED if last == "journal" else Problem.LEFTOVERS)
    read = chunk_read(objects, "a/c/1")
    assert read == (b"ABCDEFGH" if last == "journal" else before["a/c/1"] + before["a/c/1.tail"])
    assert store.repair().is_clean
    assert chunk_read(objects, "a/c/1") == read
    assert contents(objects).keys() == before.keys()
    assert not (tmp_path / "objects/a/.parts-txn").exists()


@pytest.mark.parametrize("number", [0, 1], ids=["gate", "lock"])
def test_repair_removes_the_lock_of_an_array_that_a_killed_process_left(tmp_path: Path, number: int) -> None:
    objects = disk(tmp_path)
    create(ps.PartsStore(objects))
    before = contents(objects)
    path = tmp_path / "objects" / array_locks("a")[number]
    path.parent.mkdir()
    path.touch()
    store = ps.PartsStore(objects)
    assert store.verify().findings == ()
    assert path.exists()
    assert store.repair().findings == ()
    assert contents(objects) == before
    assert not path.parent.exists()


def test_repair_leaves_the_lock_of_an_array_to_its_holder(tmp_path: Path) -> None:
    objects = disk(tmp_path)
    store = ps.PartsStore(objects)
    create(store)
    gate, lock = array_locks("a")
    release = store._backend.lock(Lock(f"{side_folder('a', 'c/1')}.lock", "another writer", lock))
    assert release is not None
    begin = time.monotonic()
    assert ps.PartsStore(objects).repair().findings == ()
    # All waits for a lock together take five minutes.
    assert time.monotonic() - begin < 200
    assert lock in contents(objects)
    assert gate not in contents(objects)
    assert store._backend.lock(Lock(lock, "a deletion")) is None
    release()
    assert not (tmp_path / "objects/a/.parts-txn").exists()


def test_locked_chunk_is_reported_and_the_rest_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parts_store.engine.executor._MAX_SECONDS", 0.05)
    objects = disk(tmp_path)
    store = ps.PartsStore(objects)
    create(store)
    for number in (0, 1):
        change(objects, f"{side_folder('a', f'c/{number}')}/{'0a' * 16}.0", b"?")
    release = store._backend.lock(Lock(f"{side_folder('a', 'c/1')}.lock", "another writer", array_locks("a")[1]))
    assert release is not None
    first, second = store.repair().findings
    assert (first.chunk_key, first.is_repaired) == ("a/c/0", True)
    assert (second.chunk_key, second.is_repaired) == ("a/c/1", False)
    assert "another process has held its lock" in second.detail
    release()
    assert store.repair().is_clean
    assert store.verify().findings == ()
