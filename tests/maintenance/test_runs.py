"""verify and repair of real stores: what they find, put right, and ask for."""

import itertools
import json
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import HTTPStore, LocalStore, MemoryStore
from zarr.codecs import Crc32cCodec

import parts_store as ps
from parts_store.engine.steps import Done, Lock, Outcome, Steps, Trial, Wait
from parts_store.errors import IncompleteChunkError, StoreConfigError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.maintenance import execution
from parts_store.maintenance.report import Finding, Problem, Report
from parts_store.options import StoreOptions

VALUES: NDArray[Any] = np.arange(1, 17, dtype="uint16")
INDEXED = [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
TWO = [ps.Part(""), ps.Part(".tail", size=2)]


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty obstore store."""
    return MemoryStore() if request.param == "memory" else disk(tmp_path)


def disk(folder: Path) -> LocalStore:
    return LocalStore(folder / "objects", mkdir=True, automatic_cleanup=True)


def contents(objects: Any) -> dict[str, bytes]:
    keys = sorted(each["path"] for each in obstore.list(objects).collect())
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys}


def create(store: ps.PartsStore, name: str = "a", parts: Any = TWO, **arguments: Any) -> zarr.Array[Any]:
    """An array of 16 numbers in four chunks, uncompressed, with values."""
    chosen: dict[str, Any] = {"shape": (16,), "chunks": (4,), "dtype": "uint16", "compressors": None}
    array = ps.create_array(store, name, parts=parts, **(chosen | arguments))
    array[...] = VALUES
    return array


def create_indexed(store: ps.PartsStore, name: str = "shards") -> zarr.Array[Any]:
    """The same in shards of two chunks each, with a header that is the first bytes of the data."""
    return create(store, name, INDEXED, chunks=(2,), shards=(8,), filters=None)


def change(objects: Any, key: str, data: bytes | None) -> None:
    """Another program writes an object, or removes it."""
    if data is None:
        obstore.delete(objects, key)
    else:
        obstore.put(objects, key, data)


def flip(objects: Any, key: str, at: int = 0) -> None:
    """A bit goes wrong: the object keeps its tag."""
    found = obstore.get(objects, key)
    data = bytearray(found.bytes())
    data[at] ^= 1
    if isinstance(objects, LocalStore):
        obstore.put(objects, key, bytes(data))
    else:
        obstore.put(objects, key, bytes(data), attributes=found.attributes)


def found_in(report: Report) -> list[tuple[Problem, str, tuple[str, ...]]]:
    return [(each.problem, each.chunk_key, each.keys) for each in report.findings]


def document_nbytes(objects: Any) -> int:
    """The size of all documents."""
    return sum(len(data) for key, data in contents(objects).items() if key.endswith("zarr.json"))


# --- verify: what it asks for ----------------------------------------------------------------------------------------


def calls(store: ps.PartsStore) -> dict[str, int]:
    return {kind: count for kind, count in store.stats.calls.items() if count}


def test_verify_makes_one_listing_and_one_look_at_each_part_where_there_are_tags(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    fresh = ps.PartsStore(objects, read_only=True)
    report = fresh.verify()
    # The documents of the root and of the array.
    expected = {"list": 1, "get": 2} | ({} if isinstance(objects, LocalStore) else {"head": 8})
    assert calls(fresh) == expected
    assert report == Report((), arrays=1, chunks=4, objects=8)
    assert str(report).splitlines() == ["1 array with parts, 4 chunks, 8 objects", "no problems found"]


def test_verify_does_not_look_at_chunks_of_one_part(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, parts=[ps.Part("")])
    create(store, "suffixed", parts=[ps.Part(".bin")])
    zarr.create_array(store, name="plain", shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
    fresh = ps.PartsStore(objects, read_only=True)
    report = fresh.verify()
    assert calls(fresh) == {"list": 1, "get": 4}
    assert report == Report((), arrays=2, chunks=8, objects=8)


def test_verify_reads_the_indexes_that_are_parts_and_no_data(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_indexed(store)
    fresh = ps.PartsStore(objects, read_only=True)
    assert fresh.verify("shards").findings == ()
    # The documents of the root and of the array, and two indexes.
    assert calls(fresh) == {"list": 1, "get": 4} | ({} if isinstance(objects, LocalStore) else {"head": 4})
    document = document_nbytes(objects)
    assert fresh.stats.bytes_read == document + 2 * (4 * 16 + 4)


def test_verify_needs_a_store_that_can_be_listed() -> None:
    store = ps.PartsStore(HTTPStore("http://127.0.0.1:9", client_options={"allow_http": True}))
    with pytest.raises(StoreConfigError, match="expected a store that can be listed"):
        store.verify()
    with pytest.raises(ValueError, match="read-only"):
        store.repair()


# --- verify: what it finds -------------------------------------------------------------------------------------------


def test_every_kind_of_damage_is_found_by_its_name(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    change(objects, "a/c/0.tail", None)
    change(objects, "a/c/1", None)
    change(objects, "a/c/2.tail", b"longer")
    report = ps.PartsStore(objects).verify()
    assert found_in(report) == [
        (Problem.INCOMPLETE, "a/c/0", ("a/c/0.tail",)),
        (Problem.ORPHANS, "a/c/1", ("a/c/1.tail",)),
        (Problem.WRONG_SIZE, "a/c/2", ("a/c/2.tail",)),
    ]
    assert report.is_damaged
    assert not report.is_clean
    assert report.counts == {"incomplete": 1, "wrong size": 1, "orphans": 1}


def test_what_other_programs_write_is_told_from_a_mixture() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    array = create(store)
    change(objects, "a/c/0.tail", b"!!")
    for key in ("a/c/1", "a/c/1.tail"):
        change(objects, key, bytes(6 if key == "a/c/1" else 2))
    old = obstore.get(objects, "a/c/2.tail")
    data, attributes = bytes(old.bytes()), old.attributes
    array[8:12] = 5
    obstore.put(objects, "a/c/2.tail", data, attributes=attributes)
    report = ps.PartsStore(objects).verify()
    assert found_in(report) == [
        (Problem.PARTLY_TAGGED, "a/c/0", ("a/c/0.tail",)),
        (Problem.UNTAGGED, "a/c/1", ("a/c/1", "a/c/1.tail")),
        (Problem.MIXTURE, "a/c/2", ("a/c/2.tail",)),
    ]
    for at, is_readable in ((0, False), (4, True), (8, False), (12, True)):
        if is_readable:
            array[at]
        else:
            with pytest.raises(IncompleteChunkError):
                array[at]


@pytest.mark.parametrize("is_foreign", [False, True], ids=["ours", "another program's"])
def test_an_index_that_does_not_fit_its_checksum_is_found_without_reading_data(objects: Any, is_foreign: bool) -> None:
    create_indexed(ps.PartsStore(objects))
    if is_foreign:
        for key, data in contents(objects).items():
            change(objects, key, data)
    flip(objects, "shards/c/1.index", 3)
    store = ps.PartsStore(objects)
    report = store.verify("shards")
    checksums = [each for each in found_in(report) if each[0] is Problem.CHECKSUM]
    assert checksums == [(Problem.CHECKSUM, "shards/c/1", ("shards/c/1.index",))]
    assert not any(each[1] == "shards/c/1" and each[0] is Problem.UNTAGGED for each in found_in(report))
    document = document_nbytes(objects)
    # It is looked at twice.
    assert store.stats.bytes_read == document + 3 * (4 * 16 + 4)
    with pytest.raises(ValueError, match=r"(?i)checksum"):
        zarr.open_array(store, path="shards")[8:]


@pytest.mark.parametrize("parts", [[ps.Part(""), ps.Part(".crc32c", size=4)], [ps.Part("")], TWO])
def test_with_checksums_a_flipped_bit_is_found_and_only_such_arrays_are_read(
    objects: Any, parts: Sequence[ps.Part]
) -> None:
    store = ps.PartsStore(objects)
    create(store, parts=parts, compressors=[Crc32cCodec()])
    create(store, "not")
    chunk = np.asarray(VALUES[:4], "<u2").tobytes()
    whole = chunk + google_crc32c.value(chunk).to_bytes(4, "little")
    assert store.get_sync("a/c/0").to_bytes() == whole  # type: ignore[union-attr]
    documents = document_nbytes(objects)
    fresh = ps.PartsStore(objects, read_only=True)
    assert fresh.verify(checksums=True).findings == ()
    assert fresh.stats.bytes_read == documents + 4 * len(whole)
    flip(objects, "a/c/2", 1)
    flip(objects, "not/c/2", 1)
    assert fresh.verify().findings == ()
    fresh.stats.reset()
    report = fresh.verify(checksums=True)
    keys = tuple(f"a/c/2{part.key_suffix}" for part in parts)
    assert found_in(report) == [(Problem.CHECKSUM, "a/c/2", keys)]
    assert fresh.stats.bytes_read == documents + 4 * len(whole)
    with pytest.raises(ValueError, match=r"(?i)checksum"):
        zarr.open_array(store, path="a")[...]


def test_with_checksums_chunks_are_read_although_something_is_beside_them_and_damaged_ones_are_not(
    objects: Any,
) -> None:
    store = ps.PartsStore(objects)
    create(store, parts=[ps.Part(""), ps.Part(".crc32c", size=4)], compressors=[Crc32cCodec()])
    flip(objects, "a/c/0", 1)
    change(objects, f"{side_folder('a', 'c/0')}/{'0a' * 16}", b"?")
    change(objects, "a/c/1.crc32c", None)
    change(objects, "a/c/2", None)
    store = ps.PartsStore(objects)
    problems = [(each.problem, each.chunk_key) for each in store.verify(checksums=True).findings]
    assert problems == [
        (Problem.CHECKSUM, "a/c/0"),
        (Problem.LEFTOVERS, "a/c/0"),
        (Problem.INCOMPLETE, "a/c/1"),
        (Problem.ORPHANS, "a/c/2"),
    ]


def side_folder(array: str, relative: str) -> str:
    return Chunk(f"{array}/{relative}", ConcatParts([""]), array).side_folder


def test_chunks_are_read_for_their_checksums_in_groups_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    create(store, compressors=[Crc32cCodec()])
    flip(objects, "a/c/3", 1)
    for limit in (0, 12, 30, 1 << 20):
        monkeypatch.setattr("parts_store.maintenance.checksums._MAX_NBYTES", limit)
        assert [each.chunk_key for each in store.verify(checksums=True).findings] == ["a/c/3"]


def test_batches_are_of_one_array_and_progress_counts_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    for name in ("a", "b"):
        create(store, name)
        change(objects, f"{name}/c/1.tail", None)
    monkeypatch.setattr(execution, "_BATCH", 3)
    seen: list[tuple[int, int]] = []
    report = store.verify(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 8), (4, 8), (7, 8), (8, 8)]
    assert [each.chunk_key for each in report.findings] == ["a/c/1", "b/c/1"]
    seen.clear()
    store.repair(min_age=0, drop_incomplete=True, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


class Client:
    """What verify needs of dask's client; its workers get pickled copies."""

    class Future:
        def __init__(self, value: Any) -> None:
            self.value = value

        def result(self) -> Any:
            return self.value

    def __init__(self) -> None:
        self.tasks = 0

    def map(self, function: Any, *arguments: Any, pure: bool) -> list[Future]:
        assert not pure
        tasks = [pickle.loads(pickle.dumps((function, each))) for each in zip(*arguments, strict=True)]
        self.tasks += len(tasks)
        return [self.Future(function(*each)) for function, each in tasks]


def test_the_workers_of_a_client_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_BATCH", 3)
    objects = disk(tmp_path)
    store = ps.PartsStore(objects)
    create(store)
    change(objects, "a/c/1.tail", None)
    client = Client()
    assert store.verify(client=client) == store.verify()
    assert client.tasks == 2
    assert ps.PartsStore(disk(tmp_path / "empty")).verify(client=client).findings == ()


# --- where it looks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ["a/c/0", "g/b/c/0"]),
        ("/", ["a/c/0", "g/b/c/0"]),
        ("a", ["a/c/0"]),
        ("/a/", ["a/c/0"]),
        ("g", ["g/b/c/0"]),
        ("g/b", ["g/b/c/0"]),
        ("g/b/c", ["g/b/c/0"]),
        ("nothing/here", []),
    ],
)
def test_a_prefix_may_be_that_of_a_group_an_array_its_chunks_or_nothing(
    objects: Any, prefix: str, expected: list[str]
) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store, path="g")
    for name in ("a", "g/b"):
        create(store, name)
        change(objects, f"{name}/c/0.tail", None)
    report = ps.PartsStore(objects).verify(prefix)
    assert [each.chunk_key for each in report.findings] == expected


