"""`parts-store repair` of folders and repositories."""

import json
from collections.abc import Callable
from pathlib import Path

import icechunk
import pytest
import zarr

import parts_store as ps
from tests.cli.places import (
    DAMAGED,
    LEFTOVERS,
    OK,
    TWO,
    break_document,
    call,
    contents,
    fails,
    leave_file,
    lose_anchor,
    lose_part,
    make_store,
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("spoil", "options", "code"),
    [
        (None, [], OK),
        (leave_file, [], OK),
        (lose_anchor, [], OK),
        (lose_part, [], DAMAGED),
        (lose_part, ["--drop-incomplete"], OK),
        (lose_part, ["--retag"], DAMAGED),
        (break_document, ["--drop-incomplete"], DAMAGED),
        # Without a lock that shows dead writers, young objects are kept.
        (leave_file, ["--concurrency", "exclusive"], LEFTOVERS),
        (leave_file, ["--concurrency", "exclusive", "--min-age", "0"], OK),
        (leave_file, ["--concurrency", "exclusive", "--min-age", "10000000d"], LEFTOVERS),
        (lose_part, ["--concurrency", "exclusive", "--drop-incomplete", "--min-age=1h"], DAMAGED),
        (leave_file, ["--prefix", "a"], OK),
        (lose_anchor, ["--durable"], OK),
    ],
)
def test_repair_repairs_and_verify_confirms_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None] | None,
    options: list[str],
    code: int,
) -> None:
    folder = make_store(tmp_path / "store", spoil)
    result = call(["repair", folder, "--json", *options], capsys)
    assert result.code == code
    assert all(each["repaired"] == (code == OK) for each in json.loads(result.out)["findings"])
    assert call(["verify", folder], capsys).code == code


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """Return a repository with nodes of parts whose array plain Icechunk has deleted."""
    repository = ps.open_repository(tmp_path / "stray")
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session).with_parts({"a": TWO}, split=True)
    zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None)[...] = 7
    whole = ps.create_array(store, "whole", parts=TWO, shape=(4,), chunks=(4,), dtype="uint8", compressors=None)
    whole[...] = 7
    session.commit("arrays")
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None, overwrite=True)
    session.commit("another array")
    return tmp_path / "stray"


def test_repair_commits_to_a_branch_of_a_repository(stray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(["verify", stray], capsys)
    assert found.code == LEFTOVERS
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(stray)))
    repository.create_branch("dev", repository.lookup_branch("main"))
    before = [each.id for each in repository.ancestry(branch="main")]
    assert call(["repair", stray, "--branch", "dev", "--message", "stray nodes"], capsys).code == OK
    assert [each.id for each in repository.ancestry(branch="main")] == before
    assert [each.message for each in repository.ancestry(branch="dev")][:2] == ["stray nodes", "another array"]
    assert call(["verify", stray, "--branch", "dev"], capsys).code == OK
    assert call(["verify", stray], capsys).code == LEFTOVERS


def test_repair_without_changes_does_not_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(repository)
    assert call(["repair", repository], capsys).code == OK
    assert contents(repository) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["", "h", "-1h", "1w", "1 h", "1h1", "1e3", "inf", "nan", "99999999999d", "\u0661h"])
def test_repair_refuses_a_wrong_age(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(["repair", folder, f"--min-age={text}"], capsys)
    assert "--min-age: expected a number with s, m, h or d" in said
