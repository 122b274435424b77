"""Documents: zarr is served what it can open, and what is stored changes only where zarr changed it."""

import copy
import itertools
import json
import random
from collections.abc import Sequence
from typing import Any, Literal

import google_crc32c
import numpy as np
import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata, RegularChunkGridMetadata

from parts_store.catalog import Catalog
from parts_store.errors import PartsConfigError, PartsStoreError, UnknownTransformerError
from parts_store.format.metadata import complete, parse, put_back, read_array, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.shard_index import ShardIndex, shard_index_of
from parts_store.options import StoreOptions
from tests.transactions.objects import Objects

type Document = dict[str, Any]

# The two documents of the specification of concat-parts, as they are printed there.
FIRST_EXAMPLE = """{
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1000, 1000],
    "data_type": "uint8",
    "chunk_grid": {
        "name": "regular",
        "configuration": {
            "chunk_shape": [500, 500]
        }
    },
    "chunk_key_encoding": {
        "name": "default",
        "configuration": {
            "separator": "/"
        }
    },
    "codecs": [
        { "name": "zstd" },
        { "name": "crc32c" }
    ],
    "storage_transformers": [
        {
            "name": "concat-parts",
            "configuration": {
                "parts": [
                    { "key_suffix": "" },
                    { "key_suffix": ".crc32c", "size": 4 }
                ]
            }
        }
    ]
}"""
SECOND_EXAMPLE = """{
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10000, 10000],
    "data_type": "uint8",
    "chunk_grid": {
        "name": "regular",
        "configuration": {
            "chunk_shape": [5000, 5000]
        }
    },
    "chunk_key_encoding": { "name": "default" },
    "storage_transformers": [
        {
            "name": "concat-parts",
            "configuration": {
                "parts": [
                    { "key_suffix": ".header", "size": 64 },
                    { "key_suffix": "" },
                    { "key_suffix": ".index", "size": 1604 }
                ]
            }
        }
    ],
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [500, 500],
                "index_location": "end",
                "index_codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } },
                    { "name": "crc32c" }
                ],
                "codecs": [
                    { "name": "packbits" }
                ]
            }
        }
    ]
}"""
EXAMPLES = pytest.mark.parametrize("text", [FIRST_EXAMPLE, SECOND_EXAMPLE], ids=["first", "second"])
TRANSFORMER = json.loads(FIRST_EXAMPLE)["storage_transformers"][0]


def array(**members: Any) -> Document:
    """The document of an array with parts, with whatever zarr asks for."""
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
    """What zarr is served of a document that was read just now."""
    return catalog.serve(path, stored, since=catalog.epoch)


def served_by(catalog: Catalog, path: str, stored: bytes) -> Document:
    served = serve(catalog, path, stored)
    assert served is not None
    document: Document = json.loads(served)
    return document


def zarr_writes(served: Document, **changes: Any) -> Document:
    """The document that zarr writes for one that it has read, after changes to it."""
    metadata = ArrayV3Metadata.from_dict(served | changes)
    document: Document = json.loads(metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes())
    return document


# --- what zarr is served ------------------------------------------------------------------------------------------


@EXAMPLES
def test_zarr_opens_the_specifications_documents_as_they_are_served(text: str) -> None:
    metadata = ArrayV3Metadata.from_dict(served_by(Catalog(), "a", text.encode()))
    assert list(metadata.shape) == json.loads(text)["shape"]
    assert metadata.fill_value == 0
    assert metadata.storage_transformers == ()
    assert metadata == ArrayV3Metadata.from_dict(complete(json.loads(text)))


def test_what_the_first_example_leaves_out_is_completed_and_nothing_else_changes() -> None:
    stored = json.loads(FIRST_EXAMPLE)
    served = complete(stored)
    assert served["fill_value"] == 0
    assert [codec["name"] for codec in served["codecs"]] == ["bytes", "zstd", "crc32c"]
    assert all(served[key] == stored[key] for key in stored.keys() - {"codecs", "storage_transformers"})
    assert served.keys() - stored.keys() == {"fill_value"}
    assert stored == json.loads(FIRST_EXAMPLE)


def test_a_complete_document_is_served_as_it_is_but_for_the_transformer() -> None:
    assert served_by(Catalog(), "a", encode(array(attributes={"x": [1]}))) == plain(attributes={"x": [1]})


