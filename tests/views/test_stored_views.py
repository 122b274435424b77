"""A `PartsStore` hides the views of arrays in listings, and deletes them with their array."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
import zarr

import parts_store as ps
from parts_store.errors import StoreConfigError

LAYOUT: dict[str, Any] = {"shape": (40, 50), "chunks": (16, 16), "shards": (48, 64), "dtype": "uint8"}
FORMATS: dict[str, tuple[Literal["tiff", "hdf5"], str]] = {
    "vrt": ("tiff", ".vrt"),
    "hdf5": ("hdf5", ".h5"),
    "ome": ("tiff", ".companion.ome"),
}


def listed(store: ps.PartsStore, prefix: str = "") -> list[str]:
    async def collect() -> list[str]:
        return sorted([key async for key in store.list_prefix(prefix)])

    return asyncio.run(collect())


def listed_in(store: ps.PartsStore, prefix: str = "") -> list[str]:
    async def collect() -> list[str]:
        return sorted([key async for key in store.list_dir(prefix)])

    return asyncio.run(collect())


def views_in(folder: Path) -> list[str]:
    """Return the views in all folders. Some levels of concurrency leave empty folders."""
    endings = tuple(extension for _, extension in FORMATS.values())
    files = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
    return sorted(each for each in files if each.endswith(endings) and "/c/" not in each)


def make(store: ps.PartsStore, path: str, view: Any) -> str:
    ps.create_array(store, path or None, shard_file=FORMATS[view][0], overwrite=True, **LAYOUT)[...] = 1
    return ps.write_view(store, path, format=view)


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "opened again"])
@pytest.mark.parametrize("view", FORMATS)
@pytest.mark.parametrize("path", ["a", "c", "0", "group/1", "cube"])
def test_listings_hide_views(path: str, view: str, is_new: bool, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    key = make(store, path, view)
    assert key == path + FORMATS[view][1]
    assert (tmp_path / key).is_file()
    store = ps.PartsStore.from_url(tmp_path) if is_new else store
    folder = path.rpartition("/")[0]
    # A new store knows no arrays, so it reads documents.
    assert listed_in(store, folder) == [path.rpartition("/")[2], "zarr.json"]
    assert key not in listed(ps.PartsStore.from_url(tmp_path) if is_new else store)
    assert asyncio.run(store.exists(key)), "a view can be read by its key"
    group = zarr.open_group(store, path=folder)
    assert [name for name, _ in group.members()] == [path.rpartition("/")[2]]


@pytest.mark.parametrize("view", FORMATS)
def test_the_view_of_an_array_at_the_root_is_inside_it(view: Any, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    key = make(store, "", view)
    assert key == "array" + FORMATS[view][1]
    assert (tmp_path / key).is_file()
    for each in (store, ps.PartsStore.from_url(tmp_path)):
        assert listed(each) == ["c/0/0", "zarr.json"]
        assert listed_in(each) == ["c", "zarr.json"]
    assert store.verify().findings == ()
    before = store.tree(sizes=True).nodes[0].stored
    (tmp_path / key).unlink()
    assert store.tree(sizes=True).nodes[0].stored == before
    zarr.create_array(store, shape=(3,), dtype="uint8", overwrite=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["zarr.json"]


@pytest.mark.parametrize("concurrency", ["exclusive", "writers"])
@pytest.mark.parametrize("is_new", [False, True], ids=["known", "opened again"])
def test_views_are_deleted_with_their_array(is_new: bool, concurrency: Any, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path, concurrency=concurrency)
    make(store, "group/a", "vrt")
    ps.write_view(store, "group/a", format="ome")
    make(store, "group/b", "hdf5")
    store = ps.PartsStore.from_url(tmp_path, concurrency=concurrency) if is_new else store
    del zarr.open_group(store, path="group")["a"]
    assert views_in(tmp_path) == ["group/b.h5"]
    # An array that replaces another one has no view.
    zarr.create_array(store, name="group/b", shape=(3,), dtype="uint8", overwrite=True)
    assert views_in(tmp_path) == []
    make(store, "group/c", "vrt")
    del zarr.open_group(store)["group"]
    assert views_in(tmp_path) == []


@pytest.mark.parametrize("view", FORMATS)
def test_files_of_the_user_with_the_name_of_a_view_are_kept(view: Any, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    key = make(store, "a", view)
    (tmp_path / key).write_bytes(b"\x89HDF\r\n\x1a\n data of the user")
    with pytest.raises(StoreConfigError, match="found a file that is not a view; move it, or delete it"):
        ps.write_view(store, "a", format=view)
    del zarr.open_group(store)["a"]
    assert (tmp_path / key).read_bytes() == b"\x89HDF\r\n\x1a\n data of the user"
    assert listed_in(store) == [key, "zarr.json"]
    # Beside an array without views, it is any other file.
    zarr.create_array(store, name="a", shape=(3,), dtype="uint8")
    assert listed_in(ps.PartsStore.from_url(tmp_path)) == ["a", key, "zarr.json"]


@pytest.mark.parametrize("view", FORMATS)
def test_a_view_replaces_an_older_one_and_is_not_copied(view: Any, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "from")
    key = make(store, "a", view)
    first = (tmp_path / "from" / key).read_bytes()
    assert ps.write_view(store, "a", format=view) == key
    assert (tmp_path / "from" / key).read_bytes() == first, "the same state gives the same view"
    assert sorted(each.name for each in (tmp_path / "from").iterdir()) == ["a", key, "zarr.json"]
    ps.copy(store, ps.PartsStore.from_url(tmp_path / "to"))
    assert sorted(each.name for each in (tmp_path / "to").iterdir()) == ["a", "zarr.json"]


def test_a_view_has_the_same_name_as_another_array(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    make(store, "a", "vrt")
    zarr.create_array(store, name="array", shape=(3,), dtype="uint8")
    (tmp_path / "array.vrt").write_text("of the user")
    assert listed_in(store) == ["a", "array", "array.vrt", "zarr.json"]


def test_deleting_an_array_without_files_makes_no_request_for_views(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", parts=["", ps.Part(".crc", size=4)], shape=(8,), chunks=(4,), dtype="uint8")
    array[...] = 1
    before = store.stats.calls["get"]
    del zarr.open_group(store)["a"]
    with_views = store.stats.calls["get"] - before
    make(store, "b", "vrt")
    before = store.stats.calls["get"]
    del zarr.open_group(store)["b"]
    assert store.stats.calls["get"] - before == with_views + 3


@pytest.mark.parametrize("path", ["group/a", "/group/a/", "group\\a", "group//a"])
def test_paths_are_those_of_zarr(path: str, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    make(store, "group/a", "vrt")
    assert ps.write_view(store, path, format="vrt") == "group/a.vrt"