def test_an_array_at_the_root_is_looked_at(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, "")
    change(objects, "c/0.tail", None)
    for prefix in ("", "c"):
        assert found_in(store.verify(prefix)) == [(Problem.INCOMPLETE, "c/0", ("c/0.tail",))]


@pytest.mark.parametrize("prefix", ["a/.parts-txn", ".parts-txn/0a"])
def test_the_protocols_own_folder_is_no_place_to_look(prefix: str) -> None:
    with pytest.raises(StoreConfigError, match="prefix: expected the path of a group"):
        ps.PartsStore(MemoryStore()).verify(prefix)


def test_documents_are_read_anew_and_those_not_understood_are_told(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    for name in ("unknown", "broken", "bad"):
        create(store, name)
    document = json.loads(contents(objects)["unknown/zarr.json"])
    document["storage_transformers"] = [{"name": "other"}]
    change(objects, "unknown/zarr.json", json.dumps(document).encode())
    change(objects, "broken/zarr.json", b"{")
    document["storage_transformers"] = [{"name": "concat-parts", "configuration": {"parts": []}}]
    change(objects, "bad/zarr.json", json.dumps(document).encode())
    change(objects, "a/c/0.tail", None)
    # The store knew all of them as they were.
    report = store.verify()
    assert [path for path, _ in report.not_understood] == ["bad", "broken", "unknown"]
    assert "is not a JSON object" in report.not_understood[1][1]
    assert [each.chunk_key for each in report.findings] == ["a/c/0"]
    assert (report.arrays, report.chunks) == (1, 4)
    assert report.is_damaged
    assert "not understood: broken: " in str(report)
    before = contents(objects)
    assert store.repair(min_age=0, drop_incomplete=True).not_understood == report.not_understood
    kept = {key: data for key, data in before.items() if not key.startswith("a/c/0")}
    assert contents(objects) == kept


def test_stale_consolidated_metadata_is_not_believed() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create(store)
    with pytest.warns(zarr.errors.ZarrUserWarning):
        zarr.consolidate_metadata(store)
    # Another process makes the array anew, with other parts.
    other = ps.PartsStore(objects)
    create(other, parts=[ps.Part(""), ps.Part(".other", size=1)], overwrite=True)
    for each in (store, ps.PartsStore(objects)):
        assert each.verify().findings == ()


# --- repair ----------------------------------------------------------------------------------------------------------


def steps_of(store: ps.PartsStore, key: str, value: bytes | None) -> Steps[None]:
    """The write of a chunk, or its deletion."""
    operations = store._operations
    return operations.delete(key) if value is None else operations.put(key, memoryview(value), StoreOptions())


def stop_after(store: ps.PartsStore, steps: Steps[None], count: int) -> bool:
    """Carry out so many requests, and no more; whether there were more. A lock goes with its process."""
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
    """A writer commits a chunk anew, and ends at once."""
    for count in itertools.count():
        store = ps.PartsStore(objects)
        assert stop_after(store, steps_of(store, key, value), count)
        found = ps.PartsStore(objects).get_sync(key)
        if found is not None and found.to_bytes() == value:
            return


def chunk_read(objects: Any, key: str) -> bytes | None:
    found = ps.PartsStore(objects).get_sync(key)
    return None if found is None else found.to_bytes()


def every_stop(folder: Path, place: str, level: Any, has_chunk: bool, value: bytes | None) -> Iterator[Any]:
    """The objects after every prefix of the requests of a write, or of a deletion, of one chunk of four."""
    for count in itertools.count():
        objects = MemoryStore() if place == "memory" else disk(folder / str(count))
        store = ps.PartsStore(objects, concurrency=level)
        create(store)
        if not has_chunk:
            store.delete_sync("a/c/1")
            store.repair(min_age=0)
        goes_on = stop_after(store, steps_of(store, "a/c/1", value), count)
        yield objects
        if not goes_on:
            return


@pytest.mark.sampled(5)
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("level", ["exclusive", "writers", "full"])
@pytest.mark.parametrize("has_chunk", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize("value", [b"ABCDEFGH", None], ids=["write", "delete"])
def test_a_repair_leaves_what_was_read_before_it_and_nothing_beside_it(
    tmp_path: Path, value: bytes | None, has_chunk: bool, level: Any, place: str
) -> None:
    for objects in every_stop(tmp_path, place, level, has_chunk, value):
        before = contents(objects)
        read = chunk_read(objects, "a/c/1")
        assert not ps.PartsStore(objects).verify().is_damaged
        assert contents(objects) == before
        report = ps.PartsStore(objects, concurrency=level).repair(min_age=0)
        assert all(each.is_repaired for each in report.findings), report
        assert report.is_clean
        others = {key: data for key, data in before.items() if not key.startswith(("a/c/1", "a/.parts-txn"))}
        parts = {} if read is None else {"a/c/1": read[:-2], "a/c/1.tail": read[-2:]}
        assert contents(objects) == others | parts
        assert ps.PartsStore(objects).repair(min_age=0).findings == ()


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("level", ["exclusive", "writers"])
def test_what_was_written_just_now_is_left_alone_except_where_a_lock_tells(
    tmp_path: Path, level: Any, place: str
) -> None:
    for objects in every_stop(tmp_path, place, level, has_chunk=True, value=b"ABCDEFGH"):
        before = contents(objects)
        report = ps.PartsStore(objects, concurrency=level).repair()
        if place == "disk" and level == "writers":
            assert report.is_clean
            continue
        assert contents(objects) == before
        assert not any(each.is_repaired for each in report.findings)
        assert all(each.detail.endswith("not repaired: younger than min_age") for each in report.findings)
        assert not report.is_damaged
        assert report.is_clean == (not report.findings)


def test_old_orphans_stay_where_a_writer_could_lose_its_parts_unless_nobody_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nobody waits for a quarter of an hour here.
    monkeypatch.setattr("parts_store.maintenance.execution.LEAST_AGE", 0)
    objects = MemoryStore()
    create(ps.PartsStore(objects))
    change(objects, "a/c/1", None)
    before = contents(objects)
    time.sleep(0.02)
    report = ps.PartsStore(objects).repair(min_age=0.001)
    assert [(each.problem, each.is_repaired) for each in report.findings] == [(Problem.ORPHANS, False)]
    assert "another client may be writing; use min_age=0 if none is" in report.findings[0].detail
    assert contents(objects) == before
    # One writer at a time is what this level promises, and the repair is that one.
    assert ps.PartsStore(objects, concurrency="exclusive").repair(min_age=0.001).is_clean
    assert contents(objects) == {key: data for key, data in before.items() if key != "a/c/1.tail"}


@pytest.mark.parametrize("min_age", [-1, float("nan"), True, "24h", None])
def test_an_age_is_a_timedelta_or_seconds(min_age: Any) -> None:
    store = ps.PartsStore(MemoryStore())
    create(store)
    with pytest.raises(StoreConfigError, match="min_age: expected a timedelta or seconds"):
        store.repair(min_age=min_age)


def test_a_repair_inside_an_array_ends_what_is_there_and_leaves_the_rest_of_the_array() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    shape: dict[str, Any] = {"shape": (4, 4), "chunks": (2, 2), "dtype": "uint16", "compressors": None}
    array = ps.create_array(store, "a", parts=TWO, **shape)
    array[...] = VALUES.reshape(4, 4)
    for relative in ("c/0/1", "c/1/0"):
        interrupt(objects, f"a/{relative}", b"ABCDEFGH")
    here, there = side_folder("a", "c/0/1"), side_folder("a", "c/1/0")
    report = store.repair("a/c/0", min_age=0)
    mended = [(each.problem, each.chunk_key, each.is_repaired) for each in report.findings]
    assert mended == [(Problem.INTERRUPTED, "a/c/0/1", True)]
    assert not any(key.startswith(here) for key in contents(objects))
    assert any(key.startswith(there) for key in contents(objects))
    assert store.verify("a/c/0").is_clean
    assert not store.verify("a/c/1").is_clean


def test_dropping_removes_what_cannot_be_read_and_nothing_else(objects: Any) -> None:
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


def test_retag_lets_another_programs_chunks_count_as_writes_of_ours() -> None:
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


def test_very_many_leftovers_are_removed_and_a_report_of_them_stays_short(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    before = contents(objects)
    for number in range(300):
        change(objects, f"{side_folder('a', f'c/{number}')}/{number:032x}.done", b"")
    report = store.verify()
    assert len(report.findings) == 300
    lines = str(report).splitlines()
    assert lines[-2:] == [
        "and 200 more; all together: 300 leftovers",
        "nothing is damaged; `repair` would remove leftovers",
    ]
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


@pytest.mark.parametrize("last", ["journal", ".0"])
def test_a_process_that_is_killed_with_its_lock_in_hand_is_tidied_up_after(tmp_path: Path, last: str) -> None:
    objects = disk(tmp_path)
    create(ps.PartsStore(objects))
    before = contents(objects)
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "objects"), last], check=False)
    assert process.returncode == -signal.SIGKILL
    lock = f"{side_folder('a', 'c/1')}.lock"
    assert lock in contents(objects)
    store = ps.PartsStore(objects)
    (finding,) = store.verify().findings
    assert finding.problem is (Problem.INTERRUPTED if last == "journal" else Problem.LEFTOVERS)
    read = chunk_read(objects, "a/c/1")
    assert read == (b"ABCDEFGH" if last == "journal" else before["a/c/1"] + before["a/c/1.tail"])
    assert store.repair().is_clean
    assert chunk_read(objects, "a/c/1") == read
    assert contents(objects).keys() == before.keys()
    assert not (tmp_path / "objects/a/.parts-txn").exists()


