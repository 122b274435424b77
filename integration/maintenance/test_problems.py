"""Verify finds each problem on a real server, and repair removes it."""

import json
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import zarr

from integration.conftest import Bucket
from integration.maintenance.damages import (
    CHUNKS,
    NBYTES,
    NEW,
    PARTS,
    SCENES,
    SHARD,
    SHARD_VALUES,
    beside,
    create_chunks,
    create_shards,
    create_sums,
    finding_of,
    retag,
    same,
    tag_of,
)
from integration.writers import Death, abandon
from parts_store import PartsStore
from parts_store.errors import IncompleteChunkError, PartSizeError
from parts_store.maintenance.report import Finding, Problem, Report

# Overwrites with staged copies, as for large parts; `tests/transactions/test_embedding.py` has those without.
pytestmark = pytest.mark.usefixtures("large_parts")


def assert_read(store: PartsStore, chunk_key: str, expected: bytes | type[Exception] | None) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            store.get_sync(chunk_key)
        return
    found = store.get_sync(chunk_key)
    assert (None if found is None else found.to_bytes()) == expected


@pytest.mark.parametrize("name", SCENES)
def test_verify_names_each_problem_and_repair_removes_it(bucket: Bucket, name: str) -> None:
    scene, key = SCENES[name], "chunks/c/5"
    store = PartsStore(bucket.store())
    create_chunks(store)
    untouched = {each: bucket.read(each) for each in bucket.list_keys() if not each.startswith(key)}
    assert store.verify() == Report((), 1, CHUNKS - 1, 3 * (CHUNKS - 1))
    scene.make(bucket, store, key)
    finding = finding_of(scene, bucket, store, key)
    assert_read(PartsStore(bucket.store()), key, scene.before)

    report = PartsStore(bucket.store(), read_only=True).verify()
    same(report, finding)
    assert report.is_damaged is (scene.before in (IncompleteChunkError, PartSizeError))
    assert report.is_clean is (scene.problem is Problem.UNTAGGED)

    # Not told to, or too early, it is left alone.
    objects = bucket.list_keys()
    if scene.problem is not Problem.INTERRUPTED:
        early = store.repair(min_age=timedelta(hours=1), drop_incomplete=True, retag=True)
        same(early, replace(finding, detail=f"{finding.detail}; not repaired: younger than min_age"))
    if scene.order is not None:
        same(store.repair(min_age=0), finding)
    assert bucket.list_keys() == objects

    mended = store.repair(min_age=0, drop_incomplete=scene.order == "drop_incomplete", retag=scene.order == "retag")
    same(mended, replace(finding, is_repaired=True, is_deleted=scene.order == "drop_incomplete"))
    assert (mended.is_damaged, mended.is_clean) == (False, True)
    same(store.verify())
    assert_read(PartsStore(bucket.store()), key, scene.after)
    # As any other program reads it, and without anything beside it.
    parts = {key + part.key_suffix for part in PARTS} if scene.after is not None else set()
    assert bucket.list_keys() == {*untouched, *parts}
    assert {each: bucket.read(each) for each in untouched} == untouched
    if scene.after is not None:
        assert b"".join(bucket.read(key + part.key_suffix) for part in PARTS) == scene.after
        assert len({tag_of(bucket, key + part.key_suffix) for part in PARTS}) == 1


def test_an_index_that_is_damaged_is_found_without_reading_the_data(bucket: Bucket) -> None:
    store = PartsStore(bucket.store())
    create_shards(store)
    index = bytearray(bucket.read(f"{SHARD}.index"))
    index[3] ^= 1
    retag(bucket, f"{SHARD}.index", bytes(index))
    finding = Finding(Problem.CHECKSUM, SHARD, (f"{SHARD}.index",), "the index does not match its checksum")
    report = store.verify()
    same(report, finding)
    assert report.is_damaged
    same(store.repair(min_age=0, retag=True), finding)
    dropped = replace(finding, is_repaired=True, is_deleted=True)
    same(store.repair(min_age=0, drop_incomplete=True), dropped)
    expected = SHARD_VALUES.copy()
    expected[:16, :16] = 0
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store()), path="shards")[...], expected)
    same(store.verify())


def test_checksums_find_damaged_bytes_if_they_are_asked_for(bucket: Bucket) -> None:
    store = PartsStore(bucket.store())
    create_sums(store)
    same(store.verify(checksums=True))
    retag(bucket, "sums/c/1", b"\x06" * NBYTES)
    same(store.verify())
    keys = ("sums/c/1", "sums/c/1.tail")
    finding = Finding(Problem.CHECKSUM, "sums/c/1", keys, "the bytes do not match their checksum")
    report = store.verify(checksums=True)
    same(report, finding)
    assert report.is_damaged


def test_repair_removes_old_leftovers_by_the_clock_of_the_store(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Do not wait for a quarter of an hour.
    monkeypatch.setattr("parts_store.maintenance.execution.LEAST_AGE", 0)
    store = PartsStore(bucket.store())
    create_chunks(store)
    # On a busy machine, what is young may have become old when it is looked at: then once more, with more time.
    for min_age in (1, 4, 16, 64):
        abandon(store, "chunks/c/1", NEW, Death.COPY)
        time.sleep(min_age + 0.2)
        began = time.monotonic()
        abandon(store, "chunks/c/2", NEW, Death.COPY)
        old, young = (
            Finding(Problem.LEFTOVERS, key, beside(bucket, store, key), "beside the chunk")
            for key in ("chunks/c/1", "chunks/c/2")
        )
        report = store.repair(min_age=min_age)
        if time.monotonic() - began < min_age:
            break
        store.repair(min_age=0)
    same(
        report,
        replace(old, is_repaired=True),
        replace(young, detail=f"{young.detail}; not repaired: younger than min_age"),
    )
    assert (report.is_damaged, report.is_clean) == (False, False)
    same(store.verify(), young)


def test_repair_marks_documents_that_other_readers_must_refuse(bucket: Bucket) -> None:
    create_chunks(PartsStore(bucket.store(), must_understand=False))
    store = PartsStore(bucket.store())
    detail = "software without concat-parts would misread the array, and its document does not tell it to refuse"
    finding = Finding(Problem.UNMARKED, "chunks", ("chunks/zarr.json",), detail)
    same(store.verify(), finding)
    same(store.repair(), finding)
    before = json.loads(bucket.read("chunks/zarr.json"))
    same(store.repair(must_understand=True), replace(finding, is_repaired=True))
    assert json.loads(bucket.read("chunks/zarr.json")) == before | {
        "parts_store": {"name": "parts_store", "must_understand": True}
    }
    same(store.verify())
