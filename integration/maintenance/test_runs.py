"""Verify and repair of a whole bucket: reports, the command line, read-only users, worker processes, costs."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from distributed import Client, LocalCluster

import parts_store as ps
from integration.conftest import Bucket
from integration.maintenance.commands import as_json, parsed, run
from integration.maintenance.damages import (
    ALL,
    CHUNKS,
    FIFTH,
    INTERRUPTED,
    MENDED_WITHOUT_ORDERS,
    NBYTES,
    NEW,
    PARTS,
    SCENES,
    SHARD,
    SHARD_VALUES,
    _put_all,
    create_chunks,
    create_shards,
    damage_everything,
    retag,
    same,
    value_of,
)
from integration.proxy import CountingProxy
from integration.server import Server
from integration.writers import Death, abandon
from parts_store import PartsStore
from parts_store.errors import StorageError
from parts_store.maintenance.report import Finding, Problem, Report

# Overwrites with staged copies, as for large parts; `tests/transactions/test_embedding.py` has those without.
pytestmark = pytest.mark.usefixtures("large_parts")


def test_reports_of_verify_and_repair_list_every_problem(bucket: Bucket) -> None:
    findings = damage_everything(bucket)
    store = PartsStore(bucket.store())
    report = store.verify()
    same(report, *findings)
    # Two are gone, one of them with its parts; and a part is missing.
    counts = (report.arrays, report.chunks, report.objects)
    assert counts == (3, CHUNKS - 1 - 1 + 4 + 2, 3 * (CHUNKS - 1) - 3 - 1 - 1 + 2 * 4 + 2 * 2)
    # Two are of sessions, one is of documents, one takes an array that was created again, one shards that are files.
    others = {
        Problem.UNREADABLE,
        Problem.UNDECODABLE,
        Problem.STRAY_NODES,
        Problem.UNMARKED,
        Problem.OTHER_LAYOUT,
        Problem.NO_FILE,
    }
    assert {problem.value for problem in set(Problem) - others} == set(report.counts)
    # Below a prefix, what is there and nothing else.
    same(store.verify("shards"), *[each for each in findings if each.chunk_key.startswith("shards")])
    same(store.verify("chunks"), *[each for each in findings if each.chunk_key.startswith("chunks")])
    same(store.verify("sums"))

    mended = store.repair(min_age=0)
    after = [replace(each, is_repaired=each.problem in MENDED_WITHOUT_ORDERS) for each in findings]
    same(mended, *after)
    rest = [each for each in findings if each.problem not in MENDED_WITHOUT_ORDERS]
    same(store.verify(), *rest)
    retagged = (Problem.UNTAGGED, Problem.PARTLY_TAGGED)
    solved = [replace(each, is_repaired=True, is_deleted=each.problem not in retagged) for each in rest]
    same(store.repair(min_age=0, retag=True, drop_incomplete=True), *solved)
    same(store.verify(checksums=True))
    expected = [value_of(number) for number in range(CHUNKS - 1)] + [bytes(NBYTES)]
    for number, name in ALL.items():
        scene = SCENES[name]
        expected[number] = scene.after or bytes(NBYTES)
        if name == "part without tag":
            expected[number] = value_of(number)
    read = np.asarray(zarr.open_array(PartsStore(bucket.store()), path="chunks")[...])
    assert read.tobytes() == b"".join(expected)


def test_command_line_prints_the_report_and_exits_with_its_code(bucket: Bucket, reader: Server) -> None:
    findings = damage_everything(bucket)
    # A user with read access can verify.
    code, out, errors = run("verify", bucket, "--json", user=reader)
    assert (code, errors) == (1, "")
    report, found = parsed(out)
    assert found == as_json(findings)
    assert (report["damaged"], report["clean"], report["arrays"]) == (True, False, 3)

    # A user with read access cannot repair.
    code, out, errors = run("repair", bucket, "--min-age=0", user=reader)
    assert (code, out) == (2, "")
    assert len(errors.splitlines()) == 1
    assert reader.secret_key not in errors
    same(PartsStore(bucket.store()).verify(), *findings)

    code, out, errors = run("repair", bucket, "--min-age=0s", "--drop-incomplete", "--json", "--prefix=shards")
    assert (code, errors) == (0, "")
    of_shards = [each for each in findings if each.problem is Problem.CHECKSUM]
    mended = [replace(each, is_repaired=True, is_deleted=True) for each in of_shards]
    assert parsed(out)[1] == as_json(mended)

    code, out, errors = run("repair", bucket, "--drop-incomplete", "--retag", "--min-age=0")
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"nothing is damaged now; [0-9]+ damaged chunks? deleted", out.splitlines()[-1])

    abandon(PartsStore(bucket.store()), "chunks/c/0", NEW, Death.ANCHOR)
    code, out, errors = run("verify", bucket)
    assert (code, errors) == (3, "")
    assert out.splitlines()[1].startswith(f"interrupted: chunks/c/0: {INTERRUPTED}: ")
    code, out, errors = run("repair", bucket)
    assert (code, errors) == (3, "")
    assert out.splitlines()[1].startswith("interrupted, repaired: chunks/c/0: ")
    # The staged copy.
    assert out.splitlines()[2].startswith("leftovers: chunks/c/0: beside the chunk; not repaired: younger than min_age")
    assert PartsStore(bucket.store()).repair(min_age=0).is_clean
    code, out, errors = run("verify", bucket, "--checksums", "--json")
    assert (code, errors) == (0, "")
    assert parsed(out)[1] == []
    assert PartsStore(bucket.store()).verify() == Report(
        (), 3, *(json.loads(out)[name] for name in ("chunks", "objects"))
    )


def test_unreachable_store_is_one_line_of_output(bucket: Bucket) -> None:
    create_chunks(PartsStore(bucket.store()))
    before = bucket.list_keys()
    unknown = replace(bucket.server, access_key="unknown")
    for command, where, user in (("repair", bucket, unknown), ("verify", replace(bucket, name="no-such-bucket"), None)):
        code, out, errors = run(command, where, user=user)
        assert (code, out) == (2, "")
        assert len(errors.splitlines()) == 1
        assert bucket.server.secret_key not in errors
    assert bucket.list_keys() == before


@pytest.mark.parametrize("death", Death)
def test_read_only_user_reads_what_a_dead_writer_committed(
    bucket: Bucket, reader: Server, pipeline: str, death: Death
) -> None:
    store = PartsStore(bucket.store())
    create_chunks(store)
    array = create_shards(store)
    theirs = PartsStore(bucket.store(user=reader), read_only=True)
    known = zarr.open_array(theirs, path="shards", mode="r")
    np.testing.assert_array_equal(known[:8, :8], SHARD_VALUES[:8, :8])
    before = store.get_sync(SHARD)
    assert before is not None
    array[...] = SHARD_VALUES + 1
    newer = store.get_sync(SHARD)
    assert newer is not None
    array[...] = SHARD_VALUES
    if death is Death.PARTS:
        for key in ("chunks/c/5", SHARD):
            bucket.client.remove_object(bucket.name, key)
    # A client that knows of no chunk tries to create it.
    writer = PartsStore(bucket.store()) if death is Death.PARTS else store
    abandon(writer, "chunks/c/5", NEW, death)
    abandon(writer, SHARD, newer.to_bytes(), death)
    objects = bucket.list_keys()

    is_new = death in (Death.ANCHOR, Death.ALL_PARTS)
    expected = SHARD_VALUES.copy()
    expected[:16, :16] = 0 if death is Death.PARTS else expected[:16, :16] + is_new
    chunk = bytes(NBYTES) if death is Death.PARTS else NEW if is_new else FIFTH
    for of_reader in (theirs, PartsStore(bucket.store(user=reader))):
        shards = zarr.open_array(of_reader, path="shards", mode="r")
        for selection in (np.s_[3:5, 3:5], np.s_[...], np.s_[:16, :16], np.s_[10:20, 10:20]):
            np.testing.assert_array_equal(shards[selection], expected[selection])
        chunks = zarr.open_array(of_reader, path="chunks", mode="r")
        assert np.asarray(chunks[5 * NBYTES : 6 * NBYTES]).tobytes() == chunk
        assert np.asarray(chunks[4 * NBYTES : 5 * NBYTES]).tobytes() == value_of(4)
    np.testing.assert_array_equal(known[:8, :8], expected[:8, :8])
    # They see what is wrong, as everybody does, and change nothing.
    assert theirs.verify() == store.verify()
    with pytest.raises(StorageError):
        PartsStore(bucket.store(user=reader)).repair(min_age=0)
    assert bucket.list_keys() == objects


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_worker_processes_find_the_same(bucket: Bucket, client: Any) -> None:
    findings = damage_everything(bucket)
    store = PartsStore(bucket.store(), read_only=True)
    retag(bucket, "sums/c/1", b"\x06" * NBYTES)
    told: list[tuple[int, int]] = []
    report = store.verify(executor=client, checksums=True, progress=lambda done, total: told.append((done, total)))
    assert report == store.verify(checksums=True)
    detail = "the bytes do not match their checksum"
    sums = Finding(Problem.CHECKSUM, "sums/c/1", ("sums/c/1", "sums/c/1.tail"), detail)
    same(report, *findings, sums)
    assert told[-1] == (report.chunks, report.chunks)
    code, out, errors = run("verify", bucket, "--checksums", "--json", f"--dask={client.scheduler.address}")
    assert (code, errors) == (1, "")
    assert parsed(out)[1] == as_json([*findings, sums])


def test_verify_costs_a_listing_and_a_head_for_each_part(bucket: Bucket, server: Server) -> None:
    many = 500
    direct = bucket.store()
    writer = PartsStore(direct)
    ps.create_array(writer, "many", parts=PARTS[1:], shape=(many,), chunks=(1,), dtype="u1")
    single = ps.create_array(writer, "single", parts=[""], shape=(9,), chunks=(3,), dtype="u1")
    single[...] = 1
    zarr.create_array(writer, name="plain", shape=(9,), chunks=(3,), dtype="u1")[...] = 1
    create_shards(writer)
    try:
        asyncio.run(_put_all(direct, many))
        with CountingProxy(server.endpoint) as proxy:
            user = Server(proxy.endpoint, server.access_key, server.secret_key)
            store = PartsStore(bucket.store(user=user), read_only=True)
            report = store.verify()
            seen = list(proxy.requests)
        same(report)
        shards = [f"shards/c/{row}/{column}" for row, column in np.ndindex(2, 2)]
        documents = ["zarr.json", *(f"{name}/zarr.json" for name in ("many", "single", "plain", "shards"))]
        objects = 2 * many + 3 + 3 + 2 * len(shards) + len(documents)
        pages = -(-objects // 1000)
        assert [each.listed for each in seen if each.kind == "list"] == [""] * pages
        assert Counter(each.key for each in seen if each.kind == "head") == Counter(
            [f"many/c/{number}{suffix}" for number in range(many) for suffix in ("", ".tail")] + shards
        )
        assert Counter(each.key for each in seen if each.kind == "get") == Counter(
            [*documents, *(f"{key}.index" for key in shards)]
        )
        assert {each.kind for each in seen} == {"list", "head", "get"}
        calls = {kind: count for kind, count in store.stats.calls.items() if count}
        # A call of ours is as many pages as it takes.
        assert calls == {**Counter(each.kind for each in seen), "list": 1}
    finally:
        # Many at once, for the bucket's own cleaning is one by one.
        keys = [f"many/c/{number}{suffix}" for number in range(many) for suffix in ("", ".tail")]
        for start in range(0, len(keys), 1000):
            obstore.delete(direct, keys[start : start + 1000])