def test_a_lock_that_somebody_holds_is_told_and_the_rest_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts_store.transactions.locking._MAX_WAITS", 2)
    objects = disk(tmp_path)
    store = ps.PartsStore(objects)
    create(store)
    for number in (0, 1):
        change(objects, f"{side_folder('a', f'c/{number}')}/{'0a' * 16}.0", b"?")
    release = store._backend.lock(Lock(f"{side_folder('a', 'c/1')}.lock", "somebody else"))
    assert release is not None
    first, second = store.repair().findings
    assert (first.chunk_key, first.is_repaired) == ("a/c/0", True)
    assert (second.chunk_key, second.is_repaired) == ("a/c/1", False)
    assert "somebody has held its lock" in second.detail
    release()
    assert store.repair().is_clean
    assert store.verify().findings == ()


# --- reports ---------------------------------------------------------------------------------------------------------


def finding(problem: Problem, *, is_repaired: bool = False, number: int = 0) -> Finding:
    return Finding(problem, f"a/c/{number}", (f"a/c/{number}.tail", f"a/c/{number}"), "of some kind", is_repaired)


DAMAGE = {
    Problem.INCOMPLETE,
    Problem.MIXTURE,
    Problem.WRONG_SIZE,
    Problem.PARTLY_TAGGED,
    Problem.OTHER_LAYOUT,
    Problem.CHECKSUM,
    Problem.UNREADABLE,
}


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("problem", Problem)
def test_a_report_says_what_is_damaged_and_what_is_untidy(problem: Problem, is_repaired: bool) -> None:
    report = Report((finding(problem, is_repaired=is_repaired),), 1, 4, 8)
    assert problem.is_damage == (problem in DAMAGE)
    assert report.is_damaged == (problem in DAMAGE and not is_repaired)
    assert report.is_clean == (is_repaired or problem in (Problem.UNTAGGED, Problem.UNMARKED))
    assert report.counts == {problem.value: 1}
    first, said, last = str(report).splitlines()
    assert first == "1 array with parts, 4 chunks, 8 objects"
    mended = ", repaired" if is_repaired else ""
    assert said == f"{problem.value}{mended}: a/c/0: of some kind: a/c/0.tail, a/c/0"
    untidy = "no problems found" if report.is_clean else "nothing is damaged; `repair` would remove leftovers"
    assert last == ("damaged" if report.is_damaged else untidy)


