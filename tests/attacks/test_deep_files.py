"""Files with many groups in one another: adopting them takes a number of requests that grows with their number."""

from pathlib import Path

import h5py
import pytest
import zarr

import parts_store as ps
from parts_store.adoption import adopt
from tests.adoption.adopting import repository, settle


def nested(path: Path, levels: int) -> Path:
    """A file with so many groups in one another, each with an attribute, and a dataset in the innermost."""
    with h5py.File(path, "w") as root:
        group: h5py.Group = root
        for level in range(levels):
            group = group.create_group("g")
            group.attrs["level"] = level
        group["x"] = [1, 2, 3]
    settle(path)
    return path


def requests_of(folder: Path, levels: int, path: str = "") -> int:
    """How many requests the adoption of such a file makes."""
    store = ps.PartsStore.from_session(repository(folder).writable_session("main"))
    adopt(nested(folder / f"{levels}.h5", levels), into=store, path=path)
    made = sum(store.stats.calls.values())
    below = zarr.open_group(store, path=path, mode="r")
    for level in range(levels):
        below = below["g"]  # type: ignore[assignment]
        assert below.attrs["level"] == level
    assert below["x"][:].tolist() == [1, 2, 3]  # type: ignore[index, union-attr]
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["", "above/it"])
def test_nested_groups_take_as_many_requests_each_at_every_depth(path: str, tmp_path: Path) -> None:
    counts = [requests_of(tmp_path, levels, path) for levels in (10, 20, 40)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    # Whether an array is there, what is there, and the document.
    assert counts[1] - counts[0] == 10 * 3


def test_attributes_of_groups_that_are_there_are_kept(tmp_path: Path) -> None:
    store = ps.PartsStore.from_session(repository(tmp_path).writable_session("main"))
    zarr.create_group(store, path="into", attributes={"title": "mine"})
    zarr.create_group(store, path="into/g", attributes={"level": 9, "old": True})
    adopt(nested(tmp_path / "file.h5", 2), into=store, path="into")
    root = zarr.open_group(store, mode="r")
    assert dict(root["into"].attrs) == {"title": "mine"}
    assert dict(root["into/g"].attrs) == {"level": 0, "old": True}
    assert dict(root["into/g/g"].attrs) == {"level": 1}
