"""Listings: the keys of a local disk are those of obstore."""

import os
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends import local_files
from parts_store.backends.local_disk import LocalBackend
from parts_store.errors import PartsStoreError
from tests.effort import examples

NAMES = ("a", "c", "0", "1.2", "zarr.json", ".zarray", "ü", "a b", "x#1", "x#", "#1", "x#1#2", "a%20", "a+b", "é@~")
# What is made at a path, besides a file.
SPECIAL = (
    "file",
    "file",
    "file",
    "file",
    "empty folder",
    "link to a file",
    "link to a folder",
    "link to nothing",
    "pipe",
)
TREES = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), st.sampled_from(SPECIAL), max_size=8
)
PLAIN_TREES = st.dictionaries(
    st.lists(st.sampled_from(("a", "c", "0", "1.2", "zarr.json", "ü")), min_size=1, max_size=4).map("/".join),
    st.sampled_from(("file", "empty folder")),
    max_size=12,
)


def make(root: Path, tree: dict[str, str], elsewhere: Path) -> None:
    """Make a tree of files, folders and links below a folder; leave out what is in the way of something else."""
    root.mkdir()
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "folder/inner").write_bytes(b"1")
    for name, kind in tree.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            match kind:
                case "file":
                    path.write_bytes(b"12")
                case "empty folder":
                    path.mkdir()
                case "link to a file":
                    path.symlink_to(elsewhere / "folder/inner")
                case "link to a folder":
                    path.symlink_to(elsewhere / "folder")
                case "link to nothing":
                    path.symlink_to(elsewhere / "nothing")
                case "pipe":
                    os.mkfifo(path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError, FileNotFoundError):
            continue


async def _keys(backend: LocalBackend, folder: str, page: int) -> list[str]:
    return [key async for keys in backend.list_keys(folder, page=page) for key in keys]


def outcome(call: Any) -> Any:
    """Return what a call returns, or that it fails."""
    try:
        return call()
    except (PartsStoreError, obstore.exceptions.BaseError, OSError, ValueError):
        return "fails"


def compare(root: Path) -> None:
    objects = LocalStore(root)
    backend = LocalBackend(objects)
    folders = [
        "",
        "a",
        "c",
        "a/c",
        "0/1.2",
        "zarr.json",
        "nothing",
        "a b",
        "x#1",
        *(path.name for path in root.iterdir()),
    ]
    for folder in folders:
        theirs = outcome(lambda: sorted(each["path"] for each in obstore.list(objects, folder or None).collect()))  # noqa: B023
        for page in (1, 1000):
            assert outcome(lambda: sorted(sync(_keys(backend, folder, page)))) == theirs, folder  # noqa: B023
        listed: Any = outcome(lambda: obstore.list_with_delimiter(objects, folder or None))  # noqa: B023
        ours: Any = outcome(lambda: sync(backend.list_folder(folder)))  # noqa: B023
        if listed == "fails":
            assert ours == "fails", folder
        else:
            assert sorted(ours[0]) == sorted(listed["common_prefixes"]), folder
            assert sorted(ours[1]) == sorted(each["path"] for each in listed["objects"]), folder


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(TREES)
def test_listing_has_the_keys_of_obstore_for_any_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, str]
) -> None:
    base = tmp_path_factory.mktemp("any")
    make(base / "root", tree, base / "elsewhere")
    compare(base / "root")


@settings(max_examples=examples(100))
@given(PLAIN_TREES)
def test_plain_tree_is_listed_without_obstore(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, str]) -> None:
    base = tmp_path_factory.mktemp("plain")
    make(base / "root", tree, base / "elsewhere")
    compare(base / "root")
    listed = [key for page in local_files.list_files(str(base / "root"), "", 3) for key in page]
    assert sorted(listed) == sorted(each["path"] for each in obstore.list(LocalStore(base / "root")).collect())


def test_link_found_after_the_first_page_repeats_no_key(tmp_path: Path) -> None:
    make(tmp_path / "root", {f"a/{number}": "file" for number in range(5)}, tmp_path / "elsewhere")
    (tmp_path / "root/a/b").mkdir()
    (tmp_path / "root/a/b/link").symlink_to(tmp_path / "elsewhere/folder")
    backend = LocalBackend(LocalStore(tmp_path / "root"))
    assert sorted(sync(_keys(backend, "a", 1))) == [*(f"a/{number}" for number in range(5)), "a/b/link/inner"]


def test_folder_that_vanishes_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "root", {"0": "file", "gone/1": "file"}, tmp_path / "elsewhere")
    pages = local_files.list_files(str(tmp_path / "root"), "", 1)
    assert next(pages) == ["0"]
    (tmp_path / "root/gone/1").unlink()
    (tmp_path / "root/gone").rmdir()
    assert list(pages) == []
    store = ps.PartsStore(LocalStore(tmp_path / "root"))
    assert not sync(store.is_empty(""))
