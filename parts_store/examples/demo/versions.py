"""Step 5: an image in an Icechunk repository, a change, and the difference between both versions."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.examples.demo.figures import julia_set, png
from parts_store.examples.demo.outcome import Figure, Outcome
from parts_store.text import count

SIDE = 512


def commit_image(repository: icechunk.Repository, picture: NDArray[np.uint8]) -> str:
    """Commit an image, whose chunks are in parts, as the first version."""
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session, parts={"image": ["", ps.Part(".index", size=ps.SHARD_INDEX)]})
    image = zarr.create_array(
        store, name="image", shape=picture.shape, chunks=(32, 32, 3), shards=(128, 128, 3), dtype="uint8"
    )
    image[:] = picture
    return session.commit("the image")


def commit_change(repository: icechunk.Repository, picture: NDArray[np.uint8]) -> str:
    """Invert a region of the image, and commit it as the second version."""
    session = repository.writable_session("main")
    image = ps.open_array(ps.PartsStore.from_session(session), "image", mode="r+")
    image[100:300, 200:330] = 255 - picture[100:300, 200:330]
    return session.commit("a region inverted")


def read_version(repository: icechunk.Repository, snapshot: str) -> NDArray[np.uint8]:
    """Read the image as it was at a commit."""
    session = repository.readonly_session(snapshot_id=snapshot)
    return np.asarray(ps.open_array(ps.PartsStore.from_session(session), "image")[:])


def show_versions(folder: Path) -> Outcome:
    """Commit an image and a change of it, and compare both versions."""
    picture = julia_set(SIDE)
    repository = ps.open_repository(folder / "history")
    first = commit_image(repository, picture)
    second = commit_change(repository, picture)
    before, after = read_version(repository, first), read_version(repository, second)
    difference: NDArray[np.uint8] = np.abs(after.astype(int) - before).astype(np.uint8)
    changed = np.argwhere(difference.any(axis=-1))
    top, left = (int(each) for each in changed.min(axis=0))
    bottom, right = (int(each) + 1 for each in changed.max(axis=0))
    shards = repository.diff(from_snapshot_id=first, to_snapshot_id=second).updated_chunks["/image"]
    expected = picture.copy()
    expected[100:300, 200:330] = 255 - expected[100:300, 200:330]
    is_right = np.array_equal(before, picture) and np.array_equal(after, expected)
    where = f"image[{top}:{bottom}, {left}:{right}]"
    total = (SIDE // 128) ** 2
    return Outcome(
        result=f"both versions {'are' if is_right else 'ARE NOT'} readable as committed; they differ in {where}, in "
        f"{len(shards)} of {count(total, 'shard')}",
        is_right=is_right,
        text="A commit of an Icechunk repository contains all parts of all chunks, or none of them. Both versions stay "
        f"readable. The second commit replaced {len(shards)} of {count(total, 'shard')}; the other shards are stored "
        f"once. The pixels differ inside {where}.",
        code=(commit_image, commit_change, read_version),
        figures=(
            Figure(png(before, "the first version"), f"commit {first}"),
            Figure(png(after, "the second version"), f"commit {second}"),
            Figure(png(difference, "the difference"), "the difference: black where both are equal"),
        ),
        outputs=(("The history", _history(repository)),),
    )


def _history(repository: icechunk.Repository) -> str:
    commits: list[Any] = list(repository.ancestry(branch="main"))
    return "\n".join(f"{each.id}  {each.message}" for each in commits)
