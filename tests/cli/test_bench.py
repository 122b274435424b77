"""`parts-store bench`."""

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

from tests.cli.places import CRASHED, INTERRUPTED, OK, call, contents, fails

SMALL = ["--side", "32", "--chunk", "4", "--shard", "16", "--reads", "2", "--repetitions", "1"]
STORES = ["zarr's own store", "PartsStore"]
WORK = ["write", "read", "random read"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shard", ["16", "0"])
def test_bench_measures_every_store_and_work(folder: Path, shard: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(["bench", folder, *SMALL, "--shard", shard, "--json"], capsys)
    assert (result.code, result.err) == (OK, "")
    said = json.loads(result.out)
    assert (said["side"], said["chunk"], said["shard"]) == (32, 4, int(shard))
    assert [(each["store"], each["work"]) for each in said["results"]] == [(s, w) for s in STORES for w in WORK]
    base = {each["work"]: each["seconds"] for each in said["results"] if each["store"] == STORES[0]}
    for each in said["results"]:
        assert each["seconds"] > 0
        assert each["speed"] == pytest.approx(base[each["work"]] / each["seconds"])


def test_bench_prints_a_line_for_each_store_and_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(["bench", folder, *SMALL], capsys).out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{store}, {work}" for store in STORES for work in WORK]
    assert lines[0].endswith(" ms, 1.00 times zarr's own store")
    assert call(["bench", folder, *SMALL, "--quiet"], capsys).out == ""


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("what", ["array", "group", "file", "nothing"])
def test_bench_leaves_nothing_behind_and_hides_nothing(
    zarr_format: Any, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "array":
        zarr.create_array(tmp_path, shape=4, dtype="i4", zarr_format=zarr_format)
    elif what == "group":
        zarr.open_group(tmp_path, mode="w", zarr_format=zarr_format)
    elif what == "file":
        (tmp_path / "notes.txt").touch()
    before, paths = contents(tmp_path), sorted(tmp_path.rglob("*"))
    assert call(["bench", tmp_path, *SMALL], capsys).code == OK
    assert contents(tmp_path) == before
    assert sorted(tmp_path.rglob("*")) == paths


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("stopped"), CRASHED), (KeyboardInterrupt(), INTERRUPTED)])
def test_bench_deletes_its_arrays_after_an_error(
    error: BaseException,
    code: int,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*args: object, **arguments: object) -> None:
        written = [path for path in folder.glob("parts-store-bench-*/*/c/**/*") if path.is_file()]
        assert written
        raise error

    before = contents(folder)
    monkeypatch.setattr("numpy.testing.assert_array_equal", stop)
    fails(["bench", folder, *SMALL], capsys, code)
    assert contents(folder) == before


def test_bench_refuses_an_icechunk_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(repository)
    said = fails(["bench", repository, *SMALL], capsys)
    assert "url: expected a store of objects, found an Icechunk repository" in said
    assert contents(repository) == before
