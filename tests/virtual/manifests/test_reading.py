"""Reading references: the number of requests, which files may be read, and the read-only store."""

import asyncio
import itertools
import json
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import HTTPStore, LocalStore, MemoryStore, S3Store
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from parts_store.errors import LocationError, PartsStoreError, StoreConfigError
from parts_store.format.layout import Span
from parts_store.manifests import PartsArray, PartsGroup
from parts_store.virtual.manifests.entries import FileRange, nbytes_of, number_paths, slice_pieces
from parts_store.virtual.manifests.reading import FileContents, plan_ranges
from parts_store.virtual.registries import find_store
from tests.effort import examples
from tests.virtual.manifests.making import CountingStore, Files, Kind, entry, make, metadata, random_values

PROTOTYPE = default_buffer_prototype()
VALUES = np.arange(32, dtype="<u2").reshape(8, 4)
GAP = 100


def contiguous() -> tuple[PartsArray, CountingStore]:
    """Return four chunks of 16 bytes in two adjacent parts, with gaps of 100 bytes between chunks."""
    content, first, second = b"", {}, {}
    for number in range(4):
        content += bytes(GAP)
        first[f"{number}.0"], second[f"{number}.0"] = entry(len(content), 6), entry(len(content) + 6, 10)
        content += VALUES[2 * number : 2 * number + 2].tobytes()
    store = MemoryStore()
    store.put("f", content)
    return PartsArray(metadata((8, 4), (2, 4)), [first, second]), CountingStore(store)


def registry(store: Any) -> ObjectStoreRegistry[Any]:
    return ObjectStoreRegistry({"s3://b": store})


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "requests"), [(0, 4), (GAP - 1, 4), (GAP, 1), (None, 1)])
def test_ranges_are_coalesced_across_parts_and_chunks(gap: int | None, requests: int) -> None:
    array, store = contiguous()
    options = {} if gap is None else {"coalesce_gap": gap}
    assert np.array_equal(array.load(registry(store), **options), VALUES)
    assert len(store.requests) == requests
    assert sum(stop - start for _, start, stop in store.requests) == (64 if requests == 4 else 64 + 3 * GAP)


def test_coalesced_size_is_limited_and_equal_ranges_are_read_once() -> None:
    array, store = contiguous()
    array.load(registry(store), coalesced_nbytes=140, coalesce_gap=GAP)
    assert [stop - start for _, start, stop in store.requests] == [132, 132]
    store.requests.clear()
    repeated: Any = np.concatenate([array, array])
    assert np.array_equal(repeated.load(registry(store)), np.concatenate([VALUES, VALUES]))
    assert len(store.requests) == 1


def test_reference_store_reads_chunk_and_ranges_in_one_request() -> None:
    array, store = contiguous()
    opened = zarr.open_array(array.to_store(registry(store)), mode="r")
    assert np.array_equal(opened[2:4], VALUES[2:4])
    assert store.requests == [("f", 216, 232)]
    store.requests.clear()
    references = array.to_store(registry(store))
    ranges_within = (RangeByteRequest(0, 2), RangeByteRequest(5, 8))
    asked: list[Any] = [*ranges_within, SuffixByteRequest(3), OffsetByteRequest(20), None]
    whole = VALUES[2:4].tobytes()

    async def ranges() -> list[bytes]:
        found: dict[int, bytes] = {}
        async for batch in references.get_ranges("c/1/0", asked, prototype=PROTOTYPE):
            found |= {index: buffer.to_bytes() for index, buffer in batch if buffer is not None}
        return [found[index] for index in range(len(asked))]

    assert asyncio.run(ranges()) == [whole[:2], whole[5:8], whole[-3:], b"", whole]
    assert store.requests == [("f", 216, 232)]
    store.requests.clear()
    keys = ["c/0/0", "c/1/0", "c/9/0"]
    partial = asyncio.run(references.get_partial_values(PROTOTYPE, [(key, None) for key in keys]))
    assert [None if each is None else each.to_bytes() for each in partial] == [VALUES[:2].tobytes(), whole, None]
    assert len(store.requests) == 1


