"""verify(decode=True): every chunk of every array is decoded, and what cannot be decoded is reported."""

import pickle
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, override

import h5py
import icechunk
import numpy as np
import pytest
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.maintenance.report import Problem, Report
from tests.virtual.adopting import adopted, settle

VALUES = np.arange(64 * 64, dtype="int32").reshape(64, 64)
SHARDS: dict[str, Any] = {"shape": (64, 64), "chunks": (8, 8), "shards": (32, 32), "dtype": "int32"}
CHUNKS: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "dtype": "int32"}
IN_PARTS = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


def create_all(store: ps.PartsStore) -> None:
    ps.create_array(store, "parts", parts=IN_PARTS, **SHARDS)[:] = VALUES
    ps.create_array(store, "files", shard_file="tiff", **SHARDS | {"chunks": (16, 16)})[:] = VALUES
    zarr.create_array(store, name="g/shards", **SHARDS)[:] = VALUES
    zarr.create_array(store, name="g/plain", **CHUNKS)[:] = VALUES
    if store.session is None:
        zarr.create_array(store, name="g/v2", zarr_format=2, **CHUNKS)[:] = VALUES
    zarr.create_array(store, name="scalar", shape=(), dtype="int32")[...] = 7
    zarr.create_array(store, name="text", shape=(4,), dtype="str")[...] = np.array(["a", "b", "c", "d"])


def new_store(kind: str, folder: Path) -> ps.PartsStore:
    if kind == "session":
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        return ps.PartsStore.from_session(repository.writable_session("main"))
    return ps.PartsStore.from_url(folder / "store" if kind == "disk" else "memory://")


def spoil(store: ps.PartsStore, key: str, at: int, nbytes: int = 8) -> None:
    """Change bytes of a stored chunk. The store writes it as a chunk of its array."""
    buffer = sync(store.get(key, default_buffer_prototype()))
    assert buffer is not None
    data = bytearray(buffer.to_bytes())
    data[at : at + nbytes] = b"\xff" * nbytes
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(bytes(data))))


def undecodable(report: Report) -> dict[str, str]:
    assert {finding.problem for finding in report.findings} <= {Problem.UNDECODABLE}
    return {finding.chunk_key: finding.detail for finding in report.findings}


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_undecodable_chunks_of_all_kinds_of_arrays_are_reported(kind: str, tmp_path: Path) -> None:
    store = new_store(kind, tmp_path)
    create_all(store)
    whole = store.verify(decode=True)
    assert (whole.findings, whole.not_understood) == ((), ())
    in_arrays = {"parts": 4, "files": 4, "g/shards": 4, "g/plain": 16, "scalar": 1, "text": 1}
    in_arrays |= {} if kind == "session" else {"g/v2": 16}
    assert (whole.arrays, whole.chunks) == (len(in_arrays), sum(in_arrays.values()))
    # In the frames of zstd: the first inner chunk of a shard begins at 0, a plain chunk as well.
    keys = [
        "parts/c/0/1",
        "g/shards/c/1/0",
        "g/plain/c/1/1",
        "text/c/0",
        *(["g/v2/0.0"] if "g/v2" in in_arrays else []),
    ]
    for key in keys:
        spoil(store, key, at=2)
    assert store.verify().findings == ()
    found = store.verify(decode=True)
    assert found.is_damaged
    assert sorted(undecodable(found)) == sorted(keys)
    assert all(finding.advice in str(found) for finding in found.findings)
    assert sorted(undecodable(store.verify("g", decode=True))) == sorted(key for key in keys if key.startswith("g"))
    assert sorted(undecodable(store.verify("g/plain/c/1", decode=True))) == ["g/plain/c/1/1"]
    assert store.verify("g/plain/c/0", decode=True).is_clean


@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_a_prefix_may_be_one_chunk_or_inside_an_array_of_zarr_v2(kind: str, tmp_path: Path) -> None:
    store = new_store(kind, tmp_path)
    create_all(store)
    inside = {"parts/c/0/1": 1, "g/shards/c/1/0": 1, "g/plain/c/1/1": 1, "text/c/0": 1}
    if kind != "session":
        nested: Any = {"name": "v2", "separator": "/"}
        array = zarr.create_array(store, name="g/nested", zarr_format=2, chunk_key_encoding=nested, **CHUNKS)
        array[:] = VALUES
        inside |= {"g/v2/0.0": 1, "g/nested/1/2": 1, "g/nested/3": 4}
    for prefix, chunks in inside.items():
        damaged = f"{prefix}/0" if chunks > 1 else prefix
        spoil(store, damaged, at=2)
        report = store.verify(prefix, decode=True)
        assert (list(undecodable(report)), report.chunks) == ([damaged], chunks)
    for neighbour in ("parts/c/1/1", "g/plain/c/1/2", "scalar/c"):
        report = store.verify(neighbour, decode=True)
        assert (report.findings, report.chunks) == ((), 1)
    assert store.verify("g/plain/c/9/9", decode=True).chunks == 0


def test_the_inner_chunks_that_fail_are_named() -> None:
    store = new_store("memory", Path())
    ps.create_array(store, "a", parts=IN_PARTS, **SHARDS)[:] = VALUES
    spoil(store, "a/c/1/0", at=2)
    (detail,) = undecodable(store.verify(decode=True)).values()
    assert detail.startswith("inner chunk at [32, 0]: RuntimeError: ")
    spoil(store, "a/c/1/0", at=2, nbytes=800)
    (detail,) = undecodable(store.verify(decode=True)).values()
    assert detail.startswith("inner chunks at [32, 0], [32, 8], [40, 0], and more: ")


