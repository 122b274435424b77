"""Views that cannot be written are refused with what would work, and nothing is written."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.errors import StoreConfigError
from tests.views import readers

IMAGE: dict[str, Any] = {"shape": (40, 50), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint16"}
PLANES: dict[str, Any] = {
    "shape": (2, 2, 16, 16),
    "chunks": (1, 1, 16, 16),
    "shards": (1, 1, 16, 16),
    "dtype": "uint16",
}


def refuses(store: Any, message: str, path: str = "a", view: Any = "vrt") -> None:
    with pytest.raises(StoreConfigError, match=message):
        ps.write_view(store, path, format=view)


def make(tmp_path: Path, **arguments: Any) -> ps.PartsStore:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", **{"shard_file": "tiff", **IMAGE, **arguments})[...] = 1
    return store


@pytest.mark.parametrize(
    ("shard_file", "view", "advice"), [("tiff", "hdf5", "'vrt' or 'ome'"), ("hdf5", "vrt", "'hdf5'")]
)
def test_a_view_over_files_of_another_format(shard_file: str, view: str, advice: str, tmp_path: Path) -> None:
    refuses(
        make(tmp_path, shard_file=shard_file), f"shards that are {shard_file} files at 'a'; use {advice}", view=view
    )


@pytest.mark.parametrize("view", ["vrt", "hdf5", "ome"])
def test_an_array_whose_shards_are_no_files(view: str, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    zarr.create_array(store, name="plain", shape=(4,), dtype="uint8")
    zarr.create_array(store, name="v2", shape=(4,), dtype="uint8", zarr_format=2)
    ps.create_array(store, "parts", parts=["", ps.Part(".crc", size=4)], shape=(8,), chunks=(4,), dtype="uint8")
    ps.create_array(store, "chunks", chunk_file="tiff", shape=(16, 16), chunks=(16, 16), dtype="uint8")
    for path in ("plain", "parts", "chunks"):
        refuses(store, f"no such files at {path!r}; copy it to one that `ps.create_array", path, view)
    for path in ("", "v2", "nothing", "parts/c/0"):
        refuses(store, f"no array of Zarr v3 at {path!r}", path, view)


def test_a_store_that_other_programs_cannot_read(tmp_path: Path) -> None:
    memory = ps.PartsStore(MemoryStore())
    ps.create_array(memory, "a", shard_file="tiff", **IMAGE)[...] = 1
    refuses(memory, "expected a folder or a bucket.*copy the array to one with `ps.copy`")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = ps.PartsStore.from_session(repository.writable_session("main"))
    ps.create_array(session, "a", shard_file="tiff", **IMAGE)[...] = 1
    refuses(session, "found an Icechunk session; copy the array to one with `ps.copy`")
    refuses(zarr.storage.MemoryStore(), "expected a PartsStore")
    make(tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        ps.write_view(ps.PartsStore.from_url(tmp_path, read_only=True), "a", format="vrt")


def test_an_unknown_format(tmp_path: Path) -> None:
    refuses(make(tmp_path), "expected one of 'vrt', 'hdf5', 'ome', found 'tiff'", view="tiff")


@pytest.mark.parametrize(("shard_file", "view"), [("tiff", "vrt"), ("hdf5", "hdf5")])
@pytest.mark.parametrize("content", [b"", b"II", b"another program wrote this", b"II*\0\x08\0\0\0\0\0" + bytes(50)])
def test_a_shard_that_another_program_has_written(content: bytes, shard_file: str, view: str, tmp_path: Path) -> None:
    store = make(tmp_path, shard_file=shard_file)
    (tmp_path / "a/c/0/1").write_bytes(content)
    refuses(store, f"expected a {shard_file} file in every shard, found .*'a/c/0/1'; another program", view=view)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "zarr.json"]


def test_shards_that_zarr_has_written_are_shown_after_a_repair(tmp_path: Path) -> None:
    store = make(tmp_path)
    zarr.open_array(str(tmp_path), path="a")[:32, :32] = 5
    refuses(store, "call `repair`")
    store.repair(min_age=0)
    ps.write_view(store, "a", format="vrt")
    found = readers.read_gdal(tmp_path / "a.vrt")[0]
    np.testing.assert_array_equal(found, zarr.open_array(store, path="a")[...])


@pytest.mark.parametrize("shard_file", ["tiff", "hdf5"])
@pytest.mark.parametrize("nbytes", [20, 60])
def test_a_shard_that_was_cut_off(nbytes: int, shard_file: str, tmp_path: Path) -> None:
    store = make(tmp_path, shard_file=shard_file)
    path = tmp_path / "a/c/0/1"
    path.write_bytes(path.read_bytes()[:nbytes])
    refuses(store, "another program has written the shard", view="vrt" if shard_file == "tiff" else "hdf5")


def test_directories_that_form_a_circle(tmp_path: Path) -> None:
    store = make(tmp_path, shape=(2, 16, 16), chunks=(1, 16, 16), shards=(2, 16, 16))
    path = tmp_path / "a/c/0/0/0"
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[4:8], "little")
    at = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    data[at : at + 4] = first.to_bytes(4, "little")
    path.write_bytes(data)
    refuses(store, "found a TIFF file whose directories form a circle at 'a/c/0/0/0'")


def test_shards_that_do_not_fill_a_plane(tmp_path: Path) -> None:
    refuses(make(tmp_path), "OME-XML cannot join files to a plane; a VRT can, found shards of", view="ome")


@pytest.mark.parametrize(
    ("names", "found"),
    [(["t", "q", "y", "x"], "'q'"), (["z", "depth", "y", "x"], "'depth'"), (["t", None, "y", "x"], "None")],
)
def test_axes_that_ome_does_not_have(names: list[str | None], found: str, tmp_path: Path) -> None:
    store = make(tmp_path, dimension_names=names, **PLANES)
    refuses(store, f"axes before the height with different names of t, time, c.*found .*{found}", view="ome")


def test_more_axes_than_ome_has(tmp_path: Path) -> None:
    shape = (1, 1, 1, 1, 16, 16)
    store = make(tmp_path, shape=shape, chunks=shape, shards=shape)
    refuses(store, "a VRT has bands for all axes", view="ome")


def test_a_data_type_that_ome_does_not_have(tmp_path: Path) -> None:
    refuses(make(tmp_path, **{**PLANES, "dtype": "int64"}), "for OME-XML, found int64", view="ome")


def test_a_fill_value_that_ome_does_not_have(tmp_path: Path) -> None:
    store = make(tmp_path, fill_value=7, **PLANES)
    ps.write_view(store, "a", format="ome")
    zarr.open_array(store, path="a")[0, 0] = 7
    (tmp_path / "a.companion.ome").unlink()
    refuses(store, "0 as the fill value where shards are missing, or all shards.*found 7", view="ome")
    assert not (tmp_path / "a.companion.ome").exists()


def test_a_fill_value_that_gdal_does_not_have(tmp_path: Path) -> None:
    store = make(tmp_path, dtype="complex64", fill_value=1 + 2j)
    ps.write_view(store, "a", format="vrt")
    assert "NoDataValue" not in (tmp_path / "a.vrt").read_text()
    zarr.open_array(store, path="a")[:32, :32] = 1 + 2j
    refuses(store, "a fill value without an imaginary part where shards are missing")


@pytest.mark.parametrize("name", ["http:a", "GTIFF_DIR:2:a"])
def test_a_name_that_gdal_takes_for_something_else(name: str, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, name, shard_file="tiff", **IMAGE)
    refuses(store, "expected a name without a colon, for a VRT", name)


def test_an_empty_array(tmp_path: Path) -> None:
    store = make(tmp_path)
    zarr.open_array(store, path="a").resize((0, 50))
    refuses(store, "1 to 65536 bands of 1 to 2147483647 pixels along each side")


def test_more_bands_than_gdal_opens(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", shard_file="tiff", **{**PLANES, "shape": (256, 257, 16, 16)})
    refuses(store, "found 65792 bands of 16 by 16 pixels")


@pytest.mark.parametrize("content", ["nothing", "a file", "a group"])
def test_a_folder_with_the_name_of_a_view(content: str, tmp_path: Path) -> None:
    store = make(tmp_path)
    folder = tmp_path / "a.vrt"
    if content == "a group":
        zarr.create_group(store, path="a.vrt")
    else:
        folder.mkdir()
    if content == "a file":
        (folder / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    refuses(store, "expected a view or nothing at 'a.vrt', found a folder, or a Zarr node with this name; rename it")
    assert sorted(tmp_path.rglob("*")) == before
    # It is not deleted with the array.
    del zarr.open_group(store)["a"]
    assert sorted(tmp_path.rglob("a.vrt*/**")) == [each for each in before if each.is_relative_to(folder)]