def test_read_within_shard_requests_index_and_one_chunk() -> None:
    files = Files(np.random.default_rng(3), names=("s3://b/f",), inline=0)
    kind = Kind("<i4", "plain", 1, (2,), (64,))
    made, values = make(random_values((256,), kind, files.rng), kind, files)
    index = 32 * 16 + 4
    entries = made.manifests[0].dict().items()
    data = {key: {**entry, "length": entry["length"] - index} for key, entry in entries}
    end = {
        key: {**entry, "offset": entry["offset"] + entry["length"] - index, "length": index} for key, entry in entries
    }
    array = PartsArray(made.metadata, [data, end])
    memory = MemoryStore()
    memory.put("f", bytes(files.contents["s3://b/f"]))
    store = CountingStore(memory)
    opened = zarr.open_array(array.to_store(registry(store)), mode="r")
    assert opened[140] == values[140]
    assert [stop - start for _, start, stop in store.requests] == [index, 8]
    assert np.array_equal(opened[:], values)


# --- registered files ---------------------------------------------------------------------------------------------


def one_chunk(location: str, offset: int = 0, length: int = 4) -> PartsArray:
    return PartsArray(metadata((4,), (4,), "u1"), [{"0": entry(offset, length, location)}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "some file#1.bin").write_bytes(b"abcd")
    (tmp_path / "allowed2").mkdir()
    (tmp_path / "allowed2" / "f").write_bytes(b"dcba")
    (tmp_path / "secret").write_bytes(b"1234")
    return tmp_path


def test_files_outside_registered_stores_are_rejected(folder: Path) -> None:
    allowed = (folder / "allowed").as_uri()
    only = ObjectStoreRegistry({allowed: LocalStore(folder / "allowed")})
    file = (folder / "allowed" / "some file#1.bin").as_uri()
    assert one_chunk(file).load(only).tobytes() == b"abcd"
    assert one_chunk(file).load({allowed: LocalStore(folder / "allowed")}).tobytes() == b"abcd"
    outside = [
        (folder / "secret").as_uri(),
        (folder / "allowed2" / "f").as_uri(),
        f"{allowed}/../secret",
        f"{allowed}/%2e%2e/secret",
        f"{allowed}/%2E./secret",
        f"{allowed}/./x",
        allowed,
        "s3://bucket/f",
        "https://host/f",
        f"file://localhost{folder}/allowed/f",
    ]
    for location in outside:
        with pytest.raises(LocationError, match=r"no registered store|without the segments") as caught:
            one_chunk(location).load(only)
        assert not isinstance(caught.value, FileNotFoundError | KeyError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_local_store_is_registered_as_root_relative_path_or_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = (folder / "allowed2" / "f").as_uri()
    assert one_chunk(file).load({"file://": LocalStore()}).tobytes() == b"dcba"
    monkeypatch.chdir(folder)
    below = {(folder / "allowed2").as_uri(): LocalStore("allowed2")}
    assert one_chunk(file).load(below).tobytes() == b"dcba"
    (folder / "link").symlink_to(folder / "allowed2")
    linked = {(folder / "link").as_uri(): LocalStore(folder / "link")}
    assert one_chunk((folder / "link" / "f").as_uri()).load(linked).tobytes() == b"dcba"


def test_nothing_is_read_if_one_location_is_not_registered() -> None:
    array, store = contiguous()
    mixed: Any = np.concatenate(
        [array, PartsArray(array.metadata, [m.rename_paths("s3://c/f") for m in array.manifests])]
    )
    with pytest.raises(LocationError, match=r"'s3://c/f': no registered store covers this URL \(registered: s3://b\)"):
        mixed.load(registry(store))
    assert not store.requests


def test_file_outside_prefix_of_registered_store_is_rejected() -> None:
    below = S3Store("bucket", prefix="data", region="us-east-1", skip_signature=True)
    only = (ObjectStoreRegistry({"s3://bucket": below}),)
    assert find_store("s3://bucket/data/x/f", only) == (below, "x/f")
    # The registry alone would resolve these to data/base/f and data/other/f.
    for location in ("s3://bucket/database/f", "s3://bucket/other/f", "s3://bucket/data"):
        with pytest.raises(LocationError, match="no registered store covers"):
            find_store(location, only)
    web = HTTPStore("https://host/data")
    assert find_store("https://host/data/a%20b", (ObjectStoreRegistry({"https://host": web}),)) == (web, "a b")
    with pytest.raises(LocationError, match=r"without '\?'") as caught:
        find_store("https://user:word@host/data/f?signature=secret", (ObjectStoreRegistry({"https://host": web}),))
    assert "secret" not in str(caught.value)
    assert "word" not in str(caught.value)
    memory = MemoryStore()
    assert find_store("s3://b/a?b#c", (registry(memory),)) == (memory, "a?b#c")


@pytest.mark.parametrize(
    ("name", "offset", "length"), [("f", 0, 5), ("f", 3, 2), ("f", 4, 4), ("f", 100, 4), ("f", 0, 2**40), ("g", 0, 4)]
)
@pytest.mark.parametrize("where", ["memory", "local"])
def test_missing_file_and_range_beyond_its_end_are_errors(
    name: str, offset: int, length: int, where: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"abcd")
    memory = MemoryStore()
    memory.put("f", b"abcd")
    location = f"s3://b/{name}" if where == "memory" else (tmp_path / name).as_uri()
    stores = ObjectStoreRegistry[Any]({"s3://b": memory, tmp_path.as_uri(): LocalStore(tmp_path)})
    array = one_chunk(location, offset, length)
    problem = r"ends before|could not be read" if name == "f" else "no such file"
    for read in (lambda: array.load(stores), lambda: zarr.open_array(array.to_store(stores), mode="r")[:]):
        with pytest.raises(LocationError, match=problem) as caught:
            read()
        # zarr would take it for a missing chunk.
        assert not isinstance(caught.value, FileNotFoundError)


def test_read_settings_and_registries_are_checked() -> None:
    array, store = contiguous()
    for options in ({"coalesce_gap": -1}, {"concurrency": 0}, {"coalesced_nbytes": 1.5}):
        with pytest.raises(StoreConfigError):
            array.load(registry(store), **options)
    for wrong in ("s3://b", 3, {3: store}):
        with pytest.raises(StoreConfigError, match="registry"):
            array.with_registry(wrong)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(1, 9)), max_size=8),
    st.integers(0, 6),
    st.integers(1, 20),
)
def test_every_piece_is_cut_from_planned_ranges(wanted: list[tuple[str, int, int]], gap: int, most: int) -> None:
    pieces = [FileRange(name, Span(start, start + nbytes)) for name, start, nbytes in wanted]
    files = {"a": bytes(range(64)), "b": bytes(range(100, 164))}
    ranges = plan_ranges(pieces, max_gap=gap, max_nbytes=most)
    for piece in pieces:
        file, spans = files[piece.location], ranges[piece.location, None]
        contents = FileContents(
            [each.start for each in spans], [memoryview(file)[each.start : each.stop] for each in spans]
        )
        assert bytes(contents.cut(piece.span)) == file[piece.span.start : piece.span.stop]


