"""Make the folder of one array: its document and its chunks, cut into parts."""

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.generator.encoding import Json, Values, encode

LITTLE: Json = {"name": "bytes", "configuration": {"endian": "little"}}
BIG: Json = {"name": "bytes", "configuration": {"endian": "big"}}
CRC32C: Json = {"name": "crc32c"}
GZIP: Json = {"name": "gzip", "configuration": {"level": 5}}
ZSTD: Json = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
DOCUMENT = "zarr.json"


@dataclass(frozen=True)
class Region:
    """Values of a part of an array, which NumPy broadcasts to the box from `start` to `stop`."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    values: Values


@dataclass(frozen=True)
class Made:
    """One case of the kit: the files of a folder, and what a reader must find there."""

    name: str
    checks: str
    features: tuple[str, ...]
    files: Mapping[str, bytes]
    # The path of the array in the folder.
    array: str = ""
    # The values, unless the array cannot be read.
    values: Values | None = None
    # If it is given, only these values are stored in the kit. All others are the fill value.
    regions: tuple[Region, ...] = ()
    fill: Any = 0
    # The class of the error, if the array must not be read.
    error: str | None = None
    # Whether the specifications say so; otherwise they are silent, and the kit has decided.
    is_specified: bool = True
    # Files whose bytes depend on the version of a library.
    versioned: tuple[str, ...] = field(default=())

    def named(self, name: str, checks: str, **changes: Any) -> "Made":
        """Return another case that is like this one."""
        return replace(self, name=name, checks=checks, **changes)

    def with_document(self, change: Callable[[Json], object]) -> "Made":
        """Return the case with another document; `change` changes it in place."""
        path = f"{self.array}/{DOCUMENT}" if self.array else DOCUMENT
        document = json.loads(self.files[path])
        change(document)
        return replace(self, files={**self.files, path: dump(document)})

    def with_files(self, changes: Mapping[str, Callable[[bytes], bytes] | bytes | None]) -> "Made":
        """Return the case with other files, by their keys; None removes a file."""
        files = dict(self.files)
        for key, change in changes.items():
            if change is None:
                del files[key]
            else:
                files[key] = change(files[key]) if callable(change) else change
        return replace(self, files=files)


def dump(document: Json) -> bytes:
    """Return a document as the bytes of `zarr.json`."""
    return (json.dumps(document, indent=1) + "\n").encode()


def part(key_suffix: str, size: int | None = None) -> Json:
    """Return a part as it is in `zarr.json`."""
    return {"key_suffix": key_suffix} | ({} if size is None else {"size": size})


def concat(*parts: Json) -> list[Json]:
    """Return the storage transformers of an array with these parts."""
    return [{"name": "concat-parts", "configuration": {"parts": [*parts]}}]


def cut(data: bytes, parts: Sequence[Json], unsized: Sequence[int] = ()) -> list[bytes]:
    """Return the pieces of a chunk; `unsized` are the sizes of the parts without a size, if there are several."""
    given = iter(unsized)
    free = len(data) - sum(each.get("size", 0) for each in parts)
    sizes = [each["size"] if "size" in each else next(given, free) for each in parts]
    if sum(sizes) != len(data):
        raise ValueError(f"parts of {sizes} bytes do not fit {len(data)} bytes")
    stops = list(itertools.accumulate(sizes))
    return [data[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]


def key_of(position: Sequence[int], encoding: Json) -> str:
    """Return the key of a chunk."""
    name = encoding["name"]
    separator = encoding.get("configuration", {}).get("separator", "/" if name == "default" else ".")
    texts = [str(at) for at in position]
    return separator.join(["c", *texts]) if name == "default" else separator.join(texts) or "0"


def make_array(
    name: str,
    checks: str,
    values: Values,
    *,
    features: Collection[str],
    chunks: tuple[int, ...] | None = None,
    parts: Sequence[Json] | None = None,
    codecs: Sequence[Json] = (LITTLE,),
    encoding: Json | None = None,
    fill: Any = 0,
    missing: Collection[tuple[int, ...]] = (),
    unsized: Sequence[int] = (),
    members: Json | None = None,
    **of_shard: Any,
) -> Made:
    """Return an array with these values; the chunks that are `missing` are not stored and have the fill value."""
    chunks = values.shape if chunks is None else chunks
    encoding = encoding or {"name": "default", "configuration": {"separator": "/"}}
    fill_value = float(fill) if fill == "NaN" else fill
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*values.shape],
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunks]}},
        "chunk_key_encoding": encoding,
        "fill_value": fill,
        "codecs": [*codecs],
        **({} if parts is None else {"storage_transformers": concat(*parts)}),
        **(members or {}),
    }
    files = {DOCUMENT: dump(document)}
    expected = values.copy()
    grid = [-(-length // chunk) for length, chunk in zip(values.shape, chunks, strict=True)]
    for position in np.ndindex(*grid):
        box = tuple(slice(at * n, (at + 1) * n) for at, n in zip(position, chunks, strict=True))
        if position in missing:
            expected[box] = fill_value
            continue
        block = np.full(chunks, fill_value, values.dtype)
        inside = values[box]
        block[tuple(slice(length) for length in inside.shape)] = inside
        data = encode(block, [*codecs], fill_value, **of_shard)
        listed = [part("")] if parts is None else parts
        for each, piece in zip(listed, cut(data, listed, unsized), strict=True):
            files[key_of(position, encoding) + each["key_suffix"]] = piece
    return Made(name, checks, (*features,), files, values=expected)


def in_group(made: Made, path: str, *, is_consolidated: bool) -> Made:
    """Return the same array at a path below groups; the root has consolidated metadata if asked."""
    group: Json = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    names = path.split("/")
    above = ["/".join(names[:count]) for count in range(1, len(names))]
    files = {f"{each}/{DOCUMENT}": dump(group) for each in above}
    files |= {f"{path}/{key}": data for key, data in made.files.items()}
    root = dict(group)
    if is_consolidated:
        metadata = {key.removesuffix(f"/{DOCUMENT}"): json.loads(files[key]) for key in files if key.endswith(DOCUMENT)}
        root["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": metadata}
    files[DOCUMENT] = dump(root)
    return replace(made, files=files, array=path)
