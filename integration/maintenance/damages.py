"""Arrays in a bucket, and every kind of damage that can be done to them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import obstore
import zarr
from minio.commonconfig import CopySource
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.codecs import BytesCodec, Crc32cCodec

import parts_store as ps
from integration.conftest import Bucket
from integration.writers import Death, abandon, buffer, chunk_of
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import IncompleteChunkError, PartSizeError
from parts_store.maintenance.report import Finding, Problem, Report
from parts_store.store.options import Concurrency

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
    """Write the same bytes without a tag, like another program."""
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
    """Return the keys beside a chunk."""
    folder = chunk_of(store, chunk_key).side_folder
    return tuple(sorted(key for key in bucket.list_keys() if key.startswith(f"{folder}/")))


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
INTERRUPTED = (
    "an overwrite was interrupted, and software without parts_store may read a torn chunk; "
    "the staged copy has all parts"
)
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
        *(Problem.INTERRUPTED, (".head", ".tail"), INTERRUPTED, None, NEW, NEW),
    ),
    "part lost while there is a copy": Scene(
        in_turn(died(Death.ALL_PARTS), removed(".head")),
        *(Problem.INTERRUPTED, (".head",), INTERRUPTED, None, NEW, NEW),
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
    """Return the finding that is expected."""
    keys = beside(bucket, store, chunk_key) if scene.parts is None else tuple(chunk_key + each for each in scene.parts)
    key = chunk_of(store, chunk_key).side_folder if scene.is_stray else chunk_key
    return Finding(scene.problem, key, keys, scene.detail)


def same(report: Report, *findings: Finding) -> None:
    """Check the findings and their order; keys beside a chunk may be in any order."""
    assert [replace(each, keys=tuple(sorted(each.keys))) for each in report.findings] == [
        replace(each, keys=tuple(sorted(each.keys)))
        for each in sorted(findings, key=lambda each: (each.chunk_key, each.problem.value))
    ]


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


async def _put_all(objects: S3Store, chunks: int) -> None:
    at_once = asyncio.Semaphore(64)

    async def put(number: int) -> None:
        attributes = {"partsgen": f"1;{number:032x};c;{NBYTES - 14},4"}
        async with at_once:
            for suffix, nbytes in (("", NBYTES - 14), (".tail", 4)):
                key = f"many/c/{number}{suffix}"
                await obstore.put_async(objects, key, bytes(nbytes), attributes=attributes, use_multipart=False)

    await asyncio.gather(*map(put, range(chunks)))