@pytest.mark.parametrize(
    ("codecs", "names"),
    [
        ([], ["bytes"]),
        (["crc32c"], ["bytes", "crc32c"]),
        (["zstd", "crc32c"], ["bytes", "zstd", "crc32c"]),
        (["gzip"], ["bytes", "gzip"]),
        (["bytes", "zstd"], ["bytes", "zstd"]),
        (["packbits", "zstd"], ["packbits", "zstd"]),
        (["nobody-knows"], ["nobody-knows"]),
    ],
)
def test_a_chain_without_serialiser_gets_bytes_and_any_other_stays(codecs: list[str], names: list[str]) -> None:
    document = array(codecs=[{"name": name} for name in codecs], data_type="uint8")
    served = complete(document)
    assert [codec["name"] for codec in served["codecs"]] == names
    if "nobody-knows" not in names:
        ArrayV3Metadata.from_dict(served)


def test_bytes_come_after_codecs_of_arrays() -> None:
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    served = complete(array(codecs=[transpose, {"name": "zstd"}]))
    assert [codec["name"] for codec in served["codecs"]] == ["transpose", "bytes", "zstd"]
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
        *("float16", "float32", "float64", "complex64", "complex128"),
    ],
)
def test_a_fill_value_that_is_left_out_is_zero_of_the_type(data_type: str) -> None:
    document = {key: value for key, value in array(data_type=data_type).items() if key != "fill_value"}
    metadata = ArrayV3Metadata.from_dict(complete(document))
    assert metadata.fill_value == np.zeros((), metadata.data_type.to_native_dtype())[()]


def test_a_fill_value_of_text_that_is_left_out_is_empty() -> None:
    document = array(data_type="string", codecs=[{"name": "vlen-utf8"}])
    del document["fill_value"]
    assert ArrayV3Metadata.from_dict(complete(document)).fill_value == ""


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
    catalog = Catalog()
    assert serve(catalog, "a", stored) == stored
    assert catalog.arrays() == {}


def test_a_document_that_is_not_there_is_none() -> None:
    assert serve(Catalog(), "a", None) is None


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
def test_any_other_transformer_is_refused_by_name_and_nothing_is_known_of_the_array(
    transformers: Any, message: str
) -> None:
    catalog = Catalog()
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
        serve(Catalog(), "g/a", encode(array(**members)))


# --- what is stored of what zarr writes ---------------------------------------------------------------------------

EXTRA = {"must_understand": False, "anything": [1, {"deep": None}]}


def written_back(stored: Document, **changes: Any) -> Document:
    """What is stored when zarr reads a document, changes it and writes it."""
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


def test_what_zarr_cannot_read_is_kept_member_by_member() -> None:
    stored = array(codecs=[{"name": "nobody-knows"}], data_type="strange")
    new = complete(stored) | {"shape": [8, 8]}
    assert put_back(new, stored) == stored | {"shape": [8, 8]}


def accepted(catalog: Catalog, path: str, written: Document, bucket: Objects) -> Document:
    document: Document = json.loads(bucket.run(catalog.accept(path, encode(written), StoreOptions())))
    return document


@EXAMPLES
def test_writing_attributes_and_shape_through_the_catalog_keeps_the_stored_document(text: str) -> None:
    catalog, bucket = Catalog(), Objects(has_tags=True)
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


def test_a_catalog_that_knows_nothing_reads_the_document_before_it_is_written_over() -> None:
    catalog, bucket = Catalog(), Objects(has_tags=True)
    bucket.put("a/zarr.json", FIRST_EXAMPLE.encode())
    new = zarr_writes(complete(json.loads(FIRST_EXAMPLE)), shape=[3, 3])
    assert accepted(catalog, "a", new, bucket) == json.loads(FIRST_EXAMPLE) | {"shape": [3, 3]}
    assert len(bucket.asked) == 1


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
    catalog, bucket = Catalog(), Objects(has_tags=True)
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


# --- shard indexes ------------------------------------------------------------------------------------------------

