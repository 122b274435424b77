"""Damaged arrays and wrong documents, which a reader must refuse."""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conformance.generator.arrays import CRC32C, GZIP, LITTLE, ZSTD, Made, concat, make_array, part
from conformance.generator.codec_cases import TEXT, offset, pad
from conformance.generator.encoding import NO_CHUNK, Json, crc32c, numbers
from conformance.generator.file_cases import file_cases
from conformance.generator.shard_cases import INDEX_NBYTES, sharded, sharding

_VALUES = numbers((4, 3), "uint16", 21)
_PARTS = (part(".head", 5), part(""), part(".tail", 4))


def damaged_cases() -> Iterator[Made]:
    """Yield all of them."""
    yield from _parts()
    yield from _shards()
    yield from _bytes()
    yield from _transformers()
    yield from _configurations()


def _array(*codecs: Json, **options: Any) -> Made:
    features = options.pop("features", ("concat-parts",) if "parts" in options else ())
    return make_array("", "", _VALUES, features=features, chunks=(4, 3), codecs=codecs or (LITTLE,), **options)


def _damaged(made: Made, name: str, error: str, checks: str, *, is_specified: bool = False) -> Made:
    return made.named(f"damaged/{name}", checks, values=None, error=error, is_specified=is_specified)


def _parts() -> Iterator[Made]:
    made = _array(parts=_PARTS)
    missing, wrong = "missing-part", "wrong-size"
    for name in ("head", "tail"):
        checks = "A part is missing while the part that decides about existence is there: never the fill value."
        yield _damaged(made.with_files({f"c/0/0.{name}": None}), f"missing-{name}", missing, checks)
    sized = _array(parts=[part("", 8), part(".rest", 16)])
    checks = "The second of two sized parts is missing."
    yield _damaged(sized.with_files({"c/0/0.rest": None}), "missing-sized", missing, checks)
    unsized = _array(parts=[part("", 8), part(".data")])
    checks = "The unsized part is missing, while the main part is there."
    yield _damaged(unsized.with_files({"c/0/0.data": None}), "missing-unsized", missing, checks)
    no_main = _array(parts=[part(".a", 4), part(".b"), part(".c", 4)])
    checks = "Without a main part, the first unsized part decides about existence; here the part before it is missing."
    yield _damaged(no_main.with_files({"c/0/0.a": None}), "missing-before-unsized", missing, checks)
    changes: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "short-head": (".head", lambda data: data[:-1]),
        "long-head": (".head", lambda data: data + b"\0"),
        "empty-head": (".head", lambda data: b""),
        "long-tail": (".tail", lambda data: data * 2),
        "short-tail": (".tail", lambda data: data[:2]),
    }
    for name, (suffix, change) in changes.items():
        checks = "A part has another size than its document says."
        yield _damaged(made.with_files({f"c/0/0{suffix}": change}), name, wrong, checks)
    moved = made.with_files({"c/0/0.head": lambda data: data + b"\0", "c/0/0": lambda data: data[1:]})
    yield _damaged(
        moved, "moved-byte", wrong, "The total is right, but a sized part is too long, and another too short."
    )


