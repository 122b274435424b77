"""Find the groups and datasets of an N5 container, and the blocks of the datasets, from the files in it. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from parts_store.adoption.description import CannotBeReadError
from parts_store.adoption.formats.n5.dataset import N5Dataset, is_dataset, own_attributes, parse_attributes
from parts_store.adoption.report import Skipped
from parts_store.adoption.source_file import why_invalid
from parts_store.errors import HeaderError
from parts_store.format.keys import ancestors
from parts_store.headers.n5 import read_n5

# The largest depth of nested folders.
MAX_DEPTH: Final = 99
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")

type Place = tuple[int, ...]
"""The position of a block in the grid, with the axes in N5's order."""


@dataclass(slots=True)
class Container:
    """The groups and datasets of a container, by their paths; the path of the container itself is ""."""

    # The attributes of the groups.
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    datasets: dict[str, N5Dataset] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, path: str, reason: str) -> None:
        """Move a dataset to what is skipped."""
        self.datasets.pop(path, None)
        self.skipped.append(Skipped(path or ".", reason))


def read_container(contents: Mapping[str, bytes | None]) -> Container:
    """Return the groups and datasets, given the contents of each `attributes.json` by the path of its folder.

    The contents are None if the file is not read. What is below a dataset, or below a folder whose attributes cannot
    be read, is skipped. Each folder above another one is a group.
    """
    found = Container()
    closed: dict[str, str] = {}
    for path in sorted(contents, key=lambda each: (each.count("/") if each else -1, each)):
        above = [*ancestors(path), path]
        if outer := next((each for each in above[:-1] if each in closed), None):
            found.skip(path, f"it is in {outer!r}, {closed[outer]}")
            continue
        try:
            attributes = _require_attributes(path, contents[path])
            if is_dataset(attributes):
                closed[path] = "which is a dataset"
                found.datasets[path] = N5Dataset.from_json(attributes)
            else:
                found.groups[path] = own_attributes(attributes)
        except CannotBeReadError as error:
            closed.setdefault(path, "which was skipped")
            found.skip(path, str(error))
            continue
        for each in above[:-1]:
            found.groups.setdefault(each, {})
    return found


def _require_attributes(path: str, data: bytes | None) -> dict[str, Any]:
    if path and (reason := why_invalid(path)) is not None:
        raise CannotBeReadError(reason)
    if path.count("/") >= MAX_DEPTH:
        raise CannotBeReadError(f"more than {MAX_DEPTH} folders in one another")
    if data is None:
        raise CannotBeReadError(
            "its attributes.json is no file, or too large, alone or with the others of the container"
        )
    return parse_attributes(data)


def find_blocks(files: Iterable[tuple[str, int]], datasets: Mapping[str, N5Dataset]) -> dict[str, dict[Place, int]]:
    """Return the sizes of the files of all blocks within the datasets, by the path of the dataset and the place.

    `files` are the paths and sizes of all files. A dataset that was made smaller may have blocks beyond its grid.
    """
    grids = {path: dataset.grid for path, dataset in datasets.items()}
    found: dict[str, dict[Place, int]] = {path: {} for path in datasets}
    for name, nbytes in files:
        for path, place in _candidates(name):
            grid = grids.get(path)
            if grid is not None and len(grid) == len(place):
                if all(at < count for at, count in zip(place, grid, strict=True)):
                    found[path][place] = nbytes
                break
    return found


def _candidates(name: str) -> Iterator[tuple[str, Place]]:
    """Yield the datasets that a file may be a block of, with its place there."""
    segments = name.split("/")
    for count in range(len(segments) - 1, -1, -1):
        if not is_part_of_place(segments[count]):
            return
        yield "/".join(segments[:count]), tuple(map(int, segments[count:]))


def is_part_of_place(name: str) -> bool:
    """Return whether a folder in a dataset can be one of blocks, and not a node."""
    return _NUMBER.fullmatch(name) is not None


def key_of_block(place: Place) -> str:
    """Return the key of a block, relative to its dataset."""
    return "/".join(map(str, place))


def may_be_cut(dataset: N5Dataset, place: Place, nbytes: int) -> bool:
    """Return whether a block of `nbytes` bytes may be smaller than others: at the edge of the dataset, or by its size.

    Most programs cut the blocks that extend beyond the edge.
    """
    is_at_edge = dataset.lengths_of_block(place) != dataset.block_size
    return is_at_edge or dataset.nbytes_of(dataset.block_size) not in (None, nbytes)


def shape_of_block(dataset: N5Dataset, place: Place, head: bytes, nbytes: int) -> tuple[int, ...]:
    """Return the shape of a block of `nbytes` bytes, which begins with `head`.

    Raises `CannotBeReadError` if the dataset cannot have such a block. z5py and tensorstore accept smaller blocks
    everywhere, and larger ones nowhere.
    """
    try:
        shape = read_n5(head, dataset.ndim)
    except HeaderError as error:
        raise CannotBeReadError(f"block {key_of_block(place)}: {error}") from error
    problem = None
    if any(length > most for length, most in zip(shape, dataset.block_size, strict=True)):
        problem = f"its header says {shape}, and the `blockSize` is {dataset.block_size}"
    elif (expected := dataset.nbytes_of(shape)) not in (None, nbytes):
        problem = f"it has {nbytes} bytes, and {expected} are expected for {shape}"
    if problem is not None:
        raise CannotBeReadError(f"block {key_of_block(place)}: {problem}")
    return shape
