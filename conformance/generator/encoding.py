"""Encode chunks as the specifications say, with NumPy and the standard library only.

The compressors store bytes as they are, or runs of one byte, so that the result does not depend on the version of a
library. Every decoder of gzip, zlib and Zstandard reads it.
"""

import base64
import math
import struct
import zlib
from itertools import groupby
from typing import Any

import numpy as np

type Json = dict[str, Any]
type Values = np.ndarray[Any, Any]

NO_CHUNK = 2**64 - 1
_MAX_STORED = 65535
_MAX_BLOCK = 1 << 17
# A shorter run of one byte takes less space as it is.
_MIN_RUN = 16


def crc32c(data: bytes) -> bytes:
    """Return the checksum (Castagnoli) of `data`, little-endian, as the codec `crc32c` stores it."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return struct.pack("<I", remainder ^ 0xFFFFFFFF)


def _deflate(data: bytes) -> bytes:
    pieces = [data[at : at + _MAX_STORED] for at in range(0, len(data), _MAX_STORED)] or [b""]
    blocks = [struct.pack("<BHH", 0, len(each), len(each) ^ 0xFFFF) + each for each in pieces]
    blocks[-1] = b"\x01" + blocks[-1][1:]
    return b"".join(blocks)


def gzip(data: bytes) -> bytes:
    """Return data as a gzip member (RFC 1952)."""
    tail = struct.pack("<II", zlib.crc32(data), len(data))
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + _deflate(data) + tail


def zlib_stream(data: bytes) -> bytes:
    """Return data as a zlib stream (RFC 1950)."""
    return b"\x78\x01" + _deflate(data) + struct.pack(">I", zlib.adler32(data))


def zstd(data: bytes) -> bytes:
    """Return data as a Zstandard frame (RFC 8878) of raw blocks and of runs."""
    blocks: list[tuple[int, int, bytes]] = []
    pending = b""
    for byte, group in groupby(data):
        nbytes = len(list(group))
        if nbytes < _MIN_RUN:
            pending += bytes([byte]) * nbytes
            continue
        blocks += _raw_blocks(pending)
        blocks += [(1, min(_MAX_BLOCK, nbytes - at), bytes([byte])) for at in range(0, nbytes, _MAX_BLOCK)]
        pending = b""
    blocks += _raw_blocks(pending)
    blocks = blocks or [(0, 0, b"")]
    frame = struct.pack("<IBI", 0xFD2FB528, 0b10100000, len(data))
    for number, (kind, nbytes, content) in enumerate(blocks):
        is_last = number == len(blocks) - 1
        frame += struct.pack("<I", (nbytes << 3) | (kind << 1) | is_last)[:3] + content
    return frame


def _raw_blocks(data: bytes) -> list[tuple[int, int, bytes]]:
    pieces = [data[at : at + _MAX_BLOCK] for at in range(0, len(data), _MAX_BLOCK)]
    return [(0, len(each), each) for each in pieces]


def shuffle(data: bytes, itemsize: int) -> bytes:
    """Return the first bytes of all elements, then the second bytes, and so on."""
    return np.frombuffer(data, np.uint8).reshape(-1, itemsize).T.tobytes()


def packbits(block: Values, configuration: Json) -> bytes:
    """Return the bits of all elements in C order, one after the other, the least significant bit first."""
    width = 1 if block.dtype == bool else block.dtype.itemsize * 8
    first = configuration.get("first_bit") or 0
    last = width - 1 if configuration.get("last_bit") is None else configuration["last_bit"]
    patterns = np.ascontiguousarray(block).reshape(-1)
    numbers = patterns.view(f"<u{patterns.dtype.itemsize}").tolist()
    bits = [number >> bit & 1 for number in numbers for bit in range(first, last + 1)]
    unused = -len(bits) % 8
    bits += [0] * unused
    packed = bytes(sum(bit << at for at, bit in enumerate(bits[i : i + 8])) for i in range(0, len(bits), 8))
    match configuration.get("padding_encoding", "none"):
        case "first_byte":
            return bytes([unused]) + packed
        case "last_byte":
            return packed + bytes([unused])
        case _:
            return packed


def shard(block: Values, configuration: Json, fill: Any, *, order: int = 1, gap: bytes = b"") -> bytes:
    """Return a shard: the inner chunks that differ from the fill value, and the index.

    With `order` -1, the inner chunks are stored in reverse order. The bytes `gap` are before every inner chunk.
    """
    inner, codecs = configuration["chunk_shape"], configuration["codecs"]
    grid = [length // chunk for length, chunk in zip(block.shape, inner, strict=True)]
    slots = [
        block[tuple(slice(at * n, (at + 1) * n) for at, n in zip(position, inner, strict=True))]
        for position in np.ndindex(*grid)
    ]
    index = np.full((len(slots), 2), NO_CHUNK, np.uint64)
    has_index_first = configuration.get("index_location", "end") == "start"
    data, start = b"", 0
    if has_index_first:
        start = len(encode(index, configuration["index_codecs"]))
    for number in range(len(slots))[::order]:
        if np.array_equal(slots[number], np.full_like(slots[number], fill), equal_nan=block.dtype.kind == "f"):
            continue
        data += gap
        encoded = encode(slots[number], codecs, fill)
        index[number] = start + len(data), len(encoded)
        data += encoded
    encoded_index = encode(index, configuration["index_codecs"])
    return encoded_index + data if has_index_first else data + encoded_index


def encode(block: Values, codecs: list[Json], fill: Any = 0, **of_shard: Any) -> bytes:
    """Return a chunk encoded with codecs in the form that they have in `zarr.json`."""
    data: bytes | None = None
    for codec in codecs:
        configuration = codec.get("configuration", {})
        if codec["name"] == "transpose":
            block = block.transpose(configuration["order"])
        elif codec["name"] in _TO_BYTES:
            data = _to_bytes(block, codec, fill, of_shard)
        else:
            # The examples in the specifications have no codec that makes bytes.
            data = _to_bytes(block, {"name": "bytes"}, fill, {}) if data is None else data
            data = _bytes_to_bytes(data, codec["name"], configuration)
    if data is None:
        raise ValueError(f"no codec makes bytes: {codecs}")
    return data


_TO_BYTES = ("bytes", "packbits", "sharding_indexed")


def _to_bytes(block: Values, codec: Json, fill: Any, of_shard: Json) -> bytes:
    configuration = codec.get("configuration", {})
    match codec["name"]:
        case "packbits":
            return packbits(block, configuration)
        case "sharding_indexed":
            return shard(block, configuration, fill, **of_shard)
        case _:
            order = ">" if configuration.get("endian") == "big" else "<"
            return block.astype(block.dtype.newbyteorder(order)).tobytes()


def _bytes_to_bytes(data: bytes, name: str, configuration: Json) -> bytes:
    match name:
        case "gzip":
            return gzip(data)
        case "zstd":
            return zstd(data)
        case "numcodecs.zlib":
            return zlib_stream(data)
        case "numcodecs.shuffle":
            return shuffle(data, configuration["elementsize"])
        case "crc32c":
            return data + crc32c(data)
        case "offset":
            return _padding(configuration, "offset", "prefix") + data
        case "pad" if configuration["location"] == "start":
            return _padding(configuration, "nbytes", "padding") + data
        case "pad":
            return data + _padding(configuration, "nbytes", "padding")
        case _:
            raise ValueError(f"an unknown codec: {name}")


def _padding(configuration: Json, nbytes: str, literal: str) -> bytes:
    text = configuration.get(literal)
    return bytes(configuration[nbytes]) if text is None else base64.b64decode(text)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 1) -> Values:
    """Return values without a pattern, the same on every machine and with every version of NumPy."""
    count = math.prod(shape)
    state = [(6364136223846793005 * (at + 1) + 1442695040888963407 * seed) % 2**64 for at in range(count)]
    mixed = np.array([(each ^ each >> 29) * 0xBF58476D1CE4E5B9 % 2**64 >> 16 for each in state], np.uint64)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        values = (mixed & np.uint64(1)).astype(bool)
    elif kind.kind == "f":
        values = ((mixed & np.uint64(0xFFFF)).astype("float64") / 8 - 1000).astype(kind)
    else:
        values = mixed.astype(f"<u{kind.itemsize}").view(kind)
    return values.reshape(shape)
