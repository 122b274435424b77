"""`parts-store copy`: between folders and repositories, in all four directions."""

import json
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.store.repositories import open_store
from tests.cli.places import DAMAGED, OK, call, contents, fails, lose_part, make_file


def values(url: Path, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return np.asarray(zarr.open_array(open_store(url), path=path, mode="r")[...])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", ["store", "repository"])
@pytest.mark.parametrize("is_repository", [False, True], ids=["to objects", "to a repository"])
def test_copy_copies_between_objects_and_repositories(
    source: str,
    is_repository: bool,
    folder: Path,
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    origin, target = {"store": folder, "repository": repository}[source], tmp_path / "copy"
    options = ["--create-repository", "--message", "copied"] if is_repository else []
    result = call(["copy", origin, target, *options], capsys)
    # Two chunks of the plain array, four of each other.
    assert (result.code, result.out) == (OK, "copied 2 groups, 3 arrays, 10 chunks, 5,172 bytes\n")
    assert values(target, "a").tolist() == list(range(1, 17))
    assert open_store(target).parts_of("a") == open_store(origin).parts_of("a")
    assert call(["verify", target], capsys).code == OK
    if is_repository:
        history = icechunk.Repository.open(icechunk.local_filesystem_storage(str(target))).ancestry(branch="main")
        assert next(iter(history)).message == "copied"


def test_copy_is_durable_except_in_a_local_repository(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["copy", folder, tmp_path / "copy", "--durable"], capsys).code == OK
    assert values(tmp_path / "copy", "a").tolist() == list(range(1, 17))
    result = call(["copy", folder, tmp_path / "repository", "--create-repository", "--durable"], capsys)
    assert result.code == 2
    assert "durable: expected False, since Icechunk does not synchronise" in result.err
    assert not (tmp_path / "repository").exists()


def test_copy_copies_a_version_and_a_path(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ps.PartsStore.from_session(ps.open_repository(repository).writable_session("main"))
    zarr.open_array(store, path="a")[...] = 0
    store.session.commit("zeros")
    arguments: list[str | Path] = [
        "copy",
        repository,
        tmp_path / "copy",
        "--tag",
        "v1",
        "--path",
        "a",
        "--to",
        "b/c",
        "--json",
    ]
    assert json.loads(call(arguments, capsys).out) == {"groups": 0, "arrays": 1, "chunks": 4, "nbytes": 32}
    assert values(tmp_path / "copy", "b/c").tolist() == list(range(1, 17))


def test_copy_commits_to_the_named_branch(folder: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["copy", folder, repository, "--to", "again", "--to-branch", "dev", "-q"], capsys).code == OK
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repository)))
    assert next(iter(opened.ancestry(branch="dev"))).message == "parts-store copy"
    assert next(iter(opened.ancestry(branch="main"))).message == "arrays"


def test_copy_overwrites_only_with_the_option(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "copy"
    assert call(["copy", folder, target], capsys).code == OK
    before = contents(target)
    assert "expected a path with nothing there" in fails(["copy", folder, target], capsys)
    assert contents(target) == before
    assert call(["copy", folder, target, "--overwrite", "--no-verify"], capsys).code == OK


def test_copy_reads_adopted_files_in_virtual_folders_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, adopted = make_file(tmp_path / "t.nc"), tmp_path / "adopted"
    assert call(["adopt", file, adopted], capsys).code == OK
    assert "virtual: expected the folders" in fails(["copy", adopted, tmp_path / "copy"], capsys)
    assert call(["copy", adopted, tmp_path / "copy", "--virtual", tmp_path.as_uri()], capsys).code == OK
    assert values(tmp_path / "copy", "t").tolist() == list(range(100))


def test_copy_of_a_damaged_array_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_part(folder)
    said = fails(["copy", folder, tmp_path / "copy"], capsys, DAMAGED)
    assert "chunk 'a/c/0' is incomplete: no object at 'a/c/0.tail'" in said
    assert contents(tmp_path / "copy") == {}


def test_copy_options_apply_to_the_remote_store_only(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["copy", folder, tmp_path / "copy", "-o", "region=eu-west-1"], capsys).code == OK
    said = fails(["copy", folder, tmp_path / "other", "--to-option", "region=eu-west-1"], capsys)
    assert "found region" in said
