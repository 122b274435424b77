"""Metadata documents: what zarr is served, and what is stored of what zarr writes."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from zarr.core.metadata.v3 import ArrayV3Metadata

from parts_store.errors import PartsConfigError, UnknownTransformerError
from parts_store.format.metadata import complete, put_back, without_constants
from parts_store.format.parts import parse_integer
from parts_store.store.catalog import Catalog
from tests.format.documents import (
    EXAMPLES,
    EXTRA,
    FIRST_EXAMPLE,
    SECOND_EXAMPLE,
    TRANSFORMER,
    Document,
    accepted,
    array,
    encode,
    plain,
    serve,
    served_by,
    sharded,
    zarr_writes,
)
from tests.transactions.objects import Objects, protocol


@EXAMPLES
def test_zarr_opens_the_specifications_documents_as_they_are_served(text: str) -> None:
    metadata = ArrayV3Metadata.from_dict(served_by(Catalog(protocol(has_tags=True)), "a", text.encode()))
    assert list(metadata.shape) == json.loads(text)["shape"]
    assert metadata.fill_value == 0
    assert metadata.storage_transformers == ()
    assert metadata == ArrayV3Metadata.from_dict(complete(json.loads(text)))


def test_missing_members_of_the_first_example_are_completed() -> None:
    stored = json.loads(FIRST_EXAMPLE)
    served = complete(stored)
    assert served["fill_value"] == 0
    assert [codec["name"] for codec in served["codecs"]] == ["bytes", "zstd", "crc32c"]
    assert all(served[key] == stored[key] for key in stored.keys() - {"codecs", "storage_transformers"})
    assert served.keys() - stored.keys() == {"fill_value"}
    assert stored == json.loads(FIRST_EXAMPLE)


def test_a_complete_document_is_served_as_it_is_but_for_the_transformer() -> None:
    assert served_by(Catalog(protocol(has_tags=True)), "a", encode(array(attributes={"x": [1]}))) == plain(
        attributes={"x": [1]}
    )


@pytest.mark.parametrize(
    ("codecs", "names"),
    [
        ([], ["bytes"]),
        (["crc32c"], ["bytes", "crc32c"]),
        (["zstd", "crc32c"], ["bytes", "zstd", "crc32c"]),
        (["gzip"], ["bytes", "gzip"]),
        (["bytes", "zstd"], ["bytes", "zstd"]),
        (["packbits", "zstd"], ["packbits", "zstd"]),
        (["transpose", "zstd"], ["transpose", "bytes", "zstd"]),
        (["unknown-name"], ["unknown-name"]),
    ],
)
def test_a_chain_without_serialiser_gets_bytes_and_any_other_stays(codecs: list[str], names: list[str]) -> None:
    configurations: dict[str, Document] = {"transpose": {"configuration": {"order": [1, 0]}}}
    document = array(codecs=[{"name": name, **configurations.get(name, {})} for name in codecs], data_type="uint8")
    served = complete(document)
    assert [codec["name"] for codec in served["codecs"]] == names
    if "unknown-name" not in names:
        ArrayV3Metadata.from_dict(served)


def test_a_chain_inside_a_shard_is_completed_too() -> None:
    document = sharded([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}])
    document["codecs"][0]["configuration"]["codecs"] = [{"name": "zstd"}]
    inner = complete(document)["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in inner] == ["bytes", "zstd"]
    ArrayV3Metadata.from_dict(complete(document))


@pytest.mark.parametrize(
    "data_type",
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "string"),
    ],
)
def test_a_fill_value_that_is_left_out_is_zero_of_the_type(data_type: str) -> None:
    document = array(data_type=data_type)
    if data_type == "string":
        document["codecs"] = [{"name": "vlen-utf8"}]
    del document["fill_value"]
    metadata = ArrayV3Metadata.from_dict(complete(document))
    assert metadata.fill_value == ("" if data_type == "string" else np.zeros((), data_type)[()])


@pytest.mark.parametrize(
    "stored",
    [
        encode(plain()),
        json.dumps(plain(), indent=7).encode(),
        encode(plain(storage_transformers=[])),
        encode(plain(zarr_format=2, storage_transformers=[{"name": "x"}])),
        encode({"zarr_format": 3, "node_type": "group", "attributes": {}}),
        encode({"zarr_format": 3, "node_type": "group", "consolidated_metadata": None}),
        encode({"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": plain()}}}),
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"zarr_format": 3, "zarr_format": 2, "node_type": "array"}',
    ],
)
def test_a_document_without_parts_is_passed_through_byte_for_byte(stored: bytes) -> None:
    catalog = Catalog(protocol(has_tags=True))
    assert serve(catalog, "a", stored) == stored
    assert catalog.arrays() == {}


@pytest.mark.parametrize(
    ("transformers", "message"),
    [
        ([{"name": "other"}], "found 'other'"),
        ([TRANSFORMER, TRANSFORMER], "found 'concat-parts', 'concat-parts'"),
        ([TRANSFORMER, {"name": "other"}], "found 'concat-parts', 'other'"),
        ([{"name": "other"}, TRANSFORMER], "found 'other', 'concat-parts'"),
        ([{"name": "other", "must_understand": False}], "found 'other'"),
        (["other"], "found 'other'"),
        ([None], "found None"),
        ([{}], "found None"),
        ([[]], r"found \[\]"),
        ({"name": "other"}, "found {'name': 'other'}"),
        ("other", "found 'other'"),
        (3, "found 3"),
        (False, "found False"),
    ],
)
def test_unknown_transformer_is_refused_by_name(transformers: Any, message: str) -> None:
    catalog = Catalog(protocol(has_tags=True))
    stored = encode(array(storage_transformers=transformers))
    with pytest.raises(UnknownTransformerError, match=message) as caught:
        serve(catalog, "g/a", stored)
    assert caught.value.array == "g/a"
    assert catalog.arrays() == {}
    group = encode(
        {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": json.loads(stored)}}}
    )
    with pytest.raises(UnknownTransformerError, match=message) as caught:
        serve(catalog, "g", group)
    assert caught.value.array == "g/a"


@pytest.mark.parametrize(
    "members",
    [
        {"storage_transformers": [{"name": "concat-parts", "configuration": {"parts": []}}]},
        {"storage_transformers": [{"name": "concat-parts"}]},
        {"chunk_key_encoding": {"name": "fanout"}},
        {"chunk_key_encoding": None},
        {"shape": None},
        {"shape": 3},
    ],
)
def test_a_mistake_in_the_parts_names_the_array(members: Document) -> None:
    with pytest.raises(PartsConfigError, match="array 'g/a'"):
        serve(Catalog(protocol(has_tags=True)), "g/a", encode(array(**members)))


def written_back(stored: Document, **changes: Any) -> Document:
    """Return what is stored after zarr has read a document, changed it and written it."""
    before = copy.deepcopy(stored)
    result = put_back(zarr_writes(complete(stored), **changes), stored)
    assert stored == before
    return result


@pytest.mark.parametrize(
    "stored",
    [
        json.loads(FIRST_EXAMPLE),
        json.loads(SECOND_EXAMPLE),
        array(),
        array(attributes={"a": 1}),
        array(dimension_names=["y", "x"]),
        array(dimension_names=None),
        array(dimension_names=[None, "x"]),
        array(vendor=EXTRA),
        array(fill_value=7),
        array(data_type="float32", fill_value="NaN"),
        array(data_type="float32", fill_value="0x7fc00000"),
        array(data_type="float64", fill_value=1),
        array(chunk_key_encoding={"name": "v2"}),
        array(codecs=[{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]),
        array(codecs=[{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "gzip"}]),
    ],
)
def test_a_document_that_zarr_did_not_change_is_stored_as_it_was(stored: Document) -> None:
    # The order of the members, too: it is the writer's.
    assert json.dumps(written_back(stored)) == json.dumps(stored)


@EXAMPLES
@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": {"units": "m"}},
        {"shape": [7, 7]},
        {"shape": [7, 7], "attributes": {"a": [1, 2.5, None, True]}},
        {"dimension_names": ["y", "x"]},
        {"fill_value": 3},
    ],
)
def test_a_member_that_zarr_changed_is_changed_and_no_other(text: str, changes: Document) -> None:
    stored = json.loads(text) | {"vendor": EXTRA}
    assert written_back(stored, **changes) == stored | changes


def test_what_zarr_removed_is_removed() -> None:
    stored = array(dimension_names=["y", "x"], vendor=EXTRA)
    served = complete(stored)
    without = {key: value for key, value in served.items() if key not in ("dimension_names", "vendor")}
    assert put_back(zarr_writes(without), stored) == {
        key: value for key, value in stored.items() if key not in ("dimension_names", "vendor")
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {}),
        ({}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1}, {"A": 1}),
    ],
)
def test_attributes_are_stored_as_zarr_writes_them(before: Document, after: Document) -> None:
    assert written_back(array(attributes=before), attributes=after) == array(attributes=after)


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (0, False), (1, 1.0), (1.0, 1), (0.0, -0.0)])
def test_attributes_that_python_takes_for_equal_are_different(before: Any, after: Any) -> None:
    stored = written_back(array(attributes={"a": before}), attributes={"a": after})
    assert repr(stored["attributes"]["a"]) == repr(after)


@pytest.mark.parametrize(("stored", "repaired"), [([0, 4], [1, 4]), ([True, 4], [1, 4])])
def test_a_member_that_zarr_repairs_is_stored_as_zarr_writes_it(stored: list[Any], repaired: list[Any]) -> None:
    def grid(shape: list[Any]) -> Document:
        return {"name": "regular", "configuration": {"chunk_shape": shape}}

    before = array(chunk_grid=grid(stored), codecs=[{"name": "bytes", "configuration": {"endian": "little"}}])
    writes = zarr_writes(complete(before | {"chunk_grid": grid(repaired)}), attributes={"x": 1})
    assert put_back(writes, before) == before | {"chunk_grid": grid(repaired), "attributes": {"x": 1}}
    # A group's consolidated metadata keeps the stored form until the array is written.
    assert put_back(writes | {"chunk_grid": grid(stored)}, before) == before | {"attributes": {"x": 1}}


def test_what_zarr_cannot_read_is_kept_member_by_member() -> None:
    stored = array(codecs=[{"name": "unknown-name"}], data_type="strange")
    new = complete(stored) | {"shape": [8, 8]}
    assert put_back(new, stored) == stored | {"shape": [8, 8]}


@EXAMPLES
def test_changing_attributes_and_shape_keeps_the_stored_document(text: str) -> None:
    catalog, bucket = Catalog(protocol(has_tags=True)), Objects(has_tags=True)
    bucket.put("a/zarr.json", text.encode())
    served = served_by(catalog, "a", text.encode())
    stored = accepted(catalog, "a", zarr_writes(served, attributes={"x": 1}), bucket)
    assert stored == json.loads(text) | {"attributes": {"x": 1}}
    # And once more: the document is read before it is written over, for another process may have changed it.
    bucket.put("a/zarr.json", encode(stored))
    stored = accepted(catalog, "a", zarr_writes(complete(stored), shape=[1, 2]), bucket)
    assert stored == json.loads(text) | {"attributes": {"x": 1}, "shape": [1, 2]}
    assert [request.key for request in bucket.asked] == ["a/zarr.json"] * 2  # type: ignore[union-attr]
    assert catalog.arrays()["a"].stored == stored


@pytest.mark.parametrize("path", ["", "g", "g/h"])
def test_consolidated_metadata_is_lifted_and_put_back(path: str) -> None:
    members = {
        "first": json.loads(FIRST_EXAMPLE),
        "deep/second": json.loads(SECOND_EXAMPLE),
        "deep": {"zarr_format": 3, "node_type": "group", "attributes": {}},
        "plain": plain(),
    }
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"a": 1},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": members},
    }
    catalog, bucket = Catalog(protocol(has_tags=True)), Objects(has_tags=True)
    served = served_by(catalog, path, encode(group))
    lifted = served["consolidated_metadata"]["metadata"]
    expected = {"first": complete(members["first"]), "deep/second": complete(members["deep/second"])}
    assert lifted == members | expected
    assert list(lifted) == list(members)
    assert served | {"consolidated_metadata": group["consolidated_metadata"]} == group
    prefix = f"{path}/" if path else ""
    assert {name: record.stored for name, record in catalog.arrays().items()} == {
        f"{prefix}first": members["first"],
        f"{prefix}deep/second": members["deep/second"],
    }
    # As zarr writes them, in its own words.
    for name in expected:
        lifted[name] = zarr_writes(lifted[name])
    assert accepted(catalog, path, served, bucket) == group
    assert bucket.asked == [] or {request.key for request in bucket.asked} == {f"{prefix}plain/zarr.json"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": "text"}', {"a": 1, "b": "text"}),
        ('{"a": NaN, "b": [Infinity, -Infinity, 1.5]}', {"a": None, "b": [np.inf, -np.inf, 1.5]}),
        ('{"a": "NaN", "b": "-Infinity", "infinity 0": "infinity 1", "c": Infinity}', None),
        ('{"a": "NaN"', None),
    ],
)
def test_documents_for_icechunk_have_only_numbers_of_json(text: str, expected: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = without_constants(text.encode())
    if expected is None and text.endswith("}"):
        expected = {"a": "NaN", "b": "-Infinity", "infinity 0": "infinity 1", "c": np.inf}
    if expected is None:
        assert found == text.encode()
        return
    assert json.loads(found, parse_constant=refuse) == expected


@pytest.mark.parametrize("value", [0, 3, 2**70, np.int64(3), np.uint8(0)])
def test_integers_of_python_and_numpy_count(value: Any) -> None:
    found = parse_integer(value, 0)
    assert found == value
    assert type(found) is int
    assert [parse_integer(number, 2, 4) for number in range(1, 6)] == [None, 2, 3, 4, None]
    for other in (True, np.True_, 1.0, np.float64(1), "1", None, [1], np.array([1, 2])):
        assert parse_integer(other, 0) is None
