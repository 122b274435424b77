"""Verifying and repairing on a real S3 server: each kind of damage made for real, told exactly, and put right."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from distributed import Client, LocalCluster
from minio.commonconfig import CopySource
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.codecs import BytesCodec, Crc32cCodec

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from integration.writers import Death, abandon, buffer, chunk_of
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import IncompleteChunkError, PartSizeError, StorageError
from parts_store.maintenance.report import Finding, Problem, Report
from parts_store.options import Concurrency

PIPELINES = [
    "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr.core.codec_pipeline.FusedCodecPipeline",
]
PARTS = [Part(".head", size=10), Part(""), Part(".tail", size=4)]
SHARD_PARTS = [Part(""), Part(".index", size=SHARD_INDEX)]
# Chunks of a hundred bytes, which hold one more than their number; the last is absent.
CHUNKS = 12
NBYTES = 100
NEW = b"\xee" * NBYTES
SHARD = "shards/c/0/0"


def value_of(chunk: int) -> bytes:
    return bytes([chunk + 1]) * NBYTES


def create_chunks(store: PartsStore) -> zarr.Array[Any]:
    array = ps.create_array(
        store, "chunks", parts=PARTS, shape=(CHUNKS * NBYTES,), chunks=(NBYTES,), dtype="u1", compressors=None
    )
    array[:-NBYTES] = np.frombuffer(b"".join(map(value_of, range(CHUNKS - 1))), "u1")
    return array


def create_shards(store: PartsStore) -> zarr.Array[Any]:
    array = ps.create_array(
        store, "shards", parts=SHARD_PARTS, shape=(32, 32), chunks=(8, 8), shards=(16, 16), dtype="u1"
    )
    array[...] = SHARD_VALUES
    return array


SHARD_VALUES: NDArray[Any] = (np.arange(32 * 32) % 251 + 1).astype("u1").reshape(32, 32)


def create_sums(store: PartsStore) -> zarr.Array[Any]:
    array = ps.create_array(
        store,
        "sums",
        parts=PARTS[1:],
        shape=(2 * NBYTES,),
        chunks=(NBYTES,),
        dtype="u1",
        serializer=BytesCodec(),
        compressors=[Crc32cCodec()],
    )
    array[...] = 5
    return array


def tag_of(bucket: Bucket, key: str) -> str:
    return str(obstore.get(bucket.store(), key).attributes["partsgen"])


def untag(bucket: Bucket, key: str) -> None:
    """The same bytes, as a program writes them that knows of no tags."""
    obstore.put(bucket.store(), key, bucket.read(key))


def retag(bucket: Bucket, key: str, data: bytes) -> None:
    """Other bytes under the same tag."""
    obstore.put(bucket.store(), key, data, attributes={"partsgen": tag_of(bucket, key)})


def bring_back(bucket: Bucket, store: PartsStore, chunk_key: str, suffix: str) -> None:
    """Write a chunk, and let one part be what it was before, with its tag, as a backup brings it back."""
    key, kept = chunk_key + suffix, f"kept/{chunk_key}"
    bucket.client.copy_object(bucket.name, kept, CopySource(bucket.name, key))
    store.set_sync(chunk_key, buffer(NEW))
    bucket.client.copy_object(bucket.name, key, CopySource(bucket.name, kept))
    bucket.client.remove_object(bucket.name, kept)


def beside(bucket: Bucket, store: PartsStore, chunk_key: str) -> tuple[str, ...]:
    """What is beside a chunk."""
    folder = chunk_of(store, chunk_key).side_folder
    return tuple(sorted(key for key in bucket.list_keys() if key.startswith(f"{folder}/")))


# --- each kind of problem -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """How a problem comes about at a chunk, and what follows: what is told, by what it is put right, what is read."""

    make: "Act"
    problem: Problem
    # By their suffixes; None for what is beside the chunk.
    parts: tuple[str, ...] | None
    detail: str
    # What a repair needs to be told, to do anything about it.
    order: str | None
    # The chunk, as it is read before the repair, an error if it cannot be; and afterwards.
    before: bytes | type[Exception] | None
    after: bytes | None
    is_stray: bool = False


type Act = Callable[[Bucket, PartsStore, str], object]


def in_turn(*acts: Act) -> Act:
    def make(bucket: Bucket, store: PartsStore, key: str) -> None:
        for act in acts:
            act(bucket, store, key)

    return make


def removed(*suffixes: str) -> Act:
    def make(bucket: Bucket, store: PartsStore, key: str) -> None:
        for suffix in suffixes:
            bucket.client.remove_object(bucket.name, key + suffix)

    return make


def died(after: Death, value: bytes = NEW, *, level: Concurrency = "writers") -> Act:
    return lambda bucket, store, key: abandon(PartsStore(store.store, concurrency=level), key, value, after)


def written(bucket: Bucket, store: PartsStore, key: str) -> None:
    store.set_sync(key, buffer(NEW))


def written_by_stranger(bucket: Bucket, store: PartsStore, key: str) -> None:
    for suffix, data in ((".head", NEW[:10]), ("", NEW[10:-4]), (".tail", NEW[-4:])):
        obstore.put(bucket.store(), key + suffix, data)


EVERY_PART = (".head", "", ".tail")
FIFTH = value_of(5)
# All of them at the fifth chunk.
SCENES: dict[str, Scene] = {
    "missing part": Scene(
        removed(".tail"),
        *(Problem.INCOMPLETE, (".tail",), "no such object", "drop_incomplete", IncompleteChunkError, None),
    ),
    "missing parts": Scene(
        removed(".head", ".tail"),
        *(Problem.INCOMPLETE, (".head", ".tail"), "no such object", "drop_incomplete", IncompleteChunkError, None),
    ),
    "part of another write": Scene(
        lambda bucket, store, key: bring_back(bucket, store, key, ".head"),
        *(Problem.MIXTURE, (".head",), "of another write than the anchor"),
        *("drop_incomplete", IncompleteChunkError, None),
    ),
    "anchor of another write": Scene(
        lambda bucket, store, key: bring_back(bucket, store, key, ""),
        *(Problem.MIXTURE, (".head", ".tail"), "of another write than the anchor"),
        *("drop_incomplete", IncompleteChunkError, None),
    ),
    "part too long": Scene(
        lambda bucket, store, key: retag(bucket, f"{key}.tail", b"12345"),
        *(Problem.WRONG_SIZE, (".tail",), "expected 4 bytes, found 5", "drop_incomplete", PartSizeError, None),
    ),
    "anchor too short": Scene(
        lambda bucket, store, key: retag(bucket, key, b"123"),
        *(Problem.WRONG_SIZE, ("",), "expected 86 bytes, found 3", "drop_incomplete", PartSizeError, None),
    ),
    "part without tag": Scene(
        lambda bucket, store, key: untag(bucket, f"{key}.tail"),
        *(Problem.PARTLY_TAGGED, (".tail",), "no tag", "retag", IncompleteChunkError, FIFTH),
    ),
    "anchor without tag": Scene(
        lambda bucket, store, key: untag(bucket, key),
        *(Problem.PARTLY_TAGGED, ("",), "no tag", "retag", IncompleteChunkError, FIFTH),
    ),
    "part without tag, to be dropped": Scene(
        lambda bucket, store, key: untag(bucket, f"{key}.head"),
        *(Problem.PARTLY_TAGGED, (".head",), "no tag", "drop_incomplete", IncompleteChunkError, None),
    ),
    "no tags": Scene(
        written_by_stranger,
        *(Problem.UNTAGGED, EVERY_PART, "written by another program", "retag", NEW, NEW),
    ),
    "writer that died after the anchor": Scene(
        died(Death.ANCHOR),
        *(Problem.INTERRUPTED, (".head", ".tail"), "the staged copy has what is missing", None, NEW, NEW),
    ),
    "part lost while there is a copy": Scene(
        in_turn(died(Death.ALL_PARTS), removed(".head")),
        *(Problem.INTERRUPTED, (".head",), "the staged copy has what is missing", None, NEW, NEW),
    ),
    "writer that died before the anchor": Scene(
        died(Death.COPY), *(Problem.LEFTOVERS, None, "beside the chunk", None, FIFTH, FIFTH)
    ),
    "writer that died at the end": Scene(
        died(Death.ALL_PARTS), *(Problem.LEFTOVERS, None, "beside the chunk", None, NEW, NEW)
    ),
    "writers that died one after the other, and one who did not": Scene(
        in_turn(died(Death.COPY, b"1" * NBYTES), died(Death.ALL_PARTS, b"2" * NBYTES), written),
        *(Problem.LEFTOVERS, None, "beside the chunk", None, NEW, NEW),
    ),
    "creator that died before the anchor": Scene(
        in_turn(removed(*EVERY_PART), died(Death.PARTS)),
        *(Problem.ORPHANS, (".head", ".tail"), "parts of a chunk that does not exist", None, None, None),
    ),
    "delete": Scene(
        lambda bucket, store, key: store.delete_sync(key),
        *(Problem.ORPHANS, (".head", ".tail"), "parts of a chunk that does not exist", None, None, None),
    ),
    "creator that died before everything": Scene(
        in_turn(removed(*EVERY_PART), died(Death.COPY, level="full")),
        *(Problem.LEFTOVERS, None, "beside a chunk that has no parts", None, None, None),
        is_stray=True,
    ),
}


def finding_of(scene: Scene, bucket: Bucket, store: PartsStore, chunk_key: str) -> Finding:
    """What is to be found."""
    keys = beside(bucket, store, chunk_key) if scene.parts is None else tuple(chunk_key + each for each in scene.parts)
    key = chunk_of(store, chunk_key).side_folder if scene.is_stray else chunk_key
    return Finding(scene.problem, key, keys, scene.detail)


def assert_read(store: PartsStore, chunk_key: str, expected: bytes | type[Exception] | None) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            store.get_sync(chunk_key)
        return
    found = store.get_sync(chunk_key)
    assert (None if found is None else found.to_bytes()) == expected


def same(report: Report, *findings: Finding) -> None:
    """The findings are these, in the order in which they are told; what is beside a chunk in any order."""
    assert [replace(each, keys=tuple(sorted(each.keys))) for each in report.findings] == [
        replace(each, keys=tuple(sorted(each.keys)))
        for each in sorted(findings, key=lambda each: (each.chunk_key, each.problem.value))
    ]


@pytest.mark.parametrize("name", SCENES)
def test_a_problem_is_told_exactly_and_put_right_exactly(bucket: Bucket, name: str) -> None:
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
    early = store.repair(min_age=timedelta(hours=1), drop_incomplete=True, retag=True)
    same(early, replace(finding, detail=f"{finding.detail}; not repaired: younger than min_age"))
    if scene.order is not None:
        same(store.repair(min_age=0), finding)
    assert bucket.list_keys() == objects

    mended = store.repair(min_age=0, drop_incomplete=scene.order == "drop_incomplete", retag=scene.order == "retag")
    same(mended, replace(finding, is_repaired=True))
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
    same(store.repair(min_age=0, drop_incomplete=True), replace(finding, is_repaired=True))
    expected = SHARD_VALUES.copy()
    expected[:16, :16] = 0
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store()), path="shards")[...], expected)
    same(store.verify())


def test_bytes_that_are_damaged_are_found_if_they_are_asked_for(bucket: Bucket) -> None:
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


def test_a_dead_writers_things_are_removed_when_they_are_old_by_the_clock_of_the_store(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody waits for a quarter of an hour here.
    monkeypatch.setattr("parts_store.maintenance.execution.LEAST_AGE", 0)
    store = PartsStore(bucket.store())
    create_chunks(store)
    abandon(store, "chunks/c/1", NEW, Death.COPY)
    time.sleep(1.2)
    abandon(store, "chunks/c/2", NEW, Death.COPY)
    old, young = (
        Finding(Problem.LEFTOVERS, key, beside(bucket, store, key), "beside the chunk")
        for key in ("chunks/c/1", "chunks/c/2")
    )
    report = store.repair(min_age=1.0)
    same(
        report,
        replace(old, is_repaired=True),
        replace(young, detail=f"{young.detail}; not repaired: younger than min_age"),
    )
    assert (report.is_damaged, report.is_clean) == (False, False)
    same(store.verify(), young)


def test_documents_that_do_not_tell_others_to_refuse_the_array_are_marked_when_asked(bucket: Bucket) -> None:
    create_chunks(PartsStore(bucket.store(), must_understand=False))
    store = PartsStore(bucket.store())
    detail = "software without concat-parts would misread the array, and its document does not tell it to refuse"
    finding = Finding(Problem.UNMARKED, "chunks", ("chunks/zarr.json",), detail)
    same(store.verify(), finding)
    same(store.repair(), finding)
    before = json.loads(bucket.read("chunks/zarr.json"))
    same(store.repair(must_understand=True), replace(finding, is_repaired=True))
    assert json.loads(bucket.read("chunks/zarr.json")) == before | {"parts_store": {"must_understand": True}}
    same(store.verify())


# --- everything at once: the command line, other users, worker processes --------------------------------------------

# By the chunk at which they happen.
ALL: dict[int, str] = dict(
    enumerate(
        [
            "missing part",
            "part of another write",
            "part too long",
            "part without tag",
            "no tags",
            "writer that died after the anchor",
            "writer that died at the end",
            "creator that died before the anchor",
            "creator that died before everything",
        ],
        start=1,
    )
)
MENDED_WITHOUT_ORDERS = (Problem.INTERRUPTED, Problem.LEFTOVERS, Problem.ORPHANS)


def damage_everything(bucket: Bucket) -> list[Finding]:
    """Arrays with one problem of each kind; returns what is to be found."""
    store = PartsStore(bucket.store())
    create_chunks(store)
    create_shards(store)
    create_sums(store)
    findings = []
    for number, name in ALL.items():
        key = f"chunks/c/{number}"
        SCENES[name].make(bucket, store, key)
        findings.append(finding_of(SCENES[name], bucket, store, key))
    retag(bucket, f"{SHARD}.index", bytes(len(bucket.read(f"{SHARD}.index"))))
    detail = "the index does not match its checksum"
    return [*findings, Finding(Problem.CHECKSUM, SHARD, (f"{SHARD}.index",), detail)]


def test_the_report_tells_every_problem_and_a_repair_tells_what_it_did(bucket: Bucket) -> None:
    findings = damage_everything(bucket)
    store = PartsStore(bucket.store())
    report = store.verify()
    same(report, *findings)
    # Two are gone, one of them with its parts; and a part is missing.
    counts = (report.arrays, report.chunks, report.objects)
    assert counts == (3, CHUNKS - 1 - 1 + 4 + 2, 3 * (CHUNKS - 1) - 3 - 1 - 1 + 2 * 4 + 2 * 2)
    # Two are of sessions, one is of documents, and one takes an array that was created again.
    others = {Problem.UNREADABLE, Problem.STRAY_NODES, Problem.UNMARKED, Problem.OTHER_LAYOUT}
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
    same(store.repair(min_age=0, retag=True, drop_incomplete=True), *[replace(each, is_repaired=True) for each in rest])
    same(store.verify(checksums=True))
    expected = [value_of(number) for number in range(CHUNKS - 1)] + [bytes(NBYTES)]
    for number, name in ALL.items():
        scene = SCENES[name]
        expected[number] = scene.after or bytes(NBYTES)
        if name == "part without tag":
            expected[number] = value_of(number)
    read = np.asarray(zarr.open_array(PartsStore(bucket.store()), path="chunks")[...])
    assert read.tobytes() == b"".join(expected)


def options_of(user: Server) -> dict[str, str]:
    return {
        "endpoint": user.endpoint,
        "access_key_id": user.access_key,
        "secret_access_key": user.secret_key,
        "region": "us-east-1",
        "virtual_hosted_style_request": "false",
    }


def run(command: str, bucket: Bucket, *arguments: str, user: Server | None = None) -> tuple[int, str, str]:
    """`parts-store`: its exit code, and what it says."""
    options = [f"--option={name}={value}" for name, value in options_of(user or bucket.server).items()]
    program = str(Path(sys.executable).with_name("parts-store"))
    done = subprocess.run(
        [program, command, f"s3://{bucket.name}", *options, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONWARNINGS": "error", "NO_PROXY": "127.0.0.1"},
    )
    return done.returncode, done.stdout, done.stderr


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "problem": each.problem.value,
                "chunk_key": each.chunk_key,
                "keys": sorted(each.keys),
                "detail": each.detail,
                "repaired": each.is_repaired,
            }
            for each in findings
        ),
        key=lambda each: (each["chunk_key"], each["problem"]),
    )


def parsed(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was printed as JSON, and the findings in it."""
    report = json.loads(text)
    return report, [{**each, "keys": sorted(each["keys"])} for each in report["findings"]]


