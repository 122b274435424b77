"""The arrays and chunks that a survey of a prefix finds."""

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.engine.steps import Entry
from parts_store.errors import StoreConfigError
from parts_store.format.keys import Chunk, ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts
from parts_store.maintenance.report import Problem
from parts_store.maintenance.survey import group_by_chunk
from tests.maintenance.stores import (
    change,
    create,
    found_in,
)

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


# --- what a listing shows --------------------------------------------------------------------------------------------


def entry(key: str, nbytes: int = 1) -> Entry:
    return Entry(key, nbytes, None, LONG_AGO)


def encoded(encoding: ChunkKeyEncoding, at: tuple[int, ...]) -> str:
    """Return the key of a chunk, as the specification says."""
    numbers = encoding.separator.join(map(str, at))
    if encoding.name == "default":
        return f"c{encoding.separator}{numbers}" if at else "c"
    return numbers or "0"


SUFFIXES = [".x", "", ".y.x", "-x", "c", ".parts-txn"]
ENCODINGS = [
    ChunkKeyEncoding(name, separator, ndim)  # type: ignore[arg-type]
    for name, separator, ndim in itertools.product(("default", "v2"), ("/", "."), (0, 1, 2))
]


@pytest.mark.parametrize("root", ["", "a", "group/c", "0/c/1", "a.parts-txn"])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda each: f"{each.name}{each.separator}{each.ndim}")
def test_listed_objects_are_assigned_to_their_chunks(encoding: ChunkKeyEncoding, root: str) -> None:
    arrays = {root: ArrayRecord({}, ConcatParts(SUFFIXES), encoding, None)}
    expected: dict[str, dict[int, str]] = {}
    for at in itertools.product((0, 7, 10), repeat=encoding.ndim):
        chunk_key = f"{root}/{encoded(encoding, at)}".lstrip("/")
        expected[chunk_key] = {part: chunk_key + suffix for part, suffix in enumerate(SUFFIXES)}
    below = f"{root}/".lstrip("/")
    # A document, chunks of another array, numbers in a form that zarr does not write, and too many dimensions.
    too_many = encoded(encoding, (0,) * (encoding.ndim + 2))
    names = ["zarr.json", "c/00.x", "01", "d/0", f"{too_many}.x", f"{too_many}/0", "c.x.y"]
    noise = [below + name for name in names] + ["other/c/0", "other/c/0.x", "other/.parts-txn/0a/1b"]
    keys = [key for parts in expected.values() for key in parts.values()] + noise
    random.Random(0).shuffle(keys)
    found = group_by_chunk([entry(key) for key in keys], arrays)
    listed = {key: {part: each.key for part, each in listing.parts.items()} for key, listing in found.chunks.items()}
    assert listed == expected
    assert all(each.chunk.array == root and not each.beside for each in found.chunks.values())
    assert found.objects == sum(map(len, expected.values()))
    assert found.strays == {}


def test_similar_array_names_do_not_share_objects() -> None:
    parts = ConcatParts(["", ".i"])
    slashes, dots = ChunkKeyEncoding("default", "/", 1), ChunkKeyEncoding("v2", ".", 2)
    arrays = {
        "a": ArrayRecord({}, parts, slashes, None),
        "a.parts-txn": ArrayRecord({}, parts, slashes, None),
        "g/b": ArrayRecord({}, parts, dots, None),
    }
    keys = ["a/c/0", "a/c/0.i", "a.parts-txn/c/0", "a.parts-txn/c/1.i", "g/b/0.1", "g/b/0.1.i", "g/c/0", "g/0.1.i"]
    found = group_by_chunk([entry(key) for key in keys], arrays)
    listed = {key: sorted(each.key for each in listing.parts.values()) for key, listing in found.chunks.items()}
    assert listed == {
        "a/c/0": ["a/c/0", "a/c/0.i"],
        "a.parts-txn/c/0": ["a.parts-txn/c/0"],
        "a.parts-txn/c/1": ["a.parts-txn/c/1.i"],
        "g/b/0.1": ["g/b/0.1", "g/b/0.1.i"],
    }
    assert found.strays == {}


@pytest.mark.parametrize("array", ["", "g/a"])
def test_leftovers_are_assigned_to_a_chunk_or_are_strays(array: str) -> None:
    record = ArrayRecord({}, ConcatParts(["", ".i"]), ChunkKeyEncoding("default", "/", 1), None)
    below = f"{array}/".lstrip("/")
    here, gone = (Chunk(f"{below}c/{number}", record.parts, array).side_folder for number in (0, 1))
    beside = [
        f"{here}/ab",
        f"{here}/ab.done",
        f"{here}.lock",
        f"{here}.journal",
        f"{here}.{'ab' * 16}.0",
        f"{here}.journal.{'0f' * 8}",
    ]
    strays = [f"{gone}/cd.done", f"{gone}.lock"]
    clock = f"{below}.parts-txn/ef.clock"
    found = group_by_chunk(
        [entry(key) for key in [f"{below}c/0.i", *beside, *strays, clock, "other/.parts-txn/aa/bb"]], {array: record}
    )
    assert [each.key for each in found.chunks[f"{below}c/0"].beside] == beside
    of_strays = {folder: (at, [each.key for each in entries]) for folder, (at, entries) in found.strays.items()}
    assert of_strays == {gone: (array, strays), clock: (array, [clock])}
    assert found.objects == 1


# --- prefixes and documents ------------------------------------------------------------------------------------------


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
        ("g/b/c/0", ["g/b/c/0"]),
        ("nothing/here", []),
    ],
)
def test_prefix_may_name_a_group_an_array_chunks_or_nothing(objects: Any, prefix: str, expected: list[str]) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store, path="g")
    for name in ("a", "g/b"):
        create(store, name)
        change(objects, f"{name}/c/0.tail", None)
    report = ps.PartsStore(objects).verify(prefix)
    assert [each.chunk_key for each in report.findings] == expected


def test_array_at_the_root_is_surveyed(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create(store, "")
    change(objects, "c/0.tail", None)
    for prefix in ("", "c"):
        assert found_in(store.verify(prefix)) == [(Problem.INCOMPLETE, "c/0", ("c/0.tail",))]


@pytest.mark.parametrize("prefix", ["a/.parts-txn", ".parts-txn/0a"])
def test_prefix_inside_the_protocol_folder_is_refused(prefix: str) -> None:
    with pytest.raises(StoreConfigError, match="prefix: expected the path of a group"):
        ps.PartsStore(MemoryStore()).verify(prefix)


def test_stale_consolidated_metadata_is_ignored() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create(store)
    with pytest.warns(zarr.errors.ZarrUserWarning):
        zarr.consolidate_metadata(store)
    # Another process creates the array again, with other parts.
    other = ps.PartsStore(objects)
    create(other, parts=[ps.Part(""), ps.Part(".other", size=1)], overwrite=True)
    for each in (store, ps.PartsStore(objects)):
        assert each.verify().findings == ()
