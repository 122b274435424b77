"""Arrays whose shards are files, on every backend, with every pipeline; copies have the same bytes."""

import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore
from zarr.errors import ZarrUserWarning

import parts_store as ps
from tests.shard_files import forms, readers

KINDS = ["disk", "memory", "whole", "split"]
SHARDS = {"chunks": (16, 16), "shards": (32, 48), "dtype": "int32", "fill_value": -3}


def new_store(kind: str, folder: Path) -> ps.PartsStore:
    match kind:
        case "disk":
            return ps.PartsStore.from_url(str(folder))
        case "memory":
            return ps.PartsStore(MemoryStore())
        case _:
            repository = icechunk.Repository.create(icechunk.in_memory_storage())
            return ps.PartsStore.from_session(repository.writable_session("main"))


def create(store: ps.PartsStore, kind: str, form: str, shard_file: Any, **arguments: Any) -> zarr.Array[Any]:
    """Return a new array with the pipeline that zarr is configured to use."""
    given: dict[str, Any] = {"shape": (70, 100), **SHARDS, **arguments}
    forms.create(store, "group/a", form, shard_file, split=kind == "split", **given)
    return zarr.open_array(store, path="group/a", mode="r+")


def require_files(folder: Path, extension: str, expected: np.ndarray) -> None:
    """Compare the files of all shards with the values of the array; shards without a file have the fill value."""
    np.testing.assert_array_equal(readers.read_plain_layout(folder), expected)
    if not extension:
        np.testing.assert_array_equal(readers.read_zarr(folder), expected)
    for row in range(-(-expected.shape[0] // 32)):
        for column in range(-(-expected.shape[1] // 48)):
            part = expected[row * 32 : row * 32 + 32, column * 48 : column * 48 + 48]
            path = folder / "c" / str(row) / f"{column}{extension}"
            if path.exists():
                np.testing.assert_array_equal(readers.read_file(path), part)
            else:
                assert (part == SHARDS["fill_value"]).all()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_shards_stay_files_through_writes_resizes_and_copies(
    tmp_path: Path, kind: str, shard_file: str, form: str, pipeline: str
) -> None:
    store, extension = new_store(kind, tmp_path / "stored"), forms.extension(form, shard_file)
    array = create(store, kind, form, shard_file)
    rng = np.random.default_rng(0)
    expected = rng.integers(0, 100, (70, 100)).astype("int32")
    array[...] = expected
    array[5:40, 60:90] = expected[5:40, 60:90] = 7
    array[32:48, 48:80] = expected[32:48, 48:80] = -3
    array[0:32, 0:48] = expected[0:32, 0:48] = rng.integers(0, 100, (32, 48))
    array[64:70, 0:48] = expected[64:70, 0:48] = -3
    np.testing.assert_array_equal(array[...], expected)
    array.resize((90, 60))
    grown = np.full((90, 60), -3, "int32")
    grown[:70] = expected[:, :60]
    array[60:90, 40:60] = grown[60:90, 40:60] = rng.integers(0, 100, (30, 20))
    array[:, 48] = grown[:, 48] = 5
    np.testing.assert_array_equal(array[...], grown)
    copied, again = tmp_path / "copied", tmp_path / "again"
    ps.copy(store, ps.PartsStore.from_url(str(copied)))
    # The shards in the first columns were not written after the array grew. Their copies have its height.
    require_files(copied / "group" / "a", extension, grown)
    array[:, 0] = grown[:, 0] = 6
    ps.copy(store, ps.PartsStore.from_url(str(copied)), overwrite=True)
    require_files(copied / "group" / "a", extension, grown)
    if kind == "disk":
        assert files_in(tmp_path / "stored") == files_in(copied)
    for between in ("disk", "whole"):
        middle = new_store(between, again / "middle")
        ps.copy(ps.PartsStore.from_url(str(copied)), middle)
        ps.copy(middle, ps.PartsStore.from_url(str(again / between)))
        chunks = {name: data for name, data in files_in(again / between).items() if not name.endswith("zarr.json")}
        assert chunks == {name: data for name, data in files_in(copied).items() if not name.endswith("zarr.json")}
        reopened = zarr.open_array(ps.PartsStore.from_url(str(again / between)), path="group/a", mode="r+")
        reopened[3, 3] = 11
        assert readers.read_file(again / between / "group" / "a" / "c" / "0" / f"0{extension}")[3, 3] == 11


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize("shape", [(40, 50), (64, 96), (75, 144)])
def test_copied_files_end_where_the_array_ends_now(
    tmp_path: Path, shard_file: str, form: str, shape: tuple[int, int]
) -> None:
    store, extension = new_store("whole", tmp_path), forms.extension(form, shard_file)
    array = create(store, "whole", form, shard_file)
    array[...] = np.random.default_rng(0).integers(0, 100, (70, 100))
    array.resize(shape)
    array.attrs["units"] = "K"
    ps.copy(store, ps.PartsStore.from_url(str(tmp_path)), path="group/a", to="b")
    expected = np.asarray(zarr.open_array(store, path="group/a", mode="r")[...])
    require_files(tmp_path / "b", extension, expected)
    if shard_file == "hdf5":
        name, _, attributes = readers.read_h5py(tmp_path / "b" / "c" / "0" / f"0{extension}")
        assert (name, attributes) == ("b", {"units": "K"})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_deleted_with_their_indexes(
    tmp_path: Path, kind: str, shard_file: str, form: str, pipeline: str
) -> None:
    store = new_store(kind, tmp_path)
    array = create(store, kind, form, shard_file)
    array[...] = 1
    array[0:32, 0:48] = -3
    np.testing.assert_array_equal(array[0:32, 0:48], np.full((32, 48), -3))
    np.testing.assert_array_equal(array[32:, :], np.ones((38, 100)))
    # In memory, where deletions have no conditions, the index is left for `repair`.
    assert not store.verify().is_damaged
    del zarr.open_group(store, path="group", mode="r+")["a"]
    assert not [name for name in files_in(tmp_path) if not name.endswith("zarr.json")]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_every_way_to_open_an_array_writes_files(tmp_path: Path, shard_file: str, form: str, pipeline: str) -> None:
    array, extension = (
        create(ps.PartsStore.from_url(str(tmp_path)), "disk", form, shard_file),
        forms.extension(form, shard_file),
    )
    expected = np.arange(7000, dtype="int32").reshape(70, 100)
    array[...] = expected
    array.attrs["units"] = "K"
    array.update_attributes({"scale": 2.5})
    with pytest.warns(ZarrUserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(ps.PartsStore.from_url(str(tmp_path)))
    consolidated = zarr.open_consolidated(ps.PartsStore.from_url(str(tmp_path)), mode="r+")
    opened: list[Any] = [
        array,
        zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="group/a", mode="r+"),
        ps.open_array(ps.PartsStore.from_url(str(tmp_path)), "group/a", mode="r+"),
        consolidated["group/a"],
        pickle.loads(pickle.dumps(array)),
    ]
    for number, each in enumerate(opened):
        each[40 + number, :] = expected[40 + number, :] = -number
        each[0:32, 0:48] = expected[0:32, 0:48] = number
        require_files(tmp_path / "group" / "a", extension, expected)
    document = json.loads((tmp_path / "group" / "a" / "zarr.json").read_text())
    assert document["shard_file"] == {"name": shard_file, "must_understand": False}
    members = json.loads((tmp_path / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert members["group/a"]["shard_file"] == document["shard_file"]
    if shard_file == "hdf5":
        assert readers.read_h5py(tmp_path / "group" / "a" / "c" / "0" / f"0{extension}")[2] == {
            "units": "K",
            "scale": 2.5,
        }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_threads_that_write_one_shard_lose_nothing(tmp_path: Path, kind: str, shard_file: str, form: str) -> None:
    store = new_store(kind, tmp_path / "stored")
    array = create(store, kind, form, shard_file, shape=(64, 96))
    # One inner chunk each, of four shards.
    regions = [np.s_[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] for row, column in np.ndindex(4, 6)]
    expected = np.full((64, 96), -3, "int32")

    def write(number: int) -> None:
        zarr.open_array(store, path="group/a", mode="r+")[regions[number]] = number

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(len(regions))))
    for number, region in enumerate(regions):
        expected[region] = number
    np.testing.assert_array_equal(array[...], expected)
    ps.copy(store, ps.PartsStore.from_url(str(tmp_path / "copy")))
    require_files(tmp_path / "copy" / "group" / "a", forms.extension(form, shard_file), expected)


def write_in_process(folder: str, number: int) -> None:
    array = zarr.open_array(ps.PartsStore.from_url(folder), path="group/a", mode="r+")
    for column in range(3):
        array[16 * number : 16 * number + 16, 16 * column : 16 * column + 16] = 10 * number + column


@pytest.mark.slow
@pytest.mark.sampled(4, usual=3)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_processes_that_write_one_shard_lose_nothing(tmp_path: Path, shard_file: str, form: str) -> None:
    create(ps.PartsStore.from_url(str(tmp_path)), "disk", form, shard_file, shape=(64, 48), shards=(64, 48))
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(write_in_process, [str(tmp_path)] * 4, range(4)))
    rows, columns = np.indices((64, 48)) // 16
    folder = tmp_path / "group" / "a"
    np.testing.assert_array_equal(readers.read_plain_layout(folder), 10 * rows + columns)
    path = folder / "c" / "0" / f"0{forms.extension(form, shard_file)}"
    np.testing.assert_array_equal(readers.read_file(path), 10 * rows + columns)
