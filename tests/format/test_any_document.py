"""Mutated and damaged documents are served, or refused with errors of this package."""

import copy
import json
import random
from typing import Any

import pytest

from parts_store.errors import PartsStoreError
from parts_store.format.metadata import parse
from parts_store.store.catalog import Catalog
from tests.format.documents import (
    BIG,
    BYTES,
    CRC,
    EXTRA,
    FIRST_EXAMPLE,
    SECOND_EXAMPLE,
    TRANSFORMER,
    Document,
    array,
    encode,
    plain,
    serve,
    sharded,
)
from tests.transactions.objects import protocol

JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 2, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, float("nan"), float("inf")),
    *("", "a", "..", "/", ".", "default", "v2", "regular", "rectilinear", "array", "group", "uint8", "string", "r16"),
    *("bytes", "zstd", "crc32c", "sharding_indexed", "transpose", "packbits", "pad", "vlen-utf8", "numcodecs.zlib"),
    *("concat-parts", "\ud800", "\0", "é", "x" * 300, "start", "end", "NaN", "0x00", "little"),
    *([], {}, [[]], [None], [0], [0, 0], [-1, 2], [1, 1], [2.5], ["a", "a"], {"name": "x"}, {"name": None}),
    *({"name": "bytes"}, {"name": "zstd", "configuration": {}}, {"name": "zstd", "configuration": {"level": "x"}}),
    {"must_understand": False},
    TRANSFORMER,
]
SEEDS: list[Document] = [
    json.loads(FIRST_EXAMPLE),
    json.loads(SECOND_EXAMPLE),
    array(attributes={"a": 1}, dimension_names=["y", "x"], vendor=EXTRA),
    sharded([BYTES, CRC], "start"),
    sharded([BIG]),
    {
        "zarr_format": 3,
        "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "metadata": {"a": json.loads(FIRST_EXAMPLE), "b": plain()}},
    },
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every member of a document, as what it is in and its key or number there."""
    found: list[tuple[Any, Any]] = []
    match value:
        case dict():
            found += [(value, key) for key in value]
        case list():
            found += [(value, at) for at in range(len(value))]
    return found + [place for container, key in found for place in places(container[key])]


def mutated(document: Document, randomness: random.Random) -> Document:
    """Return the document with up to three members replaced, removed, renamed, added or repeated."""
    document = copy.deepcopy(document)
    for _ in range(randomness.choice([1, 1, 1, 2, 3])):
        container, key = randomness.choice(places(document) or [({}, "")])
        junk = copy.deepcopy(randomness.choice(JUNK))
        match randomness.randrange(6):
            case 0 | 1 | 2:
                container[key] = junk
            case 3 if isinstance(container, dict):
                container.pop(key, None)
                container[junk if isinstance(junk, str) else "other"] = 1
            case 4 if isinstance(container, dict):
                container.pop(key, None)
            case _ if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            case _:
                container[randomness.choice(["name", "configuration", "storage_transformers", "x"])] = junk
    return document


def require_never_taken_for_absence(error: PartsStoreError) -> None:
    assert not isinstance(error, FileNotFoundError | KeyError)
    assert str(error)


@pytest.mark.slow
def test_mutated_documents_are_served_or_refused() -> None:
    randomness = random.Random(20240)
    served, refused = 0, 0
    for number in range(12_000):
        document = mutated(SEEDS[number % len(SEEDS)], randomness)
        stored = encode(document)
        try:
            answer = serve(Catalog(protocol(has_tags=True)), "a", stored)
        except PartsStoreError as error:
            refused += 1
            require_never_taken_for_absence(error)
        except Exception as error:
            raise AssertionError(f"document {number}: {stored.decode()}") from error
        else:
            served += 1
            assert answer is not None
            assert answer == stored or parse(answer) is not None
    # The fuzzer finds its way to both.
    assert min(served, refused) > 1000


def test_damaged_texts_are_served_or_refused() -> None:
    randomness = random.Random(7)
    for text in (FIRST_EXAMPLE, SECOND_EXAMPLE):
        for _ in range(500):
            stored = bytearray(text.encode())
            for _ in range(randomness.randrange(1, 4)):
                stored[randomness.randrange(len(stored))] = randomness.choice(b'{}[],:"0129.eE-\\ntfN \xff\x00x')
            try:
                serve(Catalog(protocol(has_tags=True)), "a", bytes(stored))
            except PartsStoreError as error:
                require_never_taken_for_absence(error)


@pytest.mark.parametrize("depth", [10, 400, 900, 3000, 20_000])
def test_deeply_nested_document_is_served_or_refused(depth: int) -> None:
    nested = encode(array(attributes={"deep": "HERE"})).replace(b'"HERE"', b"[" * depth + b"]" * depth)
    try:
        served = serve(Catalog(protocol(has_tags=True)), "a", nested)
    except PartsStoreError:
        return
    assert served is not None
