"""The program of the processes that the demo starts: writers that are killed, and writers that write at once."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import LocalStore

import parts_store as ps
from parts_store.examples.demo.figures import julia_set
from parts_store.format.keys import PROTOCOL_FOLDER

CRASH_SIDE = 768
ROWS, WRITERS = 64, 8


def overwrite(folder: Path, picture: NDArray[np.uint8]) -> None:
    """Overwrite the image with its negative. This process is killed before it is done."""
    image = ps.open_array(ps.PartsStore.from_url(folder), "image", mode="r+")
    image[:] = 255 - picture


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


def write_rows(store: Store, writer: int) -> None:
    """Write every eighth row. Each row is an inner chunk of the one shard that all eight writers write."""
    array = zarr.open_array(store, path="shared", mode="r+")
    for row in range(writer, 64, 8):
        array[row] = writer + 1


def stores(folder: Path) -> dict[str, Store]:
    """Return the stores that eight writers write to, by the names of their folders."""
    ours = ps.PartsStore.from_url(folder / "PartsStore")
    return {"PartsStore": ours, "LocalStore": LocalStore(folder / "LocalStore")}


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say: `PID overwrite FOLDER COUNT`, or `PID write-rows FOLDER WRITER`; PID is the caller."""
    _end_with(int(arguments[0]))
    match arguments[1:]:
        case ["overwrite", folder, rename]:
            die_before_rename(int(rename))
            overwrite(Path(folder), julia_set(CRASH_SIDE))
        case ["write-rows", folder, writer]:
            for store in stores(Path(folder)).values():
                # All writers start when the demo says so.
                print("ready", flush=True)
                sys.stdin.readline()
                write_rows(store, int(writer))
            print("ready", flush=True)
        case _:
            raise SystemExit(f"unknown arguments {arguments}")


def _end_with(parent: int) -> None:
    """End this process soon after the process that started it has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