def test_a_chunk_that_is_known_to_be_damaged_is_reported_once(tmp_path: Path) -> None:
    store = new_store("disk", tmp_path)
    ps.create_array(store, "a", parts=IN_PARTS, **SHARDS)[:] = VALUES
    (tmp_path / "store/a/c/0/0.index").unlink()
    (finding,) = store.verify(decode=True).findings
    assert finding.problem is Problem.INCOMPLETE


def test_chunks_outside_the_shape_are_not_decoded() -> None:
    store = new_store("memory", Path())
    array = zarr.create_array(store, name="a", **CHUNKS)
    array[:] = VALUES
    # A resize that leaves the chunks, as other software does.
    document = sync(store.get("a/zarr.json", default_buffer_prototype()))
    assert document is not None
    spoil(store, "a/c/3/3", at=2)
    data = document.to_bytes().replace(b"64,\n    64", b"16,\n    16")
    sync(store.set("a/zarr.json", default_buffer_prototype().buffer.from_bytes(data)))
    assert zarr.open_array(store, path="a").shape == (16, 16)
    assert store.verify(decode=True).is_clean


def test_rectilinear_grids_are_decoded() -> None:
    store = new_store("memory", Path())
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(store, name="a", shape=(30,), chunks=[[10, 5, 15]], dtype="int32")
        array[:] = np.arange(30)
        assert store.verify(decode=True).is_clean
        spoil(store, "a/c/1", at=2)
        assert list(undecodable(store.verify(decode=True))) == ["a/c/1"]


def test_an_array_that_zarr_cannot_open_is_not_understood() -> None:
    store = new_store("memory", Path())
    zarr.create_array(store, name="a", **CHUNKS)[:] = VALUES
    document = sync(store.get("a/zarr.json", default_buffer_prototype()))
    assert document is not None
    data = document.to_bytes().replace(b'"zstd"', b'"unheard-of"')
    sync(store.set("a/zarr.json", default_buffer_prototype().buffer.from_bytes(data)))
    report = store.verify(decode=True)
    assert [path for path, _ in report.not_understood] == ["a"]
    assert "unheard-of" in str(report)


@pytest.mark.parametrize("shard_chunks", [None, 4])
def test_adopted_chunks_are_decoded(shard_chunks: int | None, tmp_path: Path) -> None:
    file = tmp_path / "a.h5"
    with h5py.File(file, "w") as root:
        dataset = root.create_dataset("v", data=VALUES, chunks=(16, 64), compression="gzip")
        offset = dataset.id.get_chunk_info(2).byte_offset
    data = bytearray(file.read_bytes())
    data[offset + 10 : offset + 20] = b"\xff" * 10
    file.write_bytes(bytes(data))
    settle(file)
    _, store = adopted(file, **({} if shard_chunks is None else {"shard_chunks": shard_chunks}))
    report = store.verify(decode=True)
    ((key, detail),) = undecodable(report).items()
    assert (key, "rror" in detail) == ("v/c/2/0" if shard_chunks is None else "v/c/0/0", True)
    assert store.verify().is_clean


def test_large_shards_are_decoded_in_pieces() -> None:
    store = new_store("memory", Path())
    layout: dict[str, Any] = {"shape": (8192, 8192), "chunks": (512, 512), "shards": (8192, 8192), "dtype": "uint8"}
    zarr.create_array(store, name="a", **layout)[:] = 1
    tracemalloc.start()
    try:
        assert store.verify(decode=True).is_clean
        assert tracemalloc.get_traced_memory()[1] < 56 * 2**20
    finally:
        tracemalloc.stop()


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    spawn = get_context("spawn")
    with ThreadPoolExecutor(2) if request.param == "threads" else ProcessPoolExecutor(2, spawn) as made:
        yield made


def test_executors_decode(executor: Executor, tmp_path: Path) -> None:
    store = new_store("disk", tmp_path)
    create_all(store)
    spoil(store, "g/plain/c/1/1", at=2)
    seen: list[tuple[int, int]] = []
    report = store.verify(decode=True, executor=executor, progress=lambda done, total: seen.append((done, total)))
    assert list(undecodable(report)) == ["g/plain/c/1/1"]
    assert seen[-1] == (46, 46)


class Measured(ThreadPoolExecutor):
    """An executor that gives its thread copies of the tasks, as other processes receive them, and notes their sizes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.nbytes: list[int] = []

    @override
    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        data = pickle.dumps(function)
        self.nbytes.append(len(data))
        return super().submit(pickle.loads(data), *args, **options)


def test_tasks_do_not_grow_with_the_number_of_known_arrays(tmp_path: Path) -> None:
    store = new_store("disk", tmp_path)
    ps.create_array(store, "parts", parts=IN_PARTS, **SHARDS)[:] = VALUES
    with Measured() as one:
        store.verify(decode=True, executor=one)
    for number in range(20):
        ps.create_array(store, f"parts{number}", parts=IN_PARTS, **SHARDS)[:] = VALUES
        zarr.create_array(store, name=f"plain{number}", **SHARDS)[:] = VALUES
    with Measured() as many:
        store.verify(decode=True, executor=many)
    assert len(many.nbytes) > 20
    assert set(many.nbytes) == set(one.nbytes)
