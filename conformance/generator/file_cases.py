"""Arrays whose shards are TIFF or HDF5 files, with the member `shard_file` in their document."""

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from conformance.generator.arrays import CRC32C, DOCUMENT, LITTLE, ZSTD, Made, concat, dump, part
from conformance.generator.encoding import NO_CHUNK, Json, Values, encode, numbers

_ZLIB: Json = {"name": "numcodecs.zlib", "configuration": {"level": 6}}
_SHORT, _LONG = 3, 4


def file_cases() -> Iterator[Made]:
    """Yield the arrays whose shards are files."""
    image = numbers((32, 40), "uint16", 5)
    image[:16, 16:32] = 0
    yield _tiff("tiff-tiles", "Shards are TIFF files with tiles; one tile is missing, and one file is cut.", image)
    yield _tiff("tiff-deflate", "The tiles are compressed with deflate.", image, codecs=(LITTLE, _ZLIB))
    stack = numbers((2, 16, 16), "uint8", 6)
    yield _tiff(
        *("tiff-pages", "A file has an image for each position along the first axis."),
        stack,
        codecs=({"name": "bytes"},),
        shard=(2, 16, 16),
        tile=(1, 16, 16),
    )
    cube = numbers((6, 8), "int16", 7)
    cube[:2, 4:] = 0
    yield _hdf5("hdf5", "Shards are HDF5 files; one chunk is missing, and one file is cut.", cube)
    codecs = (LITTLE, {"name": "numcodecs.shuffle", "configuration": {"elementsize": 2}}, _ZLIB)
    yield _hdf5("hdf5-shuffle-deflate", "The chunks are shuffled and compressed with deflate.", cube, codecs=codecs)
    checks = "Each shard is one object: the file with its seal, and behind it the index."
    yield _in_one_object(_tiff("object-tiff", checks, image, codecs=(LITTLE, ZSTD)))
    yield _in_one_object(_hdf5("object-hdf5", checks, cube))
    checks = "Other software has written a shard again, which is no file and has no seal."
    foreign = _in_one_object(_tiff("object-foreign", checks, image))
    first, second = (encode(np.pad(image[at : at + 16, 32:], ((0, 0), (0, 8))), [LITTLE]) for at in (0, 16))
    index = _index([(0, len(first)), None, (len(first), len(second)), None])
    yield replace(foreign, files={**foreign.files, "c/0/1": first + second + index})


def _in_one_object(made: Made) -> Made:
    """Return the same array with the index of each shard behind the file, in one object at the key of the shard."""
    document = json.loads(made.files[DOCUMENT])
    suffixes = [each["key_suffix"] for each in document.pop("storage_transformers")[0]["configuration"]["parts"]]
    keys = sorted(key.removesuffix(suffixes[0]) for key in made.files if key.endswith(suffixes[0]))
    files = {key: b"".join(made.files[key + suffix] for suffix in suffixes) for key in keys}
    features = tuple(each for each in made.features if each != "concat-parts")
    versioned = tuple(keys) if made.versioned else ()
    return replace(made, features=features, files={DOCUMENT: dump(document), **files}, versioned=versioned)


def _document(values: Values, shard: Sequence[int], inner: Sequence[int], codecs: Sequence[Json], name: str) -> Json:
    grid = [a // b for a, b in zip(shard, inner, strict=True)]
    index_nbytes = int(np.prod(grid)) * 16 + 4
    configuration = {
        "chunk_shape": [*inner],
        "codecs": [*codecs],
        "index_codecs": [LITTLE, CRC32C],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*values.shape],
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*shard]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": configuration}],
        "storage_transformers": concat(part({"tiff": ".tif", "hdf5": ".h5"}[name]), part(".index", index_nbytes)),
        "shard_file": {"name": name, "must_understand": False},
    }


