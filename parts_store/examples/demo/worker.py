"""The program of the processes that the demo starts: writers that are killed, and writers that write at once."""

import os
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

OVERWRITES = 2000
CRASH_SIDE = 768
ROWS, WRITERS = 64, 8


def overwrite(folder: Path, picture: NDArray[np.uint8]) -> None:
    """Overwrite the image again and again, with its negative and with itself, until this process is killed."""
    image = ps.open_array(ps.PartsStore.from_url(folder), "image", mode="r+")
    for number in range(OVERWRITES):
        image[:] = picture if number % 2 else 255 - picture


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
    """Do what the arguments say: `PID overwrite FOLDER`, or `PID write-rows FOLDER WRITER`; PID is the caller."""
    _end_with(int(arguments[0]))
    match arguments[1:]:
        case ["overwrite", folder]:
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