BYTES: Document = {"name": "bytes", "configuration": {"endian": "little"}}
BIG: Document = {"name": "bytes", "configuration": {"endian": "big"}}
CRC: Document = {"name": "crc32c"}
INDEX_CODECS: dict[str, list[Document]] = {
    "bytes": [BYTES],
    "big": [BIG],
    "bytes+crc32c": [BYTES, CRC],
    "big+crc32c": [BIG, CRC],
    "bytes+crc32c twice": [BYTES, CRC, CRC],
    "transpose": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}, BYTES, CRC],
    "pad": [BYTES, {"name": "pad", "configuration": {"location": "end", "nbytes": 7}}],
    "offset": [BYTES, {"name": "offset", "configuration": {"offset": 5}}, CRC],
}


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("index_codecs", INDEX_CODECS.values(), ids=INDEX_CODECS)
@pytest.mark.parametrize("chunk_shape", [[1, 1], [2, 3], [4, 6]])
def test_the_size_of_the_shard_index_is_zarrs_own(
    index_codecs: list[Document], location: Literal["start", "end"], chunk_shape: list[int]
) -> None:
    document = sharded(index_codecs, location)
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
    document["codecs"][0]["configuration"]["chunk_shape"] = chunk_shape
    metadata = ArrayV3Metadata.from_dict(complete(document))
    (codec,) = metadata.codecs
    assert isinstance(codec, ShardingCodec)
    assert isinstance(metadata.chunk_grid, RegularChunkGridMetadata)
    per_shard = tuple(4 // a if at == 0 else 6 // a for at, a in enumerate(chunk_shape))
    expected = codec._shard_index_size(per_shard)
    parts = ConcatParts(["", Part(".index", SHARD_INDEX)])
    written = with_parts(complete(document), parts, "a")["storage_transformers"]
    assert written == [ConcatParts(["", Part(".index", expected)]).to_json()]
    record = read_array(document, "a")
    assert record is not None
    assert record.shard_index is not None
    assert (record.shard_index.nbytes, record.shard_index.location) == (expected, location)


def test_the_second_examples_index_has_the_size_that_its_parts_say() -> None:
    record = read_array(json.loads(SECOND_EXAMPLE), "a")
    assert record is not None
    assert record.shard_index == ShardIndex(1604, "end", 100, "<u8", has_checksum=True)


@pytest.mark.parametrize(
    "document",
    [
        array(),
        array(codecs=[{"name": "nobody-knows"}]),
        array(codecs=[*sharded([BYTES])["codecs"], CRC]),
        array(shape="nonsense"),
    ],
)
def test_without_shards_that_zarr_reads_by_itself_there_is_no_index(document: Document) -> None:
    assert shard_index_of(complete(document)) is None
    parts = ConcatParts(["", Part(".index", SHARD_INDEX)])
    with pytest.raises(PartsConfigError, match=r"array 'a'.*SHARD_INDEX"):
        with_parts(complete(document), parts, "a")


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_an_index_without_a_size_of_its_own_is_no_index_that_we_know(codec: str) -> None:
    # zarr refuses such a document; until it is asked, there is no index.
    level = {"level": 1} | ({"checksum": False} if codec == "zstd" else {})
    document = sharded([BYTES, {"name": codec, "configuration": level}])
    assert served_by(Catalog(), "a", encode(document)) == complete(document)
    assert shard_index_of(complete(document)) is None


def test_the_index_is_asked_for_as_zarr_does() -> None:
    assert ShardIndex(20, "end", 1, "<u8", has_checksum=True).request == SuffixByteRequest(20)
    assert ShardIndex(20, "start", 1, "<u8", has_checksum=True).request == RangeByteRequest(0, 20)


@pytest.mark.parametrize("dtype", ["<u8", ">u8"])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_an_index_has_holes_where_offset_and_length_are_both_the_largest_number(dtype: str, has_checksum: bool) -> None:
    values = (0, 5, LARGEST - 1, LARGEST)
    for slots in range(3):
        for numbers in itertools.product(values, repeat=2 * slots):
            index = encoded_index(numbers, dtype, has_checksum=has_checksum)
            pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
            described = ShardIndex(len(index), "end", slots, dtype, has_checksum)
            assert described.may_have_holes(index) is ((LARGEST, LARGEST) in pairs), pairs


LARGEST = 2**64 - 1


def encoded_index(numbers: Sequence[int], dtype: str = "<u8", *, has_checksum: bool = True) -> bytes:
    """Offsets and lengths as the specification of shards has them."""
    table = b"".join(number.to_bytes(8, "little" if dtype == "<u8" else "big") for number in numbers)
    return table + (google_crc32c.value(table).to_bytes(4, "little") if has_checksum else b"")


def test_an_index_that_cannot_be_read_may_have_holes_and_tells_nothing() -> None:
    dense = encoded_index([0, 5, 5, 5], has_checksum=False)
    plain = ShardIndex(32, "end", 2, "<u8", has_checksum=False)
    checked = ShardIndex(36, "end", 2, "<u8", has_checksum=True)
    wanted = [RangeByteRequest(0, 5)]
    assert not plain.may_have_holes(dense)
    assert not checked.may_have_holes(encoded_index([0, 5, 5, 5]))
    for index, data in [
        (ShardIndex(32, "end", 2, None, has_checksum=False), dense),
        (plain, dense[:-1]),
        (plain, dense + b"x"),
        (plain, b""),
        (checked, dense),
        (checked, dense + bytes(4)),
        (checked, b"x" + encoded_index([0, 5, 5, 5])[1:]),
    ]:
        assert index.may_have_holes(data)
        assert index.slots_of(data, wanted) is None
        assert index.ranges_of(data, [0]) is None


def test_ranges_tell_which_inner_chunks_they_are_if_every_one_has_a_place_of_its_own() -> None:
    index = ShardIndex(52, "end", 3, "<u8", has_checksum=True)
    dense = encoded_index([10, 5, 0, 10, 15, 1])
    assert index.slots_of(dense, [RangeByteRequest(0, 10), RangeByteRequest(15, 16)]) == (1, 2)
    assert index.slots_of(dense, []) == ()
    # What is no inner chunk is not guessed at.
    other: list[Any] = [RangeByteRequest(0, 9), RangeByteRequest(1, 10), SuffixByteRequest(1), None]
    for wanted in other:
        assert index.slots_of(dense, [RangeByteRequest(0, 10), wanted]) is None
    # zarr has filled in a hole already; and two at one place may come apart.
    for numbers in ([10, 5, LARGEST, LARGEST, 15, 1], [0, 10, 0, 10, 15, 1]):
        assert index.slots_of(encoded_index(numbers), [RangeByteRequest(15, 16)]) is None


def test_inner_chunks_are_where_the_index_says_and_nowhere_where_it_has_a_hole() -> None:
    index = ShardIndex(52, "end", 3, "<u8", has_checksum=True)
    data = encoded_index([10, 5, LARGEST, LARGEST, 15, 1])
    assert index.ranges_of(data, [2, 1, 0]) == (RangeByteRequest(15, 16), None, RangeByteRequest(10, 15))


@pytest.mark.parametrize(
    ("index_codecs", "dtype", "has_checksum"),
    [
        ([BYTES], "<u8", False),
        ([BYTES, CRC], "<u8", True),
        ([BIG, CRC], ">u8", True),
        ([BYTES, CRC, CRC], None, False),
        ([BYTES, {"name": "offset", "configuration": {"offset": 5}}], None, False),
    ],
)
def test_an_index_of_plain_numbers_is_known_as_such(
    index_codecs: list[Document], dtype: str | None, has_checksum: bool
) -> None:
    index = shard_index_of(complete(sharded(index_codecs)))
    assert index is not None
    assert (index.dtype, index.has_checksum) == (dtype, has_checksum)
    assert index.is_understood is (dtype is not None)


# --- any document -------------------------------------------------------------------------------------------------

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
    """The document with up to three members replaced, removed, renamed, added or repeated."""
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
def test_ten_thousand_mutated_documents_are_served_or_refused_by_our_errors_alone() -> None:
    randomness = random.Random(20240)
    served, refused = 0, 0
    for number in range(12_000):
        document = mutated(SEEDS[number % len(SEEDS)], randomness)
        stored = encode(document)
        try:
            answer = serve(Catalog(), "a", stored)
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


def test_a_thousand_damaged_texts_are_served_or_refused_by_our_errors_alone() -> None:
    randomness = random.Random(7)
    for text in (FIRST_EXAMPLE, SECOND_EXAMPLE):
        for _ in range(500):
            stored = bytearray(text.encode())
            for _ in range(randomness.randrange(1, 4)):
                stored[randomness.randrange(len(stored))] = randomness.choice(b'{}[],:"0129.eE-\\ntfN \xff\x00x')
            try:
                serve(Catalog(), "a", bytes(stored))
            except PartsStoreError as error:
                require_never_taken_for_absence(error)


@pytest.mark.parametrize("depth", [10, 400, 900, 3000, 20_000])
def test_a_deeply_nested_document_is_served_or_refused_by_our_errors_alone(depth: int) -> None:
    nested = encode(array(attributes={"deep": "HERE"})).replace(b'"HERE"', b"[" * depth + b"]" * depth)
    try:
        served = serve(Catalog(), "a", nested)
    except PartsStoreError:
        return
    assert served is not None
