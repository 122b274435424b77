"""`parts-store verify`: the exit code and the output for every state of a store."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr
from distributed import Client

import parts_store as ps
from parts_store.maintenance.report import Finding, Problem, Report
from tests.cli import places
from tests.cli.places import (
    DAMAGED,
    LEFTOVERS,
    OK,
    TWO,
    WRONG,
    break_document,
    call,
    contents,
    fails,
    hide_document,
    leave_file,
    lose_anchor,
    lose_part,
    make_file,
    make_store,
)

type Spoil = Callable[[Path], None] | None

STATES: list[tuple[str, Spoil, int, str]] = [
    ("good", None, OK, "no problems found"),
    ("leftovers", leave_file, LEFTOVERS, "nothing is damaged; `repair` would remove leftovers"),
    ("orphans", lose_anchor, LEFTOVERS, "nothing is damaged; `repair` would remove leftovers"),
    ("incomplete", lose_part, DAMAGED, "damaged"),
    ("unreadable", hide_document, DAMAGED, "damaged"),
    ("not understood", break_document, DAMAGED, "damaged"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize(("state", "spoil", "code", "last"), STATES, ids=[each[0] for each in STATES])
def test_verify_shows_the_state_and_changes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    state: str,
    spoil: Spoil,
    code: int,
    last: str,
    as_json: bool,
) -> None:
    folder = make_store(tmp_path / "store", spoil)
    before = contents(folder)
    result = call(["verify", folder, *(["--json"] if as_json else [])], capsys)
    assert (result.code, result.err) == (code, "")
    assert contents(folder) == before
    quiet = call(["verify", folder, "--quiet"], capsys)
    assert (quiet.code, quiet.out, quiet.err) == (code, "", "")
    if not as_json:
        assert result.out.splitlines()[-1] == last
        return
    said = json.loads(result.out)
    assert said == ps.PartsStore.from_url(folder).verify().to_json()
    assert said["damaged"] == (code == DAMAGED)
    found = [] if state in ("good", "not understood") else [state]
    assert [each["problem"] for each in said["findings"]] == found


@pytest.mark.parametrize("version", [[], ["--branch", "dev"], ["--tag", "v1"]], ids=["main", "branch", "tag"])
def test_verify_opens_every_version_of_a_repository(
    repository: Path, capsys: pytest.CaptureFixture[str], version: list[str]
) -> None:
    result = call(["verify", repository, *version], capsys)
    assert (result.code, result.out) == (OK, "2 arrays checked, 8 chunks, 8 objects\nno problems found\n")


def test_verify_follows_references_in_virtual_folders_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, adopted = make_file(tmp_path / "t.nc"), tmp_path / "adopted"
    assert call(["adopt", file, adopted, "--shard-chunks", "4095"], capsys).code == OK
    said = fails(["verify", adopted, "--checksums"], capsys)
    assert f"virtual: expected the folders of the files that chunks refer to: '{tmp_path.as_uri()}/'" in said
    assert call(["verify", adopted, "--checksums", "--virtual", tmp_path], capsys).code == OK


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_finding_nothing_is_not_success(
    command: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = "no array with parts, shard files or references was found there"
    assert f"{nothing}, nothing was checked" in fails([command, empty], capsys)
    for prefix in ("b", "plain"):
        said = fails([command, folder, "--prefix", prefix], capsys)
        assert f"{nothing} below '{prefix}', nothing was checked" in said
    places.remove_parts_arrays(folder)
    assert nothing in fails([command, folder], capsys)
    assert call([command, make_store(tmp_path / "again"), "--prefix", "a/c"], capsys).code == OK


def test_verify_compares_checksums_only_with_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    codecs = [zarr.codecs.Crc32cCodec()]
    ps.create_array(store, "a", parts=TWO, shape=(4,), chunks=(4,), dtype="uint8", compressors=codecs)[...] = 7
    (tmp_path / "a/c/0").write_bytes(b"\0" * 6)
    assert call(["verify", tmp_path], capsys).code == OK
    result = call(["verify", tmp_path, "--checksums"], capsys)
    assert result.code == DAMAGED
    assert "checksum: a/c/0: the bytes do not match" in result.out


def test_finding_with_control_characters_is_one_line() -> None:
    finding = Finding(Problem.INCOMPLETE, "a\x1b[2J\nb/c/0", ("a\x1b[2J\nb/c/0.tail",), "no such object")
    lines = str(Report((finding,), 1, 1, 1)).splitlines()
    assert lines[1] == rf"incomplete: a\x1b[2J\nb/c/0: no such object: a\x1b[2J\nb/c/0.tail -> {finding.advice}"
    assert len(lines) == 3


def test_verify_on_a_dask_cluster(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_part(folder)
    with Client(processes=False, dashboard_address=":0") as client:
        address = client.scheduler.address
        assert call(["verify", folder, "--dask", address], capsys).code == DAMAGED
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = fails(["verify", folder, "--dask", "tcp://127.0.0.1:1"], capsys)
    assert "pip install 'parts_store[dask]'" in said


@pytest.mark.parametrize("options", [[], ["--decode"]])
def test_rectilinear_grids_are_no_damage(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            ps.PartsStore.from_url(tmp_path / "s"), name="a", shape=(9,), chunks=[[2, 4, 3]], dtype="u1"
        )
        array[:] = 1
    result = call(["verify", tmp_path / "s", *options], capsys)
    assert "not understood" not in result.out + result.err
    assert result.code == (OK if options else WRONG)