def _shards(values: Values, shard: Sequence[int]) -> Iterator[tuple[str, Values, tuple[int, ...]]]:
    """Yield the key of each shard, its values with zeros outside of the array, and its shape inside of the array."""
    grid = [-(-length // n) for length, n in zip(values.shape, shard, strict=True)]
    for position in np.ndindex(*grid):
        inside = values[tuple(slice(at * n, (at + 1) * n) for at, n in zip(position, shard, strict=True))]
        block = np.zeros(shard, values.dtype)
        block[tuple(slice(length) for length in inside.shape)] = inside
        yield "/".join(["c", *map(str, position)]), block, inside.shape


def _inner(block: Values, inner: Sequence[int], codecs: Sequence[Json]) -> list[bytes | None]:
    """Return the encoded inner chunks in C order, None for one of nothing but zeros."""
    axes = [range(0, length, n) for length, n in zip(block.shape, inner, strict=True)]
    boxes = [tuple(slice(at, at + n) for at, n in zip(start, inner, strict=True)) for start in itertools.product(*axes)]
    return [encode(block[box], [*codecs]) if block[box].any() else None for box in boxes]


def _index(places: Sequence[tuple[int, int] | None]) -> bytes:
    return encode(np.array([place or (NO_CHUNK, NO_CHUNK) for place in places], np.uint64), [LITTLE, CRC32C])


def _seal(index: bytes, header: bytes = b"", fill_tile: bytes = b"") -> bytes:
    digest = blake2b(index + header + fill_tile, digest_size=8).digest()
    return fill_tile + b"zarrseal" + struct.pack("<QQ", len(header), len(fill_tile)) + digest


def _tiff(
    name: str,
    checks: str,
    values: Values,
    *,
    codecs: Sequence[Json] = (LITTLE,),
    shard: tuple[int, ...] = (32, 32),
    tile: tuple[int, ...] = (16, 16),
) -> Made:
    files = {DOCUMENT: dump(_document(values, shard, tile, codecs, "tiff"))}
    for key, block, extent in _shards(values, shard):
        chunks = _inner(block, tile, codecs)
        fill_tile = encode(np.zeros(tile, values.dtype), [*codecs])
        compression = {1: 1, 2: 8 if codecs[-1] == _ZLIB else 50000}[len(codecs)]
        # The directories have the same size whatever the offsets are.
        at = len(_directories(values.dtype, extent, shard, tile, [(0, 0)] * len(chunks), compression))
        places: list[tuple[int, int] | None] = []
        for chunk in chunks:
            places.append(None if chunk is None else (at, len(chunk)))
            at += 0 if chunk is None else len(chunk)
        tiles = [place or (at, len(fill_tile)) for place in places]
        header = _directories(values.dtype, extent, shard, tile, tiles, compression)
        index = _index(places)
        data = b"".join(chunk for chunk in chunks if chunk is not None)
        files[f"{key}.tif"] = header + data + _seal(index, header, fill_tile if None in chunks else b"")
        files[f"{key}.index"] = index
    features = ("concat-parts", "sharding", "shard-file", "edge-chunks", "missing-chunks")
    compressed = ("zlib" if codecs[-1] == _ZLIB else "zstd",) if len(codecs) > 1 else ()
    return Made(f"shard-file/{name}", checks, (*features, *compressed), files, values=values)


def _directories(
    dtype: np.dtype[Any],
    extent: Sequence[int],
    shard: Sequence[int],
    tile: Sequence[int],
    tiles: Sequence[tuple[int, int]],
    compression: int,
) -> bytes:
    """Return a TIFF header and one directory for each image; a tile outside of the image has no entry."""
    *leading, height, width = extent
    grid = [a // b for a, b in zip(shard, tile, strict=True)]
    table = np.array(tiles, np.int64).reshape(*grid, 2)
    rows, columns = -(-height // tile[-2]), -(-width // tile[-1])
    pages = [table[position][:rows, :columns].reshape(-1, 2) for position in np.ndindex(*leading)]
    header = b"II*\0" + struct.pack("<I", 8)
    for number, page in enumerate(pages):
        tags = [
            (256, _SHORT, [width]),
            (257, _SHORT, [height]),
            (258, _SHORT, [dtype.itemsize * 8]),
            (259, _SHORT, [compression]),
            (262, _SHORT, [1]),
            (322, _SHORT, [tile[-1]]),
            (323, _SHORT, [tile[-2]]),
            (324, _LONG, page[:, 0].tolist()),
            (325, _LONG, page[:, 1].tolist()),
        ]
        header += _directory(tags, len(header), is_last=number == len(pages) - 1)
    return header


def _directory(tags: Sequence[tuple[int, int, list[int]]], at: int, *, is_last: bool) -> bytes:
    behind = at + 2 + 12 * len(tags) + 4
    entries, values = struct.pack("<H", len(tags)), b""
    for number, kind, content in tags:
        packed = struct.pack(f"<{len(content)}{'H' if kind == _SHORT else 'I'}", *content)
        if len(packed) > 4:
            packed, values = struct.pack("<I", behind + len(values)), values + packed
        entries += struct.pack("<HHI", number, kind, len(content)) + packed.ljust(4, b"\0")
    return entries + struct.pack("<I", 0 if is_last else behind + len(values)) + values


def _hdf5(name: str, checks: str, values: Values, *, codecs: Sequence[Json] = (LITTLE,)) -> Made:
    shard, inner = (4, 8), (2, 4)
    files = {DOCUMENT: dump(_document(values, shard, inner, codecs, "hdf5"))}
    for key, block, extent in _shards(values, shard):
        image, places = _hdf5_image(values.dtype, extent, inner, _inner(block, inner, codecs), len(codecs) > 1)
        index = _index(places)
        files[f"{key}.h5"] = image + _seal(index)
        files[f"{key}.index"] = index
    features = ("concat-parts", "sharding", "shard-file", "edge-chunks", "missing-chunks")
    made = Made(f"shard-file/{name}", checks, features, files, values=values)
    if len(codecs) > 1:
        made = replace(made, features=(*features, "zlib", "shuffle"))
    return replace(made, versioned=tuple(key for key in files if key != DOCUMENT))


def _hdf5_image(
    dtype: np.dtype[Any],
    extent: tuple[int, ...],
    inner: tuple[int, ...],
    chunks: Sequence[bytes | None],
    is_filtered: bool,
) -> tuple[bytes, list[tuple[int, int] | None]]:
    """Return an HDF5 file with the dataset `data`, and where its chunks are in it. Its bytes depend on the version."""
    # Only these arrays need it.
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(1 << 16, False)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    of_file = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    of_file.set_obj_track_times(False)
    opened = h5py.h5f.create(b"conformance", h5py.h5f.ACC_TRUNC, of_file, access)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk(inner)
    creation.set_obj_track_times(False)
    if is_filtered:
        creation.set_shuffle()
        creation.set_deflate(6)
    largest = tuple(-(-length // n) * n for length, n in zip(extent, inner, strict=True))
    space, kind = h5py.h5s.create_simple(extent, largest), h5py.h5t.py_create(dtype, logical=True)
    dataset = h5py.h5d.create(opened, b"data", kind, space, creation)
    starts = [*itertools.product(*(range(0, n * 2, n) for n in inner))]
    for start, chunk in zip(starts, chunks, strict=True):
        if chunk is not None:
            dataset.write_direct_chunk(start, chunk)
    h5py.h5f.flush(opened)
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    dataset.chunk_iter(lambda each: found.__setitem__(each.chunk_offset, (each.byte_offset, each.size)))
    image = opened.get_file_image()
    del dataset
    opened.close()
    return bytes(image), [found.get(start) for start in starts]
