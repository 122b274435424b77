"""Arrays whose chunks are stored in parts: every order, size and place of the parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.generator.arrays import BIG, CRC32C, GZIP, LITTLE, ZSTD, Made, in_group, make_array, part
from conformance.generator.encoding import Json, numbers

# Most arrays have one chunk; those that need several have two.
_ONE = numbers((4, 3), "uint16")
_TWO = numbers((4, 6), "uint16")


def _array(name: str, checks: str, *parts: Json, features: tuple[str, ...] = (), **options: Any) -> Made:
    options = {"values": _ONE, "chunks": (4, 3), **options}
    return make_array(f"concat-parts/{name}", checks, features=("concat-parts", *features), parts=parts, **options)


def part_cases() -> Iterator[Made]:
    """Yield the arrays with parts and without shards."""
    yield from _orders()
    yield from _sizes()
    yield from _grids()
    yield from _keys()
    yield from _codecs()
    yield from _nodes()


def _orders() -> Iterator[Made]:
    yield _array("one-part", "A single part without a suffix is the chunk itself.", part(""))
    yield _array(
        "one-part-with-suffix", "A single part has its suffix, and no object has the key itself.", part(".bin")
    )
    yield _array("main-first", "The unsized main part comes first, a sized part follows.", part(""), part(".tail", 4))
    yield _array("main-last", "The unsized main part comes last.", part(".head", 5), part(""))
    yield _array(
        *("main-middle", "The unsized main part is between two sized parts."),
        *(part(".head", 5), part(""), part(".tail", 4)),
    )
    yield _array(
        *("order-of-the-list", "The order is that of the list, not of the names, and the main part may be anywhere."),
        *(part(".z", 3), part(".a", 5), part(""), part(".m", 2)),
    )
    yield _array(
        *("unsized-first", "The unsized part comes first and has a suffix, the main part has a size."),
        *(part(".data"), part("", 6)),
    )
    yield _array(
        *("unsized-middle", "The unsized part is in the middle and has a suffix."),
        *(part(".a", 4), part(".data"), part("", 7)),
    )
    yield _array(
        *("unsized-last", "The unsized part comes last and has a suffix."),
        *(part("", 4), part(".data")),
    )
    yield _array(
        *("no-main-part", "No part has the key of the chunk itself."), *(part(".a", 4), part(".b"), part(".c", 4))
    )


def _sizes() -> Iterator[Made]:
    yield _array("unsized-absent", "All parts have a size.", part("", 8), part(".rest", 16))
    yield _array("unsized-absent-no-main", "All parts have a size and a suffix.", part(".a", 8), part(".b", 16))
    yield _array(
        *("two-unsized", "Two parts without a size can be read, although not be written."),
        *(part(""), part(".more")),
        unsized=(9, 15),
    )
    yield _array(
        *("three-unsized", "Three parts without a size can be read."),
        *(part(".a"), part(".b"), part("")),
        unsized=(1, 20, 3),
    )
    yield _array(
        *("empty-sized", "A part with the size 0 is an empty object."),
        *(part(".none", 0), part(""), part(".end", 0)),
    )
    yield _array(
        *("empty-unsized", "The sized parts hold the whole chunk, and the unsized part is an empty object."),
        *(part(".head", 20), part(""), part(".tail", 4)),
    )
    yield _array(
        *("eight-parts", "Eight parts, each of another size, are joined in their order."),
        *(part(f".p{number}", number) for number in range(4)),
        part(""),
        *(part(f".q{number}", number + 1) for number in range(3)),
    )
    yield _array(
        *("cut-elements", "Parts begin and end inside of elements."),
        *(part(".a", 3), part(""), part(".b", 5)),
        values=numbers((3, 4), "uint32"),
        chunks=(3, 4),
    )


def _grids() -> Iterator[Made]:
    head_and_tail = (part(".head", 5), part(""), part(".tail", 4))
    yield _array(
        *("edge-chunks", "Chunks at the edge are stored with their full size."),
        *head_and_tail,
        values=numbers((5, 7), "uint16"),
        chunks=(3, 4),
        features=("edge-chunks",),
    )
    yield _array(
        *("missing-chunks", "A chunk without any part has the fill value."),
        *head_and_tail,
        values=_TWO,
        missing={(0, 1)},
        fill=7,
        features=("missing-chunks",),
    )
    yield _array(
        *("no-chunks", "An array without any chunk has the fill value."),
        *head_and_tail,
        missing={(0, 0)},
        fill=65535,
        features=("missing-chunks",),
    )
    orphans = _array(
        *("orphans", "Parts without the part that decides about existence are no chunk: it has the fill value."),
        *head_and_tail,
        values=_TWO,
        fill=7,
        features=("missing-chunks",),
    ).with_files({"c/0/1": None})
    expected = _TWO.copy()
    expected[:, 3:] = 7
    yield orphans.named(orphans.name, orphans.checks, values=expected, is_specified=False)
    yield _array("one-dimension", "An array with one axis.", *head_and_tail, values=_TWO.reshape(-1), chunks=(8,))
    cube = numbers((3, 4, 2), "int32")
    yield _array("three-dimensions", "An array with three axes.", *head_and_tail, values=cube, chunks=(2, 4, 2))
    yield _array(
        *("no-dimensions", "An array without axes has one chunk, with the key `c` and suffixes."),
        *(part(""), part(".tail", 1)),
        values=numbers((), "uint16"),
        chunks=(),
    )
    yield _array(
        *("no-elements", "An array with an axis of length 0 has no chunks."),
        *head_and_tail,
        values=numbers((0, 6), "uint16"),
        chunks=(4, 3),
    )


def _keys() -> Iterator[Made]:
    parts = (part(".head", 5), part(""))
    encodings: dict[str, Json] = {
        "default-dot": {"name": "default", "configuration": {"separator": "."}},
        "default-bare": {"name": "default"},
        "v2-dot": {"name": "v2", "configuration": {"separator": "."}},
        "v2-slash": {"name": "v2", "configuration": {"separator": "/"}},
        "v2-bare": {"name": "v2"},
    }
    for name, encoding in encodings.items():
        yield _array(
            *(f"keys-{name}", "The suffix follows the key of the chunk, in this encoding of chunk keys."),
            *parts,
            values=_TWO,
            encoding=encoding,
            features=("chunk-keys",),
        )
    yield _array(
        *("keys-v2-no-dimensions", "In the encoding v2, the only chunk of an array without axes is `0`."),
        *parts,
        values=numbers((), "float64"),
        chunks=(),
        encoding={"name": "v2"},
        features=("chunk-keys",),
    )
    yield _array(
        *("suffixes", "Suffixes may have several dots, no dot, a dash, an underscore or a space inside."),
        *(part("-a.b.c", 2), part("_d", 2), part("e f", 2), part("")),
    )


def _codecs() -> Iterator[Made]:
    parts = (part(".head", 5), part(""), part(".tail", 4))
    yield _array("gzip", "The parts together are a gzip member.", *parts, codecs=[LITTLE, GZIP], features=("gzip",))
    yield _array("zstd", "The parts together are a Zstandard frame.", *parts, codecs=[LITTLE, ZSTD], features=("zstd",))
    yield _array(
        *("crc32c-part", "The checksum of the compressed chunk is a part of its own."),
        *(part(""), part(".crc32c", 4)),
        codecs=[LITTLE, ZSTD, CRC32C],
        features=("zstd", "crc32c"),
    )
    yield _array("big-endian", "The elements are big-endian.", *parts, codecs=[BIG])
    transpose: Json = {"name": "transpose", "configuration": {"order": [1, 0]}}
    yield _array("transpose", "The axes are stored in another order.", *parts, codecs=[transpose, LITTLE])
    for dtype in ("bool", "int8", "int64", "uint64", "float32", "float64"):
        fill: Any = {"bool": True, "float32": "NaN"}.get(dtype, 0)
        yield _array(
            *(f"data-type-{dtype}", f"Elements of the data type {dtype}, one chunk is missing."),
            *(part(".head", 3), part("")),
            values=numbers((4, 6), dtype),
            codecs=[{"name": "bytes"}] if dtype in ("bool", "int8") else [LITTLE],
            missing={(0, 1)},
            fill=fill,
            features=("missing-chunks",),
        )


def _nodes() -> Iterator[Made]:
    parts = (part(".head", 5), part(""))
    made = _array("in-groups", "The array is below two groups.", *parts, features=("groups",))
    yield in_group(made, "experiment/raw/image", is_consolidated=False)
    consolidated = made.named(
        "concat-parts/consolidated",
        "The root has consolidated metadata, which repeats the storage transformer.",
        features=(*made.features, "consolidated"),
    )
    yield in_group(consolidated, "experiment/raw/image", is_consolidated=True)
    yield _array(
        *("optional-member", "An unknown member of the document that need not be understood is ignored."),
        *parts,
        members={"other_software": {"must_understand": False, "version": 3}, "attributes": {"units": "m"}},
    )
    marked = _array(
        *("marked", "The member `parts_store`, with nothing but its `name` and `must_understand`, is understood."),
        *parts,
        members={"parts_store": {"name": "parts_store", "must_understand": True}},
        features=("mark",),
    )
    yield marked.named(marked.name, marked.checks, is_specified=False)
    left = _array("leftovers", "Objects of an interrupted writer, below `.parts-txn/`, are ignored.", *parts)
    folder, generation = ".parts-txn/00112233445566778899aabbccddeeff", "0123456789abcdef0123456789abcdef"
    staged: dict[str, Any] = {
        ".parts-txn/array.lock": b"",
        f"{folder}.{generation}.0": np.arange(5, dtype=np.uint8).tobytes(),
        f"{folder}.{generation}.1": bytes(19),
    }
    features = (*left.features, "transactions")
    yield left.named(left.name, left.checks, is_specified=False, features=features).with_files(staged)
