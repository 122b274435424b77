"""Arrays of references made from stored arrays, and written to Icechunk, keep their values."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from icechunk import Repository
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.addresses import url_of
from parts_store.errors import (
    ConcurrentWriteError,
    IncompleteChunkError,
    ManifestError,
    PartSizeError,
    PartsStoreError,
    ReadOnlySessionError,
    SessionError,
    StoreConfigError,
)
from parts_store.format.keys import Chunk
from parts_store.manifests import PartsArray, PartsGroup
from tests.virtual.adopting import repository
from tests.virtual.manifests.making import Files, Kind, entry, make, metadata, random_values

PARTS = [ps.Part(".head", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
VALUES = np.arange(1, 257, dtype="int32").reshape(16, 16)


def create(store: ps.PartsStore, name: str = "a", **others: Any) -> zarr.Array[Any]:
    arguments: dict[str, Any] = {
        "shape": (16, 16),
        "chunks": (4, 4),
        "shards": (8, 8),
        "dtype": "int32",
        "parts": PARTS,
    }
    array = ps.create_array(store, name, **(arguments | others))
    array[:] = VALUES
    return array


# --- plain stores -------------------------------------------------------------------------------------------------


def test_manifest_of_objects_needs_one_listing(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path / "some data", mkdir=True))
    create(store, "group/a")
    store.stats.reset()
    array = store.manifest("/group/a/")
    assert store.stats.calls["list"] == 1
    assert sum(store.stats.calls.values()) == 2
    assert array.parts == store.parts_of("group/a")
    base = (tmp_path / "some data" / "group" / "a").as_uri()
    size = (tmp_path / "some data" / "group/a/c/0/1").stat().st_size
    assert array.dict()["0.1"] == [
        {"path": f"{base}/c/0/1.head", "offset": 0, "length": 8},
        {"path": f"{base}/c/0/1", "offset": 0, "length": size},
        {"path": f"{base}/c/0/1.index", "offset": 0, "length": 68},
    ]
    assert np.array_equal(np.asarray(array), VALUES)
    assert np.array_equal(np.asarray(array[8:]), VALUES[8:])


def test_chunks_in_memory_are_inlined_in_the_manifest() -> None:
    store = ps.PartsStore(MemoryStore())
    create(store)
    array = store.manifest("a")
    assert array.manifests[1].dict()["0.0"]["path"] == "__inlined__"  # type: ignore[index]
    assert np.array_equal(np.asarray(array), VALUES)
    assert np.array_equal(PartsArray.from_json(array.to_json()).load(), VALUES)


@pytest.mark.parametrize("encoding", [None, {"name": "v2", "separator": "."}, {"name": "default", "separator": "."}])
@pytest.mark.parametrize("path", ["", "a"])
def test_an_array_without_parts_is_one_part(tmp_path: Path, path: str, encoding: Any) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    array = zarr.create_array(store, name=path or None, data=VALUES, chunks=(5, 5), chunk_key_encoding=encoding)
    array[:5, :5] = 0
    found = store.manifest(path)
    assert len(found.manifests) == 1
    assert "0.0" not in found.dict()
    assert np.array_equal(np.asarray(found), array[:])
    if path:
        zarr.create_array(store, name="0d", data=np.array(5))
        assert np.asarray(store.manifest("0d")) == 5


def test_a_part_without_bytes_has_no_entries(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    create(store, parts=[ps.Part(".none", size=0), ps.Part("")])
    array = store.manifest("a")
    assert [len(manifest.dict()) for manifest in array.manifests] == [0, 4]
    assert np.array_equal(np.asarray(array), VALUES)


def test_damaged_or_unfinished_chunks_are_rejected(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    create(store)
    index, chunk = tmp_path / "a/c/1/1.index", tmp_path / "a/c/1/1"
    whole = index.read_bytes()
    index.write_bytes(whole[1:])
    with pytest.raises(PartSizeError):
        store.manifest("a")
    index.unlink()
    with pytest.raises(IncompleteChunkError):
        store.manifest("a")
    index.write_bytes(whole)
    side = Chunk("a/c/1/1", ps.ConcatParts([""]), "a").side_folder
    (tmp_path / side).mkdir(parents=True)
    (tmp_path / side / "generation").write_bytes(b"x")
    with pytest.raises(ConcurrentWriteError, match="a write of it is unfinished"):
        store.manifest("a")
    (tmp_path / side / "generation").unlink()
    chunk.write_bytes(b"")
    with pytest.raises(ManifestError, match="no empty ranges"):
        store.manifest("a")
    chunk.unlink()
    assert "1.1" not in store.manifest("a").dict()
    for path in ("nothing", ""):
        with pytest.raises(ManifestError, match="a Zarr v3 array"):
            store.manifest(path)


def test_url_of_a_store_is_the_prefix_of_its_objects(tmp_path: Path) -> None:
    assert url_of(S3Store("bucket", prefix="a/b", region="x")) == "s3://bucket/a/b"
    assert url_of(S3Store("bucket", region="x")) == "s3://bucket"
    assert url_of(GCSStore("bucket", prefix="a/", skip_signature=True)) == "gs://bucket/a"
    assert url_of(AzureStore("container", prefix="a", account_name="x")) == "az://container/a"
    assert url_of(LocalStore(tmp_path / "a b", mkdir=True)) == f"{tmp_path.as_uri()}/a%20b"
    assert url_of(MemoryStore()) is None


# --- sessions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "files"
    folder.mkdir()
    return folder


def in_files(array: PartsArray, scattered: Files, folder: Path) -> PartsArray:
    """The array with its files in a folder."""
    for name, content in scattered.contents.items():
        (folder / name.removeprefix("s3://").replace("/", "_")).write_bytes(bytes(content))

    def moved(path: str) -> str:
        return (folder / path.removeprefix("s3://").replace("/", "_")).as_uri() if path.startswith("s3://") else path

    return PartsArray(array.metadata, [manifest.rename_paths(moved) for manifest in array.manifests])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [
        Kind("<i4", "plain", 1, (2, 3)),
        Kind("<i4", "plain", 3, (2, 3)),
        Kind("<i4", "zstd", 2, (2, 3)),
        Kind("float64", "checksum", 2, (2, 3), (4, 6)),
    ],
)
def test_references_in_icechunk_read_the_same_values(kind: Kind, files: Path) -> None:
    scattered = Files(np.random.default_rng(4))
    made, values = make(random_values((7, 12), kind, scattered.rng), kind, scattered, holes=0.2)
    array = in_files(made, scattered, files)
    group = PartsGroup({"a": array}, {"g": PartsGroup({"b[1]*": array}, attributes={"x": 1})}, {"title": "t"})
    session = repository(files).writable_session("main")
    group.to_icechunk(session, path="deep/er")
    session.commit("references")
    store = ps.PartsStore.from_session(session)
    opened: Any = zarr.open_group(store, path="deep/er", mode="r")
    assert dict(opened.attrs) == {"title": "t"}
    assert dict(opened["g"].attrs) == {"x": 1}
    assert np.array_equal(opened["a"][:], values)
    assert np.array_equal(opened["g/b[1]*"][:], values)
    again = store.manifest("deep/er/a")
    assert again.dict() == array.dict()
    assert np.array_equal(again.load({files.as_uri(): LocalStore(files)}), values)
    if kind.parts == 1:
        assert store.parts_of("deep/er/a") is None
        assert np.array_equal(zarr.open_array(session.store, path="deep/er/a", mode="r")[:], values)


def test_chunk_keys_are_converted_for_a_session(files: Path) -> None:
    (files / "f").write_bytes(bytes(range(8)))
    document = metadata((8,), (4,), "u1", chunk_key_encoding={"name": "default", "separator": "."})
    entries = {str(number): entry(4 * number, 4, (files / "f").as_uri()) for number in range(2)}
    array = PartsArray(document, [entries], parts=[ps.Part(".only", size=4)])
    session = repository(files).writable_session("main")
    array.to_icechunk(session, path="a")
    assert zarr.open_array(ps.PartsStore.from_session(session), path="a", mode="r")[:].tolist() == list(range(8))  # type: ignore[union-attr]
    assert ps.PartsStore.from_session(session).parts_of("a") == array.parts


def four_bytes(location: str) -> PartsArray:
    return PartsArray(metadata((4,), (4,), "u1"), [{"0": entry(0, 4, location)}])


def test_location_outside_containers_is_rejected_before_writing(files: Path) -> None:
    good = four_bytes((files / "f").as_uri())
    for location in ("s3://other/f", (files.parent / "secret").as_uri(), f"{files.as_uri()}2/f"):
        session = repository(files).writable_session("main")
        with pytest.raises(SessionError, match="no virtual chunk container"):
            PartsGroup({"a": good, "b": four_bytes(location)}).to_icechunk(session, overwrite=True)
        assert not session.has_uncommitted_changes


def test_existing_nodes_are_kept_unless_overwrite_is_set(files: Path) -> None:
    (files / "f").write_bytes(b"abcd")
    array = four_bytes((files / "f").as_uri())
    repo = repository(files)
    session = repo.writable_session("main")
    PartsGroup({"a": array}).to_icechunk(session)
    with pytest.raises(StoreConfigError, match="overwrite=True"):
        array.to_icechunk(session, path="a")
    with pytest.raises(StoreConfigError, match="overwrite=True"):
        PartsGroup().to_icechunk(session)
    with pytest.raises(StoreConfigError, match="not in an array"):
        array.to_icechunk(session, path="a/b")
    with pytest.raises(StoreConfigError, match="parts of an array"):
        array.to_icechunk(session, path="a/__parts__/b")
    array.to_icechunk(session, path="a", overwrite=True)
    assert bytes(zarr.open_array(ps.PartsStore.from_session(session), path="a", mode="r")[:]) == b"abcd"  # type: ignore[arg-type]
    session.commit("x")
    with pytest.raises(ReadOnlySessionError):
        array.to_icechunk(repo.readonly_session("main"), path="b")
    joined = PartsArray(array.metadata, [{"0": entry(0, 1, (files / "f").as_uri())}] * 65)
    session = repo.writable_session("main")
    with pytest.raises(PartsStoreError, match="1 to 64 parts"):
        joined.to_icechunk(session, path="c")
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("split", [False, True])
def test_manifest_of_a_session_refers_to_its_chunks(tmp_path: Path, files: Path, split: bool) -> None:
    place = tmp_path / "repo"
    repo = repository(files, icechunk.local_filesystem_storage(str(place)), inline=100)
    session = repo.writable_session("main")
    store = ps.PartsStore.from_session(session)
    create(store, split=split)
    with pytest.raises(ManifestError, match="native_chunks_prefix"):
        store.manifest("a")
    array = store.manifest("a", native_chunks_prefix=(place / "chunks").as_uri())
    assert array.parts == store.parts_of("a")
    assert np.array_equal(array.load({place.as_uri(): LocalStore(place)}), VALUES)
    kinds = ["data" in each for each in array.dict()["0.0"]]
    assert kinds == ([True, False, True] if split else [False, False, False])


def test_inline_chunks_of_a_session_need_no_prefix() -> None:
    repo = Repository.create(icechunk.in_memory_storage())
    store = ps.PartsStore.from_session(repo.writable_session("main"))
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "u1", "compressors": None}
    whole = ps.create_array(store, "a", parts=["", ps.Part(".t", size=1)], **arguments)
    whole[:] = np.arange(8)
    assert np.asarray(store.manifest("a")).tolist() == list(range(8))
    assert store.manifest("a").dict()["1"][1]["data"] == b"\7"
    # An empty part has no range: the chunk is one part then.
    ends = ps.create_array(store, "b", parts=["", ps.Part(".t", size=4)], **arguments)
    ends[:] = np.arange(1, 9)
    assert len(store.manifest("b").manifests) == 1
    assert np.asarray(store.manifest("b")).tolist() == list(range(1, 9))
    split = ps.create_array(store, "c", parts=["", ps.Part(".t", size=1)], split=True, **arguments)
    split[:] = np.arange(8)
    icechunk_store = store.session.store
    sync(icechunk_store.delete("c/__parts__/.t/c/1"))
    with pytest.raises(IncompleteChunkError):
        store.manifest("c")
    with pytest.raises(ManifestError, match="a Zarr v3 array"):
        store.manifest("nothing")
