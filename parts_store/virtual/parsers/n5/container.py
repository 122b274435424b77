"""Describe N5 containers: references to the blocks of their datasets, or a `zarr.json` for each of their folders."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import HeaderError
from parts_store.virtual.description import CannotBeReadError, PhonyDimensions, nest, why_invalid
from parts_store.virtual.existing_files import FolderReader
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.entries import Columns, FileRange
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.parsers.n5.dataset import ATTRIBUTES, N5Dataset, is_dataset, own_attributes, parse_attributes
from parts_store.virtual.parsers.n5.multiscales import add_ome_attributes
from parts_store.virtual.report import Skipped
from parts_store.virtual.store_access import Span, ancestors, join, n5_nbytes, read_n5, run_tasks_sync

# The largest depth of nested folders.
MAX_DEPTH: Final = 99
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")

type BlockPlace = tuple[int, ...]
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


def find_blocks(
    files: Iterable[tuple[str, int]], datasets: Mapping[str, N5Dataset]
) -> dict[str, dict[BlockPlace, int]]:
    """Return the sizes of the files of all blocks within the datasets, by the path of the dataset and the place.

    `files` are the paths and sizes of all files. A dataset that was made smaller may have blocks beyond its grid.
    """
    grids = {path: dataset.grid for path, dataset in datasets.items()}
    found: dict[str, dict[BlockPlace, int]] = {path: {} for path in datasets}
    for name, nbytes in files:
        for path, place in _candidates(name):
            grid = grids.get(path)
            if grid is not None and len(grid) == len(place):
                if all(at < count for at, count in zip(place, grid, strict=True)):
                    found[path][place] = nbytes
                break
    return found


def _candidates(name: str) -> Iterator[tuple[str, BlockPlace]]:
    """Yield the datasets that a file may be a block of, with its place there."""
    segments = name.split("/")
    for count in range(len(segments) - 1, -1, -1):
        if not is_part_of_place(segments[count]):
            return
        yield "/".join(segments[:count]), tuple(map(int, segments[count:]))


def is_part_of_place(name: str) -> bool:
    """Return whether a folder in a dataset can be one of blocks, and not a node."""
    return _NUMBER.fullmatch(name) is not None


def key_of_block(place: BlockPlace) -> str:
    """Return the key of a block, relative to its dataset."""
    return "/".join(map(str, place))


def may_be_cut(dataset: N5Dataset, place: BlockPlace, nbytes: int) -> bool:
    """Return whether a block of `nbytes` bytes may be smaller than others: at the edge of the dataset, or by its size.

    Most programs cut the blocks that extend beyond the edge.
    """
    is_at_edge = dataset.lengths_of_block(place) != dataset.block_size
    return is_at_edge or dataset.nbytes_of(dataset.block_size) not in (None, nbytes)


def shape_of_block(dataset: N5Dataset, place: BlockPlace, head: bytes, nbytes: int) -> tuple[int, ...]:
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


# A larger file of attributes is not read, and no more bytes of all of them.
MAX_NBYTES: Final = 1 << 24
_MAX_NBYTES_IN_ALL: Final = 1 << 26
# A table of more blocks would not fit into memory, nor would tables in which more blocks of all datasets are missing.
_MAX_BLOCKS: Final = 1 << 24
# How many files are read at the same time.
_AT_ONCE: Final = 32

type ContainerReferences = tuple[PartsGroup, tuple[Skipped, ...], dict[str, str]]
"""References, what is skipped, and notes on arrays by their paths."""


def describe(folder: FolderReader, name: str, url_of: Callable[[str], str]) -> ContainerReferences:
    """Return references to all blocks of a container or a dataset, with the axes as z5py shows them.

    A dataset that is no container gets the `name`. `url_of` returns the URL of a file, given its path in the folder.
    """
    files = list(folder.files())
    sizes = {path: nbytes for path, nbytes in files if path.rpartition("/")[2] == ATTRIBUTES}
    container = read_container(_read_attributes(folder, sizes))
    blocks = find_blocks(files, container.datasets)
    notes: dict[str, str] = {}
    all_cut: dict[str, int] = {}
    left = _MAX_BLOCKS
    for path, dataset in list(container.datasets.items()):
        try:
            left -= _count_missing(dataset, len(blocks[path]), left)
            all_cut[path] = cut = _count_cut(folder, path, dataset, blocks[path])
        except CannotBeReadError as error:
            container.skip(path, str(error))
            continue
        if cut:
            notes[path or name] = f"{cut:,} {'block is' if cut == 1 else 'blocks are'} cut at the edge"
    add_ome_attributes(container.groups, container.datasets)
    dimensions = PhonyDimensions()
    arrays = {}
    for path, dataset in container.datasets.items():
        urls = {place: url_of(join(path, key_of_block(place))) for place in blocks[path]}
        arrays[path or name] = _references(dataset, blocks[path], urls, dimensions, has_headers=all_cut[path] > 0)
    return nest({"": {}, **container.groups}, arrays), tuple(container.skipped), notes


def _read_attributes(folder: FolderReader, sizes: Mapping[str, int]) -> dict[str, bytes | None]:
    """Return the contents of files of attributes, by the folders that they are in."""
    left, chosen = _MAX_NBYTES_IN_ALL, set()
    for path, nbytes in sizes.items():
        if nbytes <= min(left, MAX_NBYTES):
            left -= nbytes
            chosen.add(path)

    def read(path: str) -> bytes | None:
        return folder.read(path, MAX_NBYTES) if path in chosen else None

    contents = run_tasks_sync([partial(read, path) for path in sizes], _AT_ONCE)
    return {path.rpartition("/")[0]: data for path, data in zip(sizes, contents, strict=True)}


def _count_missing(dataset: N5Dataset, found: int, most: int) -> int:
    """Return how many blocks of a dataset do not exist; raise `CannotBeReadError` if these, or all, are too many."""
    count = math.prod(dataset.grid)
    if count > _MAX_BLOCKS:
        raise CannotBeReadError(f"{count:,} blocks, and at most {_MAX_BLOCKS:,} can be listed")
    if count - found > most:
        problem = f"{count - found:,} of {count:,} blocks do not exist, and at most {_MAX_BLOCKS:,} of a container"
        raise CannotBeReadError(f"{problem} can be missing; adopt the dataset alone, or in place")
    return count - found


def _count_cut(folder: FolderReader, path: str, dataset: N5Dataset, blocks: Mapping[BlockPlace, int]) -> int:
    """Return how many blocks are cut at the edge of a dataset; raise `CannotBeReadError` if a block is damaged.

    Reads the headers at the edge, and one header elsewhere. All others are compared when a block is read.
    """

    def is_cut(place: BlockPlace) -> bool:
        nbytes = blocks[place]
        head = folder.read_known(join(path, key_of_block(place)), min(n5_nbytes(dataset.ndim), nbytes))
        return shape_of_block(dataset, place, head, nbytes) != dataset.block_size

    some = [next(iter(blocks))] if blocks else []
    doubtful = [place for place, nbytes in blocks.items() if may_be_cut(dataset, place, nbytes)]
    short = [place for place, nbytes in blocks.items() if nbytes <= n5_nbytes(dataset.ndim)]
    looked_at = dict.fromkeys([*short, *some, *doubtful])
    return sum(run_tasks_sync([partial(is_cut, place) for place in looked_at], _AT_ONCE))


def _references(
    dataset: N5Dataset,
    blocks: Mapping[BlockPlace, int],
    urls: Mapping[BlockPlace, str],
    dimensions: PhonyDimensions,
    *,
    has_headers: bool,
) -> PartsArray:
    """Return references to blocks; without their headers if no block is cut, so that every reader knows the codecs."""
    columns = Columns.empty(dataset.grid[::-1])
    start = 0 if has_headers else n5_nbytes(dataset.ndim)
    for place, nbytes in blocks.items():
        columns.put(place[::-1], FileRange(urls[place], Span(start, nbytes)))
    document = dataset.reversed_document(has_headers=has_headers)
    # xarray needs names.
    document.setdefault("dimension_names", list(dimensions.names_of(dataset.dimensions[::-1])))
    references = References.checked(ArrayV3Metadata.from_dict(document), [columns], {})
    return PartsArray.of(references, ())


def walk(folder: FolderReader) -> Container:
    """Return the groups and datasets of a container without a listing of their blocks, and check a block of each.

    A folder without attributes is a group if a dataset or a group with attributes is below it.
    """
    contents: dict[str, bytes | None] = {}
    open_folders, too_deep, left = [""], [], _MAX_NBYTES_IN_ALL
    while open_folders:
        path = open_folders.pop()
        listing = folder.contents(path)
        inner = listing.folders
        if ATTRIBUTES in listing.files:
            most = min(left, MAX_NBYTES)
            data = folder.read(join(path, ATTRIBUTES), most + 1)
            contents[path] = None if data is None or len(data) > most else data
            left -= len(contents[path] or b"")
            if not _is_group(contents[path]):
                # What is in a dataset is skipped by its name. Folders of blocks can be very many.
                inner = tuple(name for name in inner if not is_part_of_place(name))
        if path.count("/") < MAX_DEPTH:
            open_folders += [join(path, name) for name in inner]
        elif inner:
            too_deep.append(path)
    container = read_container(contents)
    for path in too_deep:
        container.skip(f"{path}/*", f"more than {MAX_DEPTH} folders in one another")
    for path, dataset in list(container.datasets.items()):
        try:
            _require_block(folder, path, dataset)
        except CannotBeReadError as error:
            container.skip(path, str(error))
    return container


def _is_group(data: bytes | None) -> bool:
    try:
        return data is not None and not is_dataset(parse_attributes(data))
    except CannotBeReadError:
        return False


def _require_block(folder: FolderReader, path: str, dataset: N5Dataset) -> None:
    """Raise `CannotBeReadError` if the first block that is found is not one of the dataset, or in another mode."""
    blocks = find_blocks(folder.first_files(path), {"": dataset})[""]
    for place, nbytes in list(blocks.items())[:1]:
        head = folder.read_known(join(path, key_of_block(place)), min(n5_nbytes(dataset.ndim), nbytes))
        shape_of_block(dataset, place, head, nbytes)
