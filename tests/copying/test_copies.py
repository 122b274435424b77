"""A copy has everything its source has, whatever it is copied from and to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import StoreConfigError
from tests.copying.places import (
    ARRAYS,
    CHUNKS,
    INDEXED,
    SHARD_VALUES,
    TWO,
    Place,
    documents_of,
    fill,
    new_place,
    require_filled,
    whole_chunks,
)
from tests.copying.watched import events_of, new_watched


@pytest.mark.sampled(15)
@pytest.mark.parametrize("destination_kind", ["memory", "disk", "session"])
@pytest.mark.parametrize("source_kind", ["memory", "disk", "whole", "split"])
def test_copy_between_all_kinds_of_stores_is_complete(
    source_kind: str, destination_kind: str, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    source, destination = new_place(source_kind, tmp_path), new_place(destination_kind, tmp_path)
    fill(source.store, split=source_kind == "split")
    before = source.raw()
    copied = ps.copy(source.store, destination.store)
    nbytes = sum(map(len, whole_chunks(reference).values()))
    assert copied == ps.Copied(groups=3, arrays=5, chunks=10, nbytes=nbytes)
    require_filled(destination.store)
    assert source.raw() == before
    found = destination.raw()
    if destination_kind == "session":
        # One chunk each, no nodes of parts, and every document as it is stored elsewhere.
        assert {key: data for key, data in found.items() if key in CHUNKS} == whole_chunks(reference)
        assert {key for key in found if not key.endswith("zarr.json")} == set(CHUNKS)
        destination.session.commit("copied")
        committed = destination.repository.readonly_session("main")
        require_filled(ps.PartsStore.from_session(committed))
    else:
        assert found.keys() == reference.keys()
        assert {key: data for key, data in found.items() if not key.endswith("zarr.json")} == {
            key: data for key, data in reference.items() if not key.endswith("zarr.json")
        }
    documents = {key: json.loads(data) for key, data in found.items() if key.endswith("zarr.json")}
    expected = {key: json.loads(data) for key, data in reference.items() if key.endswith("zarr.json")}
    mark = {"name": "parts_store", "must_understand": True}
    marked = {key for key, document in expected.items() if document.get("parts_store") == mark}
    assert marked == {key for key, document in expected.items() if document.get("storage_transformers")}
    if destination_kind == "session":
        # There each chunk is whole, and plain readers read it right.
        expected = {
            key: {member: value for member, value in document.items() if member != "parts_store"}
            for key, document in expected.items()
        }
    assert documents == expected
    assert destination.store.verify().findings == ()


@pytest.mark.parametrize("destination_kind", ["memory", "session"])
def test_an_array_alone_goes_to_another_path_with_the_groups_above_it(
    source: Place, destination_kind: str, tmp_path: Path
) -> None:
    destination = new_place(destination_kind, tmp_path)
    zarr.create_group(destination.store, path="old", attributes={"kept": True})
    copied = ps.copy(source.store, destination.store, path="/deep/er/shards/", to="old/new/er")
    assert (copied.groups, copied.arrays, copied.chunks) == (0, 1, 4)
    root = zarr.open_group(destination.store, mode="r")
    array: Any = root["old/new/er"]
    assert np.array_equal(array[...], SHARD_VALUES)
    assert dict(root["old"].attrs) == {"kept": True}
    assert destination.store.parts_of("old/new/er") == source.store.parts_of("deep/er/shards")
    assert [key for key in destination.raw() if key.startswith("deep")] == []


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_between_object_stores_everything_stays_byte_for_byte(source: Place, tmp_path: Path) -> None:
    zarr.consolidate_metadata(source.store)
    old = zarr.create_group(source.store, path="v2", zarr_format=2, attributes={"old": 1})
    old.create_array("a", shape=(4, 4), chunks=(2, 2), dtype="uint8", attributes={"b": 2})[...] = 3
    for key, value in (("README.md", b"hello"), ("odd/zarr.json", b"{ no JSON"), ("two/c/0.other", b"else")):
        sync(source.store.set(key, cpu.Buffer.from_bytes(value)))
    for kind in ("memory", "disk"):
        destination = new_place(kind, tmp_path)
        copied = ps.copy(source.store, destination.store)
        assert destination.raw() == source.raw()
        assert (copied.groups, copied.arrays, copied.chunks) == (4, 6, len(CHUNKS) + 4 + 2)
        group: Any = zarr.open_group(destination.store, path="v2", zarr_format=2, mode="r")
        assert group["a"][...].tolist() == [[3] * 4] * 4


def test_groups_above_an_array_of_zarr_v2_are_of_zarr_v2(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    zarr.create_array(source.store, name="a", shape=(4,), chunks=(2,), dtype="uint8", zarr_format=2)[...] = 3
    ps.copy(source.store, destination.store, path="a", to="x/b")
    root: Any = zarr.open_group(destination.store, mode="r", zarr_format=2)
    assert root["x/b"][...].tolist() == [3] * 4
    assert not [key for key in destination.raw() if key.endswith("zarr.json")]


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_consolidated_metadata_does_not_go_into_a_session(source: Place, tmp_path: Path) -> None:
    destination = new_place("session", tmp_path)
    zarr.consolidate_metadata(source.store)
    assert b"consolidated_metadata" in source.raw()["zarr.json"]
    ps.copy(source.store, destination.store)
    assert b"consolidated_metadata" not in destination.raw()["zarr.json"]
    require_filled(destination.store)


def test_a_copy_gets_no_other_parts_than_its_original(source: Place, tmp_path: Path) -> None:
    destination = new_place("memory", tmp_path, parts={"*": [ps.Part(".x", size=1), ps.Part("")]})
    ps.copy(source.store, destination.store)
    assert destination.raw() == source.raw()


def test_copy_does_not_depend_on_what_a_store_has_cached(tmp_path: Path) -> None:
    source, destination = new_place("memory", tmp_path), new_place("memory", tmp_path)
    for place in (source, destination):
        assert place.store.parts_of("two") is None
        assert sync(place.store.get("two/c/0", default_buffer_prototype())) is None
    # Another process writes what is copied, with other parts than those that were there first.
    elsewhere = ps.PartsStore(source.store.store)
    ps.create_array(source.store, "two", parts=INDEXED, shape=(4,), chunks=(2,), shards=(4,), dtype="uint8")
    sync(elsewhere.delete_dir(""))
    fill(elsewhere)
    ps.copy(source.store, destination.store)
    assert destination.raw() == source.raw()
    require_filled(destination.store)


def test_reading_the_destination_during_a_copy_is_harmless(source: Place, destination: Place) -> None:

    def look(done: int, total: int) -> None:
        for path in ARRAYS:
            assert destination.store.get_sync(f"{path}/zarr.json") is None
            assert destination.store.get_sync(f"{path}/c/0", byte_range=None) is None or done

    ps.copy(source.store, destination.store, progress=look, max_concurrency=1)
    assert destination.raw() == source.raw()
    require_filled(destination.store)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["memory", "disk", "session"])
def test_overwritten_destination_has_nothing_of_the_old_arrays(
    source: Place, kind: str, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    destination = new_place(kind, tmp_path)
    zarr.create_group(destination.store, path="beside", attributes={"kept": 1})
    split: dict[str, Any] = {"split": True} if kind == "session" else {}
    for path in ("x/two", "x/gone"):
        ps.create_array(destination.store, path, parts=TWO, shape=(64,), chunks=(8,), dtype="uint16", **split)[:] = 9
    ps.copy(source.store, destination.store, to="x", overwrite=True)
    require_filled(destination.store, "x")
    found = destination.raw()
    expected = [*CHUNKS, *documents_of(reference)] if kind == "session" else list(reference)
    assert {key for key in found if key.startswith("x/")} == {f"x/{key}" for key in expected}
    assert "beside/zarr.json" in found


def test_leftovers_without_a_document_occupy_the_destination(source: Place, destination: Place) -> None:
    obstore.put(destination.store.store, "two/c/1", b"not of this array")
    with pytest.raises(StoreConfigError, match="two/c/1"):
        ps.copy(source.store, destination.store)
    ps.copy(source.store, destination.store, overwrite=True)
    assert destination.raw() == source.raw()


@pytest.mark.parametrize("kind", ["memory", "session"])
def test_progress_counts_every_chunk_and_ends_at_the_total(source: Place, kind: str, tmp_path: Path) -> None:
    destination = new_place(kind, tmp_path)
    seen: list[tuple[int, int]] = []
    ps.copy(source.store, destination.store, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, len(CHUNKS)) for done in range(len(CHUNKS) + 1)]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_no_more_chunks_are_copied_at_once_than_asked_for(at_once: int, tmp_path: Path) -> None:
    source, destination = new_watched("memory", tmp_path), new_watched("memory", tmp_path)
    fill(ps.PartsStore(source.store.store))
    ps.copy(source.store, destination.store, max_concurrency=at_once)
    assert events_of(source).most_reading == min(at_once, len(CHUNKS))
    assert events_of(destination).most_reading <= at_once