def test_the_command_line_tells_the_same_and_ends_with_what_it_found(bucket: Bucket, reader: Server) -> None:
    findings = damage_everything(bucket)
    # Who may only read can verify.
    code, out, errors = run("verify", bucket, "--json", user=reader)
    assert (code, errors) == (1, "")
    report, found = parsed(out)
    assert found == as_json(findings)
    assert (report["damaged"], report["clean"], report["arrays"]) == (True, False, 3)

    # Who may only read cannot repair.
    code, out, errors = run("repair", bucket, "--min-age=0", user=reader)
    assert (code, out) == (2, "")
    assert len(errors.splitlines()) == 1
    assert reader.secret_key not in errors
    same(PartsStore(bucket.store()).verify(), *findings)

    code, out, errors = run("repair", bucket, "--min-age=0s", "--drop-incomplete", "--json", "--prefix=shards")
    assert (code, errors) == (0, "")
    mended = [replace(each, is_repaired=True) for each in findings if each.problem is Problem.CHECKSUM]
    assert parsed(out)[1] == as_json(mended)

    code, out, errors = run("repair", bucket, "--drop-incomplete", "--retag", "--min-age=0")
    assert (code, errors) == (0, "")
    assert out.splitlines()[-1] == "no problems found"

    abandon(PartsStore(bucket.store()), "chunks/c/0", NEW, Death.ANCHOR)
    code, out, errors = run("verify", bucket)
    assert (code, errors) == (3, "")
    assert out.splitlines()[1].startswith("interrupted: chunks/c/0: the staged copy has what is missing: ")
    code, out, errors = run("repair", bucket)
    assert (code, errors) == (3, "")
    assert "younger than min_age" in out
    assert PartsStore(bucket.store()).repair(min_age=0).is_clean
    code, out, errors = run("verify", bucket, "--checksums", "--json")
    assert (code, errors) == (0, "")
    assert parsed(out)[1] == []
    assert PartsStore(bucket.store()).verify() == Report(
        (), 3, *(json.loads(out)[name] for name in ("chunks", "objects"))
    )


