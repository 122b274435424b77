"""A reader from the specifications alone, without zarr and without parts_store, for arrays that fit into memory."""

import json
import math
import re
import sys
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from conformance.readers.protocol import UnreadableError, main

type Json = dict[str, Any]
type Values = np.ndarray[Any, Any]
KNOWN = "zarr_format node_type shape data_type chunk_grid chunk_key_encoding codecs fill_value attributes"
# What a part, and the configuration of a codec, may be: as JSON with sorted members.
SUFFIX = r'"(?![0-9])(?!(\.[0-9]+)+")(?![^"]*(\.\.|#[0-9]+"|[. ]"))[^"/\\]*"'
BASE64 = '"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"'
VALID = {
    "part": rf'{{"key_suffix": {SUFFIX}(, "size": \d+)?}}',
    "pad": rf'{{"location": "(start|end)", "nbytes": \d+(, "padding": {BASE64})?}}',
    "offset": rf'{{"offset": \d+(, "prefix": {BASE64})?}}',
    "packbits": r'{("(first|last)_bit": (null|\d+)(, |(?=})))*("padding_encoding": "(none|first_byte|last_byte)")?}',
}


def require(condition: object, name: str, found: object = "") -> None:
    if not condition:
        raise UnreadableError(name, str(found))


def bytes_to_bytes(data: bytes, name: str, options: Json) -> bytes:
    match name:
        case "gzip" | "numcodecs.zlib":
            return zlib.decompress(data, wbits=47)
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        case "numcodecs.shuffle":
            return np.frombuffer(data, "u1").reshape(options["elementsize"], -1).T.tobytes()
        case "crc32c":
            remainder = 0xFFFFFFFF
            for bit in range(8 * len(data) - 32):
                remainder ^= data[bit // 8] if bit % 8 == 0 else 0
                remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
            require(data[-4:] == (remainder ^ 0xFFFFFFFF).to_bytes(4, "little"), "bad-checksum")
            return data[:-4]
        case "pad" | "offset":
            require(re.fullmatch(VALID[name], json.dumps(options, sort_keys=True)), "bad-configuration", options)
            size, literal = options["nbytes" if name == "pad" else name], options.get("padding", options.get("prefix"))
            require(literal is None or len(literal) // 4 * 3 - literal.count("=") == size, "bad-configuration", options)
            require(len(data) >= size, "bad-data", "shorter than its padding")
            return data[: len(data) - size] if options.get("location") == "end" else data[size:]
    raise UnreadableError("unknown-extension", name)


def decode(data: bytes, codecs: list[Json], shape: list[int], dtype: np.dtype[Any], fill: Any) -> Values:
    order, to_bytes, options = [*range(len(shape))], "bytes", dict[str, Any]()
    for name, configuration in ((codec["name"], codec.get("configuration", {})) for codec in reversed(codecs)):
        if name in ("bytes", "packbits", "sharding_indexed"):
            to_bytes, options = name, configuration
        elif name == "transpose":
            order = configuration["order"]
        else:
            data = bytes_to_bytes(data, name, configuration)
    stored = [shape[axis] for axis in order]
    if to_bytes == "sharding_indexed":
        block = decode_shard(data, options, stored, dtype, fill)
    elif to_bytes == "packbits":
        block = unpack(data, options, math.prod(stored), dtype)
    else:
        require(len(data) == math.prod(stored) * dtype.itemsize, "bad-data", f"{len(data)} bytes")
        block = np.frombuffer(data, dtype.newbyteorder(">" if options.get("endian") == "big" else "<"))
    return block.reshape(stored).transpose(np.argsort(order))


def unpack(data: bytes, options: Json, count: int, dtype: np.dtype[Any]) -> Values:
    require(re.fullmatch(VALID["packbits"], json.dumps(options, sort_keys=True)), "bad-configuration", options)
    width, place = 1 if dtype.kind == "b" else dtype.itemsize * 8, options.get("padding_encoding", "none")
    first, last = options.get("first_bit") or 0, options.get("last_bit")
    kept = (width if last is None else last + 1) - first
    require(0 < kept <= width - first, "bad-configuration", options)
    require(len(data) == -(-count * kept // 8) + (place != "none"), "bad-data", f"{len(data)} bytes")
    require(place == "none" or data[-(place == "last_byte")] == -count * kept % 8, "bad-data", "unused bits")
    packed = int.from_bytes(data[place == "first_byte" :], "little")
    values = [packed >> at * kept & ((1 << kept) - 1) for at in range(count)]
    signed = [each - (1 << kept if dtype.kind == "i" and each >> (kept - 1) else 0) for each in values]
    return np.array([(each << first) % 2**64 for each in signed], "u8").astype(f"u{dtype.itemsize}").view(dtype)


def decode_shard(data: bytes, options: Json, shape: list[int], dtype: np.dtype[Any], fill: Any) -> Values:
    inner, index_codecs, block = options["chunk_shape"], options["index_codecs"], np.full(shape, fill, dtype)
    grid = [length // n for length, n in zip(shape, inner, strict=True)]
    nbytes = math.prod(grid) * 16 + 4 * any(codec["name"] == "crc32c" for codec in index_codecs)
    first = 0 if options.get("index_location") == "start" else len(data) - nbytes
    table = decode(data[first : first + nbytes], index_codecs, [math.prod(grid), 2], np.dtype("u8"), 0).tolist()
    for (start, size), position in zip(table, np.ndindex(*grid), strict=True):
        if (start, size) != (2**64 - 1, 2**64 - 1):
            require(start + size <= len(data), "bad-data", "a range behind the end of the shard")
            box = tuple(slice(at * n, at * n + n) for at, n in zip(position, inner, strict=True))
            block[box] = decode(data[start : start + size], options["codecs"], inner, dtype, fill)
    return block


def parts_of(document: Json) -> list[Json]:
    for name in document.keys() - {*KNOWN.split(), "dimension_names", "storage_transformers"}:
        is_mark = name == "parts_store" and document[name].keys() == {"name", "must_understand"}
        require(is_mark or document[name].get("must_understand") is False, "unknown-extension", name)
    transformers = document.get("storage_transformers", [])
    require([each["name"] for each in transformers] in ([], ["concat-parts"]), "unknown-transformer", transformers)
    parts = transformers[0]["configuration"].get("parts") if transformers else [{"key_suffix": ""}]
    require(isinstance(parts, list) and parts, "bad-configuration", parts)
    are_valid = [re.fullmatch(VALID["part"], json.dumps(part, sort_keys=True)) for part in parts]
    require(all(are_valid) and len({part["key_suffix"] for part in parts}) == len(parts), "bad-configuration", parts)
    return list(parts)


def read(root: Path, array: str) -> Values:
    document = json.loads((root / array / "zarr.json").read_text())
    parts, keys, shape = parts_of(document), document["chunk_key_encoding"], document["shape"]
    anchor = min(parts, key=lambda part: (part["key_suffix"] != "", "size" in part))
    separator = keys.get("configuration", {}).get("separator", "." if keys["name"] == "v2" else "/")
    dtype, chunk = np.dtype(document["data_type"]), document["chunk_grid"]["configuration"]["chunk_shape"]
    fill = np.array(document.get("fill_value", 0)).astype(dtype)
    values = np.full(shape, fill, dtype)
    for at in np.ndindex(*(-(-length // n) for length, n in zip(shape, chunk, strict=True))):
        key = separator.join([*(["c"] if keys["name"] == "default" else []), *map(str, at)]) or "0"
        paths = [root / array / (key + part["key_suffix"]) for part in parts]
        if not paths[parts.index(anchor)].is_file():
            continue
        for part, path in zip(parts, paths, strict=True):
            require(path.is_file(), "missing-part", path)
            require(part.get("size") in (None, path.stat().st_size), "wrong-size", path)
        pieces = [path.read_bytes() for path in paths]
        if "shard_file" in document and len(pieces) > 1:
            file, (head, tail) = pieces[0], np.frombuffer(pieces[0][-24:-8], "<u8").tolist()
            digest = blake2b(pieces[1] + file[:head] + file[len(file) - 32 - tail : -32], digest_size=8).digest()
            require(file.endswith(b"zarrseal" + file[-24:-8] + digest), "changed-file", key)
        box = tuple(slice(i * n, min(i * n + n, length)) for i, n, length in zip(at, chunk, shape, strict=True))
        block = decode(b"".join(pieces), document["codecs"], chunk, dtype, fill)
        values[box] = block[tuple(slice(each.stop - each.start) for each in box)]
    return values


if __name__ == "__main__":
    main(read, sys.argv[1:])
