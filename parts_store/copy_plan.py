"""What is copied from one store to another: which documents arrive, in which order, and what a session cannot keep.

Knows keys relative to the path that is copied, so that it does not matter where that is. Does not know what is at the
destination.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from parts_store.engine.steps import Get, Steps, content
from parts_store.errors import SessionError
from parts_store.format import metadata as documents
from parts_store.format.keys import DOCUMENT, ChunkKeyEncoding, PartPlacement, join, split
from parts_store.format.metadata import Document, dump, is_array, parse
from parts_store.transactions.protocol import ChunkProtocol

ARRAY_V2: Final = ".zarray"
GROUP_V2: Final = ".zgroup"
# What makes a node a node, and what says something of one.
_NODES = (DOCUMENT, ARRAY_V2, GROUP_V2)
_METADATA = (*_NODES, ".zattrs", ".zmetadata")
_CONSOLIDATED = "consolidated_metadata"


def is_metadata(key: str) -> bool:
    """Whether the key is a document's, of Zarr v3 or v2."""
    return split(key)[1] in _METADATA


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything at and below a path, by keys relative to it: documents, and whatever else there is."""

    documents: Mapping[str, bytes]
    chunks: tuple[str, ...]

    @property
    def arrays(self) -> dict[str, bytes]:
        """The documents of the arrays, by their keys."""
        return {key: data for key, data in self.documents.items() if _is_array(key, data)}

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len({split(key)[0] for key, data in self.documents.items() if _is_group(key, data)})

    @property
    def group_above(self) -> tuple[str, bytes] | None:
        """The name and the bytes of the document that a group above these gets; None if nothing is at the path."""
        if DOCUMENT in self.documents:
            return DOCUMENT, dump({"zarr_format": 3, "node_type": "group", "attributes": {}})
        if ARRAY_V2 in self.documents or GROUP_V2 in self.documents:
            return GROUP_V2, dump({"zarr_format": 2})
        return None


def _is_array(key: str, data: bytes) -> bool:
    document = parse(data) if split(key)[1] == DOCUMENT else None
    return split(key)[1] == ARRAY_V2 or (document is not None and is_array(document))


def _is_group(key: str, data: bytes) -> bool:
    document = parse(data) if split(key)[1] == DOCUMENT else None
    return split(key)[1] == GROUP_V2 or (document is not None and document.get("node_type") == "group")


def are_apart(path: str, other: str) -> bool:
    """Whether neither of two paths is the other, nor above it."""
    one, two = path.strip("/"), other.strip("/")
    return bool(one and two) and not f"{one}/".startswith(f"{two}/") and not f"{two}/".startswith(f"{one}/")


def read(keys: Sequence[str]) -> Steps[dict[str, bytes | None]]:
    """The documents at these keys, as they are stored; None for those that are not there."""
    outcomes = (yield tuple(Get(key, None, "document to copy") for key in keys)) if keys else ()
    return {key: content(outcome) for key, outcome in zip(keys, outcomes, strict=True)}


def arriving(stored: bytes, protocol: ChunkProtocol, *, must_understand: bool) -> bytes:
    """What another store keeps of a stored document: itself, if there is nothing in it that is not for that store.

    With `must_understand`, an array that a plain reader would misread there says that it has to be understood.
    """
    document = parse(stored)
    if document is None:
        return stored
    kept = document
    if not protocol.supports_consolidated_metadata:
        # Nobody would keep it up to date there.
        kept = {member: value for member, value in kept.items() if member != _CONSOLIDATED}
    if is_array(document):
        kept = documents.arriving(kept, protocol.new_placement(is_split=False), must_understand=must_understand)
    elif isinstance(consolidated := kept.get(_CONSOLIDATED), dict):
        kept = {**kept, _CONSOLIDATED: _arriving_members(consolidated, must_understand=must_understand)}
    return stored if kept == document else dump(kept)


def _arriving_members(consolidated: Document, *, must_understand: bool) -> Document:
    """Return consolidated metadata in which every array is as its own document arrives."""
    members = consolidated.get("metadata")
    if not isinstance(members, dict):
        return consolidated
    arrived = {
        name: documents.arriving(member, PartPlacement.BESIDE, must_understand=must_understand)
        if isinstance(member, dict) and is_array(member)
        else member
        for name, member in members.items()
    }
    return {**consolidated, "metadata": arrived}


def in_order(keys: Iterable[str], *, nodes_first: bool) -> list[list[str]]:
    """The keys of documents, in the order in which they are written; those of one list at the same time.

    What is below comes before what is above, and what makes a node a node comes last; with `nodes_first` all is
    reversed, for a session takes nothing for a node that is not there.
    """

    def rank(key: str) -> tuple[int, bool]:
        return -key.count("/"), split(key)[1] in _NODES

    ordered = sorted(keys, key=rank, reverse=nodes_first)
    return [list(group) for _, group in groupby(ordered, key=rank)]


def require_keepable(contents: Contents, to: str) -> None:
    """Raise if a session cannot keep something of this at the path `to`: Zarr v2, and what is no chunk.

    That it can keep the chunks of the arrays by their keys, is known.
    """
    arrays: dict[str, Document] = {}
    for key, data in contents.documents.items():
        path, name = split(key)
        if name != DOCUMENT:
            raise SessionError(join(to, key), "expected Zarr v3, found Zarr v2, which no session can keep")
        if (document := parse(data)) is None:
            raise SessionError(join(to, key), "expected a JSON object, found something else, which no session can keep")
        if is_array(document):
            arrays[path] = document
    for key in contents.chunks:
        if not any(path in arrays and _is_in_grid(arrays[path], relative) for path, relative in _splits(key)):
            problem = "expected a chunk within the shape of its array, found another key, which no session can keep"
            raise SessionError(join(to, key), problem)


def _splits(key: str) -> Iterator[tuple[str, str]]:
    """All the ways to see a key as something below a path."""
    segments = key.split("/")
    for count in range(len(segments)):
        yield "/".join(segments[:count]), "/".join(segments[count:])


def _is_in_grid(array: Document, relative: str) -> bool:
    """Whether the key is that of a chunk which the array's shape reaches; in grids that we do not know, any may be."""
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
