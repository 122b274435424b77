"""What killed writers leave on a local disk: unfinished files, and journals that may belong to a committed write."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.maintenance.report import Finding, Problem, Report
from parts_store.transactions.journaled import Journal, journal_key, staged_keys
from tests.maintenance.stores import TWO, VALUES, create

DAY = 86_400.0
GENERATION = "0b" * 16
CHUNK = Chunk("a/c/1", ConcatParts(TWO), "a")
NEW = [b"ABCDEF", b"GH"]


@pytest.fixture
def store(folder: Path) -> ps.PartsStore:
    store = ps.PartsStore.from_url(folder)
    create(store)
    plain = zarr.create_array(store, name="plain", shape=(16,), chunks=(4,), dtype="uint16", compressors=None)
    plain[...] = VALUES
    return store


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


# --- unfinished files -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import parts_store as ps
from zarr.core.buffer import cpu

store = ps.PartsStore.from_url(sys.argv[1])
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.set_sync(sys.argv[2], cpu.Buffer.from_bytes(b"12345678"))
"""


def kill_writer(folder: Path, key: str) -> Path:
    """Kill a process before it gives a value its name, and return the file that it has left."""
    before = files(folder).keys()
    process = subprocess.run([sys.executable, "-c", KILLED, str(folder), key], check=False)
    assert process.returncode == -signal.SIGKILL
    (left,) = files(folder).keys() - before
    assert left.startswith(f"{key}#")
    return folder / left


@pytest.mark.slow
@pytest.mark.parametrize("key", ["plain/c/1", "plain/c/7"])
def test_unfinished_file_is_reported_and_removed_when_it_is_old(store: ps.PartsStore, folder: Path, key: str) -> None:
    before = files(folder)
    left = kill_writer(folder, key)
    for prefix in ("", "plain", "plain/c"):
        finding = only(store.verify(prefix))
        assert (finding.problem, finding.chunk_key) == (Problem.LEFTOVERS, key)
        assert finding.keys == (str(left.relative_to(folder)),)
    # The writer may be at work: it takes no lock.
    finding = only(store.repair())
    assert not finding.is_repaired
    assert "younger than min_age" in finding.detail
    assert left.exists()
    age(left, 2 * DAY)
    assert store.repair().is_clean
    assert files(folder) == before
    np.testing.assert_array_equal(zarr.open_array(store, path="plain")[...], VALUES)


@pytest.mark.parametrize(
    ("seconds", "min_age", "is_removed"),
    [(0, 0, True), (600, 1, False), (1000, 1, True), (1000, 2000, False), (3000, 2000, True)],
)
def test_unfinished_file_is_never_taken_from_a_writer_that_may_be_at_work(
    store: ps.PartsStore, folder: Path, seconds: float, min_age: float, *, is_removed: bool
) -> None:
    before = files(folder)
    left = folder / "plain/c/1#123"
    left.write_bytes(b"1234")
    age(left, seconds)
    assert store.repair(min_age=min_age).is_clean == is_removed
    assert left.exists() != is_removed
    left.unlink(missing_ok=True)
    assert files(folder) == before


def test_unfinished_files_of_documents_parts_and_the_protocol_are_removed(store: ps.PartsStore, folder: Path) -> None:
    before = files(folder)
    (folder / "a/.parts-txn").mkdir()
    for name in ("zarr.json#1", "plain/zarr.json#22", "a/c/0.tail#3", "a/c/0#4", f"a/.parts-txn/{GENERATION}.clock#5"):
        (folder / name).write_bytes(b"12")
        age(folder / name, 2 * DAY)
    assert len(store.verify().findings) == 5
    assert store.repair().is_clean
    assert files(folder) == before


