"""Files that are changed after a manifest refers to them: what a direct read refuses, the manifest refuses too."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.engine.steps import Found
from parts_store.errors import LocationError, ManifestError, SessionError, StoreConfigError
from parts_store.format.layout import Span
from parts_store.manifests import PartsArray, PartsGroup
from parts_store.virtual.manifests.entries import FileRange
from parts_store.virtual.manifests.reading import change_of
from tests.virtual.adopting import repository, settle
from tests.virtual.manifests.making import entry, metadata

VALUES = np.arange(1, 41, dtype="<i4")
# Later than any time that a test takes, and than the second in which it takes it.
LATER = 1_999_999_999
CHANGED = "was changed|has changed"


def change(path: Path) -> None:
    """Replace a file by another one of the same size, at a later time."""
    path.write_bytes(VALUES[::-1].tobytes())
    os.utime(path, (LATER, LATER))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path.resolve() / "file.bin"
    found.write_bytes(VALUES.tobytes())
    settle(found)
    return found


@pytest.fixture
def store(path: Path) -> ps.PartsStore:
    """Return a session with the array `x`, whose chunks are in the file."""
    chunks = {str(number): entry(40 * number, 40, path.as_uri()) for number in range(4)}
    session = repository(path.parent).writable_session("main")
    PartsArray(metadata((40,), (10,), "<i4"), [chunks]).to_icechunk(session, path="x")
    session.commit("references")
    return ps.PartsStore.from_session(session)


def registry(folder: Path) -> dict[str, Any]:
    return {f"file://{folder}": LocalStore(folder)}


def to_icechunk(array: PartsArray, path: Path) -> Any:
    session = repository(path.parent).writable_session("main")
    array.to_icechunk(session, path="x")
    return zarr.open_array(ps.PartsStore.from_session(session), path="x", mode="r")[:]


READS: dict[str, Callable[[PartsArray, Path], Any]] = {
    "load": lambda array, path: array.load(registry(path.parent)),
    "np.asarray": lambda array, path: np.asarray(array.with_registry(registry(path.parent))),
    "to_store": lambda array, path: zarr.open_array(array.to_store(registry(path.parent)), mode="r")[:],
    "to_icechunk": to_icechunk,
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda array: array,
    "concatenated": lambda array: np.concatenate([array, array])[:40],
    "stacked": lambda array: np.stack([array, array])[0],
    "expanded": lambda array: np.expand_dims(array, 0)[0],
    "indexed": lambda array: array[:40],
    "from JSON": lambda array: PartsArray.from_json(array.to_json()),
    "from a group in JSON": lambda array: PartsGroup.from_json(PartsGroup({"x": array}).to_json()).arrays["x"],
}


@pytest.mark.parametrize("read", READS)
def test_file_changed_after_the_manifest_is_refused(read: str, store: ps.PartsStore, path: Path) -> None:
    array = store.manifest("x")
    assert np.array_equal(READS[read](array, path), VALUES)
    change(path)
    with pytest.raises(SessionError, match=CHANGED):
        zarr.open_array(store, path="x", mode="r")[:]
    with pytest.raises((LocationError, SessionError), match=rf"file\.bin.*{CHANGED}|{CHANGED}.*file\.bin"):
        READS[read](array, path)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_made_of_a_manifest_keeps_its_checksums(way: str, store: ps.PartsStore, path: Path) -> None:
    array = store.manifest("x")
    derived = WAYS[way](array)
    assert derived.checksums == array.checksums
    assert set(array.checksums) == {path.as_uri()}
    assert np.array_equal(derived.load(registry(path.parent)), VALUES)
    change(path)
    with pytest.raises(LocationError, match=CHANGED):
        derived.load(registry(path.parent))


def test_a_file_changed_before_the_manifest_is_refused_by_its_name(store: ps.PartsStore, path: Path) -> None:
    change(path)
    with pytest.raises(LocationError, match=rf"file\.bin.*{CHANGED}"):
        store.manifest("x")
    # Unless the caller says that Icechunk is not to be asked.
    assert store.manifest("x", check=False).checksums == {}


def test_one_changed_reference_among_many_is_found(path: Path) -> None:
    # Both refer to one file, and one of them to what it was before.
    store = ps.PartsStore.from_session(repository(path.parent).writable_session("main"))
    zarr.create_array(store, name="x", shape=(20,), chunks=(10,), dtype="u1", compressors=None)
    old = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    store.set_parts("x/c/0", [ps.Reference(path.as_uri(), 0, 10, old - timedelta(days=1))])
    store.set_parts("x/c/1", [ps.Reference(path.as_uri(), 10, 10, old)])
    with pytest.raises(LocationError, match=r"x/c/0.*has changed"):
        store.manifest("x")


# --- objects of a store -----------------------------------------------------------------------------------------------


def test_a_chunk_that_is_written_again_after_the_manifest_is_refused(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    array = ps.create_array(
        store, "x", parts=["", ps.Part(".tail", size=4)], shape=(40,), chunks=(10,), dtype="<i4", compressors=None
    )
    array[:] = VALUES
    manifest = store.manifest("x")
    assert len(manifest.checksums) == 8
    assert np.array_equal(manifest.load(), VALUES)
    array[20:30] = 7
    for key in ("x/c/2", "x/c/2.tail"):
        os.utime(tmp_path / key, (LATER, LATER))
    assert np.array_equal(manifest[:20].load(), VALUES[:20])
    assert len(manifest[:20].checksums) == 4
    with pytest.raises(LocationError, match=r"x/c/2.*was changed"):
        manifest.load()


FILE = "mem://files/a.bin"


def array_of(checksum: Any, location: str = FILE) -> PartsArray:
    """Return an array of four bytes of a file, with a checksum of the file or a mapping from files to checksums."""
    checksums = {FILE: checksum} if isinstance(checksum, str | datetime) else checksum
    return PartsArray(metadata((4,), (4,), "u1"), [{"0": entry(0, 4, location)}], checksums=checksums)


def test_an_etag_is_compared_with_that_of_the_response() -> None:
    files = MemoryStore()
    files.put("a.bin", bytes([1, 2, 3, 4]))
    etag = files.head("a.bin")["e_tag"]
    assert etag is not None
    known = array_of(etag)
    assert known.load({"mem://files": files}).tolist() == [1, 2, 3, 4]
    files.put("a.bin", bytes([5, 6, 7, 8]))
    with pytest.raises(LocationError, match=r"mem://files/a\.bin.*was changed: expected the ETag"):
        known.load({"mem://files": files})
    assert array_of(None).load({"mem://files": files}).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("checksum", "etag", "modified", "location", "is_changed"),
    [
        ('"a"', '"a"', 5, "s3://b/f", False),
        ('"a"', "a", 5, "az://b/f", False),
        ('"a"', 'W/"a"', 5, "https://b/f", False),
        ('"a"', '"b"', 5, "s3://b/f", True),
        ('"a"', None, 5, "s3://b/f", True),
        (5, '"b"', 5, "s3://b/f", False),
        (5, None, 4, "file:///f", False),
        (5, None, 6, "file:///f", True),
        (5, None, 0, "file:///f", False),
        (5, None, 0, "https://b/f", True),
    ],
)
def test_what_counts_as_a_change(
    checksum: Any, etag: str | None, modified: int, location: str, is_changed: bool
) -> None:
    expected = checksum if isinstance(checksum, str) else datetime.fromtimestamp(checksum, UTC)
    found = Found(b"", Span(0, 0), 0, etag, None, None, datetime.fromtimestamp(modified, UTC))
    assert (change_of(FileRange(location, Span(0, 1), expected), found) is not None) == is_changed


# --- several checksums ------------------------------------------------------------------------------------------------


def test_arrays_that_know_two_versions_of_a_file_are_not_put_together() -> None:
    one, other = array_of('"1"'), array_of('"2"')
    functions: list[Any] = [np.concatenate, np.stack]
    for function in functions:
        with pytest.raises(ManifestError, match=r"one checksum of 'mem://files/a\.bin'"):
            function([one, other])
    # They may have the same values, and no store is registered from which they could be read.
    with pytest.raises(StoreConfigError, match="registry"):
        one == other  # noqa: B015
    assert (one == array_of(None)).all()
    assert not one.is_same(other)
    both: Any = np.concatenate([one, array_of(None)])
    assert both.checksums == one.checksums


def test_earlier_of_two_times_is_used() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    arrays: Any = [array_of(each) for each in (late, early, late)]
    both: Any = np.concatenate(arrays)
    assert both.checksums == {FILE: early}


def test_arrays_of_a_store_may_reference_two_versions_of_a_file() -> None:
    files = MemoryStore()
    files.put("a.bin", bytes([1, 2, 3, 4]))
    right, wrong = array_of('"0"'), array_of('"9"')
    store = PartsGroup({"right": right, "wrong": wrong}).to_store({"mem://files": files})
    group: Any = zarr.open_group(store, mode="r")
    assert group["right"][:].tolist() == [1, 2, 3, 4]
    with pytest.raises(LocationError, match="was changed"):
        group["wrong"][:]


# --- what is refused, and what is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "checksums",
    [
        3,
        ["a"],
        {FILE: 3},
        {FILE: ""},
        {FILE: datetime(2026, 1, 1)},
        {3: "a"},
    ],
)
def test_what_is_no_checksum_is_refused(checksums: Any) -> None:
    with pytest.raises(ManifestError, match="checksum"):
        array_of(checksums)


@pytest.mark.parametrize(
    "value",
    [3, None, "a", {}, {"etag": 3}, {"etag": ""}, {"last_modified": "noon"}, {"last_modified": "2026-01-01T00:00:00"}],
)
def test_json_that_is_no_checksum_is_refused(value: Any) -> None:
    document = array_of(None).to_json()
    with pytest.raises(ManifestError, match="checksums"):
        PartsArray.from_json(document | {"checksums": {FILE: value}})
    assert PartsArray.from_json({key: each for key, each in document.items() if key != "checksums"}).checksums == {}


def test_virtualizarr_and_kerchunk_have_no_place_for_checksums() -> None:
    known = array_of('"1"')
    assert PartsArray.from_manifest_array(known.to_manifest_array()).checksums == {}
    assert '"1"' not in str(known.to_kerchunk())
