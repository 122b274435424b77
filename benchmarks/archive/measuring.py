"""Measure one contestant with one archive: the times, what is stored, and the most memory that was used.

Writing and reading have a process each. Called with a description of the case on standard input, this module is that
process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import icechunk
import numpy as np
import obstore
import zarr

from benchmarks.archive import sources
from benchmarks.archive.contestants import CONTESTANTS, DIM, Contestant
from benchmarks.archive.sources import Archive
from benchmarks.places import Place, place_from_json, place_to_json

# A session keeps in memory what was written to it. Files of a stream are committed after so many files.
FILES_IN_COMMIT = 20
READS = 3

type Task = Literal["write", "read"]
type Figures = dict[str, float]
"""Seconds, bytes and counts by the names of the columns."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant with one archive."""

    archive: Archive
    contestant: Contestant
    # The folder of the files, and the place of the repository.
    folder: Path
    place: Place

    def measure(self) -> Figures:
        """Return all figures, of one process that writes and one that reads."""
        return self._in_process("write") | self._in_process("read")

    def _in_process(self, task: Task) -> Figures:
        case = {
            "task": task,
            "archive": asdict(self.archive),
            "contestant": self.contestant.name,
            "folder": str(self.folder),
            "place": place_to_json(self.place),
        }
        # The credentials of the server are in it, and other users can see arguments.
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.archive.measuring"],
            input=json.dumps(case),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: Figures = json.loads(ended.stdout)
        return found

    def write(self) -> Figures:
        """Write the archive to a new repository."""
        repository = self.contestant.open(self.place, self.folder)
        seconds: Figures = dict.fromkeys(("parse", "write", "commit", "cpu", "commit cpu"), 0.0)
        if self.archive.kind == "stream":
            self._write_stream(repository, seconds)
        else:
            self._write_files(repository, seconds)
        snapshot = repository.lookup_branch("main")
        sizes = [each["size"] for batch in obstore.list(self.place.objects()) for each in batch]
        references = sum(each.num_chunk_refs for each in repository.list_manifest_files(snapshot))
        return seconds | {
            "references": references,
            "objects": len(sizes),
            "nbytes": sum(sizes),
            "peak": peak_memory(),
        }

    def _write_stream(self, repository: icechunk.Repository, seconds: Figures) -> None:
        """Append file by file, with a commit after some of them."""
        session = repository.writable_session("main")
        for number in range(self.archive.files):
            with timed(seconds, "parse"):
                source = sources.manifest_of(self.archive, self.folder, number)
            with timed(seconds, "write"):
                self.contestant.write(source, session, "", DIM if number else None)
            if (number + 1) % FILES_IN_COMMIT == 0 or number + 1 == self.archive.files:
                with timed(seconds, "commit"):
                    session.commit("appended")
                session = repository.writable_session("main")

    def _write_files(self, repository: icechunk.Repository, seconds: Figures) -> None:
        """Join all files in the root group, or write a group for each file; then commit."""
        session = repository.writable_session("main")
        paths = [sources.path_of(self.folder, number) for number in range(self.archive.files)]
        joined = self.archive.kind == "files"
        for group, files in {"": paths}.items() if joined else {path.stem: [path] for path in paths}.items():
            with timed(seconds, "parse"):
                source = self.contestant.parse(files)
            with timed(seconds, "write"):
                self.contestant.write(source, session, group, None)
        with timed(seconds, "commit"):
            session.commit("adopted")

    def read(self) -> Figures:
        """Open the repository and read, each time anew; return the shortest times."""
        best: Figures = {}
        number = self.archive.file_to_read
        group = f"{sources.path_of(self.folder, number).stem}/" if self.archive.kind == "groups" else ""
        first = 0 if group else number * self.archive.steps
        for _ in range(READS):
            for name, (steps, *others) in self.archive.selections().items():
                seconds: Figures = {"open": 0.0, name: 0.0, "cpu": 0.0}
                with timed(seconds, "open"):
                    session = self.contestant.open(self.place, self.folder).readonly_session("main")
                    array: Any = zarr.open_array(
                        self.contestant.view(session), path=f"{group}{sources.VARIABLE}", mode="r"
                    )
                with timed(seconds, name):
                    found = array[(slice(steps.start + first, steps.stop + first), *others)]
                np.testing.assert_array_equal(found, self._expected((steps, *others)))
                best |= {key: min(seconds[key], best.get(key, seconds[key])) for key in ("open", name)}
        return best | {"peak of reading": peak_memory()}

    def _expected(self, selection: Any) -> Any:
        if self.archive.kind == "stream":
            return sources.values_of(self.archive, self.archive.file_to_read, selection)
        return sources.read_file(self.folder, self.archive.file_to_read, selection)


@contextmanager
def timed(seconds: Figures, name: str) -> Iterator[None]:
    """Add the seconds of the block, and those of the processor, which depend less on what else the machine does."""
    start, busy = time.perf_counter(), time.process_time()
    yield
    seconds[name] += time.perf_counter() - start
    busy = time.process_time() - busy
    seconds["cpu"] += busy
    if name == "commit":
        seconds["commit cpu"] += busy


def peak_memory() -> int:
    """Return the most bytes of memory that this process had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(value) * 1024


def main() -> None:
    """Carry out one task, and print its figures."""
    icechunk.set_logs_filter("error")
    case = json.load(sys.stdin)
    run = Run(
        Archive(**case["archive"]),
        CONTESTANTS[case["contestant"]],
        Path(case["folder"]),
        place_from_json(case["place"]),
    )
    json.dump(run.write() if case["task"] == "write" else run.read(), sys.stdout)


if __name__ == "__main__":
    main()
