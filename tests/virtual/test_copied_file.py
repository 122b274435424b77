"""Files that are copied to be the main part of an array: other programs can still open them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.errors import AdoptionError, StoreConfigError

VALUES = np.arange(7 * 90, dtype="int32").reshape(7, 90)


def write_file(path: Path, **more: Any) -> Path:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("g/a", data=VALUES, chunks=(2, 30), compression="gzip", shuffle=True)
        dataset.attrs["units"] = "K"
        file["scalar"] = np.float64(2.5)
        for name, values in more.items():
            file.create_dataset(name, data=values)
    return path


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("name", ["a.h5", "a.nc", "a.data"])
def test_copied_file_is_readable_by_zarr_and_h5py(tmp_path: Path, place: str, name: str) -> None:
    file = write_file(tmp_path / name)
    objects: Any = LocalStore(tmp_path / "out", mkdir=True) if place == "disk" else MemoryStore()
    store = ps.PartsStore(objects)
    report = ps.adopt(file, into=store, path="here", copy=True)
    assert [each.path for each in report.arrays] == ["here/g/a", "here/scalar"]
    assert report.nbytes_copied == (0 if place == "disk" else file.stat().st_size)
    array = zarr.open_array(store, path="here/g/a", mode="r")
    np.testing.assert_array_equal(array[:], VALUES)
    np.testing.assert_array_equal(array[3:5, 20:70], VALUES[3:5, 20:70])
    assert dict(array.attrs) == {"units": "K"}
    assert zarr.open_array(store, path="here/scalar", mode="r")[()] == 2.5
    suffix = ".h5" if name == "a.data" else Path(name).suffix
    assert bytes(obstore.get(objects, f"here/g/a/c/0/0{suffix}").bytes()) == file.read_bytes()
    if place == "disk":
        with h5py.File(tmp_path / f"out/here/g/a/c/0/0{suffix}") as same:
            np.testing.assert_array_equal(same["g/a"][:], VALUES)
    assert not store.verify().is_damaged


def test_file_with_several_datasets_is_refused_and_sessions_named(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.h5", other=np.zeros((4, 4)))
    objects = MemoryStore()
    with pytest.raises(AdoptionError, match=r"'g/a', 'other'; adopt it into an Icechunk session"):
        ps.adopt(file, into=ps.PartsStore(objects), copy=True)
    assert not obstore.list(objects).collect()


def test_object_store_needs_copy_and_session_rejects_it(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.h5")
    with pytest.raises(StoreConfigError, match="copy=True"):
        ps.adopt(file, into=ps.PartsStore(MemoryStore()))
    with pytest.raises(StoreConfigError, match="session"):
        ps.adopt(file, into="not a session", copy=True)  # type: ignore[arg-type] # it is refused


def test_existing_arrays_are_kept_unless_overwrite_is_set(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.h5")
    store = ps.PartsStore(MemoryStore())
    old = zarr.create_array(store, name="g/a", shape=(3,), dtype="int8")
    old[:] = 1
    with pytest.raises(StoreConfigError, match="overwrite"):
        ps.adopt(file, into=store, copy=True)
    np.testing.assert_array_equal(zarr.open_array(store, path="g/a")[:], 1)
    ps.adopt(file, into=store, copy=True, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(store, path="g/a")[:], VALUES)
