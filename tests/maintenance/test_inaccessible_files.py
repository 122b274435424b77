"""Files of a local disk that cannot be read: `verify` reports them and goes on, and `repair` says what is wrong."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

import parts_store as ps
from parts_store.maintenance.report import Problem
from tests.maintenance.stores import create

NOBODY = 65534
LOST = "a/c/2.tail"
IMAGE: dict[str, Any] = {"shape": (128, 64), "chunks": (32, 32), "shards": (64, 64), "dtype": "uint16"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store whose chunk `a/c/2` has lost a part."""
    folder = tmp_path / "objects"
    create(ps.PartsStore.from_url(folder))
    (folder / LOST).unlink()
    return folder


def links_and_files(folder: Path) -> list[tuple[str, bytes | str]]:
    found = (each for each in folder.rglob("*") if each.is_symlink() or each.is_file())
    return sorted((str(each), str(each.readlink()) if each.is_symlink() else each.read_bytes()) for each in found)


@pytest.mark.parametrize("options", [{}, {"drop_incomplete": True, "min_age": 0}], ids=["verify", "repair"])
@pytest.mark.parametrize("name", ["zarr.json", "a/c/0", "a/c/0.tail", "a/c/7", "other/zarr.json", "notes"])
def test_link_without_a_target_is_a_finding_and_does_not_hide_others(
    folder: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    link = folder / name
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "nothing")
    store = ps.PartsStore.from_url(folder)
    before = links_and_files(folder)
    report = store.repair(**options) if options else store.verify()
    assert {(each.problem, each.keys) for each in report.findings} == {
        (Problem.UNREADABLE, (name,)),
        (Problem.INCOMPLETE, (LOST,)),
    }
    (finding,) = (each for each in report.findings if each.problem is Problem.UNREADABLE)
    assert finding.detail.endswith("a symbolic link without a target: restore the target, or remove the link")
    assert report.is_damaged
    # Only the chunk that has lost a part is removed, and only on request.
    kept = [each for each in before if "a/c/2" not in each[0]] if options else before
    assert links_and_files(folder) == kept


@pytest.mark.parametrize("name", ["a", "a/c", "a/zarr.json"])
def test_link_in_place_of_an_array_or_its_chunks_is_damage(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(tmp_path / "nothing")
    for prefix in ("", "a"):
        report = ps.PartsStore.from_url(folder).verify(prefix)
        assert [(each.problem, each.keys) for each in report.findings] == [(Problem.UNREADABLE, (name,))]
        assert report.is_damaged
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "moved")
    assert [each.keys for each in ps.PartsStore.from_url(folder).verify().findings] == [(LOST,)]


def test_file_that_another_program_changed_is_not_called_in_use(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "images.zarr")
    ps.create_array(store, "image", shard_file="tiff", **IMAGE)[:] = 7
    file = tmp_path / "images.zarr/image/c/0/0"
    tifffile.imwrite(file, np.ones((64, 64), "uint16"))
    changed = file.read_bytes()
    report = store.repair(min_age=0, drop_incomplete=True)
    (finding,) = report.findings
    assert (finding.problem, finding.is_repaired) == (Problem.UNREADABLE, False)
    expected = (
        "changed by another program; not repaired: all parts are there; write the whole chunk again, or delete it"
    )
    assert finding.detail == expected
    # Other programs can still open the file, so it is kept.
    assert file.read_bytes() == changed


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that another user than root can reach; that of pytest is private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Give up the privileges of root for a while: root may read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def give_away(folder: Path) -> None:
    if os.geteuid() == 0:
        for each in (folder, *folder.rglob("*")):
            os.chown(each, NOBODY, -1)


@pytest.mark.parametrize("name", ["c/0", "c/0.tail", "c/0.none"])
@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"concurrency": "exclusive"}], ids=str)
def test_every_part_without_read_permission_is_a_finding(
    shared_folder: Path, name: str, options: dict[str, Any]
) -> None:
    parts = [ps.Part(""), ps.Part(".tail", size=3), ps.Part(".none", size=0)]
    array = ps.create_array(ps.PartsStore.from_url(shared_folder), "a", parts=parts, shape=8, chunks=4, dtype="i4")
    array[:] = 7
    give_away(shared_folder)
    (shared_folder / "a" / name).chmod(0)
    with without_privileges():
        store = ps.PartsStore.from_url(shared_folder, **options)
        report = store.verify()
        with pytest.raises(ps.errors.StorageError, match="Permission denied"):
            ps.open_array(store, "a")[0]
    assert [(each.problem, each.chunk_key, each.keys) for each in report.findings] == [
        (Problem.UNREADABLE, "a/c/0", (f"a/{name}",))
    ]
    assert report.is_damaged


def test_file_without_permission_is_kept_by_repair(shared_folder: Path) -> None:
    create(ps.PartsStore.from_url(shared_folder))
    give_away(shared_folder)
    for name in ("a/c/1", "a/c/2.tail"):
        (shared_folder / name).chmod(0)
    before = links_and_files(shared_folder)
    with without_privileges():
        report = ps.PartsStore.from_url(shared_folder).repair(min_age=0, drop_incomplete=True)
    assert {(each.problem, each.keys, each.is_repaired) for each in report.findings} == {
        (Problem.UNREADABLE, ("a/c/1",), False),
        (Problem.UNREADABLE, ("a/c/2.tail",), False),
    }
    assert links_and_files(shared_folder) == before


def test_document_without_permission_does_not_hide_other_arrays(shared_folder: Path) -> None:
    store = ps.PartsStore.from_url(shared_folder)
    create(store)
    ps.create_array(store, "b", parts=[ps.Part("", size=4), ".x"], shape=4, chunks=4, dtype="i4")
    give_away(shared_folder)
    (shared_folder / "b/zarr.json").chmod(0)
    (shared_folder / LOST).unlink()
    with without_privileges():
        report = ps.PartsStore.from_url(shared_folder).verify()
    assert {(each.problem, each.keys) for each in report.findings} == {
        (Problem.UNREADABLE, ("b/zarr.json",)),
        (Problem.INCOMPLETE, (LOST,)),
    }


def test_repair_says_that_a_permission_is_missing_and_repairs_the_rest(shared_folder: Path) -> None:
    create(ps.PartsStore.from_url(shared_folder))
    give_away(shared_folder)
    for name in ("0.tail", "1.tail"):
        (shared_folder / "a/c" / name).unlink()
    (shared_folder / "a/c").chmod(0o555)
    with without_privileges():
        report = ps.PartsStore.from_url(shared_folder).repair(min_age=0, drop_incomplete=True)
    assert [each.is_repaired for each in report.findings] == [False, False]
    assert all(each.detail.endswith("PermissionError: Permission denied") for each in report.findings)
    (shared_folder / "a/c").chmod(0o755)
    with without_privileges():
        report = ps.PartsStore.from_url(shared_folder).repair(min_age=0, drop_incomplete=True)
    assert [each.is_repaired for each in report.findings] == [True, True]
