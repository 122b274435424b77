"""Adopt archives of many files, against VirtualiZarr's writer in one run: references, bytes, time, memory, reads.

python -m benchmarks.archive [--quick] [--only files|stream|groups]

- files: a million chunks in 500 HDF5 files, 1,000 of each of two variables in a file. Files and repository are on a
  local disk.
- stream: 100 million chunks, as manifests of 200 files that are appended one by one. VirtualiZarr writes two million
  of them: with one reference for each chunk, time and memory grow with their number (icechunk#401).
- groups: 50 HDF5 files of 20 variables, a group for each file. The repository is on a MinIO that is started for it.

Everything that is read is compared with the values of the files. Every contestant has processes of its own. The
contestants take turns, and medians of the repetitions are shown. References, objects and bytes are exact.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.archive import contestants, report, sources
from benchmarks.archive.contestants import Contestant
from benchmarks.archive.measuring import FILES_IN_COMMIT, Figures, Run
from benchmarks.archive.sources import Archive
from benchmarks.places import Bucket, Disk, Place, minio

FILES = Archive("files", files=500, variables=2, steps=10, rows=10, columns=10)
GROUPS = Archive("groups", files=50, variables=20, steps=1, rows=10, columns=10)
STREAM = Archive("stream", files=200, variables=1, steps=500, rows=25, columns=40)
SHORT_STREAM = Archive("stream", files=4, variables=1, steps=500, rows=25, columns=40)
# For a test of the benchmark.
QUICK_FILES = Archive("files", files=12, variables=2, steps=10, rows=10, columns=10)
QUICK_GROUPS = Archive("groups", files=3, variables=2, steps=1, rows=10, columns=10)
QUICK_STREAM = Archive("stream", files=6, variables=1, steps=10, rows=10, columns=10)
QUICK_SHORT_STREAM = Archive("stream", files=3, variables=1, steps=10, rows=10, columns=10)


def measure(
    archive: Archive, chosen: Sequence[Contestant], folder: Path, place: Place, repetitions: int
) -> dict[str, Figures]:
    """Return the figures of each contestant, by its name."""
    found: dict[str, list[Figures]] = {each.name: [] for each in chosen}
    for repetition in range(repetitions):
        # Every time from another one on: the machine has other things to do, and not always as many.
        shift = repetition % len(chosen)
        for each in (*chosen[shift:], *chosen[:shift]):
            where = place.below(f"{archive.kind}-{archive.files}-{each.folder}-{repetition}")
            start = time.monotonic()
            found[each.name].append(Run(archive, each, folder, where).measure())
            where.clear()
            text = f"{time.monotonic() - start:7.1f} s  {archive.kind}, {archive.chunks:,} chunks, {each.name}"
            print(text, file=sys.stderr, flush=True)
    return {name: medians(runs) for name, runs in found.items()}


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure of several repetitions."""
    return {name: statistics.median(each[name] for each in runs) for name in runs[0]}


def show(title: str, archive: Archive, rows: dict[str, Figures]) -> None:
    """Print a table."""
    print(f"\n{title}: {archive.chunks:,} chunks in {archive.files:,} files\n\n{report.table(rows)}\n", flush=True)


def run_files(archive: Archive, folder: Path, repetitions: int) -> list[report.Goal]:
    """Measure files that are joined."""
    sources.write_files(archive, folder / "files")
    chosen = [contestants.VIRTUALIZARR, contestants.SAME_DATASET, contestants.PARTS_STORE, contestants.ADOPT]
    rows = measure(archive, chosen, folder / "files", Disk(folder / "repositories"), repetitions)
    show("Joined files", archive, rows)
    theirs = rows[contestants.VIRTUALIZARR.name]
    return [
        goal
        for name, ours in rows.items()
        if name != contestants.VIRTUALIZARR.name
        for goal in report.goals_of_files(name, theirs, ours)
    ]


def run_stream(archive: Archive, short: Archive, folder: Path, repetitions: int) -> list[report.Goal]:
    """Measure manifests that are appended, with VirtualiZarr only the first ones."""
    place = Disk(folder / "repositories")
    for each in (short, archive):
        sources.write_file_to_read(each, folder / f"stream-{each.files}")
    chosen = [contestants.VIRTUALIZARR, contestants.SAME_DATASET]
    rows = measure(short, chosen, folder / f"stream-{short.files}", place, repetitions)
    show("Appended manifests", short, rows)
    (figures,) = measure(archive, chosen[1:], folder / f"stream-{archive.files}", place, 1).values()
    scale = archive.chunks / short.chunks
    theirs = rows[contestants.VIRTUALIZARR.name]
    show(f"Appended manifests, a commit after every {FILES_IN_COMMIT} files", archive, {"ps.to_icechunk": figures})
    references, seconds, nbytes = (
        scale * each for each in (theirs["references"], report.adoption_time(theirs), theirs["peak"])
    )
    grown = f"{references:,.0f} references, {seconds / 60:,.0f} minutes and {nbytes / report.GIB:,.0f} GiB"
    print(f"If VirtualiZarr's figures grew in proportion, they would be {grown}.\n")
    joined = report.goals_of_files("appended manifests", *rows.values())
    return [*joined, *report.goals_of_stream(archive.chunks, figures)]


def run_groups(archive: Archive, folder: Path, repetitions: int) -> list[report.Goal]:
    """Measure files that become groups of a repository on MinIO."""
    sources.write_files(archive, folder / "groups")
    chosen = [contestants.VIRTUALIZARR, contestants.IN_OUR_REPOSITORY, contestants.SAME_DATASET, contestants.ADOPT]
    with minio() as server:
        rows = measure(archive, chosen, folder / "groups", Bucket(server, "archive"), repetitions)
    show(f"A group for each file, {archive.variables} variables in each, on MinIO", archive, rows)
    return report.goals_of_groups(rows[contestants.VIRTUALIZARR.name], rows[contestants.ADOPT.name])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few chunks, to see whether it works")
    parser.add_argument("--only", choices=("files", "stream", "groups"), help="only one of the archives")
    parser.add_argument("--repetitions", type=int, default=3, help="how often everything but the longest is measured")
    options = parser.parse_args()
    goals: list[report.Goal] = []
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="bench_archive_"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if options.only in (None, "files"):
            goals += run_files(QUICK_FILES if options.quick else FILES, folder, options.repetitions)
        if options.only in (None, "stream"):
            streams = (QUICK_STREAM, QUICK_SHORT_STREAM) if options.quick else (STREAM, SHORT_STREAM)
            goals += run_stream(*streams, folder, options.repetitions)
        if options.only in (None, "groups"):
            goals += run_groups(QUICK_GROUPS if options.quick else GROUPS, folder, options.repetitions)
    print(*goals, sep="\n")


if __name__ == "__main__":
    main()
