"""The benchmark of archives: every contestant writes all chunks and reads the values of the files."""

from dataclasses import replace
from pathlib import Path

import icechunk
import pytest

from benchmarks.archive import report, sources
from benchmarks.archive.contestants import CONTESTANTS, SAME_DATASET, VIRTUALIZARR
from benchmarks.archive.measuring import Figures, Run
from benchmarks.archive.sources import Archive
from benchmarks.places import Disk

# 64 chunks of each variable in a file, so that shards are worth their index.
FILES = Archive("files", files=3, variables=2, steps=4, rows=4, columns=4)
STREAM = Archive("stream", files=3, variables=1, steps=4, rows=4, columns=4)
THEIRS: Figures = {
    **dict.fromkeys(("parse", "write", "commit", "cpu", "commit cpu", "open", "chunk", "slab"), 1.0),
    **dict.fromkeys(("references", "objects", "nbytes", "peak", "peak of reading"), 1000),
}

icechunk.set_logs_filter("error")


# Manifests are written as they are, so that those who differ in how they parse files are the same.
CASES = [
    *((FILES, name) for name in CONTESTANTS),
    *((replace(FILES, kind="groups"), name) for name in CONTESTANTS),
    *((STREAM, each.name) for each in (VIRTUALIZARR, SAME_DATASET)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("archive", "name"), CASES, ids=lambda each: getattr(each, "kind", each))
def test_contestant_writes_all_chunks_and_reads_the_values(archive: Archive, name: str, tmp_path: Path) -> None:
    contestant = CONTESTANTS[name]
    if archive.kind == "stream":
        sources.write_file_to_read(archive, tmp_path / "files")
    else:
        sources.write_files(archive, tmp_path / "files")
    run = Run(archive, contestant, tmp_path / "files", Disk(tmp_path / "repository"))
    # Values that are read are compared with those of the files.
    figures = run.write() | run.read()
    assert set(figures) == set(THEIRS)
    # Coordinates have references, too.
    is_plain = contestant.write is VIRTUALIZARR.write
    assert (figures["references"] >= archive.chunks) == is_plain


def test_goal_says_whether_it_holds() -> None:
    ours = {**THEIRS, "references": 20, "commit": 0.1}
    references, commit, time, cpu = report.goals_of_files("files", THEIRS, ours)
    assert [each.holds for each in (references, commit, time, cpu)] == [False, True, True, True]
    assert str(references) == "MISSED       50.00 (at least 100.00)  files: times fewer references"
    (memory,) = report.goals_of_stream(100, {**THEIRS, "peak": 4 << 30})
    assert str(memory) == "holds         4.00 (at most 4.00)  100 chunks: GiB of memory"
    objects, nbytes, *_ = report.goals_of_groups(THEIRS, {**THEIRS, "objects": 1001})
    assert (objects.holds, nbytes.holds) == (False, True)
