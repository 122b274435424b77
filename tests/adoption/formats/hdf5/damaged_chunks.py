"""Read damaged chunks with h5py in another process, which they may end."""

import pickle
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 (adds its filters to the HDF5 library)

from parts_store.isolation import NoAnswerError, ProcessEndedError, call_isolated


def read_chunks(path: Path, count: int, length: int) -> list[Any]:
    """Return the values of chunks of the dataset `x`; None where h5py raises an error, ends its process or hangs."""
    found: list[Any] = []
    log = path.with_suffix(".log")
    while len(found) < count:
        log.write_bytes(b"")
        task = (str(path), str(log), len(found), count, length)
        try:
            call_isolated(_read_chunks, task, 20.0)
        except (ProcessEndedError, NoAnswerError):
            found += [*_logged(log), None]
        else:
            found += _logged(log)
    return found


def _read_chunks(task: tuple[str, str, int, int, int]) -> None:
    path, log, start, stop, length = task
    with h5py.File(path) as file, Path(log).open("wb", buffering=0) as written:
        for number in range(start, stop):
            try:
                values = file["x"][number * length : (number + 1) * length]
            except OSError:
                values = None
            written.write(pickle.dumps(values))


def _logged(log: Path) -> list[Any]:
    found = []
    with log.open("rb") as file:
        while file.peek(1):
            found.append(pickle.load(file))
    return found
