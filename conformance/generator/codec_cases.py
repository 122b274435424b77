"""Arrays with the codecs pad, offset and packbits, with and without parts."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.generator.arrays import BIG, CRC32C, GZIP, LITTLE, ZSTD, Made, make_array, part
from conformance.generator.encoding import Json, Values, numbers

_VALUES = numbers((4, 6), "uint16")
TEXT = b"HEADER-OF-16-B.."


def pad(location: str, nbytes: int, padding: bytes | None = None) -> Json:
    """Return the codec pad as it is in `zarr.json`."""
    literal = {} if padding is None else {"padding": base64.b64encode(padding).decode()}
    return {"name": "pad", "configuration": {"location": location, "nbytes": nbytes, **literal}}


def offset(nbytes: int, prefix: bytes | None = None) -> Json:
    """Return the codec offset as it is in `zarr.json`."""
    literal = {} if prefix is None else {"prefix": base64.b64encode(prefix).decode()}
    return {"name": "offset", "configuration": {"offset": nbytes, **literal}}


def _array(name: str, checks: str, *codecs: Json, **options: Any) -> Made:
    features = (name.partition("/")[0], *options.pop("features", ()))
    options = {"values": _VALUES, "chunks": (4, 3), **options}
    return make_array(name, checks, features=features, codecs=codecs, **options)


def codec_cases() -> Iterator[Made]:
    """Yield the arrays with the three codecs."""
    yield from _pad()
    yield from _offset()
    yield from _packbits()


def _pad() -> Iterator[Made]:
    yield _array("pad/start-zeros", "Zeros before the chunk are skipped.", LITTLE, pad("start", 5))
    yield _array("pad/start", "A header before the chunk is skipped.", LITTLE, pad("start", 16, TEXT))
    yield _array("pad/end", "A trailer behind the chunk is skipped.", LITTLE, pad("end", 16, TEXT))
    yield _array("pad/end-zeros", "Zeros behind the chunk are skipped.", LITTLE, pad("end", 3))
    yield _array("pad/both", "A header and a trailer, with the codec twice.", LITTLE, pad("start", 2), pad("end", 3))
    yield _array("pad/nothing", "A padding of 0 bytes changes nothing.", LITTLE, pad("start", 0), pad("end", 0, b""))
    yield _array(
        *("pad/after-gzip", "The header is before the compressed chunk."),
        *(LITTLE, GZIP, pad("start", 16, TEXT)),
        features=("gzip",),
    )
    yield _array(
        *("pad/before-zstd", "The padding is compressed together with the chunk."),
        *(BIG, pad("end", 40), ZSTD),
        features=("zstd",),
    )
    yield _array(
        *("pad/between-checksums", "A checksum of the chunk inside the padding, and one of all bytes around it."),
        *(LITTLE, CRC32C, pad("start", 4, b"head"), CRC32C),
        features=("crc32c",),
    )
    other = _array(
        "pad/other-bytes", "The stored padding differs from the configured one, and is not compared.", LITTLE
    )
    other = other.with_document(lambda document: document["codecs"].append(pad("start", 4, b"abcd")))
    stored = {key: b"wxyz" + data for key, data in other.files.items() if key.startswith("c/")}
    yield other.with_files(stored)
    yield _array(
        *("pad/edge-and-missing", "Padded chunks at the edge, and a missing chunk."),
        *(LITTLE, pad("start", 16, TEXT)),
        values=numbers((5, 7), "int32"),
        missing={(0, 1)},
        fill=-3,
        features=("edge-chunks", "missing-chunks"),
    )
    yield _array(
        *("pad/header-part", "The header is a part of its own, which all chunks could share."),
        *(LITTLE, pad("start", 16, TEXT)),
        parts=[part(".header", 16), part("")],
        features=("concat-parts",),
    )
    yield _array(
        *("pad/keys-v2", "Padded chunks with keys of the encoding v2."),
        *(LITTLE, pad("end", 2)),
        encoding={"name": "v2"},
        features=("chunk-keys",),
    )


def _offset() -> Iterator[Made]:
    yield _array("offset/zeros", "Zeros before the chunk are skipped.", LITTLE, offset(5))
    yield _array("offset/prefix", "A header before the chunk is skipped.", LITTLE, offset(16, TEXT))
    yield _array("offset/nothing", "An offset of 0 bytes changes nothing.", LITTLE, offset(0), offset(0, b""))
    yield _array("offset/twice", "Two headers, one before the other.", LITTLE, offset(3, b"abc"), offset(2))
    yield _array(
        *("offset/after-gzip", "The header is before the compressed chunk."),
        *(LITTLE, GZIP, offset(16, TEXT)),
        features=("gzip",),
    )
    yield _array(
        *("offset/edge-and-missing", "Chunks with headers at the edge, and a missing chunk."),
        *(BIG, ZSTD, offset(7)),
        values=numbers((5, 7), "float32"),
        missing={(1, 0)},
        fill="NaN",
        features=("edge-chunks", "missing-chunks", "zstd"),
    )
    other = _array("offset/other-bytes", "The stored header differs from the prefix, and is not compared.", LITTLE)
    other = other.with_document(lambda document: document["codecs"].append(offset(4, b"abcd")))
    yield other.with_files({key: b"wxyz" + data for key, data in other.files.items() if key.startswith("c/")})
    yield _array(
        *("offset/header-part", "The header is a part of its own, and the chunk has a trailer."),
        *(LITTLE, pad("end", 4), offset(16, TEXT)),
        parts=[part(".header", 16), part(""), part(".footer", 4)],
        features=("concat-parts", "pad"),
    )


def _packed(name: str, checks: str, values: Values, configuration: Json | None, **options: Any) -> Made:
    codec = {"name": "packbits"} if configuration is None else {"name": "packbits", "configuration": configuration}
    more = options.pop("codecs", ())
    return _array(f"packbits/{name}", checks, codec, *more, values=values, **options)


def _packbits() -> Iterator[Made]:
    flags = numbers((5, 4), "bool")
    for place in ("none", "first_byte", "last_byte"):
        yield _packed(
            *(f"bool-{place.replace('_', '-')}", f"Booleans take one bit each; padding_encoding is {place}."),
            *(flags, {"padding_encoding": place}),
            fill=False,
            features=("edge-chunks",),
        )
        yield _packed(
            *(f"bool-{place.replace('_', '-')}-whole", f"No bit is unused; padding_encoding is {place}."),
            *(numbers((4, 8), "bool", 2), {"padding_encoding": place}),
            chunks=(4, 4),
            fill=False,
        )
    yield _packed("no-configuration", "Without a configuration, all bits are stored.", flags, None, fill=False)
    words = numbers((4, 6), "uint16", 3)
    yield _packed("uint16-12-bits", "The lowest 12 bits of each number are stored.", words & 0xFFF, {"last_bit": 11})
    yield _packed(
        *("uint16-middle-bits", "Bits 3 to 9 are stored, and the others are read as zero."),
        *(words & 0x3F8, {"first_bit": 3, "last_bit": 9, "padding_encoding": "first_byte"}),
    )
    small = (words % 32).astype("int16") - 16
    yield _packed("int16-5-bits", "Signed numbers of five bits: the sign is extended.", small, {"last_bit": 4})
    yield _packed(
        *("int32-middle-bits", "Signed numbers without their lowest bits: the sign is extended."),
        *((numbers((4, 6), "int32") >> 20) << 4, {"first_bit": 4, "last_bit": 15}),
    )
    yield _packed("int8-1-bit", "One bit of a signed number is its sign.", -(small & 1).astype("int8"), {"last_bit": 0})
    yield _packed("uint32-31-bits", "31 bits of each number.", numbers((4, 6), "uint32") >> 1, {"last_bit": 30})
    yield _packed(
        *("uint64-33-bits", "33 bits of each number of 64 bits."),
        *(numbers((4, 6), "uint64") >> np.uint64(31), {"last_bit": 32, "padding_encoding": "last_byte"}),
    )
    yield _packed("int64-all-bits", "All bits of numbers of 64 bits.", numbers((4, 6), "int64"), {})
    yield _packed(
        *("null-bits", "A bit that is null is the first or the last one."),
        *(words, {"padding_encoding": "none", "first_bit": None, "last_bit": None}),
    )
    yield _packed("float32", "All bits of floating-point numbers.", numbers((4, 6), "float32"), {})
    yield _packed(
        *("gzip", "Packed chunks are compressed, and one is missing."),
        *(words & 0x3FF, {"last_bit": 9}),
        codecs=[GZIP],
        missing={(0, 0)},
        fill=1000,
        features=("gzip", "missing-chunks"),
    )
    yield _packed(
        *("parts", "Packed chunks in parts, the byte of the padding in a part of its own."),
        *(flags, {"padding_encoding": "first_byte"}),
        parts=[part(".padding", 1), part("")],
        fill=False,
        features=("concat-parts", "edge-chunks"),
    )
    transpose: Json = {"name": "transpose", "configuration": {"order": [1, 0]}}
    packbits: Json = {"name": "packbits", "configuration": {"last_bit": 11}}
    yield _array(
        "packbits/transpose", "Elements are packed in the order of the stored axes.", transpose, packbits
    ).named("packbits/transpose", "Elements are packed in the order of the stored axes.", values=_VALUES & 0xFFF)
    yield _packed("no-dimensions", "One boolean in an array without axes.", np.array(True), {}, chunks=(), fill=False)
