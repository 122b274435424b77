"""Step 2: a process that is killed in the middle of an overwrite, what a reader sees, and `verify` and `repair`."""

import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import parts_store as ps
from parts_store.examples.demo.figures import julia_set, png
from parts_store.examples.demo.outcome import Figure, Outcome, Table
from parts_store.examples.demo.processes import started
from parts_store.examples.demo.worker import CRASH_SIDE, overwrite
from parts_store.format.keys import PROTOCOL_FOLDER


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
        _crash(place, "before its commit", rename=1),
        _crash(place, "after its commit", rename=3),
    ]
    pixels = [(_equal_pixels(each.seen, picture), _equal_pixels(each.seen, 255 - picture)) for each in crashes]
    total = CRASH_SIDE * CRASH_SIDE
    is_whole = pixels == [(total, 0), (0, total)]
    is_found = all(each.verified.findings and not each.verified.is_damaged for each in crashes)
    rows = tuple(
        (f"killed {each.when}", f"{each.left}", f"{one:,}", f"{other:,}", f"{len(each.verified.findings)}")
        for each, (one, other) in zip(crashes, pixels, strict=True)
    )
    return Outcome(
        result=f"{len(crashes)} writers killed; readers saw {'one whole image' if is_whole else 'A WRONG IMAGE'} each "
        f"time; `repair` {'removed all leftovers' if all(each.is_clean for each in crashes) else 'LEFT SOMETHING'}",
        is_right=is_whole and is_found and all(each.is_clean for each in crashes),
        text="A process overwrites the image with its negative, and is killed with SIGKILL when the overwrite is half "
        "done. The image is one shard in two objects, a TIFF file and an index. The first process is killed when it "
        "has written both, right before it commits them. The second one is killed when it has committed them, and has "
        "replaced one of the two old objects. Nevertheless a reader sees every pixel of one write and no pixel of "
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


def _crash(place: Path, when: str, *, rename: int) -> _Crash:
    """Start a writer that is killed before one of its renames, and return what is found."""
    with started([["overwrite", str(place), str(rename)]]) as (writer,):
        if writer.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the writer has ended before it was killed, with exit code {writer.returncode}")
    left = sum(not path.name.endswith(".lock") for path in (place / "image" / PROTOCOL_FOLDER).iterdir())
    seen = read_after_crash(place)
    verified, repaired = clean_up(place)
    return _Crash(when, left, seen, verified, repaired, ps.PartsStore.from_url(place).verify().is_clean)
