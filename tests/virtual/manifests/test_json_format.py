"""Arrays of references survive a roundtrip through JSON, and invalid JSON is rejected with the reason."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import parts_store as ps
from parts_store.errors import ManifestError, PartsStoreError
from parts_store.manifests import PartsArray, PartsGroup
from tests.effort import examples
from tests.virtual.manifests.making import FEW, Kind, Made, drawn, metadata, simple

FUZZED = examples(10_000)


def example() -> PartsGroup:
    array, _ = simple((4, 3), Kind("<i4", "zstd", 2, (2, 3)))
    declared = PartsArray(array.metadata, array.manifests, parts=["", ".tail"])
    return PartsGroup({"a": array}, {"g": PartsGroup({"b": declared}, attributes={"n": [1, None]})}, {"title": "x"})


@FEW
@given(drawn())
def test_array_survives_json_roundtrip(made: Made) -> None:
    again = PartsArray.from_json(json.dumps(made.array.to_json()))
    assert again.is_same(made.array)
    assert np.array_equal(again.load(made.files.registry()), made.values)


def test_group_survives_json_roundtrip() -> None:
    group = example()
    for form in (group.to_json(), json.dumps(group.to_json()), json.dumps(group.to_json()).encode()):
        again = PartsGroup.from_json(form)
        assert again == group
        assert again.groups["g"].arrays["b"].declared_parts == ps.ConcatParts(["", ".tail"])
    special = PartsArray.from_json(PartsArray(metadata(dtype="f8", fill_value=np.nan), [{}]).to_json())
    assert np.isnan(special.load()[0])


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "{",
        b"\xff",
        "[" * 100_000,
        {},
        {"parts_store_manifest": 2, "node_type": "group"},
        {"parts_store_manifest": True, "node_type": "group"},
        {"parts_store_manifest": 1, "node_type": "array"},
        {"parts_store_manifest": 1, "node_type": "group", "attributes": []},
        {"parts_store_manifest": 1, "node_type": "group", "arrays": {"a": None}},
    ],
)
def test_invalid_document_is_rejected_with_the_reason(data: Any) -> None:
    with pytest.raises(ManifestError):
        PartsGroup.from_json(data)


def test_too_many_arrays_are_refused_before_memory_is_allocated() -> None:
    document = example().to_json()
    array = document["arrays"]["a"]
    # Each is half of what a document may have, and by itself allowed: a gigabyte.
    size = 2**25 // array["number_of_parts"]
    half = array | {"metadata": array["metadata"] | {"shape": [size * 2, 3]}, "chunks": {}}
    inner = document | {"arrays": {"c": half}, "groups": {}}
    with pytest.raises(ManifestError, match=r"array 'c'.*at most 67108864 parts of chunks in one document"):
        PartsGroup.from_json(document | {"arrays": {"a": half, "b": half}, "groups": {"g": inner}})


@pytest.mark.parametrize(("shape", "parts"), [((2**60, 2**60), 1), ((), 2**40), ((0, 0), 2**40), ((0, 2**60), 2**40)])
def test_huge_grid_or_number_of_parts_is_rejected_before_allocation(shape: tuple[int, ...], parts: int) -> None:
    document = PartsArray(metadata(shape and (0, 0), shape and (2, 2)), [{}]).to_json()
    described = document["metadata"] | {"shape": list(shape)}
    with pytest.raises(ManifestError, match="at most"):
        PartsArray.from_json(document | {"number_of_parts": parts, "metadata": described})


def _places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        found += _places(child, (*at, key))
    return found


NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 2**100, 1.5, -0.0),
    *("", "0", "a", "0.0", "c/0/0", "\0", "\ud800"),
    *("s3://b/f", "file:///etc/passwd", "/etc/passwd", "../x", "http://[::1", "__inlined__", "é", "NaN", "=" * 50),
    *([], {}, [[]], {"name": "bytes"}, {"data": "!!"}, {"data": ""}, ["s3://b/f", 0, 4], ["s3://b/f", 2**63, 1]),
    *([None], {"": None}, "zstd", "regular", "float64", "V3", [1, 2, 3], [0], [-1, 3], [2**40, 2**40]),
]


@pytest.mark.slow
def test_damaged_documents_raise_only_errors_of_parts_store() -> None:
    rng = np.random.default_rng(20261116)
    original = example().to_json()
    places = _places(original)[1:]
    refused = []
    for _ in range(FUZZED):
        document = copy.deepcopy(original)
        for _ in range(int(rng.integers(1, 4))):
            _damage(document, places[rng.integers(len(places))], rng)
        try:
            found = PartsGroup.from_json(document)
        except PartsStoreError as error:
            refused.append(error)
        else:
            assert PartsGroup.from_json(found.to_json()) == found
    assert FUZZED // 2 < len(refused) < FUZZED
    assert all(str(error) and not isinstance(error, KeyError | FileNotFoundError) for error in refused)


def _damage(document: Any, place: tuple[Any, ...], rng: np.random.Generator) -> None:
    node = document
    for key in place[:-1]:
        try:
            node = node[key]
        except (KeyError, IndexError, TypeError):
            return
    value = copy.deepcopy(NASTY[rng.integers(len(NASTY))])
    key = place[-1]
    if isinstance(node, list) and not isinstance(key, int):
        return
    match int(rng.integers(3)), node:
        case 0, dict():
            node.pop(key, None)
        case 1, dict():
            node[value if isinstance(value, str) else f"{value!r}"[:40]] = node.get(key)
        case _, dict():
            node[key] = value
        case 0, list():
            del node[key : key + 1]
        case 1, list():
            node.insert(key, value)
        case _, list() if key < len(node):
            node[key] = value
