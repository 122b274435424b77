"""Describe N5 containers: references to the blocks of their datasets, or a `zarr.json` for each of their folders."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.described_group import nest
from parts_store.adoption.description import CannotBeReadError
from parts_store.adoption.formats.n5.container import (
    MAX_DEPTH,
    Container,
    Place,
    find_blocks,
    is_part_of_place,
    key_of_block,
    may_be_cut,
    read_container,
    shape_of_block,
)
from parts_store.adoption.formats.n5.dataset import ATTRIBUTES, N5Dataset, is_dataset, parse_attributes
from parts_store.adoption.report import Skipped
from parts_store.backends.existing_folders import FolderReader
from parts_store.format.keys import join
from parts_store.format.ranges import Span
from parts_store.headers.n5 import n5_nbytes
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.entries import Columns
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.pieces import FileRange

# A larger file of attributes is not read, and no more bytes of all of them.
MAX_NBYTES: Final = 1 << 24
_MAX_NBYTES_IN_ALL: Final = 1 << 26
# A table of more blocks would not fit into memory, nor would tables in which more blocks of all datasets are missing.
_MAX_BLOCKS: Final = 1 << 24
# How many files are read at the same time.
_AT_ONCE: Final = 32

type Found = tuple[PartsGroup, tuple[Skipped, ...], dict[str, str]]
"""References, what is skipped, and notes on arrays by their paths."""


def describe(folder: FolderReader, name: str, url_of: Callable[[str], str]) -> Found:
    """Return references to all blocks of a container or a dataset, with the axes as z5py shows them.

    A dataset that is no container gets the `name`. `url_of` returns the URL of a file, given its path in the folder.
    """
    files = list(folder.files())
    sizes = {path: nbytes for path, nbytes in files if path.rpartition("/")[2] == ATTRIBUTES}
    container = read_container(_read_attributes(folder, sizes))
    blocks = find_blocks(files, container.datasets)
    notes: dict[str, str] = {}
    left = _MAX_BLOCKS
    for path, dataset in list(container.datasets.items()):
        try:
            left -= _count_missing(dataset, len(blocks[path]), left)
            cut = _count_cut(folder, path, dataset, blocks[path])
        except CannotBeReadError as error:
            container.skip(path, str(error))
            continue
        if cut:
            notes[path or name] = f"{cut:,} {'block is' if cut == 1 else 'blocks are'} cut at the edge"
    dimensions = PhonyDimensions()
    arrays = {}
    for path, dataset in container.datasets.items():
        urls = {place: url_of(join(path, key_of_block(place))) for place in blocks[path]}
        arrays[path or name] = _references(dataset, blocks[path], urls, dimensions)
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

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        contents = list(pool.map(read, sizes))
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


def _count_cut(folder: FolderReader, path: str, dataset: N5Dataset, blocks: Mapping[Place, int]) -> int:
    """Return how many blocks are cut at the edge of a dataset; raise `CannotBeReadError` if a block is damaged.

    Reads the headers at the edge, and one header elsewhere. All others are compared when a block is read.
    """

    def is_cut(place: Place) -> bool:
        nbytes = blocks[place]
        head = folder.read_known(join(path, key_of_block(place)), min(n5_nbytes(dataset.ndim), nbytes))
        return shape_of_block(dataset, place, head, nbytes) != dataset.block_size

    some = [next(iter(blocks))] if blocks else []
    doubtful = [place for place, nbytes in blocks.items() if may_be_cut(dataset, place, nbytes)]
    short = [place for place, nbytes in blocks.items() if nbytes <= n5_nbytes(dataset.ndim)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(pool.map(is_cut, dict.fromkeys([*short, *some, *doubtful])))


def _references(
    dataset: N5Dataset, blocks: Mapping[Place, int], urls: Mapping[Place, str], dimensions: "PhonyDimensions"
) -> PartsArray:
    columns = Columns.empty(dataset.grid[::-1])
    for place, nbytes in blocks.items():
        columns.put(place[::-1], FileRange(urls[place], Span(0, nbytes)))
    document = dataset.reversed_document()
    # xarray needs names.
    document.setdefault("dimension_names", dimensions.names_of(dataset.dimensions[::-1]))
    references = References.checked(ArrayV3Metadata.from_dict(document), [columns.manifest()], {})
    return PartsArray.of(references, None, ())


@dataclass(slots=True)
class PhonyDimensions:
    """Names for dimensions without a name: axes of the same length have the same name, in all arrays of a container."""

    known: dict[tuple[int, int], str] = field(default_factory=dict)

    def names_of(self, shape: Iterable[int]) -> list[str]:
        """Return a name for each axis."""
        met: Counter[int] = Counter()
        names = []
        for size in shape:
            names.append(self.known.setdefault((size, met[size]), f"phony_dim_{len(self.known)}"))
            met[size] += 1
        return names


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