def test_files_of_other_programs_are_not_taken_for_unfinished_files(store: ps.PartsStore, folder: Path) -> None:
    usual = ("notes#1", "a/readme.txt#2", "plain/c/1#x", "plain/c/1#", "plain/#3", "plain/c/x#4", "b/c/0#5")
    begin_like_chunks = ("changes.txt#1", "2026-06.csv#2", "a/config#3", "a/c/0.tail.old#4", "a/0#5", "plain/copy#6")
    for name in (*usual, *begin_like_chunks):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"precious")
        age(folder / name, 2 * DAY)
    before = files(folder)
    assert store.verify().findings == ()
    assert store.repair(min_age=0).is_clean
    assert files(folder) == before


def test_writer_whose_unfinished_file_is_removed_writes_it_again(
    store: ps.PartsStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = os.replace
    repaired: list[Report] = []

    def replaced(source: str, target: str) -> None:
        # The repair itself writes a file, whose name it has only when it is finished.
        if source.startswith(str(folder / "plain/c/1#")) and not repaired:
            age(Path(source), 2 * DAY)
            repaired.append(ps.PartsStore.from_url(folder).repair())
        move(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    sync(store.set("plain/c/1", cpu.Buffer.from_bytes(b"12345678")))
    assert only(repaired[0]).is_repaired
    assert (folder / "plain/c/1").read_bytes() == b"12345678"
    assert store.verify().findings == ()


# --- journals ---------------------------------------------------------------------------------------------------------


def put(folder: Path, key: str, data: bytes) -> None:
    (folder / key).parent.mkdir(parents=True, exist_ok=True)
    (folder / key).write_bytes(data)


def earlier_journal(folder: Path) -> None:
    """Leave what a killed writer of an earlier version has left: a journal and staged parts, in a folder."""
    record = {"key": CHUNK.relative, "gen": GENERATION, "sizes": [len(part) for part in NEW]}
    put(folder, f"{CHUNK.side_folder}/journal", json.dumps(record).encode())
    for number, part in enumerate(NEW):
        put(folder, f"{CHUNK.side_folder}/{GENERATION}.{number}", part)


@pytest.mark.parametrize("has_parts", [True, False])
def test_journal_of_an_earlier_version_is_removed_only_if_asked(
    store: ps.PartsStore, folder: Path, *, has_parts: bool
) -> None:
    if not has_parts:
        for key in CHUNK.part_keys:
            (folder / key).unlink()
    without = files(folder)
    earlier_journal(folder)
    before = files(folder)
    assert only(store.verify()).problem is Problem.LEFTOVERS
    for min_age in (DAY, 0):
        finding = only(store.repair(min_age=min_age))
        assert not finding.is_repaired
        assert "drop_incomplete=True" in finding.detail
        assert files(folder) == before
    assert store.repair(drop_incomplete=True).is_clean
    assert files(folder) == without


def journal(folder: Path, staged: tuple[int, ...]) -> None:
    """Leave what a killed writer has left after its commit, and no part of the chunk that it replaced."""
    for key in CHUNK.part_keys:
        (folder / key).unlink()
    put(folder, journal_key(CHUNK), Journal(CHUNK.relative, GENERATION, (6, 2)).dump())
    for number in staged:
        put(folder, staged_keys(CHUNK, GENERATION)[number], NEW[number])


def read(store: ps.PartsStore) -> Any:
    found = sync(store.get("a/c/1", cpu.buffer_prototype))
    return None if found is None else found.to_bytes()


@pytest.mark.parametrize("staged", [(), (0,), (1,)])
def test_committed_write_with_missing_parts_is_dropped_only_if_asked(
    store: ps.PartsStore, folder: Path, staged: tuple[int, ...]
) -> None:
    journal(folder, staged)
    before = files(folder)
    finding = only(store.repair())
    assert (finding.is_repaired, "damaged" in finding.detail) == (False, True)
    assert files(folder) == before
    assert store.repair(drop_incomplete=True).is_clean
    assert not (folder / "a/.parts-txn").exists()
    assert read(ps.PartsStore.from_url(folder)) is None
