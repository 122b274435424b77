"""Shard indexes: where they are, how large they are, and which inner chunks they name."""

import itertools
import json
from collections.abc import Sequence
from typing import Any, Literal

import google_crc32c
import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.metadata.v3 import ArrayV3Metadata, RegularChunkGridMetadata

from parts_store.errors import PartsConfigError
from parts_store.format.metadata import complete, read_array, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.shard_index import ShardIndex, shard_index_of
from parts_store.store.catalog import Catalog
from tests.format.documents import BIG, BYTES, CRC, SECOND_EXAMPLE, Document, array, encode, served_by, sharded
from tests.transactions.objects import protocol

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
    assert record.shard_index == ShardIndex(
        1604, "end", 100, "<u8", has_checksum=True, shard_nbytes=5000 * 5000 * 1 + 1604
    )


@pytest.mark.parametrize(
    "document",
    [
        array(),
        array(codecs=[{"name": "unknown-name"}]),
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
    assert served_by(Catalog(protocol(has_tags=True)), "a", encode(document)) == complete(document)
    assert shard_index_of(complete(document)) is None


def test_the_index_is_asked_for_as_zarr_does() -> None:
    assert ShardIndex(20, "end", 1, "<u8", has_checksum=True).request == SuffixByteRequest(20)
    assert ShardIndex(20, "start", 1, "<u8", has_checksum=True).request == RangeByteRequest(0, 20)


@pytest.mark.parametrize("dtype", ["<u8", ">u8"])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_largest_offset_and_length_are_a_hole(dtype: str, has_checksum: bool) -> None:
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


def test_unreadable_index_gives_no_inner_chunks() -> None:
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


def test_ranges_identify_inner_chunks_with_distinct_places() -> None:
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


def test_index_gives_the_place_of_inner_chunks_or_a_hole() -> None:
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
