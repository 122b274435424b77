"""The examples of the specifications, with chunks in them."""

import struct
from collections.abc import Iterator

import numpy as np

from conformance.generator.arrays import BIG, DOCUMENT, LITTLE, Made, Region, concat, cut, dump, make_array, part
from conformance.generator.encoding import Json, encode, numbers

# The header of a TIFF file with one strip of 256 x 256 numbers of 16 bits.
_TIFF = (
    "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYBAwAB"
    "AAAAAAEAABcBBAABAAAAAAACAAAAAAA="
)
_CUSTOM = "TVlfQ1VTVE9NX0hFQURFUg=="


def example_cases() -> Iterator[Made]:
    """Yield the examples. Where an example gives codecs only, they are in the document of a small array."""
    yield _first_example()
    yield _second_example()
    pad: Json = {"location": "start"}
    for name, nbytes, literal, more in (("pad", "nbytes", "padding", pad), ("offset", "offset", "prefix", {})):
        yield _tiff_example(name, {"name": name, "configuration": {**more, nbytes: 110, literal: _TIFF}})
        yield _custom_header(name, {"name": name, "configuration": {**more, nbytes: 16, literal: _CUSTOM}})
    yield _n5_example("pad", {"name": "zstd"}, {**pad, "nbytes": 12})
    level: Json = {"name": "zstd", "configuration": {"level": 3}}
    yield _n5_example("offset", level, {"offset": 12, "prefix": "AAAAAgAAAEAAAABA"})


def _document(shape: list[int], chunks: list[int], data_type: str, **members: object) -> Json:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        **members,
    }


def _first_example() -> Made:
    """Return the document of concat-parts with zstd and crc32c as it is printed; one of four chunks is stored."""
    codecs = [{"name": "zstd"}, {"name": "crc32c"}]
    parts = [part(""), part(".crc32c", 4)]
    keys = {"name": "default", "configuration": {"separator": "/"}}
    transformers = concat(*parts)
    document = _document(
        *([1000, 1000], [500, 500], "uint8"), chunk_key_encoding=keys, codecs=codecs, storage_transformers=transformers
    )
    column = numbers((500, 1), "uint8", 11)
    pieces = cut(encode(np.broadcast_to(column, (500, 500)), codecs), parts)
    files = {DOCUMENT: dump(document), "c/1/0": pieces[0], "c/1/0.crc32c": pieces[1]}
    return Made(
        "examples/concat-parts-checksum",
        "The first example of concat-parts as it is printed: no configuration of zstd, no `bytes`, no fill value.",
        ("concat-parts", "zstd", "crc32c", "missing-chunks", "incomplete-document"),
        files,
        values=np.zeros((1000, 1000), "uint8"),
        regions=(Region((500, 0), (1000, 500), column),),
    )


def _second_example() -> Made:
    """Return the document of concat-parts with shards; the lengths of all axes are a hundredth of those printed."""
    configuration = {
        "chunk_shape": [5, 5],
        "index_location": "end",
        "index_codecs": [LITTLE, {"name": "crc32c"}],
        "codecs": [{"name": "packbits"}],
    }
    values = numbers((100, 100), "uint8", 12)
    values[50:70, :60] = 0
    made = make_array(
        "examples/concat-parts-shards",
        "The second example of concat-parts with a hundredth of its lengths: the parts are the same.",
        values,
        features=("concat-parts", "sharding", "packbits", "missing-chunks", "incomplete-document"),
        chunks=(50, 50),
        parts=[part(".header", 64), part(""), part(".index", 1604)],
        codecs=[{"name": "sharding_indexed", "configuration": configuration}],
        encoding={"name": "default"},
        missing={(0, 1)},
    )
    return made.with_document(lambda document: document.pop("fill_value"))


def _tiff_example(name: str, codec: Json) -> Made:
    keys = {"name": "default", "configuration": {"separator": "/"}}
    codecs = [LITTLE, codec]
    document = _document([256, 256], [256, 256], "uint16", chunk_key_encoding=keys, fill_value=0, codecs=codecs)
    rows, last = np.arange(256, dtype="uint16").reshape(256, 1) * 255 + 7, numbers((256, 1), "uint16", 13)
    block = np.broadcast_to(rows, (256, 256)).copy()
    block[:, 255:] = last
    return Made(
        f"examples/{name}-tiff",
        f"The first example of {name}: every chunk is a TIFF file.",
        (name,),
        {DOCUMENT: dump(document), "c/0/0": encode(block, codecs)},
        values=np.zeros((256, 256), "uint16"),
        regions=(Region((0, 0), (256, 255), rows), Region((0, 255), (256, 256), last)),
    )


def _custom_header(name: str, codec: Json) -> Made:
    return make_array(
        f"examples/{name}-gzip",
        f"The second example of {name} as it is printed: gzip without configuration, and no `bytes`.",
        numbers((4, 6), "uint16", 14),
        features=(name, "gzip", "incomplete-document"),
        chunks=(4, 3),
        codecs=[{"name": "gzip"}, codec],
    )


def _n5_example(name: str, zstd: Json, configuration: Json) -> Made:
    """Return the document for an N5 dataset as it is printed; two blocks are stored, with the header of N5."""
    keys = {"name": "v2", "configuration": {"separator": "/"}}
    codecs = [BIG, zstd, {"name": name, "configuration": configuration}]
    document = _document([1024, 1024], [64, 64], "uint16", chunk_key_encoding=keys, codecs=codecs, fill_value=0)
    files, regions = {DOCUMENT: dump(document)}, []
    for number, (row, column) in enumerate([(0, 0), (15, 2)]):
        block = numbers((64, 64), "uint16", 15 + number)
        header = struct.pack(">HHII", 0, 2, 64, 64)
        files[f"{row}/{column}"] = header + encode(block, codecs[:2])
        start, stop = (row * 64, column * 64), (row * 64 + 64, column * 64 + 64)
        regions.append(Region(start, stop, block))
    return Made(
        f"examples/{name}-n5",
        f"The third example of {name} as it is printed: blocks of an N5 dataset, with axes as they are.",
        (name, "zstd", "chunk-keys", "missing-chunks", "incomplete-document"),
        files,
        values=np.zeros((1024, 1024), "uint16"),
        regions=tuple(regions),
    )
