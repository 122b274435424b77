"""The nodes of an array's parts in a session: they are created, changed and deleted with their array.

A session has no chunks with suffixes, but it has nodes below an array. It does not delete them with the array, and a
new array at the same path would inherit them. Therefore each node records the array that it belongs to, by the id that
the session gives to a node when it is created, and that the node keeps when it is moved. A node that belongs to no
array, or to another array, is stray, and its chunks are not parts of anything.
"""

from typing import Any

from parts_store.engine.steps import Found, Get, Put, Steps, content, head, remove
from parts_store.errors import SessionError
from parts_store.format.keys import DOCUMENT, PartPlacement, join, part_node
from parts_store.format.metadata import ArrayRecord, Document, dump, parse

_OWNER = "array_node_id"


def owner_of(document: Document | None) -> str | None:
    """Return the id of the array that a node belongs to, None if its document does not say."""
    attributes = None if document is None else document.get("attributes")
    owner = attributes.get(_OWNER) if isinstance(attributes, dict) else None
    return owner if isinstance(owner, str) else None


def keys_of(path: str, record: ArrayRecord) -> tuple[str, ...]:
    """Return the keys of the documents of the nodes of an array's parts."""
    if record.placement is not PartPlacement.SPLIT:
        return ()
    others = [part for number, part in enumerate(record.parts.parts) if number != record.parts.anchor]
    return tuple(join(part_node(path, part.key_suffix), DOCUMENT) for part in others)


def follow(path: str, record: ArrayRecord) -> Steps[None]:
    """Create the nodes of an array's parts, or give them the shape of the array."""
    keys = keys_of(path, record)
    if not keys:
        return
    array = yield from head(join(path, DOCUMENT), "which node the array is")
    if array is None or array.version is None:
        raise SessionError(join(path, DOCUMENT), "the array does not exist any more")
    expected = dump(_document(record.stored, array.version))
    outcomes = yield tuple(Get(key, None, "whether the node of a part is there") for key in keys)
    found = dict(zip(keys, outcomes, strict=True))
    # A stray node is not reported as found. Its chunks must not become parts of this array.
    strays = tuple(key for key, outcome in found.items() if not isinstance(outcome, Found))
    if strays:
        yield from remove(strays, "nodes of another array")
    changed = [key for key, outcome in found.items() if not _is_same(content(outcome), expected)]
    if changed:
        yield tuple(Put(key, expected, None, None, "node of a part") for key in changed)


def _is_same(stored: bytes | None, expected: bytes) -> bool:
    return stored is not None and parse(stored) == parse(expected)


def _document(array: Document, owner: str) -> Document:
    """Return the document of a node whose chunks are parts of an array's chunks: only what a session requires."""
    codecs: list[dict[str, Any]] = [{"name": "bytes"}]
    copied = {key: array[key] for key in ("zarr_format", "node_type", "shape", "chunk_grid", "chunk_key_encoding")}
    return {**copied, "data_type": "uint8", "fill_value": 0, "codecs": codecs, "attributes": {_OWNER: owner}}
