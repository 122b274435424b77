"""Metadata documents of arrays with and without parts."""

import json
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata

from parts_store.store import documents
from parts_store.store.catalog import Catalog
from parts_store.store.options import StoreOptions
from tests.transactions.objects import Objects

type Document = dict[str, Any]
# The two documents of the specification of concat-parts, as they are printed there.
FIRST_EXAMPLE, SECOND_EXAMPLE = (
    (Path(__file__).parents[1] / f"spec/printed/concat_parts_{which}.json").read_text() for which in ("first", "second")
)
EXAMPLES = pytest.mark.parametrize("text", [FIRST_EXAMPLE, SECOND_EXAMPLE], ids=["first", "second"])
TRANSFORMER = json.loads(FIRST_EXAMPLE)["storage_transformers"][0]


def array(**members: Any) -> Document:
    """Return the document of an array with parts, with all members that zarr requires."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "storage_transformers": [TRANSFORMER],
    }
    return document | members


def plain(**members: Any) -> Document:
    return {key: value for key, value in array(**members).items() if key != "storage_transformers"}


def sharded(index_codecs: list[Document], location: str = "end", **members: Any) -> Document:
    configuration = {
        "chunk_shape": [1, 1],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": index_codecs,
        "index_location": location,
    }
    return array(codecs=[{"name": "sharding_indexed", "configuration": configuration}], **members)


def encode(document: object) -> bytes:
    return json.dumps(document).encode()


def serve(catalog: Catalog, path: str, stored: bytes | None) -> bytes | None:
    """Return the document that zarr gets for a stored document."""
    return documents.serve(catalog, path, stored, since=catalog.epoch)


def served_by(catalog: Catalog, path: str, stored: bytes) -> Document:
    served = serve(catalog, path, stored)
    assert served is not None
    document: Document = json.loads(served)
    return document


def zarr_writes(served: Document, **changes: Any) -> Document:
    """Return the document that zarr writes after it has read a document and changed it."""
    metadata = ArrayV3Metadata.from_dict(served | changes)
    document: Document = json.loads(metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes())
    return document


EXTRA = {"must_understand": False, "anything": [1, {"deep": None}]}


def accepted(catalog: Catalog, path: str, written: Document, bucket: Objects) -> Document:
    document: Document = json.loads(bucket.run(documents.accept(catalog, path, encode(written), StoreOptions())))
    return document


BYTES: Document = {"name": "bytes", "configuration": {"endian": "little"}}
BIG: Document = {"name": "bytes", "configuration": {"endian": "big"}}
CRC: Document = {"name": "crc32c"}
