"""A file of a shard that another program has changed is noticed, or read as that program reads it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import tensorstore
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.storage import LocalStore as LocalZarrStore

import parts_store as ps
from tests.shard_files import edits, forms, readers

READS = {"stored": edits.STORED, "part": np.s_[20:22, 30:34], "hole": edits.HOLE, "whole": edits.SHARD}
CASES = [
    pytest.param(form, shard_file, compression, edit, id=f"{form}-{shard_file}-{compression}-{name}")
    for form in forms.FORMS
    for shard_file, known in edits.EDITS.items()
    for compression in edits.COMPRESSORS
    for name, edit in known.items()
]


def create(folder: Path, form: str, shard_file: str, compression: str) -> zarr.Array[Any]:
    store = ps.PartsStore.from_url(str(folder))
    array: zarr.Array[Any] = forms.create(store, "a", form, shard_file, **edits.arguments(compression))
    array[...] = edits.values()
    return array


def file_of(folder: Path, form: str, shard_file: str) -> Path:
    return folder / "a" / "c" / "0" / ("0" + forms.extension(form, shard_file))


def arrays(folder: Path, read_before: zarr.Array[Any]) -> Iterator[zarr.Array[Any]]:
    """Yield an array that has the index in memory, and arrays that were just opened, with each pipeline."""
    yield read_before
    yield zarr.open_array(ps.PartsStore.from_url(str(folder)), path="a", mode="r+")
    yield ps.open_array(ps.PartsStore.from_url(str(folder)), "a", mode="r+")


def require_noticed_or_equal(array: zarr.Array[Any], path: Path, shard_file: str) -> bool:
    """Compare all reads of an array with what the program of the format reads; return whether the change is noticed."""
    expected = edits.read(path, shard_file)
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


@pytest.mark.sampled(60, usual=7)
@pytest.mark.parametrize(("form", "shard_file", "compression", "edit"), CASES)
def test_changed_file_is_noticed_or_read_as_its_program_reads_it(
    tmp_path: Path, form: str, shard_file: str, compression: str, edit: edits.Edit
) -> None:
    read_before = create(tmp_path, form, shard_file, compression)
    for selection in READS.values():
        np.testing.assert_array_equal(read_before[selection], edits.values()[selection])
    path = file_of(tmp_path, form, shard_file)
    edit(path)
    changed = {each: each.read_bytes() for each in path.parent.iterdir()}
    for array in arrays(tmp_path, read_before):
        if not require_noticed_or_equal(array, path, shard_file):
            continue
        # A partial write merges nothing into the changed file, and a write of the whole shard replaces it.
        with pytest.raises(ps.errors.ShardFileError):
            array[33:35, 33:35] = 1
        assert {each: each.read_bytes() for each in path.parent.iterdir()} == changed
    np.testing.assert_array_equal(read_before[0:64, 64:128], edits.values()[0:64, 64:128])
    read_before[edits.SHARD] = 5
    np.testing.assert_array_equal(read_before[edits.SHARD], np.full((64, 64), 5, "uint16"))
    np.testing.assert_array_equal(edits.read(path, shard_file), np.full((64, 64), 5, "uint16"))


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("nbytes", [2**40, 2**63, 2**64 - 33, 2**64 - 1])
@pytest.mark.parametrize("at", [-24, -16])
def test_sizes_in_a_seal_that_no_file_has_are_a_damaged_seal(form: str, nbytes: int, at: int) -> None:
    backend = MemoryStore()
    # The shard is larger than what is read whole for its index.
    layout: dict[str, Any] = {"shape": (1024, 1024), "chunks": (64, 64), "shards": (1024, 1024), "dtype": "uint8"}
    array = forms.create(ps.PartsStore(backend), "a", form, "tiff", compressors=None, **layout)
    array[...] = 1
    key = "a/c/0/0" + forms.extension(form, "tiff")
    data = bytearray(obstore.get(backend, key).bytes())
    end = len(data) - (16 * 16 * 16 + 4 if form == "object" else 0)
    data[end + at : end + at + 8] = nbytes.to_bytes(8, "little")
    # Without its tags, as if it was copied by other software.
    obstore.put(backend, key, bytes(data))
    store = ps.PartsStore(backend)
    changed = zarr.open_array(store, path="a", mode="r+")
    with pytest.raises(ps.errors.ShardFileError):
        changed[:3, :3]
    with pytest.raises(ps.errors.ShardFileError):
        changed[...]
    expected = {"object": "unreadable", "parts": "partly tagged"}
    assert [finding.problem.value for finding in store.verify().findings] == [expected[form]]


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", ["deflate", "zstd"])
def test_moved_tiles_are_always_noticed(tmp_path: Path, form: str, shard_file: str, compression: str) -> None:
    moving = [edits.exchange_two_tiles, *list(edits.EDITS[shard_file].values())[:3]]
    for number, edit in enumerate(moving if shard_file == "tiff" else moving[1:]):
        folder = tmp_path / str(number)
        array = create(folder, form, shard_file, compression)
        path = file_of(folder, form, shard_file)
        edit(path)
        assert require_noticed_or_equal(array, path, shard_file)


@pytest.mark.parametrize("form", forms.FORMS)
def test_tile_without_compression_can_be_changed_in_place(tmp_path: Path, form: str) -> None:
    shard_file = "tiff"
    array = create(tmp_path, form, shard_file, "none")
    path = file_of(tmp_path, form, shard_file)
    edits.write_into_a_memory_map(path)
    assert not require_noticed_or_equal(array, path, shard_file)
    np.testing.assert_array_equal(array[edits.STORED], np.full((16, 16), 9))
    expected = edits.values()
    expected[edits.STORED] = 9
    expected[33:35, 33:35] = 1
    array[33:35, 33:35] = 1
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(edits.read(path, shard_file), expected[edits.SHARD])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", edits.COMPRESSORS)
@pytest.mark.parametrize("with_index", [True, False])
def test_file_of_another_shard_is_noticed_or_read_with_its_values(
    tmp_path: Path, shard_file: str, compression: str, with_index: bool
) -> None:
    read_before = create(tmp_path, "parts", shard_file, compression)
    read_before[...]
    path = file_of(tmp_path, "parts", shard_file)
    edits.replace_with_neighbour(path)
    if with_index:
        edits.replace_with_neighbour(path.with_suffix(".index"))
    for array in arrays(tmp_path, read_before):
        assert require_noticed_or_equal(array, path, shard_file) is not with_index


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", edits.COMPRESSORS)
def test_old_file_from_a_backup_is_noticed_or_read_with_its_values(
    tmp_path: Path, form: str, shard_file: str, compression: str
) -> None:
    read_before = create(tmp_path, form, shard_file, compression)
    path = file_of(tmp_path, form, shard_file)
    shutil.copy(path, tmp_path / "backup")
    for region in (edits.HOLE, edits.STORED):
        read_before[region] = edits.noise(200)
        read_before[...]
    shutil.copy(tmp_path / "backup", path)
    for array in arrays(tmp_path, read_before):
        # In one object, the old index comes with the old file.
        assert require_noticed_or_equal(array, path, shard_file) is (form == "parts")


@pytest.mark.parametrize("form", forms.FORMS)
def test_seal_that_covers_more_than_usual_is_read_again(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_file = "tiff"
    monkeypatch.setattr("parts_store.format.files.tiff._MAX_NBYTES", 0)
    create(tmp_path, form, shard_file, "deflate")
    monkeypatch.undo()
    path = file_of(tmp_path, form, shard_file)
    assert path.read_bytes()[:4] == b"II\x2b\x00"
    array = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a")
    for selection in READS.values():
        np.testing.assert_array_equal(array[selection], edits.values()[selection])
    np.testing.assert_array_equal(edits.read(path, shard_file), edits.values()[edits.SHARD])
    edits.exchange_two_tiles(path)
    assert require_noticed_or_equal(array, path, shard_file)


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_verify_finds_changed_files(tmp_path: Path, form: str, shard_file: str, is_on_disk: bool) -> None:
    create(tmp_path, form, shard_file, "deflate")
    path = file_of(tmp_path, form, shard_file)
    next(iter(edits.EDITS[shard_file].values()))(path)
    store = ps.PartsStore(stored_in(tmp_path, is_on_disk=is_on_disk))
    report = store.verify()
    damaged = [(each.chunk_key, each.keys, each.detail) for each in report.findings if each.problem.is_damage]
    assert damaged == [("a/c/0/0", (f"a/c/0/{path.name}",), "changed by another program")]
    # A file that a person has changed is not deleted.
    assert store.repair().is_damaged
    zarr.open_array(store, path="a", mode="r+")[edits.SHARD] = 5
    assert not store.verify().is_damaged


def stored_in(folder: Path, *, is_on_disk: bool) -> Any:
    """Return an object store with the files of a folder: the folder, or one in memory."""
    objects: Any = LocalStore(folder) if is_on_disk else MemoryStore()
    for each in folder.rglob("*") if not is_on_disk else ():
        if each.is_file():
            obstore.put(objects, str(each.relative_to(folder)), each.read_bytes())
    return objects


def read_by_zarr(folder: Path) -> list[Any]:
    """Return what each program of Zarr reads, or its error."""
    found: list[Any] = []
    for read in (readers.read_zarr, lambda each: readers.read_zarr(each, readers.ZARRS), readers.read_tensorstore):
        try:
            found.append(read(folder / "a"))
        # Every program has its own errors, some of them written in Rust.
        except BaseException as error:
            found.append(error)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("name", ["lose the last byte", "lose the second half", "lose all bytes", "append bytes"])
def test_shard_with_a_wrong_end_is_an_error_for_all_programs(
    tmp_path: Path, shard_file: str, compression: str, name: str
) -> None:
    array = create(tmp_path, "object", shard_file, compression)
    array[...]
    edits.EDITS[shard_file][name](file_of(tmp_path, "object", shard_file))
    assert all(isinstance(found, BaseException) for found in read_by_zarr(tmp_path))
    for each in arrays(tmp_path, array):
        for selection in READS.values():
            with pytest.raises(ps.errors.ShardFileError, match="a/c/0/0"):
                each[selection]


def open_in(folder: Path, writer: str) -> Any:
    """Return an array as other software writes it."""
    if writer != "tensorstore":
        return zarr.open_array(LocalZarrStore(folder), path="a", mode="r+")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "a")}}
    return tensorstore.open(spec).result()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shard_file", edits.EDITS)
@pytest.mark.parametrize("is_on_disk", [True, False])
@pytest.mark.parametrize("writer", ["zarr", "zarrs", "tensorstore"])
def test_shards_of_other_software_are_read_and_made_files_again(
    tmp_path: Path, shard_file: str, is_on_disk: bool, writer: str
) -> None:
    create(tmp_path, "object", shard_file, "zstd")
    path, expected = file_of(tmp_path, "object", shard_file), edits.values()
    open_in(tmp_path, "zarr").attrs["units"] = "K"
    with zarr.config.set({"codec_pipeline.path": readers.ZARRS if writer == "zarrs" else readers.ZARR}):
        open_in(tmp_path, writer)[20:30, 20:30] = expected[20:30, 20:30] = 9
    assert edits.read(path, shard_file) is None
    objects = stored_in(tmp_path, is_on_disk=is_on_disk)
    store = ps.PartsStore(objects)
    for opened in (zarr.open_array(store, path="a", mode="r+"), ps.open_array(store, "a", mode="r+")):
        for selection in (*READS.values(), np.s_[:, :]):
            np.testing.assert_array_equal(opened[selection], expected[selection])
    report = store.verify()
    assert [(each.problem.value, each.chunk_key) for each in report.findings] == [("no file", "a/c/0/0")]
    assert (report.is_damaged, report.is_clean) == (False, False)
    assert str(report).endswith("`repair` would make files of shards again")
    assert store.repair().is_clean
    assert store.verify().findings == ()
    path.write_bytes(bytes(obstore.get(objects, "a/c/0/0").bytes()))
    np.testing.assert_array_equal(edits.read(path, shard_file), expected[edits.SHARD])
    np.testing.assert_array_equal(opened[...], expected)
    if shard_file == "hdf5":
        assert readers.read_h5py(path)[2] == {"units": "K"}


@pytest.mark.parametrize("shard_file", edits.EDITS)
def test_partial_write_makes_a_file_of_a_shard_of_other_software(tmp_path: Path, shard_file: str) -> None:
    create(tmp_path, "object", shard_file, "zstd")
    foreign = open_in(tmp_path, "zarr")
    foreign.resize((60, 128))
    expected = edits.values()[:60]
    foreign[20:30, 20:30] = expected[20:30, 20:30] = 9
    array = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a", mode="r+")
    array[40:50, 40:50] = expected[40:50, 40:50] = 8
    np.testing.assert_array_equal(edits.read(file_of(tmp_path, "object", shard_file), shard_file), expected[:, :64])
    np.testing.assert_array_equal(readers.read_zarr(tmp_path / "a"), expected)
