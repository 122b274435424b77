"""Arrays with shards that are stored in parts."""

from collections.abc import Iterator
from typing import Any

from conformance.generator.arrays import BIG, CRC32C, GZIP, LITTLE, ZSTD, Made, in_group, make_array, part
from conformance.generator.encoding import Json, Values, numbers

# Shards of (4, 6) with inner chunks of (2, 3): four inner chunks.
INDEX_NBYTES = 4 * 16 + 4
_VALUES = numbers((8, 6), "uint16")


def sharding(*codecs: Json, location: str = "end", index: tuple[Json, ...] = (LITTLE, CRC32C)) -> Json:
    """Return the codec of shards whose inner chunks have the shape (2, 3)."""
    configuration = {
        "chunk_shape": [2, 3],
        "codecs": [*(codecs or (LITTLE,))],
        "index_codecs": [*index],
        "index_location": location,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def with_holes(values: Values = _VALUES) -> Values:
    """Return the values with two inner chunks of nothing but zeros."""
    holes = values.copy()
    holes[:2, 3:] = holes[6:, :3] = 0
    return holes


def sharded(name: str, checks: str, *parts: Json, features: tuple[str, ...] = (), **options: Any) -> Made:
    """Return an array with two shards."""
    options = {"values": _VALUES, "chunks": (4, 6), "codecs": [sharding()], **options}
    named = ("concat-parts", "sharding", *features)
    return make_array(f"sharding/{name}", checks, features=named, parts=parts, **options)


def shard_cases() -> Iterator[Made]:
    """Yield the arrays with shards."""
    index_last = (part(""), part(".index", INDEX_NBYTES))
    at_start = (part(".index", INDEX_NBYTES), part(""))
    start: Json = {"codecs": [sharding(location="start")]}
    yield sharded("index-end", "The index is at the end of the shard, and a part of its own.", *index_last)
    yield sharded(
        *("index-start", "The index is at the start of the shard, and a part of its own."),
        *at_start,
        features=("index-start",),
        **start,
    )
    yield sharded(
        *("header-and-index", "The first bytes of the data are a part; offsets count from the start of all parts."),
        *(part(".header", 16), part(""), part(".index", INDEX_NBYTES)),
    )
    yield sharded(
        *("index-cut", "The index lies in two parts."), *(part(".head", 7), part(""), part(".tail", INDEX_NBYTES - 13))
    )
    yield sharded(
        *("index-start-cut", "The index is at the start and lies in two parts."),
        *(part(".head", 21), part("")),
        features=("index-start",),
        **start,
    )
    yield sharded("one-part", "Data and index are one object.", part(""))
    yield sharded(
        *("gaps", "Bytes that the index does not name lie before every inner chunk."), *index_last, gap=b"unused"
    )
    yield sharded(
        *("reversed", "The inner chunks are stored in another order than that of the index."), *index_last, order=-1
    )
    yield sharded(
        *("missing-inner-chunks", "Inner chunks that the index marks as missing have the fill value."),
        *index_last,
        values=with_holes(),
        features=("missing-chunks",),
    )
    yield sharded(
        *("missing-inner-chunks-index-start", "The same, with the index at the start."),
        *at_start,
        values=with_holes(),
        features=("missing-chunks", "index-start"),
        **start,
    )
    yield sharded(
        *("missing-shard", "A shard without any part has the fill value."),
        *index_last,
        missing={(1, 0)},
        fill=9,
        features=("missing-chunks",),
    )
    yield sharded(
        *("edge-shards", "Shards at the edge of the array have inner chunks outside of it."),
        *index_last,
        values=numbers((7, 8), "uint16"),
        features=("edge-chunks",),
    )
    yield from _encoded(index_last)
    nested = sharded("consolidated", "A sharded array in a group with consolidated metadata.", *index_last)
    features = (*nested.features, "groups", "consolidated")
    yield in_group(nested.named(nested.name, nested.checks, features=features), "a/b", is_consolidated=True)


def _encoded(index_last: tuple[Json, ...]) -> Iterator[Made]:
    yield sharded(
        *("gzip", "The inner chunks are compressed with gzip."),
        *index_last,
        codecs=[sharding(LITTLE, GZIP)],
        features=("gzip",),
    )
    yield sharded(
        *("zstd-crc32c", "The inner chunks are compressed with Zstandard and have a checksum."),
        *index_last,
        codecs=[sharding(LITTLE, ZSTD, CRC32C)],
        features=("zstd", "crc32c"),
    )
    yield sharded(
        *("index-big-endian", "The numbers in the index are big-endian."),
        *index_last,
        codecs=[sharding(index=(BIG, CRC32C))],
    )
    yield sharded(
        *("index-without-checksum", "The index has no checksum."),
        *(part(""), part(".index", INDEX_NBYTES - 4)),
        codecs=[sharding(index=(LITTLE,))],
    )
    yield sharded(
        *("keys-v2", "Shards with chunk keys of the encoding v2."),
        *index_last,
        encoding={"name": "v2", "configuration": {"separator": "/"}},
        features=("chunk-keys",),
    )
    pad: Json = {"name": "pad", "configuration": {"location": "start", "nbytes": 6, "padding": "Y2h1bms6"}}
    yield sharded(
        *("pad-inside", "Every inner chunk has a header, which the range in the index contains."),
        *index_last,
        codecs=[sharding(LITTLE, pad)],
        features=("pad",),
    )
    offset: Json = {"name": "offset", "configuration": {"offset": 6, "prefix": "Y2h1bms6"}}
    yield sharded(
        *("offset-inside", "The same with the codec offset, and compressed before."),
        *index_last,
        codecs=[sharding(LITTLE, GZIP, offset)],
        features=("offset", "gzip"),
    )
    packbits: Json = {"name": "packbits", "configuration": {"last_bit": 11}}
    yield sharded(
        *("packbits-inside", "The inner chunks are packed."),
        *index_last,
        values=_VALUES & 0xFFF,
        codecs=[sharding(packbits)],
        features=("packbits",),
    )
    end: Json = {"name": "pad", "configuration": {"location": "end", "nbytes": 3}}
    yield sharded(
        *("pad-around", "Padding around the whole shard: offsets count from the shard without its padding."),
        *(part(".header", 6), part(""), part(".footer", 3)),
        codecs=[sharding(), pad, end],
        features=("pad", "codecs-around-shards"),
    )
