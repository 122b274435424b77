"""Step 2: a process that is killed in the middle of an overwrite, what a reader sees, and `verify` and `repair`."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import parts_store as ps
from parts_store.examples.demo.figures import julia_set, png
from parts_store.examples.demo.outcome import Figure, Outcome, Table
from parts_store.examples.demo.processes import started
from parts_store.examples.demo.worker import CRASH_SIDE, overwrite

# How long to wait for a writer to be in the middle of an overwrite.
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Crash:
    """What was found after a writer was killed."""

    when: str
    left: int
    seen: NDArray[np.uint8]
    verified: ps.Report
    repaired: ps.Report
    is_clean: bool


def read_after_crash(folder: Path) -> NDArray[np.uint8]:
    """Read the image as any reader does."""
    store = ps.PartsStore.from_url(folder, read_only=True)
    return np.asarray(ps.open_array(store, "image")[:])


def clean_up(folder: Path) -> tuple[ps.Report, ps.Report]:
    """Find what the dead writer has left, and remove it."""
    store = ps.PartsStore.from_url(folder)
    return store.verify(), store.repair()


def show_killed_writer(folder: Path) -> Outcome:
    """Kill a writer before its commit and another one after it, and look at the image after each of them."""
    place = folder / "crash.zarr"
    picture = julia_set(CRASH_SIDE)
    store = ps.PartsStore.from_url(place)
    image = ps.create_array(
        store,
        "image",
        shard_file="tiff",
        shape=picture.shape,
        chunks=(128, 128, 3),
        shards=picture.shape,
        dtype="uint8",
    )
    image[:] = picture
    crashes = [
        _crash(place, "before its commit", has_journal=False),
        _crash(place, "after its commit", has_journal=True),
    ]
    pixels = [(_equal_pixels(each.seen, picture), _equal_pixels(each.seen, 255 - picture)) for each in crashes]
    total = CRASH_SIDE * CRASH_SIDE
    is_whole = all(sorted(pair) == [0, total] for pair in pixels)
    is_found = all(each.verified.findings and not each.verified.is_damaged for each in crashes)
    rows = tuple(
        (f"killed {each.when}", f"{each.left}", f"{one:,}", f"{other:,}", f"{len(each.verified.findings)}")
        for each, (one, other) in zip(crashes, pixels, strict=True)
    )
    return Outcome(
        result=f"{len(crashes)} writers killed; readers saw {'one whole image' if is_whole else 'A MIXTURE'} each "
        f"time; `repair` {'removed all leftovers' if all(each.is_clean for each in crashes) else 'LEFT SOMETHING'}",
        is_right=is_whole and is_found and all(each.is_clean for each in crashes),
        text="A process overwrites the image again and again, with its negative and with the image. It is stopped when "
        "its temporary files are seen, and killed with SIGKILL if the overwrite is half done. The image is one shard "
        "in two objects, a TIFF file and an index. Nevertheless a reader sees every pixel of one write and no pixel of "
        "another: the old image if the writer had not committed, the new one if it had.",
        code=(overwrite, read_after_crash, clean_up),
        figures=tuple(
            Figure(png(each.seen, "the image"), f"what a reader saw, writer killed {each.when}") for each in crashes
        ),
        outputs=tuple(
            (f"Killed {each.when}: `verify`, then `repair`", f"{each.verified}\n\n{each.repaired}") for each in crashes
        ),
        table=Table(("writer", "files left over", "pixels of the image", "pixels of its negative", "findings"), rows),
    )


def _equal_pixels(image: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero((image == other).all(axis=-1)))


def _crash(place: Path, when: str, *, has_journal: bool) -> _Crash:
    """Start a writer, kill it when it has or does not have a journal, and return what is found."""
    with started([["overwrite", str(place)]]) as (writer,):
        left = _kill_in_the_middle(writer, place / "image" / ".parts-txn", has_journal=has_journal)
    seen = read_after_crash(place)
    verified, repaired = clean_up(place)
    return _Crash(when, left, seen, verified, repaired, ps.PartsStore.from_url(place).verify().is_clean)


def _kill_in_the_middle(writer: subprocess.Popen[str], folder: Path, *, has_journal: bool) -> int:
    """Kill a writer while its overwrite is in progress, and return how many files it has left beside the chunk.

    The writer is stopped to look at its files. If it is not in the middle of an overwrite, it goes on.
    """
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and writer.poll() is None:
        if not _is_in_the_middle(_files(folder), has_journal):
            continue
        with _stopped(writer):
            left = _files(folder)
            if _is_in_the_middle(left, has_journal):
                writer.kill()
                return len(left)
    raise RuntimeError(f"the writer was not seen in the middle of an overwrite in {_SECONDS:.0f} s")


def _is_in_the_middle(files: list[str], has_journal: bool) -> bool:
    return bool(files) and any(name.endswith(".journal") for name in files) == has_journal


def _files(folder: Path) -> list[str]:
    """Return the names of the files that belong to a write in progress, without locks."""
    try:
        return [name for name in os.listdir(folder) if not name.endswith(".lock")]  # noqa: PTH208 (called in a loop)
    except FileNotFoundError:
        return []


@contextmanager
def _stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