def test_any_range_of_a_chunk_is_made_of_the_right_pieces() -> None:
    file = bytes(range(50))
    pieces = (FileRange("f", Span(10, 13)), b"xy", FileRange("f", Span(40, 41)), FileRange("f", Span(41, 45)))

    def content(found: Any) -> bytes:
        return b"".join(each if isinstance(each, bytes) else file[each.span.start : each.span.stop] for each in found)

    whole = content(pieces)
    assert nbytes_of(*pieces) == len(whole)
    for start, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        assert content(slice_pieces(pieces, Span(start, stop))) == whole[start:stop]


# --- the store ----------------------------------------------------------------------------------------------------


def tree() -> tuple[PartsGroup, ObjectStoreRegistry[Any]]:
    array, store = contiguous()
    scalar = PartsArray(metadata((), (), "u1"), [{"c": {**entry(), "data": b"\5"}}])
    inner = PartsGroup({"b": array[2:4], "scalar": scalar}, attributes={"inner": True})
    return PartsGroup({"a": array}, {"g": inner}, {"title": "x"}), registry(store)


def test_zarr_reads_all_nodes_of_reference_store(pipeline: str) -> None:
    group, stores = tree()
    opened: Any = zarr.open_group(group.to_store(stores), mode="r")
    assert sorted(name for name, _ in opened.members(max_depth=None)) == ["a", "g", "g/b", "g/scalar"]
    assert dict(opened.attrs) == {"title": "x"}
    assert np.array_equal(opened["a"][:], VALUES)
    assert np.array_equal(opened["g/b"][1:, 2:], VALUES[3:4, 2:])
    assert opened["g/scalar"][()] == 5


