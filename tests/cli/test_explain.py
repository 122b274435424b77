"""`parts-store explain`: the requests of a read."""

import json
from pathlib import Path

import pytest

from tests.cli.places import DAMAGED, OK, break_document, call, fails


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("selection", "chunks"),
    [
        (None, [0, 1, 2, 3]),
        ("...", [0, 1, 2, 3]),
        ("5", [1]),
        ("3:5", [0, 1]),
        (" 12 : ", [3]),
        ("::8", [0, 2]),
        (":2, ...", [0]),
    ],
)
def test_explain_shows_the_requests_of_a_read(
    folder: Path, capsys: pytest.CaptureFixture[str], selection: str | None, chunks: list[int]
) -> None:
    arguments: list[str | Path] = ["explain", folder, "a", *([] if selection is None else [selection])]
    result = call([*arguments, "--json"], capsys)
    assert result.code == OK
    said = json.loads(result.out)
    keys = {each["key"] for each in said if each["kind"] == "get" and each["why"] == "data"}
    assert keys == {f"a/c/{chunk}{suffix}" for chunk in chunks for suffix in ("", ".tail")}
    assert all(set(each) == {"kind", "key", "start", "stop", "why"} for each in said)
    lines = [line.split()[:2] for line in call(arguments, capsys).out.splitlines()]
    # Chunks are read at the same time, in any order. Journals are one line.
    journals = [each for each in said if ".parts-txn" in each["key"]]
    of_journals = [["GET", f"{len(journals)}"] if len(journals) > 1 else ["GET", journals[0]["key"]]]
    others = sorted([each["kind"].upper(), each["key"]] for each in said if each not in journals)
    assert lines[-1:] == of_journals
    assert sorted(lines[:-1]) == others


def test_explain_opens_a_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ([], ["--tag", "v1"]):
        result = call(["explain", repository, "a", "0", *version], capsys)
        assert (result.code, result.out) == (OK, "GET  a/c/0 (data)\n")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("path", "selection", "expected"),
    [
        ("b", "0", "PATH: expected the path of an array, found nothing at 'b'"),
        ("", "0", "PATH: expected the path of an array, found a group at ''"),
        ("images", "0", "found a group at 'images'"),
        ("a", "99", "SELECTION: expected a selection inside the array, found '99'"),
        ("a", "1,2,3", "SELECTION: expected a selection inside the array, found '1,2,3'"),
        ("a", "x", "SELECTION: expected integers, slices or '...', separated by commas, found 'x'"),
        ("a", "1:2:3:4", "SELECTION: expected integers, slices"),
        ("a", "1,", "SELECTION: expected integers, slices"),
        ("a", "", "SELECTION: expected integers, slices"),
    ],
)
def test_explain_refuses_a_wrong_path_or_selection(
    folder: Path, path: str, selection: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in fails(["explain", folder, path, selection], capsys)


def test_explain_of_a_damaged_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_document(folder)
    assert "array 'a': the metadata cannot be read" in fails(["explain", folder, "a"], capsys, DAMAGED)
