"""A file of a shard that another program has changed is noticed, or read as that program reads it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from tests.shard_files import edits

READS = {"stored": edits.STORED, "part": np.s_[20:22, 30:34], "hole": edits.HOLE, "whole": edits.SHARD}
CASES = [
    pytest.param(shard_file, compression, edit, id=f"{shard_file}-{compression}-{name}")
    for shard_file, known in edits.EDITS.items()
    for compression in edits.COMPRESSORS
    for name, edit in known.items()
]


def create(folder: Path, shard_file: Any, compression: str) -> zarr.Array[Any]:
    store = ps.PartsStore.from_url(str(folder))
    array = ps.create_array(store, "a", shard_file=shard_file, **edits.arguments(compression))
    array[...] = edits.values()
    return array


def file_of(folder: Path, shard_file: str) -> Path:
    return folder / "a" / "c" / "0" / ("0" + edits.EXTENSIONS[shard_file])


def arrays(folder: Path, read_before: zarr.Array[Any]) -> Iterator[zarr.Array[Any]]:
    """Yield an array that has the index in memory, and arrays that were just opened, with each pipeline."""
    yield read_before
    yield zarr.open_array(ps.PartsStore.from_url(str(folder)), path="a", mode="r+")
    yield ps.open_array(ps.PartsStore.from_url(str(folder)), "a", mode="r+")


def require_noticed_or_equal(array: zarr.Array[Any], path: Path) -> bool:
    """Compare all reads of an array with what the program of the format reads; return whether the change is noticed."""
    expected = edits.read(path)
    noticed = []
    for selection in READS.values():
        try:
            found = array[selection]
        except ps.errors.ShardFileError as error:
            noticed.append(repr(f"a/c/0/{path.name}") in str(error))
        else:
            assert expected is not None
            np.testing.assert_array_equal(found, expected[selection])
            noticed.append(False)
    assert len(set(noticed)) == 1
    return noticed[0]


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("shard_file", "compression", "edit"), CASES)
def test_changed_file_is_noticed_or_read_as_its_program_reads_it(
    tmp_path: Path, shard_file: str, compression: str, edit: edits.Edit
) -> None:
    read_before = create(tmp_path, shard_file, compression)
    for selection in READS.values():
        np.testing.assert_array_equal(read_before[selection], edits.values()[selection])
    path = file_of(tmp_path, shard_file)
    edit(path)
    changed = {each: each.read_bytes() for each in path.parent.iterdir()}
    for array in arrays(tmp_path, read_before):
        if not require_noticed_or_equal(array, path):
            continue
        # A partial write merges nothing into the changed file, and a write of the whole shard replaces it.
        with pytest.raises(ps.errors.ShardFileError):
            array[33:35, 33:35] = 1
        assert {each: each.read_bytes() for each in path.parent.iterdir()} == changed
    np.testing.assert_array_equal(read_before[0:64, 64:128], edits.values()[0:64, 64:128])
    read_before[edits.SHARD] = 5
    np.testing.assert_array_equal(read_before[edits.SHARD], np.full((64, 64), 5, "uint16"))
    np.testing.assert_array_equal(edits.read(path), np.full((64, 64), 5, "uint16"))


@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", ["deflate", "zstd"])
def test_moved_tiles_are_always_noticed(tmp_path: Path, shard_file: str, compression: str) -> None:
    moving = [edits.exchange_two_tiles, *list(edits.EDITS[shard_file].values())[:3]]
    for number, edit in enumerate(moving if shard_file == "tiff" else moving[1:]):
        folder = tmp_path / str(number)
        array = create(folder, shard_file, compression)
        path = file_of(folder, shard_file)
        edit(path)
        assert require_noticed_or_equal(array, path)


def test_tile_without_compression_can_be_changed_in_place(tmp_path: Path) -> None:
    array = create(tmp_path, "tiff", "none")
    path = file_of(tmp_path, "tiff")
    edits.write_into_a_memory_map(path)
    assert not require_noticed_or_equal(array, path)
    np.testing.assert_array_equal(array[edits.STORED], np.full((16, 16), 9))
    expected = edits.values()
    expected[edits.STORED] = 9
    expected[33:35, 33:35] = 1
    array[33:35, 33:35] = 1
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(edits.read(path), expected[edits.SHARD])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", edits.COMPRESSORS)
@pytest.mark.parametrize("with_index", [True, False])
def test_file_of_another_shard_is_noticed_or_read_with_its_values(
    tmp_path: Path, shard_file: str, compression: str, with_index: bool
) -> None:
    read_before = create(tmp_path, shard_file, compression)
    read_before[...]
    path = file_of(tmp_path, shard_file)
    edits.replace_with_neighbour(path)
    if with_index:
        edits.replace_with_neighbour(path.with_suffix(".index"))
    for array in arrays(tmp_path, read_before):
        assert require_noticed_or_equal(array, path) is not with_index


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", edits.COMPRESSORS)
def test_old_file_from_a_backup_is_noticed_or_read_with_its_values(
    tmp_path: Path, shard_file: str, compression: str
) -> None:
    read_before = create(tmp_path, shard_file, compression)
    path = file_of(tmp_path, shard_file)
    shutil.copy(path, tmp_path / "backup")
    for region in (edits.HOLE, edits.STORED):
        read_before[region] = edits.noise(200)
        read_before[...]
    shutil.copy(tmp_path / "backup", path)
    for array in arrays(tmp_path, read_before):
        assert require_noticed_or_equal(array, path)


def test_header_that_is_longer_than_usual_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parts_store.format.files.tiff._MAX_NBYTES", 0)
    create(tmp_path, "tiff", "deflate")
    monkeypatch.undo()
    path = file_of(tmp_path, "tiff")
    assert path.read_bytes()[:4] == b"II\x2b\x00"
    array = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a")
    for selection in READS.values():
        np.testing.assert_array_equal(array[selection], edits.values()[selection])
    np.testing.assert_array_equal(edits.read(path), edits.values()[edits.SHARD])
    edits.exchange_two_tiles(path)
    assert require_noticed_or_equal(array, path)


@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_verify_finds_changed_files(tmp_path: Path, shard_file: str, is_on_disk: bool) -> None:
    create(tmp_path, shard_file, "deflate")
    path = file_of(tmp_path, shard_file)
    next(iter(edits.EDITS[shard_file].values()))(path)
    objects: Any = LocalStore(tmp_path) if is_on_disk else MemoryStore()
    for each in tmp_path.rglob("*") if not is_on_disk else ():
        if each.is_file():
            obstore.put(objects, str(each.relative_to(tmp_path)), each.read_bytes())
    store = ps.PartsStore(objects)
    report = store.verify()
    damaged = [(each.chunk_key, each.keys, each.detail) for each in report.findings if each.problem.is_damage]
    assert damaged == [("a/c/0/0", (f"a/c/0/{path.name}",), "changed by another program")]
    # A file that a person has changed is not deleted.
    assert store.repair().is_damaged
    zarr.open_array(store, path="a", mode="r+")[edits.SHARD] = 5
    assert not store.verify().is_damaged