def test_reference_store_lists_keys_and_rejects_writes() -> None:
    group, stores = tree()
    store = group.to_store(stores)

    async def look() -> None:
        keys = [key async for key in store.list()]
        chunks = [f"a/c/{number}/0" for number in range(4)]
        documents = [f"{path}zarr.json" for path in ("", "a/", "g/", "g/b/", "g/scalar/")]
        expected = [*documents, *chunks, "g/b/c/0/0", "g/scalar/c"]
        assert sorted(keys) == sorted(expected)
        assert all([await store.exists(key) for key in keys])
        for prefix in ("", "a", "g", "g/b", "a/c", "a/c/1", "nothing", "g/"):
            folder = prefix.rstrip("/")
            below = [key for key in expected if not folder or key.startswith(f"{folder}/")]
            assert sorted([key async for key in store.list_prefix(prefix)]) == sorted(below)
            names = {key[len(folder) + 1 if folder else 0 :].split("/")[0] for key in below}
            assert sorted([name async for name in store.list_dir(prefix)]) == sorted(names)
        for absent in ("a/c/4/0", "a/c/0", "a/c/0/0/0", "a/c.0.0", "b/zarr.json", "a/c/00/0", "a/x", ""):
            assert await store.get(absent, PROTOTYPE) is None
            assert not await store.exists(absent)
        assert await store.getsize("a/c/1/0") == 16
        with pytest.raises(FileNotFoundError):
            await store.getsize("a/c/4/0")
        with pytest.raises(BaseExceptionGroup):
            [batch async for batch in store.get_ranges("a/c/4/0", [None], prototype=PROTOTYPE)]
        with pytest.raises(StoreConfigError, match="can only be read"):
            await store.set("a/c/0/0", PROTOTYPE.buffer.from_bytes(b"x"))
        with pytest.raises(StoreConfigError, match="can only be read"):
            await store.delete("a/c/0/0")

    asyncio.run(look())
    assert not store.supports_writes
    assert not store.supports_deletes
    with pytest.raises(StoreConfigError) as refused:
        store.with_read_only(False)
    # zarr expects it when the array is to overwrite another.
    assert isinstance(refused.value, NotImplementedError)
    assert store.with_read_only(True) == store
    assert store != group["a"].to_store(stores)
    assert "PartsGroup" in repr(store)


def test_reference_store_can_be_pickled(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcd")
    array = one_chunk((tmp_path / "f").as_uri()).with_registry({tmp_path.as_uri(): LocalStore(tmp_path)})
    store = array.to_store()
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert np.asarray(zarr.open_array(again, mode="r")[:]).tobytes() == b"abcd"
    assert pickle.loads(pickle.dumps(array)).load().tobytes() == b"abcd"


def test_kerchunk_export_needs_one_range_per_chunk() -> None:
    array, _ = contiguous()
    references = PartsGroup({"a": array}).to_kerchunk()
    assert references["version"] == 1
    assert references["refs"]["a/c/1/0"] == ["s3://b/f", 216, 16]
    assert json.loads(references["refs"]["a/zarr.json"])["shape"] == [8, 4]
    with pytest.raises(PartsStoreError, match="chunk 'c/0/0': expected one range of one file, found 8 pieces"):
        array.join_chunks(2).join_chunks(2).to_kerchunk()
    inline = PartsArray(array.metadata, [{"0.0": {"path": "", "offset": 0, "length": 1, "data": b"a"}}])
    assert inline.to_kerchunk()["refs"]["c/0/0"] == "base64:YQ=="


def test_fsspec_reads_kerchunk_export(tmp_path: Path) -> None:
    (tmp_path / "some file").write_bytes(b"abcd")
    location = (tmp_path / "some file").as_uri()
    halves = [{"0": entry(start, 2, location)} for start in (0, 2)]
    references = PartsGroup({"a": PartsArray(metadata((4,), (4,), "u1"), halves)}).to_kerchunk()
    files = import_module("fsspec").filesystem("reference", fo=json.loads(json.dumps(references)), asynchronous=True)
    opened: Any = zarr.open_group(zarr.storage.FsspecStore(files, read_only=True, path=""), mode="r")
    assert opened["a"][:].tobytes() == b"abcd"


PATHS = st.lists(st.sampled_from(["", "s3://b/a", "s3://b/b", "file:///a long path that is not kept in place"]))


@given(names=PATHS, axes=st.integers(0, 2))
def test_paths_are_numbered_by_first_occurrence(names: list[str], axes: int) -> None:
    names = names if axes else ["s3://b/a"]
    paths = np.array(names, np.dtypes.StringDType()).reshape((len(names), 1)[:axes])
    known, numbers = number_paths(paths)
    assert known == tuple(dict.fromkeys(names))
    assert numbers.shape == paths.shape
    assert [known[number] for number in numbers.reshape(-1)] == names