def test_a_store_that_cannot_be_reached_is_told_in_one_line(bucket: Bucket) -> None:
    create_chunks(PartsStore(bucket.store()))
    before = bucket.list_keys()
    nobody = replace(bucket.server, access_key="nobody")
    for command, where, user in (("repair", bucket, nobody), ("verify", replace(bucket, name="no-such-bucket"), None)):
        code, out, errors = run(command, where, user=user)
        assert (code, out) == (2, "")
        assert len(errors.splitlines()) == 1
        assert bucket.server.secret_key not in errors
    assert bucket.list_keys() == before


# --- who may only read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["batched", "fused"])
@pytest.mark.parametrize("death", Death)
def test_who_may_only_read_reads_what_was_committed_after_its_writer_died(
    bucket: Bucket, reader: Server, pipeline: str, death: Death
) -> None:
    with zarr.config.set({"codec_pipeline.path": pipeline}):
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
        abandon(store, "chunks/c/5", NEW, death)
        abandon(store, SHARD, newer.to_bytes(), death)
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


# --- worker processes, and what it costs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_worker_processes_find_the_same(bucket: Bucket, client: Any) -> None:
    findings = damage_everything(bucket)
    store = PartsStore(bucket.store(), read_only=True)
    retag(bucket, "sums/c/1", b"\x06" * NBYTES)
    told: list[tuple[int, int]] = []
    report = store.verify(client=client, checksums=True, progress=lambda done, total: told.append((done, total)))
    assert report == store.verify(checksums=True)
    detail = "the bytes do not match their checksum"
    sums = Finding(Problem.CHECKSUM, "sums/c/1", ("sums/c/1", "sums/c/1.tail"), detail)
    same(report, *findings, sums)
    assert told[-1] == (report.chunks, report.chunks)
    code, out, errors = run("verify", bucket, "--checksums", "--json", f"--dask={client.scheduler.address}")
    assert (code, errors) == (1, "")
    assert parsed(out)[1] == as_json([*findings, sums])


async def _put_all(objects: S3Store, chunks: int) -> None:
    at_once = asyncio.Semaphore(64)

    async def put(number: int) -> None:
        attributes = {"partsgen": f"1;{number:032x};c;{NBYTES - 14},4"}
        async with at_once:
            for suffix, nbytes in (("", NBYTES - 14), (".tail", 4)):
                key = f"many/c/{number}{suffix}"
                await obstore.put_async(objects, key, bytes(nbytes), attributes=attributes, use_multipart=False)

    await asyncio.gather(*map(put, range(chunks)))


def test_verifying_costs_a_listing_and_a_look_at_every_part_of_chunks_that_have_several(
    bucket: Bucket, server: Server
) -> None:
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
