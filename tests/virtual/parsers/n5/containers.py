"""N5 containers, written by z5py and tensorstore, and block by block as the Java library does it."""

import bz2
import gzip
import json
import lzma
import os
import struct
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numcodecs
import numpy as np
import tensorstore
import z5py
import zstandard
from numpy.typing import NDArray

xxhash: Any = import_module("xxhash") if find_spec("xxhash") else None
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64")
COMPRESSIONS = ("raw", "gzip", "zstd", "blosc", "bzip2", "lz4", "xz")


def numbers(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Values of which no two neighbours are equal, with extremes among them."""
    values = np.random.default_rng(1).integers(0, 2**63, shape, np.uint64).astype("u8")
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return (values / 2**60 - 3).astype(kind)
    return values.astype(kind)


def settle(folder: Path) -> None:
    """Make all files old ones: of one that was just written, `adopt` waits for the next second."""
    for each in folder.rglob("*"):
        os.utime(each, (1_700_000_000, 1_700_000_000))


def write_root(folder: Path, **attributes: Any) -> None:
    """Write the attributes of the root of a container."""
    (folder / "attributes.json").write_text(json.dumps({"n5": "4.0.0", **attributes}))
    settle(folder)


def write_z5py(file: Path, name: str, values: NDArray[Any], blocks: tuple[int, ...], compression: str) -> None:
    """Write a dataset with z5py, which cuts the blocks at the edge."""
    z5py.File(str(file), "a", use_zarr_format=False).create_dataset(
        name, data=values, chunks=blocks, compression=compression
    )
    settle(file)


def read_z5py(file: Path, name: str) -> NDArray[Any]:
    values: NDArray[Any] = z5py.File(str(file), "r", use_zarr_format=False)[name][:]
    return values


def open_tensorstore(folder: Path, metadata: dict[str, Any] | None = None) -> Any:
    """Open a dataset with tensorstore, which fills up the blocks at the edge; create it if metadata are given."""
    spec: dict[str, Any] = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    if metadata is not None:
        spec |= {"metadata": metadata, "create": True}
    return tensorstore.open(spec).result()


def java_lz4(data: bytes, nbytes: int = 1 << 16) -> bytes:
    """Compress data as LZ4BlockOutputStream does it. Without `xxhash`, which compares them, the checksums are 0."""
    blocks = []
    for start in range(0, len(data), nbytes):
        piece = data[start : start + nbytes]
        packed = imagecodecs.lz4_encode(piece, header=False)
        method, stored = (0x20, packed) if len(packed) < len(piece) else (0x10, piece)
        checksum = 0 if xxhash is None else xxhash.xxh32_intdigest(piece, 0x9747B28C) & 0x0FFFFFFF
        blocks.append(struct.pack("<8sBIII", b"LZ4Block", method | 6, len(stored), len(piece), checksum) + stored)
    return b"".join([*blocks, struct.pack("<8sBIII", b"LZ4Block", 0x16, 0, 0, 0)])


def java_zstd(data: bytes) -> bytes:
    """Compress data as a stream does it: the frame does not say how long the data is."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    return compressor.compress(data) + compressor.flush()


# The compressions as the Java libraries name them, and what they write.
JAVA: dict[str, tuple[dict[str, Any], Any]] = {
    "raw": ({"type": "raw"}, bytes),
    "gzip": ({"type": "gzip", "level": -1, "useZlib": False}, gzip.compress),
    "zlib": ({"type": "gzip", "level": -1, "useZlib": True}, zlib.compress),
    "zstd": ({"type": "zstd", "level": 3, "nbWorkers": 0}, java_zstd),
    "bzip2": ({"type": "bzip2", "blockSize": 9}, bz2.compress),
    "xz": ({"type": "xz", "preset": 6}, lzma.compress),
    "lz4": ({"type": "lz4", "blockSize": 65536}, java_lz4),
    "blosc": (
        {"type": "blosc", "cname": "zstd", "clevel": 6, "shuffle": 2, "blocksize": 0, "typesize": 8, "nthreads": 1},
        lambda data: numcodecs.Blosc("zstd", 6, numcodecs.Blosc.BITSHUFFLE).encode(data),
    ),
}


def places(grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return product(*(range(count) for count in grid))


def write_java(
    folder: Path, values: NDArray[Any], blocks: tuple[int, ...], compression: str = "raw", **attributes: Any
) -> None:
    """Write a dataset as the Java library does it. The axes of `values` and `blocks` are in numpy's order."""
    folder.mkdir(parents=True, exist_ok=True)
    config, encode = JAVA[compression]
    document = {
        "dimensions": list(values.shape[::-1]),
        "blockSize": list(blocks[::-1]),
        "dataType": values.dtype.name,
        "compression": config,
    }
    (folder / "attributes.json").write_text(json.dumps(document | attributes))
    grid = tuple(-(-size // block) for size, block in zip(values.shape, blocks, strict=True))
    for place in places(grid):
        block = values[tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, blocks, strict=True))]
        header = struct.pack(f">HH{block.ndim}I", 0, block.ndim, *block.shape[::-1])
        file = folder.joinpath(*map(str, place[::-1]))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header + encode(block.astype(block.dtype.newbyteorder(">")).tobytes()))
    settle(folder)