def _shards() -> Iterator[Made]:
    index_last = (part(""), part(".index", INDEX_NBYTES))
    made = sharded("", "", *index_last)
    yield _damaged(
        made.with_files({"c/1/0.index": None}), "missing-index", "missing-part", "The part with the index is missing."
    )
    header = sharded("", "", part(".header", 16), *index_last)
    yield _damaged(
        header.with_files({"c/0/0.header": None}),
        "missing-header",
        "missing-part",
        "The first bytes of a shard are missing.",
    )
    yield _damaged(
        made.with_files({"c/1/0.index": lambda data: data[:-1]}),
        *("short-index", "wrong-size", "The part with the index is too short."),
    )
    flip: Callable[[bytes], bytes] = lambda data: bytes([data[0] ^ 1]) + data[1:]  # noqa: E731 - one line says it
    checks = "A bit of the index has changed: its checksum does not fit."
    yield _damaged(made.with_files({"c/0/0.index": flip}), "index-bit", "bad-checksum", checks, is_specified=True)
    start = sharded(
        *("", "", part(".index", INDEX_NBYTES), part("")),
        codecs=[sharding(location="start")],
        features=("index-start",),
    )
    yield _damaged(
        start.with_files({"c/0/0.index": flip}), "index-start-bit", "bad-checksum", checks, is_specified=True
    )

    ranges = {
        "index-beyond": (10**6, 12, "a range behind the end of the shard"),
        "index-short-range": (0, 10, "a range that is one element shorter than an inner chunk"),
        "index-half-missing": (NO_CHUNK, 12, "an offset that means a missing inner chunk, and a size that does not"),
    }
    for name, (first, size, what) in ranges.items():

        def change(index: bytes, row: tuple[int, int] = (first, size)) -> bytes:
            table = struct.pack("<QQ", *row) + index[16:-4]
            return table + crc32c(table)

        checks = f"The index has {what}, and a checksum that fits."
        yield _damaged(made.with_files({"c/0/0.index": change}), name, "bad-data", checks)
    inner = sharded("", "", *index_last, codecs=[sharding(LITTLE, ZSTD, CRC32C)], features=("zstd", "crc32c"))
    checks = "A bit of an inner chunk has changed: its checksum does not fit."
    yield _damaged(inner.with_files({"c/0/0": flip}), "inner-chunk-bit", "bad-checksum", checks, is_specified=True)
    (tiff, *_) = file_cases()
    checks = "Another program has written behind the end of a file that is a shard: the file has no seal."
    yield _damaged(
        tiff.with_files({"c/0/0.tif": lambda data: data + bytes(40)}), "changed-tiff", "changed-file", checks
    )


def _bytes() -> Iterator[Made]:
    cut: Callable[[bytes], bytes] = lambda data: data[:-1]  # noqa: E731 - one line says it
    flip: Callable[[bytes], bytes] = lambda data: data[:-1] + bytes([data[-1] ^ 128])  # noqa: E731
    bad = "bad-data"
    checksum = _array(LITTLE, CRC32C, parts=[part(""), part(".crc32c", 4)], features=("concat-parts", "crc32c"))
    checks = "The checksum in its own part does not fit."
    yield _damaged(
        checksum.with_files({"c/0/0.crc32c": flip}), "checksum-part", "bad-checksum", checks, is_specified=True
    )
    for name, codec in (("pad-start", pad("start", 16)), ("pad-end", pad("end", 16)), ("offset", offset(16))):
        features = (name.partition("-")[0],)
        short = _array(LITTLE, codec, features=features).with_files({"c/0/0": lambda data: data[:10]})
        yield _damaged(short, f"{name}-short", bad, "The stored chunk is shorter than its padding.")
        length = _array(LITTLE, codec, features=features).with_files({"c/0/0": cut})
        yield _damaged(length, f"{name}-cut", bad, "The chunk without its padding is one byte too short.")
    parts = _array(parts=[part(".head", 5), part("")]).with_files({"c/0/0": lambda data: data + b"\0"})
    yield _damaged(parts, "long-chunk", bad, "The unsized part, and so the chunk, is one byte too long.")
    gzip = _array(LITTLE, GZIP, parts=_PARTS, features=("concat-parts", "gzip"))
    garbled = gzip.with_files({"c/0/0.head": lambda data: b"other"})
    yield _damaged(garbled, "gzip", bad, "The parts together are no gzip member.")
    packed: Json = {"name": "packbits", "configuration": {"last_bit": 4, "padding_encoding": "first_byte"}}
    for name, damage, checks in (
        ("packbits-short", cut, "A packed chunk is one byte too short."),
        ("packbits-long", lambda data: data + b"\0", "A packed chunk is one byte too long."),
        (
            "packbits-padding",
            lambda data: b"\7" + data[1:],
            "The byte of the padding does not fit the shape of the chunk.",
        ),
    ):
        yield _damaged(_array(packed, features=("packbits",)).with_files({"c/0/0": damage}), name, bad, checks)


