"""`inspect`: groups, arrays, sizes, and the number of requests."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.errors import StoreConfigError
from parts_store.store.inspection import Node, StoredSizes, find, inspect, similar_path

PARTS = ps.ConcatParts([ps.Part(""), ps.Part(".tail", size=2)])


@pytest.fixture
def store() -> ps.PartsStore:
    store = ps.PartsStore(MemoryStore())
    array = ps.create_array(store, "g/a", parts=PARTS, shape=(16,), chunks=(4,), dtype="uint16", compressors=None)
    array[:12] = np.arange(1, 13)
    zarr.create_array(store, name="plain", shape=(4,), chunks=(2,), dtype="uint8", compressors=None)[:2] = 1
    return store


def test_inspect_finds_groups_and_arrays(store: ps.PartsStore) -> None:
    array = Node("g/a", "array", 3, (16,), "uint16", (4,), parts=PARTS)
    plain = Node("plain", "array", 3, (4,), "uint8", (2,))
    assert inspect(store) == (Node("", "group", 3), Node("g", "group", 3), array, plain)
    assert inspect(store, "/g/") == (Node("g", "group", 3), array)
    assert inspect(store, "g/a") == (array,)
    assert inspect(store, "nowhere") == ()


def test_inspect_counts_chunks_objects_and_bytes(store: ps.PartsStore) -> None:
    stored = {node.path: node.stored for node in inspect(store, sizes=True)}
    # Three chunks of eight bytes in two parts each, and one chunk of two bytes.
    assert stored == {"": None, "g": None, "g/a": StoredSizes(3, 6, 24), "plain": StoredSizes(1, 1, 2)}


def test_inspect_lists_groups_only(store: ps.PartsStore) -> None:
    reading = ps.PartsStore(store.store, read_only=True)
    inspect(reading)
    # The root and `g`; the folders of chunks are not listed.
    assert reading.stats.list == 2
    assert reading.stats.get <= 8
    reading.stats.reset()
    inspect(reading, sizes=True)
    assert reading.stats.list == 3


def test_inspect_finds_zarr_v2(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, name="g/a", shape=(4,), chunks=(2,), dtype="uint8", zarr_format=2)[...] = 1
    nodes = inspect(ps.PartsStore.from_url(tmp_path), sizes=True)
    assert [(node.path, node.kind, node.zarr_format) for node in nodes] == [
        ("", "group", 2),
        ("g", "group", 2),
        ("g/a", "array", 2),
    ]
    assert nodes[-1].stored is not None
    assert nodes[-1].stored.chunks == 2


def test_inspect_finds_arrays_without_parent_groups(store: ps.PartsStore, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "b/c", shape=(4,), chunks=(2,), dtype="uint8")
    (tmp_path / "text").write_text("text")
    assert [node.path for node in inspect(ps.PartsStore.from_url(tmp_path))] == ["b/c"]


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"zarr_format": 3, "node_type": "array"}',
        b'{"zarr_format": 3, "node_type": "other"}',
        b'{"zarr_format": 3, "node_type": "array", "storage_transformers": [{"name": "other"}]}',
    ],
)
def test_inspect_reports_a_problem_and_finds_the_rest(tmp_path: Path, document: bytes) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="uint8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/zarr.json").write_bytes(document)
    root, array, broken = inspect(store)
    assert (root.problem, array.problem) == (None, None)
    assert (broken.path, broken.kind) == ("broken", "unknown")
    assert broken.problem
    assert json.dumps(broken.to_json())


def test_find_returns_one_node(store: ps.PartsStore) -> None:
    assert find(store, "g") == Node("g", "group", 3)
    assert find(store, "/plain") == Node("plain", "array", 3, (4,), "uint8", (2,))
    assert find(store, "nowhere") is None


def test_inspect_of_a_file_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    store = ps.PartsStore.from_url(tmp_path)
    assert store.get_sync("text/zarr.json") is None
    assert find(store, "text/a") is None


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("plan", "plain"),
        ("plain", None),
        ("g/b", None),
        ("group", None),
        ("g/aa", "g/a"),
        ("/plian/", "plain"),
        ("plain/c", None),
        ("plain/zarr.jso", None),
        ("", None),
    ],
)
def test_similar_path_is_that_of_a_node(store: ps.PartsStore, path: str, meant: str | None) -> None:
    assert similar_path(store, path) == meant


def test_similar_path_lists_one_folder_for_each_name(store: ps.PartsStore) -> None:
    reading = ps.PartsStore(store.store, read_only=True)
    similar_path(reading, "g/aa")
    assert reading.stats.list == 2


def test_inspect_reports_progress(store: ps.PartsStore) -> None:
    told: list[tuple[int, int]] = []
    nodes = store.tree(progress=lambda done, total: told.append((done, total))).nodes
    assert len(nodes) == 4
    assert told[0] == (1, 3)
    assert told[-1] == (4, 4)
    assert [done for done, _ in told] == [1, 2, 3, 4]
    with pytest.raises(StoreConfigError, match="progress: expected True"):
        store.tree(progress="yes")  # type: ignore[arg-type] # that is what the test is about
