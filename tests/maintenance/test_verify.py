"""The requests that `verify` makes, and the problems that it finds in real stores."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import obstore
import pytest
import zarr
from distributed import Client
from obstore.store import HTTPStore, LocalStore, MemoryStore
from zarr.codecs import Crc32cCodec

import parts_store as ps
from parts_store.cli import main
from parts_store.errors import StoreConfigError
from parts_store.maintenance import execution
from parts_store.maintenance.report import Problem, Report
from tests.maintenance.stores import (
    TWO,
    VALUES,
    change,
    contents,
    create,
    create_indexed,
    disk,
    document_nbytes,
    flip,
    found_in,
    side_folder,
)

# --- requests --------------------------------------------------------------------------------------------------------


def calls(store: ps.PartsStore) -> dict[str, int]:
    return {kind: count for kind, count in store.stats.calls.items() if count}


def test_verify_makes_one_listing_and_one_request_per_tagged_part(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store)
    fresh = ps.PartsStore(objects, read_only=True)
    report = fresh.verify()
    # The documents of the root and of the array.
    expected = {"get": 2} | ({"list": 2} if isinstance(objects, LocalStore) else {"list": 1, "head": 8})
    assert calls(fresh) == expected
    assert report == Report((), arrays=1, chunks=4, objects=8)
    assert str(report).splitlines() == ["1 array checked, 4 chunks, 8 objects", "no problems found"]


def test_verify_makes_no_request_for_chunks_of_one_part(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, parts=[ps.Part("")])
    create(store, "suffixed", parts=[ps.Part(".bin")])
    zarr.create_array(store, name="plain", shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
    fresh = ps.PartsStore(objects, read_only=True)
    report = fresh.verify()
    assert calls(fresh) == {"list": 2 if isinstance(objects, LocalStore) else 1, "get": 4}
    assert report == Report((), arrays=2, chunks=8, objects=8)


def test_verify_reads_index_parts_and_no_data(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_indexed(store)
    fresh = ps.PartsStore(objects, read_only=True)
    assert fresh.verify("shards").findings == ()
    # The documents of the root and of the array, and two indexes.
    assert calls(fresh) == {"get": 4, "head": 4, "list": 2 if isinstance(objects, LocalStore) else 1}
    document = document_nbytes(objects)
    assert fresh.stats.bytes_read == document + 2 * (4 * 16 + 4)


def test_verify_needs_a_store_that_can_be_listed() -> None:
    store = ps.PartsStore(HTTPStore("http://127.0.0.1:9", client_options={"allow_http": True}))
    with pytest.raises(StoreConfigError, match="expected a store that can be listed"):
        store.verify()
    with pytest.raises(ValueError, match="read-only"):
        store.repair()


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_foreign", [False, True], ids=["ours", "another program's"])
def test_wrong_index_checksum_is_found_without_reading_data(objects: Any, is_foreign: bool) -> None:
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
    # The damaged chunk is checked twice.
    assert store.stats.bytes_read == document + 3 * (4 * 16 + 4)
    with pytest.raises(ValueError, match=r"(?i)checksum"):
        zarr.open_array(store, path="shards")[8:]


@pytest.mark.parametrize("parts", [[ps.Part(""), ps.Part(".crc32c", size=4)], [ps.Part("")], TWO])
def test_checksums_find_a_flipped_bit_and_read_no_other_arrays(objects: Any, parts: Sequence[ps.Part]) -> None:
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


def test_checksums_read_chunks_with_leftovers_and_skip_damaged_ones(
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


def test_checksums_read_chunks_in_groups_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    create(store, compressors=[Crc32cCodec()])
    flip(objects, "a/c/3", 1)
    for limit in (0, 12, 30, 1 << 20):
        monkeypatch.setattr("parts_store.maintenance.diagnosis._MAX_NBYTES", limit)
        assert [each.chunk_key for each in store.verify(checksums=True).findings] == ["a/c/3"]


@pytest.mark.slow
def test_verify_and_repair_on_dask_workers_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_BATCH", 3)
    objects = disk(tmp_path)
    store = ps.PartsStore(objects)
    create(store)
    change(objects, "a/c/1.tail", None)
    expected = store.verify()
    with Client(processes=False, dashboard_address=":0") as client:
        assert store.verify(executor=client) == store.verify(executor="dask") == expected
        assert ps.PartsStore(disk(tmp_path / "empty")).verify(executor=client).findings == ()
        assert store.repair(min_age=0, drop_incomplete=True, executor=client).findings == tuple(
            replace(each, is_repaired=True, is_deleted=True) for each in expected.findings
        )
    assert store.verify().is_clean


def test_verify_and_repair_on_threads_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_BATCH", 3)
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    for name in ("a", "b"):
        create(store, name)
        change(objects, f"{name}/c/1.tail", None)
    seen: list[tuple[int, int]] = []
    expected = store.verify(checksums=True, progress=lambda *each: seen.append(each))
    assert [each.chunk_key for each in expected.findings] == ["a/c/1", "b/c/1"]
    with ThreadPoolExecutor(3) as executor:
        report = store.verify(checksums=True, executor=executor, progress=lambda *each: seen.append(each))
        assert report == expected
        assert seen == 2 * [(3, 8), (4, 8), (7, 8), (8, 8)]
        seen.clear()
        repaired = store.repair(
            min_age=0, drop_incomplete=True, executor=executor, progress=lambda *each: seen.append(each)
        )
    assert seen == [(1, 2), (2, 2)]
    assert [each.chunk_key for each in repaired.findings if each.is_repaired] == ["a/c/1", "b/c/1"]
    assert store.verify().is_clean


def test_verify_on_an_executor_sees_the_changes_of_a_session(tmp_path: Path) -> None:
    session = ps.open_repository(tmp_path / "repository").writable_session("main")
    store = ps.PartsStore.from_session(session)
    create(store)
    with ThreadPoolExecutor(2) as executor:
        assert store.verify(executor=executor) == store.verify()
        assert store.repair(executor=executor).chunks == store.verify().chunks > 0


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
# What is put in place of members of the document; or what is there in place of the document.
CHANGES: dict[str, dict[str, Any] | bytes] = {
    "no JSON": b"{",
    "no object": b"[]",
    "empty": b"",
    "no text": b"\xff\xfe",
    "no members": b"{}",
    "another kind of node": {"node_type": "cube"},
    "another format": {"zarr_format": 4},
    "unknown codec": {"codecs": [{"name": "unknown-name"}, BYTES]},
    "unknown inner codec": {
        "codecs": [
            {"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": [{"name": "unknown-name"}]}}
        ]
    },
    "wrong configuration": {"codecs": [BYTES, {"name": "gzip", "configuration": {"level": "high"}}]},
    "unknown type": {"data_type": "uint7"},
    "unknown grid": {"chunk_grid": {"name": "hexagonal"}},
    "no shape": {"shape": None},
    "unknown transformer": {"storage_transformers": [{"name": "unknown-name"}]},
    "two transformers": {"storage_transformers": [{"name": "concat-parts"}, {"name": "concat-parts"}]},
    "wrong parts": {"storage_transformers": [{"name": "concat-parts", "configuration": {"parts": []}}]},
    "unknown member": {"unknown-name": {"must_understand": True}},
}


def can_be_opened(store: ps.PartsStore, path: str) -> bool:
    try:
        zarr.open_array(store, path=path, zarr_format=3)
    except Exception:
        return False
    return True


@pytest.mark.sampled(5)
@pytest.mark.parametrize("has_parts", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_verify_reports_an_array_that_cannot_be_opened(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str], *, has_parts: bool
) -> None:
    objects = LocalStore(tmp_path)
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "uint8", "compressors": None}
    ps.create_array(store, "good", parts=["", ps.Part(".t", size=2)], **arguments)[:] = 1
    if has_parts:
        ps.create_array(store, "bad", parts=["", ps.Part(".t", size=2)], **arguments)[:] = 1
    else:
        zarr.create_array(store, name="bad", **arguments)[:] = 1
    change = CHANGES[what]
    if isinstance(change, bytes):
        obstore.put(objects, "bad/zarr.json", change)
    else:
        document = json.loads(bytes(obstore.get(objects, "bad/zarr.json").bytes()))
        obstore.put(objects, "bad/zarr.json", json.dumps(document | change).encode())
    fresh = ps.PartsStore(objects)
    assert not can_be_opened(fresh, "bad")
    assert can_be_opened(fresh, "good")
    # The first store has the document in its catalog, and reads it again.
    for report in (store.verify(), fresh.verify(), fresh.verify("bad"), fresh.repair(min_age=0, drop_incomplete=True)):
        assert [path for path, _ in report.not_understood] == ["bad"]
        assert report.is_damaged
        assert not report.is_clean
        assert "no problems found" not in str(report)
        assert "not understood: bad: " in str(report)
    assert main(["verify", str(tmp_path)]) != 0
    assert "bad" in capsys.readouterr().out
    assert fresh.verify("good").is_clean


def test_verify_reports_openable_arrays_as_sound(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    zarr.create_group(store, attributes={"a": 1})
    shards: dict[str, Any] = {"shape": (8, 8), "chunks": (2, 2), "shards": (4, 4), "dtype": "float32"}
    parts: list[str | ps.Part] = ["", ps.Part(".index", size=ps.SHARD_INDEX)]
    ps.create_array(store, "shards", parts=parts, **shards)[:] = 1
    zarr.create_array(store, name="plain", dimension_names=("y", "x"), **shards)[:] = 1
    zarr.create_array(store, name="text", shape=(2,), chunks=(2,), dtype="datetime64[s]")[:] = 1
    zarr.create_group(store, path="v2", zarr_format=2)
    report = store.verify()
    assert not report.not_understood
    assert report.is_clean
    assert str(report).endswith("no problems found")