def _transformers() -> Iterator[Made]:
    made = _array(parts=_PARTS)
    unknown = "unknown-transformer"

    def transformers(document: Json, *extra: Json, keep: bool) -> None:
        document["storage_transformers"] = [*(document["storage_transformers"] if keep else ()), *extra]

    other: Json = {"name": "other-transformer", "configuration": {}}
    replaced = made.with_document(lambda document: transformers(document, other, keep=False))
    yield _damaged(replaced, "other-transformer", unknown, "An unknown storage transformer.", is_specified=True)
    both = made.with_document(lambda document: transformers(document, other, keep=True))
    checks = "An unknown storage transformer behind concat-parts."
    yield _damaged(both, "second-transformer", unknown, checks, is_specified=True)
    twice = made.with_document(lambda document: transformers(document, *concat(part("")), keep=True))
    yield _damaged(twice, "transformer-twice", unknown, "concat-parts twice.")
    member = made.with_document(lambda document: document.__setitem__("other_software", {"version": 3}))
    checks = "An unknown member of the document without `must_understand: false`."
    yield _damaged(member, "unknown-member", "unknown-extension", checks, is_specified=True)
    codec = made.with_document(lambda document: document["codecs"].append({"name": "other-codec"}))
    yield _damaged(codec, "unknown-codec", "unknown-extension", "An unknown codec.", is_specified=True)


def _configurations() -> Iterator[Made]:
    wrong = "bad-configuration"
    made = _array(parts=_PARTS)
    configurations: dict[str, Json] = {
        "no-parts": {"parts": []},
        "parts-absent": {},
        "parts-no-list": {"parts": {"": 4}},
        "suffix-absent": {"parts": [part(".head", 5), {"size": 4}]},
        "suffix-twice": {"parts": [part(".a", 5), part(""), part(".a", 4)]},
        "suffix-number": {"parts": [{"key_suffix": 1, "size": 5}, part("")]},
        "suffix-slash": {"parts": [part("/head", 5), part("")]},
        "suffix-above": {"parts": [part("/../../x", 5), part("")]},
        "suffix-digit": {"parts": [part("1", 5), part("")]},
        "suffix-another-chunk": {"parts": [part(".1", 5), part("")]},
        "size-negative": {"parts": [part(".head", -5), part("")]},
        "size-fraction": {"parts": [{"key_suffix": ".head", "size": 5.5}, part("")]},
        "size-text": {"parts": [{"key_suffix": ".head", "size": "5"}, part("")]},
        "unknown-member-of-part": {"parts": [{"key_suffix": ".head", "size": 5, "offset": 1}, part("")]},
    }
    for name, configuration in configurations.items():

        def change(document: Json, configuration: Json = configuration) -> None:
            document["storage_transformers"][0]["configuration"] = configuration

        checks = f"A wrong configuration of concat-parts: {name.replace('-', ' ')}."
        yield _damaged(made.with_document(change), f"parts-{name}", wrong, checks)
    text = pad("start", 16, TEXT)["configuration"]["padding"]
    codecs: dict[str, Json] = {
        "pad-no-location": {"nbytes": 4},
        "pad-other-location": {"location": "middle", "nbytes": 4},
        "pad-no-nbytes": {"location": "start"},
        "pad-negative": {"location": "start", "nbytes": -1},
        "pad-other-length": {"location": "start", "nbytes": 15, "padding": text},
        "pad-no-base64": {"location": "start", "nbytes": 3, "padding": "(!)"},
        "pad-unknown-member": {"location": "start", "nbytes": 4, "fill": 1},
        "offset-absent": {"prefix": text},
        "offset-negative": {"offset": -1},
        "offset-other-length": {"offset": 17, "prefix": text},
        "packbits-other-place": {"padding_encoding": "middle"},
        "packbits-bits-reversed": {"first_bit": 5, "last_bit": 4},
        "packbits-bit-too-high": {"last_bit": 16},
        "packbits-bit-negative": {"first_bit": -1},
    }
    for name, configuration in codecs.items():
        codec = name.partition("-")[0]
        before = [] if codec == "packbits" else [LITTLE]
        wrong_codecs = [*before, {"name": codec, "configuration": configuration}]
        changed = _array(features=(codec,)).with_document(partial(dict.update, codecs=wrong_codecs))
        checks = f"A wrong configuration of {codec}: {name.replace('-', ' ')}."
        yield _damaged(changed, name, wrong, checks, is_specified=name == "offset-other-length")