def test_a_report_goes_through_json_and_comes_back_the_same() -> None:
    findings = tuple(finding(problem, number=number) for number, problem in enumerate(Problem))
    report = Report(findings, 2, 9, 18, (("b", "not understood"),))
    data = report.to_json()
    assert json.loads(json.dumps(data)) == data
    assert data == {
        "damaged": True,
        "clean": False,
        "arrays": 2,
        "chunks": 9,
        "objects": 18,
        "findings": [
            {
                "problem": each.value,
                "chunk_key": f"a/c/{number}",
                "keys": [f"a/c/{number}.tail", f"a/c/{number}"],
                "detail": "of some kind",
                "repaired": False,
            }
            for number, each in enumerate(Problem)
        ],
        "not_understood": [{"array": "b", "problem": "not understood"}],
    }


def test_an_array_that_is_not_understood_is_damage() -> None:
    report = Report((), 0, 0, 0, (("", "why"),))
    assert report.is_damaged
    assert not report.is_clean
    assert str(report).splitlines()[1:] == ["not understood: /: why", "damaged"]
    assert str(Report((), 0, 0, 0)).endswith("\nno arrays with parts")


def test_a_long_report_shows_damage_first() -> None:
    many = [finding(Problem.UNTAGGED, number=number) for number in range(200)]
    report = Report((*many, finding(Problem.MIXTURE, number=999)), 1, 201, 402)
    lines = str(report).splitlines()
    assert lines[1].startswith("mixture: a/c/999")
    assert lines[-2] == "and 101 more; all together: 1 mixture, 200 untagged"
    assert report.counts == {"mixture": 1, "untagged": 200}
