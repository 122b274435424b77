"""Step 3: eight processes write one shard at the same time, with this store and with zarr's own."""

import subprocess
import time
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray

from parts_store.examples.demo.figures import png, writers_image
from parts_store.examples.demo.outcome import Figure, Outcome, Table
from parts_store.examples.demo.processes import started
from parts_store.examples.demo.worker import ROWS, WRITERS, stores, write_rows

_EXPECTED = np.arange(ROWS) % WRITERS + 1


def show_eight_writers(folder: Path) -> Outcome:
    """Let eight processes write their rows of one shard, and count the rows that are lost."""
    place = folder / "shared"
    opened = stores(place)
    for store in opened.values():
        zarr.create_array(store, name="shared", shape=(ROWS, 256), chunks=(1, 256), shards=(ROWS, 256), dtype="uint8")
    with started([["write-rows", str(place), str(number)] for number in range(WRITERS)]) as writers:
        _wait_for_all(writers)
        seconds = {name: _write_at_once(writers) for name in opened}
    rows = {
        name: _rows(np.asarray(zarr.open_array(store, path="shared", mode="r")[:])) for name, store in opened.items()
    }
    lost = {name: int(np.count_nonzero(found != _EXPECTED)) for name, found in rows.items()}
    ours, theirs = lost["PartsStore"], lost["LocalStore"]
    luck = "" if theirs else " zarr's own store lost no update this time, which was luck."
    return Outcome(
        result=f"{ROWS} updates by {WRITERS} processes: PartsStore lost {ours}, "
        f"zarr's LocalStore lost {theirs}{' (by luck)' if not theirs else ''}",
        is_right=ours == 0,
        text=f"{WRITERS} processes write different rows of one shard at the same time, {ROWS // WRITERS} rows each. "
        "Each write reads the shard, changes a row and writes the shard back. PartsStore notices that another process "
        "has written in between, and merges both changes. zarr's own store replaces the change of the other process."
        f"{luck} The code of the writers is the same for both stores.",
        code=(stores, write_rows),
        figures=tuple(
            Figure(
                png(writers_image(found), f"rows after {name}", side=256),
                f"{name}: the colour of a row is its writer, lost rows are black",
            )
            for name, found in rows.items()
        ),
        table=Table(
            ("store", "updates", "lost", "seconds"),
            tuple((name, f"{ROWS}", f"{lost[name]}", f"{seconds[name]:.2f}") for name in opened),
        ),
    )


def _rows(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the writer of each row, and raise if a row is not of one writer."""
    if not (values == values[:, :1]).all():
        raise RuntimeError("a row has values of two writers")
    return values[:, 0]


def _write_at_once(writers: list[subprocess.Popen[str]]) -> float:
    """Let all writers write, and return after how many seconds the last one was ready."""
    start = time.perf_counter()
    for writer in writers:
        if writer.stdin is not None:
            writer.stdin.write("go\n")
            writer.stdin.flush()
    _wait_for_all(writers)
    return time.perf_counter() - start


def _wait_for_all(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        if writer.stdout is None or writer.stdout.readline() != "ready\n":
            raise RuntimeError("a writer has ended before it was done")
