"""The steps with other processes: writers that are killed, and writers that write one shard at the same time.

This module is also the program of these processes: `python -m parts_store.examples.demo.writers`.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import LocalStore

import parts_store as ps
from parts_store.examples.demo.page import StepResult
from parts_store.format.keys import PROTOCOL_FOLDER

_ROWS, _WRITERS = 64, 8
# The colours of rows without a writer, and of the rows of eight writers.
_COLOURS = np.array(
    [
        *[(20, 20, 20), (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40)],
        *[(148, 103, 189), (140, 86, 75), (227, 119, 194), (188, 189, 34)],
    ],
    dtype=np.uint8,
)


def invert_shard(folder: Path) -> None:
    """Overwrite a shard with its negative. This process is killed before it is done."""
    image = ps.open_array(ps.PartsStore.from_url(folder), "image", mode="r+")
    image[:512, :512] = 255 - np.asarray(image[:512, :512])


def read_shard(folder: Path) -> NDArray[np.uint8]:
    """Read the shard as any reader does."""
    store = ps.PartsStore.from_url(folder, read_only=True)
    return np.asarray(ps.open_array(store, "image")[:512, :512])


def verify_and_repair(folder: Path) -> list[ps.Report]:
    """Find what the dead writer has left, remove it, and look again."""
    store = ps.PartsStore.from_url(folder)
    return [store.verify(), store.repair(), store.verify()]


def show_killed_writers(folder: Path) -> StepResult:
    """Kill a writer before its commit and another one after it, and look at the image of step 1 after each of them."""
    place = folder / "images.zarr"
    before = read_shard(place)
    is_right = True
    figures, printed = [], []
    for when, rename, expected in (("before", 1, before), ("after", 3, 255 - before)):
        with _started([["invert-shard", str(place), str(rename)]]) as (writer,):
            if writer.wait() != -signal.SIGKILL:
                raise RuntimeError(f"the writer has ended before it was killed, with exit code {writer.returncode}")
        seen = read_shard(place)
        left, repaired, clean = verify_and_repair(place)
        is_right &= np.array_equal(seen, expected) and not (left.is_clean or left.is_damaged) and clean.is_clean
        figures.append((seen, f"what a reader saw, writer killed {when} its commit"))
        printed.append(f"Killed {when} its commit. `verify`, then `repair`:\n\n{left}\n\n{repaired}")
    return StepResult(
        summary="2 writers killed; readers saw one whole write each time; `repair` removed all leftovers"
        if is_right
        else "a reader saw a wrong image, or `repair` left something",
        is_right=is_right,
        text="A process overwrites a shard of the image with its negative, and is killed with SIGKILL. The shard is "
        "two objects, a TIFF file and an index. The first process is killed when it has written both, right before it "
        "commits them. The second one is killed when it has committed them, and has replaced one of the two old "
        "objects. A reader sees the old image if the writer had not committed, and the new one if it had.",
        code=(invert_shard, read_shard, verify_and_repair),
        figures=tuple(figures),
        printed="\n\n".join(printed),
    )


def write_rows(store: Store, writer: int) -> None:
    """Write every eighth row. Each row is an inner chunk of the one shard that all eight writers write."""
    array = zarr.open_array(store, path="shared", mode="r+")
    for row in range(writer, 64, 8):
        array[row] = writer + 1


def show_eight_writers(folder: Path) -> StepResult:
    """Let eight processes write their rows of one shard, and count the rows that are lost."""
    place = folder / "shared"
    stores = _shared_stores(place)
    for store in stores.values():
        zarr.create_array(
            store, name="shared", shape=(_ROWS, _ROWS), chunks=(1, _ROWS), shards=(_ROWS, _ROWS), dtype="uint8"
        )
    with _started([["write-rows", str(place), str(number)] for number in range(_WRITERS)]) as writers:
        for _ in stores:
            _wait_for_all(writers)
            for writer in writers:
                print("go", file=writer.stdin, flush=True)
        _wait_for_all(writers)
    found = {name: np.asarray(zarr.open_array(store, path="shared", mode="r")[:]) for name, store in stores.items()}
    expected = (np.arange(_ROWS) % _WRITERS + 1)[:, np.newaxis]
    lost = {name: int((rows != expected).any(axis=1).sum()) for name, rows in found.items()}
    return StepResult(
        summary=f"{_ROWS} updates by {_WRITERS} processes: PartsStore lost {lost['PartsStore']}, "
        f"zarr's LocalStore lost {lost['LocalStore']}{'' if lost['LocalStore'] else ' (by luck)'}",
        is_right=lost["PartsStore"] == 0,
        text=f"{_WRITERS} processes write different rows of one shard at the same time. Each write reads the shard, "
        "changes a row and writes the shard back. PartsStore notices that another process has written in between, and "
        "merges both changes. zarr's own store replaces the change of the other process.",
        code=(write_rows,),
        figures=tuple(
            (_COLOURS[rows], f"{name}: the colour of a row is its writer, lost rows are black")
            for name, rows in found.items()
        ),
    )


def _shared_stores(folder: Path) -> dict[str, Store]:
    ours = ps.PartsStore.from_url(folder / "PartsStore")
    return {"PartsStore": ours, "LocalStore": LocalStore(folder / "LocalStore")}


def _wait_for_all(writers: Sequence[subprocess.Popen[str]]) -> None:
    for writer in writers:
        if writer.stdout is None or writer.stdout.readline() != "ready\n":
            raise RuntimeError("a writer has ended before it was done")


@contextmanager
def _started(calls: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each list of arguments of `main`, and kill those that still run at the end of the block."""
    # The import path is sent, because this process may have changed it.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        processes = []
        for arguments in calls:
            process = subprocess.Popen(  # noqa: S603 (this Python, and a module of this package)
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
                # Ctrl-C is for this process, which ends the others.
                start_new_session=True,
            )
            # `communicate` closes the pipes.
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def die_before_rename(number: int) -> None:
    """Kill this process with SIGKILL right before it renames a file of the write protocol for the `number`-th time.

    An overwrite of a shard in two objects does this three times. The first one is the commit, which names the journal.
    The other two put the new objects in the place of the old ones.
    """
    numbers = itertools.count(1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        # Python renames files of compiled modules, too.
        is_counted = event in ("os.link", "os.rename") and PROTOCOL_FOLDER in Path(str(arguments[0])).parts
        if is_counted and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say: `invert-shard FOLDER RENAME`, or `write-rows FOLDER WRITER`."""
    match arguments:
        case ["invert-shard", folder, rename]:
            die_before_rename(int(rename))
            invert_shard(Path(folder))
        case ["write-rows", folder, writer]:
            for store in _shared_stores(Path(folder)).values():
                # All writers start when the demo says so. They end if the demo has ended.
                print("ready", flush=True)
                if not sys.stdin.readline():
                    return
                write_rows(store, int(writer))
            print("ready", flush=True)
        case _:
            raise SystemExit(f"unknown arguments {arguments}")


if __name__ == "__main__":
    main(sys.argv[1:])
