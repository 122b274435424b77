"""Write arrays of references to an Icechunk session: ranges of files become virtual references."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype

from parts_store._compat.virtualizarr import INLINED_CHUNK_PATH, MISSING_CHUNK_PATH
from parts_store._compat.zarr import DefaultChunkKeyEncoding, normalize_path, sync
from parts_store.errors import LocationError, StoreConfigError
from parts_store.redaction import hide_in_url
from parts_store.virtual.manifests.array import PartsArray, ReferenceNode
from parts_store.virtual.manifests.entries import Checksum, Checksums, Columns, number_paths, to_icechunk_url
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import (
    References,
    default_parts,
    document_of,
    with_sizes,
)
from parts_store.virtual.store_access import (
    DOCUMENT,
    PartsStore,
    Reference,
    ReferenceTable,
    destination,
    is_node_key,
    join,
    part_node,
)


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that will be written. Its parts are declared, unless its chunks have one."""

    path: str
    references: References
    document: dict[str, Any]


def write(root: ReferenceNode, session: Any, path: str, *, overwrite: bool) -> None:
    """Write an array or a group to a session, after everything was checked."""
    # Raises if the session is read-only, or was committed.
    store = PartsStore.from_session(session).with_read_only(False)
    path = parse_path(path)
    groups: dict[str, dict[str, Any]] = {}
    arrays: list[PlannedArray] = []
    for node_path, node in root.nodes(path):
        if isinstance(node, PartsArray):
            arrays.append(plan_array(node_path, node.references))
        else:
            groups[node_path] = node.document()
    for array in arrays:
        require_locations(store, array.references)
    ancestors = destination.read_ancestors(store, path)
    destination.require_outside_arrays(ancestors, path, "path")
    if overwrite:
        destination.clear(store, path)
    else:
        # The document of the root group is replaced.
        destination.require_empty(store, path, "path", ignored=() if path else (DOCUMENT,))
    missing = {above: PartsGroup().document() for above, documents in ancestors.items() if not documents}
    sync(_write(store, missing | groups, arrays))


def parse_path(path: str) -> str:
    """Return the path of a node as zarr writes it; raise if it is reserved for parts of an array."""
    path = normalize_path(path)
    if is_node_key(path):
        raise StoreConfigError("path", "a path that is not reserved for parts of an array", repr(path))
    return path


def plan_array(path: str, references: References) -> PlannedArray:
    """Return an array as it will be written: with chunk keys that a session can store, and the sizes of its parts."""
    encoding = DefaultChunkKeyEncoding(separator="/")
    metadata = dataclasses.replace(references.metadata, chunk_key_encoding=encoding)
    parts = references.parts
    if parts is None and len(references.columns) > 1:
        parts = with_sizes(references, default_parts(references))
    if parts is not None and 0 in parts.sizes and len(parts.parts) > 1:
        raise StoreConfigError(f"array {path!r}", "parts with bytes, because a session stores no empty parts", "size 0")
    planned = dataclasses.replace(references, metadata=metadata, parts=parts)
    return PlannedArray(path, planned, document_of(metadata))


def require_locations(store: PartsStore, references: References) -> None:
    """Raise if a file is outside the virtual chunk containers of the repository."""
    for location in references.locations():
        if location.endswith("/"):
            raise LocationError(hide_in_url(location), "expected a file, found a folder")
        store.require_location(Reference(to_icechunk_url(location), offset=0, length=1))


async def _write(store: PartsStore, groups: Mapping[str, dict[str, Any]], arrays: Iterable[PlannedArray]) -> None:
    for path, document in groups.items():
        await write_document(store, path, document)
    for array in arrays:
        await write_array(store, array)


async def write_document(store: PartsStore, path: str, document: dict[str, Any]) -> None:
    """Write the metadata document of a node."""
    buffer = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    await store.set(join(path, DOCUMENT), buffer)


async def write_array(store: PartsStore, array: PlannedArray) -> None:
    """Write a new array, at a path with nothing there."""
    creator = store
    if array.references.parts is not None:
        escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in array.path)
        creator = store.with_parts({escaped: array.references.parts}, split=True)
    await write_document(creator, array.path, array.document)
    await write_chunks(store, array.path, array.references, (0,) * len(array.references.grid))


async def write_chunks(store: PartsStore, path: str, references: References, first: tuple[int, ...]) -> None:
    """Write all chunks of an array that exists, or of a block of it, whose first chunk is `first`.

    The chunks must be new ones. The anchor is written last: without it a chunk does not exist.
    """
    parts = references.parts
    names = [None] if parts is None else [part.key_suffix for part in parts.parts]
    anchor = 0 if parts is None else parts.anchor
    for number in sorted(range(len(names)), key=lambda each: each == anchor):
        suffix = names[number]
        node = path if suffix is None or number == anchor else part_node(path, suffix)
        columns = references.columns[number]
        chunks = {_shifted(index, first): data for index, data in columns.inlined.items()}
        await store.write_node(node, list(_tables(columns, references.checksums, first)), chunks)


def _shifted(index: Sequence[int], first: Sequence[int]) -> tuple[int, ...]:
    return tuple(at + start for at, start in zip(index, first, strict=True))


def _tables(columns: Columns, checksums: Checksums, first: tuple[int, ...]) -> Iterator[ReferenceTable]:
    """Yield the references to files, in one table for all files with the same checksum."""
    known, places = number_paths(columns.paths)
    # The files with the same checksum share a number; chunks that are in no file have the number 0.
    by_checksum: dict[Checksum | None, int] = {}
    urls = np.full(len(known), MISSING_CHUNK_PATH, np.dtypes.StringDType())
    numbers = np.zeros(len(known), np.intp)
    for place, location in enumerate(known):
        if location not in (MISSING_CHUNK_PATH, INLINED_CHUNK_PATH):
            urls[place] = to_icechunk_url(location)
            numbers[place] = by_checksum.setdefault(checksums.get(location), len(by_checksum) + 1)
    locations = urls[places.reshape(-1)].reshape(places.shape)
    groups = numbers[places.reshape(-1)].reshape(places.shape)
    for checksum, box in zip(by_checksum, _boxes(groups, len(by_checksum)), strict=True):
        # Of an array without axes, an empty index would return a number, not an array.
        block = box or ...
        is_here = groups[block] == by_checksum[checksum]
        yield ReferenceTable(
            tuple(along.start + start for along, start in zip(box, first, strict=True)),
            np.where(is_here, locations[block], MISSING_CHUNK_PATH),
            columns.offsets[block],
            columns.lengths[block],
            checksum,
        )


def _boxes(numbers: NDArray[np.intp], count: int) -> list[tuple[slice, ...]]:
    """Return the smallest block that contains all places with a number, for each number from 1 to `count`."""
    if not numbers.ndim:
        # A single value: its only block has no axes.
        return [()] * count
    places = np.nonzero(numbers)
    present = numbers[places]
    bounds = []
    for along in places:
        lowest, highest = np.full(count + 1, np.iinfo(np.intp).max), np.zeros(count + 1, np.intp)
        np.minimum.at(lowest, present, along)
        np.maximum.at(highest, present, along)
        bounds.append((lowest, highest))
    return [
        tuple(slice(int(lowest[number]), int(highest[number]) + 1) for lowest, highest in bounds)
        for number in range(1, count + 1)
    ]
