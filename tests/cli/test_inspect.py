"""`parts-store inspect`: all arrays and groups as a tree."""

import json
from pathlib import Path

import pytest

import parts_store as ps
from tests.cli.places import DAMAGED, OK, break_document, call, fails

PARTS = [{"key_suffix": ""}, {"key_suffix": ".tail", "size": 2}]
A = {
    "path": "a",
    "kind": "array",
    "zarr_format": 3,
    "shape": [16],
    "dtype": "uint16",
    "chunks": [4],
    "shards": None,
    "parts": PARTS,
}


def test_inspect_sizes_counts_chunks_objects_and_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = json.loads(call(["inspect", folder, "--sizes", "--json"], capsys).out)["nodes"]
    stored = {each["path"]: each["stored"] for each in nodes if each["kind"] == "array"}
    paths = {path: [each for each in (folder / path / "c").rglob("*") if each.is_file()] for path in stored}
    assert {path: each["objects"] for path, each in stored.items()} == {path: len(paths[path]) for path in paths}
    sizes = {path: sum(each.stat().st_size for each in paths[path]) for path in paths}
    assert {path: each["bytes"] for path, each in stored.items()} == sizes
    assert {path: each["chunks"] for path, each in stored.items()} == {"a": 4, "images/img": 4, "plain": 2}


def test_inspect_json_describes_every_node(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(call(["inspect", folder, "--json"], capsys).out)
    assert (said["url"], said["store"], said["snapshot"]) == (str(folder), "objects", None)
    assert [each["path"] for each in said["nodes"]] == ["", "a", "images", "images/img", "plain"]
    assert said["nodes"][1] == A
    assert [each["path"] for each in said["nodes"] if each.get("parts")] == ["a", "images/img"]
    below = json.loads(call(["inspect", folder, "--json", "--prefix", "images"], capsys).out)
    assert [each["path"] for each in below["nodes"]] == ["images", "images/img"]
    one = json.loads(call(["inspect", folder / "a", "--json"], capsys).out)
    assert one["nodes"] == [{**A, "path": ""}]


def test_inspect_opens_a_version_of_a_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ps.PartsStore.from_session(ps.open_repository(repository).writable_session("main"))
    ps.create_array(store, "later", parts=[ps.Part("")], shape=(4,), chunks=(4,), dtype="uint8")
    store.session.commit("later")
    result = call(["inspect", repository, "--tag", "v1", "--sizes"], capsys)
    assert result.code == OK
    said = json.loads(call(["inspect", repository, "--json"], capsys).out)
    assert [each["path"] for each in said["nodes"]] == ["", "a", "images", "images/img", "later", "plain"]
    assert said["store"] == "icechunk"
    first = json.loads(call(["inspect", repository, "--tag", "v1", "--json"], capsys).out)
    again = json.loads(call(["inspect", repository, "--snapshot", first["snapshot"], "--json"], capsys).out)
    assert again == first


def test_inspect_shows_damaged_arrays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_document(folder)
    result = call(["inspect", folder], capsys)
    assert result.code == DAMAGED
    nodes = json.loads(call(["inspect", folder, "--json"], capsys).out)["nodes"]
    assert list(nodes[1]) == ["path", "kind", "problem"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (["--tag", "v2"], "tag: expected one of 'v1', found 'v2'"),
        (["--branch", "x"], "branch: expected one of 'dev', 'main', found 'x'"),
        (["--snapshot", "x"], "snapshot: expected the id of a snapshot of the repository, found 'x'"),
        (["--snapshot", "0" * 20], "snapshot: expected the id of a snapshot of the repository"),
        (["--branch", "main", "--tag", "v1"], "version: expected at most one of branch, tag and snapshot"),
    ],
)
def test_missing_version_is_named(
    repository: Path, version: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in fails(["inspect", repository, *version], capsys)
