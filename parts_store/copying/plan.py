"""Plan a copy: which metadata documents are written, in which order, and what a session cannot store. Pure.

All keys are relative to the path that is copied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from parts_store.errors import SessionError
from parts_store.format import metadata as documents
from parts_store.format.keys import ARRAY_V2, DOCUMENT, GROUP_V2, ChunkKeyEncoding, PartPlacement, join, split, splits
from parts_store.format.metadata import Document, describes_array, dump, is_array, is_group, parse
from parts_store.transactions.protocol import ChunkProtocol

# The documents that make a path a node.
_NODES = (DOCUMENT, ARRAY_V2, GROUP_V2)
_CONSOLIDATED = "consolidated_metadata"
# How many chunks one task copies: enough that the start of a task takes little of its time.
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything at and below a path, by keys relative to it: metadata documents, and all other keys as chunks."""

    documents: Mapping[str, bytes]
    chunks: tuple[str, ...]

    @property
    def arrays(self) -> dict[str, bytes]:
        """The metadata documents of the arrays, by their keys."""
        return {key: data for key, data in self.documents.items() if describes_array(split(key)[1], data)}

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len({split(key)[0] for key, data in self.documents.items() if _is_group(key, data)})

    @property
    def group_above(self) -> tuple[str, bytes] | None:
        """The name and the content of the document for a missing group above the path; None if the path is no node."""
        if DOCUMENT in self.documents:
            return DOCUMENT, dump({"zarr_format": 3, "node_type": "group", "attributes": {}})
        if ARRAY_V2 in self.documents or GROUP_V2 in self.documents:
            return GROUP_V2, dump({"zarr_format": 2})
        return None


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Chunks that one task copies, and the documents of the array that they belong to, by keys relative to the path."""

    chunks: tuple[str, ...]
    arrays: Mapping[str, bytes]


def batches(contents: Contents) -> list[ChunkBatch]:
    """Return all chunks in batches; chunks of different arrays are in different batches."""
    documents = contents.arrays
    arrays = {split(key)[0]: {key: data} for key, data in documents.items()}
    of_arrays: dict[str | None, list[str]] = {}
    for key in contents.chunks:
        array = next((path for path, _ in splits(key) if path in arrays), None)
        of_arrays.setdefault(array, []).append(key)
    return [
        ChunkBatch(tuple(keys[at : at + _BATCH]), {} if array is None else arrays[array])
        for array, keys in of_arrays.items()
        for at in range(0, len(keys), _BATCH)
    ]


def _is_group(key: str, data: bytes) -> bool:
    document = parse(data) if split(key)[1] == DOCUMENT else None
    return split(key)[1] == GROUP_V2 or (document is not None and is_group(document))


def convert_document(stored: bytes, protocol: ChunkProtocol, *, must_understand: bool) -> bytes:
    """Return a metadata document as the destination stores it; the same bytes if nothing has to be changed.

    With `must_understand`, an array that a reader without concat-parts would misread is marked, so that such a reader
    rejects it.
    """
    document = parse(stored)
    if document is None:
        return stored
    kept = document
    if not protocol.supports_consolidated_metadata:
        # Consolidated metadata would not be updated there.
        kept = {member: value for member, value in kept.items() if member != _CONSOLIDATED}
    if is_array(document):
        kept = documents.arriving(kept, protocol.new_placement(is_split=False), must_understand=must_understand)
    elif isinstance(consolidated := kept.get(_CONSOLIDATED), dict):
        kept = {**kept, _CONSOLIDATED: _convert_members(consolidated, must_understand=must_understand)}
    return stored if kept == document else dump(kept)


def _convert_members(consolidated: Document, *, must_understand: bool) -> Document:
    """Return consolidated metadata in which the document of every array is converted."""
    members = consolidated.get("metadata")
    if not isinstance(members, dict):
        return consolidated
    converted = {
        name: documents.arriving(member, PartPlacement.BESIDE, must_understand=must_understand)
        if isinstance(member, dict) and is_array(member)
        else member
        for name, member in members.items()
    }
    return {**consolidated, "metadata": converted}


def in_order(keys: Iterable[str], *, nodes_first: bool) -> list[list[str]]:
    """Return lists of keys of documents, to be written one after the other; the keys of one list at the same time.

    Deeper paths come first, and in each of them the document that makes the path a node comes last. With `nodes_first`
    the order is reversed, because a session stores nothing below a path that is not a node.
    """

    def rank(key: str) -> tuple[int, bool]:
        return -key.count("/"), split(key)[1] in _NODES

    ordered = sorted(keys, key=rank, reverse=nodes_first)
    return [list(group) for _, group in groupby(ordered, key=rank)]


def require_storable(contents: Contents, to: str) -> None:
    """Raise `SessionError` if a session cannot store the contents at the path `to`: Zarr v2, or keys of no chunk."""
    arrays: dict[str, Document] = {}
    for key, data in contents.documents.items():
        path, name = split(key)
        if name != DOCUMENT:
            raise SessionError(join(to, key), "expected Zarr v3, found Zarr v2, which a session cannot store")
        if (document := parse(data)) is None:
            raise SessionError(
                join(to, key), "expected a JSON object, found other content, which a session cannot store"
            )
        if is_array(document):
            arrays[path] = document
    for key in contents.chunks:
        if not any(path in arrays and _is_in_grid(arrays[path], relative) for path, relative in splits(key)):
            problem = "expected a chunk within the shape of its array, found another key, which a session cannot store"
            raise SessionError(join(to, key), problem)


def _is_in_grid(array: Document, relative: str) -> bool:
    """Return whether a key is that of a chunk within the shape of an array; any chunk is, if the grid is unknown."""
    shape = array.get("shape")
    if not isinstance(shape, list):
        return False
    encoding = ChunkKeyEncoding.from_json(array.get("chunk_key_encoding"), len(shape))
    if not encoding.is_chunk_key(relative):
        return False
    match array.get("chunk_grid"):
        case {"name": "regular", "configuration": {"chunk_shape": [*edges]}} if len(edges) == len(shape):
            numbers = map(int, relative.split(encoding.separator)[1:])
            return all(number * edge < stop for number, edge, stop in zip(numbers, edges, shape, strict=True))
        case _:
            return True
